"""Observers, and the run that shows them data."""

from __future__ import annotations

# Importing an observer's module registers the observer under its name.
from . import entropy, fixed, histogram, minmax, moving_average, mse, output_error, per_channel, percentile  # noqa: F401
from .observer import NonFiniteError, Observer, list_observers, make_observer
from .summary import CalibrationSummary, CalibrationWarning, PointSummary
from .weights import weight_scales

__all__ = [
    "CalibrationSummary",
    "CalibrationWarning",
    "NonFiniteError",
    "Observer",
    "PointSummary",
    "list_observers",
    "make_observer",
    "weight_scales",
]
