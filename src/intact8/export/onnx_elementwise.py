"""quantize, dequantize, add, mul and table as ONNX nodes. Scales count in steps of the output."""

from __future__ import annotations

import math

from intact8.export.onnx_builder import CONTRIB, Builder, Rule
from intact8.export.onnx_tables import build_form
from intact8.opset.kind import zero_point
from intact8.opset.op import Op, Tensor


def _quantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """QuantizeLinear is ``quantize`` (IEEE division, ties to even), but ONNX leaves open what becomes of NaN."""
    if inputs[0].dtype == "uint8":
        return b.clamped(op, x[0])  # the caller gives the integers themselves
    value = x[0]
    if value not in b.given and not b.nan_is_least:  # NaN becomes −∞, and that the least integer
        value = b.node("Where", [b.node("IsNaN", [value]), b.float(-math.inf, "least"), value])
    return b.quantized(value, zero_point(y), op.attrs["lo"], op.attrs["hi"], y.scale)


def _dequantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("DequantizeLinear", b.operand(x[0], inputs[0], inputs[0].scale))


def _add(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Two terms are the pattern DequantizeLinear, Add, QuantizeLinear (one QLinearAdd in contrib); more are a chain."""
    ratios = [a / op.attrs["b"] for a in op.attrs["a"]]
    # The first term is positive where there is one, so that the rest is added or subtracted.
    terms = sorted(zip(ratios, x, inputs, strict=True), key=lambda term: term[0] < 0)
    if b.contrib and len(x) == 2 and min(ratios) > 0:
        operands = [v for r, name, t in terms for v in b.operand(name, t, r)]
        return b.clamped(op, b.node("QLinearAdd", [*operands, *b.grid(y)], domain=CONTRIB))
    if len(x) == 1:
        # Not DequantizeLinear → QuantizeLinear: runtimes merge such pairs into one with another rounding.
        return b.result(op, b.node("Mul", [b.steps(x[0], zero_point(inputs[0])), b.float(ratios[0])]), y)
    (r, name, t), *others = terms
    total = b.steps(name, zero_point(t), abs(r))
    total = b.node("Neg", [total]) if r < 0 else total
    for r, name, t in others:
        total = b.node("Add" if r > 0 else "Sub", [total, b.steps(name, zero_point(t), abs(r))])
    return b.result(op, total, y)


def _mul(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build DequantizeLinear, Mul, QuantizeLinear (QLinearMul in contrib), M on the first factor."""
    factors = [b.operand(x[0], inputs[0], op.attrs["a"] / op.attrs["b"]), b.operand(x[1], inputs[1])]
    if b.contrib:
        return b.clamped(op, b.node("QLinearMul", [*factors[0], *factors[1], *b.grid(y)], domain=CONTRIB))
    return b.result(op, b.node("Mul", [b.node("DequantizeLinear", factor) for factor in factors]), y)


def _table(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build table[x] by GatherElements: ONNX Runtime's Gather copies blocks, however small, and takes 15 × as long."""
    if op.name in b.forms:
        return build_form(b, op, x[0], b.forms[op.name])
    flat = b.cast(b.node("Reshape", [x[0], b.ints([-1], "flat")]), "int32")
    return b.shaped(b.node("GatherElements", [b.constant(op.arrays["table"], "table"), flat], axis=0), y.shape)


RULES: dict[str, Rule] = {"quantize": _quantize, "dequantize": _dequantize, "add": _add, "mul": _mul, "table": _table}
"""Kind → rule."""
