"""softmax, layer norm, RMS norm, embedding: eager torch operations, one rounding each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic import torch_nonlinear
from intact8.engines.onednn.lowering import OpContext, Step, zero_point
from intact8.opset.shapes import axis_of


def lower_softmax(ctx: OpContext) -> Step:
    """See ``intact8.arithmetic.softmax``."""
    table = torch.from_numpy(ctx.op.arrays["table"].astype(np.float32))
    axis, levels = (
        axis_of(ctx.op, ctx.metas[0].shape),
        torch.tensor(float(ctx.op.attrs["levels"]), dtype=torch.float32),
    )
    z, lo, hi = ctx.z, ctx.lo, ctx.hi
    return lambda x, *masked: torch_nonlinear.softmax(x, table, axis, levels, z, lo, hi, *masked)


def lower_norm(ctx: OpContext) -> Step:
    """See ``intact8.arithmetic.norms``."""
    gain, offset = (torch.from_numpy(np.array(ctx.op.arrays[role])) for role in ("gain", "offset"))
    eps, lo, hi = float(ctx.op.attrs["eps"]), ctx.lo, ctx.hi
    if ctx.op.kind == "group_norm":
        groups = ctx.op.attrs["groups"]
        return lambda x: torch_nonlinear.group_norm(x, groups, gain, offset, eps, lo, hi)
    if ctx.op.kind == "layer_norm":
        return lambda x: torch_nonlinear.layer_norm(x, gain, offset, eps, lo, hi)
    z = zero_point(ctx.metas[0])
    return lambda x: torch_nonlinear.rms_norm(x, z, gain, offset, eps, lo, hi)


def lower_embedding(ctx: OpContext) -> Step:
    """Rows of the table."""
    rows = ctx.array("weight")

    def step(index: Tensor) -> Tensor:
        return rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1])

    return step


LOWER: dict[str, Callable[[OpContext], Step]] = {
    "softmax": lower_softmax,
    "layer_norm": lower_norm,
    "rms_norm": lower_norm,
    "group_norm": lower_norm,
    "embedding": lower_embedding,
}
"""Kind → rule."""
