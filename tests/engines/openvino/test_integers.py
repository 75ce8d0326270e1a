"""int64 on the openvino engine: what float32 does not hold is refused, everything else equals the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array, Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

GIVEN = 1 << 22
SHAPE = (None, 4)
CLAMP: tuple[str, dict[str, Any]] = ("float.clamp", {"min": -3, "max": 7})
CAST: tuple[str, dict[str, Any]] = ("float.cast", {"dtype": "int64"})


def program(*steps: tuple[str, dict[str, Any]], dtype: str = "int64") -> Program:
    tensors, ops, last = {"x": Tensor("x", dtype, SHAPE)}, [], "x"
    for i, (kind, attrs) in enumerate(steps):
        inputs = (last, last) if kind in ("float.add", "float.mul") else (last,)
        shape = (None,) if kind == "float.reduce" else SHAPE
        ops.append(Op(f"s{i}", kind, inputs, attrs))
        last = f"s{i}"
        tensors[last] = Tensor(last, "int64", shape)
    made = Program(tensors, tuple(ops), ("x",), (last,))
    check(made)
    return made


def compared(made: Program, x: Array) -> None:
    (want,), (got,) = ReferenceEngine().prepare(made)({"x": x}), ENGINE.prepare(made)({"x": x})
    np.testing.assert_array_equal(got, want)


ENDS = np.array([[GIVEN, -GIVEN, 1 - GIVEN, 5], [-1, 0, 1, GIVEN - 1]])


@pytest.mark.parametrize(
    "step",
    [
        ("float.add", {}),
        ("float.affine_scalar", {"mul": -3, "add": 7}),
        CLAMP,
        ("roll", {"shifts": [1], "dims": [1]}),
        ("float.reduce", {"fn": "amax", "dims": [1], "keepdim": False}),
    ],
    ids=lambda step: step[0],
)
def test_integers_that_are_proved_small(step: tuple[str, dict[str, Any]]) -> None:
    compared(program(step), ENDS)


@pytest.mark.parametrize("value", [GIVEN + 1, -GIVEN - 1, 1 << 40, -(1 << 63)])
def test_inputs_beyond_are_refused(value: int) -> None:
    runner = ENGINE.prepare(program(("float.affine_scalar", {"mul": 1, "add": 1})))
    for _ in range(2):  # calls behind one that was taken have less to find out
        with pytest.raises(InputError, match="x: the openvino engine takes integers up to 4194304"):
            runner({"x": np.array([[0, 0, 0, value]])})
        runner({"x": np.zeros((1, 4), np.int64)})


@pytest.mark.parametrize(
    "steps",
    [[("float.mul", {})], [("float.affine_scalar", {"mul": 4, "add": 0})], [("float.add", {})] * 2],
    ids=["a square", "four times", "added twice"],
)
def test_larger_results_are_refused(steps: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(EngineError, match=f"s{len(steps) - 1}: the integers computed here may reach 16777216"):
        ENGINE.prepare(program(*steps))


def test_floats_become_integers_where_clamps_read_them() -> None:
    x = np.array([[3e9, -2.7, np.nan, 2.9], [np.inf, -np.inf, 1e18, 1e19], [-1e19, -5e9, 7.99, 16777217]], np.float32)
    compared(program(CAST, CLAMP, dtype="float32"), x)
    with pytest.raises(EngineError, match="or nothing is known of them"):
        ENGINE.prepare(program(CAST, ("float.clamp", {"min": 0, "max": None}), dtype="float32"))


def test_floats_become_integers_of_any_size_for_the_caller() -> None:
    x = np.array([[3e9, -2.7, 1e18, 16777217.0], [-9e18, 0.99, -0.99, 2.0**40]], np.float32)
    compared(program(CAST, dtype="float32"), x)
