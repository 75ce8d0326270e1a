"""Weights stored as codes of 8 or 4 bits with one scale per row or per group of columns, and back to float32.

A weight w is stored as q = clamp(R(w / s)), and stands for fl(q·s): one multiplication. Imports numpy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MIDDLE = {8: 128, 4: 8}
"""Bits → what is added to an integer to store it."""

FIRST = 4096
"""Integers that are looked at before all others."""


def pack(q: Array, bits: int) -> Array:
    """Store integers as bytes: q + 128, or two q + 8 per byte, the first in the low half; an odd row ends in a zero.

    Args:
        q: integers (rows, columns), within −128..127 or −8..7.
        bits: 8 or 4.

    Returns:
        uint8, (rows, columns), or (rows, ⌈columns / 2⌉) for 4 bits.

    Example:
        >>> pack(np.array([[-7, 7, 1]]), 4).tolist()
        [[241, 137]]
        >>> unpack(pack(np.array([[-7, 7, 1]]), 4), 4, 3).tolist()
        [[-7, 7, 1]]
    """
    codes = (q + MIDDLE[bits]).astype(np.uint8)
    if bits == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)), constant_values=MIDDLE[4])
    packed: Array = codes[:, ::2] | (codes[:, 1::2] << 4)
    return packed


def fits_in_four(q: Array) -> bool:
    """Return whether all integers are within −8..7; the first ones tell it of most arrays.

    Example:
        >>> fits_in_four(np.array([-8, 7])), fits_in_four(np.array([8]))
        (True, False)
    """
    flat = q.reshape(-1)
    return all(part.min(initial=0) >= -8 and part.max(initial=0) <= 7 for part in (flat[:FIRST], flat[FIRST:]))


def unpack(codes: Array, bits: int, columns: int) -> Array:
    """Return the integers of :func:`pack`, int8 (rows, columns)."""
    if bits == 4:
        halves = np.stack([codes & 15, codes >> 4], axis=-1)
        codes = halves.reshape(len(codes), -1)[:, :columns]
    return (codes.astype(np.int16) - MIDDLE[bits]).astype(np.int8)


def group_count(columns: int, group: int) -> int:
    """Return the number of scales per row; ``group`` 0 is the whole row, and the last group may be shorter."""
    return -(-columns // group) if group else 1


def spread(scale: Array, columns: int, group: int) -> Array:
    """Return scales (rows, groups) as (rows, 1) or (rows, columns), to multiply integers by."""
    return np.repeat(scale, group, axis=1)[:, :columns] if group else scale


def decode(codes: Array, scale: Array, bits: int, columns: int, group: int) -> Array:
    """Compute fl(q·s): the float32 weight, (rows, columns).

    Args:
        codes: of :func:`pack`.
        scale: float32, (rows, groups).
        bits, columns, group: as stored; see :func:`group_count`.

    Example:
        >>> decode(pack(np.array([[2, -4, 6]]), 8), np.float32([[0.5, 0.25]]), 8, 3, 2).tolist()
        [[1.0, -2.0, 1.5]]
    """
    q = unpack(codes, bits, columns).astype(np.float32)
    return np.asarray(q * spread(np.asarray(scale, np.float32), columns, group), np.float32)
