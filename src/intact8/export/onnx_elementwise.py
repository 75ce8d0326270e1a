"""Sums, products of two activations, averages and tables as ONNX nodes. Scales count in steps of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from intact8.arithmetic.dimensions import Dim
from intact8.arithmetic.windows import Edges, adaptive_windows, divisor_ratios, pool_windows, window_matrix
from intact8.export.onnx_builder import CONTRIB, Builder, reach, zero
from intact8.export.onnx_tables import build_form
from intact8.opset.op import Array, Op, Tensor
from intact8.opset.proof import FLOAT32

LARGEST_RATIO = 255
"""ONNX Runtime's quantized global average pool takes no ratio of scales from 256 on."""


def quantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """QuantizeLinear is defined as the contract's ``quantize`` (IEEE division, ties to even) but for NaN."""
    if inputs[0].dtype == "uint8":
        return b.clipped(x[0], op.attrs["lo"], op.attrs["hi"])  # the caller gives the integers themselves
    return b.quantized(_numbers(b, x[0]), zero(y), op.attrs["lo"], op.attrs["hi"], y.scale)


def _numbers(b: Builder, x: str) -> str:
    """``x`` with NaN as −∞, which becomes the least integer: ONNX does not say what QuantizeLinear makes of NaN."""
    if x in b.given or b.nan_is_least:
        return x
    return b.node("Where", [b.node("IsNaN", [x]), b.float(-math.inf, "least"), x])


def dequantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """(q − z)·s."""
    return b.steps(x[0], zero(inputs[0]), inputs[0].scale)


