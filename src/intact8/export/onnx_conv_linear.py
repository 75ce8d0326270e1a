"""Convolutions and linear layers as ONNX nodes.

Scales of the quantized operators count in steps of the output: 1 for the activations, M = a/b for the weights, so that
an engine multiplies its exact int32 sum by float32(a/b) and by nothing else.

================= ==================================================================================================
plain             QLinearConv; QGemm (contrib) or MatMulInteger → + bias → × M → QuantizeLinear
leaky, PReLU      the larger of two such results, one per slope (rounding and clamping keep the order, so that the
                  larger result is the result of the larger product); from the sums, × M, where a negative slope meets
                  a weight of −128
two activations   QLinearMatMul
fused residual    Conv in float32 where every partial sum is below 2²⁴ (else ConvInteger) → × M → + residual →
                  QuantizeLinear; ONNX has no quantized operator for it
float32 result    ConvInteger or MatMulInteger → Cast → × scale → + bias
transposed        the ordinary convolution of the input with zero points between its elements
================= ==================================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import less, multiplied
from intact8.arithmetic.integer import flip_transposed
from intact8.export.onnx_builder import CONTRIB, Builder, Rule, reach
from intact8.opset.kind import zero_point
from intact8.opset.op import Array, Op, Tensor
from intact8.opset.proof import FLOAT32


def _conv(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build ``conv`` of any rank."""
    t, weight, value = op.attrs, op.arrays["weight"], x[0]
    rank = weight.ndim - 2
    attrs: dict[str, Any] = {"strides": t["stride"], "dilations": t["dilation"], "group": t["groups"]}
    attrs["pads"] = t["padding"] * 2
    if t["transposed"]:
        value = _spread_input(b, value, inputs[0], op)
        weight = flip_transposed(weight, t["groups"])
        attrs |= {"strides": [1] * rank, "pads": [0] * (2 * rank)}
    attrs["kernel_shape"] = list(weight.shape[2:])
    if y.dtype == "float32":
        acc = b.node("ConvInteger", [value, b.constant(weight, "weight"), b.byte(zero_point(inputs[0]))], **attrs)
        return _scaled(b, op, acc, [1] * rank)
    if len(x) == 2:
        acc = _float_sums(b, value, inputs[0], weight, op.arrays["bias"], attrs)
        return _with_residual(b, op, acc, x[1], inputs[1], y, [1] * rank)
    if _turns_least(op):
        return _multiplied(b, op, _float_sums(b, value, inputs[0], weight, op.arrays["bias"], attrs), y, [1] * rank)

    def product(w: Array, bias: Array, scale: Array) -> str:
        args = [*b.operand(value, inputs[0]), *b.weights(w, scale), *b.grid(y), b.constant(bias, "bias")]
        return b.node("QLinearConv", args, **attrs)

    return b.clamped(op, _either(b, op, weight, product))


def _linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build ``linear`` on the last dimension."""
    weight, flat = op.arrays["weight"], len(inputs[0].shape) == 2
    if y.dtype == "float32":
        columns = b.constant(np.ascontiguousarray(weight.T), "weight")
        return _scaled(b, op, b.node("MatMulInteger", [x[0], columns, b.byte(zero_point(inputs[0]))]), [])
    if not b.contrib or len(x) == 2 or _turns_least(op):
        acc = _matrix_sums(b, x[0], zero_point(inputs[0]), weight, op.arrays["bias"])
        if len(x) == 2:
            return _with_residual(b, op, acc, x[1], inputs[1], y, [])
        return _multiplied(b, op, acc, y, [])
    rows = x[0] if flat else b.node("Reshape", [x[0], b.ints([-1, weight.shape[1]], "rows")])

    def product(w: Array, bias: Array, scale: Array) -> str:
        args = [*b.operand(rows, inputs[0]), *b.weights(w.T, scale), b.constant(bias, "bias"), *b.grid(y)]
        return b.node("QGemm", args, domain=CONTRIB)

    value = b.clamped(op, _either(b, op, weight, product))
    return value if flat else b.shaped(value, y.shape)


def _matmul(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build ``matmul`` of two activations."""
    first, second = b.operand(x[0], inputs[0], op.attrs["a"] / op.attrs["b"]), b.operand(x[1], inputs[1])
    return b.clamped(op, b.node("QLinearMatMul", [*first, *second, *b.grid(y)]))


