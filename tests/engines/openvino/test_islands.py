"""Float operations between integer layers on the openvino engine, as deployed: nothing is fed.

OpenVINO's passes see the layers and what stands between them as one network, and rewrite it. Float operations err in
their last bits, which may move an integer by one; a rewrite that goes wrong moves all of them by far more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.opset import output_shape
from intact8.opset.op import Array, Op, Tensor
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

N, BATCHES = 20, (1, 2, 3, 4, 8, 16)
IN, DIVISOR = 0.03125, 401

ROWS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "softmax": [("softmax", {"axis": 1})],
    "softmax of a product": [("mul constant", {}), ("softmax", {"axis": 1})],
    "log_softmax": [("log_softmax", {"axis": 1})],
    "relu": [("relu", {})],
    "clamp": [("clamp", {"min": -0.3711, "max": 0.6103})],
    "leaky_relu": [("leaky_relu", {"slope": 0.117})],
    "prelu": [("prelu", {})],
    "sin": [("unary", {"fn": "sin"})],
    "gelu": [("unary", {"fn": "gelu"})],
    "sigmoid": [("unary", {"fn": "sigmoid"})],
    "round": [("affine_scalar", {"mul": 3.7, "add": 0.1}), ("unary", {"fn": "round"})],
    "affine_scalar": [("affine_scalar", {"mul": -2.5, "add": 0.3})],
    "add": [("add constant", {})],
    "sub": [("sub constant", {})],
    "div": [("unary", {"fn": "exp"}), ("div constant", {})],
    "square": [("mul itself", {})],
    "mean": [("mean", {"dims": [1], "keepdim": True}), ("sub first", {})],
    "amax": [("reduce", {"fn": "amax", "dims": [1], "keepdim": True}), ("sub first", {})],
    "sum": [("reduce", {"fn": "sum", "dims": [1], "keepdim": True}), ("sub first", {})],
    "masked_fill": [("compare", {"fn": "gt", "value": 0.25}), ("masked_fill", {"value": -1.1})],
    "cast": [("affine_scalar", {"mul": 5.0, "add": 0.0}), ("cast", {"dtype": "int64"}), ("cast", {"dtype": "float32"})],
    "linear": [("linear", {})],
    "scale_shift": [("scale_shift", {})],
    "layer_norm": [("layer_norm", {"shape": [N], "eps": 1e-5})],
    "rms_norm": [("rms_norm", {"shape": [N], "eps": 1e-5})],
    "layer_norm, eps matters": [("layer_norm", {"shape": [N], "eps": 2.0})],
    "rms_norm, eps matters": [("rms_norm", {"shape": [N], "eps": 2.0})],
}
"""Of (B, N): what stands between, one after the other."""

WINDOW: dict[str, Any] = {"kernel": [2, 2], "stride": [1, 1], "padding": [1, 0], "ceil_mode": False}
IMAGES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "softmax": [("softmax", {"axis": 1})],
    "attention": [("softmax", {"axis": -1}), ("matmul first", {})],
    "clamp": [("clamp", {"min": -0.3711, "max": 0.6103})],
    "avg_pool": [("avg_pool", WINDOW | {"count_include_pad": True})],
    "adaptive_avg_pool": [("adaptive_avg_pool", {"output_size": [3, 6]})],
    "max_pool": [("max_pool", WINDOW | {"dilation": [1, 1]})],
    "group_norm": [("group_norm", {"groups": 2, "eps": 1e-5})],
    "group_norm, eps matters": [("group_norm", {"groups": 2, "eps": 2.0})],
    "mean": [("mean", {"dims": [2], "keepdim": True})],
    "bilinear": [("upsample", {"size": [9, 5], "mode": "bilinear", "align_corners": False})],
    "bicubic": [("upsample", {"size": [5, 11], "mode": "bicubic", "align_corners": True})],
    "prelu": [("prelu", {})],
}
"""The same of (B, 4, 6, 6)."""


def layer(name: str, x: str, inputs: int, outputs: int, rng: np.random.Generator) -> Op:
    """An integer layer whose results spread over some hundred steps."""
    arrays = {
        "weight": rng.integers(-63, 64, (outputs, inputs), dtype=np.int8),
        "bias": rng.integers(-2000, 2000, outputs).astype(np.int32),
        "a": np.ones(outputs, np.int32), "b": np.full(outputs, DIVISOR, np.int32),
    }  # fmt: skip
    return Op(name, "linear", (x,), {"lo": 0, "hi": 255, "residual_a": 0}, arrays)


def between(shape: tuple[int, ...], kinds: list[tuple[str, dict[str, Any]]]) -> tuple[Program, Array]:
    """Integer layer, float operations, integer layer; and an input."""
    rng = np.random.default_rng(len(shape))
    x = rng.integers(0, 256, (max(BATCHES), *shape), dtype=np.uint8)
    tensors = {
        "x": Tensor("x", "uint8", (None, *shape), IN, 128),
        "l": Tensor("l", "uint8", (None, *shape), IN, 117),
        "d": Tensor("d", "float32", (None, *shape)),
    }
    ops = [layer("l", "x", shape[-1], shape[-1], rng), Op("d", "dequantize", ("l",))]
    last = "d"
    for i, (kind, attrs) in enumerate(kinds):
        kind, _, other = kind.partition(" ")
        inputs: tuple[str, ...] = (last,)
        if other == "constant":
            tensors["c"] = Tensor("c", "float32", (1,))
            ops.append(Op("c", "constant", (), {}, {"value": np.array([0.7131], np.float32)}))
            inputs = last, "c"
        elif other:
            inputs = (last, last) if other == "itself" else (last, "d") if kind == "matmul" else ("d", last)
        if kind == "masked_fill":
            inputs = "d", last
        sizes = {"prelu": {"weight": shape[0]}, "scale_shift": {"weight": N, "bias": N}, "layer_norm": {"weight": N}}
        arrays = {role: rng.standard_normal(n).astype(np.float32) for role, n in sizes.get(kind, {}).items()}
        if kind == "linear":
            arrays = {"weight": rng.standard_normal((N, N)).astype(np.float32)}
        movement = kind in ("max_pool", "upsample")
        last, op = f"f{i}", Op(f"f{i}", kind if movement else f"float.{kind}", inputs, attrs, arrays)
        ops.append(op)
        dtype = {"compare": "bool", "cast": attrs.get("dtype", "")}.get(kind, "float32")
        tensors[last] = Tensor(last, dtype, output_shape(op, [tensors[n] for n in inputs], (None, *shape)))
    part = Program(tensors, tuple(ops), ("x",), (last,))
    (value,) = ReferenceEngine().prepare(part)({"x": x})
    final = tensors[last].shape
    scale = max(float(np.ptp(value)) / 240, 1e-6)
    tensors |= {
        "q": Tensor("q", "uint8", final, scale, int(np.clip(np.rint(-value.min() / scale), 0, 255))),
        "m": Tensor("m", "uint8", (*final[:-1], 4), IN, 128),
        "y": Tensor("y", "float32", (*final[:-1], 4)),
    }
    ops += [
        Op("q", "quantize", (last,), {"lo": 0, "hi": 255}),
        layer("m", "q", int(final[-1] or 0), 4, rng),
        Op("y", "dequantize", ("m",)),
    ]
    return Program(tensors, tuple(ops), ("x",), ("y",)), x


CASES = [pytest.param((N,), kinds, id=f"rows-{name}") for name, kinds in ROWS.items()]
CASES += [pytest.param((4, 6, 6), kinds, id=f"images-{name}") for name, kinds in IMAGES.items()]


@pytest.mark.parametrize(("shape", "kinds"), CASES)
def test_float_operations_between_integer_layers(
    shape: tuple[int, ...], kinds: list[tuple[str, dict[str, Any]]]
) -> None:
    program, x = between(shape, kinds)
    (want,) = ReferenceEngine().prepare(program)({"x": x})
    assert np.ptp(want) > 20 * IN, "the case shows nothing"
    runner = ENGINE.prepare(program, threads=1)
    for n in BATCHES if len(shape) == 1 else (1, 4):
        steps = np.abs(runner({"x": x[:n]})[0] - want[:n]) / IN
        assert steps.max() < 3 and (steps > 0).mean() < 0.1, f"batch of {n}: {steps.max()} steps"


def test_products_run_in_kernels_of_products() -> None:
    """Every integer product is found again in what is executed, or built in float32, as where a CPU has no VNNI."""
    program, _ = between((N,), ROWS["softmax of a product"])
    runner = ENGINE.prepare(program, threads=1)
    assert runner.kernels(4).keys() | runner._plan.float_products == {"l", "m"}
