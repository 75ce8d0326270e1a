"""Signals whose handlers raise, at any moment of a run: the runner gives right results afterwards."""

from __future__ import annotations

import signal
import time
from types import FrameType

import numpy as np
import pytest
from tests.engines.test_fork_safety import gives, network

from intact8.engines import available_engines, get_engine

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")

SECONDS, RUNS = 0.5, 5


class Stop(Exception):
    """Raised by the handler."""


@pytest.mark.parametrize("engine", available_engines())
def test_interrupted_runs(engine: str) -> None:
    program = network()
    xs = list(np.random.default_rng(0).integers(0, 256, (2, 3, 8, 32, 32)).astype(np.uint8))
    reference = get_engine("reference").prepare(program)
    results = [reference({"x": x})[0] for x in xs]
    x, wanted = xs[0], results[0]
    runner = get_engine(engine).prepare(program)
    assert gives(runner, x, wanted)
    start = time.perf_counter()
    runner({"x": x})
    longest = 1.5 * (time.perf_counter() - start)
    armed, stopped, rng = False, 0, np.random.default_rng(1)

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    try:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            turn = int(rng.integers(2))  # the memory that is read changes, too
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, max(float(rng.random()) * longest, 1e-5))
                found = runner({"x": xs[turn]})[0]
                armed = False
                assert np.array_equal(found, results[turn])
            except Stop:
                stopped += 1
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped
    assert all(gives(runner, x, wanted) for _ in range(RUNS))
