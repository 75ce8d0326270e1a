"""Dynamic quantization and decoded weights in standard ONNX operators, one per rounding of the definition.

dynamic_linear: Abs → ReduceMax (+ Σ 0·x, for NaN) → Div 127 → Max 2⁻⁶⁰ is the scale s; Div → QuantizeLinear (scale 1,
zero point 128) the integers; MatMulInteger → Cast → Mul s_w → Mul s → Add b the result. No single operator does the
same: ONNX's DynamicQuantizeLinear has one scale per tensor, and a zero point.

Decoded weights: codes stay bytes in the file. A runtime decodes those of a linear layer once, as constants.
"""

from __future__ import annotations

import numpy as np

from intact8.arithmetic.bit_packing import MIDDLE, group_count
from intact8.arithmetic.dynamic import REACH, SMALLEST, ZERO
from intact8.export.onnx_builder import Builder, Rule
from intact8.opset.op import Op, Tensor


def dynamic_linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build ``dynamic_linear`` on the last dimension. Operations that read the same tensor share its integers."""
    q, s = b.once((x[0], op.attrs["granularity"]), lambda: _rows(b, op, x[0], inputs[0]))
    weight = b.constant(np.ascontiguousarray(op.arrays["weight"].T), "weight")
    acc = b.cast(b.node("MatMulInteger", [q, weight, b.byte(ZERO)]), "float32")
    value = b.node("Mul", [b.node("Mul", [acc, b.constant(op.arrays["scale"], "scale")]), s])
    return b.add_bias(op, value)


def _rows(b: Builder, op: Op, x: str, meta: Tensor) -> tuple[str, str]:
    """Return the integers of a tensor and their scales."""
    rank = len(meta.shape)
    axes = [rank - 1] if op.attrs["granularity"] == "per_row" else list(range(rank))
    s = row_scale(b, largest_magnitude(b, x, axes))
    return b.quantized(b.node("Div", [x, s]), ZERO, 0, 255), s


def largest_magnitude(b: Builder, x: str, axes: list[int]) -> str:
    """Return the largest |x| along axes; NaN where one is infinite or NaN, which ReduceMax may pass over."""
    nothing = b.node("ReduceSum", [b.node("Mul", [x, b.float(0.0)]), b.ints(axes, "axes")], keepdims=1)
    return b.node("Add", [b.node("ReduceMax", [b.node("Abs", [x])], axes=axes, keepdims=1), nothing])


def row_scale(b: Builder, m: str) -> str:
    """Return the scale of rows whose :func:`largest_magnitude` is m."""
    s = b.node("Max", [b.node("Div", [m, b.float(REACH)]), b.float(SMALLEST)])
    return b.node("Add", [s, b.node("Sub", [m, m])])


def _decoded_embedding(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the gathers rows and decodes them."""
    weight, scale = (b.constant(op.arrays[role], role) for role in ("weight", "scale"))
    index = b.index(op, x[0])
    codes, scales = b.node("Gather", [weight, index], axis=0), b.node("Gather", [scale, index], axis=0)
    return _decoded(b, op, codes, scales, len(y.shape))


def _decoded_linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a float product with the decoded weight."""
    weight = _decoded(b, op, b.constant(op.arrays["weight"], "weight"), b.constant(op.arrays["scale"], "scale"), 2)
    value = b.node("MatMul", [x[0], b.node("Transpose", [weight], perm=[1, 0])])
    return b.add_bias(op, value)


def _decoded(b: Builder, op: Op, codes: str, scales: str, rank: int) -> str:
    """Build fl(q·s) of codes (…, bytes) and scales (…, groups), ``rank`` dimensions."""
    bits, columns, group = op.attrs["bits"], op.attrs["columns"], op.attrs["group"]
    numbers = b.cast(codes, "int32")
    if bits == 4:
        numbers = _halves(b, numbers, columns, rank)
    q = b.cast(b.node("Sub", [numbers, b.constant(np.int32(MIDDLE[bits]), "middle")]), "float32")
    if group:
        index = np.repeat(np.arange(group_count(columns, group)), group)[:columns]
        scales = b.node("Gather", [scales, b.ints([int(i) for i in index], "groups")], axis=rank - 1)
    return b.node("Mul", [q, scales])


def _halves(b: Builder, numbers: str, columns: int, rank: int) -> str:
    """Return the low and high halves of bytes (…, n) in turn, (…, columns)."""
    sixteen = b.constant(np.int32(16), "sixteen")
    high = b.node("Div", [numbers, sixteen])
    low = b.node("Sub", [numbers, b.node("Mul", [high, sixteen])])
    axes = b.ints([rank], "axes")
    pairs = b.node("Concat", [b.node("Unsqueeze", [low, axes]), b.node("Unsqueeze", [high, axes])], axis=rank)
    flat = b.node("Reshape", [pairs, b.ints([0] * (rank - 1) + [-1], "flat")])
    first, last = b.ints([0], "first"), b.ints([columns], "last")
    return b.node("Slice", [flat, first, last, b.ints([rank - 1], "axis")])


RULES: dict[str, Rule] = {
    "dynamic_linear": dynamic_linear,
    "decoded_embedding": _decoded_embedding,
    "float.decoded_linear": _decoded_linear,
}
"""Kind → rule."""
