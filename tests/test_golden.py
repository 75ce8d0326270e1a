"""Golden vectors: small, the same everywhere, reproduced by engines that are right and by no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.program.build import certified, with_op
from torch import nn

import intact8
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, ProgramError
from intact8.golden import reproduce, with_golden
from intact8.opset.op import Array, Op, Tensor
from intact8.program.check import check
from intact8.program.document import FORMAT, to_document
from intact8.program.file import digest, load, save
from intact8.program.golden import PATTERNS, Golden, checksum, exact_tensors, sample
from intact8.program.program import Program


class Liar:
    """The reference, but the integers of one tensor are changed on their way."""

    def __init__(self, program: Program, wrong: str, change: str = "integers") -> None:
        self.program, self.wrong, self.change = program, wrong, change
        self.inner = ReferenceEngine().prepare(program)

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        values = self.tensors(inputs)
        return [values[name] for name in self.program.outputs]

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        program = self.program
        honest = self.inner.tensors(inputs)
        at = [op.name for op in program.ops].index(self.wrong)
        changed = {self.wrong: honest[self.wrong] ^ 1 if self.change == "integers" else honest[self.wrong] * 3 + 1}
        rest = Program(
            program.tensors, program.ops[at + 1 :], (*program.inputs, *(op.name for op in program.ops[: at + 1])),
            program.outputs,
        )  # fmt: skip
        given = {**honest, **changed}
        return {**given, **ReferenceEngine().prepare(rest).tensors({n: given[n] for n in rest.inputs})}


@pytest.fixture(scope="module")
def program() -> Program:
    return with_golden(certified())


def test_the_reference_reproduces_its_own(program: Program) -> None:
    assert program.golden is not None
    result = reproduce(ReferenceEngine().prepare(program), "reference", every=True)
    assert result.samples == len(program.golden.samples) == 4
    assert result.exact == len(exact_tensors(program)) and result.near == 2


def test_making_them_again_gives_the_same(program: Program) -> None:
    again = with_golden(certified())
    assert again.golden is not None and program.golden is not None
    assert again.golden.to_json() == program.golden.to_json()


def test_what_lies_before_islands_is_exact(program: Program) -> None:
    exact = exact_tensors(program)
    assert exact[0] == "xq" and exact[-1] == "real"
    assert not {"shift", "softmax", "again", "parted"} & set(exact)


@pytest.mark.parametrize("wrong", ["net.c1", "table", "cat", "head"])
def test_a_difference_is_placed_at_the_first_operation(program: Program, wrong: str) -> None:
    with pytest.raises(EngineError) as caught:
        reproduce(Liar(program, wrong), "liar", every=True)
    assert caught.value.where == wrong and "liar" in str(caught.value) and "reference" in caught.value.remedy


def test_a_wrong_exact_output_is_found_without_comparing_every_tensor(program: Program) -> None:
    open_ended = with_golden(replace(program, outputs=("real", "softmax"), structure=0))
    with pytest.raises(EngineError) as caught:
        reproduce(Liar(open_ended, "sum"), "liar")
    assert caught.value.where == "sum" and " differ" in caught.value.why


def test_outputs_behind_islands_are_compared_within_a_tolerance(program: Program) -> None:
    with pytest.raises(EngineError, match="behind float islands"):
        reproduce(Liar(program, "softmax", "floats"), "liar")


class Angles(nn.Module):
    """The angle and the size of frequencies, which are 0 but for rounding where a sample is constant."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.fft.rfft(x, dim=1)
        return z.abs(), torch.cos(z.angle())


def test_outputs_that_last_bits_change_by_much_are_not_compared() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Angles()).eval()
    found = intact8.quantize(model, torch.randn(64, 16, 6)).golden
    assert found is not None and found.outputs.keys() == {0}


def test_a_step_of_the_output_grid_behind_islands_is_no_difference() -> None:
    """A grid that is coarse beside what the samples give: nearly all its numbers are zero, and one is another step."""
    tensors = {
        "x": Tensor("x", "float32", (None, 8)),
        "s": Tensor("s", "float32", (None, 8)),
        "q": Tensor("q", "uint8", (None, 8), float(np.float32(0.4)), 0),
        "y": Tensor("y", "float32", (None, 8)),
    }
    ops = (
        Op("s", "float.softmax", ("x",), {"axis": 1}, note="no integer form yet"),
        Op("q", "quantize", ("s",), {"lo": 0, "hi": 255}),
        Op("y", "dequantize", ("q",)),
    )
    program = Program(tensors, ops, ("x",), ("y",))
    check(program)
    coarse = with_golden(program)
    assert coarse.golden is not None and 0 in coarse.golden.outputs
    assert reproduce(Liar(coarse, "q"), "liar").near == 1
    fine = with_golden(
        replace(program, tensors={**tensors, "q": Tensor("q", "uint8", (None, 8), float(np.float32(0.004)), 0)})
    )
    with pytest.raises(EngineError, match="behind float islands"):
        reproduce(Liar(fine, "s", "floats"), "liar")


