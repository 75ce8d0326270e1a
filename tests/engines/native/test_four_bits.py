"""Weights of 4 bits: half the file, the same integers, on every way to run it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.native.test_recurrent import bits, layer
from torch import nn

import intact8
from intact8 import recipes
from intact8.engines import get_engine
from intact8.engines.native.builder import step_fields
from intact8.engines.native.engine import NativeRunner
from intact8.errors import EngineError, ProgramError
from intact8.program import integrity
from intact8.program.file import digest, load, save
from intact8.program.program import Program

pytest.importorskip("intact8.engines.native._library")


class Network(nn.Module):
    """Ordinary, depthwise, dilated, grouped and transposed convolutions, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 17, 3, 2, 1), nn.ReLU(), nn.Conv2d(17, 17, 3, 1, 1, groups=17),
            nn.Conv2d(17, 48, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=2, dilation=2),
            nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1, groups=6),
            nn.ConvTranspose2d(48, 20, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(180, 70)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return intact8.quantize(Network().eval(), torch.randn(4, 3, 16, 16), recipe=recipes.w4a8())


def weights_of_four_bits(program: Program) -> list[int]:
    """Return the field ``bits`` of every step with weights in the native engine's plan."""
    runner = NativeRunner(program, 1)
    (plan,) = runner._plans._values.values()
    fields = list(step_fields().values())
    found = []
    for step in plan.lowered.builder._steps:
        names = [name for _, name in fields[step[0]][1]]
        found += [step[2 + names.index("bits")]] if "bits" in names else []
    return found


def test_every_engine_gives_the_reference_integers(program: Program) -> None:
    assert weights_of_four_bits(program) == [4] * 7
    x = {program.inputs[0]: np.random.default_rng(1).standard_normal((3, 3, 16, 16)).astype(np.float32)}
    want = get_engine("reference").prepare(program).tensors(x)
    for threads in (1, 2):
        found = get_engine("native").prepare(program, threads=threads).tensors(x)
        assert all(np.array_equal(found[name], want[name]) for name in want)


def test_files_take_half(program: Program, tmp_path: Path) -> None:
    path = save(program, tmp_path / "four.safetensors")
    weights = sum(a.size for op in program.ops for a in op.arrays.values() if a.dtype == np.int8)
    eight = sum(a.nbytes for op in program.ops for a in op.arrays.values())
    header = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert path.stat().st_size - header <= eight - weights // 2 + len(program.ops)
    again = load(path)
    assert digest(again) == digest(program)
    assert save(again, tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert b'"version":"4"' in path.read_bytes()[:header]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_and_linear_layers_that_quantize_while_they_run(kind: str) -> None:
    torch.manual_seed(0)
    module = nn.LSTM(20, 24, 2) if kind == "lstm" else nn.GRU(20, 24)
    x = torch.randn(5, 2, 20)
    program = intact8.quantize(module.eval(), x, recipe=recipes.dynamic(bits=4))
    assert set(weights_of_four_bits(program)) == {4}
    inputs = {program.inputs[0]: x.numpy()}
    want = get_engine("reference").prepare(program)(inputs)
    for found, expected in zip(get_engine("native").prepare(program)(inputs), want, strict=True):
        np.testing.assert_array_equal(bits(found), bits(expected))


def change(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file's header, and seal it again."""
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path.write_bytes(integrity.seal(data.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'\\"y/weight_hh\\":[1,28,7]', b'\\"y/weight_hh\\":[1,28,9]', "other bytes than its shape"),
        (b'\\"y/weight_hh\\":[1,28,7]', b'\\"y/weight_hh\\":[1,28,0]', "bad shape"),
        (b'\\"y/weight_hh\\":[1,28,7]', b'\\"y/weight_xx\\":[1,28,7]', "names no arrays"),
    ],
)
def test_bad_shapes_are_refused(old: bytes, new: bytes, reason: str, tmp_path: Path) -> None:
    program, _ = layer(np.random.default_rng(0), "lstm", (2, 1, 5, 7), most=7)
    path = save(program, tmp_path / "p.safetensors")
    change(path, old, new)
    with pytest.raises(ProgramError, match=reason):
        load(path)


def test_plans_with_other_bits_are_refused() -> None:
    """The library counts the bytes of weights by the bits that the plan states."""
    program, _ = layer(np.random.default_rng(0), "lstm", (2, 1, 5, 7), most=7)

    class Lying(NativeRunner):
        bits = 8

        def _make(self, *given):  # type: ignore[no-untyped-def]
            from intact8.engines.native.lowering import OpContext

            honest = OpContext.weight
            OpContext.weight = lambda *args: {**honest(*args), "bits": self.bits}  # type: ignore[method-assign]
            try:
                return super()._make(*given)
            finally:
                OpContext.weight = honest  # type: ignore[method-assign]

    for number, reason in ((8, "weight has"), (5, "weights of 5 bits")):
        Lying.bits = number
        with pytest.raises((EngineError, ValueError), match=reason):
            Lying(program, 1)
