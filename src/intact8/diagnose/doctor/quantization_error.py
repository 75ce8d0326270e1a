"""The error of a grid on a distribution, and what it would be if one thing about the grid were different."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact8.calibration.mse import grid_error
from intact8.diagnose.doctor.tensor_statistics import TensorStats

Array = npt.NDArray[Any]


class Grid(NamedTuple):
    """The numbers scale·(q − zero_point) for q in lo..hi."""

    scale: float
    zero_point: int
    lo: int
    hi: int

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest real number."""
        return (self.lo - self.zero_point) * self.scale, (self.hi - self.zero_point) * self.scale

    @property
    def width(self) -> float:
        """Between the ends."""
        return (self.hi - self.lo) * self.scale


def error(tensors: list[TensorStats], grid: Grid) -> float:
    """Σ (x − x̂)² over all values of some tensors."""
    low, high = grid.ends
    return sum(grid_error(t.bins, low, high, grid.lo, grid.hi, False) for t in tensors)


def clip_error(tensors: list[TensorStats], grid: Grid) -> float:
    """The part of :func:`error` that values outside the grid make."""
    low, high = grid.ends
    total = 0.0
    for t in tensors:
        x = t.bins.middle
        total += float(t.bins.count @ (np.maximum(x - high, 0) ** 2 + np.maximum(low - x, 0) ** 2))
    return total


def clipped_share(tensors: list[TensorStats], grid: Grid) -> float:
    """Share of the values more than half a step outside the grid."""
    low, high = grid.ends[0] - grid.scale / 2, grid.ends[1] + grid.scale / 2
    outside = sum(int(t.bins.count[(t.bins.middle > high) | (t.bins.middle < low)].sum()) for t in tensors)
    return outside / max(sum(t.bins.total for t in tensors), 1)


def merged(tensors: list[TensorStats]) -> TensorStats:
    """The common distribution of several tensors; their channels side by side."""
    if len(tensors) == 1:
        return tensors[0]
    out = TensorStats()
    for t in tensors:
        out.observer.merge(t.observer)
    for name in ("low", "high", "nonzero", "total", "square"):
        setattr(out, name, np.concatenate([getattr(t, name) for t in tensors]))
    return out


def best_grid(tensors: list[TensorStats], lo: int, hi: int, symmetric: bool) -> Grid:
    """The grid of least squared error on these tensors together."""
    return Grid(*merged(tensors).best_qparams(lo, hi, symmetric), lo, hi)


def best_zero_point(tensors: list[TensorStats], grid: Grid) -> Grid:
    """The grid of the same scale whose zero point fits these tensors best."""
    candidates = sorted({*range(grid.lo, grid.hi + 1, 16), grid.hi})
    for step in (16, 4, 1):
        scored = [(error(tensors, grid._replace(zero_point=z)), z) for z in candidates]
        best = min(scored)[1]
        near = range(best - step, best + step + 1, max(1, step // 4))
        candidates = sorted({z for z in near if grid.lo <= z <= grid.hi})
    return grid._replace(zero_point=min((error(tensors, grid._replace(zero_point=z)), z) for z in candidates)[1])


def channel_widths(tensors: list[TensorStats]) -> Array:
    """Range of every channel, widened to zero."""
    t = merged(tensors)
    return np.asarray(np.maximum(t.high, 0) - np.minimum(t.low, 0))


def rounding_noise(tensors: list[TensorStats], steps: Array, weight: Array) -> float:
    """Σ over channels of weight · noise, for one step per channel.

    A channel of n values other than zero has n·s²/12, but no more than its own power: then it rounds to zero.
    """
    t = merged(tensors)
    return float(weight @ np.minimum(t.nonzero * steps**2 / 12, t.square))


def decibels(worse: float, better: float) -> float:
    """10·log10(worse/better), at least −60 and at most 120."""
    return 10 * math.log10(min(max(max(worse, 1e-300) / max(better, 1e-300), 1e-6), 1e12))
