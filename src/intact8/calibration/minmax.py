"""Min-max: the smallest and the largest value seen. Nothing is ever clipped; an outlier costs resolution."""

from __future__ import annotations

from intact8.calibration.observer import register
from intact8.calibration.sketch_observer import SketchObserver

from .sketch import Bins


@register
class MinMaxObserver(SketchObserver):
    """Range = [smallest, largest] value seen.

    Use it where every value matters or data are bounded (images, after ReLU6).

    Example:
        >>> import torch
        >>> observer = MinMaxObserver()
        >>> observer.observe(torch.tensor([-1.0, 3.0]))
        >>> observer.range(0, 255, symmetric=False)
        (-1.0, 3.0)
    """

    kind = "minmax"

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return the extremes."""
        return lo, hi
