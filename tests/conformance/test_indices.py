"""Every engine gives the integers of operations on indices: what they move, order, count and choose, ties included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engines.native.test_floats import Array, of_kind
from tests.engines.native.test_indexing import elements

from intact8.engines import get_runner
from intact8.errors import EngineError
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
        run = get_runner(p, engine)
    except EngineError:
        return 0
    np.testing.assert_array_equal(run(feed)[0], wanted, strict=True, err_msg=f"{kind} {attrs} {[a.shape for a in x]}")
    return 1


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 80))])
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
