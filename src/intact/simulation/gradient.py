"""Rounding, clamping and table look-up with the gradients quantization-aware training needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Round(torch.autograd.Function):
    """round(x) forward, identity backward: the straight-through estimator (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        return grad[0]


class _ForwardAs(torch.autograd.Function):
    """The first argument forward, the second one's gradient backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradient: Tensor) -> Tensor:
        return value.expand(gradient.shape).clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        return None, grad[0]


def round_ste(x: Tensor) -> Tensor:
    """Round half to even; the gradient passes straight through.

    Example:
        >>> import torch
        >>> round_ste(torch.tensor([0.5, 1.5, -0.7])).tolist()
        [0.0, 2.0, -1.0]
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return torch.round(x)
    y: Tensor = _Round.apply(x)  # type: ignore[no-untyped-call]
    return y


def quantize_ste(x: Tensor, scale: Tensor, zero_point: int, lo: int, hi: int) -> Tensor:
    """``clamp(round(x / scale) + z, lo, hi) − z`` as a float tensor of integers.

    The gradient is the straight-through estimator clipped at the range ends; with respect to ``scale`` it is
    LSQ's (Esser et al. 2020, eq. 3) once the result is multiplied by ``scale`` again.
    """
    return torch.clamp(round_ste(x / scale), lo - zero_point, hi - zero_point)


def forward_as(value: Tensor, gradient: Tensor) -> Tensor:
    """``value`` in the forward pass, to the bit; the gradient of ``gradient`` (of the same shape) in the backward pass.

    Example:
        >>> import torch
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = forward_as(torch.tensor(7.0), x * x)
        >>> y.backward()
        >>> y.item(), x.grad.item()
        (7.0, 6.0)
    """
    if not (torch.is_grad_enabled() and gradient.requires_grad):
        return value
    return _ForwardAs.apply(value, gradient)  # type: ignore[no-untyped-call, no-any-return]
