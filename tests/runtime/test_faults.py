"""Engines that crash, hang, eat memory or lie: the calling process lives, and says what happened."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import data
from typer.testing import CliRunner

from intact8.cli.app import app
from intact8.errors import EngineError
from intact8.runtime import Facts, load
from intact8.runtime.probe_process import Outcome, _Tail

pytestmark = [
    pytest.mark.usefixtures("engines"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")
def test_the_child_gets_no_more_than_it_needs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    load(path, engine="curious")
    assert (tmp_path / "intact8-was-here").stat().st_size == 0


def test_the_batch_that_will_be_measured_is_probed_first(path: Path) -> None:
    from intact8.runtime.load import Attempt, open_program

    attempt = Attempt(open_program(path), None, "first", 60.0, Facts.here())
    assert attempt.first(["single"]).info.probe == "passed"
    with pytest.raises(EngineError, match="SIGSEGV") as caught:
        replace(attempt, batches=(4,)).first(["single"])
    assert "running samples of batch 3 to 4 (batch 4)" in str(caught.value)


def test_the_next_engine_takes_over(path: Path) -> None:
    runner = load(path, engine=("segv", "hang", "wrong", "fine"), time_limit=16.0)
    assert runner.info.engine == "fine"
    assert [s.engine for s in runner.info.skipped] == ["segv", "hang", "wrong"]
    assert "SIGSEGV" in runner.info.skipped[0].reason
    x, bias = data(2)
    assert runner(x, bias)["probabilities"].shape == (2, 5)


def test_the_command_that_runs_a_program_survives_as_well(path: Path, tmp_path: Path) -> None:
    x, bias = data(2)
    np.savez(tmp_path / "samples.npz", x=x, bias=bias)
    call = ["run", str(path), "--data", str(tmp_path / "samples.npz"), "-o", str(tmp_path / "y.npz"), "--engine"]
    dead = CliRunner().invoke(app, [*call, "ill"])
    assert dead.exit_code == 2 and "SIGILL" in dead.output
    assert not (tmp_path / "y.npz").exists()
    assert CliRunner().invoke(app, [*call, "fine"]).exit_code == 0
    assert np.load(tmp_path / "y.npz")["probabilities"].shape == (2, 5)


@pytest.mark.parametrize("engine", ["ill", "single"])
@pytest.mark.parametrize("command", ["verify", "bench", "report", "evaluate"])
def test_the_commands_that_look_at_a_program_survive_as_well(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, engine: str
) -> None:
    monkeypatch.setattr("intact8.engines.peak_throughput.int8_peak", lambda threads: None)  # which takes seconds
    if command in ("report", "evaluate"):
        pytest.importorskip("torch")
    x, bias = data(2)
    np.savez(tmp_path / "samples.npz", x=x, bias=bias, y=np.zeros(2, np.int64))
    samples = ["--data", str(tmp_path / "samples.npz")]
    keys = ["--key", "x", "--key", "bias"]
    given = {
        "verify": ["--engines", engine, *samples, *keys],
        "bench": ["--engines", engine, "--batch", "2", "--seconds", "0"],
        "report": ["--engine", engine, "--json", *samples, *keys],
        "evaluate": ["--engine", engine, "--labels", "y", *samples, *keys],
    }
    dead = CliRunner().invoke(app, [command, str(path), *given[command]])
    assert dead.exit_code == 2, dead.output
    assert ("SIGILL" if engine == "ill" else "SIGSEGV") in dead.output


def test_the_command_that_runs_single_operations_survives_as_well(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    import torch

    import intact8

    (tmp_path / "nets_of_faults_test.py").write_text(
        "import torch\n\n\ndef net():\n    torch.manual_seed(0)\n    return torch.nn.Linear(4, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from nets_of_faults_test import net

    x = torch.randn(8, 4)
    intact8.quantize(net(), x).save(tmp_path / "net.safetensors")
    np.save(tmp_path / "x.npy", x.numpy())
    call = ["compare", "nets_of_faults_test:net", "net.safetensors", "--data", "x.npy", "--engine"]
    dead = CliRunner().invoke(app, [*call, "ill"])
    assert dead.exit_code == 2 and "SIGILL" in dead.output and "operation by operation" in dead.output
    assert CliRunner().invoke(app, [*call, "fine"]).exit_code == 0


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

    from intact8.runtime import probe_process

    children: list[subprocess.Popen[bytes]] = []
    start = probe_process._start

    def watched(module: str) -> subprocess.Popen[bytes]:
        children.append(start(module))
        return children[-1]

    def interrupt(self: object, stdin: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_process, "_start", watched)
    monkeypatch.setattr(probe_process, "_send", interrupt)
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
