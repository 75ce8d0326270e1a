"""The bounded part of ``python -m tests.fuzz``: programs of every kind by chance, in forked children."""

from __future__ import annotations

import os
import signal
from collections import Counter

import numpy as np
import pytest
from tests.fuzz import files, run
from tests.fuzz.calls import SAME
from tests.fuzz.programs import NAMES, make
from tests.fuzz.shapes import BUILDERS, Source, anything

from intact8.engines import available_engines, get_engine
from intact8.engines.binding import bind
from intact8.errors import InputError, ProgramError
from intact8.opset import KINDS
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def test_every_kind_is_made_and_obeys_the_specification() -> None:
    made: Counter[str] = Counter()
    for index in range(6 * len(NAMES)):
        found = make(1, index)
        if found is None:
            continue
        program, _ = found
        try:
            check(program)
        except ProgramError:
            continue
        made.update({op.kind for op in program.ops})
    assert set(made) == set(KINDS)


@pytest.mark.parametrize("kind", ["float.relu", "float.compare", "float.mean", "table", "cat", "dequantize"])
def test_a_kind_without_a_builder_is_made_from_its_declaration(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BUILDERS, kind, raising=False)
    assert BUILDERS.get(kind, anything) is anything
    accepted = 0
    for index in range(30):
        found = make(2, index, (kind,))
        if found is None:
            continue
        try:
            check(found[0])
            accepted += kind in {op.kind for op in found[0].ops}
        except ProgramError:
            pass
    assert accepted


def test_the_same_seed_makes_the_same_program() -> None:
    for index in range(20):
        first, again = make(3, index), make(3, index)
        assert (first is None) == (again is None)
        assert first is None or again is None or str(first[0]) == str(again[0])
    assert Source((1, 2)).size() == Source((1, 2)).size()


@pytest.mark.parametrize(("engine", "count"), [("native", 200), ("onednn", 600), ("onnxruntime", 40)])
def test_nothing_dies_differs_or_escapes(engine: str, count: int) -> None:
    if engine not in available_engines():
        pytest.skip(f"no {engine}")
    found = run.fuzz(0, count, [engine])
    assert not found.faults
    assert found.counts["accepted"] > count / 2
    assert found.counts["check: refused"] > count / 10


def test_deaths_and_foreign_errors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(seed: int, index: int, engines: object, folder: object, found: run.Found, kinds: object) -> None:
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        run.guarded(found, {"index": index}, "check", lambda: [][index])
        found.counts["files"] += 1

    monkeypatch.setattr(run, "case", case)
    found = run.fuzz(0, 12, [])
    deaths = [f for f in found.faults if f["fault"] == "death"]
    assert [(f["index"], f["status"]) for f in deaths] == [(7, "SIGKILL")]
    assert [f["index"] for f in found.faults if f["fault"] == "foreign error"] == [8, 9, 10, 11]


def test_mutated_files_are_refused_or_sound_and_cheap() -> None:
    found = files.fuzz_files(0, 60)
    assert not found.faults
    assert found.counts["mutated file: refused"] > 20
    assert found.worst["seconds of a mutated file"] < files.SLOW


def test_slow_hungry_and_unsound_files_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that nothing can keep, and a judge that finds nothing sound."""

    def unsound(program: Program) -> None:
        raise AssertionError(f"{len(program.ops)} ops")

    for name, value in {"SLOW": -1.0, "MULTIPLE": 0, "FIXED": 0, "accepted_is_sound": unsound}.items():
        monkeypatch.setattr(files, name, value)
    found = files.fuzz_files(0, 30)
    assert {f["fault"] for f in found.faults} == {"accepted and unsound", "slow", "memory"}
    monkeypatch.setattr(files, "HOSTILE", {"names": files.HOSTILE["names of arrays"]})
    assert [f["fault"] for f in files.fuzz_memory(200_000).faults] == ["memory"]


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "onnxruntime"])
def test_nothing_is_computed_for_an_empty_batch(engine: str) -> None:
    """ONNX Runtime's recurrent layers would end the process, and numpy has no largest of nothing."""
    if engine not in available_engines():
        pytest.skip(f"no {engine}")
    shapes = {"x": (None, 9, 5), "y": (None, 9, 32)}
    weights = {f"weight_{role}{way}": np.ones((48, n), np.float32) for role, n in (("ih", 5), ("hh", 16))
               for way in ("", ".reverse")}  # fmt: skip
    attrs = {"hidden": 16, "bidirectional": True, "states": False, "lengths": False, "result": "steps"}
    op = Op("y", "float.gru", ("x",), attrs, weights)
    program = Program({n: Tensor(n, "float32", s) for n, s in shapes.items()}, (op,), ("x",), ("y",))
    runner, given = get_engine(engine).prepare(program), {"x": np.zeros((0, 9, 5), np.float32)}
    assert runner(given)[0].shape == (0, 9, 32)
    with pytest.raises(InputError, match="the batch is empty"):
        runner.tensors(given)


@pytest.mark.parametrize("what", SAME)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_])
def test_other_memory_holds_the_same_values_and_is_aligned_for_engines(what: str, dtype: type) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    other = SAME[what](x)
    np.testing.assert_array_equal(other, x)
    assert what != "unaligned" or not other.flags.aligned or x.itemsize == 1
    t = Tensor("x", x.dtype.name, (None, 3, 4))
    given = bind(Program({"x": t}, (), ("x",), ("x",)), [other], {})["x"]
    assert given.flags.aligned
    np.testing.assert_array_equal(given, x)
