"""Sizes of calls that no child process has run: one is asked before this process runs them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import certified, data

from intact8.engines import get_runner
from intact8.engines.base import TimedRunner
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.file import save
from intact8.program.program import Program
from intact8.runtime import load, probe_policy
from intact8.runtime.guarded import open_guarded
from intact8.runtime.sizes import Range, Size, range_of, span

pytestmark = [
    pytest.mark.usefixtures("engines"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's"),
]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[list[int | None]]:
    """The batches of every child that is started."""
    started: list[list[int | None]] = []
    run = probe_policy.run_probe

    def counted(*args: object, **kwargs: object) -> object:
        started.append([size["batch"] for size in kwargs["sizes"]])  # type: ignore[attr-defined]
        return run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(probe_policy, "run_probe", counted)
    return started


def stretched(path: Path, name: str = "n") -> Path:
    """Rows of any length up to 100."""
    x, y = (Tensor(t, "float32", (None, name, 4)) for t in "xy")
    op = Op("y", "float.relu", ("x",))
    return Program({"x": x, "y": y}, (op,), ("x",), ("y",), dimensions={name: (1, 100)}).save(path / "s.safetensors")


def test_a_crash_at_another_size_happens_in_a_child(path: Path, children: list[object]) -> None:
    runner = load(path, engine="single")
    assert runner(*data(1))["probabilities"].shape == (1, 5)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"running samples of batch 3 to 4.*SIGSEGV.*only a child process"):
            runner(*data(3))
    with pytest.raises(EngineError, match="SIGSEGV"):
        runner(*data(4))
    assert len(children) == 2 and runner(*data(1)) and runner.info.sizes == ("batch 1",)
    with pytest.raises(EngineError, match=r"SIGSEGV.*earlier load"):
        load(path, engine="single")(*data(3))
    assert len(children) == 2


def test_a_range_is_asked_for_once_per_machine(path: Path, children: list[object]) -> None:
    runner = load(path, engine="fine")
    assert children == [[]]
    for n in (1, 6, 5, 7, 8, 6):
        runner(*data(n))
    assert children == [[], [6, 7, 8]] and runner.info.sizes == ("batch 1", "batch 5 to 8")
    again = load(path, engine="fine")
    again(*data(8))
    assert len(children) == 2


def test_sizes_are_probed_ahead(path: Path, children: list[object]) -> None:
    runner = load(path, engine="fine", batch=(1, 4, 2))
    assert children == [[4, 3, 2]] and runner.info.sizes == ("batch 1", "batch 3 to 4", "batch 2")
    for n in (1, 2, 3, 4):
        runner(*data(n))
    assert load(path, engine="fine", batch=(4,)).info.probe == "remembered" and len(children) == 1
    runner = load(path, engine="fine", batch=16, integers=True)
    assert children[1:] == [[16, 15, 16, 15]]
    x, bias = data(16)
    runner(np.zeros(x.shape, np.uint8), bias)
    assert len(children) == 2


def test_every_size_itself_or_none(path: Path, children: list[object]) -> None:
    always, never = load(path, engine="fine", probe="always"), load(path, engine="fine", probe="never")
    for n in (5, 6, 5):
        always(*data(n))
        never(*data(n))
    assert children == [[], [5], [6]] and never.info.sizes == ()


def test_the_reference_asks_nobody(path: Path, children: list[object]) -> None:
    runner = load(path, engine="reference", batch=8)
    for n in (3, 8, 70):
        runner(*data(n))
    assert not children


def test_a_file_that_was_replaced_does_not_matter(path: Path, children: list[object]) -> None:
    runner = load(path, engine="fine")
    path.write_bytes(b"another one")
    assert runner(*data(2))["probabilities"].shape == (2, 5)
    os.remove(path)
    assert runner(*data(3))["probabilities"].shape == (3, 5) and len(children) == 3


def test_lengths_and_integers_are_sizes(tmp_path: Path, cache: Path, children: list[object]) -> None:
    runner = load(stretched(tmp_path), engine="fine", sizes={"n": [90]})
    assert runner.info.sizes == ("batch 1, n 17 to 32", "batch 1, n 65 to 100") and len(children) == 1
    for n in (17, 32, 70, 100):
        runner(np.zeros((1, n, 4), np.float32))
    assert len(children) == 1
    runner(np.zeros((1, 3, 4), np.float32))
    runner(np.zeros((2, 32, 4), np.float32))
    assert len(children) == 3
    assert runner(np.zeros((0, 60, 4), np.float32)).shape == (0, 60, 4) and len(children) == 3
    with pytest.raises(InputError, match="no such dimension"):
        load(stretched(tmp_path), engine="fine", sizes={"m": [1]})
    with pytest.raises(InputError, match="outside the dimension's limits"):
        load(stretched(tmp_path), engine="fine", sizes={"n": [101]})


def test_a_dimension_may_be_called_as_the_batch_is(tmp_path: Path, cache: Path) -> None:
    runner = load(stretched(tmp_path, "batch"), engine="fine")
    assert runner(np.zeros((3, 50, 4), np.float32)).shape == (3, 50, 4)


def test_ranges_hold_their_sizes_and_no_others() -> None:
    for size in range(1, 300):
        a, b = span(size)
        assert a <= size <= b <= 2 * size - (size > 1) and (span(a), span(b)) == ((a, b), (a, b))
        assert a == 1 or span(a - 1)[1] == a - 1


def test_parts_that_have_run_make_any_batch() -> None:
    x, y = (Tensor(t, "float32", (None, 4)) for t in "xy")
    program = Program({"x": x, "y": y}, (Op("y", "float.relu", ("x",)),), ("x",), ("y",))
    found = range_of(program, "fine", Size(15), part=8)
    assert [run.batch for run in found.runs] == [15, 16]
    assert all(found.covers(Size(n), 8) for n in range(1, 99))
    assert [n for n in range(1, 99) if found.covers(Size(n), None)] == list(range(9, 17))
    assert not Range((("batch", 5, 8),), (), (Size(7), Size(8))).covers(Size(9), 8)
    assert not found.covers(Size(15, integers=("x",)), 8)


def test_where_memory_ends_the_size_itself_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.runtime import sizes

    x, y = (Tensor(t, "float32", (None, 1 << 20)) for t in "xy")
    program = Program({"x": x, "y": y}, (Op("y", "float.relu", ("x",)),), ("x",), ("y",))
    monkeypatch.setattr(sizes, "available_memory", lambda: 1 << 30)
    assert str(range_of(program, "onednn", Size(33))) == "batch 33"
    assert str(range_of(program, "onednn", Size(9))) == "batch 9 to 16"


def test_a_guarded_engine_that_can_tells_the_seconds_of_every_operation(tmp_path: Path) -> None:
    program = open_guarded(save(certified(), tmp_path / "good.safetensors"))
    runner = get_runner(program, "reference")
    assert isinstance(runner, TimedRunner)
    assert runner.times(dict(zip(program.inputs, data(1), strict=True))).keys() == {op.name for op in program.ops}
