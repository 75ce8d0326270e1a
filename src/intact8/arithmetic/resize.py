"""Linear and cubic resizing of float arrays, torch's coordinate rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CUBIC = -0.75
"""The cubic kernel's parameter A in torch (Keys 1981 has −0.5)."""


def _source(size: int, out: int, align_corners: bool, clip: bool) -> Array:
    i = np.arange(out, dtype=np.float32)
    if align_corners:
        return i * (np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0))
    source = (i + np.float32(0.5)) * (np.float32(size) / np.float32(out)) - np.float32(0.5)
    return np.maximum(source, np.float32(0)) if clip else source


Taps = list[tuple[Array, Array]]
"""Source position and float32 weight of every output, once per tap."""


def _linear_taps(size: int, out: int, align_corners: bool) -> Taps:
    if size == out:  # as in torch: both taps at the position itself
        at = np.arange(out)
        return [(at, np.ones(out, np.float32)), (at, np.zeros(out, np.float32))]
    source = _source(size, out, align_corners, clip=True)
    left = np.minimum(source.astype(np.int64), size - 1)
    share = np.clip(source - left.astype(np.float32), 0, 1)
    return [(left, 1 - share), (np.minimum(left + 1, size - 1), share)]


def _cubic_taps(size: int, out: int, align_corners: bool) -> Taps:
    source = _source(size, out, align_corners, clip=False)
    left = np.floor(source)
    t = (source - left).astype(np.float64)
    distances = np.stack([t + 1, t, 1 - t, 2 - t], axis=1)
    near = ((CUBIC + 2) * distances - (CUBIC + 3)) * distances**2 + 1
    far = ((distances - 5) * distances + 8) * distances * CUBIC - 4 * CUBIC
    weights = np.where(distances <= 1, near, far).astype(np.float32)
    return [(np.clip(left.astype(np.int64) + k - 1, 0, size - 1), weights[:, k]) for k in range(4)]


def taps(size: int, out: int, cubic: bool, align_corners: bool) -> Taps:
    """Source positions and weights of every output of one dimension, tap by tap: two of them, or four."""
    return (_cubic_taps if cubic else _linear_taps)(size, out, align_corners)


def _matrix(entries: Taps, size: int, out: int) -> Array:
    matrix = np.zeros((out, size), np.float32)
    for position, weight in entries:
        np.add.at(matrix, (np.arange(out), position), weight)
    return matrix


def linear_matrix(size: int, out: int, align_corners: bool) -> Array:
    """float32 (out, size): weights of every source position; two per row.

    Example:
        >>> linear_matrix(2, 3, True).tolist()
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    return _matrix(_linear_taps(size, out, align_corners), size, out)


def cubic_matrix(size: int, out: int, align_corners: bool) -> Array:
    """float32 (out, size): four weights per row, edges repeated."""
    return _matrix(_cubic_taps(size, out, align_corners), size, out)


def resize(x: Array, size: Sequence[int], cubic: bool, align_corners: bool) -> Array:
    """Resize the trailing dimensions of float32 ``x`` to ``size``, one dimension after the other.

    Every output is a sum of its own taps, so that NaN and infinity reach no others.
    """
    first = x.ndim - len(size)
    for axis, out in enumerate(size, start=first):
        shape = [1] * x.ndim
        shape[axis] = out
        rows = taps(x.shape[axis], out, cubic, align_corners)
        parts = [x.take(at, axis=axis) * weight.reshape(shape) for at, weight in rows]
        x = np.asarray(sum(parts[1:], parts[0]))
    return np.asarray(x, np.float32)
