"""Products of two activations.

oneDNN's operators in torch multiply by packed weights only, so this is a float32 product of integers: exact while every
partial sum stays below 2²⁴ (258 terms of the largest size; usually zero points lie in the middle, and it is 1000), and
as fast as the same product inside a float island.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.opset.kind import zero_point
from intact8.opset.proof import FLOAT32

from .lowering import OpContext, Step
from .quantize_passes import make_quantize


def lower_matmul(ctx: OpContext) -> Step:
    """Lower Σ (x − z_x)·(w − z_w)·a/b. Roundings: a/b stored, the product; one more where sums pass 2²⁴."""
    (z_x, z_w), ratio = (zero_point(m) for m in ctx.metas), int(ctx.op.attrs["a"]) / int(ctx.op.attrs["b"])
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    terms, longest = ctx.inputs[0].shape[-1], (FLOAT32 - 1) // (max(z_x, 255 - z_x) * max(z_w, 255 - z_w))
    starts = range(0, terms, longest)

    def step(x: Tensor, w: Tensor) -> Tensor:
        x, w = x.to(torch.float32).sub_(z_x), w.to(torch.float32).sub_(z_w)
        if terms <= longest:
            return end(torch.matmul(x, w).mul_(ratio))
        parts = [torch.matmul(x[..., i : i + longest], w[..., i : i + longest, :]).double() for i in starts]
        return end(torch.stack(parts).sum(0).mul_(ratio).float())

    return step
