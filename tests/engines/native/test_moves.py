"""Moves of the native engine: the values of the reference over many shapes, orders of dimensions and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from intact8.arithmetic.windows import max_pool, pool_size, sees_padding_only
from intact8.engines import get_engine
from intact8.engines.native.builder import Constants, PlanBuilder, Value, address, step_fields
from intact8.errors import EngineError
from intact8.opset import KINDS, Call
from intact8.opset.op import Array, Op, Tensor
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(get_engine("native").available() is not None, reason="the library was not built")

Rng = np.random.Generator
Attrs = dict[str, Any]
DTYPES = ("uint8", "float32", "int64", "bool")


def values(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.integers(0, 2 if dtype == "bool" else 256, shape).astype(dtype)


def shape_of(rng: Rng, low: int = 1, high: int = 5) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.choice([1, 2, 3, 4, 7, 17, 33], rng.integers(low, high + 1)))


def reshape(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    rest, sizes = int(np.prod(shape)), list[int]()
    while rest > 1:
        n = int(rng.choice([d for d in range(2, rest + 1) if rest % d == 0][:6]))
        sizes.append(n)
        rest //= n
    for _ in range(int(rng.integers(0, 3))):
        sizes.insert(int(rng.integers(0, len(sizes) + 1)), 1)
    return {"shape": sizes[:8] if len(sizes) <= 8 else [int(np.prod(shape))]}


def slice_(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    axis = int(rng.integers(0, len(shape)))
    start = int(rng.integers(0, shape[axis]))
    end = int(rng.integers(start + 1, shape[axis] + 1))
    return {"axis": axis, "start": start, "end": end, "step": int(rng.integers(1, 4))}


def pad(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    pads = [[int(v) for v in rng.integers(-n // 2 + 1 if n > 2 else 0, 4, 2)] for n in shape]
    return {"pads": pads, "value": int(rng.integers(0, 2))}


def roll(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    dims = [d for d in range(len(shape)) if rng.random() < 0.6] or [0]
    return {"dims": dims, "shifts": [int(rng.integers(-40, 41)) for _ in dims]}


def expand(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    more = [int(n) for n in rng.integers(1, 4, rng.integers(0, 3))]
    return {"shape": [*more, *(int(rng.integers(1, 6)) if n == 1 else n for n in shape)]}


def upsample(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    size = [int(rng.choice([n, 2 * n, 3 * n, n + 1, max(1, n // 2), 19])) for n in shape[2:]]
    return {"size": size, "mode": str(rng.choice(["nearest", "nearest-exact"])), "align_corners": False}


def cat(rng: Rng, shape: tuple[int, ...]) -> Attrs:
    return {"axis": int(rng.integers(0, len(shape)))}


MAKE: dict[str, Callable[[Rng, tuple[int, ...]], Attrs]] = {
    "reshape": reshape, "slice": slice_, "pad": pad, "roll": roll, "expand": expand, "upsample": upsample, "cat": cat,
}  # fmt: skip


def tensor(name: str, x: Array) -> Tensor:
    return Tensor(name, x.dtype.name, x.shape)


def differences(kind: str, attrs: Attrs, given: list[Array], dims: list[int]) -> int:
    """Elements that differ from the reference's, of an operation on permuted inputs and of the permuted result."""
    tensors: dict[str, Tensor] = {}
    ops, inputs, values = list[Op](), dict[str, Array](), list[Array]()
    inverse = [dims.index(i) for i in range(len(dims))]
    for i, x in enumerate(given):  # memory is in another order than the dimensions are
        inputs[f"x{i}"] = np.ascontiguousarray(x.transpose(inverse))
        tensors[f"x{i}"] = tensor(f"x{i}", inputs[f"x{i}"])
        values.append(x)
    for i, x in enumerate(given):
        tensors[f"p{i}"] = tensor(f"p{i}", x)
        ops.append(Op(f"p{i}", "permute", (f"x{i}",), {"dims": dims}))
    op = Op("y", kind, tuple(f"p{i}" for i in range(len(given))), attrs)
    operands = [tensors[f"p{i}"] for i in range(len(given))]
    wanted = np.asarray(KINDS[kind].shape(op, [t.shape for t in operands], tuple(attrs.get("shape", ()))))
    output = Tensor("y", given[0].dtype.name, tuple(int(n) for n in wanted))
    want = KINDS[kind].evaluate(Call(op, values, operands, output))
    assert want.shape == output.shape
    turned = list(reversed(range(want.ndim)))
    last = Op("z", "permute", ("y",), {"dims": turned})
    tensors |= {"y": output, "z": tensor("z", want.transpose(turned))}
    program = Program(tensors, (*ops, op, last), tuple(inputs), ("z",), structure=0)
    runner = get_engine("native").prepare(program, threads=1 + want.size % 2)
    found = runner.tensors(inputs)
    assert found["y"].dtype == want.dtype and found["y"].shape == want.shape
    (z,) = runner(inputs)
    return int((found["y"] != want).sum() + (z != want.transpose(turned)).sum())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MAKE)