def _ratio(op: Op, a: str, b: str) -> Array:
    """Build a/b per channel, rounded once to float32."""
    return np.asarray(op.arrays[a].astype(np.float64) / op.arrays[b].astype(np.float64), np.float32)


def _turns_least(op: Op) -> bool:
    """Return whether a negative slope would turn the sign of a weight of −128, which int8 cannot hold turned."""
    return "a_neg" in op.arrays and bool((op.arrays["a_neg"] < 0).any() and (op.arrays["weight"] == -128).any())


def _multiplied(b: Builder, op: Op, acc: str, y: Tensor, trailing: list[int]) -> str:
    """Build clamp(R(M·acc) + z_y, lo, hi) of sums in float32, by the multipliers of the negative side where it is."""

    def scaled(scale: Array) -> str:
        multiplier = b.float(scale.reshape(-1, *trailing), "multiplier")
        return b.quantized(b.node("Mul", [acc, multiplier]), zero_point(y), 0, 255)

    return b.clamped(op, _larger(b, op, scaled(_ratio(op, "a", "b")), scaled))


def _either(b: Builder, op: Op, weight: Array, product: Any) -> str:
    """Build ``product(weight, bias, M)``, combined with the product by the multipliers of the negative side, if any."""
    bias = op.arrays["bias"]
    first = product(weight, bias, _ratio(op, "a", "b"))

    def second(scale: Array) -> str:
        # Scales of quantized operators are positive: a negative slope turns the signs of the weights instead.
        sign = np.where(scale < 0, -1, 1)
        turned = (weight * sign.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.int8)
        return str(product(turned, (bias * sign).astype(np.int32), np.abs(scale)))

    return _larger(b, op, first, second)


def _larger(b: Builder, op: Op, first: str, second: Any) -> str:
    """Build ``first`` where acc ≥ 0, else the result by M': the larger of both where M ≥ M', otherwise the smaller."""
    if "a_neg" not in op.arrays:
        return first
    negative = _ratio(op, "a_neg", "b_neg")
    other = second(negative)
    a, a_neg = op.arrays["a"].astype(np.int64), op.arrays["a_neg"].astype(np.int64)
    rising = a * op.arrays["b_neg"] >= a_neg * op.arrays["b"]
    if rising.all():
        return b.largest([first, other], "uint8")
    if not rising.any():
        return b.smallest([first, other], "uint8")
    rank = op.arrays["weight"].ndim - 2
    mask = b.constant(rising.reshape(-1, *[1] * rank), "rising")
    return b.node("Where", [mask, b.largest([first, other], "uint8"), b.smallest([first, other], "uint8")])


def _float_sums(b: Builder, x: str, meta: Tensor, w: Array, bias: Array, attrs: dict[str, Any]) -> str:
    """Return the exact sums as float32 (rounded once from int32 where they may exceed 2²⁴)."""
    magnitude = np.abs(w.reshape(len(w), -1).astype(np.int64)).sum(axis=1) * reach(meta) + np.abs(bias.astype(np.int64))
    if magnitude.max() < FLOAT32:
        weights = [b.constant(w.astype(np.float32), "weight"), b.constant(bias.astype(np.float32), "bias")]
        return b.node("Conv", [b.steps(x, zero_point(meta)), *weights], **attrs)
    acc = b.node("ConvInteger", [x, b.constant(w, "weight"), b.byte(zero_point(meta))], **attrs)
    shape = [-1, *[1] * (w.ndim - 2)]
    return b.cast(b.node("Add", [acc, b.constant(bias.reshape(shape), "bias")]), "float32")


