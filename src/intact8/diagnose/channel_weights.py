"""The weights of a program's layers per output channel, as real numbers: what compare, lint and report share."""

from __future__ import annotations

from intact8.opset import KINDS, dequantized
from intact8.opset.op import Array, Op
from intact8.program.program import Program


def has_channel_scales(op: Op) -> bool:
    """Return whether ``op`` multiplies quantized inputs by int8 weights with a scale for every output channel."""
    kind = KINDS[op.kind]
    return kind.stores_integers and ("a" in kind.arrays or kind in dequantized.KINDS)


def channel_scales(program: Program, op: Op) -> Array:
    """Return the scale of every output channel's weight, float64 (O,).

    The multiplier of a channel is M = a/b = s_x·s_w/s_y (docs/arithmetic.md), so s_w = a·s_y / (b·s_x). It is
    s_x·s_w where sums become float32.
    """
    x, y = program.tensors[op.inputs[0]], program.tensors[op.name]
    if "scale" in op.arrays:
        assert x.scale is not None, f"{op.name} is checked: it takes a quantized tensor"
        return op.arrays["scale"].astype("float64") / x.scale
    assert x.scale is not None and y.scale is not None, f"{op.name} is checked: it takes and gives quantized tensors"
    a, b = op.multipliers()
    scales: Array = a / b * (y.scale / x.scale)
    return scales
