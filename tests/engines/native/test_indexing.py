"""Steps of the native engine that move elements by indices, and products of floats, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engines.native.test_floats import Array, of_kind, run

from intact8.arithmetic.bit_packing import group_count, pack
from intact8.opset.op import Tensor

pytest.importorskip("intact8.engines.native._library")

from intact8.engines.native.engine import numpy_operations


def elements(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    x: Array = rng.integers(0, 2 if dtype == "bool" else 200, shape).astype(dtype)
    if dtype == "float32":
        x -= 100
        x.reshape(-1)[:: max(1, x.size // 3)] = rng.choice([np.nan, np.inf, -0.0])
    return x


def compare(kind: str, attrs: dict[str, Any], x: list[Array], y: Array, gives: str) -> None:
    p = of_kind(kind, attrs, x, Tensor("y", gives, (None, *y.shape[1:])))
    assert not numpy_operations(p)
    np.testing.assert_array_equal(*run(p, x), strict=True)


@pytest.mark.parametrize("seed", range(60))
def test_gather_scatter_and_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 7, 40], int(rng.integers(2, 5))))
    axis = int(rng.integers(1, len(shape)))
    other = (*shape[:axis], int(rng.choice([1, 5, 50])), *shape[axis + 1 :])
    index = rng.integers(-3, shape[axis] + 3, other)
    dtype = str(rng.choice(["float32", "int64", "bool"]))
    x = elements(rng, dtype, shape)
    compare("float.gather", {"axis": axis}, [x, index], index, dtype)
    for reduce in ("none", "sum", "prod", "amax", "amin")[: 1 if dtype == "bool" else 5]:
        source = elements(rng, dtype, other)
        compare("float.scatter", {"axis": axis, "reduce": reduce}, [x, index, source], x, dtype)
    numbers = elements(rng, str(rng.choice(["float32", "int64", "uint8"])), shape)
    for down in (False, True):
        compare("float.argsort", {"axis": axis, "descending": down}, [numbers], numbers, "int64")
    integers = elements(rng, str(rng.choice(["int64", "bool", "uint8"])), shape)
    compare("float.cumsum", {"axis": axis}, [integers], integers, "int64")
    for fn in ("sum", "prod", "argmax"):
        if fn != "argmax" or integers.dtype != bool:
            reduced = np.sum(integers, axis=axis)
            compare("float.reduce", {"fn": fn, "dims": [axis], "keepdim": False}, [integers], reduced, "int64")


@pytest.mark.parametrize("seed", range(20))
def test_products_of_floats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    leading = tuple(int(n) for n in rng.choice([1, 2, 3], int(rng.integers(0, 3))))
    rows, depth, columns = (int(n) for n in rng.choice([1, 2, 17, 70, 250], 3))
    shapes = (2, *leading, rows, depth), (2, *leading[:-1], 1, depth, columns) if leading else (2, depth, columns)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    p = of_kind("float.matmul", {}, [x, w], Tensor("y", "float32", (None, *leading, rows, columns)))
    assert not numpy_operations(p)
    got, wanted = run(p, [x, w])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [0, 5])
def test_decoded_weights(bits: int, group: int) -> None:
    rng, depth, columns = np.random.default_rng(bits), 37, 70
    codes = pack(rng.integers(-7, 8, (columns, depth)), bits)
    scale = rng.uniform(0.1, 1, (columns, group_count(depth, group))).astype(np.float32)
    x = rng.standard_normal((3, 5, depth)).astype(np.float32)
    attrs, arrays = {"bits": bits, "columns": depth, "group": group}, {"weight": codes, "scale": scale}
    p = of_kind("float.decoded_linear", attrs, [x], Tensor("y", "float32", (None, 5, columns)), arrays)
    assert not numpy_operations(p)
    got, wanted = run(p, [x])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
