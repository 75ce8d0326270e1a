"""Convolutions with what follows them in one step: the integers of the separate operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact8.engines import get_engine
from intact8.engines.native.fuse import chains, paddings
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(get_engine("native").available() is not None, reason="the library was not built")

GEOMETRY = ("dense", "pointwise", "depthwise", "grouped", "linear", "few outputs")


def tensor(name, shape, rng):
    return Tensor(name, "uint8", shape, 0.1, int(rng.integers(0, 256)))


def clamp(rng):
    low, high = sorted(rng.integers(0, 256, 2).tolist())
    return {"lo": low, "hi": high} if rng.random() < 0.5 else {"lo": 0, "hi": 255}


def convolution(rng, geometry, x, residual, slope):
    """A random convolution of ``x``, with a residual or a slope in its rounding if that is asked for."""
    channels = x.shape[-1] if geometry == "linear" else x.shape[1]
    outputs = channels if geometry == "depthwise" else int(rng.choice([1, 8, 16, 24, 32, 48, 64, 72, 144, 200]))
    groups = {"depthwise": channels, "grouped": int(rng.choice([d for d in (2, 3, 4) if channels % d == 0] or [1]))}
    g = groups.get(geometry, 1)
    outputs = int(rng.integers(1, 9)) if geometry == "few outputs" else outputs
    outputs = -(-outputs // g) * g
    kernel = (1, 1) if geometry == "pointwise" else tuple(rng.choice([[5, 5], [3, 3], rng.integers(1, 6, 2)]).tolist())
    weight_shape = (outputs, channels // g, *(() if geometry == "linear" else kernel))
    weight = rng.integers(-127, 128, weight_shape).astype(np.int8)
    products = weight.size // outputs
    b = 1023 if residual else rng.choice([511, 1023, 2047], outputs)
    a = np.maximum(1, (rng.uniform(0.2, 2, outputs) * b * 100 / (74 * 74 * products**0.5)).astype(np.int64))
    arrays = {
        "weight": weight,
        "bias": rng.integers(-2000, 2000, outputs).astype(np.int32),
        "a": a.astype(np.int32),
        "b": np.broadcast_to(b, outputs).astype(np.int32).copy(),
    }
    attrs = {"residual_a": int(rng.integers(300, 1500)) if residual else 0, **clamp(rng)}
    if slope:
        arrays |= {"a_neg": (-a if rng.random() < 0.2 else a // 3 + 1).astype(np.int32), "b_neg": arrays["b"].copy()}
    if geometry == "linear":
        return Op("y", "linear", (x.name, *residual), attrs, arrays), (*x.shape[:-1], outputs)
    strides, padding = rng.integers(1, 3, 2).tolist(), [int(rng.integers(0, k)) for k in kernel]
    attrs |= {"stride": strides, "padding": padding, "dilation": [1, 1], "output_padding": [0, 0]}
    attrs |= {"groups": g, "transposed": False}
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, kernel, strides, strict=True)]
    return Op("y", "conv", (x.name, *residual), attrs, arrays), (x.shape[0], outputs, *size)


def draw(rng, geometry, joint, slope, add, table):
    """A program of one convolution and what is asked for behind it."""
    channels = int(rng.choice([1, 3, 8, 16, 20, 32, 64, 96, 100]))
    images = (int(rng.integers(1, 3)), channels, *rng.integers(6, 28, 2).tolist())
    x = tensor("x", (int(rng.integers(1, 60)), channels) if geometry == "linear" else images, rng)
    y, shape = convolution(rng, geometry, x, ("r",) if joint else (), slope)
    tensors, ops, last = {"x": x, "y": tensor("y", shape, rng)}, [y], "y"
    if joint or add:
        tensors["r"] = tensor("r", shape, rng)
    if add:
        inputs = (last, "r") if rng.random() < 0.5 else ("r", last)
        ops.append(Op("s", "add", inputs, {"a": rng.integers(-900, 900, 2).tolist(), "b": 1023, **clamp(rng)}, {}))
        last = "s"
        tensors[last] = tensor(last, shape, rng)
    if table:
        entries = {"table": rng.integers(0, 256, 256).astype(np.uint8)}
        ops.append(Op("t", "table", (last,), {"fn": "silu"}, entries))
        last = "t"
        tensors[last] = tensor(last, shape, rng)
    return Program(tensors, tuple(ops), tuple(n for n in ("x", "r") if n in tensors), (last,))


@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize("seed", range(30))
def test_one_step_gives_the_integers_of_the_separate_operations(geometry, seed):
    rng = np.random.default_rng([seed, GEOMETRY.index(geometry)])
    joint, slope = seed % 5 == 3, seed % 5 == 4
    add, table = not joint and rng.random() < 0.6, rng.random() < 0.5
    program = draw(rng, geometry, joint, slope, add, table)
    inputs = {n: rng.integers(0, 256, program.tensors[n].shape).astype(np.uint8) for n in program.inputs}
    (expected,) = get_engine("reference").prepare(program)(inputs)
    for threads in (1, 2):
        runner = get_engine("native").prepare(program, threads=threads)
        (got,) = runner(inputs)
        assert np.array_equal(got, expected)
        assert np.array_equal(runner.tensors(inputs)[program.outputs[0]], expected)


def test_what_others_read_stays_a_step():
    rng = np.random.default_rng(0)
    program = draw(rng, "dense", joint=False, slope=False, add=True, table=True)
    assert [op.name for op in chains(program, program.outputs)["t"]] == ["y", "s", "t"]
    assert [op.name for op in chains(program, ("t", "y"))] == []
    assert [op.name for op in chains(program, ("t", "s"))["s"]] == ["y", "s"]


def behind_a_padding(program, rng, value=None):
    """The program with a padding in front of its convolution: by the zero point, unless another value is given."""
    x = program.tensors["x"]
    pads = [[0, 0], [0, 0], *rng.integers(0, 3, (2, 2)).tolist()]
    sizes = [n - a - b for n, (a, b) in zip(x.shape, pads, strict=True)]
    pad = Op("x", "pad", ("image",), {"pads": pads, "value": x.zero_point if value is None else value}, {})
    image = Tensor("image", "uint8", (None, *sizes[1:]), x.scale, x.zero_point)
    tensors = {n: replace(t, shape=(None, *t.shape[1:])) for n, t in program.tensors.items()} | {"image": image}
    inputs = tuple("image" if n == "x" else n for n in program.inputs)
    return Program(tensors, (pad, *program.ops), inputs, program.outputs), sizes[0]


@pytest.mark.parametrize("geometry", GEOMETRY[:4])
@pytest.mark.parametrize("seed", range(20))
def test_convolutions_read_through_a_padding(geometry, seed):
    rng = np.random.default_rng([seed, GEOMETRY.index(geometry)])
    program, batch = behind_a_padding(draw(rng, geometry, seed % 5 == 3, seed % 5 == 4, seed % 3 == 0, seed % 2), rng)
    assert set(paddings(program, program.outputs)) == {"y"}
    inputs = {n: rng.integers(0, 256, (batch, *program.tensors[n].shape[1:])).astype(np.uint8) for n in program.inputs}
    (expected,) = get_engine("reference").prepare(program)(inputs)
    runner = get_engine("native").prepare(program, threads=1)
    assert np.array_equal(runner(inputs)[0], expected)
    assert np.array_equal(runner.tensors(inputs)[program.outputs[0]], expected)


def test_paddings_that_others_read_or_of_other_values_stay_steps():
    rng = np.random.default_rng(0)
    program, _ = behind_a_padding(draw(rng, "dense", joint=False, slope=False, add=False, table=False), rng)
    assert not paddings(program, ("y", "x"))
    other, batch = behind_a_padding(draw(rng, "dense", joint=False, slope=False, add=False, table=False), rng, 44)
    assert not paddings(other, ("y",))
    x = {"image": rng.integers(0, 256, (batch, *other.tensors["image"].shape[1:])).astype(np.uint8)}
    expected, got = (get_engine(name).prepare(other)(x)[0] for name in ("reference", "native"))
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(("kernel", "stride"), [((5,), (2,)), ((2, 3, 3), (1, 2, 1)), ((3, 1, 4), (2, 3, 2))], ids=str)
def test_few_outputs_of_windows_side_by_side_in_any_number_of_dimensions(kernel, stride):
    rng, rank = np.random.default_rng(0), len(kernel)
    attrs = {"stride": list(stride), "padding": [0] * rank, "dilation": [1] * rank, "output_padding": [0] * rank}
    attrs |= {"groups": 1, "transposed": False, "residual_a": 0, "lo": 0, "hi": 255}
    arrays = {
        "weight": rng.integers(-60, 61, (2, 3, *kernel)).astype(np.int8),
        "bias": rng.integers(-500, 500, 2).astype(np.int32),
        "a": np.full(2, 9, np.int32),
        "b": np.full(2, 1001, np.int32),
    }
    out = tuple(12 for _ in kernel)
    size = tuple((n - 1) * s + k for n, s, k in zip(out, stride, kernel, strict=True))
    tensors = {"x": tensor("x", (None, 3, *size), rng), "y": tensor("y", (None, 2, *out), rng)}
    program = Program(tensors, (Op("y", "conv", ("x",), attrs, arrays),), ("x",), ("y",))
    x = {"x": rng.integers(0, 256, (2, 3, *size)).astype(np.uint8)}
    expected, got = (get_engine(name).prepare(program)(x)[0] for name in ("reference", "native"))
    assert np.array_equal(got, expected) and len(np.unique(got)) > 20


@pytest.mark.parametrize("scale", [0.02, 1e-3, 1e-5, 3.0])
@pytest.mark.parametrize("spread", [1e-4, 3e-3, 1.0])
@pytest.mark.parametrize("fn", ["gelu", "gelu_tanh", "silu", "hardswish"])
@pytest.mark.parametrize("divided", [False, True])
def test_bytes_of_functions_are_those_of_their_floats(scale, spread, fn, divided):
    """An approximation decides most bytes where nobody needs the floats; where somebody does, they are computed."""
    rng = np.random.default_rng([int(1 / scale), int(1 / spread), len(fn)])
    x = rng.integers(0, 256, (64, 40)).astype(np.uint8)
    weight = rng.integers(-127, 128, (200, 40)).astype(np.int8)
    bias = rng.choice([0.0, 0.5, -3.0, 40.0, -3e37, np.inf, -np.inf, np.nan], 200, p=[0.3, 0.3, 0.2, *[0.04] * 5])
    divisor = rng.choice([1.0, 0.3, 1e-3, -7.0, 0.0, 1e-42, 3e38], 200, p=[0.2, 0.3, 0.2, 0.15, 0.05, 0.05, 0.05])
    arrays = {"weight": weight, "scale": (rng.random(200) * spread).astype(np.float32), "bias": bias.astype(np.float32)}
    tensors = {name: Tensor(name, "float32", (None, 200)) for name in ("y", "f", "t")}
    tensors["x"] = Tensor("x", "uint8", (None, 40), 0.05, 128)
    tensors["d"] = Tensor("d", "float32", (200,))
    tensors["q"] = Tensor("q", "uint8", (None, 200), float(np.float32(scale)), 9)
    last = "t" if divided else "f"
    attrs = {"fn": "gelu", "approximate": "tanh"} if fn == "gelu_tanh" else {"fn": fn}
    ops = (
        Op("d", "constant", (), {}, {"value": divisor.astype(np.float32)}),
        Op("y", "dequantized_linear", ("x",), {}, arrays),
        Op("f", "float.unary", ("y",), attrs),
        *([Op("t", "float.div", ("f", "d"))] if divided else []),
        Op("q", "quantize", (last,), {"lo": 0, "hi": 255}),
    )
    (alone,) = get_engine("native").prepare(Program(tensors, ops, ("x",), ("q",)))({"x": x})
    floats, beside = get_engine("native").prepare(Program(tensors, ops, ("x",), (last, "q")))({"x": x})
    np.testing.assert_array_equal(alone, beside)
    with np.errstate(all="ignore"):
        steps = np.rint(floats / np.float32(scale)) + 9
    np.testing.assert_array_equal(alone, np.clip(np.where(np.isnan(steps), 0, steps), 0, 255).astype(np.uint8))
