"""Float islands: torch's operations, in the memory of an operand where nobody reads that later.

In place or not, torch computes the same bits; fresh memory costs page faults and cache. The last bits of compiled
passes may differ, as those of any float island.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.opset import KINDS
from intact8.opset.floats import whole_attrs

from ..native import float_bits
from . import torch_native
from .lowering import OpContext, Step


def lower_float(ctx: OpContext) -> Step:
    """A kind ``float.NAME``."""
    name = ctx.op.kind.removeprefix("float.")
    if KINDS[ctx.op.kind].in_result_dtype and any(m.dtype != ctx.out.dtype for m in ctx.metas):
        return _converted(ctx, name)
    step = _OWN[name](ctx) if name in _OWN else None
    if step is not None:
        return step
    function, attrs = FLOAT_OPS[name], _attrs(ctx, name)
    params = {role: ctx.array(role) for role in ctx.op.arrays}
    return lambda *tensors: function(attrs, list(tensors), params)


def _converted(ctx: OpContext, name: str) -> Step:
    """Operands of another dtype than the result become that first."""
    function, attrs, dtype = FLOAT_OPS[name], _attrs(ctx, name), getattr(torch, ctx.out.dtype)
    return lambda *tensors: function(attrs, [x.to(dtype) for x in tensors], {})


def _attrs(ctx: OpContext, name: str) -> Mapping[str, Any]:
    whole = KINDS[ctx.op.kind].in_result_dtype and ctx.out.dtype == "int64"
    return whole_attrs(ctx.op.attrs) if whole else ctx.op.attrs


def _free(ctx: OpContext, i: int) -> bool:
    """Whether the result may be written over operand ``i``."""
    x = ctx.inputs[i]
    whole = list(x.shape) == list(np.broadcast_shapes(*(tuple(t.shape) for t in ctx.inputs)))
    return ctx.may_overwrite[i] and whole and x.is_contiguous() and all(t.dtype == torch.float32 for t in ctx.inputs)


def _add(ctx: OpContext) -> Step | None:
    if _free(ctx, 0):
        return lambda x, y: x.add_(y)
    return (lambda x, y: y.add_(x)) if _free(ctx, 1) else None


def _mul(ctx: OpContext) -> Step | None:
    if _free(ctx, 0):
        return lambda x, y: x.mul_(y)
    return (lambda x, y: y.mul_(x)) if _free(ctx, 1) else None


def _relu(ctx: OpContext) -> Step | None:
    return Tensor.relu_ if _free(ctx, 0) else None


def _clamp(ctx: OpContext) -> Step | None:
    low, high = ctx.op.attrs["min"], ctx.op.attrs["max"]
    if low is None and high is None:
        return None
    return (lambda x: x.clamp_(low, high)) if _free(ctx, 0) else None


def _unary(ctx: OpContext) -> Step | None:
    if ctx.op.attrs["fn"] != "gelu" or not _free(ctx, 0):
        return None
    how = ctx.op.attrs.get("approximate", "none")
    return lambda x: torch.ops.aten.gelu_(x, approximate=how)


def _layer_norm(ctx: OpContext) -> Step | None:
    """By the compiled pass: a third of the time of torch's, for rows that an encoder has."""
    library, width = torch_native.load(), prod(ctx.op.attrs["shape"])
    if library is None or not ctx.inputs[0].is_contiguous():
        return None
    one_pass, eps = library.layer_norm, float_bits(ctx.op.attrs["eps"])
    arrays = ctx.op.arrays
    weight = ctx.array("weight") if "weight" in arrays else torch.ones(width, dtype=torch.float32)
    bias = ctx.array("bias") if "bias" in arrays else torch.zeros(width, dtype=torch.float32)
    free = _free(ctx, 0)

    def norm(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = x if free else torch.empty_like(x)
        rows = x.numel() // width
        sizes = torch_native.sizes(x, torch.float32, weight, bias, y)
        one_pass(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), rows, width, eps, *sizes)
        return y

    return norm


_OWN: dict[str, Callable[[OpContext], Step | None]] = {
    "layer_norm": _layer_norm,
    "add": _add,
    "mul": _mul,
    "relu": _relu,
    "clamp": _clamp,
    "unary": _unary,
}
"""NAME → its form in the memory of an operand or by a compiled pass; None where there is none for these tensors."""
