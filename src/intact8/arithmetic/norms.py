"""Integer layer norm, group norm and RMS norm: exact sums, then a fixed sequence of IEEE operations, one rounding each.

For a row of n integers (group norm: a group of channels with all its places), x' = x − 128 (layer and group norm,
which no shift changes) or x' = x − z (RMS norm):

    S = Σ x' (RMS norm: 0), Q = Σ x'²            exact integers
    r = fl32(fl(n / fl(√fl(n·Q − S² + ε))))      float64; n·Q − S² is exact
    u = fl(x' − fl(S / n))                       float32; RMS norm: x' itself
    y = clamp(R(fl(fl(fl(u·r)·gain) + offset)), lo, hi)      float32

with ε = n²·eps/s_x² in squared steps, gain = γ/s_y and offset = β/s_y + z_y per element (group norm: per channel),
rounded to float32 once and stored with the program. R rounds half to even. The only sum behind a product is the last
one; an engine may not fuse the two, and those that claim these kinds do not. ε > 0, so the root is never 0 and a row of
equal integers gives the offset.

Against the exact norm of the same quantized row, y/s_y is off by half an output step and less than 2⁻²¹ of the value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MIDDLE = 128
"""What layer norm takes from its integers first, so that squares stay small: sums of 1023 of them are below 2²⁴."""

LONGEST_ROW = 1 << 17
"""Elements of a row: n·Q stays below 2⁵³, where float64 holds every integer."""


def epsilon_steps(eps: float, scale: float, n: int) -> float:
    """Return ε: ``eps`` of the real variance as float64 in the units of n·Q − S²."""
    return float(eps) * float(n) ** 2 / float(scale) ** 2


def gain_offset(weight: Array | None, bias: Array | None, n: int, scale: float, zero_point: int) -> tuple[Array, Array]:
    """Return γ/s_y and β/s_y + z_y as float32 (n,), computed in float64.

    Args:
        weight, bias: γ and β with n elements; None: ones, zeros.
        n: elements of a row.
        scale, zero_point: of the output.

    Example:
        >>> [v.tolist() for v in gain_offset(None, np.array([0.5, -1.0]), 2, 0.25, 100)]
        [[4.0, 4.0], [102.0, 96.0]]
    """
    gamma = np.ones(n) if weight is None else np.asarray(weight, np.float64).reshape(n)
    beta = np.zeros(n) if bias is None else np.asarray(bias, np.float64).reshape(n)
    return (gamma / scale).astype(np.float32), (beta / scale + zero_point).astype(np.float32)


def layer_norm(x: Array, gain: Array, offset: Array, eps: float, lo: int = 0, hi: int = 255) -> Array:
    """Normalize over the last dimensions, as many as ``gain`` has; see this module.

    Args:
        x: uint8.
        gain, offset: float32, the shape of the trailing dimensions of ``x``.
        eps: ε > 0 in squared steps, see :func:`epsilon_steps`.
        lo, hi: clamp, within 0..255.

    Returns:
        uint8, the shape of ``x``.

    Example:
        >>> gain, offset = gain_offset(None, None, 3, 0.02, 128)
        >>> layer_norm(np.array([[10, 20, 30], [7, 7, 7]], np.uint8), gain, offset, 1e-3).tolist()
        [[67, 128, 189], [128, 128, 128]]
    """
    return _normalize(x, MIDDLE, True, gain, offset, eps, lo, hi)


def rms_norm(x: Array, z: int, gain: Array, offset: Array, eps: float, lo: int = 0, hi: int = 255) -> Array:
    """Compute the RMS norm over the last dimensions, as :func:`layer_norm`; ``z`` is the zero point of ``x``.

    Example:
        >>> gain, offset = gain_offset(None, None, 2, 0.02, 128)
        >>> rms_norm(np.array([[13, 10], [10, 10]], np.uint8), 10, gain, offset, 1e-3).tolist()
        [[199, 128], [128, 128]]
    """
    return _normalize(x, z, False, gain, offset, eps, lo, hi)


def group_norm(x: Array, groups: int, gain: Array, offset: Array, eps: float, lo: int = 0, hi: int = 255) -> Array:
    """Compute the group norm: every group of neighbouring channels of a sample, with all its places, is a row.

    Args:
        x: uint8 (N, C, …).
        groups: of C/groups channels each; C of them are an instance norm, one a layer norm over all but the samples.
        gain, offset: float32 (C,), see :func:`gain_offset`.
        eps: ε > 0 in squared steps, n being the elements of a group.
        lo, hi: clamp, within 0..255.

    Example:
        >>> gain, offset = gain_offset(None, None, 2, 0.02, 128)
        >>> group_norm(np.array([[[10, 20, 30], [7, 7, 7]]], np.uint8), 2, gain, offset, 1e-3).tolist()
        [[[67, 128, 189], [128, 128, 128]]]
    """
    places = math.prod(x.shape[2:])
    rows = x.reshape(len(x), groups, x.shape[1] // groups * places)
    gains, offsets = (np.repeat(v, places).reshape(groups, -1) for v in (gain, offset))
    return _scaled(rows, MIDDLE, True, gains, offsets, eps, lo, hi).reshape(x.shape)


def _normalize(x: Array, shift: int, centered: bool, gain: Array, offset: Array, eps: float, lo: int, hi: int) -> Array:
    n = math.prod(gain.shape)
    rows = x.reshape(*x.shape[: x.ndim - gain.ndim], n)
    return _scaled(rows, shift, centered, gain.reshape(n), offset.reshape(n), eps, lo, hi).reshape(x.shape)


def _scaled(x: Array, shift: int, centered: bool, gain: Array, offset: Array, eps: float, lo: int, hi: int) -> Array:
    """Normalize rows, the last dimension, to which gain and offset broadcast."""
    n, steps = x.shape[-1], x.astype(np.int64) - shift
    total = steps.sum(-1, keepdims=True) if centered else np.zeros((*steps.shape[:-1], 1), np.int64)
    spread = n * (steps * steps).sum(-1, keepdims=True) - total * total
    r = (np.float64(n) / np.sqrt(spread.astype(np.float64) + np.float64(eps))).astype(np.float32)
    u = steps.astype(np.float32) - total.astype(np.float32) / np.float32(n)
    return np.asarray(np.clip(np.rint(u * r * gain + offset), lo, hi).astype(np.uint8))
