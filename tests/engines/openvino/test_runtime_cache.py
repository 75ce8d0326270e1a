"""Operations that differ in their constants only get kernels of their own, whatever OpenVINO keeps them by."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino
from openvino import opset14 as ov

from intact8.engines.openvino import OpenVinoEngine, engine
from intact8.engines.openvino.compile import compile_model
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

ALIKE = (122, 223)
"""Zero points; as int8 they are −6 and 95, whose subtractions have the same hash where the second stands for both."""


def branches(zeros: tuple[int, ...]) -> Program:
    """For each zero point a layer, and a product of two of its three outputs."""
    tensors, ops, inputs, outputs = {}, [], [], []
    rng = np.random.default_rng(0)
    clamp = {"lo": 0, "hi": 255}
    for i, z in enumerate(zeros):
        for name, last, zero in (("x", 1, z), ("y", 3, z), ("v", 1, z), ("w", 1, z), ("s", 49, 0)):
            tensors[f"{name}{i}"] = Tensor(f"{name}{i}", "uint8", (None, 49, last), 1 / 16, zero)
        tensors[f"t{i}"] = Tensor(f"t{i}", "uint8", (None, 1, 49), 1 / 16, z)
        arrays = {
            "weight": rng.integers(-128, 128, (3, 1)).astype(np.int8), "bias": np.array([900, -800, 700], np.int32),
            "a": np.array([3, 5, 7], np.int32), "b": np.array([457, 613, 801], np.int32),
        }  # fmt: skip
        cut = {"axis": 2, "step": 1}
        ops += [
            Op(f"y{i}", "linear", (f"x{i}",), {**clamp, "residual_a": 0}, arrays),
            Op(f"v{i}", "slice", (f"y{i}",), {**cut, "start": 0, "end": 1}),
            Op(f"w{i}", "slice", (f"y{i}",), {**cut, "start": 1, "end": 2}),
            Op(f"t{i}", "permute", (f"w{i}",), {"dims": [0, 2, 1]}),
            Op(f"s{i}", "matmul", (f"v{i}", f"t{i}"), {**clamp, "a": 3, "b": 3465}),
        ]
        inputs.append(f"x{i}")
        outputs.append(f"s{i}")
    program = Program(tensors, tuple(ops), tuple(inputs), tuple(outputs))
    check(program)
    return program


@pytest.mark.parametrize("large", [False, True], ids=["alone", "joined"])
def test_zero_points_of_the_same_hash(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(engine, "LARGE", 0)
    program = branches(ALIKE)
    rng = np.random.default_rng(1)
    x = {name: rng.integers(0, 256, (2, 49, 1)).astype(np.uint8) for name in program.inputs}
    want = ReferenceEngine().prepare(program).tensors(x)
    runner = ENGINE.prepare(program, threads=1)
    for got, name in zip(runner(x), program.outputs, strict=True):
        np.testing.assert_array_equal(got, want[name])
    seen = runner.tensors(x)
    assert [name for name, value in want.items() if (seen[name] != value).any()] == []


def test_a_subtraction_of_every_integer() -> None:
    every = np.arange(-128, 128).astype(np.int8).reshape(2, 128)
    x = ov.parameter(list(every.shape), np.int8)
    wide = ov.convert(x, np.float32)
    results = [ov.result(ov.subtract(wide, ov.constant(np.float32(z)))) for z in range(-128, 128)]
    given = compile_model(openvino.Model(results, [x], "every"), 1)(every)
    assert [z for i, z in enumerate(range(-128, 128)) if (given[i] != every.astype(np.float32) - z).any()] == []
