"""Sums and differences of tensors on different grids, with one rounding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.simulation.ops.integer_op import IntegerOp, output_limits, watcher, watcher_of_ends
from intact8.simulation.quantized_tensor import Quantized
from intact8.train import fused
from intact8.train.straight_through import Rounding, clamp_, clipped, differentiable, rounding_to


def add(op: IntegerOp, x: list[Quantized]) -> Quantized:
    """Compute ``add`` or ``sub``."""
    point, sign = op.point, -1 if op.node.op == "sub" else 1
    ratios = [op.ratio(v.point.live_scale / point.live_scale * (sign if i else 1), i) for i, v in enumerate(x)]
    if point.learns_range:
        return op.finish(functools.reduce(torch.add, [v.q * ratio for v, ratio in zip(x, ratios, strict=True)]))
    z, (lo, hi) = point.zero_point_value, output_limits(op.node, point)
    to = Rounding(lo - z, hi - z, watcher(op.node, point), ends=watcher_of_ends(op.node, point))
    return Quantized(add_round(x, ratios, to), point)


def add_round(terms: Sequence[Quantized], ratios: Sequence[Tensor], to: Rounding) -> Tensor:
    """Return ``clamp(round(Σ r_j·q_j), lo, hi)``, float32, with a straight-through gradient clipped at lo and hi.

    Shapes of the terms broadcast; ratios are ().
    """
    tensors = [t.q for t in terms]
    if not differentiable(*tensors, *ratios):
        if to.ends_suffice and _fusible(tensors):
            a_ratio, b_ratio = map(float, ratios)
            ends = to.room_for_ends(fused.blocks_of(tensors[0]))
            q = fused.add_only(tensors[0], tensors[1], fused.Terms((0, 0), (a_ratio, b_ratio)), to.lo, to.hi, ends)
            to.tell_ends(ends, q)
            return q
        v = _weighted(tensors, ratios)
        if to.watch is not None:
            to.watch(v)
        return clamp_(v.round_(), to.lo, to.hi)
    # The backward pass needs the integers: stored as uint8 they take a quarter of the memory.
    zero_points = [t.zero_point if t.whole else None for t in terms]
    rounded: Tensor = _AddRound.apply(to, zero_points, *tensors, *ratios)  # type: ignore[no-untyped-call]
    return rounded


def _weighted(tensors: Sequence[Tensor], ratios: Sequence[Tensor]) -> Tensor:
    v = tensors[0] * ratios[0]
    for tensor, ratio in zip(tensors[1:], ratios[1:], strict=True):
        v = v.addcmul_(tensor, ratio) if tensor.shape == v.shape else v + tensor * ratio
    return v


class _AddRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, to: Rounding, zero_points: list[int | None], *args: Tensor) -> Tensor:
        tensors, ratios = args[: len(zero_points)], args[len(zero_points) :]
        ctx.fused, ctx.limits = None, (to.lo, to.hi)
        if to.ends_suffice and None not in zero_points and _fusible(tensors):
            ctx.fused = fused.Terms(tuple(zero_points), tuple(float(ratio) for ratio in ratios))  # type: ignore[arg-type]
            ends = to.room_for_ends(fused.blocks_of(tensors[0]))
            q, *packed = fused.add(tensors[0], tensors[1], ctx.fused, to.lo, to.hi, ends)
            to.tell_ends(ends, q)
            ctx.save_for_backward(*packed, *ratios)
            return q
        v = _weighted(tensors, ratios)
        ctx.save_for_backward(*(pack(t, z) for t, z in zip(tensors, zero_points, strict=True)), *ratios)
        ctx.zero_points = zero_points
        if to.watch is not None:
            to.watch(v)
        return clamp_(v.round_(), to.lo, to.hi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.fused is not None:
            *packed, a_ratio, b_ratio = ctx.saved_tensors
            grad = _like(grads[0], packed[0])
            to_a, to_b, dots = fused.add_backward(grad, tuple(packed), ctx.fused, rounding_to(*ctx.limits))
            return None, None, to_a, to_b, dots[0].reshape(a_ratio.shape), dots[1].reshape(b_ratio.shape)
        n = len(ctx.zero_points)
        saved = ctx.saved_tensors  # checkpoints unpack them whenever they are read
        tensors = [unpack(t, z) for t, z in zip(saved[:n], ctx.zero_points, strict=True)]
        ratios, wants = saved[n:], ctx.needs_input_grad[2:]
        v = _weighted(tensors, ratios)
        lo, hi = ctx.limits
        grad = clipped(grads[0], v, lo, hi, out=v)
        to_tensors = [
            (grad * ratio).sum_to_size(tensor.shape) if want else None
            for tensor, ratio, want in zip(tensors, ratios, wants[:n], strict=True)
        ]
        to_ratios = [
            _dot(grad, tensor).reshape(ratio.shape) if want else None
            for tensor, ratio, want in zip(tensors, ratios, wants[n:], strict=True)
        ]
        return None, None, *to_tensors, *to_ratios


def _fusible(tensors: Sequence[Tensor]) -> bool:
    """Return whether the fused pass adds these: two tensors that lie in memory alike."""
    if len(tensors) != 2 or not tensors[0].numel() or tensors[0].shape != tensors[1].shape:
        return False
    return fused.usable(*(in_memory_order(t) for t in tensors)) and tensors[0].stride() == tensors[1].stride()


def in_memory_order(t: Tensor) -> Tensor:
    """Return the tensor with its channels last where they are last in memory."""
    return t.permute(0, 2, 3, 1) if t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) else t


def _like(grad: Tensor, other: Tensor) -> Tensor:
    """Return the gradient as it lies in memory where ``other`` does."""
    return grad if grad.stride() == other.stride() else torch.empty_like(other, dtype=grad.dtype).copy_(grad)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a·b of tensors that broadcast."""
    if a.shape != b.shape:
        return (a * b).sum()
    if a.is_contiguous(memory_format=torch.channels_last):  # then it has four dimensions
        a, b = a.permute(0, 2, 3, 1), b.permute(0, 2, 3, 1)
    return torch.dot(a.reshape(-1), b.reshape(-1))


def pack(q: Tensor, zero_point: int | None) -> Tensor:
    """Return integers minus zero point as uint8; where ``zero_point`` is None, return ``q`` itself."""
    if zero_point is None:
        return q
    return (q + zero_point if zero_point else q).to(torch.uint8)


def unpack(packed: Tensor, zero_point: int | None) -> Tensor:
    """Return what :func:`pack` was given, float32."""
    if zero_point is None:
        return packed
    q = packed.float()
    return q.sub_(zero_point) if zero_point else q
