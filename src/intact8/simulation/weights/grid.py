"""Weights on their integer grid: straight-through gradients for the weights, and LSQ's for the scales."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.train import fused
from intact8.train.straight_through import clipped, differentiable

Sources = tuple[Tensor, Tensor | None, Tensor]
"""Weight, factor and scale of a grid."""


class Limits(NamedTuple):
    """Limits of integer weights.

    Attributes:
        lo, hi: ends of the integer range.
        pairs: clip to ±pairs instead, which lies inside lo..hi; broadcasts against the weights.
        outside: indices of what ``pairs`` clipped, one tensor per dimension; None where they are found again.
    """

    lo: int
    hi: int
    pairs: Tensor | None = None
    outside: tuple[Tensor, ...] | None = None


class Grid:
    """Integer weights, and what they were computed from.

    Args:
        q: ``clamp(round(weight·factor / scale))``, float32, without gradient; or the rows that give it when it is read.
        weight: any shape.
        factor: factor of a folded batch norm, or None; broadcasts against ``weight``.
        scale: broadcasts against ``weight``.
        limits: None where nothing was clipped.
    """

    def __init__(
        self, q: Tensor | fused.Rows, weight: Tensor, factor: Tensor | None, scale: Tensor, limits: Limits | None
    ) -> None:
        self._q, self.weight, self.factor, self.scale, self.limits = q, weight, factor, scale, limits

    @property
    def q(self) -> Tensor:
        """The integers, float32."""
        if isinstance(self._q, fused.Rows):
            self._q = fused.round_rows(self._q)
        return self._q

    def times(self, m: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return ``m·q`` for m (O,) and q as int8, without gradient; None where the fused pass does not take them."""
        rows = self._q
        if not fused.usable(m) or not self.weight.numel():
            return None
        if not isinstance(rows, fused.Rows):
            if not fused.usable(rows):
                return None
            rows = fused.Rows(rows, None, torch.ones_like(m))
        return fused.multiply_rows(rows, m.detach())

    @property
    def sources(self) -> Sources:
        """The tensors that get gradients."""
        return self.weight, self.factor, self.scale

    def without_sources(self) -> Grid:
        """Return the integers alone, which nobody asks for gradients: a folded weight need not stay in memory."""
        return Grid(self.q, self.q, None, self.scale, None)

    def tensor(self) -> Tensor:
        """Return ``q`` with gradients: the straight-through estimator's where nothing is clipped.

        The gradient of scale is LSQ's once the result is multiplied by ``scale`` again, and that of factor fits it.

        Example:
            >>> w = torch.tensor([[0.26, -9.0]], requires_grad=True)
            >>> q = on_grid(w, None, torch.tensor([[0.1]]), Limits(-7, 7)).tensor()
            >>> q.sum().backward()
            >>> q.tolist(), w.grad.round().tolist()
            ([[3.0, -7.0]], [[10.0, 0.0]])
        """
        if not differentiable(*self.sources):
            return self.q
        q: Tensor = _OnGrid.apply(*self.sources, self.q, self.limits)  # type: ignore[no-untyped-call]
        return q


def times(weight: Tensor, factor: Tensor | None) -> Tensor:
    """Return ``weight·factor`` without gradient, as a new tensor."""
    return weight.detach().clone() if factor is None else weight.detach() * factor.detach()


def per_row_of(weight: Tensor, values: Tensor | None) -> Tensor | None:
    """Return (O,) where ``values`` are one number for each row of a weight (O, …), else None; without gradient."""
    if values is None or values.dim() == 0 or not values.numel() == len(weight) == len(values):
        return None
    return values.detach().reshape(-1).contiguous()


def _rows(weight: Tensor, factor: Tensor | None, scale: Tensor, limits: Limits | None) -> fused.Rows | None:
    """Return what the fused passes take to compute this grid; None where they do not."""
    s, f = per_row_of(weight, scale), per_row_of(weight, factor)
    bounds = None if limits is None else per_row_of(weight, limits.pairs)
    if s is None or not weight.numel() or (factor is not None and f is None):
        return None
    if (limits is not None and limits.pairs is not None and bounds is None) or not fused.usable(
        weight, *(t for t in (s, f, bounds) if t is not None)
    ):
        return None
    ends = (-math.inf, math.inf) if limits is None else (float(limits.lo), float(limits.hi))
    return fused.Rows(weight.detach(), f, s, bounds, *ends)


