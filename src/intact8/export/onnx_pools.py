"""Means and average pools as ONNX nodes. Scales count in steps of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import Dim
from intact8.arithmetic.windows import Edges, adaptive_windows, divisor_ratios, pool_windows, window_matrix
from intact8.opset.kind import zero_point
from intact8.opset.op import Array, Op, Tensor
from intact8.opset.proof import FLOAT32

from .onnx_builder import CONTRIB, Builder, Rule, reach, spatial_size

LARGEST_RATIO = 255
"""ONNX Runtime's quantized global average pool takes no ratio of scales from 256 on."""


def _mean(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a global average pool where the op is one, otherwise the sum of exact integers times M."""
    t, meta = op.attrs, inputs[0]
    count = math.prod(int(meta.shape[d] or 0) for d in t["dims"])
    wide = count * reach(meta) >= FLOAT32
    spatial = sorted(t["dims"]) == list(range(2, len(meta.shape))) and len(meta.shape) in (3, 4, 5)
    if spatial and 0 < t["a"] < LARGEST_RATIO * t["b"] and not wide:
        scale = t["b"] / (count * t["a"])
        if b.contrib:
            args = [*b.operand(x[0], meta), *b.grid(y, scale)]
            value = b.node("QLinearGlobalAveragePool", args, domain=CONTRIB, channels_last=0)
        else:
            average = b.node("GlobalAveragePool", [b.steps(x[0], zero_point(meta))])
            value = b.quantized(average, zero_point(y), 0, 255, scale)
        value = b.clamped(op, value)
        return value if t["keepdim"] else b.shaped(value, y.shape)
    total = b.node("ReduceSum", [_integers(b, x[0], meta, wide), b.ints(t["dims"], "dims")], keepdims=int(t["keepdim"]))
    return _scaled(b, op, total, np.float64(t["a"] / t["b"]), wide, y)


def _avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a depthwise convolution with ones where all windows have one divisor (ONNX Runtime's pool takes 20 × as
    long)."""
    t = op.attrs
    if len(t["multipliers"]) == 1:
        return _ones_conv(b, op, x[0], inputs[0], y, t["kernel"], t["stride"], t["padding"])
    size = spatial_size(inputs[0])
    edges, divisors = pool_windows(size, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
    return _windows(b, op, x[0], inputs[0], y, edges, divisors)


def _adaptive_avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return an ordinary average pool where the windows are equal."""
    out, size = op.attrs["output_size"], spatial_size(inputs[0])
    if all(n % o == 0 for n, o in zip(size, out, strict=True)):
        kernel = [n // o for n, o in zip(size, out, strict=True)]
        return _ones_conv(b, op, x[0], inputs[0], y, kernel, kernel, [0] * len(kernel))
    return _windows(b, op, x[0], inputs[0], y, *adaptive_windows(size, out))


def _ones_conv(
    b: Builder, op: Op, x: str, meta: Tensor, y: Tensor, kernel: list[int], stride: list[int], padding: list[int]
) -> str:
    """Return a depthwise convolution with ones; padding with the zero point adds nothing."""
    channels = int(meta.shape[1] or 0)
    [[_, numerator, denominator]] = op.attrs["multipliers"]
    behind = trailing_padding(meta.shape[2:], y.shape[2:], kernel, stride, padding, [1] * len(kernel))
    weights = b.weights(np.ones((channels, 1, *kernel), np.int8), numerator / denominator)
    where: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *behind], "group": channels}
    return b.clamped(op, b.node("QLinearConv", [*b.operand(x, meta), *weights, *b.grid(y)], **where))


def trailing_padding(
    size: Sequence[Dim],
    out: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> list[int]:
    """Return the padding behind an image that makes ``out`` windows fit, also where the last one reaches beyond (ceil
    mode); of sizes that are not known, what gives as many windows whatever the size is."""
    found = []
    for n, o, k, s, p, d in zip(size, out, kernel, stride, padding, dilation, strict=True):
        exact = isinstance(n, int) and isinstance(o, int)
        found.append(max(0, (o - 1) * s + d * (k - 1) + 1 - p - n) if exact else p + (s - 1 if ceil_mode else 0))
    return found


def along_axes(b: Builder, x: str, matrices: Sequence[Array], rank: int) -> str:
    """Multiply each trailing dimension by its (size, out) matrix: the last one, then rotate, as often as there are."""
    first = rank - len(matrices)
    rotate = [*range(first), rank - 1, *range(first, rank - 1)]
    for matrix in reversed(matrices):
        x = b.node("MatMul", [x, b.constant(matrix, "matrix")])
        if len(matrices) > 1:
            x = b.node("Transpose", [x], perm=rotate)
    return x


def _windows(b: Builder, op: Op, x: str, meta: Tensor, y: Tensor, edges: Edges, divisors: Array) -> str:
    """Return the windows of different divisors: exact sums by matrices of ones, each sum times its own M."""
    factors = divisor_ratios(op.attrs["multipliers"], divisors)
    terms = math.prod(int((end - start).max()) for start, end in edges)
    wide = terms * reach(meta) >= FLOAT32
    size = spatial_size(meta)
    dtype, windows = np.float64 if wide else np.float32, zip(edges, size, strict=True)
    matrices = [window_matrix(start, end, n).astype(dtype) for (start, end), n in windows]
    total = along_axes(b, _integers(b, x, meta, wide), matrices, len(meta.shape))
    return _scaled(b, op, total, factors, wide, y)


def _integers(b: Builder, x: str, meta: Tensor, wide: bool) -> str:
    """Build x − z as float32, or as float64 where sums may exceed 2²⁴."""
    if not wide:
        return b.steps(x, zero_point(meta))
    return b.node("Sub", [b.cast(x, "float64"), b.constant(np.float64(zero_point(meta)), "zero_point")])


def _scaled(b: Builder, op: Op, total: str, factors: Array | np.float64, wide: bool, y: Tensor) -> str:
    """Build clamp(R(total · factors) + z, lo, hi)."""
    dtype = np.float64 if wide else np.float32
    value = b.node("Mul", [total, b.constant(np.asarray(factors, dtype), "multiplier")])
    return b.result(op, b.cast(value, "float32") if wide else value, y)


RULES: dict[str, Rule] = {"mean": _mean, "avg_pool": _avg_pool, "adaptive_avg_pool": _adaptive_avg_pool}
"""Kind → rule."""
