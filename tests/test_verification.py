"""Verification counts every integer, and finds the one that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.program.build import certified, data, network, with_op

from intact8.engines import cpu, get_runner
from intact8.errors import EngineError, InputError
from intact8.golden import with_golden
from intact8.opset.op import Array
from intact8.program.program import Program
from intact8.verification import run, verify

PROGRAM = certified()
X, BIAS = data(10)
PER_SAMPLE = sum(int(np.prod(PROGRAM.tensors[n].shape[1:])) for n in PROGRAM.integer_tensors())


class Faulty:
    """A simulation that equals the reference but for what ``faults`` say: tensor → (sample, flat index, distance)."""

    def __init__(self, program: Program, **faults: tuple[int, int, int]) -> None:
        self.runner, self.faults, self.seen = get_runner(program, "reference"), faults, 0
        self.names = program.inputs

    def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        assert all(isinstance(t, torch.Tensor) for t in inputs)
        assert set(feed or {}) == {"shift", "softmax"}
        values = self.runner.tensors({n: t.numpy() for n, t in zip(self.names, inputs, strict=True)}, feed)
        out = {n: np.array(v) for n, v in values.items() if v.dtype == np.uint8}
        for name, (sample, index, distance) in self.faults.items():
            if 0 <= sample - self.seen < len(inputs[0]):
                flat = out[name.replace("__", ".")][sample - self.seen].reshape(-1)
                flat[index] = flat[index] + distance if flat[index] < 128 else flat[index] - distance
        self.seen += len(inputs[0])
        return out


def test_engines_agree_on_the_network() -> None:
    report = verify(PROGRAM, (X, BIAS))
    assert report.exact and report.mismatches == 0 and report.max_lsb == 0 and report.first is None
    assert report.samples == 10 and report.elements == 10 * PER_SAMPLE
    assert report.by_engine["onednn"].elements == report.elements
    assert list(report.by_tensor) == PROGRAM.integer_tensors()
    assert report.islands == ["shift", "softmax"] and report.uncertified == {}


def test_an_engine_whose_cpu_lacks_what_the_program_needs_is_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "isa", lambda *_: "avx2")
    program = replace(PROGRAM, needs=("vnni",))
    assert list(verify(program, (X, BIAS)).by_engine) == ["native"]
    with pytest.raises(EngineError, match="needs VNNI"):
        verify(program, (X, BIAS), "onednn")


def test_an_engine_that_cannot_run_the_program_here_is_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from intact8.engines.onednn import engine

    monkeypatch.setattr(engine.cpu, "uses_amx", lambda: True)
    monkeypatch.setattr(engine, "_is_wide", lambda op: op.kind == "linear")
    program = replace(PROGRAM)
    report = verify(program, (X, BIAS))
    assert report.exact and list(report.by_engine) == ["native"]
    assert any("onednn was not compared" in remark and "AMX" in remark for remark in report.remarks)
    with pytest.raises(EngineError, match="AMX"):
        verify(program, (X, BIAS), "onednn")


def test_the_differing_element_is_named() -> None:
    sim = Faulty(PROGRAM, sum=(7, 5, 3), net__c1=(7, 9, 1), flat=(9, 0, 2))
    report = verify(PROGRAM, (X, BIAS), ("reference",), sim, batch_size=4)
    assert not report.exact and report.mismatches == 3 and report.max_lsb == 3
    assert report.by_tensor["sum"].mismatches == {"simulation": 1} and report.by_tensor["sum"].max_lsb == 3
    first = report.first
    assert first is not None and (first.engine, first.tensor, first.index) == ("simulation", "net.c1", (7, 0, 1, 1))
    assert abs(first.expected - first.got) == 1
    flat = report.by_tensor["flat"].first
    assert flat is not None and flat.index == (9, 0)
    assert report.by_tensor["table"].first is None


def test_the_earlier_batch_is_first() -> None:
    sim = Faulty(PROGRAM, xq=(8, 0, 1), head=(1, 2, 1))
    report = verify(PROGRAM, (X, BIAS), ("reference",), sim, batch_size=4)
    assert report.first is not None and report.first.tensor == "head"


def test_missing_tensors_are_not_exact() -> None:
    class Partial(Faulty):
        def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
            out = super().integer_tensors(inputs, feed)
            del out["cat"]
            return out

    report = verify(PROGRAM, (X, BIAS), ("reference",), Partial(PROGRAM), batch_size=5)
    assert report.mismatches == 0 and not report.exact
    assert report.by_engine["simulation"].missing == ["cat"]


def test_wrong_shapes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Faulty):
        def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
            return {**super().integer_tensors(inputs, feed), "cat": np.zeros((1, 2), np.uint8)}

    with pytest.raises(EngineError, match="cat: simulation gives"):
        verify(PROGRAM, (X, BIAS), ("reference",), Odd(PROGRAM))


def loader() -> Iterator[list[torch.Tensor]]:
    for i in range(0, 10, 5):
        yield [torch.from_numpy(X[i : i + 5]), torch.from_numpy(BIAS[i : i + 5]), torch.zeros(5)]


@pytest.mark.parametrize("inputs", [
    (X, BIAS), {"x": X, "bias": torch.from_numpy(BIAS)}, [(X[:4], BIAS[:4]), {"x": X[4:], "bias": BIAS[4:]}], loader(),
], ids=["tuple", "dict", "batches", "loader with labels"])  # fmt: skip
def test_forms_of_inputs(inputs: Any) -> None:
    seen: list[int] = []
    report = verify(PROGRAM, inputs, ("reference",), Faulty(PROGRAM), batch_size=3, progress=seen.append)
    assert report.samples == 10 and report.exact and report.elements == 10 * PER_SAMPLE
    assert seen[-1] == 10 and sorted(seen) == seen


def test_batches_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = run._compare

    def spy(program: Program, report: Any, engine: str, expected: Any, got: Any) -> Any:
        sizes.append(len(expected["cat"]))
        return real(program, report, engine, expected, got)

    monkeypatch.setattr(run, "_compare", spy)
    verify(PROGRAM, (X, BIAS), ("reference",), Faulty(PROGRAM), batch_size=4)
    assert sizes == [4, 4, 2]


def test_integers_are_real_numbers_to_a_simulation() -> None:
    xq = get_runner(PROGRAM, "reference").tensors({"x": X, "bias": BIAS})["xq"]
    assert verify(PROGRAM, (xq, BIAS), sim=Faulty(PROGRAM)).exact


def test_nothing_to_verify_on() -> None:
    for inputs in ([], (X[:0], BIAS[:0])):
        with pytest.raises(InputError, match="no inputs"):
            verify(PROGRAM, inputs, ("reference",))
    with pytest.raises(InputError, match="cannot take inputs from int"):
        verify(PROGRAM, 5, ("reference",))
    with pytest.raises(InputError, match="batch_size"):
        verify(PROGRAM, (X, BIAS), batch_size=0)


def test_golden_vectors_are_replayed_on_every_engine() -> None:
    program = with_golden(PROGRAM)
    report = verify(program, (X, BIAS), ("reference", "onednn"))
    assert list(report.golden) == ["reference", "onednn"] and not report.golden_differs and report.exact
    assert all("4 samples" in text and "bit for bit" in text for text in report.golden.values())
    assert report.to_json()["golden"] == report.golden
    assert "none in the program" in verify(PROGRAM, (X, BIAS), ("reference",)).golden["reference"]


def test_a_program_changed_since_its_conversion_is_not_exact() -> None:
    """As a bit that flipped in a file without checksum: engines agree with each other, not with what was converted."""
    program = with_golden(PROGRAM)
    weight = program.ops[1].arrays["weight"].copy()
    weight.flat[0] ^= 64
    changed = with_op(program, program.ops[1].name, arrays={"weight": weight})
    report = verify(changed, (X, BIAS), ("reference", "native"))  # onednn's sums may saturate on a CPU without VNNI
    assert report.mismatches == 0 and not report.exact and list(report.golden_differs) == ["reference", "native"]
    assert all("the program is damaged" in text and "net.c1" in text for text in report.golden_differs.values())


def test_report_as_json_and_table() -> None:
    sim = Faulty(network(), sum=(7, 5, 3))
    report = verify(replace(network()), (X, BIAS), ("reference",), sim)
    values = json.loads(json.dumps(report.to_json()))
    assert values["mismatches"] == 1 and values["first"]["tensor"] == "sum" and values["exact"] is False
    assert values["uncertified"]["net.c1"] == "no certificate"
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report)
    text = console.export_text()
    assert "simulation" in text and "sum[7, 0, 0, 5] is" in text and "not proved: net.c1" in text
