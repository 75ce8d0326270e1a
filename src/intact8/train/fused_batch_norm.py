"""Batch norm with batch statistics, fused with the rounding behind it, so that one tensor is kept for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from intact8.train import fused
from intact8.train.straight_through import Rounding, clamp_, clipped, clipping_ends

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Running(NamedTuple):
    """Running statistics, their momentum and ε."""

    mean: Tensor | None
    var: Tensor | None
    momentum: float
    eps: float


def can_fuse(norm: nn.Module, z: Tensor) -> bool:
    """Return whether :func:`normalize_round` does what ``norm`` does: it is torch's own class and has no hooks."""
    return type(norm) in PLAIN and not (norm._forward_hooks or norm._forward_pre_hooks) and z.numel() > z.shape[1]


def count_batch(norm: Any) -> Running:
    """Count the batch and choose the momentum, as ``norm.forward`` does before it normalizes."""
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
    return Running(norm.running_mean, norm.running_var, 0.0 if momentum is None else momentum, norm.eps)


def normalize_round(z: Tensor, gains: fused.Gains, running: Running, to: Rounding) -> Tensor:
    """Return ``clamp(round((γ·(z − µ)/√(σ² + ε) + β) / s), lo, hi)`` with µ and σ² of the batch, float32.

    ``z`` is (N, C, …), ``gains`` are γ, β and the step s of the result; ``running`` is updated in place. The gradient
    passes the rounding straight through; for it ``z`` and numbers per channel are kept.
    """
    q: Tensor = _NormalizeRound.apply(z, *gains, running, to)  # type: ignore[no-untyped-call]
    return q


class _NormalizeRound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor | None, bias: Tensor | None, step: Tensor, running: Running, to: Rounding
    ) -> Tensor:
        ctx.to, ctx.eps, lo, hi = to, running.eps, to.lo, to.hi
        gains = fused.Gains(weight, bias, step)
        ctx.fused = to.ends_suffice and fused.usable(z, *gains.known, *(t for t in running[:2] if t is not None))
        if ctx.fused:
            ends = to.room_for_ends(z.shape[1])
            q, mean, invstd = fused.normalize(z, gains, running, lo, hi, ends)
            to.tell_ends(ends, q)
            ctx.save_for_backward(z, *gains, mean, invstd)
            return q
        by, plus = _in_steps(z, gains)
        # What torch.batch_norm calls: it chooses cuDNN on GPUs, and the backward pass has to follow its choice.
        v, mean, invstd, ctx.reserve, ctx.choice = torch.ops.aten._batch_norm_impl_index(
            z, by, plus, running.mean, running.var, True, running.momentum, running.eps, True
        )
        ctx.save_for_backward(z, *gains, mean, invstd)
        if to.watch is not None:
            to.watch(v)
        return clamp_(v.round_(), lo, hi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        z, *of_norm, mean, invstd = ctx.saved_tensors
        gains, wants = fused.Gains(*of_norm), ctx.needs_input_grad
        if ctx.fused:
            ends = clipping_ends(ctx.to.lo, ctx.to.hi, first=ctx.to.first)
            grad = grads[0].contiguous()
            found = fused.normalize_backward(grad, z, gains, (mean, invstd), ends, wants_input=wants[0])
            return *_wanted(found, gains), None, None
        by, plus = _in_steps(z, gains)
        v = torch.native_batch_norm(z, by, plus, mean, invstd.reciprocal().square_(), False, 0.0, 0.0)[0]
        grad = clipped(grads[0], v, ctx.to.lo, ctx.to.hi, out=v, first=ctx.to.first)
        grad_z, to_by, to_plus = torch.ops.aten._batch_norm_impl_index_backward(
            ctx.choice, z, grad, by, None, None, mean, invstd, True, ctx.eps, [wants[0], True, True], ctx.reserve
        )
        to_step = -((to_by * by + to_plus * plus) / gains.step).sum_to_size(gains.step.shape)
        return *_wanted((grad_z, to_by / gains.step, to_plus / gains.step, to_step), gains), None, None


def _in_steps(z: Tensor, gains: fused.Gains) -> tuple[Tensor, Tensor]:
    """Return γ and β in steps of the result, (C,)."""
    channels = z.shape[1]
    weight = z.new_ones(channels) if gains.weight is None else gains.weight
    bias = z.new_zeros(channels) if gains.bias is None else gains.bias
    return weight / gains.step, bias / gains.step


def _wanted(found: Sequence[Tensor | None], gains: fused.Gains) -> list[Tensor | None]:
    """Return gradients of z, γ, β and the step, without those of numbers that are not there."""
    return [found[0], *(None if of is None else grad for of, grad in zip(gains, found[1:], strict=True))]
