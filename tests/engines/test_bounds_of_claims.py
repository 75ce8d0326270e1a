"""Operations at the bounds of their certificates, and just beyond: what is claimed gives the reference's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact8.arithmetic.softmax import softmax_table
from intact8.engines import available_engines, get_runner
from intact8.opset.op import Op, Tensor
from intact8.opset.proof import STEPS
from intact8.program.certify import certify, claim_error, unclaimed
from intact8.program.check import check
from intact8.program.program import Program

ENGINES = [name for name in available_engines() if name != "reference"]
CLAMP = {"lo": 0, "hi": 255}
Shape = tuple[int | None, ...]


def quantized(name: str, shape: Shape, zero: int = 0, scale: float = 1.0) -> Tensor:
    return Tensor(name, "uint8", shape, scale, zero)


def one(op: Op, inputs: list[Tensor], shape: Shape, zero: int = 128, scale: float = 1.0) -> Program:
    tensors = {t.name: t for t in (*inputs, quantized(op.name, shape, zero, scale))}
    return Program(tensors, (op,), tuple(t.name for t in inputs), (op.name,))


def claims(program: Program) -> dict[str, bool]:
    """Which engines the program's certificates claim; every claimed one gives the reference's integers."""
    check(program)
    program = certify(program, ("reference", *ENGINES))
    every = np.arange(256, dtype=np.uint8)
    given: list[Any] = [every, every[::-1], np.full(256, 255, np.uint8), np.zeros(256, np.uint8)]
    found = {}
    for name in ENGINES:
        found[name] = claim_error(program, name) is None and unclaimed(program, name) is None
        if not found[name]:
            continue
        for first in given:
            shapes = [[1 if d is None else d for d in program.tensors[n].shape] for n in program.inputs]
            values = [first, every, first, first]
            inputs = {n: np.resize(v, s) for n, v, s in zip(program.inputs, values, shapes, strict=False)}
            want = get_runner(program, "reference")(inputs)[0]
            np.testing.assert_array_equal(get_runner(program, name)(inputs)[0], want, err_msg=name)
    return found


@pytest.mark.parametrize("terms", [1, 2, 3])
@pytest.mark.parametrize(("numerator", "claimed"), [(1, True), (3, True), (-3, True), (1 << 23, False)])
def test_sums_of_one_tensor_once_or_several_times(terms: int, numerator: int, claimed: bool) -> None:
    x = quantized("x", (None, 256), 3)
    op = Op("y", "add", ("x",) * terms, {"a": [numerator] * terms, "b": 3, **CLAMP})
    found = claims(one(op, [x], (None, 256)))
    assert all(found[name] == claimed for name in ENGINES if name != "openvino")  # which claims two terms at most


@pytest.mark.parametrize("kind", ["mul", "matmul"])
@pytest.mark.parametrize("numerator", [0, 1, 5])
def test_products_of_a_tensor_with_itself(kind: str, numerator: int) -> None:
    x = quantized("x", (None, 16, 16), 7)
    op = Op("y", kind, ("x", "x"), {"a": numerator, "b": 4095, **CLAMP})
    found = claims(one(op, [x], (None, 16, 16)))
    assert all(found[name] for name in ENGINES if name != "openvino")
    assert numerator or not found.get("openvino")  # which divides by it


@pytest.mark.parametrize("beyond", [False, True])
def test_results_stay_below_what_any_evaluation_holds(beyond: bool) -> None:
    """|M acc| of the channel with the largest multiplier is one step of a below the bound, or at it."""
    weight = np.full((4, 16), 8, np.int8)
    largest, b = 8 * 16 * 255, 1
    limit = -(-int(STEPS) * b // largest)  # the least numerator that reaches the bound
    a = np.array([0, 1, 7, limit - (not beyond)], np.int32)
    arrays = {"weight": weight, "bias": np.zeros(4, np.int32), "a": a, "b": np.full(4, b, np.int32)}
    op = Op("y", "linear", ("x",), {**CLAMP, "residual_a": 0}, arrays)
    found = claims(one(op, [quantized("x", (None, 16))], (None, 4)))
    assert not (beyond and any(found.values()))
    assert beyond or found["native"]


@pytest.mark.parametrize("levels", [2.0**-20, 1.0, 2.0, 255.0, 256.0, 257.0, 1e6, 2.0**30])
@pytest.mark.parametrize("length", [1, 1024])
def test_softmax_of_few_and_of_many_levels(levels: float, length: int) -> None:
    x = quantized("x", (None, 2, length))
    scale = float(np.float32(1 / np.float32(levels)))
    op = Op("y", "softmax", ("x",), {"axis": 2, "levels": levels, **CLAMP}, {"table": softmax_table(0.1)})
    claims(one(op, [x], (None, 2, length), 0, scale))
