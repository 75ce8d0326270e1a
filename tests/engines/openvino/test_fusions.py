"""What OpenVINO's kernels take in behind a reduction, and a division behind any kernel, computes what was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Array, Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

SCALE = 0.0625
"""Powers of two: no rounding decides anything here."""

Shape = tuple[int | None, ...]


def chain(shape: Shape, *steps: tuple[str, str, Shape, dict[str, Any], dict[str, Array]], dtype: str) -> Program:
    """A program of one operation after the other; steps are name, kind, shape, attributes and arrays."""
    tensors, ops, last = {"x": Tensor("x", dtype, shape)}, [], "x"
    if dtype == "uint8":
        tensors["x"] = Tensor("x", dtype, shape, SCALE, 128)
    for name, kind, out, attrs, arrays in steps:
        integer = kind in ("mean", "quantize", "linear")
        tensors[name] = Tensor(name, "uint8", out, SCALE, 120) if integer else Tensor(name, "float32", out)
        ops.append(Op(name, kind, (last,), attrs, arrays))
        last = name
    made = Program(tensors, tuple(ops), ("x",), (last,))
    check(made)
    return made


def compared(made: Program, x: Array) -> None:
    (want,), (got,) = ReferenceEngine().prepare(made)({"x": x}), ENGINE.prepare(made, threads=1)({"x": x})
    assert len(np.unique(want)) > 3
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6, atol=1e-6)


def sixteenths(*shape: int) -> Array:
    return (np.random.default_rng(0).integers(-20, 20, shape) / 16).astype(np.float32)


QUANTIZE = {"lo": 0, "hi": 255}
BOTH = {"weight": np.array([0.5, 2, 1, 4, 0.25, 8], np.float32), "bias": np.array([1, -2, 3, -4, 5, 0.5], np.float32)}
REDUCTIONS = [
    *(("float.reduce", {"fn": fn, "dims": [1], "keepdim": False}) for fn in ("sum", "amax", "amin")),
    ("float.mean", {"dims": [1], "keepdim": False}),
]
NAMES = ["sum", "amax", "amin", "mean"]


@pytest.mark.parametrize(("kind", "attrs"), REDUCTIONS, ids=NAMES)
def test_reduced_embeddings_behind_a_linear_layer(kind: str, attrs: dict[str, Any]) -> None:
    table = {"weight": sixteenths(10, 12)}
    weight = np.random.default_rng(1).integers(-9, 9, (3, 12)).astype(np.int8)
    ratio = {"a": np.full(3, 1, np.int32), "b": np.full(3, 3, np.int32)}
    made = chain(
        (None, 4),
        ("e", "float.embedding", (None, 4, 12), {}, table),
        ("f", kind, (None, 12), attrs, {}),
        ("q", "quantize", (None, 12), QUANTIZE, {}),
        (
            "y",
            "linear",
            (None, 3),
            QUANTIZE | {"residual_a": 0},
            {"weight": weight, "bias": np.zeros(3, np.int32)} | ratio,
        ),
        dtype="int64",
    )
    compared(made, np.random.default_rng(2).integers(0, 10, (4, 4)))


@pytest.mark.parametrize("keepdim", [False, True], ids=["squeezed", "kept"])
@pytest.mark.parametrize(("kind", "attrs"), REDUCTIONS, ids=NAMES)
def test_constants_of_channels_behind_a_reduction(kind: str, attrs: dict[str, Any], keepdim: bool) -> None:
    out: Shape = (None, 6, 1) if keepdim else (None, 6)
    made = chain(
        (None, 6, 5),
        ("f", kind, out, attrs | {"dims": [2], "keepdim": keepdim}, {}),
        ("y", "float.scale_shift", out, {}, BOTH),
        dtype="float32",
    )
    compared(made, sixteenths(4, 6, 5))


@pytest.mark.parametrize("keepdim", [False, True], ids=["squeezed", "kept"])
def test_constants_of_channels_behind_a_mean_of_integers(keepdim: bool) -> None:
    out: Shape = (None, 6, 1) if keepdim else (None, 6)
    mean = QUANTIZE | {"dims": [2], "keepdim": keepdim, "a": 1, "b": 5}
    made = chain(
        (None, 6, 5),
        ("m", "mean", out, mean, {}),
        ("f", "dequantize", out, {}, {}),
        ("y", "float.scale_shift", out, {}, BOTH),
        dtype="uint8",
    )
    compared(made, np.random.default_rng(3).integers(0, 256, (4, 6, 5)).astype(np.uint8))


def test_a_product_is_divided_not_multiplied_with_the_reciprocal() -> None:
    """Halves of the scale, ties where they are odd, which the reciprocal misses; the product with 1 is exact."""
    scale = np.float32(0.0599717)
    x = np.arange(256, dtype=np.uint8).reshape(-1, 1)
    tensors = {
        "x": Tensor("x", "uint8", (None, 1), float(scale / 2), 128),
        "d": Tensor("d", "float32", (None, 1)),
        "f": Tensor("f", "float32", (None, 1)),
        "q": Tensor("q", "uint8", (None, 1), float(scale), 128),
    }
    ops = (
        Op("d", "dequantize", ("x",)),
        Op("f", "float.linear", ("d",), {}, {"weight": np.ones((1, 1), np.float32)}),
        Op("q", "quantize", ("f",), QUANTIZE),
    )
    made = Program(tensors, ops, ("x",), ("q",))
    (want,), (got,) = ReferenceEngine().prepare(made)({"x": x}), ENGINE.prepare(made, threads=1)({"x": x})
    halves = (x.astype(np.float32) - 128) * (scale / 2)
    assert (np.rint(halves * (np.float32(1) / scale)) + 128 != want).any()
    np.testing.assert_array_equal(got, want)
