"""Float islands of the native engine against the reference: within units in the last place, NaN and infinity too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.engines.native.random_convolutions import random_conv

from intact8.arithmetic.unary_functions import UNARY, unary64
from intact8.engines import get_engine
from intact8.engines.native.engine import numpy_operations
from intact8.opset import output_shape
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

pytest.importorskip("intact8.engines.native._library")

Array = npt.NDArray[Any]

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38, 1e-8, 88.8, -104.0, -745.0, 1e5, -1e5], np.float32
)
PARAMETERS = {"exponent": 2.5, "threshold": 0.3, "value": -1.5}


def program(ops: list[Op], tensors: dict[str, Tensor], inputs: tuple[str, ...]) -> Program:
    return Program(tensors, tuple(ops), inputs, (ops[-1].name,), structure=0)


def of_kind(kind: str, attrs: dict[str, Any], x: list[Array], y: Tensor, arrays: Any = None) -> Program:
    """Return a program of one operation."""
    names = tuple(f"x{i}" for i in range(len(x)))
    described = {n: Tensor(n, a.dtype.name, (None, *a.shape[1:])) for n, a in zip(names, x, strict=True)}
    return program([Op("y", kind, names, attrs, arrays or {})], {**described, "y": y}, names)


def layer(kind: str, attrs: dict[str, Any], x: Array, arrays: dict[str, Array], dtype: str = "float32") -> Program:
    """Return a program of one layer, whose result has the shape that follows."""
    read = Tensor("x0", "float32", (None, *x.shape[1:]))
    y = Tensor("y", dtype, output_shape(Op("y", kind, ("x0",), attrs, arrays), [read], ()))
    return of_kind(kind, attrs, [x], y, arrays)


def run(p: Program, x: list[Array]) -> tuple[Array, Array]:
    """Return what the engine and what the reference computes."""
    given = dict(zip(p.inputs, x, strict=True))
    runner = get_engine("native").prepare(p, threads=1)
    with np.errstate(all="ignore"):
        return runner(given)[0], get_engine("reference").prepare(p)(given)[0]


def units(got: Array, wanted: Array) -> float:
    """Return the largest difference in units in the last place; infinite where NaN or infinity is not the same."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    got, wanted = got[finite].astype(np.float64), wanted[finite].astype(np.float64)
    return float(np.max(np.abs(got - wanted) / np.spacing(np.abs(wanted).astype(np.float32)), initial=0))


@pytest.mark.parametrize("fn", UNARY)
def test_functions(fn: str) -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-6, 2.2, 20_000)
    x = np.concatenate([rng.standard_normal(20_000) * scales, SPECIAL]).astype(np.float32)[None]
    for attrs in ({}, {"approximate": "tanh"}) if fn == "gelu" else ({},):
        own = {name: PARAMETERS.get(name, default) for name, default in UNARY[fn].attrs.items()} | attrs
        y = Tensor("y", "float32", (None, x.shape[1]))
        got, wanted = run(of_kind("float.unary", {"fn": fn, **own}, [x], y), [x])
        exact = unary64(fn, own, x)
        with np.errstate(invalid="ignore"):
            small = np.abs(got - exact) <= 1e-12 * np.abs(x)  # where terms cancel, the reference is off by as much
        assert units(np.where(small, wanted, got), wanted) <= 1
        assert np.mean((got != wanted) & ~small & np.isfinite(exact)) < 1e-3


