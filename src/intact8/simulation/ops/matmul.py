"""Products of two activations, exact on integers, and the gradients of matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.simulation.ops.exact_sums import EXACT, exact_product
from intact8.simulation.ops.integer_op import IntegerOp
from intact8.simulation.ops.quantized_add import pack, unpack
from intact8.simulation.quantized_tensor import Quantized
from intact8.train.straight_through import differentiable


def multiply(op: IntegerOp, x: list[Quantized]) -> Quantized:
    """Compute ``mul``."""
    return op.finish((x[0].q * x[1].q) * _ratio(op, x))


def matmul(op: IntegerOp, x: list[Quantized]) -> Quantized:
    """Compute ``matmul``."""
    return op.finish(matrix_product(x[0], x[1], _ratio(op, x)))


def _ratio(op: IntegerOp, x: list[Quantized]) -> Tensor:
    scales = x[0].point.live_scale * x[1].point.live_scale / op.point.live_scale
    return op.ratio(scales * op.node.attrs.get("mul", 1.0))


def matrix_product(x: Quantized, w: Quantized, ratio: Tensor) -> Tensor:
    """Return ``ratio·Σ_k x_ik·w_kj`` of integers minus zero points, (…, I, K) and (…, K, J); the sum is exact.

    The result is float32, or float64 where an exact sum does not fit float32; leading dimensions broadcast.
    """
    longest = int((EXACT - 1) // (_reach(x) * _reach(w)))
    if not differentiable(x.q, w.q, ratio):
        return exact_product(x.q, w.q, longest, whole=x.whole and w.whole).mul_(ratio)
    zero_points = [t.zero_point if t.whole else None for t in (x, w)]
    y: Tensor = _Product.apply(x.q, w.q, ratio, longest, zero_points)  # type: ignore[no-untyped-call]
    return y


def _reach(x: Quantized) -> int:
    """Return the largest |integer − zero point|."""
    return max(x.zero_point - x.point.lo, x.point.hi - x.zero_point, 1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, ratio: Tensor, longest: int, zero_points: list[int | None]) -> Tensor:
        ctx.save_for_backward(pack(x, zero_points[0]), pack(w, zero_points[1]), ratio)
        ctx.zero_points = zero_points
        return exact_product(x, w, longest, whole=None not in zero_points).mul_(ratio)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w, ratio = ctx.saved_tensors
        x, w = unpack(x, ctx.zero_points[0]), unpack(w, ctx.zero_points[1])
        grad, wants = grads[0].to(x.dtype), ctx.needs_input_grad
        grad_x = grad_w = grad_ratio = None
        if wants[0] or wants[2]:
            back = torch.matmul(grad, w.mT).sum_to_size(x.shape)
            # Σ grad·(x·w) equals Σ (grad·wᵀ)·x, which needs no further matrix product.
            grad_ratio = (back * x).sum().to(ratio.dtype).reshape(ratio.shape) if wants[2] else None
            grad_x = back.mul_(ratio) if wants[0] else None
        if wants[1]:
            grad_w = torch.matmul(x.mT, grad).sum_to_size(w.shape).mul_(ratio)
        return grad_x, grad_w, grad_ratio, None, None
