"""Quantization on the native engine gives the integers of IEEE division, next to the middle of two integers, too."""

from __future__ import annotations

import numpy as np
import pytest

from intact8.engines import get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(get_engine("native").available() is not None, reason="the library was not built")

CONV = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0]}


def quantizer(shape, scale, zero, low, high):
    """A program that quantizes images, which a convolution reads channels last."""
    channels = shape[1]
    tensors = {
        "x": Tensor("x", "float32", shape),
        "q": Tensor("q", "uint8", shape, float(scale), zero),
        "y": Tensor("y", "uint8", (shape[0], 1, *shape[2:]), 1.0, 0),
    }
    one = np.ones(1, np.int32)
    arrays = {"weight": np.ones((1, channels, 1, 1), np.int8), "bias": 0 * one, "a": one, "b": 1023 * one}
    attrs = {**CONV, "groups": 1, "transposed": False, "residual_a": 0, "lo": 0, "hi": 255}
    ops = (Op("q", "quantize", ("x",), {"lo": low, "hi": high}), Op("y", "conv", ("q",), attrs, arrays))
    return Program(tensors, ops, ("x",), ("q", "y"))


def near_middles(rng, shape, scale):
    """Numbers whose quotients lie within some units in the last place of k + ½, and others."""
    x = ((rng.integers(-300, 300, shape) + 0.5) * np.float64(scale)).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-4, 5, shape).astype(np.int32)).view(np.float32)
    others = rng.choice([np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, -0.0], shape).astype(np.float32)
    ordinary = (rng.standard_normal(shape) * 100 * scale).astype(np.float32)
    kind = rng.random(shape)
    return np.where(kind < 0.6, x, np.where(kind < 0.7, others, ordinary))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("seed", range(30))
def test_integers_are_those_of_the_quotient(seed):
    rng = np.random.default_rng(seed)
    scale = np.float32(rng.choice([rng.uniform(1e-3, 1), 2.0 ** rng.integers(-8, 8), 10.0 ** rng.uniform(-37, 37)]))
    zero = int(rng.integers(0, 256))
    low, high = (0, 255) if seed % 2 else sorted(rng.integers(0, 256, 2).tolist())
    shape = (int(rng.integers(1, 3)), int(rng.choice([1, 2, 3, 5])), *rng.integers(1, 70, 2).tolist())
    x = near_middles(rng, shape, scale)
    runner = get_engine("native").prepare(quantizer(shape, scale, zero, low, high), threads=1 + seed % 2)
    expected = np.clip(np.rint(x / scale) + np.float32(zero), low, high).astype(np.uint8)
    assert np.array_equal(runner({"x": x})[0], expected)
