"""The error that quantizers make on a distribution, and the quantizers that make the least."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from intact8.calibration.mse import grid_error
from intact8.diagnose.doctor.tensor_statistics import TensorStats
from intact8.diagnose.quantizer import Quantizer
from intact8.opset.op import Array


def error(tensors: list[TensorStats], quantizer: Quantizer) -> float:
    """Return Σ (x − x̂)² over all values of some tensors."""
    low, high = quantizer.ends
    return sum(grid_error(t.bins, low, high, quantizer.lo, quantizer.hi, False) for t in tensors)


def clip_error(tensors: list[TensorStats], quantizer: Quantizer) -> float:
    """Return the part of :func:`error` that comes from values more than half a step outside the quantizer's range."""
    low, high = quantizer.ends
    total = 0.0
    for t in tensors:
        beyond = np.maximum(t.bins.middle - high, low - t.bins.middle)
        total += float(t.bins.count @ np.where(beyond > quantizer.scale / 2, beyond, 0.0) ** 2)
    return total


def clipped_share(tensors: list[TensorStats], quantizer: Quantizer) -> float:
    """Return the share of the values that lie more than half a step outside the quantizer's range."""
    low, high = quantizer.ends[0] - quantizer.scale / 2, quantizer.ends[1] + quantizer.scale / 2
    outside = sum(int(t.bins.count[(t.bins.middle > high) | (t.bins.middle < low)].sum()) for t in tensors)
    return outside / max(sum(t.bins.total for t in tensors), 1)


def merged(tensors: list[TensorStats]) -> TensorStats:
    """Return the common distribution of several tensors, with the channels of all of them."""
    if len(tensors) == 1:
        return tensors[0]
    out = TensorStats()
    for t in tensors:
        out.observer.merge(t.observer)
    for name in ("low", "high", "nonzero", "total", "square"):
        setattr(out, name, np.concatenate([getattr(t, name) for t in tensors]))
    return out


def best_quantizer(tensors: list[TensorStats], lo: int, hi: int, symmetric: bool) -> Quantizer:
    """Return the quantizer of least squared error on these tensors together."""
    return Quantizer(*merged(tensors).best_qparams(lo, hi, symmetric), lo, hi)


def best_zero_point(tensors: list[TensorStats], quantizer: Quantizer) -> Quantizer:
    """Return the quantizer of the same scale whose zero point fits these tensors best."""

    def best(zero_points: set[int]) -> int:
        return min((error(tensors, replace(quantizer, zero_point=z)), z) for z in zero_points)[1]

    lo, hi = quantizer.lo, quantizer.hi
    found = best({*range(lo, hi + 1, 16), hi})
    for step in (16, 4, 1):
        near = range(found - step, found + step + 1, max(1, step // 4))
        found = best({z for z in near if lo <= z <= hi})
    return replace(quantizer, zero_point=found)


def channel_widths(tensors: list[TensorStats]) -> Array:
    """Return the width of every channel's range, widened to zero."""
    t = merged(tensors)
    return np.asarray(np.maximum(t.high, 0) - np.minimum(t.low, 0))


def rounding_noise(tensors: list[TensorStats], steps: Array, weight: Array) -> float:
    """Return Σ over channels of weight · noise, for one step per channel.

    A channel of n values other than zero has the noise n·s²/12, but no more than its own power, for then it rounds to
    zero.
    """
    t = merged(tensors)
    return float(weight @ np.minimum(t.nonzero * steps**2 / 12, t.square))


def decibels(worse: float, better: float) -> float:
    """Return 10·log10(worse/better), at least −60 and at most 120."""
    return 10 * math.log10(min(max(max(worse, 1e-300) / max(better, 1e-300), 1e-6), 1e12))
