"""The openvino engine: exact integers op by op and in networks, int8 kernels, threads, batches, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("openvino")

from tests.conformance.networks import Network
from tests.floats import run_float
from tests.test_import import run_python

import intact8
from intact8.arithmetic import integer
from intact8.engines import get_engine
from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.openvino.infer_requests import Compiled
from intact8.engines.openvino.scale_assignment import choose, rounded
from intact8.engines.prepared_cache import PreparedCache
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.program import Program
from intact8.verification import verify

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))


def residual_network(seed: int = 0) -> tuple[Network, str]:
    net = Network(np.random.default_rng(seed))
    net.start((2, 16, 9, 9))
    x = net.conv("x", 16, 3)
    inner = net.conv(net.conv(x, 16, 3, groups=16), 16, 3)
    return net, net.conv(net.add(inner, x), 16, 1)


def test_a_rounding_the_compiler_drops_is_noticed() -> None:
    """Without the Round of its own, the result before the add is not rounded: the comparison above can fail."""
    net, last = residual_network()
    program = net.program((last,))
    runner = ENGINE.prepare(program)
    assert (runner({"x": net.exact["x"]})[0] == net.exact[last]).all()
    runner._plan = replace(runner._plan, rounded=frozenset())
    runner._models, runner._last = PreparedCache(1, 0), None
    assert (runner({"x": net.exact["x"]})[0] != net.exact[last]).any()


def test_products_run_as_int8_inside_one_kernel() -> None:
    net, last = residual_network()
    kernels = ENGINE.prepare(net.program((last,))).kernels()
    for op in net.ops:
        if op.kind == "conv":
            assert kernels[op.name].endswith("_I8"), (op.name, kernels)
    add = next(op.name for op in net.ops if op.kind == "add")
    runtime = ENGINE.prepare(net.program((last,)))._model(1)._model.get_runtime_model()
    types = [n.get_rt_info()["layerType"].astype(str) for n in runtime.get_ops()]
    assert "Subgraph" not in types and "Eltwise" not in types, f"{add} is a kernel of its own: {types}"


def test_a_fused_residual_and_a_leaky_convolution_run_as_int8() -> None:
    net = Network(np.random.default_rng(1))
    net.start((1, 16, 8, 8))
    x = net.conv("x", 16, 1)
    last = net.conv(net.conv(x, 16, 3, residual=x), 16, 3, leaky=True)
    runner = ENGINE.prepare(net.program((last,)))
    assert all(runner.kernels()[op.name].endswith("_I8") for op in net.ops)
    assert (runner({"x": net.exact["x"]})[0] == net.exact[last]).all()


def test_a_leaky_convolution_openvino_cannot_compile() -> None:
    """Several outputs per input channel and few windows: "bad combination", or SIGSEGV (2026.4)."""
    rng = np.random.default_rng(0)
    arrays = {
        "weight": rng.integers(-60, 60, (6, 1, 1, 2)).astype(np.int8), "bias": rng.integers(-9000, 9000, 6),
        "a": np.array([14, 9, 8, 14, 11, 8]), "b": np.array([3231, 1397, 1271, 3149, 1511, 2855]),
        "a_neg": np.ones(6, np.int64), "b_neg": np.array([3605, 2779, 2845, 3611, 2459, 3611]),
    }  # fmt: skip
    attrs = {
        "stride": [1, 3], "padding": [0, 0], "dilation": [1, 1], "groups": 3, "transposed": False,
        "output_padding": [0, 0], "residual_a": 0, "lo": 0, "hi": 255,
    }  # fmt: skip
    tensors = {
        "x": Tensor("x", "uint8", (None, 3, 1, 9), 1.0, 100), "y": Tensor("y", "uint8", (None, 6, 1, 3), 1.0, 90)
    }  # fmt: skip
    program = Program(tensors, (Op("y", "conv", ("x",), attrs, arrays),), ("x",), ("y",))
    x = rng.integers(0, 256, (2, 3, 1, 9)).astype(np.uint8)
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    np.testing.assert_array_equal(ENGINE.prepare(program, threads=1)({"x": x})[0], want)


@pytest.mark.parametrize(
    ("size", "window", "stride", "dilation"),
    [((38,), (1,), (1,), (1,)), ((40,), (3,), (1,), (2,)), ((18, 20), (5, 7), (3, 1), (2, 2)),
     ((4, 20, 6), (3, 7, 3), (2, 2, 1), (1, 2, 1))],
    ids=["pointwise", "1d", "2d", "3d"],
)  # fmt: skip
def test_a_depthwise_convolution_with_negative_slopes_avoids_the_older_kernel(
    size: tuple[int, ...], window: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> None:
    """That kernel gives other integers in some places of blocks of 16 channels (2026.4, AVX512)."""
    rng, channels = np.random.default_rng(0), 32
    weight = rng.integers(-63, 64, (channels, 1, *window)).astype(np.int8)
    heaviest = np.abs(weight.astype(np.int64)).reshape(channels, -1).sum(1)
    arrays = {
        "weight": weight, "bias": np.zeros(channels, np.int64),
        "a": np.full(channels, 3), "b": np.minimum(heaviest * 2 | 1, 4095),
        "a_neg": np.full(channels, 2), "b_neg": np.minimum(heaviest * 4 | 1, 8191),
    }  # fmt: skip
    attrs = {
        "stride": [*stride], "padding": [0] * len(size), "dilation": [*dilation], "groups": channels,
        "transposed": False, "output_padding": [0] * len(size), "residual_a": 0, "lo": 0, "hi": 255,
    }  # fmt: skip
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(size, window, dilation, stride, strict=True)]
    table = Op("q", "table", ("x",), {"fn": "shuffle"}, {"table": rng.permutation(256).astype(np.uint8)})
    shapes = {"x": size, "q": size, "y": out}
    tensors = {n: Tensor(n, "uint8", (None, channels, *s), 1.0, 128 if n == "y" else 0) for n, s in shapes.items()}
    program = Program(tensors, (table, Op("y", "conv", ("q",), attrs, arrays)), ("x",), ("y",))
    x = rng.integers(0, 256, (2, channels, *size)).astype(np.uint8)
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    assert len(np.unique(want)) > 50
    runner = ENGINE.prepare(program, threads=1)
    np.testing.assert_array_equal(runner({"x": x})[0], want)
    assert not runner.kernels(2)["y"].startswith("jit_avx512_I8")


def test_every_tensor_can_be_read() -> None:
    net, last = residual_network(3)
    found = ENGINE.prepare(net.program((last,))).tensors({"x": net.exact["x"]})
    assert set(found) == set(net.exact)
    for name, want in net.exact.items():
        assert found[name].dtype == np.uint8 and (found[name] == want).all(), name


def test_batches_and_threads() -> None:
    net, last = residual_network(4)
    runner = ENGINE.prepare(net.program((last,)), threads=2)
    rng = np.random.default_rng(0)
    reference = ReferenceEngine().prepare(net.program((last,)))
    inputs = [rng.integers(0, 256, (n, 16, 9, 9), dtype=np.uint8) for n in (1, 2, 3, 1, 5, 7, 2, 1) * 3]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda x: runner({"x": x})[0], inputs))
    for x, got in zip(inputs, results, strict=True):
        assert (got == reference({"x": x})[0]).all()


def test_units_follow_the_ratios_of_an_add() -> None:
    net, _ = residual_network()
    program = net.program(())
    add = next(op for op in program.ops if op.kind == "add")
    scales = choose(program)
    first, second = (scales[n] for n in add.inputs)
    assert second / first == pytest.approx(abs(add.attrs["a"][1] / add.attrs["a"][0]), rel=1e-12)
    assert rounded(program) == {add.inputs[0]}


def test_a_linear_layer_of_a_vector() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4), torch.nn.GLU(0))
    sim = intact8.prepare(model.eval(), torch.randn(5))
    intact8.calibrate(sim, [torch.randn(5) for _ in range(40)])
    program = intact8.convert(sim)
    assert program.run(np.ones(5, np.float32), engine="openvino").shape == (2,)
    assert intact8.verify(program, torch.randn(5), engines=("openvino",)).exact


def test_numbers_have_no_dimension() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    op = Op("y", "float.mean", ("x",), {"dims": [0, 1], "keepdim": False})
    program = Program({"x": Tensor("x", "float32", (2, 3)), "y": Tensor("y", "float32", ())}, (op,), ("x",), ("y",))
    assert ENGINE.prepare(program).tensors({"x": x})["y"].shape == ()


def float_program(op: Op, inputs: dict[str, np.ndarray[Any, Any]], dtype: str, shape: tuple[int, ...]) -> Program:
    """One float op between program inputs and output."""
    batch: Any = (None,)
    tensors = {n: Tensor(n, str(x.dtype), batch + x.shape[1:]) for n, x in inputs.items()}
    tensors[op.name] = Tensor(op.name, dtype, batch + shape[1:])
    return Program(tensors, (op,), tuple(inputs), (op.name,))


CONV: dict[str, Any] = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "output_padding": [0, 0], "groups": 2}
POOL: dict[str, Any] = {"kernel": [3, 2], "stride": [2, 2], "padding": [1, 0], "ceil_mode": True}
PLAIN = """sigmoid tanh silu gelu hardswish hardsigmoid elu selu celu mish softplus softsign logsigmoid hardshrink
softshrink tanhshrink abs neg exp square sin cos erf sign floor ceil round trunc
atan asinh expm1 sinh cosh"""
UNARY: dict[str, dict[str, Any]] = {fn: {} for fn in PLAIN.split()} | {"threshold": {"threshold": 0.3, "value": -2.0}}
FLOATS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("relu", {}, ()),
    ("clamp", {"min": -0.5, "max": None}, ()),
    ("leaky_relu", {"slope": 0.1}, ()),
    ("prelu", {}, ("weight4",)),
    ("affine_scalar", {"mul": 2.5, "add": -1.0}, ()),
    ("mean", {"dims": [1, 3], "keepdim": False}, ()),
    ("avg_pool", POOL | {"count_include_pad": True}, ()),
    ("avg_pool", POOL | {"count_include_pad": False}, ()),
    ("adaptive_avg_pool", {"output_size": [3, 4]}, ()),
    ("conv", CONV | {"transposed": False}, ("conv", "bias6")),
    ("conv", CONV | {"transposed": True}, ("deconv", "bias6")),
    ("linear", {}, ("linear", "bias6")),
    ("scale_shift", {}, ("weight4", "bias4")),
    ("softmax", {"axis": -1}, ()),
    ("log_softmax", {"axis": 1}, ()),
    ("layer_norm", {"shape": [7, 5], "eps": 1e-5}, ("norm",)),
    ("group_norm", {"groups": 2, "eps": 1e-5}, ("weight4", "bias4")),
    ("reduce", {"fn": "sum", "dims": [2], "keepdim": True}, ()),
    ("reduce", {"fn": "amax", "dims": [2, 3], "keepdim": False}, ()),
    ("reduce", {"fn": "argmax", "dims": [1], "keepdim": False}, ()),
    ("compare", {"fn": "gt", "value": 0.25}, ()),
    ("cast", {"dtype": "int64"}, ()),
    ("upsample", {"size": [11, 6], "mode": "bilinear", "align_corners": False}, ()),
    ("upsample", {"size": [11, 6], "mode": "bicubic", "align_corners": True}, ()),
    ("upsample", {"size": [11, 6], "mode": "nearest", "align_corners": False}, ()),
    *(("unary", {"fn": fn, **attrs}, ()) for fn, attrs in UNARY.items()),
]


@pytest.mark.parametrize(("name", "attrs", "roles"), FLOATS, ids=lambda v: str(v)[:40] if v != () else "")
def test_float_ops(name: str, attrs: dict[str, Any], roles: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    arrays = {
        "weight4": {"weight": some(4)}, "bias4": {"bias": some(4)}, "bias6": {"bias": some(6)},
        "conv": {"weight": some(6, 2, 3, 2)}, "deconv": {"weight": some(4, 3, 3, 2)}, "linear": {"weight": some(6, 5)},
        "norm": {"weight": some(7, 5), "bias": some(7, 5)},
    }  # fmt: skip
    merged = {k: v for role in roles for k, v in arrays[role].items()}
    x = some(2, 4, 7, 5) * np.float32(2)
    dtype = {"compare": "bool", "cast": "int64"}.get(name, "int64" if attrs.get("fn") == "argmax" else "float32")
    want = run_float(name, attrs, [x], merged, dtype)
    kind = name if name == "upsample" else f"float.{name}"
    program = float_program(Op("y", kind, ("x",), attrs, merged), {"x": x}, dtype, want.shape)
    (got,) = ENGINE.prepare(program)({"x": x})
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "matmul", "masked_fill", "embedding"])
def test_float_ops_of_other_inputs(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 4, 4)).astype(np.float32), rng.standard_normal((2, 1, 4, 4)).astype(np.float32)
    inputs, arrays, attrs = {"x": x, "y": y}, {}, {}
    if name == "masked_fill":
        inputs, attrs = {"x": x, "y": y > 0}, {"value": -3.0}
    if name == "embedding":
        inputs, arrays = {"x": np.array([[1, 4, 0], [2, 2, 3]])}, {"weight": x.reshape(6, 16)}
    want = run_float(name, attrs, list(inputs.values()), arrays)
    op = Op("z", f"float.{name}", tuple(inputs), attrs, arrays)
    (got,) = ENGINE.prepare(float_program(op, inputs, "float32", want.shape))(inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def island_program(scale: float = float(np.float32(0.0371))) -> Program:
    """uint8 → float softmax → uint8 → float, with the input quantized on the way."""
    t = {
        "x": Tensor("x", "float32", (None, 300)),
        "q": Tensor("q", "uint8", (None, 300), scale, 13),
        "d": Tensor("d", "float32", (None, 300)),
        "e": Tensor("e", "float32", (None, 300)),
        "r": Tensor("r", "uint8", (None, 300), float(np.float32(0.0113)), 140),
        "y": Tensor("y", "float32", (None, 300)),
    }
    clamp = {"lo": 0, "hi": 255}
    ops = (
        Op("q", "quantize", ("x",), clamp),
        Op("d", "dequantize", ("q",)),
        Op("e", "float.unary", ("d",), {"fn": "sin"}),
        Op("r", "quantize", ("e",), {"lo": 5, "hi": 250}),
        Op("y", "dequantize", ("r",)),
    )
    return Program(t, ops, ("x",), ("y",))


def test_quantizing_divides_even_behind_movement_ops() -> None:
    """Ties of x/s and their neighbours: many of them decide between dividing and multiplying by 1/s."""
    s = np.float32(0.0113)
    tensors = {
        "x": Tensor("x", "float32", (None, 300)),
        "m": Tensor("m", "float32", (None, 150)),
        "r": Tensor("r", "uint8", (None, 150), float(s), 140),
        "y": Tensor("y", "float32", (None, 150)),
    }
    ops = (
        Op("m", "slice", ("x",), {"axis": 1, "start": 0, "end": 300, "step": 2}),
        Op("r", "quantize", ("m",), {"lo": 5, "hi": 250}),
        Op("y", "dequantize", ("r",)),
    )
    program = Program(tensors, ops, ("x",), ("y",))
    ties = (np.arange(-150, 150, dtype=np.float32) * np.float32(0.5) * s).astype(np.float32)
    x = np.stack([ties, np.nextafter(ties, np.float32(9)), np.nextafter(ties, np.float32(-9))])
    want = np.clip(np.rint(x[:, ::2] / s) + 140, 5, 250)
    assert (np.rint(x * (np.float32(1) / s)) != np.rint(x / s)).any()
    runner = ENGINE.prepare(program)
    assert (runner.tensors({"x": x})["r"] == want).all()
    assert (runner({"x": x})[0] == ((want - 140).astype(np.float32) * s)).all()


def test_fed_islands_and_dequantized_outputs() -> None:
    program = island_program()
    x = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32) * 3
    want = ReferenceEngine().prepare(program).tensors({"x": x})
    runner = ENGINE.prepare(program)
    got = runner.tensors({"x": x}, {"e": want["e"]})
    assert all((got[n] == want[n]).all() for n in want), [n for n in want if (got[n] != want[n]).any()]
    assert np.abs(runner({"x": x})[0] - want["y"]).max() <= 0.0113 * 1.01
    assert (runner({"x": want["q"]})[0] == runner({"x": x})[0]).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "missing"),
        ({"x": np.zeros((1, 300), np.float64)}, "float64"),
        ({"x": np.zeros((1, 299), np.float32)}, "shape"),
        ({"x": np.zeros((300,), np.float32)}, "shape"),
        ({"x": np.full((1, 300), np.nan, np.float32)}, "NaN"),
    ],
    ids=["missing", "dtype", "shape", "rank", "nan"],
)
def test_bad_inputs(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ENGINE.prepare(island_program())(inputs)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    net, last = residual_network()
    program = net.program((last,))
    with pytest.raises(EngineError, match="threads"):
        ENGINE.prepare(program, threads=0)
    unknown = replace(program, ops=(replace(program.ops[0], kind="fold"), *program.ops[1:]))
    with pytest.raises(EngineError, match="fold"):
        ENGINE.prepare(unknown)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(EngineError, match="VNNI"):
        ENGINE.prepare(replace(program, needs=("vnni",)))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "x86" in str(ENGINE.available())
    with pytest.raises(EngineError, match="x86"):
        ENGINE.prepare(program)


def one_conv(
    x: tuple[int, ...], w: tuple[int, ...], stride: list[int], padding: list[int], dilation: list[int], groups: int = 1
) -> tuple[Program, Any, Any]:
    """A convolution with z = 222, its input and the exact result."""
    rng = np.random.default_rng(0)
    q, weight = rng.integers(0, 256, x, dtype=np.uint8), rng.integers(-63, 64, w, dtype=np.int8)
    acc = integer.conv_accumulate(q, 222, weight, None, stride, padding, dilation, groups)
    a, b = np.full(w[0], max(1, 400_000 // max(1, int(np.abs(acc).max()))), np.int32), np.full(w[0], 4001, np.int32)
    want = integer.requantize(acc, a.astype(np.int64), b.astype(np.int64), 128, axis=1)
    attrs = {
        "stride": stride, "padding": padding, "dilation": dilation, "output_padding": [0] * len(stride),
        "groups": groups, "transposed": False, "lo": 0, "hi": 255, "residual_a": 0,
    }  # fmt: skip
    arrays = {"weight": weight, "bias": np.zeros(w[0], np.int32), "a": a, "b": b}
    tensors = {
        "x": Tensor("x", "uint8", (None, *x[1:]), 0.5, 222),
        "y": Tensor("y", "uint8", (None, *want.shape[1:]), 0.5, 128),
    }
    return Program(tensors, (Op("y", "conv", ("x",), attrs, arrays),), ("x",), ("y",)), q, want


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "dilation", "groups"),
    [
        ((3, 1, 8, 5), (18, 1, 1, 5), [1, 3], [0, 0], [1, 1], 1),
        ((3, 3, 10, 2), (12, 1, 5, 3), [1, 3], [1, 1], [1, 1], 3),
        ((1, 14, 14, 5), (28, 1, 3, 5), [1, 2], [1, 0], [1, 1], 14),
        ((1, 7, 12, 1), (4, 7, 3, 2), [1, 1], [1, 1], [1, 2], 1),
        ((1, 1, 1, 3, 7), (19, 1, 3, 3, 3), [3, 1, 1], [6, 0, 2], [3, 1, 1], 1),
        ((1, 1, 1, 7, 1), (6, 1, 5, 3, 3), [3, 1, 1], [4, 2, 2], [1, 1, 1], 1),
        ((1, 4, 6, 5, 1), (4, 2, 5, 5, 3), [2, 1, 3], [0, 0, 1], [1, 1, 1], 2),
    ],
    ids=["one-column", "one-column-groups", "one-column-wide", "window-in-padding", "depth-1", "thin", "gemm"],
)
def test_shapes_that_openvino_gets_wrong_are_built_differently(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> None:
    program, q, want = one_conv(x, w, stride, padding, dilation, groups)
    assert (ENGINE.prepare(program)({"x": q})[0] == want).all()


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_mean_clamped_at_its_zero_point(keepdim: bool) -> None:
    """Three dimensions, lo = z > 0: written with a Relu, OpenVINO gives z for most samples but the first."""
    q = (np.arange(4)[:, None, None] * 40 + np.arange(70).reshape(1, 5, 14)).astype(np.uint8)
    attrs = {"dims": [1, 2], "keepdim": keepdim, "a": 104, "b": 3295, "lo": 128, "hi": 255}
    want = integer.mean(q, 79, [1, 2], keepdim, 104, 3295, 128, 128, 255)
    assert want.min() == 128 and want.max() == 255
    tensors = {
        "x": Tensor("x", "uint8", (None, 5, 14), 0.5, 79),
        "y": Tensor("y", "uint8", (None, *want.shape[1:]), 0.5, 128),
    }
    program = Program(tensors, (Op("y", "mean", ("x",), attrs),), ("x",), ("y",))
    assert (ENGINE.prepare(program)({"x": q})[0] == want).all()


@pytest.mark.parametrize(("channels", "bits"), [(600, 24), (2400, 26)])
def test_sums_beyond_float32_are_split_where_no_int8_kernel_exists(channels: int, bits: int) -> None:
    """Σ|w|·max|x − z| is about 2²⁵ and 2²⁷ here: several float32 products, each of them exact, added in int32."""
    program, q, want = one_conv((2, channels, 9, 2), (8, channels, 3, 2), [1, 1], [1, 2], [1, 3])
    reach = int(np.abs(program.ops[0].arrays["weight"].astype(int)).sum((1, 2, 3)).max()) * 222
    assert reach > 1 << bits
    runner = ENGINE.prepare(program)
    assert runner._plan.float_products == {"y"}
    assert (runner({"x": q})[0] == want).all()


def test_importing_the_engine_imports_neither_openvino_nor_torch() -> None:
    code = "import sys, intact8.engines.openvino; print('openvino' in sys.modules, 'torch' in sys.modules)"
    assert run_python(code) == ["False", "False"]


def test_running_imports_no_torch(tmp_path: Path) -> None:
    net, last = residual_network()
    path = certify(net.program((last,))).save(tmp_path / "net.safetensors")
    code = (
        "import sys, numpy as np; from intact8.program.program import Program\n"
        "from intact8.engines.openvino import OpenVinoEngine\n"
        f"runner = OpenVinoEngine().prepare(Program.load({str(path)!r}))\n"
        "print(runner({'x': np.zeros((2, 16, 9, 9), np.uint8)})[0].shape[1], 'torch' in sys.modules)"
    )
    assert run_python(code) == ["16", "False"]


def test_programs_run_on_it_by_name() -> None:
    program = island_program()
    x = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32)
    assert get_engine("openvino").name == "openvino"
    assert program.run(x, engine="openvino").shape == (3, 300)
    report = verify(program, [x], engines=("openvino",))
    assert report.mismatches == 0 and report.elements == 2 * 900


def test_requests_are_pooled() -> None:
    net, last = residual_network()
    runner = ENGINE.prepare(net.program((last,)))
    for _ in range(3):
        runner({"x": net.exact["x"]})
    compiled = runner._model(2)
    assert isinstance(compiled, Compiled) and len(compiled._idle[2]) == 1
