"""Dtypes are declared for every kind, and nothing else passes the checker."""

from __future__ import annotations

import numpy as np
import pytest

from intact8.errors import ProgramError
from intact8.opset import KINDS, output_dtypes
from intact8.opset.op import Op, Tensor
from intact8.opset.types import PLAIN, QUANTIZED
from intact8.program.check import check
from intact8.program.program import Program

ONES = np.ones(4, np.float32)
RECURRENT = {"hidden": 2, "bidirectional": False, "states": False, "result": "steps"}
CELL = {"weight_ih": np.ones((8, 4), np.float32), "weight_hh": np.ones((8, 2), np.float32)}


def program(op: Op, shape: tuple[int | None, ...], *inputs: Tensor, dtype: str = "float32") -> Program:
    tensors = {t.name: t for t in (*inputs, Tensor("y", dtype, shape))}
    return Program(tensors, (op,), tuple(t.name for t in inputs), ("y",))


def test_every_kind_declares_types_and_shapes() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name and kind.types and kind.formula, name
        for signature in kind.types:
            types = {t for operand in (*signature.operands, signature.last) for t in operand} | {signature.result}
            assert types <= {*PLAIN, QUANTIZED, ""}, name
            assert set(signature.when) <= set(kind.attrs), name
            assert bool(signature.operands) == (kind.inputs[1] > 0), name


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
@pytest.mark.parametrize(
    ("kind", "attrs", "arrays"),
    [
        ("float.layer_norm", {"shape": [4], "eps": 1e-5}, {"weight": ONES, "bias": ONES}),
        ("float.rms_norm", {"shape": [4], "eps": 1e-5}, {}),
        ("float.relu", {}, {}),
        ("float.softmax", {"axis": -1}, {}),
        ("float.scale_shift", {}, {"weight": ONES}),
        ("float.mean", {"dims": [1], "keepdim": True}, {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_float_kinds_take_float32_alone(kind: str, attrs: dict, arrays: dict, dtype: str) -> None:
    op, shape = Op("y", kind, ("x",), attrs, arrays), (None, 1) if kind == "float.mean" else (None, 4)
    check(program(op, shape, Tensor("x", "float32", (None, 4))))
    with pytest.raises(ProgramError, match=f"{kind} takes"):
        check(program(op, shape, Tensor("x", dtype, (None, 4))))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_products_and_recurrent_layers_take_float32_alone(dtype: str) -> None:
    a, b = Tensor("a", dtype, (None, 2, 4, 4)), Tensor("b", "float32", (None, 2, 4, 4))
    for pair in ((a, b), (b, a)):
        with pytest.raises(ProgramError, match="float.matmul takes"):
            check(program(Op("y", "float.matmul", tuple(t.name for t in pair)), (None, 2, 4, 4), *pair))
    op = Op("y", "float.lstm", ("x",), {**RECURRENT, "lengths": False}, CELL)
    check(program(op, (3, None, 2), Tensor("x", "float32", (3, None, 4))))
    with pytest.raises(ProgramError, match="float.lstm takes"):
        check(program(op, (3, None, 2), Tensor("x", dtype, (3, None, 4))))


def test_lengths_of_sequences_are_int64() -> None:
    op = Op("y", "float.lstm", ("x", "n"), {**RECURRENT, "lengths": True}, CELL)
    x, n = Tensor("x", "float32", (3, None, 4)), Tensor("n", "int64", (None,))
    check(program(op, (3, None, 2), x, n))
    with pytest.raises(ProgramError, match="float.lstm takes"):
        check(program(op, (3, None, 2), x, Tensor("n", "float32", (None,))))


@pytest.mark.parametrize(
    ("kind", "attrs", "operands", "results"),
    [
        ("float.add", {}, ("int64", "int64"), ["int64"]),
        ("float.add", {}, ("float32", "bool"), ["float32"]),
        ("float.mul", {}, ("bool", "bool"), []),
        ("float.sub", {}, ("int64", "bool"), []),
        ("float.affine_scalar", {"mul": 2, "add": 0}, ("int64",), ["float32", "int64"]),
        ("float.affine_scalar", {"mul": 0.5, "add": 0}, ("int64",), ["float32"]),
        ("float.clamp", {"min": 0.5, "max": None}, ("int64",), []),
        ("float.clamp", {"min": -float("inf"), "max": float("inf")}, ("int64",), ["int64"]),
        ("float.clamp", {"min": float("inf"), "max": None}, ("int64",), []),
        ("float.clamp", {"min": None, "max": -float("inf")}, ("int64",), []),
        ("float.reduce", {"fn": "sum", "dims": [0], "keepdim": False}, ("bool",), ["int64"]),
        ("float.reduce", {"fn": "argmax", "dims": [0], "keepdim": False}, ("float32",), ["int64"]),
        ("float.reduce", {"fn": "amax", "dims": [0], "keepdim": False}, ("bool",), []),
        ("float.cast", {"dtype": "bool"}, ("int64",), ["bool"]),
        ("float.compare", {"fn": "eq", "value": 0}, ("uint8",), ["bool"]),
        ("cat", {"axis": 0}, ("int64", "int64"), ["int64"]),
        ("cat", {"axis": 0}, ("int64", "bool"), []),
    ],
    ids=str,
)
def test_what_comes_out(kind: str, attrs: dict, operands: tuple[str, ...], results: list[str]) -> None:
    tensors = [Tensor(f"x{i}", dtype, (4,)) for i, dtype in enumerate(operands)]
    assert output_dtypes(Op("y", kind, tuple(t.name for t in tensors), attrs), tensors) == results


@pytest.mark.parametrize("kind", ["float.linear", "float.conv", "float.prelu"])
def test_arrays_fit_the_operands(kind: str) -> None:
    conv = {"stride": [1], "padding": [0], "dilation": [1], "output_padding": [0], "groups": 1, "transposed": False}
    weight = {"float.linear": (5, 4), "float.conv": (5, 4, 1), "float.prelu": (3,)}[kind]
    arrays = {"weight": np.ones(weight, np.float32)} | ({"bias": ONES} if kind != "float.prelu" else {})
    shape = (None, 4, 5) if kind == "float.linear" else (None, 5, 4) if kind == "float.conv" else (None, 4, 4)
    op = Op("y", kind, ("x",), conv if kind == "float.conv" else {}, arrays)
    with pytest.raises(ProgramError, match="bias has shape|does not fit"):
        check(program(op, shape, Tensor("x", "float32", (None, 4, 4))))
