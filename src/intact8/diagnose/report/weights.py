"""Facts about layers that follow from the program alone, without running it."""

from __future__ import annotations

import numpy as np

from intact8.diagnose.channel_weights import channel_scales, has_channel_scales
from intact8.diagnose.report.contents import Channels
from intact8.opset import KINDS
from intact8.opset.affine import by_output
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program


def channels(program: Program, op: Op) -> Channels | None:
    """Return the weight ranges per output channel; None for operations without int8 weights of channels."""
    if not has_channel_scales(op):
        return None
    scale, weight = channel_scales(program, op), by_output(op)
    low, high = weight.min(axis=1), weight.max(axis=1)
    used = np.maximum(np.abs(low), np.abs(high))
    return Channels(*(tuple(values.tolist()) for values in (scale, low * scale, high * scale, used)))


def runs_as(op: Op) -> str:
    """Return "int8", "move" or "float32"."""
    if op.is_float:
        return "float32"
    return "move" if KINDS[op.kind].moves else "int8"


def activation_function(op: Op, output: Tensor) -> str:
    """Return the function fused into an operation or looked up by it, "" for none."""
    if "fn" in op.attrs and not op.is_float:
        return str(op.attrs["fn"])
    if "a_neg" in op.arrays:
        return "leaky_relu" if (op.arrays["a_neg"] > 0).all() else "prelu"
    if len(op.source) > 1 and op.attrs.get("lo") == output.zero_point:  # no number below zero comes out
        return "relu"
    return ""
