"""Moving average of per-batch extremes (Jacob et al. 2018, section 3.1): one odd batch moves a range little."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.observer import Observer, dense_values, finite_extent, register
from intact8.errors import CalibrationError, RecipeError


@register
class MovingAverageObserver(Observer):
    """Range = exponential moving average of every batch's extremes: old·(1 − a) + batch·a, in order, from the first.

    A layer that begins with zeros, as some are made for training, would have next to no range for hundreds of batches.
    Where all values were one number until now, the next 1/a batches widen the range, and are averaged after that.

    The extremes of every batch are kept and averaged when the range is asked for. So halves merged in order give the
    same bits as the whole.

    Args:
        averaging_constant: a, 0 < a ≤ 1. Small values remember long; the first batch still weighs (1 − a)ⁿ after n
            more, so use it for at least a few times 1/a batches.

    Raises:
        RecipeError: a outside (0, 1].

    Example:
        >>> observer = MovingAverageObserver(averaging_constant=0.5)
        >>> observer.observe(torch.tensor([0.0, 1.0]))
        >>> observer.observe(torch.tensor([0.0, 3.0]))
        >>> observer.range(0, 255, symmetric=False)
        (0.0, 2.0)
    """

    kind = "moving_average"
    count = 0

    def __init__(self, averaging_constant: float = 0.01) -> None:
        if not 0 < averaging_constant <= 1:
            raise RecipeError(f"averaging constant {averaging_constant} is outside (0, 1]", remedy="0.01 is customary")
        self.averaging_constant = float(averaging_constant)
        self.reset()

    def reset(self) -> None:
        """Forget everything observed."""
        self.count = 0
        self._batches: list[tuple[float, float]] = []
        # Batches averaged so far, those that widen the range still, and the average: training asks after every batch.
        self._folded = (0, 0, 0.0, 0.0)

    @property
    def minimum(self) -> float:
        """Smallest value seen; NaN when nothing was."""
        return min((lo for lo, _ in self._batches), default=math.nan)

    @property
    def maximum(self) -> float:
        """Largest value seen; NaN when nothing was."""
        return max((hi for _, hi in self._batches), default=math.nan)

    def args(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"averaging_constant": self.averaging_constant}

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if x.numel():
            values = dense_values(x)
            self.observe_extremes(*finite_extent(values, self), values.numel())

    def observe_extremes(self, lo: float, hi: float, count: int) -> None:
        """Take in a batch of so many values, of which the finite ``lo`` and ``hi`` are the smallest and the largest.

        Example:
            >>> observer = MovingAverageObserver()
            >>> observer.observe_extremes(-1.0, 3.0, 64)
            >>> observer.range(0, 255, symmetric=False), observer.count
            ((-1.0, 3.0), 64)
        """
        self._batches.append((lo, hi))
        self.count += count

    def merge(self, other: Observer) -> None:
        """Append the other's batches after these."""
        self.check_mergeable(other)
        assert isinstance(other, MovingAverageObserver)
        self._batches += other._batches
        self.count += other.count

    def merge_in_turn(self, shares: Sequence[Observer], batches: Sequence[int]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`: extremes are put in the order of the batches.

        Raises:
            CalibrationError: batches were observed differently often, so that their order is unknown.
        """
        parts = []
        for share, n in zip(shares, batches, strict=True):
            self.check_mergeable(share)
            assert isinstance(share, MovingAverageObserver)
            each, rest = divmod(len(share._batches), n) if n else (0, len(share._batches))
            if rest:
                raise CalibrationError(
                    f"{len(share._batches)} observations of {n} batches have no order among those of other processes",
                    why="some batches held no value here",
                    remedy="use another observer, or calibrate in one process",
                )
            parts.append([share._batches[i * each : (i + 1) * each] for i in range(n)])
            self.count += share.count
        for i in range(max(map(len, parts))):
            for part in parts:
                self._batches += part[i] if i < len(part) else []

    def merge_side_by_side(self, shares: Sequence[Observer]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`: the extremes are those of the whole batch."""
        for share in shares:
            self.check_mergeable(share)
        seen = [s for s in shares if isinstance(s, MovingAverageObserver)]
        for parts in itertools.zip_longest(*(s._batches for s in seen)):
            known = [part for part in parts if part is not None]
            self._batches.append((min(lo for lo, _ in known), max(hi for _, hi in known)))
        self.count += sum(s.count for s in seen)

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if not self._batches:
            raise self.nothing_observed()
        a = self.averaging_constant
        done, growing, lo, hi = self._folded
        for batch_lo, batch_hi in self._batches[done:]:
            if done == 0:
                lo, hi = batch_lo, batch_hi
            elif growing or (lo == hi and (batch_lo, batch_hi) != (lo, hi)):
                growing = (growing or round(1 / a)) - 1
                lo, hi = min(lo, batch_lo), max(hi, batch_hi)
            else:
                lo, hi = (1 - a) * lo + a * batch_lo, (1 - a) * hi + a * batch_hi
            done += 1
        self._folded = done, growing, lo, hi
        return lo, hi

    def state(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        batches = torch.tensor(self._batches, dtype=torch.float64).reshape(-1, 2)
        return {"kind": self.kind, "count": self.count, "batches": batches}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_state(state, {"count", "batches"})
        self.count = state["count"]
        self._batches = [(lo, hi) for lo, hi in state["batches"].tolist()]
        self._folded = (0, 0, 0.0, 0.0)
