"""Entropy: the range that loses the least information (Kullback–Leibler divergence; Migacz 2017, GTC S7310)."""

from __future__ import annotations

import numpy as np

from intact8.calibration.observer import register
from intact8.calibration.sketch_observer import SketchObserver

from .sketch import Array, Bins

_BINS = 2048
_CANDIDATES = 96


@register
class EntropyObserver(SketchObserver):
    """Range minimizing KL(P ‖ Q), both ends searched, one after the other.

    P is the distribution over 2048 equal bins with everything outside the range moved to its end bins. Q is the
    distribution inside the range, averaged over the non-empty bins of each of the qmax − qmin + 1 cells. Zeros are
    left out of both: they are represented exactly. Ranges of fewer bins than cells are not tried.

    Strong on long tails whose size matters little (activations of classifiers); it clips hard, so check accuracy.

    Example:
        >>> import torch
        >>> observer = EntropyObserver()
        >>> observer.observe(torch.cat([torch.linspace(-1, 1, 100_000), torch.tensor([20.0])]))
        >>> observer.range(0, 255, symmetric=False)[1] < 5
        True
    """

    kind = "entropy"

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return the best ends."""
        if symmetric:
            end = max(-lo, hi)
            # Folded to magnitudes, half of the cells are left.
            mass = _folded(bins, end)
            cells = max(1, (qmax - qmin + 1) // 2)
            best = _best(mass, cells, [(0, int(j)) for j in _steps(cells)])[1]
            end = end * best / _BINS
            return max(lo, -end), min(hi, end)
        mass = _linear(bins.low, bins.high, np.where((bins.low == 0) & (bins.high == 0), 0, bins.count), lo, hi)
        cells = qmax - qmin + 1
        zero = round(-lo / (hi - lo) * _BINS)
        first, last = 0, _BINS
        if hi > 0:
            first, last = _best(mass, cells, [(first, int(j)) for j in _steps(max(cells, zero))])
        if lo < 0:
            upper = min(zero, last - cells)
            starts = np.unique(np.linspace(0, max(upper, 0), _CANDIDATES).astype(int))
            first, last = _best(mass, cells, [(int(i), last) for i in starts])
        step = (hi - lo) / _BINS
        # The outer edges are the extremes themselves, not sums that round.
        return (lo if first == 0 else lo + first * step), (hi if last == _BINS else lo + last * step)


def _steps(least: int) -> Array:
    # The full range comes first: where nothing is gained it stays.
    return np.unique(np.linspace(min(least, _BINS), _BINS, _CANDIDATES).astype(int))[::-1]


def _best(mass: Array, cells: int, candidates: list[tuple[int, int]]) -> tuple[int, int]:
    costs = [_divergence(mass, i, j, cells) for i, j in candidates]
    return candidates[int(np.argmin(costs))]


def _divergence(mass: Array, first: int, last: int, cells: int) -> float:
    """Return KL(P ‖ Q) of clipping to bins first..last−1 and averaging over ``cells`` cells."""
    inside = mass[first:last]
    kept = float(inside.sum())
    if kept == 0:
        return np.inf
    p = inside.copy()
    p[0] += mass[:first].sum()
    p[-1] += mass[last:].sum()
    starts = np.unique((np.arange(cells) * (last - first)) // cells)
    filled = np.add.reduceat((inside > 0).astype(np.float64), starts)
    average = np.add.reduceat(inside, starts) / np.maximum(filled, 1)
    q = np.repeat(average, np.diff(np.append(starts, last - first)))
    some = p > 0
    # An end bin that holds only what was clipped has no probability under Q; the floor makes that expensive, not NaN.
    p, q = p[some] / p.sum(), np.maximum(q[some] / kept, 1e-12)
    return float((p * np.log(p / q)).sum())


def _folded(bins: Bins, end: float) -> Array:
    """Return the mass of |x| over equal bins of [0, end], without zeros."""
    zero = (bins.low == 0) & (bins.high == 0)
    count = np.where(zero, 0, bins.count)
    return _linear(bins.low, bins.high, count, 0.0, end) + _linear(bins.low, bins.high, count, 0.0, -end)


def _linear(low: Array, high: Array, count: Array, start: float, stop: float) -> Array:
    """Return the mass over ``_BINS`` equal bins from start to stop (also backwards), each bin spread evenly."""
    if stop < start:
        low, high, count, start, stop = -high[::-1], -low[::-1], count[::-1], -start, -stop
    # Exact values (bins of no width) get a sliver of width, inside the range, so that their mass has a place.
    sliver = (stop - start) * 1e-9
    low, high = np.where(low == high, low - sliver, low), np.where(low == high, low + sliver, high)
    points = np.stack([low, high], 1).ravel()
    ends = np.cumsum(count).astype(np.float64)
    cumulative = np.stack([ends - count, ends], 1).ravel()
    edges = np.linspace(start, stop, _BINS + 1)
    mass = np.diff(np.interp(edges, points, cumulative))
    # Half of a sliver at an end lies outside.
    mass[-1] += float(np.interp(stop + 2 * sliver, points, cumulative) - np.interp(stop, points, cumulative))
    result: Array = np.maximum(mass, 0.0)
    return result
