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

from intact8.engines.onednn.lowering import OpContext, Packed

CONV = torch.ops.onednn.qconv2d_pointwise.default
CONV_SUM = torch.ops.onednn.qconv2d_pointwise.binary
PACK = torch.ops.onednn.qconv_prepack.default


def ones_conv(
    ctx: OpContext,
    shape: Sequence[int],
    z_x: int,
    scale: float,
    post: tuple[str, list[float]],
    z_y: int,
    *,
    kernel: Sequence[int] = (1, 1),
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
) -> Callable[[Tensor], Tensor]:
    """y = R(post(Σ_window (x − z_x)·scale)) + z_y, saturated to uint8; x is channels last."""
    channels = int(shape[1])
    pack, scales, zeros = _ones(ctx, shape, z_x, scale, kernel, stride, padding)
    name, scalars = post
    where = (list(stride), list(padding), [1, 1], channels)
    fixed = (1.0, z_x, pack.weight, scales, zeros, None, *where, 1.0, z_y, torch.uint8, name, scalars, "")
    return lambda x: CONV(x, *fixed)


def scaled_add(
    ctx: OpContext, shape: Sequence[int], z_x: int, r_x: float, z_a: int, r_a: float, relu: bool, z_y: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """y = R((x − z_x)·r_x + (a − z_a)·r_a) + z_y into the memory of ``a``; relu cuts below z_y."""
    channels = int(shape[1])
    pack, scales, zeros = _ones(ctx, shape, z_x, r_x, (1, 1), (1, 1), (0, 0))
    unary = "relu" if relu else "none"

    head = (1.0, z_x, pack.weight, scales, zeros)
    where = (None, [1, 1], [0, 0], [1, 1], channels)
    tail: tuple[Any, ...] = (*where, 1.0, z_y, torch.uint8, r_a, z_a, "sum", 1.0, unary, [], "")
    return lambda x, a: CONV_SUM(x, *head, a, *tail)


def _ones(
    ctx: OpContext,
    shape: Sequence[int],
    z_x: int,
    scale: float,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Packed, Tensor, Tensor]:
    channels = int(shape[1])
    scales = torch.full((channels,), scale, dtype=torch.float32)
    weight = torch.ones((channels, 1, *kernel), dtype=torch.int8)
    pack = ctx.pack(
        ("ones", *shape[1:], z_x),
        lambda: PACK(weight, scales, 1.0, z_x, list(stride), list(padding), [1, 1], channels, [int(v) for v in shape]),
    )
    return pack, scales, torch.zeros(channels, dtype=torch.int32)