def _scaled(b: Builder, op: Op, acc: str, trailing: list[int]) -> str:
    """Build fl(fl(fl(acc)·scale) + bias); ``trailing``: dimensions of 1 behind the channels."""
    scale, bias = (op.arrays[role].reshape(-1, *trailing) if role in op.arrays else None for role in ("scale", "bias"))
    value = b.node("Mul", [b.cast(acc, "float32"), b.constant(scale, "scale")])
    return value if bias is None else b.node("Add", [value, b.constant(bias, "bias")])


def _matrix_sums(b: Builder, x: str, z: int, w: Array, bias: Array) -> str:
    """Return the exact sums, rounded once to float32."""
    acc = b.node("MatMulInteger", [x, b.constant(np.ascontiguousarray(w.T), "weight"), b.byte(z)])
    return b.cast(b.node("Add", [acc, b.constant(bias, "bias")]), "float32")


def _with_residual(b: Builder, op: Op, acc: str, residual: str, meta: Tensor, y: Tensor, trailing: list[int]) -> str:
    """Build clamp(R(M·acc + r·(residual − z)) + z_y, lo, hi), one rounding."""
    scaled = b.node("Mul", [acc, b.float(_ratio(op, "a", "b").reshape(-1, *trailing), "multiplier")])
    term = b.steps(residual, zero_point(meta), op.attrs["residual_a"] / int(op.arrays["b"][0]))
    return b.result(op, b.node("Add", [scaled, term]), y)


def _spread_input(b: Builder, x: str, meta: Tensor, op: Op) -> str:
    """Return the input of a transposed convolution, stride − 1 zero points between elements, padded for the flipped
    kernel."""
    t, size, z = op.attrs, [d for d in meta.shape[2:] if d is not None], zero_point(meta)
    if any(s > 1 for s in t["stride"]):
        # Every element becomes the first of a block of its own: (N, C, H, 1, W, 1) → (N, C, H, s, W, s).
        x = b.shaped(x, [*meta.shape[:2], *(v for n in size for v in (n, 1))])
        after = [0, 0, *(v for s in t["stride"] for v in (0, s - 1))]
        x = b.node("Pad", [x, b.ints([0] * len(after) + after, "blocks"), b.byte(z)])
        x = b.shaped(x, [*meta.shape[:2], *(multiplied([n, s]) for n, s in zip(size, t["stride"], strict=True))])
    kernel = op.arrays["weight"].shape[2:]
    before = [d * (k - 1) - p for d, k, p in zip(t["dilation"], kernel, t["padding"], strict=True)]
    # The last block carries stride − 1 elements too many; a negative width crops.
    behind = [r + o - (s - 1) for r, o, s in zip(before, t["output_padding"], t["stride"], strict=True)]
    starts = [max(0, -r) for r in before]
    ends = [less(multiplied([n, s]), max(0, -r)) for n, s, r in zip(size, t["stride"], behind, strict=True)]
    axes = list(range(2, 2 + len(size)))
    if any(starts) or any(r < 0 for r in behind):
        x = b.node("Slice", [x, b.ints(starts, "starts"), b.vector(ends, "ends"), b.ints(axes, "axes")])
    pads = [max(0, r) for r in before], [max(0, r) for r in behind]
    if any(pads[0]) or any(pads[1]):
        x = b.node("Pad", [x, b.ints([0, 0, *pads[0], 0, 0, *pads[1]], "pads"), b.byte(z)])
    return x


RULES: dict[str, Rule] = {
    "conv": _conv,
    "linear": _linear,
    "dequantized_conv": _conv,
    "dequantized_linear": _linear,
    "matmul": _matmul,
}
"""Kind → rule."""
