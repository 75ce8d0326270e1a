"""Operators the compiled kernels bring to ONNX Runtime: every shape, nothing beyond it, and refusals that are errors.

That whole programs give the same integers with them is what tests/conformance compares.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.conformance import networks
from tests.conformance.networks import Network, of_floats

from intact8.arithmetic import integer
from intact8.arithmetic.affine import quantize
from intact8.engines import kernels as native
from intact8.engines.onnxruntime import OnnxRuntimeEngine
from intact8.engines.onnxruntime.custom_ops import images, rules
from intact8.engines.packed_conv import pack_dense, pack_depthwise
from intact8.engines.reference import ReferenceEngine
from intact8.errors import InputError
from intact8.export.onnx import build
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

ENGINE = OnnxRuntimeEngine()
pytestmark = pytest.mark.skipif(native.load() is None, reason="the compiled kernels were not built")
GUARD = 64
TYPES = {
    "uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8, "int32": onnx.TensorProto.INT32,
    "float32": onnx.TensorProto.FLOAT,
}  # fmt: skip


def run(kind: str, *inputs: Any, threads: int = 1) -> Any:
    """One node, of which nothing is a constant."""
    names = [f"x{i}" for i in range(len(inputs))]
    described = [
        helper.make_tensor_value_info(n, TYPES[x.dtype.name], x.shape) for n, x in zip(names, inputs, strict=True)
    ]
    y = helper.make_tensor_value_info("y", TYPES["uint8"], None)
    node = helper.make_node(kind, names, ["y"], domain="intact8")
    graph = helper.make_graph([node], "one", described, [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("intact8", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(native.load().__file__)  # type: ignore[union-attr]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = session.run(None, dict(zip(names, inputs, strict=True)))[0]
    around = np.full(found.size + 2 * GUARD, 77, np.uint8)
    binding = session.io_binding()
    for name, x in zip(names, inputs, strict=True):
        binding.bind_cpu_input(name, x)
    binding.bind_output("y", "cpu", 0, np.uint8, found.shape, around.ctypes.data + GUARD)
    session.run_with_iobinding(binding)
    assert (around[:GUARD] == 77).all()
    assert (around[-GUARD:] == 77).all()
    np.testing.assert_array_equal(around[GUARD:-GUARD].reshape(found.shape), found)
    return found


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


SHAPES = [(), (1,), (63,), (64,), (65,), (0, 3), (2, 3, 5, 7), (32769,), (3, 5, 40000), (1,) * 16]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tables_of_every_shape(shape: tuple[int, ...], threads: int) -> None:
    rng = np.random.default_rng(len(shape))
    x, table = rng.integers(0, 256, shape).astype(np.uint8), rng.permutation(256).astype(np.uint8)
    got = run("Table", x, table, threads=threads)
    assert got.shape == shape
    np.testing.assert_array_equal(got, table[x])


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, 2**63))
def test_products_of_every_shape(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(2, 5)))
    shape = (*shape[:-1], int(rng.choice([1, 3, 17, 64, 130, 1000])))
    gate = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    x, w = (rng.integers(0, 256, s).astype(np.uint8) for s in (shape, shape if rng.random() < 0.3 else gate))
    zx, zw, z = (int(n) for n in rng.integers(0, 256, 3))
    lo = int(rng.integers(0, 128))
    hi = int(rng.integers(lo, 256))
    ratio = float(np.float32(1.0 / 1023))
    numbers = np.array([zx, zw, z, bits(ratio), lo - z, hi - z], np.int32)
    steps = np.rint((np.subtract(x, zx, dtype=np.float32) * np.subtract(w, zw, dtype=np.float32)) * np.float32(ratio))
    want = np.clip(steps.astype(np.int64) + z, lo, hi)
    for threads in (1, 3):
        np.testing.assert_array_equal(run("Multiply", x, w, numbers, threads=threads), want)


@settings(max_examples=40, deadline=None, database=None)
@given(st.integers(0, 2**63))
def test_floats_of_every_shape(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in (*rng.integers(1, 6, 2), *rng.integers(1, 200, 2)))
    scale, z = float(np.float32(rng.uniform(0.01, 0.1))), int(rng.integers(0, 256))
    x = rng.standard_normal(shape).astype(np.float32) * 4
    numbers, want = np.array([bits(scale), -z, 200 - z, z], np.int32), quantize(x, scale, z, 0, 200)
    np.testing.assert_array_equal(run("Quantize", x, numbers, threads=2), want)
    np.testing.assert_array_equal(run("QuantizeNhwc", x, numbers, threads=2), want.transpose(0, 2, 3, 1))


def convolution(rng: np.random.Generator, kind: str, sizes: list[int] | None = None) -> tuple[tuple[Any, ...], Any]:
    """Inputs of a node, and its results by the definition."""
    depthwise, counts = kind == "Depthwise", [1, 3, 8, 16, 24, 31, 32, 33, 64, 72, 130]
    count = int(rng.choice(counts if depthwise else [*counts, 144, 210, 300]))
    channels = count if depthwise else int(rng.choice([1, 2, 3, 4, 7, 16, 36, 130]))
    tall, wide, down, right = (int(n) for n in (*rng.integers(1, 8, 2), *rng.integers(1, 4, 2)))
    tall, wide = (3, 3) if rng.random() < 0.4 else (tall, wide)  # which has a way of its own
    above, left = int(rng.integers(0, tall + 2)), int(rng.integers(0, wide + 2))
    height, width = sizes or (
        max(k - 2 * p, 1) + int(rng.integers(0, 25)) for k, p in ((tall, above), (wide, left))
    )  # fmt: skip
    x = rng.integers(0, 256, (int(rng.integers(1, 3)), height, width, channels)).astype(np.uint8)
    weight = rng.integers(-128, 128, (count, 1 if depthwise else channels, tall, wide)).astype(np.int8)
    bias, zx, z = rng.integers(-9999, 9999, count), int(rng.integers(0, 256)), int(rng.integers(0, 256))
    lo = int(rng.integers(0, 128))
    hi = int(rng.integers(lo, 256))
    ratio = (rng.uniform(0.2, 2, count) / 99 / np.sqrt(weight[0].size)).astype(np.float32)
    groups = count if depthwise else 1
    acc = integer.conv_accumulate(
        x.transpose(0, 3, 1, 2), zx, weight, bias, [down, right], [above, left], [1, 1], groups
    )  # fmt: skip
    steps = np.rint(acc.astype(np.float32) * ratio.reshape(-1, 1, 1)).astype(np.int64)
    pixels = max(64 // count, 1) if right == 1 else 1
    order = partial(pack_depthwise, pixels=pixels) if depthwise else pack_dense
    first = (bias - zx * weight.astype(np.int64).sum((1, 2, 3))).astype(np.int32)
    numbers = [tall, wide, down, right, above, left, zx, z, lo, hi, pixels if depthwise else count]
    want = np.clip(steps + z, lo, hi).transpose(0, 2, 3, 1)
    return (x, order(weight), order(first), order(ratio), np.array(numbers, np.int32)), want


VNNI = pytest.mark.skipif("Dense" not in native.operators(), reason="this CPU has no AVX512-VNNI")


@VNNI
@pytest.mark.parametrize("kind", ["Depthwise", "Dense"])
@settings(max_examples=200, deadline=None, database=None)
@given(seed=st.integers(0, 2**63))
def test_convolutions_of_every_shape(kind: str, seed: int) -> None:
    inputs, want = convolution(np.random.default_rng(seed), kind)
    np.testing.assert_array_equal(run(kind, *inputs), want)


@VNNI
@pytest.mark.parametrize("kind", ["Depthwise", "Dense"])
@pytest.mark.parametrize("seed", range(12))
def test_convolutions_by_several_threads(kind: str, seed: int) -> None:
    inputs, want = convolution(np.random.default_rng(seed), kind, [75, 90])
    np.testing.assert_array_equal(run(kind, *inputs, threads=3), want)


BYTES, FLOATS = np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 3, 4, 4), np.float32)


TAPS = np.zeros((2, 3), np.int32)


def dense_with(at: int, value: int) -> tuple[Any, ...]:
    numbers = np.array([3, 3, 1, 1, 1, 1, 0, 0, 0, 255, 64], np.int32)
    numbers[at] = value
    return BYTES, np.zeros(64 * 3 * 3 * 4, np.int8), np.zeros(64, np.int32), np.zeros(64, np.float32), numbers


@pytest.mark.parametrize(
    ("kind", "inputs"),
    {
        "table of 255": ("Table", (BYTES, np.zeros(255, np.uint8))),
        "17 dimensions": ("Table", (np.zeros((1,) * 17, np.uint8), np.zeros(256, np.uint8))),
        "another shape": ("Multiply", (BYTES, BYTES[:, :2], np.zeros(6, np.int32))),
        "another rank": ("Multiply", (BYTES, BYTES[0], np.zeros(6, np.int32))),
        "too few numbers": ("Multiply", (BYTES, BYTES, np.zeros(5, np.int32))),
        "taps of four numbers": ("Resize", (BYTES, np.zeros((2, 4), np.int32), TAPS, np.ones(2, np.int32))),
        "taps beyond": ("Resize", (BYTES, TAPS + 100, TAPS, np.ones(2, np.int32))),
        "no denominator": ("Resize", (BYTES, TAPS, TAPS, np.zeros(2, np.int32))),
        "resized rows": ("Resize", (BYTES[0], TAPS, TAPS, np.ones(2, np.int32))),
        "no divisor": ("Quantize", (FLOATS, np.zeros(3, np.int32))),
        "not an image": ("QuantizeNhwc", (FLOATS[0], np.array([bits(1), 0, 9, 0], np.int32))),
        "no stride": ("Dense", dense_with(2, 0)),
        "no window": ("Dense", dense_with(0, 0)),
        "too large": ("Dense", dense_with(0, 9)),
        "negative padding": ("Dense", dense_with(4, -1)),
        "a step too far": ("Depthwise", dense_with(3, 1 << 30)),
        "no results": ("Dense", dense_with(10, 0)),
        "more results": ("Dense", dense_with(10, 65)),
        "other channels": ("Depthwise", dense_with(10, 1)),
        "several pixels of many channels": ("Depthwise", dense_with(10, 30)),
    }.values(),
)
def test_what_does_not_fit_is_an_error(kind: str, inputs: tuple[Any, ...]) -> None:
    with pytest.raises(Exception, match=kind):
        run(kind, *inputs)


def image_network(seed: int, kernel: int, stride: int, channels: int = 3) -> tuple[Program, Any]:
    """A float image, quantized for a convolution, a table behind it, a gate and another convolution."""
    net = Network(np.random.default_rng(seed))
    net.start((2, channels, 11, 13))
    x = net.table(net.conv("x", 8, kernel, stride=stride))
    last = net.conv(net.mul(x, net.table(net.conv(net.mean(x), 8, 1), "sigmoid")), 8, 1)
    x = np.random.default_rng(seed).standard_normal((2, channels, 11, 13)).astype(np.float32) * 30
    return of_floats(net.program((last,)), 0.25, lo=3, hi=250), x


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "channels"), [(3, 2, 3), (7, 2, 3), (3, 1, 1), (5, 3, 4), (3, 1, 8), (1, 1, 3)]
)
def test_images_of_every_kind(kernel: int, stride: int, channels: int, threads: int) -> None:
    """Floats and bytes, both layouts, every second sample, other batches."""
    program, x = image_network(kernel, kernel, stride, channels)
    runner, reference = ENGINE.prepare(program, threads=threads), ReferenceEngine().prepare(program)
    q = reference.tensors({"x": x})["q"]
    last, bytes_last = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for v in (x, q))
    for image in (x, last, np.repeat(x, 2, axis=0)[::2], q, bytes_last, x[:1], q[:1], np.concatenate([x, -x]), x):
        before = image.copy()
        np.testing.assert_array_equal(runner({"x": image})[0], reference({"x": image})[0])
        np.testing.assert_array_equal(image, before)
    found, want = runner.tensors({"x": x}), reference.tensors({"x": x})
    assert all((found[name] == want[name]).all() for name in want)


@pytest.mark.parametrize("last", [False, True])
def test_nan_is_refused_by_the_inputs_name(last: bool) -> None:
    program, x = image_network(1, 3, 1)
    x[1, 2, 3, 4] = np.nan
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if last else x
    runner = ENGINE.prepare(program)
    with pytest.raises(InputError, match=r"x: x holds NaN"):
        runner({"x": x})
    assert np.isfinite(runner({"x": np.nan_to_num(x)})[0]).all()


def test_no_channels_are_moved_between_convolutions(tmp_path: Path) -> None:
    """What is left of the moves are those of the results."""
    program, _ = image_network(2, 3, 1)
    options = ort.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 4
    options.register_custom_ops_library(native.load().__file__)  # type: ignore[union-attr]
    model = build(program, contrib=True, own=rules(program, native.operators()))
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert kinds["Transpose"] == 1, kinds
    assert {"QuantizeNhwc": 1, "Multiply": 1, "Table": 2}.items() <= kinds.items()
    assert kinds["Dense"] == (3 if "Dense" in native.operators() else 0)


def test_which_tensors_have_channels_last() -> None:
    program, _ = image_network(2, 3, 1)
    assert images(program) == {op.name for op in program.ops}
    tokens = {n: Tensor(n, "uint8", (None, 7, 5, 16), 0.5, 3) for n in ("x", "y")}
    op = Op("y", "table", ("x",), {"fn": ""}, {"table": np.arange(256, dtype=np.uint8)[::-1].copy()})
    assert images(Program(tokens, (op,), ("x",), ("y",))) == frozenset()


def test_files_have_standard_operators_only() -> None:
    program, _ = image_network(2, 3, 1)
    for contrib in (False, True):
        assert {node.domain for node in build(program, contrib=contrib).graph.node} <= {"", "com.microsoft"}


def test_without_the_compiled_passes_the_integers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [networks.draw(seed) for seed in range(25)]
    with_passes = [ENGINE.prepare(program)({"x": x}) for program, x, _ in made]
    monkeypatch.setattr(native, "load", lambda: None)
    for (program, x, expected_values), found in zip(made, with_passes, strict=True):
        for got, other, want in zip(ENGINE.prepare(program)({"x": x}), found, expected_values, strict=True):
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(other, want)
    program, x = image_network(1, 3, 2)
    np.testing.assert_array_equal(ENGINE.prepare(program)({"x": x})[0], ReferenceEngine().prepare(program)({"x": x})[0])


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("Multiply", [0, 0, 256, 0, 0, 0]),
        ("Multiply", [-1, 0, 0, 0, 0, 255]),
        ("Multiply", [0, 300, 0, 0, 0, 255]),
        ("Multiply", [0, 0, 5, 0, -6, 250]),
        ("Multiply", [0, 0, 5, 0, 9, 8]),
        ("Quantize", [0, 0, 255, 2**31 - 1]),
        ("Quantize", [0, -(2**31), 255, 0]),
        ("QuantizeNhwc", [0, 0, 256, 0]),
        ("QuantizeNhwc", [0, 3, 2, 0]),
    ],
)
def test_numbers_that_are_none_of_bytes_are_refused(kind: str, numbers: list[int]) -> None:
    x = np.ones((1, 2, 3, 4), np.float32 if kind != "Multiply" else np.uint8)
    with pytest.raises(Exception, match="numbers that do not fit a byte"):
        run(kind, *([x, x] if kind == "Multiply" else [x]), np.array(numbers, np.int32))


def test_an_older_cpu_gives_the_same_integers() -> None:
    library = native.load()
    assert library is not None
    program, x = image_network(1, 3, 2)
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    try:
        library.force_portable(True)
        assert native.operators() == {"Table", "Multiply", "Resize", "Quantize", "QuantizeNhwc"}
        np.testing.assert_array_equal(ENGINE.prepare(program)({"x": x})[0], want)
        with pytest.raises(Exception, match="not for this CPU"):
            run("Dense", *dense_with(10, 64))
    finally:
        library.force_portable(False)


def test_many_sessions_and_callers_at_once() -> None:
    program, x = image_network(4, 3, 2)
    want = ReferenceEngine().prepare(program)({"x": x})[0]

    def fresh(_: int) -> bool:
        runner = ENGINE.prepare(replace(program), threads=2)
        return all((runner({"x": x})[0] == want).all() for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fresh, range(24)))


def test_products_follow_the_contract() -> None:
    """The same formula as intact8.arithmetic.integer, with a multiplier that never ties."""
    net = Network(np.random.default_rng(5))
    net.start((2, 8, 5, 6))
    x = net.conv("x", 16, 1)
    last = net.mul(x, net.conv(net.mean(x), 16, 1))
    program = net.program((last,))
    op = program.ops[-1]
    (zx, zw), z = (program.tensors[n].zero_point or 0 for n in op.inputs), program.tensors[last].zero_point or 0
    a = op.attrs
    operands = [net.exact[n] for n in op.inputs]
    want = integer.mul(operands[0], zx, operands[1], zw, a["a"], a["b"], z, a["lo"], a["hi"])
    np.testing.assert_array_equal(ENGINE.prepare(program)({"x": net.exact["x"]})[0], want)
