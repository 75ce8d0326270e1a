"""Measuring which engine is the fastest for engine="auto", and remembering it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from intact8.program.program import Program
from intact8.program.samples import random_samples
from intact8.runtime import cache
from intact8.runtime.facts import Facts
from intact8.timing import interleaved

SECONDS, LEAST, WARMUP, SETTLE = 0.3, 7, 2, 0.01
"""Seconds for all engines together, fewest calls of each, untimed ones, and seconds of these before a timed call."""


def key(program: Program, threads: int | None, batch: int, facts: Facts) -> str:
    """Return the cache key of a measurement; see :func:`intact8.runtime.cache.key`."""
    return cache.key(program, f"auto at batch {batch}", threads, facts)


def recall(name: str) -> dict[str, float] | None:
    """Return milliseconds by engine, fastest first, of an earlier measurement; None without a sound one."""
    found = (cache.recall(name) or {}).get("milliseconds")
    if not isinstance(found, dict) or "auto" in found:
        return None
    if not all(isinstance(v, float) and v > 0 for v in found.values()):
        return None
    return dict(sorted(found.items(), key=lambda item: item[1])) or None


def remember(name: str, milliseconds: Mapping[str, float]) -> str:
    """Remember a measurement. Returns "" or why that is not possible."""
    return cache.remember(name, {"milliseconds": dict(milliseconds)})


def measure(program: Program, runners: Mapping[str, Any], batch: int, limit: float = 60.0) -> dict[str, float]:
    """Return the median milliseconds of one call by engine, fastest first, on random samples and in turns.

    Args:
        program: the program that the engines run.
        runners: engine → callable that takes the inputs in order.
        batch: samples per call, where the program has a dynamic batch.
        limit: seconds it may take. Nothing is measured where they are too few for one round.
    """
    inputs = list(random_samples(program, batch).values())
    calls = {name: partial(runner, *inputs) for name, runner in runners.items()}
    began = time.perf_counter()
    for call in calls.values():
        call()
    round_seconds = time.perf_counter() - began
    rounds = min(LEAST, int((limit / round_seconds - WARMUP) / 2))  # every timed call has an untimed one before it
    if rounds < 1:
        return {}
    timings = interleaved(calls, seconds=SECONDS, least=rounds, warmup=WARMUP, settle=SETTLE)
    return dict(sorted(((name, t.median * 1e3) for name, t in timings.items()), key=lambda item: item[1]))
