"""All observers: the protocol, the registry, and one class per way to choose a range."""

from __future__ import annotations

from .base import NonFiniteError, Observer, list_observers, make_observer, register
from .entropy import EntropyObserver
from .fixed import FixedObserver
from .histogram import HistogramObserver
from .minmax import MinMaxObserver
from .moving_average import MovingAverageObserver
from .mse import MSEObserver
from .per_channel import PerChannelObserver
from .percentile import PercentileObserver

__all__ = [
    "EntropyObserver",
    "FixedObserver",
    "HistogramObserver",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageObserver",
    "NonFiniteError",
    "Observer",
    "PerChannelObserver",
    "PercentileObserver",
    "list_observers",
    "make_observer",
    "register",
]
