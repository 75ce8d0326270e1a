"""Observers, and the run that shows them data."""

from __future__ import annotations

from .observers import NonFiniteError, Observer, list_observers, make_observer
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
