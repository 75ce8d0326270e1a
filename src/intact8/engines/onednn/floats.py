"""Float islands: torch's operations, in the memory of an operand where nothing reads that later.

In place or not, torch computes the same bits; fresh memory costs page faults and cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.opset import KINDS
from intact8.opset.floats import whole_attrs

from .lowering import OpContext, Step

FloatRule = Callable[[OpContext], "Step | None"]


def lower_float(ctx: OpContext) -> Step:
    """Return a kind ``float.NAME``. Operands of another dtype become that of the result first where the kind says
    so."""
    op, name = ctx.op, ctx.op.kind.removeprefix("float.")
    converts = KINDS[op.kind].in_result_dtype
    attrs = whole_attrs(op.attrs) if converts and ctx.out.dtype == "int64" else op.attrs
    function = FLOAT_OPS[name]
    if converts and any(m.dtype != ctx.out.dtype for m in ctx.metas):
        dtype = getattr(torch, ctx.out.dtype)
        return lambda *tensors: function(attrs, [x.to(dtype) for x in tensors], {})
    step = _IN_PLACE[name](ctx) if name in _IN_PLACE else None
    if step is not None:
        return step
    params = {role: ctx.array(role) for role in op.arrays}
    return lambda *tensors: function(attrs, list(tensors), params)


def _free(ctx: OpContext, i: int) -> bool:
    """Return whether the result may be written over operand ``i``."""
    x = ctx.inputs[i]
    whole = list(x.shape) == list(np.broadcast_shapes(*(tuple(t.shape) for t in ctx.inputs)))
    return ctx.may_overwrite[i] and whole and x.is_contiguous() and all(t.dtype == torch.float32 for t in ctx.inputs)


def _commutative(in_place: Callable[[Tensor, Tensor], Tensor]) -> FloatRule:
    """Return ``in_place`` in the memory of either operand."""

    def rule(ctx: OpContext) -> Step | None:
        if _free(ctx, 0):
            return in_place
        return (lambda x, y: in_place(y, x)) if _free(ctx, 1) else None

    return rule


def _relu(ctx: OpContext) -> Step | None:
    return Tensor.relu_ if _free(ctx, 0) else None


def _clamp(ctx: OpContext) -> Step | None:
    low, high = ctx.op.attrs["min"], ctx.op.attrs["max"]
    free = _free(ctx, 0) and not (low is None and high is None)
    return (lambda x: x.clamp_(low, high)) if free else None


def _unary(ctx: OpContext) -> Step | None:
    if ctx.op.attrs["fn"] != "gelu" or not _free(ctx, 0):
        return None
    how = ctx.op.attrs.get("approximate", "none")
    return lambda x: torch.ops.aten.gelu_(x, approximate=how)


_IN_PLACE: dict[str, FloatRule] = {
    "add": _commutative(Tensor.add_),
    "mul": _commutative(Tensor.mul_),
    "relu": _relu,
    "clamp": _clamp,
    "unary": _unary,
}
"""NAME → its form in the memory of an operand; None where there is none for these tensors."""
