"""The reference, too, runs in a limited child process first, unless it is predicted to need little."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.program.build import certified, data
from tests.runtime.large import alone

import intact8.runtime
from intact8.engines.reference import ReferenceRunner
from intact8.errors import EngineError, InputError
from intact8.golden import with_golden
from intact8.opset.op import Op, Tensor
from intact8.program.golden import Golden
from intact8.program.program import Program
from intact8.runtime import probe_policy
from intact8.runtime.facts import Facts
from intact8.runtime.probe import _run_once, _show_all

MIB = 1 << 20


def steps(count: int) -> Program:
    """A recurrent layer of so many steps, each a few calls of numpy, and sums that nothing gives."""
    x, y = Tensor("x", "float32", (count, 1, 1)), Tensor("y", "float32", (count, 1, 1))
    one = np.ones((1, 1, 1), np.int8)
    arrays = {"weight_ih": one, "weight_hh": 0 * one, "scale_ih": np.full((1, 1), 1e-3, np.float32),
              "scale_hh": np.ones((1, 1), np.float32), "bias": np.zeros((1, 1), np.float32)}  # fmt: skip
    attrs = {"hidden": 1, "bidirectional": False, "states": False, "lengths": False, "result": "steps",
             "nonlinearity": "relu"}  # fmt: skip
    golden = Golden((("low", 1),) * 16, checksums={"y": (0,) * 16})
    return Program({"x": x, "y": y}, (Op("y", "rnn", ("x",), attrs, arrays),), ("x",), ("y",), golden=golden)


def test_a_small_program_needs_no_child(tmp_path: Path) -> None:
    path = with_golden(certified()).save(tmp_path / "p.safetensors")
    info = intact8.runtime.load(path, engine="reference").info
    assert info.probe == "not needed: numpy is all it runs" and "child" not in info.golden


def test_any_other_passes_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(probe_policy, "SMALL", 0)
    path = with_golden(certified()).save(tmp_path / "p.safetensors")
    first = intact8.runtime.load(path, engine="reference").info
    assert first.probe == "passed" and first.golden.endswith(", in a child process")
    module = sys.modules["intact8.runtime.load"]  # the package has a function of that name
    monkeypatch.setattr(module, "reproduce", lambda *args: pytest.fail("run in this process"))
    again = intact8.runtime.load(path, engine="reference").info
    assert again.probe == "remembered" and again.golden == first.golden


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_time_limit_binds_the_whole_load(tmp_path: Path, engine: str) -> None:
    path = steps(1 << 20).save(tmp_path / "p.safetensors")
    start = time.perf_counter()
    with pytest.raises(EngineError, match="does not come to an end; only a child process"):
        intact8.runtime.load(path, engine=engine, time_limit=2.0)
    assert time.perf_counter() - start < 6


def test_time_limit_binds_golden_vectors_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_golden(certified()).save(tmp_path / "p.safetensors")
    run = ReferenceRunner.__call__
    monkeypatch.setattr(ReferenceRunner, "__call__", lambda *args: (time.sleep(1.5), run(*args))[1])
    with pytest.raises(EngineError, match="not done after 1 s") as caught:
        intact8.runtime.load(path, engine="reference", probe="never", time_limit=1.0)
    assert caught.value.where == "golden sample 2 of 4 (extremes)"


@pytest.mark.parametrize(
    ("program", "limit", "memory", "small"),
    [
        pytest.param(certified(), 120.0, None, True, id="small"),
        pytest.param(certified(), 1e-4, None, False, id="no time"),
        pytest.param(certified(), 120.0, 1024, False, id="no memory"),
        pytest.param(steps(1 << 16), 120.0, None, False, id="many steps"),
        pytest.param(alone("conv", 4 << 20), 120.0, None, True, id="an image"),
        pytest.param(alone("table", 64 << 20), 120.0, None, False, id="a large tensor"),
        pytest.param(alone("float.unary gelu", 4 << 20), 120.0, None, False, id="objects of Python"),
    ],
)
def test_what_is_small(program: Program, limit: float, memory: int | None, small: bool) -> None:
    facts = replace(Facts.here(), memory=memory)
    assert probe_policy.is_small(program, limit, facts) is small


def test_the_child_s_memory_is_limited(tmp_path: Path) -> None:
    program = alone("table", 1 << 20)
    limit = probe_policy.memory_limit(program, replace(Facts.here(), memory=300 * MIB), "reference")
    assert limit == 300 * MIB
    assert probe_policy.memory_limit(program, replace(Facts.here(), memory=None), "reference") >= 4 << 30


def test_a_size_counts_as_run_because_it_is_run() -> None:
    seen: list[dict[str, np.ndarray]] = []

    class Runner:
        program = certified()

        def __call__(self, inputs: dict[str, np.ndarray]) -> None:
            seen.append(inputs)
            if len(seen) == 2:
                raise InputError("no answer")

    for _ in range(2):
        _run_once(Runner(), 3, {}, ["x"])
    assert [{name: (a.shape, a.dtype.name) for name, a in given.items()} for given in seen] == [
        {"x": ((3, 3, 8, 8), "uint8"), "bias": seen[0]["bias"].shape and ((3, *seen[0]["bias"].shape[1:]), "float32")}
    ] * 2


def test_everything_is_shown_with_and_without_what_verification_gives() -> None:
    """verify gives engines the reference's floats, and engines compile another model for that."""
    program, (x, bias) = certified(), data(2)
    given, fed = {"x": x, "bias": bias}, list[list[str]]()

    class Runner(ReferenceRunner):
        def tensors(self, inputs: Any, feed: Any = None) -> dict[str, Any]:
            fed.append(sorted(feed or ()))
            return super().tensors(inputs, feed)

    _show_all(Runner(program), given)
    assert fed == [[], sorted(op.name for op in program.islands())] and fed[1]
