"""Dynamic quantization: float32 activations put on a grid of their own at run time, products in integers.

Every step is one IEEE float32 operation or exact, so the float32 results are the same bits wherever the steps are
obeyed. The same in torch is ``intact8.arithmetic.dynamic_torch``. Imports numpy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import affine, integer

Array = npt.NDArray[Any]

GRANULARITIES = ("per_row", "per_tensor")
"""A scale per index of the leading dimensions, or one for the whole tensor."""

SMALLEST = affine.SMALLEST_SCALE
"""Scales are at least this, so that all products of scales stay normal: 2⁻⁶⁰."""

ZERO = 128
"""What is added to store −127 … 127 as uint8."""

REACH = 127
"""The largest magnitude of a quantized value."""


def row_scales(x: Array, granularity: str = "per_row") -> Array:
    """Compute s = max(fl(m / 127), 2⁻⁶⁰) with m = max |x| of each row, or of the whole tensor.

    Args:
        x: float32, (…, K) with K ≥ 1.
        granularity: one of :data:`GRANULARITIES`.

    Returns:
        float32, (…, 1); (1, …, 1) for ``per_tensor``. NaN where x holds NaN or ±inf.

    Example:
        >>> row_scales(np.float32([[0, -254], [127, 3], [0, 0]])).tolist()
        [[2.0], [1.0], [8.673617379884035e-19]]
    """
    axes = -1 if granularity == "per_row" else None
    m = np.max(np.abs(x), axis=axes, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore"):
        # m − m is 0, or NaN where m is infinite.
        return np.asarray(np.maximum(m / np.float32(127), np.float32(SMALLEST)) + (m - m), np.float32)


def quantize_rows(x: Array, granularity: str = "per_row") -> tuple[Array, Array]:
    """Compute q = R(fl(x / s)), within −127 … 127, stored as q + 128, and s of :func:`row_scales`.

    Args:
        x: float32, (…, K) with K ≥ 1.
        granularity: one of :data:`GRANULARITIES`.

    Returns:
        uint8 of the shape of ``x``, and float32 scales (…, 1). 128 where the scale is NaN.

    Example:
        >>> q, s = quantize_rows(np.float32([[0, -254], [63.5, 127]]))
        >>> q.tolist(), s.tolist()
        ([[128, 1], [192, 255]], [[2.0], [1.0]])
    """
    s = row_scales(x, granularity)
    with np.errstate(invalid="ignore"):
        steps = np.rint(np.asarray(x, np.float32) / s)
    steps = np.where(np.isnan(s), np.float32(0), steps)
    return (np.clip(steps, -REACH, REACH) + np.float32(ZERO)).astype(np.uint8), s


def scaled(acc: Array, scale: Array, s: Array, bias: Array | None) -> Array:
    """Compute fl(fl(fl(fl(acc)·s_w)·s) + b): float32 results of exact integer sums, four roundings in this order.

    Args:
        acc: integers, (…, O).
        scale: float32, (O,), of the weight's rows.
        s: float32, (…, 1), of the activation.
        bias: float32, (O,), or None.

    Returns:
        float32, (…, O).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        y = acc.astype(np.float32) * np.asarray(scale, np.float32)
        y *= s
        if bias is not None:
            y += np.asarray(bias, np.float32)
    return y


def dequantized(acc: Array, scale: Array, bias: Array | None, axis: int = -1) -> Array:
    """Compute fl(fl(fl(acc)·scale) + bias): float32 results of exact integer sums, three roundings in this order.

    Args:
        acc: integers, |acc| < 2³¹.
        scale: float32, (O,): the scale of the input times that of the weight's rows.
        bias: float32, (O,), or None.
        axis: the axis of ``acc`` that ``scale`` and ``bias`` run along.

    Returns:
        float32, the shape of ``acc``.

    Example:
        >>> dequantized(np.array([[3, -2]]), np.float32([0.5, 0.25]), np.float32([1, 0])).tolist()
        [[2.5, -0.5]]
    """
    shape = [1] * acc.ndim
    shape[axis] = -1
    with np.errstate(over="ignore", invalid="ignore"):
        y = acc.astype(np.float32) * np.asarray(scale, np.float32).reshape(shape)
        if bias is not None:
            y += np.asarray(bias, np.float32).reshape(shape)
    return np.asarray(y)


def linear(x: Array, weight: Array, scale: Array, bias: Array | None = None, granularity: str = "per_row") -> Array:
    """Compute x·Wᵀ + b with x quantized row by row: see :func:`quantize_rows` and :func:`scaled`.

    Args:
        x: float32, (…, K).
        weight: int8, (O, K).
        scale: float32, (O,).
        bias: float32, (O,), or None.
        granularity: of x, one of :data:`GRANULARITIES`.

    Returns:
        float32, (…, O). A row whose scale is NaN is NaN throughout.

    Example:
        >>> linear(np.float32([[1.0, 2.0]]), np.int8([[127, 0], [0, 127]]), np.float32([1 / 127, 1 / 127]))
        array([[1.007874, 2.      ]], dtype=float32)
    """
    q, s = quantize_rows(x, granularity)
    return scaled(integer.linear_accumulate(q, ZERO, weight, None), scale, s, bias)


def sum_bound(weight: Array) -> int:
    """Return the largest |Σ q·w| of any output and any part of its sum; ``weight`` int8 (O, …), q in −127 … 127."""
    rows = np.abs(weight.reshape(weight.shape[0], -1).astype(np.int64)).sum(axis=1)
    return int(rows.max()) * REACH