def elementwise(rng: np.random.Generator) -> tuple[Program, list[Array]]:
    """Return a program of elementwise operations that read each other, broadcast, and end in integers or floats."""
    rank = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 17, 40, 300 // rank], rank))
    inputs: dict[str, Array] = {}
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []

    def given(x: Array, **grid: Any) -> str:
        name = f"x{len(inputs)}"
        inputs[name], tensors[name] = x, Tensor(name, x.dtype.name, (None, *x.shape[1:]), **grid)
        return name

    def add(kind: str, names: tuple[str, ...], attrs: Any = None, dtype: str = "float32", **more: Any) -> str:
        name = f"y{len(ops)}"
        own = [tensors[n].shape for n in names]
        out = np.broadcast_shapes(*[(shape[0], *s[1:]) for s in own])
        tensors[name] = Tensor(name, dtype, (None, *out[1:]), *more.pop("grid", ()))
        ops.append(Op(name, kind, names, attrs or {}, more.get("arrays", {})))
        return name

    def float_input() -> str:
        own = tuple(n if i == 0 or rng.random() < 0.7 else 1 for i, n in enumerate(shape))
        if rng.random() < 0.4:
            q = given(rng.integers(0, 256, own).astype(np.uint8), scale=0.0625, zero_point=int(rng.integers(0, 256)))
            return add("dequantize", (q,))
        x = rng.standard_normal(own).astype(np.float32)
        x.reshape(-1)[:1] = rng.choice([*SPECIAL, 1.0])
        return given(x)

    known = [float_input(), float_input()]
    for _ in range(int(rng.integers(1, 9))):
        a, b = (str(rng.choice(known)) for _ in range(2))
        if rng.random() < 0.2:
            known.append(b := float_input())
        kind = str(rng.choice(["add", "sub", "mul", "div", "maximum", "minimum", "relu", "clamp", "affine", "fill"]))
        if kind == "fill":
            mask = add("float.compare", (b,), {"fn": "gt", "value": 0.25}, "bool")
            known.append(add("float.masked_fill", (a, mask), {"value": -1.5}))
        elif kind == "affine":
            known.append(add("float.affine_scalar", (a,), {"mul": 0.7, "add": -0.3}))
        elif kind in ("relu", "clamp"):
            known.append(add(f"float.{kind}", (a,), {"min": -0.5, "max": None} if kind == "clamp" else {}))
        else:
            known.append(add(f"float.{kind}", (a, b)))
    outputs = [known[-1]]
    if rng.random() < 0.7:
        outputs.append(add("quantize", (known[-1],), {"lo": 3, "hi": 250}, "uint8", grid=(0.05, 100)))
    if rng.random() < 0.3:
        outputs.append(str(rng.choice(known)))
    return Program(tensors, tuple(ops), tuple(inputs), tuple(dict.fromkeys(outputs)), structure=0), [*inputs.values()]