def test_the_patterns_of_a_float_input_reach_its_grid(program: Program) -> None:
    golden = Golden(tuple((p, 1) for p in PATTERNS))
    grid = program.tensors["xq"]
    assert grid.scale is not None and grid.zero_point is not None
    for i, pattern in enumerate(PATTERNS):
        x = sample(program, golden, i)["x"]
        assert x.shape == (1, 3, 8, 8) and x.dtype == np.float32
        q = np.round(x.astype(np.float64) / grid.scale) + grid.zero_point
        assert q.min() >= 0 and q.max() <= 255
        different = len(np.unique(q))
        assert different > 30 if pattern in ("noise", "smooth") else different == (2 if pattern == "extremes" else 1)


def test_the_generator_never_changes() -> None:
    """Files made by earlier versions hold checksums of these very inputs."""
    golden = Golden(tuple((p, 5) for p in PATTERNS))
    sums = [checksum(sample(certified(), golden, i)["x"]) for i in range(len(PATTERNS))]
    assert sums == FROZEN


FROZEN = [332846395, 3157558229, 1295722089, 1998643680, 2503192669]


def test_indices_stay_within_the_embedding() -> None:
    tensors = {"i": Tensor("i", "int64", (None, 9)), "e": Tensor("e", "float32", (None, 9, 4))}
    op = Op("e", "float.embedding", ("i",), arrays={"weight": np.ones((7, 4), np.float32)})
    program = with_golden(Program(tensors, (op,), ("i",), ("e",)))
    check(program)
    assert program.golden is not None and program.golden.bounds == {"i": 7}
    indices = np.concatenate([sample(program, program.golden, i)["i"] for i in range(4)])
    assert indices.max() == 6 and indices.min() == 0


def test_a_program_whose_samples_cannot_run_says_why() -> None:
    tensors = {
        "x": Tensor("x", "float32", (None, 2)), "i": Tensor("i", "int64", (None, 2)),
        "far": Tensor("far", "int64", (None, 2)), "y": Tensor("y", "float32", (None, 2, 3)),
    }  # fmt: skip
    ops = (
        Op("i", "float.cast", ("x",), {"dtype": "int64"}),
        Op("far", "float.affine_scalar", ("i",), {"mul": 1, "add": 100}),
        Op("y", "float.embedding", ("far",), {}, {"weight": np.ones((4, 3), np.float32)}),
    )
    program = Program(tensors, ops, ("x",), ("y",))
    check(program)
    golden = with_golden(program).golden
    assert golden is not None and not golden.samples and "index" in golden.omitted


def test_files_hold_them_and_stay_small(program: Program, tmp_path: Path) -> None:
    plain = save(replace(program, golden=None), tmp_path / "plain").stat().st_size
    path = save(program, tmp_path / "golden")
    assert path.stat().st_size - plain < 4096
    back = load(path)
    assert to_document(back) == to_document(program) and back.golden is not None
    assert reproduce(ReferenceEngine().prepare(back), "reference").samples == 4
    assert "/golden/0" in load_file(path)
    assert digest(back) == digest(replace(program, golden=None))


BREAKS = {
    "a pattern": lambda g: g | {"samples": [["zebra", 1], *g["samples"][1:]]},
    "a seed": lambda g: g | {"samples": [["noise", -1], *g["samples"][1:]]},
    "a sample less": lambda g: g | {"samples": g["samples"][1:]},
    "no samples": lambda g: g | {"samples": []},
    "a tensor less": lambda g: g | {"checksums": {k: v for k, v in g["checksums"].items() if k != "xq"}},
    "a float tensor more": lambda g: g | {"checksums": {**g["checksums"], "softmax": [1, 2, 3, 4]}},
    "a checksum of 33 bits": lambda g: g | {"checksums": {**g["checksums"], "xq": [1, 2, 3, 1 << 32]}},
    "a bound": lambda g: g | {"bounds": {"x": 4}},
    "an output less": lambda g: g | {"outputs": [0]},
    "an output more": lambda g: g | {"outputs": [0, 1, 2]},
    "a key": lambda g: g | {"more": 1},
    "a type": lambda g: g | {"checksums": []},
    "an empty excuse": lambda g: {"omitted": ""},
}


@pytest.mark.parametrize("change", BREAKS)
def test_malformed_golden_vectors_are_refused(program: Program, tmp_path: Path, change: str) -> None:
    from tests.program.test_file import rewrite

    document = to_document(program)
    document["golden"] = BREAKS[change](document["golden"])
    path = rewrite(save(program, tmp_path / "x"), **{FORMAT: json.dumps(document)})
    with pytest.raises(ProgramError):
        load(path)


def test_they_do_not_outlive_a_change_of_the_program(program: Program) -> None:
    changed = with_op(program, "net.c1", arrays={"bias": np.full(4, 9, np.int32)})
    with pytest.raises(ProgramError) as caught:
        reproduce(ReferenceEngine().prepare(changed), "reference", every=True)
    assert caught.value.where == "net.c1"
