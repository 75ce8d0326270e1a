"""Integer softmax: a stored table of exponentials, an exact sum, one float32 division per row, one rounding per value.

    d = max − x                    over the positions of the row that are not masked, 0 … 255
    t = T[d], 0 where masked       T[d] = R(16383·exp(−d·step)), stored with the program
    y = clamp(R(fl(t · fl(levels / fl(Σ t)))) + z, lo, hi)

Σ t is an exact integer; every fl is one IEEE float32 operation, and R rounds half to even. What is added to the product
is an integer behind a rounding, so no fused multiply-add can enter, and every engine gets the same bits. A row without
any unmasked position is all z: there is nothing to attend to.

``levels`` is 1/s_y, the integer (not rounded) that stands for 1. Against the softmax of the same quantized scores a
probability p is off by half an output step, and by at most p·n/32766 for a row of n scores, from the rounding of the
table; the rounding errors of several entries mostly cancel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .integer import clamp_u8

Array = npt.NDArray[Any]

PEAK = (1 << 14) - 1
"""T[0]: sums of up to 1024 entries stay below 2²⁴, where float32 adds integers exactly in any order."""

FLOAT32_TERMS = ((1 << 24) - 1) // PEAK
"""Longest row whose sum float32 holds exactly."""


def softmax_table(step: float) -> Array:
    """Return T, int32 (256,): R(PEAK·exp(−d·step)) for every distance d from the largest score, in float64.

    Args:
        step: what one integer of the scores stands for, a scale.

    Example:
        >>> softmax_table(0.5)[:4].tolist()
        [16383, 9937, 6027, 3656]
    """
    entries: Array = np.rint(PEAK * np.exp(-float(step) * np.arange(256, dtype=np.float64))).astype(np.int32)
    return entries


def softmax(
    x: Array,
    table: Array,
    axis: int,
    levels: float,
    z: int,
    lo: int = 0,
    hi: int = 255,
    *,
    masked: Array | None = None,
) -> Array:
    """Compute the softmax of integers along one axis, see this module.

    Args:
        x: uint8.
        table: int32 (256,), not increasing.
        axis: along which results sum to one.
        levels: 1/s_y, rounded to float32.
        z, lo, hi: zero point of the output, and its clamp.
        masked: bool, broadcasts to ``x``: positions that count nothing.

    Returns:
        uint8, the shape of ``x``.

    Example:
        >>> softmax(np.array([[10, 10, 0]], np.uint8), softmax_table(1.0), 1, 255.0, 0).tolist()
        [[127, 127, 0]]
        >>> masked = np.array([[False, True, True]])
        >>> softmax(np.array([[10, 10, 0]], np.uint8), softmax_table(1.0), 1, 255.0, 0, masked=masked).tolist()
        [[255, 0, 0]]
    """
    if masked is not None:
        x = np.where(masked, np.uint8(0), x)
    t = table[x.max(axis=axis, keepdims=True) - x]
    if masked is not None:
        t = np.where(masked, np.int32(0), t)
    total = np.maximum(t.sum(axis=axis, keepdims=True, dtype=np.int64), 1).astype(np.float32)
    y = np.rint(t.astype(np.float32) * (np.float32(levels) / total))
    return clamp_u8(np.clip(y, lo - z, hi - z).astype(np.int64), z, lo, hi)  # clamped before it must fit an integer
