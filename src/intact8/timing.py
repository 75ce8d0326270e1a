"""Timing contenders against each other: interleaved, so that a machine that slows down slows all of them down.

The figure to trust is the ratio of two medians taken in one run; absolute times belong to the machine of the moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Quartiles of one contender's calls, in seconds, how many calls they rest on, and the time of the fastest."""

    median: float
    lower: float
    upper: float
    calls: int
    fastest: float

    def to_json(self) -> dict[str, float]:
        """Return the milliseconds, under names that say so."""
        return {
            "median_ms": self.median * 1e3,
            "lower_quartile_ms": self.lower * 1e3,
            "upper_quartile_ms": self.upper * 1e3,
            "calls": self.calls,
        }


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    least: int = 10,
    warmup: int = 3,
    settle: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Timing]:
    """Time calls without arguments in rounds: each round calls every contender once, in rotating order.

    Args:
        contenders: name → call.
        seconds: stop after the first full round past this time, all contenders together.
        least: rounds made in any case.
        warmup: untimed rounds before.
        settle: seconds a contender is called untimed before each timed call. Thread pools of some libraries keep
            spinning for milliseconds after a call, and so slow down whoever comes next on the same cores: give 0.01
            or more where contenders have several threads.
        progress: called after each round with the share of the time spent, 0 to 1.

    Returns:
        Name → quartiles of its calls.

    Example:
        >>> timings = interleaved({"sum": lambda: sum(range(100))}, seconds=0.0, least=4, warmup=1)
        >>> timings["sum"].calls
        4
    """
    for _ in range(warmup):
        for call in contenders.values():
            call()
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    begin = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - begin < seconds:
        first = rounds % len(names)  # whoever follows a big contender finds a cold cache: take turns at that
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            while settle and time.perf_counter() - start < settle:
                contenders[name]()
            start = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - start)
        rounds += 1
        if progress is not None:
            spent = (time.perf_counter() - begin) / seconds if seconds > 0 else 1.0
            progress(min(1.0, spent, rounds / max(least, 1)))
    return {name: _quartiles(values) for name, values in times.items()}


def _quartiles(values: list[float]) -> Timing:
    fastest, lower, median, upper = map(float, np.percentile(values, [0, 25, 50, 75]))
    return Timing(median, lower, upper, len(values), fastest)