def on_grid(
    weight: Tensor, factor: Tensor | None, scale: Tensor, limits: Limits | None, numbers: Tensor | None = None
) -> Grid:
    """Round weights to integers. IEEE division rounds correctly, so every device gives the same bits.

    ``limits`` is None where scales are large enough for all weights; ``numbers`` is ``times(weight, factor)`` where it
    is known already, and is overwritten.
    """
    rows = _rows(weight, factor, scale, limits) if numbers is None else None
    if rows is not None:
        return Grid(rows, weight, factor, scale, limits)
    q = (times(weight, factor) if numbers is None else numbers).div_(scale.detach()).round_()
    if limits is not None and limits.pairs is not None:
        whole, q = q, torch.clamp(q, -limits.pairs, limits.pairs)
        if q.device.type == "cpu":  # elsewhere finding them would wait for the device
            # Few weights are clipped, so their indices are kept for the gradient.
            limits = limits._replace(outside=torch.nonzero(q != whole, as_tuple=True))
    elif limits is not None:
        q.clamp_(limits.lo, limits.hi)
    return Grid(q, weight, factor, scale, limits)


class _OnGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        *sources, q, ctx.limits = args
        ctx.save_for_backward(*sources)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        found = grid_gradients(grads[0].clone(), 1.0, ctx.saved_tensors, ctx.limits, ctx.needs_input_grad[:3])
        return *found, None, None


def grid_gradients(
    grad: Tensor, m: Tensor | float, sources: Sources, limits: Limits | None, wants: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return gradients of weight, factor and scale, where wanted, from ``grad`` of ``m·q``, which is overwritten."""
    weight, factor, scale = sources
    if limits is not None and limits.outside is not None:
        grad[limits.outside] = 0.0
    elif limits is not None and limits.pairs is not None:
        grad.masked_fill_(times(weight, factor).div_(scale).round_().abs_() > limits.pairs, 0.0)
    elif limits is not None:
        clipped(grad, times(weight, factor).div_(scale), limits.lo, limits.hi, out=grad)
    # With v = w·f/s: ∂v/∂w = f/s, ∂v/∂f = w/s, ∂v/∂s = −w·f/s²; the last two need Σ grad·w only.
    step = m / scale if factor is None else m * factor / scale
    grad_factor = grad_scale = None
    if wants[1] or wants[2]:
        product = _sum_like(grad, weight, step)
        if wants[1] and factor is not None:
            grad_factor = (product * (m / scale)).sum_to_size(factor.shape)
        if wants[2]:
            grad_scale = -(product * step / scale).sum_to_size(scale.shape)
    return grad.mul_(step) if wants[0] else None, grad_factor, grad_scale


def row_gradients(
    grad: Tensor, q: Tensor, m: Tensor, sources: Sources, limits: Limits | None
) -> tuple[Tensor, tuple[Tensor, Tensor | None, Tensor]] | None:
    """Return gradients of m, (O,), and of weight, factor and scale, from ``grad`` of ``m·q``, which is overwritten.

    ``q`` is int8. None where the fused pass does not take these tensors; then nothing is overwritten.
    """
    weight, factor, scale = sources
    rows = _rows(weight, factor, scale, limits)
    if rows is None or not fused.usable(grad, m) or not q.is_contiguous():
        return None
    step = m / rows.scale if rows.factor is None else m * rows.factor / rows.scale
    grad, grad_m, product = fused.rows_backward(grad, q, rows, step)
    grad_factor = None if factor is None else (product * (m / rows.scale)).reshape(factor.shape)
    return grad_m, (grad, grad_factor, -(product * step / rows.scale).reshape(scale.shape))


def _sum_like(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """Return Σ a·b over the dimensions that ``like`` broadcasts along."""
    if like.dim() > 1 and like.numel() == len(a) == like.shape[0]:
        dots: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
        return dots.reshape(like.shape)
    return (a * b).sum_to_size(like.shape)
