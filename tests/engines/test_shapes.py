"""Tensors whose dimension None is a multiple of the batch size: windows, heads and positions moved into it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")


from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.openvino.numpy_quantizer import quantize_into
from intact8.engines.reference import ReferenceEngine
from intact8.engines.shapes import sized
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

SCALE = 1 / 16


def windows() -> Program:
    """Four windows of each sample, softmax in each, products with the windows again: None is four times the batch."""
    declared = [
        ("x", "float32", (None, 4, 3, 3)), ("q", "uint8", (None, 4, 3, 3)), ("w", "uint8", (None, 3, 3)),
        ("f", "float32", (None, 3, 3)), ("s", "float32", (None, 3, 3)), ("sq", "uint8", (None, 3, 3)),
        ("m", "uint8", (None, 3, 3)), ("y", "uint8", (None, 4, 3, 3)),
    ]  # fmt: skip
    tensors = {
        n: Tensor(n, dtype, shape, *((SCALE, 8) if dtype == "uint8" else (None, None))) for n, dtype, shape in declared
    }
    ops = (
        Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),
        Op("w", "reshape", ("q",), {"shape": [-1, 3, 3]}),
        Op("f", "dequantize", ("w",), {}),
        Op("s", "float.softmax", ("f",), {"axis": 2}),
        Op("sq", "quantize", ("s",), {"lo": 0, "hi": 255}),
        Op("m", "matmul", ("sq", "w"), {"a": 1, "b": 7, "lo": 0, "hi": 255}),
        Op("y", "reshape", ("m",), {"shape": [-1, 4, 3, 3]}),
    )
    program = Program(tensors, ops, ("x",), ("y",), structure=0)
    check(program)
    return program


@pytest.mark.parametrize("batch", [1, 2, 3, 9])
def test_what_is_fed_has_the_shape_it_has_there(batch: int) -> None:
    """A parameter of a quarter of that size was written and read beyond its end."""
    program = windows()
    x = {"x": np.random.default_rng(batch).normal(0, 4, (batch, 4, 3, 3)).astype(np.float32)}
    ideal = ReferenceEngine().prepare(program).tensors(x)
    runner = ENGINE.prepare(program)
    seen = runner.tensors(x, {"s": ideal["s"]})
    for name, want in ideal.items():
        np.testing.assert_array_equal(seen[name], want, err_msg=name)
    assert runner(x)[0].shape == (batch, 4, 3, 3)


def test_a_feed_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"fed float32 of shape \(9, 3, 3\), not float32 of \(8, 3, 3\)"):
        ENGINE.prepare(windows()).tensors(
            {"x": np.zeros((2, 4, 3, 3), np.float32)}, {"s": np.zeros((9, 3, 3), np.float32)}
        )


def test_every_shape_at_a_batch_size() -> None:
    program = windows()
    shapes = {name: t.shape for name, t in sized(program, 5).tensors.items()}
    assert shapes["sq"] == (20, 3, 3) and shapes["y"] == (5, 4, 3, 3)
    assert list(shapes) == list(program.tensors)


def test_a_batch_that_does_not_fit() -> None:
    tensors = {"x": Tensor("x", "float32", (None, 3)), "y": Tensor("y", "float32", (None, 2, 3))}
    program = Program(tensors, (Op("y", "reshape", ("x",), {"shape": [-1, 2, 3]}),), ("x",), ("y",))
    with pytest.raises(InputError, match="a batch of 3 does not fit"):
        sized(program, 3)


def test_the_pass_that_quantizes_does_not_write_beyond_its_memory() -> None:
    op, result = Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}), Tensor("q", "uint8", (None, 3), 0.5, 10)
    with pytest.raises(InputError, match="expected shape"):
        quantize_into(np.empty((1, 3), np.uint8), op, result, np.zeros((64, 3), np.float32))
