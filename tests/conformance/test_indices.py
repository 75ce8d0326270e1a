"""Every engine gives the integers of operations on indices: what they move, order, count and choose, ties included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engines.native.test_floats import Array, of_kind
from tests.engines.native.test_indexing import elements

from intact8.engines import get_runner
from intact8.errors import EngineError, InputError
from intact8.opset.op import Tensor
from intact8.program.check import check as check_program

from .test_ops import ENGINES

SIZES = [1, 2, 3, 16, 17, 40, 65, 300]
"""OpenVINO, for one, selects the largest of more than 16 elements in another way."""


def compare(engine: str, kind: str, attrs: dict[str, Any], x: list[Array], shape: tuple[int, ...], gives: str) -> int:
    """Compare an engine with the reference; return whether it takes the operation."""
    p = of_kind(kind, attrs, x, Tensor("y", gives, (None, *shape[1:])))
    check_program(p)
    feed = {name: array.copy() for name, array in zip(p.inputs, x, strict=True)}
    (wanted,) = get_runner(p, "reference")(feed)
    try:
        (got,) = get_runner(p, engine)(feed)
    except (EngineError, InputError):
        return 0
    np.testing.assert_array_equal(got, wanted, strict=True, err_msg=f"{kind} {attrs} {[a.shape for a in x]}")
    return 1


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 80))])
@pytest.mark.parametrize("engine", ENGINES)
def test_indices(engine: str, seed: int) -> None:
    rng, taken = np.random.default_rng(seed), 0
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5], int(rng.integers(2, 5))))
    axis = int(rng.integers(1, len(shape)))
    shape = *shape[:axis], int(rng.choice(SIZES)), *shape[axis + 1 :]
    other = *shape[:axis], int(rng.choice(SIZES)), *shape[axis + 1 :]
    index = rng.integers(0, shape[axis], other)
    for dtype in ("float32", "int64", "bool"):
        x = elements(rng, dtype, shape)
        taken += compare(engine, "float.gather", {"axis": axis}, [x, index], other, dtype)
        for reduce in ("none", "sum", "prod", "amax", "amin")[: 1 if dtype == "bool" else 5]:
            source = elements(rng, dtype, other)
            taken += compare(
                engine, "float.scatter", {"axis": axis, "reduce": reduce}, [x, index, source], shape, dtype
            )
    few = rng.integers(-2, 3, shape)  # many are equal
    for dtype in ("float32", "int64", "uint8"):
        x = np.abs(few).astype(dtype) if dtype == "uint8" else few.astype(dtype)
        reduced = *shape[:axis], *shape[axis + 1 :]
        for down in (False, True):
            taken += compare(engine, "float.argsort", {"axis": axis, "descending": down}, [x], shape, "int64")
        attrs = {"fn": "argmax", "dims": [axis], "keepdim": False}
        taken += compare(engine, "float.reduce", attrs, [x], reduced, "int64")
        for fn in ("sum",) if dtype == "uint8" else ("sum", "amax", "amin"):
            gives = "float32" if dtype == "float32" else "int64"
            taken += compare(engine, "float.reduce", {**attrs, "fn": fn}, [x], reduced, gives)
        if dtype != "float32":
            taken += compare(engine, "float.cumsum", {"axis": axis}, [x], shape, "int64")
    assert taken >= 20


LARGE = [0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**24 + 1, 2**32, -(2**40), 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
"""Beyond what float32, int32 and float64 hold; their sums and products are modulo 2⁶⁴."""


@pytest.mark.parametrize("count", [pytest.param(6, marks=pytest.mark.long), len(LARGE)])
@pytest.mark.parametrize("engine", ENGINES)
def test_large_integers(engine: str, count: int) -> None:
    rng, taken = np.random.default_rng(count), 0
    for size in (3, 17):
        shape = 2, size
        x, y = rng.choice(np.array(LARGE[:count]), (2, *shape))
        for kind in ("add", "sub", "mul", "maximum", "minimum"):
            taken += compare(engine, f"float.{kind}", {}, [x, y], shape, "int64")
        for rounding, divisor in ((r, d) for r in ("floor", "trunc") for d in (y, rng.integers(-9, 9, shape))):
            taken += compare(engine, "float.integer_divide", {"rounding": rounding}, [x, divisor], shape, "int64")
        for fn in ("sum", "prod", "amax", "amin", "argmax"):
            attrs = {"fn": fn, "dims": [1], "keepdim": size == 17}
            taken += compare(engine, "float.reduce", attrs, [x], (2, 1) if size == 17 else (2,), "int64")
        mask = x > 0
        for number in (2**53, 2**53 + 1, -(2**62) - 1):
            taken += compare(engine, "float.affine_scalar", {"mul": number, "add": 1}, [x], shape, "int64")
            taken += compare(engine, "float.affine_scalar", {"mul": 1, "add": number}, [x], shape, "int64")
            taken += compare(engine, "float.clamp", {"min": number, "max": None}, [x], shape, "int64")
            taken += compare(engine, "float.masked_fill", {"value": number}, [x, mask], shape, "int64")
        taken += compare(engine, "float.argsort", {"axis": 1, "descending": True}, [x], shape, "int64")
        taken += compare(engine, "float.cumsum", {"axis": 1}, [x], shape, "int64")
        for fn in ("eq", "ne", "lt", "le", "gt", "ge"):
            for number in (0.5, 2.0**24, 2.0**31, 2**53, 2**53 + 1, -(2**63) + 1):
                taken += compare(engine, "float.compare", {"fn": fn, "value": number}, [x], shape, "bool")
    assert taken or engine == "openvino"  # which takes no integers that nothing bounds
