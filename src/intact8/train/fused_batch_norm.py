"""Batch norm with the statistics of its batch, and the rounding behind it, as one step that keeps one tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from intact8.train.straight_through import Watch, clipped

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Running(NamedTuple):
    """Running statistics, how far they move towards a batch's, and ε."""

    mean: Tensor | None
    var: Tensor | None
    momentum: float
    eps: float


def can_fuse(norm: nn.Module, z: Tensor) -> bool:
    """Whether :func:`normalize_round` does what calling ``norm`` does: it is torch's own, and nobody listens to it."""
    return type(norm) in PLAIN and not (norm._forward_hooks or norm._forward_pre_hooks) and z.numel() > z.shape[1]


def count_batch(norm: Any) -> Running:
    """What ``norm.forward`` does before it normalizes: count the batch, and choose the momentum."""
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
    return Running(norm.running_mean, norm.running_var, 0.0 if momentum is None else momentum, norm.eps)


def normalize_round(
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: Running,
    lo: int,
    hi: int,
    watch: Watch | None = None,
    *,
    first: bool = False,
) -> Tensor:
    """``clamp(round(γ·(z − µ)/√(σ² + ε) + β), lo, hi)`` with µ and σ² of the batch; straight-through gradient.

    Args:
        z: (N, C, …).
        weight, bias: γ and β, (C,), in steps of the result.
        running: updated in place.
        lo, hi: integers.
        watch: called with what is about to be rounded.
        first: the gradient is that of clamping first, see :func:`intact8.train.straight_through.clipped`.

    Returns:
        float32. For the backward pass only ``z`` and numbers per channel are saved.
    """
    q: Tensor = _NormalizeRound.apply(z, weight, bias, running, lo, hi, watch, first)  # type: ignore[no-untyped-call]
    return q


class _NormalizeRound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: Running,
        lo: int,
        hi: int,
        watch: Watch | None,
        first: bool,
    ) -> Tensor:
        v, mean, invstd = torch.native_batch_norm(
            z, weight, bias, running.mean, running.var, True, running.momentum, running.eps
        )
        ctx.save_for_backward(z, weight, bias, mean, invstd)
        ctx.limits, ctx.eps, ctx.first = (lo, hi), running.eps, first
        if watch is not None:
            watch(v)
        return v.round_().clamp_(lo, hi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        z, weight, bias, mean, invstd = ctx.saved_tensors
        v = torch.native_batch_norm(z, weight, bias, mean, invstd.reciprocal().square_(), False, 0.0, 0.0)[0]
        lo, hi = ctx.limits
        grad = clipped(grads[0], v, lo, hi, out=v, first=ctx.first)
        wants = list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.native_batch_norm_backward(
            grad, z, weight, None, None, mean, invstd, True, ctx.eps, wants
        )
        return *found, None, None, None, None, None
