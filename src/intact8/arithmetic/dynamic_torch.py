"""Dynamic quantization in torch: the bits of ``intact8.arithmetic.dynamic``, on any device, with gradients.

Nothing here may be compiled or fused: a fused multiply-add has one rounding where the definition has two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .dynamic import REACH, SMALLEST

EXACT = 2.0**24
"""Integers up to here are exact in float32; so is any sum whose partial sums all stay below."""


def row_scales(x: Tensor, granularity: str = "per_row") -> Tensor:
    """Compute ``intact8.arithmetic.dynamic.row_scales``, without gradient.

    Example:
        >>> row_scales(torch.tensor([[0.0, -254.0], [127.0, 3.0]])).tolist()
        [[2.0], [1.0]]
    """
    # A divisor on the device: by a Python number, CUDA multiplies by its reciprocal.
    return scales_of(x.detach().abs(), granularity, x.new_tensor(127.0))


def scales_of(magnitudes: Tensor, granularity: str, reach: Tensor) -> Tensor:
    """Compute :func:`row_scales` from |x|, with 127 as a tensor on its device."""
    if granularity == "per_row":
        m = magnitudes.amax(-1, keepdim=True)
    elif magnitudes.numel():
        m = magnitudes.amax().reshape([1] * magnitudes.dim())
    else:
        m = magnitudes.new_zeros([1] * magnitudes.dim())
    return (m / reach).clamp_min_(SMALLEST).add_(m - m)


def quantize_rows(x: Tensor, granularity: str = "per_row") -> tuple[Tensor, Tensor]:
    """Compute q = R(fl(x / s)) as float32 integers within −127 … 127 (NaN in rows whose scale is NaN), and the scales.

    Args:
        x: float32, (…, K) with K ≥ 1.
        granularity: "per_row" or "per_tensor".

    Returns:
        float32 of the shape of ``x`` and float32 (…, 1). The gradient of q passes straight through the rounding; the
        scale is a constant to it.

    Example:
        >>> q, s = quantize_rows(torch.tensor([[0.0, -254.0], [63.5, 127.0]]))
        >>> q.tolist(), s.tolist()
        ([[0.0, -127.0], [64.0, 127.0]], [[2.0], [1.0]])
    """
    s = row_scales(x, granularity)
    v = x / s
    q = v.detach().round().clamp_(-REACH, REACH)
    # q + (v − v) would be no bit-exact q for infinities; the gradient of v alone is wanted.
    return (q if not (torch.is_grad_enabled() and v.requires_grad) else _StraightThrough.apply(q, v)), s  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    """The first argument forward, the second one's gradient backward."""

    @staticmethod
    def forward(ctx: object, q: Tensor, v: Tensor) -> Tensor:
        return q.view_as(q)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


def accumulate(q: Tensor, weight: Tensor) -> Tensor:
    """Compute Σ q·w over the last dimension, exact, then fl to float32.

    Args:
        q: integers of :func:`quantize_rows`, float32 (…, K).
        weight: integers within −127 … 127, float32 (O, K).

    Returns:
        float32, (…, O).
    """
    # Bounded by the values themselves only where the bound by the number of terms does not do: that costs a pass.
    short = weight.shape[1] * REACH * REACH < EXACT
    # cuBLAS may use TF32 for float32.
    if not weight.is_cuda and (short or float(weight.detach().abs().sum(1).max()) * REACH < EXACT):
        return F.linear(q, weight).add_(0.0)  # no −0: integers have none
    return F.linear(q.double(), weight.double()).float() + 0.0


def scaled(acc: Tensor, scale: Tensor, s: Tensor, bias: Tensor | None) -> Tensor:
    """Compute fl(fl(acc·s_w)·s) + b of float32 sums: see ``intact8.arithmetic.dynamic.scaled``."""
    if not torch.is_grad_enabled():  # rows of recurrent layers are long: one copy instead of three
        y = acc.mul_(scale).mul_(s)
        return y if bias is None else y.add_(bias)
    y = acc * scale * s
    return y if bias is None else y + bias


def linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, granularity: str = "per_row"
) -> Tensor:
    """Compute ``intact8.arithmetic.dynamic.linear`` on a weight of float32 integers.

    Args:
        x: float32, (…, K).
        weight: integers within −127 … 127, float32 (O, K).
        scale: float32, (O,).
        bias: float32, (O,), or None.
        granularity: of x.

    Returns:
        float32, (…, O), differentiable with respect to all of them.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0]]), torch.eye(2) * 127, torch.full((2,), 1 / 127))
        tensor([[1.0079, 2.0000]])
    """
    q, s = quantize_rows(x, granularity)
    return scaled(accumulate(q, weight), scale, s, bias)
