"""Engines that say where their time goes."""

from __future__ import annotations

import time

import pytest
from tests.program.build import certified, data

from intact8.engines import get_engine
from intact8.engines.base import TimedRunner


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_every_op_has_a_time_and_all_of_them_fit_into_the_run(engine: str) -> None:
    program = certified()
    runner = get_engine(engine).prepare(program)
    assert isinstance(runner, TimedRunner)
    x, bias = data()
    inputs = {"x": x, "bias": bias}
    runner(inputs)
    start = time.perf_counter()
    times = runner.times(inputs)
    whole = time.perf_counter() - start
    assert list(times) == [op.name for op in program.ops]
    assert all(seconds > 0 for seconds in times.values())
    assert sum(times.values()) < whole
