"""What a program's arrays say about its layers, without running it."""

from __future__ import annotations

import numpy as np

from intact8.diagnose.report.contents import Channels
from intact8.opset import KINDS
from intact8.opset.affine import by_output
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

WEIGHTED = ("conv", "linear")


def channels(program: Program, op: Op) -> Channels | None:
    """Weight ranges per output channel; None for ops without int8 weights.

    The multiplier of a channel is M = a/b = s_x·s_w/s_y (docs/arithmetic.md), so s_w = a·s_y / (b·s_x).
    """
    if op.kind not in WEIGHTED:
        return None
    x, y = program.tensors[op.inputs[0]], program.tensors[op.name]
    assert x.scale is not None and y.scale is not None  # check() has seen to it
    a, b = op.multipliers()
    scale = a / b * (y.scale / x.scale)
    weight = by_output(op)
    low, high = weight.min(axis=1), weight.max(axis=1)
    return Channels(
        scale=tuple(scale.tolist()),
        low=tuple((low * scale).tolist()),
        high=tuple((high * scale).tolist()),
        used=tuple(np.maximum(np.abs(low), np.abs(high)).tolist()),
    )


def runs_as(op: Op) -> str:
    """ "int8", "move" or "float32"."""
    if op.is_float:
        return "float32"
    return "move" if KINDS[op.kind].moves else "int8"


def activation_function(op: Op, output: Tensor) -> str:
    """The function fused into an op or looked up by it, "" for none."""
    if op.kind == "table":
        return str(op.attrs["fn"])
    if "a_neg" in op.arrays:
        return "leaky_relu" if (op.arrays["a_neg"] > 0).all() else "prelu"
    if len(op.source) > 1 and op.attrs.get("lo") == output.zero_point:  # nothing below zero comes out
        return "relu"
    return ""
