"""The base of all observers whose range is read from a sketch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .base import Observer, ObserverBase, dense_values, finite_extent
from .sketch import Bins, Sketch


class SketchObserver(ObserverBase):
    """Observes into a :class:`~intact.calibration.sketch.Sketch`; subclasses choose a range from its bins.

    Attributes:
        sketch: what was seen; also good for drawing histograms.
    """

    def __init__(self) -> None:
        self.sketch = Sketch()

    @property
    def count(self) -> int:
        """Number of values seen."""
        return self.sketch.count

    @property
    def minimum(self) -> float:
        """Smallest value seen; NaN when nothing was."""
        return self.sketch.minimum

    @property
    def maximum(self) -> float:
        """Largest value seen; NaN when nothing was."""
        return self.sketch.maximum

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact.calibration.base.Observer`."""
        if x.numel():
            values = dense_values(x)
            lo, hi = finite_extent(values, self)
            self.sketch.add(values, lo, hi)

    def merge(self, other: Observer) -> None:
        """See :class:`~intact.calibration.base.Observer`."""
        self.check_mergeable(other)
        assert isinstance(other, SketchObserver)
        self.sketch.merge(other.sketch)

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """See :class:`~intact.calibration.base.Observer`."""
        if not self.sketch.counts.numel():
            raise self.nothing_observed()
        # Zero is always representable, so a range without it is not on offer.
        lo, hi = min(self.minimum, 0.0), max(self.maximum, 0.0)
        if lo == hi:
            return lo, hi
        return self.choose(self.sketch.bins(), lo, hi, qmin, qmax, symmetric)

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """A range within [lo, hi], the extremes widened to 0; ``bins`` holds at least one value that is not 0."""
        raise TypeError(f"{type(self).__name__} must define choose")

    def state(self) -> dict[str, Any]:
        """See :class:`~intact.calibration.base.Observer`."""
        return {"kind": self.kind, **self.sketch.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact.calibration.base.Observer`."""
        self.check_state(state, {"keys", "counts", "count", "extremes"})
        self.sketch = Sketch.from_state({k: v for k, v in state.items() if k != "kind"})

    def reset(self) -> None:
        """Forget everything observed."""
        self.sketch = Sketch()
