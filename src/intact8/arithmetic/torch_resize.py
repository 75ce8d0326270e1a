"""Integer linear resizing in torch: the integers of ``intact8.arithmetic.resize``, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .resize import linear_axis


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _axis(size: int, out: int, align_corners: bool, denominator: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    left, right, weight, _ = linear_axis(size, out, align_corners, denominator)
    return (
        torch.from_numpy(left).to(device),
        torch.from_numpy(right if weight.any() else right[:0]).to(device),
        torch.from_numpy(weight).float().to(device),
    )


def weighted_sums(x: Tensor, size: Sequence[int], align_corners: bool, denominators: Sequence[int]) -> Tensor:
    """Compute Σ w·x of the trailing dimensions: float32 integers, of magnitudes up to 255·ΠD < 2²⁴.

    Args:
        x: integers of any dtype, from −255 to 255.
        size, align_corners, denominators: see :func:`intact8.arithmetic.resize.resize_linear`.
    """
    y, device = x.to(torch.float32), str(x.device)
    for axis, (out, d) in enumerate(zip(size, denominators, strict=True), start=x.dim() - len(size)):
        left, right, weight = _axis(x.shape[axis], out, align_corners, d, device)
        first = y.index_select(axis, left)
        if len(right):
            step = y.index_select(axis, right).sub_(first)
            # (D − p)·x + p·x' = D·x + p·(x' − x); float32 holds all of them.
            first = first.mul_(d).addcmul_(step, weight.view([-1 if i == axis else 1 for i in range(x.dim())]))
        elif d > 1:
            first = first.mul_(d)
        y = first
    return y


def resize_linear(x: Tensor, size: Sequence[int], align_corners: bool, denominators: Sequence[int]) -> Tensor:
    """Compute R(Σ w·x / ΠD) in float32: see :func:`intact8.arithmetic.resize.resize_linear`."""
    total = weighted_sums(x, size, align_corners, denominators)
    # By a tensor: a number from Python would be turned into its inverse on a GPU.
    return total.div_(total.new_tensor(float(math.prod(denominators)))).round_()
