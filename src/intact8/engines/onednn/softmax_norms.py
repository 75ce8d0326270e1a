"""softmax, layer norm, RMS norm, group norm, embedding: eager torch operations, one rounding each.

The formulas are those of ``intact8.arithmetic.softmax`` and ``intact8.arithmetic.norms``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic import torch_nonlinear
from intact8.engines.onednn.lowering import OpContext, Rule, Step
from intact8.opset.shapes import axis_of


def _softmax(ctx: OpContext) -> Step:
    table = torch.from_numpy(ctx.op.arrays["table"].astype(np.float32))
    axis, levels = axis_of(ctx.op, ctx.metas[0].shape), torch.tensor(float(ctx.op.attrs["levels"]), dtype=torch.float32)
    z, lo, hi = ctx.z, ctx.lo, ctx.hi
    return lambda x, *masked: torch_nonlinear.softmax(x, table, axis, levels, z, lo, hi, *masked)


def _norm(ctx: OpContext) -> Step:
    gain, offset = (torch.from_numpy(np.array(ctx.op.arrays[role])) for role in ("gain", "offset"))
    last = (gain, offset, float(ctx.op.attrs["eps"]), ctx.lo, ctx.hi)
    if ctx.op.kind == "group_norm":
        groups = ctx.op.attrs["groups"]
        return lambda x: torch_nonlinear.group_norm(x, groups, *last)
    if ctx.op.kind == "layer_norm":
        return lambda x: torch_nonlinear.layer_norm(x, *last)
    z = ctx.z_x
    return lambda x: torch_nonlinear.rms_norm(x, z, *last)


def _embedding(ctx: OpContext) -> Step:
    rows = ctx.array("weight")

    def step(index: Tensor) -> Tensor:
        return rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1])

    return step


RULES: dict[str, Rule] = {
    "softmax": _softmax,
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _norm),
    "embedding": _embedding,
}
"""Kind → rule."""
