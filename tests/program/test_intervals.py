"""Intervals of integers that programs compute are those of all values, and tell which embeddings are safe."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.floats import run_float

from intact8.opset.kind import UNKNOWN
from intact8.opset.op import Op, Tensor
from intact8.program.indices import _interval, intervals, table_rows, unproved
from intact8.program.program import Program

ENDS = [(-3, 4), (2, 5), (-7, -2), (0, 0), (1, 6)]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "larger": ("float.maximum", {}), "smaller": ("float.minimum", {}),
    "sum": ("float.add", {}), "difference": ("float.sub", {}), "product": ("float.mul", {}),
    "rectified": ("float.relu", {}), "cast": ("float.cast", {"dtype": "int64"}),
    "doubled": ("float.affine_scalar", {"mul": 2.0, "add": -1.0}),
    "negated": ("float.affine_scalar", {"mul": -3.0, "add": 5.0}),
    "filled": ("float.masked_fill", {"value": -5.0}), "filled above": ("float.masked_fill", {"value": 9.0}),
    "quotient": ("float.integer_divide", {"rounding": "floor"}),
    "quotient to 0": ("float.integer_divide", {"rounding": "trunc"}),
    "least": ("float.clamp", {"min": 1, "max": None}), "most": ("float.clamp", {"min": None, "max": 3}),
    "both": ("float.clamp", {"min": -2, "max": 4}), "free": ("float.clamp", {"min": None, "max": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_intervals_are_those_of_all_values(case: str) -> None:
    kind, attrs = KINDS[case]
    two = kind in ("float.add", "float.sub", "float.mul", "float.maximum", "float.minimum", "float.integer_divide")
    for first, second in itertools.product(ENDS, ENDS if two else [(0, 1)]):
        x, y = (np.arange(low, high + 1) for low, high in (first, second))
        left, right = (a.ravel() for a in np.meshgrid(x, y))
        given = [left, right] if two else [left, right.astype(bool)] if kind == "float.masked_fill" else [left]
        values = run_float(kind.removeprefix("float."), attrs, given, {}, "int64")
        names = ("x", "y", "z")[: len(given)]
        tensors = {n: Tensor(n, "int64", (3,)) for n in ("x", "y", "out")}
        op = Op("out", kind, names, attrs)
        got = _interval(op, Program(tensors, (op,), ("x", "y"), ("out",)), {"x": first, "y": second})
        assert got == (values.min(), values.max()), (first, second)


def tower(*steps: Op, dtype: str = "int64", rows: int = 8, shape: tuple[int, ...] = (4, 5)) -> list[str]:
    """Steps from an input to the embedding of so many rows: the names of what is not proved."""
    names = ["x", *(op.name for op in steps)]
    tensors = {n: Tensor(n, "int64", shape) for n in names} | {"x": Tensor("x", dtype, shape)}
    tensors["e"] = Tensor("e", "float32", (*shape, 2))
    embedding = Op("e", "float.embedding", (names[-1],), {}, {"weight": np.zeros((rows, 2), np.float32)})
    return list(unproved(Program(tensors, (*steps, embedding), ("x",), ("e",))))


def step(kind: str, **attrs: Any) -> Op:
    return Op("s", kind, ("x",), attrs)


def constant(*values: int) -> Op:
    return Op("s", "constant", (), {}, {"value": np.array(values)})


def test_embeddings_whose_indices_stay_inside_are_proved() -> None:
    assert tower() == [] and tower(step("roll", shifts=[1], dims=[0])) == []  # checked before the call
    assert tower(step("float.cast", dtype="int64"), dtype="bool", rows=2) == []
    assert tower(step("float.cast", dtype="int64"), dtype="bool", rows=1) == ["e"]
    assert tower(step("float.cast", dtype="int64"), dtype="uint8", rows=256) == []
    assert tower(step("float.cast", dtype="int64"), dtype="uint8", rows=255) == ["e"]
    assert tower(step("float.cast", dtype="int64"), dtype="float32") == ["e"]
    assert tower(constant(0, 7)) == [] and tower(constant(0, 8)) == tower(constant(-1, 3)) == ["e"]
    for dims, rows, proved in (([0], 4, True), ([0], 3, False), ([1], 5, True), ([1], 4, False), ([], 99, False)):
        reduced = step("float.reduce", fn="argmax", dims=dims, keepdim=False)
        assert tower(reduced, dtype="float32", rows=rows) == ([] if proved else ["e"])
    clamped = step("float.clamp", min=0, max=7)
    assert tower(clamped) == [] and tower(clamped, rows=7) == ["e"]
    assert tower(step("float.clamp", min=-1, max=7)) == tower(step("float.clamp", min=None, max=7)) == ["e"]
    assert tower(step("float.unary", fn="abs")) == tower(step("float.affine_scalar", mul=0.5, add=0.0)) == ["e"]
    assert tower(step("float.affine_scalar", mul=1.0, add=0.5)) == ["e"]
    for fn in ("amax", "amin", "sum"):
        small = [constant(2, 3), Op("r", "float.reduce", ("s",), {"fn": fn, "dims": [0], "keepdim": False})]
        assert tower(*small) == (["e"] if fn == "sum" else [])
    padded = [constant(2, 3), Op("r", "pad", ("s",), {"pads": [[1, 1]], "value": 9})]
    assert tower(*padded) == ["e"] and tower(*padded, rows=10) == []


def test_integers_that_might_wrap_are_not_followed() -> None:
    huge = Op("s", "constant", (), {}, {"value": np.array([UNKNOWN[1] - 1])})
    zero = [huge, Op("t", "float.mul", ("s", "s")), Op("u", "float.affine_scalar", ("t",), {"mul": 0.0, "add": 0.0})]
    assert tower(*zero) == ["e"]
    once = [huge, Op("t", "float.affine_scalar", ("s",), {"mul": 0.0, "add": 1.0})]
    assert tower(*once) == []
    beyond = [Op("s", "constant", (), {}, {"value": np.array([UNKNOWN[1]])}), once[1]]
    assert tower(*beyond) == ["e"]


def test_rows_of_the_shortest_table_an_input_reaches() -> None:
    def embedding(name: str, source: str, rows: int) -> Op:
        return Op(name, "float.embedding", (source,), {}, {"weight": np.zeros((rows, 2), np.float32)})

    ops = (
        embedding("a", "x", 9), Op("m", "cat", ("x", "y"), {"axis": 0}), embedding("b", "m", 7), embedding("c", "x", 8),
        Op("f", "float.affine_scalar", ("z",), {"mul": 1.0, "add": 1.0}), embedding("d", "f", 3),
    )  # fmt: skip
    tensors = {n: Tensor(n, "int64", (4,)) for n in ("x", "y", "z", "m", "f")}
    tensors |= {n: Tensor(n, "float32", (4, 2)) for n in "abcd"} | {"w": Tensor("w", "float32", (4,))}
    program = Program(tensors, ops, ("x", "y", "z", "w"), ("a",))
    assert table_rows(program) == {"x": 7, "y": 7}
    assert unproved(program) == {"d": 3}


def test_the_interval_of_a_cumulative_sum_holds_every_sum_of_that_many() -> None:
    tensors = {n: Tensor(n, "int64", (None, 3)) for n in ("x", "out")}
    for first in ENDS:
        op = Op("out", "float.cumsum", ("x",), {"axis": 1})
        rows = np.array(list(itertools.product(range(first[0], first[1] + 1), repeat=3)))
        values = run_float("cumsum", op.attrs, [rows], {}, "int64")
        got = _interval(op, Program(tensors, (op,), ("x",), ("out",)), {"x": first})
        assert got == (values.min(), values.max()), first
    along_batch = Op("out", "float.cumsum", ("x",), {"axis": 0})
    assert _interval(along_batch, Program(tensors, (along_batch,), ("x",), ("out",)), {"x": (0, 1)}) is None


def test_the_interval_of_a_scatter_holds_every_result() -> None:
    tensors = {n: Tensor(n, "int64", (None, 2)) for n in ("x", "i", "s", "out")}
    rows = np.array(list(itertools.product((0, 1), repeat=2)))
    for first, second in itertools.product(ENDS, ENDS):
        for how in ("none", "sum", "amax", "amin"):
            op = Op("out", "float.scatter", ("x", "i", "s"), {"axis": 1, "reduce": how})
            x, s = np.array([first] * len(rows)), np.array([second] * len(rows))
            values = run_float("scatter", op.attrs, [x, rows, s], {}, "int64")
            got = _interval(
                op, Program(tensors, (op,), ("x", "i", "s"), ("out",)), {"x": first, "i": (0, 1), "s": second}
            )
            assert got is not None
            assert got[0] <= values.min() <= values.max() <= got[1]


def cast_from(scale: float, *steps: Op, zero_point: int = 10) -> tuple[int, int] | None:
    """Return the interval of an int64 cast of floats that come from a quantized input."""
    floats = ["f", *(op.name for op in steps)]
    tensors = {n: Tensor(n, "float32", (4,)) for n in floats}
    tensors |= {"x": Tensor("x", "uint8", (4,), scale, zero_point), "i": Tensor("i", "int64", (4,))}
    ops = (Op("f", "dequantize", ("x",)), *steps, Op("i", "float.cast", (floats[-1],), {"dtype": "int64"}))
    return intervals(Program(tensors, ops, ("x",), ("i",))).get("i")


def test_casts_of_floats_reach_one_integer_further() -> None:
    assert cast_from(0.5) == (-6, 124)
    assert cast_from(0.5, Op("s", "float.clamp", ("f",), {"min": 1.5, "max": 6.0})) == (0, 7)


def test_floats_beyond_int64_are_not_followed() -> None:
    clamp = Op("s", "float.clamp", ("f",), {"min": 0.0, "max": 3.0})
    assert cast_from(1.0, clamp) == (-1, 4)
    assert cast_from(2.0**80, clamp) is None and cast_from(2.0**80, clamp, zero_point=0) is None


def test_sums_along_dimensions_are_those_of_every_term() -> None:
    tensors = {"x": Tensor("x", "int64", (4, 5)), "out": Tensor("out", "int64", (5,))}
    op = Op("out", "float.reduce", ("x",), {"fn": "sum", "dims": [0], "keepdim": False})
    assert _interval(op, Program(tensors, (op,), ("x",), ("out",)), {"x": (-3, 5)}) == (-12, 20)
