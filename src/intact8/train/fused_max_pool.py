"""Max pooling in training: the largest of every window, and where it is, in one pass and a byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.arithmetic.windows import pool_size
from intact8.train import fused


def can_fuse(attrs: Mapping[str, Any], x: Tensor) -> bool:
    """Return whether the fused pass takes this tensor and the windows of a ``max_pool`` node."""
    kernel = attrs["kernel"]
    return len(kernel) <= 2 and math.prod(kernel) <= fused.PLACES and x.numel() > 0 and fused.usable(x)


def max_pool(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    """Return what a ``max_pool`` node of one or two dimensions computes.

    The gradient goes to the first of the largest, as torch's does.

    Example:
        >>> attrs = {"kernel": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil_mode": False}
        >>> max_pool(attrs, torch.tensor([[1.0, 5.0, 2.0, 2.0]])).tolist()
        [[5.0, 2.0]]
    """
    kernel, stride, padding, dilation = (attrs[key] for key in ("kernel", "stride", "padding", "dilation"))
    sizes = zip(x.shape[-len(kernel) :], kernel, stride, padding, dilation, strict=True)
    size = [pool_size(*one, attrs["ceil_mode"]) for one in sizes]
    pairs = (_pair(kernel, 1), _pair(stride, 1), _pair(padding, 0), _pair(dilation, 1), _pair(size, 1))
    planes = x if len(kernel) == 2 else x.unsqueeze(-2)
    y: Tensor = _MaxPool.apply(planes, fused.Windows(*pairs))  # type: ignore[no-untyped-call]
    return y if len(kernel) == 2 else y.squeeze(-2)


def _pair(of: Sequence[int], one: int) -> fused.Pair:
    """Return two numbers, of which the first is ``one`` where windows have one dimension."""
    return (of[0], of[1]) if len(of) == 2 else (one, of[0])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: fused.Windows) -> Tensor:
        y, places = fused.max_pool(x, windows)
        ctx.save_for_backward(places)
        ctx.windows, ctx.shape = windows, x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (places,) = ctx.saved_tensors
        return fused.max_pool_backward(grads[0].contiguous(), places, ctx.shape, ctx.windows), None