def test_values_are_those_of_the_reference(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(len(kind) * 10 + len(dtype))
    for _ in range(25):
        shape = shape_of(rng, 3, 4) if kind == "upsample" else shape_of(rng)
        attrs, given = MAKE[kind](rng, shape), [values(rng, shape, dtype)]
        if kind == "cat":
            axis = attrs["axis"]
            sizes = [int(n) for n in rng.integers(1, 40, rng.integers(0, 4))]
            given += [values(rng, (*shape[:axis], n, *shape[axis + 1 :]), dtype) for n in sizes]
        dims = [int(d) for d in rng.permutation(len(shape))]
        assert differences(kind, attrs, given, dims) == 0, (kind, shape, attrs, dims)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_largest_elements(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        rank = int(rng.integers(1, 4))
        shape = (*shape_of(rng, 2, 2), *(int(n) for n in rng.integers(3, 12, rank)))
        kernel = [int(n) for n in rng.integers(1, 6, rank)]
        window = {
            "kernel": kernel,
            "stride": [int(n) for n in rng.integers(1, 4, rank)],
            "padding": [int(rng.integers(0, k // 2 + 1)) for k in kernel],
            "dilation": [int(n) for n in rng.integers(1, 4, rank)],
        }
        ceil = bool(rng.random() < 0.5)
        rows = list(zip(shape[2:], *window.values(), strict=True))
        if any(pool_size(*row, ceil) < 1 or sees_padding_only(*row, ceil) for row in rows):
            continue
        x = values(rng, shape, dtype) if dtype == "uint8" else rng.standard_normal(shape).astype(np.float32)
        attrs = {**window, "ceil_mode": ceil}
        assert max_pool(x, *window.values(), ceil).size
        assert differences("max_pool", attrs, [x], [int(d) for d in rng.permutation(x.ndim)]) == 0, (shape, attrs)


def test_a_nan_is_the_largest_element() -> None:
    x = np.array([[[1.0, np.nan, 3.0, 2.0, -np.inf, -np.inf]]], np.float32)
    attrs = {"kernel": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil_mode": False}
    op = Op("y", "max_pool", ("x",), attrs)
    program = Program({"x": tensor("x", x), "y": Tensor("y", "float32", (1, 1, 3))}, (op,), ("x",), ("y",), structure=0)
    (y,) = get_engine("native").prepare(program)({"x": x})
    np.testing.assert_array_equal(y, [[[np.nan, 3.0, -np.inf]]])


def test_dimensions_of_one_element_may_lie_anywhere() -> None:
    value = Value(0, (2, 1, 3), (1, 0, 2), "uint8")
    assert value.is_in((0, 1, 2)) and value.is_in((0, 2, 1)) and not value.is_in((2, 1, 0))


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("sizes", [((9, 1), (1, 40)), ((1, 9), (40, 1)), ((1, 1), (3, 5)), ((5, 4), (1, 1))])
def test_images_of_one_row_or_column_are_resized(sizes: tuple[tuple[int, int], tuple[int, int]], mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, *sizes[0])).astype(np.float32)
    op = Op("y", "upsample", ("x",), {"size": list(sizes[1]), "mode": mode, "align_corners": False})
    program = Program({"x": tensor("x", x), "y": Tensor("y", "float32", (1, 2, *sizes[1]))}, (op,), ("x",), ("y",))
    (wanted,), (found,) = (get_engine(name).prepare(program)({"x": x}) for name in ("reference", "native"))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_constant_number_keeps_its_shape() -> None:
    shapes = {"number": (), "one": (1,), "y": (1,)}
    tensors = {name: Tensor(name, "int64", shape) for name, shape in shapes.items()}
    ops = (
        Op("number", "constant", (), arrays={"value": np.array(7)}),
        Op("one", "reshape", ("number",), {"shape": [1]}),
        Op("y", "reshape", ("one",), {"shape": [1]}),
    )
    program = Program({**tensors, "x": Tensor("x", "int64", (None, 2))}, ops, ("x",), ("y",))
    given = {"x": np.zeros((1, 2), np.int64)}
    found = {name: get_engine(name).prepare(program).tensors(given) for name in ("reference", "native")}
    assert {name: t.shape for name, t in found["native"].items() if name in shapes} == shapes
    assert all(np.array_equal(found["native"][name], found["reference"][name]) for name in shapes)


LAYOUTS = [((4, 3), (3, 1)), ((4, 3), (1, 4)), ((4, 1, 3), (-3, 0, 1)), ((2, 3), (8, 2))]
OVERLAPS = [((4, 3), (2, 1)), ((4, 3), (0, 1)), ((4, 2, 2), (2, -2, 1)), ((9, 2), (1, 8))]


@pytest.mark.parametrize(("sizes", "strides", "sound"), [(*c, c in LAYOUTS) for c in LAYOUTS + OVERLAPS])
def test_elements_of_a_result_never_lie_upon_each_other(
    sizes: tuple[int, ...], strides: tuple[int, ...], sound: bool
) -> None:
    from intact8.engines.native import _library

    builder = PlanBuilder(Constants(_library))
    x, y = (builder.value((1000,), "uint8", storage=s) for s in (2, 3))
    fields = {name: 0 for _, name in step_fields()["copy"][1]} | {"size": 1, "rank": len(sizes), "offset_y": 100}
    fields |= {f"d{i}": n for i, n in enumerate(sizes)} | {f"y{i}": n for i, n in enumerate(strides)}
    builder.step("copy", **{**fields, "x": x, "y": y})
    words = builder.words()
    with nullcontext() if sound else pytest.raises(EngineError, match="upon each other"):
        _library.open_plan(builder.constants.model, address(words), words.size)