def add(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Two terms are the pattern DequantizeLinear, Add, QuantizeLinear (one QLinearAdd in contrib); more are a chain."""
    a, denominator, lo, hi = op.attrs["a"], op.attrs["b"], op.attrs["lo"], op.attrs["hi"]
    zeros = [zero(t) for t in inputs]
    if b.contrib and len(x) == 2 and min(a) > 0:
        one = b.float(1.0, "scale")
        terms = [v for name, z, n in zip(x, zeros, a, strict=True) for v in (name, b.float(n / denominator), b.byte(z))]
        return b.clipped(b.node("QLinearAdd", [*terms, one, b.byte(zero(y))], domain=CONTRIB), lo, hi)
    if len(x) == 1:
        # Not DequantizeLinear → QuantizeLinear: runtimes merge such pairs into one with another rounding.
        total = b.node("Mul", [b.steps(x[0], zeros[0]), b.float(a[0] / denominator)])
        return b.quantized(total, zero(y), lo, hi)
    # The first term is positive where there is one, so that the rest is added or subtracted.
    order = sorted(range(len(a)), key=lambda j: a[j] < 0)
    total = b.steps(x[order[0]], zeros[order[0]], abs(a[order[0]]) / denominator)
    if a[order[0]] < 0:
        total = b.node("Neg", [total])
    for j in order[1:]:
        term = b.steps(x[j], zeros[j], abs(a[j]) / denominator)
        total = b.node("Add" if a[j] > 0 else "Sub", [total, term])
    return b.quantized(total, zero(y), lo, hi)


def mul(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """DequantizeLinear, Mul, QuantizeLinear (QLinearMul in contrib), M on the first factor."""
    t, ratio = op.attrs, op.attrs["a"] / op.attrs["b"]
    (zx, zw), one = [zero(m) for m in inputs], b.float(1.0, "scale")
    if b.contrib:
        factors = [x[0], b.float(ratio), b.byte(zx), x[1], one, b.byte(zw), one, b.byte(zero(y))]
        return b.clipped(b.node("QLinearMul", factors, domain=CONTRIB), t["lo"], t["hi"])
    product = b.node("Mul", [b.steps(x[0], zx, ratio), b.steps(x[1], zw)])
    return b.quantized(product, zero(y), t["lo"], t["hi"])


def table(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """entries[x]. GatherElements: ONNX Runtime's Gather copies blocks, however small, and takes 15 × as long."""
    if op.name in b.forms:
        return build_form(b, op, x[0], b.forms[op.name])
    flat = b.cast(b.node("Reshape", [x[0], b.ints([-1], "flat")]), "int32")
    return b.shaped(b.node("GatherElements", [b.constant(op.arrays["table"], "table"), flat], axis=0), y.shape)


def mean(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """A global average pool where it is one, else the sum of exact integers, times M."""
    t, meta = op.attrs, inputs[0]
    count = math.prod(int(meta.shape[d] or 0) for d in t["dims"])
    wide = count * reach(meta) >= FLOAT32
    spatial = sorted(t["dims"]) == list(range(2, len(meta.shape))) and len(meta.shape) in (3, 4, 5)
    if spatial and 0 < t["a"] < LARGEST_RATIO * t["b"] and not wide:
        scale = t["b"] / (count * t["a"])
        if b.contrib:
            args = [x[0], b.float(1.0, "scale"), b.byte(zero(meta)), b.float(scale, "scale"), b.byte(zero(y))]
            value = b.node("QLinearGlobalAveragePool", args, domain=CONTRIB, channels_last=0)
        else:
            average = b.node("GlobalAveragePool", [b.steps(x[0], zero(meta))])
            value = b.quantized(average, zero(y), 0, 255, scale)
        value = b.clipped(value, t["lo"], t["hi"])
        return value if t["keepdim"] else b.shaped(value, y.shape)
    total = b.node("ReduceSum", [_integers(b, x[0], meta, wide), b.ints(t["dims"], "dims")], keepdims=int(t["keepdim"]))
    return _scaled(b, op, total, np.float64(t["a"] / t["b"]), wide, y)


def avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """A depthwise convolution with ones where all windows have one divisor (ONNX Runtime's pool takes 20 × as long)."""
    t, size = op.attrs, [int(d or 0) for d in inputs[0].shape[2:]]
    if len(t["multipliers"]) == 1:
        return _ones(b, op, x[0], inputs[0], y, t["kernel"], t["stride"], t["padding"])
    edges, divisors = pool_windows(size, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
    return _windows(b, op, x[0], inputs[0], y, edges, divisors)


def adaptive_avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """An ordinary average pool where the windows are equal."""
    out, size = op.attrs["output_size"], [int(d or 0) for d in inputs[0].shape[2:]]
    if all(n % o == 0 for n, o in zip(size, out, strict=True)):
        kernel = [n // o for n, o in zip(size, out, strict=True)]
        return _ones(b, op, x[0], inputs[0], y, kernel, kernel, [0] * len(kernel))
    return _windows(b, op, x[0], inputs[0], y, *adaptive_windows(size, out))


def _ones(
    b: Builder, op: Op, x: str, meta: Tensor, y: Tensor,
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
) -> str:  # fmt: skip
    """Padding with the zero point adds nothing."""
    t, channels, one = op.attrs, int(meta.shape[1] or 0), b.float(1.0, "scale")
    [[_, numerator, denominator]] = t["multipliers"]
    behind = hang(meta.shape[2:], y.shape[2:], kernel, stride, padding, [1] * len(kernel))
    weight = np.ones((channels, 1, *kernel), np.int8)
    value = b.node(
        "QLinearConv",
        [x, one, b.byte(zero(meta)), b.constant(weight, "ones"), b.float(numerator / denominator, "multiplier"),
         b.constant(np.int8(0), "weight_zero_point"), one, b.byte(zero(y))],
        kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *behind], group=channels,
    )  # fmt: skip
    return b.clipped(value, t["lo"], t["hi"])


def hang(
    size: Sequence[Dim], out: Sequence[Dim], kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """Padding behind that makes ``out`` windows fit, also where the last one hangs over (ceil mode)."""
    rows = zip(size, out, kernel, stride, padding, dilation, strict=True)
    return [max(0, (int(o or 1) - 1) * s + d * (k - 1) + 1 - p - int(n or 0)) for n, o, k, s, p, d in rows]


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
    """Windows of different divisors: exact sums by matrices of ones, each times its own M."""
    factors = divisor_ratios(op.attrs["multipliers"], divisors)
    terms = math.prod(int((end - start).max()) for start, end in edges)
    wide = terms * reach(meta) >= FLOAT32
    size = [int(d or 0) for d in meta.shape[2:]]
    matrices = [
        window_matrix(start, end, n).astype(np.float64 if wide else np.float32)
        for (start, end), n in zip(edges, size, strict=True)
    ]
    total = along_axes(b, _integers(b, x, meta, wide), matrices, len(meta.shape))
    return _scaled(b, op, total, factors, wide, y)


def _integers(b: Builder, x: str, meta: Tensor, wide: bool) -> str:
    """x − z as float32, or as float64 where sums may exceed 2²⁴."""
    if not wide:
        return b.steps(x, zero(meta))
    return b.node("Sub", [b.cast(x, "float64"), b.constant(np.float64(zero(meta)), "zero_point")])


def _scaled(b: Builder, op: Op, total: str, factors: Array | np.float64, wide: bool, y: Tensor) -> str:
    """clamp(R(total · factors) + z, lo, hi)."""
    dtype = np.float64 if wide else np.float32
    value = b.node("Mul", [total, b.constant(np.asarray(factors, dtype), "multiplier")])
    return b.quantized(b.cast(value, "float32") if wide else value, zero(y), op.attrs["lo"], op.attrs["hi"])
