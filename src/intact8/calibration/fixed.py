"""Fixed: a range known beforehand, such as [0, 1] for probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from intact8.calibration.observer import Observer, dense_values, finite_extent, register
from intact8.errors import RecipeError


@register
class FixedObserver(Observer):
    """Range = the one given. What is observed is checked and its extremes kept for reports; it moves nothing.

    Args:
        lo, hi: ends of the range.

    Raises:
        RecipeError: ends not finite, or lo > hi.

    Example:
        >>> FixedObserver(lo=0.0, hi=1.0).range(0, 255, symmetric=False)
        (0.0, 1.0)
    """

    kind = "fixed"
    count = 0
    minimum = maximum = math.nan

    def __init__(self, lo: float, hi: float) -> None:
        if not (math.isfinite(lo) and math.isfinite(hi) and lo <= hi):
            raise RecipeError(
                f"the fixed range [{lo}, {hi}] is not a range", remedy="give finite ends with lo not above hi"
            )
        self.lo, self.hi = float(lo), float(hi)

    def args(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"lo": self.lo, "hi": self.hi}

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if x.numel():
            values = dense_values(x)
            self._add(values.numel(), *finite_extent(values, self))

    def merge(self, other: Observer) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_mergeable(other)
        self._add(other.count, other.minimum, other.maximum)

    def _add(self, count: int, lo: float, hi: float) -> None:
        # fmin and fmax ignore the NaN that stands for "nothing yet".
        self.count += count
        self.minimum, self.maximum = float(np.fmin(self.minimum, lo)), float(np.fmax(self.maximum, hi))

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return the range given; it needs no data."""
        return self.lo, self.hi

    def state(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"kind": self.kind, "count": self.count, "minimum": self.minimum, "maximum": self.maximum}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_state(state, {"count", "minimum", "maximum"})
        self.count, self.minimum, self.maximum = state["count"], state["minimum"], state["maximum"]

    def reset(self) -> None:
        """Forget everything observed."""
        self.count, self.minimum, self.maximum = 0, math.nan, math.nan