@pytest.mark.parametrize("seed", range(200))
def test_chains_give_the_bits_of_the_reference(seed: int) -> None:
    p, x = elementwise(np.random.default_rng(seed))
    given = dict(zip(p.inputs, x, strict=True))
    runner = get_engine("native").prepare(p, threads=1)
    with np.errstate(all="ignore"):
        wanted = get_engine("reference").prepare(p)(given)
    for a, b in zip(runner(given), wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def whole(rng: np.random.Generator) -> tuple[Program, dict[str, Array]]:
    """Return a program of operations on indices and truth values, as masks and positions are computed."""
    shape = tuple(int(n) for n in rng.choice([1, 2, 5, 300], 3))
    inputs: dict[str, Array] = {}
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for i, dtype in enumerate(("int64", "int64", "bool", "uint8", "float32")):
        own = tuple(n if k == 0 or rng.random() < 0.7 else 1 for k, n in enumerate(shape))
        high = 2 if dtype == "bool" else int(rng.choice([256, 2**31])) if dtype == "int64" else 256
        inputs[f"x{i}"] = x = (rng.integers(0, high, own) - (high // 2) * (dtype in ("int64", "float32"))).astype(dtype)
        tensors[f"x{i}"] = Tensor(f"x{i}", dtype, (None, *x.shape[1:]))

    def add(kind: str, names: tuple[str, ...], gives: str, **attrs: Any) -> str:
        name, own = f"y{len(ops)}", [tensors[n].shape for n in names]
        out = np.broadcast_shapes(*[(shape[0], *s[1:]) for s in own])
        tensors[name] = Tensor(name, gives, (None, *out[1:]))
        ops.append(Op(name, f"float.{kind}", names, attrs))
        return name

    known, masks = ["x0", "x1"], ["x2"]
    for _ in range(int(rng.integers(1, 9))):
        a, b = (str(rng.choice(known)) for _ in range(2))
        kind = str(
            rng.choice(["add", "sub", "mul", "maximum", "minimum", "affine", "clamp", "fill", "compare", "cast"])
        )
        if kind == "affine":
            known.append(add("affine_scalar", (a,), "int64", mul=int(rng.integers(-3, 4)), add=int(rng.integers(99))))
        elif kind == "clamp":
            known.append(add("clamp", (a,), "int64", min=int(rng.integers(-9, 9)), max=rng.choice([None, 100])))
        elif kind == "fill":
            known.append(add("masked_fill", (a, str(rng.choice(masks))), "int64", value=-(2**40)))
        elif kind == "compare":
            fn, source = str(rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])), str(rng.choice([*known, *masks, "x3"]))
            masks.append(add("compare", (source,), "bool", fn=fn, value=rng.choice([0, 1, 7, 0.5])))
        elif kind == "cast":
            known.append(add("cast", (str(rng.choice([*masks, "x3", "x4"])),), "int64", dtype="int64"))
            masks.append(add("cast", (str(rng.choice([*known, "x3"])),), "bool", dtype="bool"))
        else:
            other = b if kind == "sub" or rng.random() < 0.7 else str(rng.choice(["x2", "x3"]))
            known.append(add(kind, (a, other), "int64"))
    outputs = dict.fromkeys([name for name in (known[-1], masks[-1], str(rng.choice(known))) if name[0] == "y"])
    return Program(tensors, tuple(ops), tuple(inputs), tuple(outputs) or (ops[-1].name,), structure=0), inputs


@pytest.mark.parametrize("seed", range(100))
def test_integers_are_computed_exactly(seed: int) -> None:
    p, given = whole(np.random.default_rng(seed))
    runner = get_engine("native").prepare(p, threads=1)
    assert not numpy_operations(p)
    for a, b in zip(runner(given), get_engine("reference").prepare(p)(given), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_chains_are_joined() -> None:
    """Seven operations between integers are one step."""
    names = ("x", "f", "g", "h", "s", "m", "y")
    t = {n: Tensor(n, "float32", (None, 40)) for n in names} | {
        n: Tensor(n, "uint8", (None, 40), 0.05, 100) for n in ("x", "y")
    }
    ops = [
        Op("f", "dequantize", ("x",), {}),
        Op("g", "float.unary", ("f",), {"fn": "sigmoid"}),
        Op("h", "float.affine_scalar", ("g",), {"mul": 2.0, "add": 1.0}),
        Op("s", "float.add", ("h", "f"), {}),
        Op("m", "float.mul", ("s", "h"), {}),
        Op("y", "quantize", ("m",), {"lo": 0, "hi": 255}),
    ]
    p, x = program(ops, t, ("x",)), np.arange(80, dtype=np.uint8).reshape(2, 40)
    runner = get_engine("native").prepare(p, threads=1)
    got, wanted = run(p, [x])
    np.testing.assert_array_equal(got, wanted)
    times = runner.times({"x": x})
    assert [n for n, seconds in times.items() if seconds > 0] == ["y"]


POOL = {"kernel": [3, 2], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True}
INSIDE = {"kernel": [2, 3, 2], "stride": [2, 1, 2], "padding": [0, 0, 0], "ceil_mode": False}
CONV = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 1, "transposed": False}
CONV |= {"output_padding": [0, 0]}
POINT = {"stride": [1], "padding": [0], "dilation": [1], "groups": 1, "transposed": False, "output_padding": [0]}
LAYERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    "layer_norm": ("float.layer_norm", {"shape": [37], "eps": 1e-5}, (5, 37), {"weight": (37,), "bias": (37,)}),
    "layer_norm 2": ("float.layer_norm", {"shape": [3, 40], "eps": 1e-5}, (2, 3, 40), {}),
    "rms_norm": ("float.rms_norm", {"shape": [64], "eps": 1e-6}, (4, 64), {"weight": (64,)}),
    "group_norm": ("float.group_norm", {"groups": 3, "eps": 1e-5}, (6, 5, 7), {"weight": (6,), "bias": (6,)}),
    "softmax": ("float.softmax", {"axis": -1}, (3, 50), {}),
    "softmax 1": ("float.softmax", {"axis": 1}, (3, 5, 4), {}),
    "log_softmax": ("float.log_softmax", {"axis": 2}, (3, 50), {}),
    "mean": ("float.mean", {"dims": [2, 3], "keepdim": True}, (7, 4, 9), {}),
    "mean 1": ("float.mean", {"dims": [1], "keepdim": False}, (7, 200), {}),
    "mean 1 3": ("float.mean", {"dims": [1, 3], "keepdim": False}, (7, 4, 9), {}),
    "sum": ("float.reduce", {"fn": "sum", "dims": [], "keepdim": False}, (7, 4), {}),
    "amax": ("float.reduce", {"fn": "amax", "dims": [1], "keepdim": True}, (7, 300), {}),
    "amin": ("float.reduce", {"fn": "amin", "dims": [2], "keepdim": False}, (7, 30), {}),
    "prod sum": ("float.reduce", {"fn": "prod", "dims": [1], "keepdim": False}, (5, 30), {}),
    "argmax": ("float.reduce", {"fn": "argmax", "dims": [1], "keepdim": True}, (9, 30), {}),
    "argmax of all": ("float.reduce", {"fn": "argmax", "dims": [], "keepdim": False}, (9, 30), {}),
    "cumsum": ("float.cumsum", {"axis": 1}, (9, 30), {}),
    "argsort": ("float.argsort", {"axis": 2, "descending": False}, (9, 30), {}),
    "argsort down": ("float.argsort", {"axis": 1, "descending": True}, (9, 3), {}),
    "linear": ("float.linear", {}, (5, 37), {"weight": (70, 37), "bias": (70,)}),
    "linear without bias": ("float.linear", {}, (300, 3), {"weight": (5, 3)}),
    "avg_pool": ("float.avg_pool", POOL | {"count_include_pad": False}, (5, 9, 7), {}),
    "avg_pool with padding": ("float.avg_pool", POOL | {"count_include_pad": True}, (5, 9, 7), {}),
    "avg_pool 3": ("float.avg_pool", INSIDE | {"count_include_pad": True}, (5, 4, 6, 4), {}),
    "adaptive_avg_pool": ("float.adaptive_avg_pool", {"output_size": [1, 1]}, (20, 9, 7), {}),
    "adaptive_avg_pool 3": ("float.adaptive_avg_pool", {"output_size": [3, 2]}, (5, 9, 8), {}),
    "conv": ("float.conv", CONV, (6, 9, 8), {"weight": (20, 6, 3, 2), "bias": (20,)}),
    "conv of groups": ("float.conv", CONV | {"groups": 3}, (6, 9, 8), {"weight": (9, 2, 3, 2)}),
    "conv 1": ("float.conv", POINT, (6, 300), {"weight": (20, 6, 1), "bias": (20,)}),
    "conv transposed": (
        "float.conv",
        CONV | {"transposed": True, "groups": 2, "output_padding": [1, 0]},
        (6, 5, 8),
        {"weight": (6, 5, 3, 2), "bias": (10,)},
    ),
    "prelu": ("float.prelu", {}, (6, 5, 7), {"weight": (6,)}),
    "scale_shift": ("float.scale_shift", {}, (6, 5, 7), {"weight": (6,), "bias": (6,)}),
    "bilinear": ("upsample", {"mode": "bilinear", "size": [11, 3], "align_corners": False}, (5, 7, 6), {}),
    "bilinear corners": ("upsample", {"mode": "bilinear", "size": [11, 6], "align_corners": True}, (5, 7, 6), {}),
    "bicubic": ("upsample", {"mode": "bicubic", "size": [11, 3], "align_corners": False}, (5, 7, 6), {}),
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, special: bool) -> None:
    kind, attrs, shape, sizes = LAYERS[name]
    rng = np.random.default_rng(len(name))
    x = rng.standard_normal((3, *shape)).astype(np.float32) * 3
    if special:
        x.reshape(-1)[rng.permutation(x.size)[:2]] = np.nan, rng.choice([np.inf, -np.inf])
    arrays = {role: rng.standard_normal(size).astype(np.float32) for role, size in sizes.items()}
    made = layer(kind, attrs, x, arrays, "int64" if "arg" in name else "float32")
    assert not numpy_operations(made)
    got, wanted = run(made, [x])
    if any(word in name for word in ("linear", "conv", "pool")):  # sums in another order
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    elif name.startswith(("arg", "bi", "cumsum")):
        np.testing.assert_array_equal(got, wanted)
    elif (
        "softmax" in kind or "sum" in name
    ):  # the reference adds float32 numbers, and its exponential is off by 2 units
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(got[~finite], wanted[~finite])
        np.testing.assert_allclose(got[finite], wanted[finite], rtol=2e-6, atol=2e-6)
    else:
        assert units(got, wanted) <= 1


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(seed: int) -> None:
    """Every sum is an integer below 2^24, so that no float32 is rounded: all digits are the reference's."""
    rng = np.random.default_rng(seed)
    c = random_conv(rng)
    x = (c.x % 16).astype(np.float32) - 7
    arrays = {"weight": (c.weight // 16).astype(np.float32)}
    if rng.random() < 0.5:
        arrays["bias"] = c.bias.astype(np.float32)
    attrs = {"stride": c.stride, "padding": c.pad, "dilation": c.dilation, "output_padding": c.output_pad}
    attrs |= {"groups": c.groups, "transposed": c.transposed}
    made = layer("float.conv", attrs, x, arrays)
    assert not numpy_operations(made)
    got, wanted = run(made, [x])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("stride", "in_numpy"), [(32, False), (33, True)])
def test_transposed_convolutions_of_large_strides(stride: int, in_numpy: bool) -> None:
    """They are not made of more steps than can be prepared in a moment."""
    rng = np.random.default_rng(0)
    x = rng.integers(-7, 8, (1, 2, 2, 2)).astype(np.float32)
    arrays = {"weight": rng.integers(-7, 8, (2, 3, 5, 5)).astype(np.float32)}
    attrs = CONV | {"stride": [stride, stride], "padding": [0, 0], "dilation": [1, 1], "transposed": True}
    attrs |= {"output_padding": [stride - 5, stride - 5]}
    made = layer("float.conv", attrs, x, arrays)
    assert bool(numpy_operations(made)) == in_numpy
    np.testing.assert_array_equal(*run(made, [x]))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 1, 3, 2), (0, 3, 1, 2)])
@pytest.mark.parametrize("dims", [[1], [2], [2, 3], [1, 3], [3]])
def test_permuted_inputs(order: tuple[int, ...], dims: list[int]) -> None:
    """A permutation moves nothing: what follows reads other orders of dimensions in memory."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    shape = tuple(x.shape[d] for d in order)
    t = {"x": Tensor("x", "float32", (None, *x.shape[1:])), "p": Tensor("p", "float32", (None, *shape[1:]))}
    for keep in (False, True):
        own = tuple(1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)
        ops = [
            Op("p", "permute", ("x",), {"dims": list(order)}),
            Op("m", "float.mean", ("p",), {"dims": dims, "keepdim": keep}),
            Op("s", "float.softmax", ("p",), {"axis": dims[0]}),
        ]
        made = t | {"m": Tensor("m", "float32", (None, *own[1:])), "s": Tensor("s", "float32", (None, *shape[1:]))}
        p = Program(made, tuple(ops), ("x",), ("m", "s"), structure=0)
        got = get_engine("native").prepare(p, threads=1)({"x": x})
        wanted = get_engine("reference").prepare(p)({"x": x})
        assert units(got[0], wanted[0]) <= 1
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-6)
