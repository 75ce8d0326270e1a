"""Convolutions and linear maps whose batch norm is folded into the weights in every step of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.calibration.weights import DEAD
from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import convolve
from intact8.simulation.ops.integer_conv import convolve_backward, float_type
from intact8.train import fused


def folded_sum(
    node: Node, x: Tensor, weight: Tensor, how: fused.Fold, scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Return ``Σ x·q·m + bias`` in front of a batch norm, differentiable: q are the integers of w·f, and m·f = s·scale.

    The tensors are those that fused passes take; the result is what :func:`intact8.simulation.ops.integer_conv.
    weighted_sum` gives of a grid, in one pass forward and one back. ``scale``, (), is that of x where x holds integers.
    """
    y: Tensor = _FoldedSum.apply(x, weight, how.gamma, how.learned, scale, bias, node, how)  # type: ignore[no-untyped-call]
    return y


class _FoldedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        x, weight, _, _, scale, bias, node, how = args
        made = fused.fold(weight, how, scale, DEAD, SMALLEST_SCALE)
        ctx.save_for_backward(x, weight, *made[1:])
        ctx.node, ctx.limits, ctx.bias = node, (how.lo, how.hi), None if bias is None else bias.dtype
        ctx.scale, ctx.dtype = None if scale is None else scale.shape, float_type(x, None)
        with torch.autocast(x.device.type, enabled=False):
            product, plus = made.product.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
            return convolve(node, x.to(ctx.dtype), product, plus).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *saved = ctx.saved_tensors
        wants = ctx.needs_input_grad
        product = fused.expand_rows(saved[0], saved[-1])
        made = fused.Folded(product, *saved)
        grad, x_used, w_used = (t.to(ctx.dtype) for t in (grads[0], x, product))
        wanted = wants[0], any(wants[1:5]), wants[5]
        to_x, to_product, to_bias = convolve_backward(ctx.node, grad, x_used, w_used, wanted)
        found: tuple[Tensor | None, ...] = (None,) * 4
        if to_product is not None:
            found = fused.fold_backward(to_product.float().contiguous(), weight, made, ctx.limits)
        to_sources = [grad if want else None for grad, want in zip(found, wants[1:5], strict=True)]
        if to_sources[3] is not None:
            to_sources[3] = to_sources[3].reshape(ctx.scale)
        to_x = None if to_x is None else to_x.to(x.dtype)
        to_bias = None if to_bias is None else to_bias.to(ctx.bias)
        return to_x, *to_sources, to_bias, None, None
