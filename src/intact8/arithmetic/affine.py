"""Ranges to scales, reals to integers and back: the one place each of these formulas exists.

Training, calibration, conversion and every engine read the numbers computed here; a second formula for the same
scale is how a simulated and a deployed network come to disagree. Imports numpy only.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SMALLEST_SCALE = 2.0**-60
"""Smaller scales are raised to this one: the product of two scales then stays a normal float32 (at least 2⁻¹²⁰)."""

LARGEST_SCALE = 2.0**120
"""Wider ranges shrink (both ends alike) to this one: 255 steps then stay below the largest float32, 2¹²⁸."""

UNIT_SCALE = 1.0
"""The scale of the range [0, 0]. Any scale represents zero exactly; this one keeps every ratio of scales ordinary."""


@overload
def choose_qparams(lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[np.float32, int]: ...
@overload
def choose_qparams(lo: Array, hi: Array, qmin: int, qmax: int, symmetric: bool) -> tuple[Array, Array]: ...
def choose_qparams(lo: Any, hi: Any, qmin: int, qmax: int, symmetric: bool) -> tuple[Any, Any]:
    """Return the scale and zero point of the range [lo, hi].

    The range is first widened to include 0, so that zero is always exact.

    - asymmetric: s = (hi − lo) / (qmax − qmin); z = clamp(R(qmin − lo/s), qmin, qmax).
    - symmetric: z is the middle, (qmin + qmax + 1) div 2: 0 for [-128, 127] and [-127, 127], 128 for [0, 255] and
      [1, 255]; s = max(|lo|, |hi|) / max(z − qmin, qmax − z), thus max/128 for a range of 256 integers and max/127 for
      one of 255.

    R rounds half to even. Both are evaluated in float64; s is then rounded once to float32, and z is computed from
    the rounded s. Scales are kept within [SMALLEST_SCALE, LARGEST_SCALE]; the range [0, 0] gets UNIT_SCALE.

    Args:
        lo, hi: ends of the range, lo ≤ hi: two floats, or two arrays of one shape (one range per channel).
        qmin, qmax: integers, qmin < qmax.
        symmetric: whether the zero point is the middle.

    Returns:
        scale and zero point: np.float32 and int, or arrays float32 and int64 of the shape of ``lo``.

    Raises:
        ValueError: lo or hi not finite, lo > hi, or qmin ≥ qmax.

    Example:
        >>> choose_qparams(0.0, 255.0, 0, 255, False)
        (np.float32(1.0), 0)
        >>> choose_qparams(-1.0, 3.0, 0, 255, False)
        (np.float32(0.015686275), 64)
        >>> choose_qparams(-1.0, 2.54, 1, 255, True)
        (np.float32(0.02), 128)
    """
    lo64, hi64 = np.asarray(lo, np.float64), np.asarray(hi, np.float64)
    if qmin >= qmax:
        raise ValueError(f"qmin {qmin} must be less than qmax {qmax}")
    if not (np.isfinite(lo64).all() and np.isfinite(hi64).all()):
        raise ValueError(f"the range [{lo}, {hi}] is not finite")
    if (lo64 > hi64).any():
        raise ValueError(f"the range [{lo}, {hi}] is empty")
    lo64, hi64 = np.minimum(lo64, 0.0), np.maximum(hi64, 0.0)
    middle = (qmin + qmax + 1) // 2
    steps = max(middle - qmin, qmax - middle) if symmetric else qmax - qmin
    width = np.maximum(-lo64, hi64) if symmetric else hi64 - lo64
    shrink = np.minimum(LARGEST_SCALE * steps / np.maximum(width, 1.0), 1.0)
    lo64, ideal = lo64 * shrink, width * shrink / steps
    bounded = np.where(ideal == 0.0, UNIT_SCALE, np.maximum(ideal, SMALLEST_SCALE))
    scale = bounded.astype(np.float32)
    if symmetric:
        zero_point = np.full(scale.shape, middle, np.int64)
    else:
        zero_point = np.clip(np.rint(qmin - lo64 / scale.astype(np.float64)), qmin, qmax).astype(np.int64)
    if scale.ndim == 0:
        return np.float32(scale), int(zero_point)
    return scale, zero_point


def quantize(x: Array, scale: npt.ArrayLike, zero_point: npt.ArrayLike, qmin: int, qmax: int) -> Array:
    """Compute clamp(R(x / s) + z, qmin, qmax): IEEE float32 division, rounding half to even (ONNX QuantizeLinear's
    rule).

    Multiplying by 1/s would be a different function. The rounded quotient is clamped before the zero point is added,
    so that ±inf saturates and nothing overflows. NaN becomes ``qmin``: the result of max(x, low) where a comparison
    with NaN is false, which costs no engine anything.

    Args:
        x: float32, any shape.
        scale, zero_point: float32 and integer, broadcasting against ``x``.
        qmin, qmax: ends of the integer range.

    Returns:
        int32 of the shape of ``x``.

    Example:
        >>> quantize(np.float32([-9, 0.5, 1.5, 2.6, 300, np.nan]), 1.0, 3, 0, 255)
        array([  0,   3,   5,   6, 255,   0], dtype=int32)
    """
    zero = np.asarray(zero_point, np.float64)
    with np.errstate(over="ignore"):
        steps = np.array(np.rint(np.asarray(x, np.float32) / np.asarray(scale, np.float32)), np.float64)
    # In the memory of the quotients: tensors can be large.
    np.minimum(np.fmax(steps, qmin - zero, out=steps), qmax - zero, out=steps)
    return np.add(steps, zero, out=steps).astype(np.int32)


def dequantize(q: Array, scale: npt.ArrayLike, zero_point: npt.ArrayLike) -> Array:
    """Compute (q − z)·s in float32, one multiplication.

    Args:
        q: integers, any shape.
        scale, zero_point: float32 and integer, broadcasting against ``q``.

    Returns:
        float32 of the shape of ``q``.

    Example:
        >>> dequantize(np.uint8([0, 3, 255]), 0.5, 3)
        array([ -1.5,   0. , 126. ], dtype=float32)
    """
    steps = np.asarray(q, np.int64) - np.asarray(zero_point, np.int64)
    return np.asarray(steps.astype(np.float32) * np.asarray(scale, np.float32), np.float32)
