"""Percentile: cut a fixed share of the values off each end."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8.calibration.observer import register
from intact8.calibration.sketch_observer import SketchObserver
from intact8.errors import RecipeError

from .sketch import Bins


@register
class PercentileObserver(SketchObserver):
    """Range = [quantile 1 − p, quantile p] of all values seen, linear within a bin of the sketch.

    Use it where outliers are known to be noise; 99.9 to 99.999 are customary.

    Args:
        percentile: 100·p, above 50 up to 100.

    Raises:
        RecipeError: percentile outside (50, 100].

    Example:
        >>> import torch
        >>> observer = PercentileObserver(percentile=99.0)
        >>> observer.observe(torch.linspace(-100, 100, 2001))
        >>> lo, hi = observer.range(0, 255, symmetric=False)
        >>> abs(lo + 98.0) < 0.5, abs(hi - 98.0) < 0.5
        (True, True)
    """

    kind = "percentile"

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        if not 50 < percentile <= 100:
            raise RecipeError(f"percentile {percentile} is outside (50, 100]", remedy="99.99 is customary")
        self.percentile = float(percentile)

    def args(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"percentile": self.percentile}

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return the two quantiles, widened to zero."""
        p = self.percentile / 100
        low, high = min(_quantile(bins, 1 - p), 0.0), max(_quantile(bins, p), 0.0)
        # More zeros than p: what is left counts as outliers, but a range of nothing would lose it all.
        return (low, high) if low < high else (lo, hi)


def _quantile(bins: Bins, p: float) -> float:
    ends = np.cumsum(bins.count)
    target = p * float(ends[-1])
    i = int(np.searchsorted(ends, target))
    inside = (target - float(ends[i] - bins.count[i])) / float(bins.count[i])
    return float(bins.low[i] + inside * (bins.high[i] - bins.low[i]))
