"""Elementwise and pooling arithmetic on uint8 as depthwise convolutions.

oneDNN's depthwise kernels read uint8, scale, add another uint8 tensor, round and write uint8 in one pass over memory.
A kernel of ones therefore is an average pool, and a 1×1 kernel of ones an addition or a rescaling: about half the
time of the same arithmetic in float tensors, and one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from intact8.engines.onednn.lowering import OpContext

CONV = torch.ops.onednn.qconv2d_pointwise.default
CONV_SUM = torch.ops.onednn.qconv2d_pointwise.binary
PACK = torch.ops.onednn.qconv_prepack.default

Windows = tuple[list[int], list[int], list[int]]
"""Sizes, strides and padding of windows."""


def ones_conv(
    ctx: OpContext, shape: Sequence[int], scale: float, post: tuple[str, list[float]], windows: Windows
) -> Callable[[Tensor], Tensor]:
    """Return y = R(post(Σ_window (x − z_x)·scale)) + z_y, saturated to uint8; x is channels last."""
    head, where = _ones(ctx, shape, ctx.z_x, scale, windows)
    fixed = (*head, None, *where, 1.0, ctx.z, torch.uint8, *post, "")
    return lambda x: CONV(x, *fixed)


def scaled_add(
    ctx: OpContext, shape: Sequence[int], z_x: int, r_x: float, z_a: int, r_a: float, post: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return y = R((x − z_x)·r_x + (a − z_a)·r_a) + z_y into the memory of ``a``; the post-op "relu" cuts below z_y."""
    head, where = _ones(ctx, shape, z_x, r_x, ([1, 1], [1, 1], [0, 0]))
    tail = (None, *where, 1.0, ctx.z, torch.uint8, r_a, z_a, "sum", 1.0, post, [], "")
    return lambda x, a: CONV_SUM(x, *head, a, *tail)


def _ones(
    ctx: OpContext, shape: Sequence[int], z_x: int, scale: float, windows: Windows
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what the operators take for a kernel of ones: scales and packed weights, and where windows lie."""
    channels, (kernel, stride, padding) = int(shape[1]), windows
    scales = torch.full((channels,), scale, dtype=torch.float32)
    weight = torch.ones((channels, 1, *kernel), dtype=torch.int8)
    where = (stride, padding, [1, 1], channels)
    pack = ctx.pack(("ones", *shape[1:], z_x), lambda: PACK(weight, scales, 1.0, z_x, *where, [int(v) for v in shape]))
    return (1.0, z_x, pack.weight, scales, torch.zeros(channels, dtype=torch.int32)), where
