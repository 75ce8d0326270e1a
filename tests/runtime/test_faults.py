"""Engines that crash, hang, eat memory or lie: the calling process lives, and says what happened."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from tests.program.build import data

from intact.errors import EngineError
from intact.runtime import Facts, load
from intact.runtime.isolate import Outcome, _Tail

pytestmark = [
    pytest.mark.usefixtures("engines"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's"),
]

SIGNALS = {"segv": "SIGSEGV", "ill": "SIGILL", "abrt": "SIGABRT", "fpe": "SIGFPE", "bus": "SIGBUS", "kill": "SIGKILL"}


@pytest.mark.parametrize("engine", SIGNALS)
def test_a_signal_is_named_with_what_was_running(path: Path, engine: str) -> None:
    with pytest.raises(EngineError) as caught:
        load(path, engine=engine)
    text = str(caught.value)
    assert SIGNALS[engine] in text and "golden sample 1 of 4 (noise)" in text and "engine='reference'" in text
    assert engine in caught.value.where


@pytest.mark.parametrize(
    ("stage", "words"), [("import", "importing the libraries of segv"), ("prepare", "preparing the program")]
)
def test_the_stage_is_named(path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, words: str) -> None:
    monkeypatch.setenv("OMP_FAULT_STAGE", stage)
    with pytest.raises(EngineError) as caught:
        load(path, engine="segv")
    assert words in str(caught.value) and "faulty_engines.py" in caught.value.why


def test_a_hang_is_ended(path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(EngineError, match="does not come to an end") as caught:
        load(path, engine="hang", time_limit=2.0)
    assert time.monotonic() - started < 15 and "time_limit" in caught.value.remedy


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on private memory is Linux's")
def test_a_memory_eater_starves_alone(path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(EngineError) as caught:
        load(path, engine="eat", facts=replace(Facts.here(), memory=400 << 20))
    assert "MemoryError" in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "words"),
    [("raise", "ZeroDivisionError: as an engine should not"), ("exit", "exit status 7"), ("wrong", "sum")],
)
def test_other_failures_are_told(path: Path, engine: str, words: str) -> None:
    with pytest.raises(EngineError) as caught:
        load(path, engine=engine)
    assert words in str(caught.value)


def test_an_engine_that_fills_the_pipes_is_neither_believed_nor_waited_for(path: Path) -> None:
    assert load(path, engine="chatty").info.golden.startswith("4 samples")


@pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")
def test_the_child_gets_no_more_than_it_needs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    load(path, engine="curious")
    assert (tmp_path / "intact-was-here").stat().st_size == 0


def test_the_next_engine_takes_over(path: Path) -> None:
    runner = load(path, engine=("segv", "hang", "wrong", "fine"), time_limit=4.0)
    assert runner.info.engine == "fine"
    assert [s.engine for s in runner.info.skipped] == ["segv", "hang", "wrong"]
    assert "SIGSEGV" in runner.info.skipped[0].reason
    x, bias = data(2)
    assert runner(x, bias)["probabilities"].shape == (2, 5)


def test_when_none_is_left_every_reason_is_given(path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        load(path, engine=("ill", "raise"))
    assert "SIGILL" in str(caught.value) and "ZeroDivisionError" in str(caught.value)


def test_a_crash_is_remembered_and_the_error_says_so(path: Path) -> None:
    for expected in (False, True):
        with pytest.raises(EngineError) as caught:
            load(path, engine="ill")
        assert ("found by an earlier load" in str(caught.value)) == expected


@pytest.mark.parametrize("engine", ["kill", "exit"])
def test_what_may_not_come_again_is_not_remembered(path: Path, cache: Path, engine: str) -> None:
    with pytest.raises(EngineError):
        load(path, engine=engine)
    assert not list(cache.glob("*.json"))


def test_an_embedded_python_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(EngineError, match="probe='never'"):
        load(path, engine="fine")


def test_no_process_can_be_started(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(EngineError, match="No such file"):
        load(path, engine="fine")


def test_an_interrupted_load_leaves_no_child(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    from intact.runtime import isolate

    children: list[subprocess.Popen[bytes]] = []
    start = isolate._start

    def watched() -> subprocess.Popen[bytes]:
        children.append(start())
        return children[-1]

    def interrupt(self: object, stdin: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(isolate, "_start", watched)
    monkeypatch.setattr(isolate, "_send", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(path, engine="hang")
    assert children[0].poll() is not None


def test_outcomes_survive_the_cache_only_whole() -> None:
    outcome = Outcome("died", "preparing", "at file", "SIGILL", 1.5)
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert Outcome.from_json({"verdict": "passed"}) is None
    assert Outcome.from_json({**outcome.to_json(), "verdict": 3}) is None


def test_tails_are_bounded() -> None:
    read, write = os.pipe()
    tail = _Tail(os.fdopen(read, "rb"))
    with os.fdopen(write, "wb") as stream:
        for i in range(40_000):
            stream.write(f"line {i:06d} {'x' * 50}\n".encode())
    tail.join()
    assert tail.lines()[-1].startswith("line 039999") and tail.size < 1 << 20
