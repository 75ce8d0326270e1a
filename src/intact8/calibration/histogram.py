"""Histogram: the range with the smallest expected L2 error, both ends searched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.observer import Observer, dense_values, register
from intact8.calibration.sketch_observer import SketchObserver

from .sketch import Array, Bins

WORTHWHILE = 0.99
"""A clipped range is taken only where it lowers the error by more than 1 %.

Bounded data (images, the output of a sigmoid) would otherwise lose half a step at its ends to a gain of 0.2 %, and
with it the exactness of a scale such as 1/255."""

ENOUGH = 64
"""From so many samples on the extremes that were seen are taken for the range; those of fewer will be exceeded."""

_GRID = 96
"""Candidates per end in the first, joint search."""


@register
class HistogramObserver(SketchObserver):
    """Range [lo, hi] that minimizes the expected squared error of rounding and clipping.

    With step s = (hi − lo)/(qmax − qmin) and x uniform within a bin, the error of n values is

    - n·s²/12 inside the range and at least s/2 away from zero (rounding noise),
    - Σ x² nearer to zero, where x rounds to 0; nothing for zeros themselves,
    - Σ (x − hi)² above, Σ (x − lo)² below the range,

    all from prefix sums over the bins. Ends run over the edges of all non-empty bins, and over 16 points per octave
    in between. A good default.

    Where clipping is not worth while, an end is the extreme of n samples, which the next one exceeds with a probability
    of 1/(n + 1). Where the largest values of single samples have a Gumbel distribution of standard deviation σ, that of
    ENOUGH samples is larger than that of n by σ·√6/π·ln(ENOUGH/n) on average: ``room`` moves the end there. Bounds that
    every sample reaches are left as they are, and so is an end within the extremes: what lies beyond it was seen.

    Args:
        room: leave room for what fewer than ENOUGH samples do not show. Needs samples along dimension 0.

    Attributes:
        ends: the smallest and the largest value of every sample; None: without room, unknown, or ENOUGH of them.

    Example:
        >>> import torch
        >>> observer = HistogramObserver()
        >>> observer.observe(torch.linspace(-1, 1, 1_000_000))
        >>> observer.range(0, 255, symmetric=False)
        (-1.0, 1.0)
        >>> observer.observe(torch.tensor([10.0]))
        >>> observer.range(0, 255, symmetric=False)[1] < 5
        True
    """

    kind = "histogram"
    weighs = True
    ends: list[tuple[float, float]] | None

    def __init__(self, room: bool = False) -> None:
        super().__init__()
        self.room = room
        self.reset()

    def args(self) -> dict[str, Any]:
        """Return the arguments this observer was made with."""
        return {"room": True} if self.room else {}

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        super().observe(x)
        if self.ends is not None and x.numel():
            values, samples = dense_values(x), self.samples
            if samples and values.dim() == 2 and len(values) % samples == 0:
                low, high = values.view(samples, -1).aminmax(dim=1)
                self._add([*zip(low.tolist(), high.tolist(), strict=True)])
            else:
                self.ends = None

    def _add(self, ends: list[tuple[float, float]] | None) -> None:
        """Add the extremes of samples; None: they are unknown."""
        few = self.ends is not None and ends is not None and len(self.ends) + len(ends) < ENOUGH
        self.ends = sorted([*(self.ends or []), *(ends or [])]) if few else None

    def merge(self, other: Observer) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        super().merge(other)
        assert isinstance(other, HistogramObserver)
        self._add(other.ends)

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return the best ends."""
        lo, hi = search(bins, lo, hi, qmin, qmax, symmetric)
        count = len(self.ends or [])
        if count < 2:
            return lo, hi
        deviations = np.sort(np.array(self.ends), axis=0).std(axis=0, ddof=1)
        below, above = (deviations * (math.sqrt(6) / math.pi * math.log(ENOUGH / count))).tolist()
        return lo - below * (lo == self.minimum < 0), hi + above * (hi == self.maximum > 0)

    def state(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return super().state() | ({"ends": torch.tensor(self.ends, dtype=torch.float64)} if self.ends else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        super().load_state({name: value for name, value in state.items() if name != "ends"})
        fresh: list[tuple[float, float]] | None = [] if self.room and not self.count else None
        self.ends = [(lo, hi) for lo, hi in state["ends"].tolist()] if "ends" in state else fresh

    def reset(self) -> None:
        """Forget everything observed."""
        super().reset()
        self.ends = [] if self.room else None


def search(bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
    """Return the range of smallest expected L2 error within [lo, hi]; see :class:`HistogramObserver`."""
    error = ExpectedError(bins)
    if symmetric:
        middle = (qmin + qmax + 1) // 2
        steps = max(middle - qmin, qmax - middle)
        ends = _ends(np.maximum(np.abs(bins.low), np.abs(bins.high)), max(-lo, hi))[1:]
        cost = error(-ends, ends, ends / steps)
        end = float(ends[_worthwhile(cost, len(cost) - 1)])
        return max(lo, -end), min(hi, end)
    lows, highs = -_ends(-bins.low, -lo), _ends(bins.high, hi)
    steps = qmax - qmin
    full = float(error(np.float64(lo), np.float64(hi), np.float64((hi - lo) / steps)))
    best_lo, best_hi, best = _joint(error, lows, highs, steps)
    # From the best of the coarse grid downhill over all edges, one end at a time.
    for _ in range(4):
        before = best
        cost = _costs(error, np.float64(best_lo), highs, steps)
        i = int(np.argmin(cost))
        best_hi, best = float(highs[i]), float(cost[i])
        cost = _costs(error, lows, np.float64(best_hi), steps)
        i = int(np.argmin(cost))
        best_lo, best = float(lows[i]), float(cost[i])
        if best >= before:
            break
    # Adding 0.0 turns the -0.0 of an end at zero into 0.0.
    return (best_lo + 0.0, best_hi) if best < WORTHWHILE * full else (lo, hi)


def _ends(edges: Array, extreme: float) -> Array:
    """Return candidates for one end, ascending from 0 to ``extreme``."""
    # Between the bulk and an outlier there is no bin, yet the best end may lie there.
    octaves = extreme * 2.0 ** (np.arange(-16 * 12, 0) / 16)
    inside = edges[(edges > 0) & (edges < extreme)]
    return np.unique(np.concatenate([[0.0], octaves[octaves > 0], inside, [extreme]]))


def _joint(error: ExpectedError, lows: Array, highs: Array, steps: int) -> tuple[float, float, float]:
    lo = lows[np.unique(np.linspace(0, len(lows) - 1, _GRID).astype(int))][:, None]
    hi = highs[np.unique(np.linspace(0, len(highs) - 1, _GRID).astype(int))][None, :]
    cost = _costs(error, lo, hi, steps)
    i, j = np.unravel_index(int(np.argmin(cost)), cost.shape)
    return float(lo[i, 0]), float(hi[0, j]), float(cost[i, j])


def _costs(error: ExpectedError, lo: Any, hi: Any, steps: int) -> Array:
    """Return the errors of the ranges, infinite for the empty one."""
    width = hi - lo
    return np.where(width > 0, error(lo, hi, np.where(width > 0, width, 1.0) / steps), np.inf)


def _worthwhile(cost: Array, full: int) -> int:
    best = int(np.argmin(cost))
    return best if cost[best] < WORTHWHILE * cost[full] else full


class ExpectedError:
    """The expected squared error of a range, summed over all values of the bins, in O(log K) per range."""

    def __init__(self, bins: Bins) -> None:
        self.low, self.high, self.middle = bins.low, bins.high, bins.middle
        n = bins.count.astype(np.float64)
        first = n * self.middle
        # The second moment of a bin: of its center, plus that of a uniform distribution around it.
        second = n * (self.middle**2 + (bins.high - bins.low) ** 2 / 12)
        # Sums run from the outside inwards, so that the few values of a tail are not lost in the sum of all others.
        self.below = [_prefix(m) for m in (n, first, second)]
        self.above = [_prefix(m[::-1])[::-1] for m in (n, first, second)]
        inward = np.argsort(np.abs(self.middle), kind="stable")
        self.magnitude = np.abs(self.middle)[inward]
        self.small_count, self.small_square = _prefix(n[inward]), _prefix(second[inward])

    def __call__(self, lo: Any, hi: Any, step: Any) -> Array:
        """Return the broadcasts over float64 ``lo``, ``hi`` and ``step``."""
        i = np.searchsorted(self.middle, lo)
        j = np.searchsorted(self.middle, hi, side="right")
        n0, m0, s0 = (sums[i] for sums in self.below)
        n1, m1, s1 = (sums[j] for sums in self.above)
        clipped = np.maximum(s0 - 2 * lo * m0 + lo * lo * n0, 0) + np.maximum(s1 - 2 * hi * m1 + hi * hi * n1, 0)
        k = np.searchsorted(self.magnitude, step / 2)
        inside = self.below[0][-1] - n0 - n1
        rounded = np.maximum(inside - self.small_count[k], 0) * step * step / 12
        total: Array = clipped + rounded + self.small_square[k]
        return total


def _prefix(values: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])
