from __future__ import annotations

import time

import pytest

from intact8.timing import interleaved


def test_every_contender_is_called_equally_often_and_takes_turns_at_being_first() -> None:
    order: list[str] = []
    timings = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0.0, least=4, warmup=0
    )
    assert order == ["a", "b", "b", "a"] * 2
    assert {timing.calls for timing in timings.values()} == {4}


def test_the_slower_one_measures_slower_and_quartiles_are_ordered() -> None:
    timings = interleaved({"quick": lambda: None, "slow": lambda: time.sleep(0.002)}, seconds=0.0, least=6)
    assert timings["slow"].median > 0.002 > timings["quick"].median
    for timing in timings.values():
        assert 0 <= timing.lower <= timing.median <= timing.upper
    assert timings["slow"].to_json()["median_ms"] > 2.0


def test_progress_ends_at_one() -> None:
    seen: list[float] = []
    interleaved({"a": lambda: time.sleep(0.001)}, seconds=0.02, least=2, warmup=0, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0


def test_it_goes_on_for_the_seconds_asked() -> None:
    begin = time.perf_counter()
    interleaved({"a": lambda: None}, seconds=0.05, least=1, warmup=0)
    assert time.perf_counter() - begin >= 0.05


def test_a_contender_settles_before_its_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.002 * len(order))

    def call(name: str) -> None:
        order.append(name)

    timings = interleaved(
        {"a": lambda: call("a"), "b": lambda: call("b")}, seconds=0.0, least=2, warmup=0, settle=0.003
    )
    assert {timing.calls for timing in timings.values()} == {2}
    assert len(order) == 2 * 2 * 3 and order[:6] == ["a"] * 3 + ["b"] * 3
