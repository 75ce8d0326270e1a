"""mean, average pools and max pool on uint8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.windows import Edges, adaptive_windows, pool_size, pool_windows
from intact8.opset.op import Array

from . import torch_native
from .conv_linear import Post
from .depthwise_ones import ones_conv
from .lowering import OpContext, Step, is_nhwc, to_nhwc, zero_point
from .quantize_passes import make_quantize

LARGEST_IMAGE = 1 << 24
"""Pixels whose sum of bytes may pass 32 bits."""


def lower_mean(ctx: OpContext) -> Step:
    """Over an image with channels last: exact sums, one rounding of a/b and one of the product, in one pass or as a
    depthwise convolution of ones (+ z: three). Otherwise exact int32 sums times a/b in float64."""
    x, dims = ctx.inputs[0], [int(d) for d in ctx.op.attrs["dims"]]
    a, b = int(ctx.op.attrs["a"]), int(ctx.op.attrs["b"])
    keep, z_x = bool(ctx.op.attrs["keepdim"]), zero_point(ctx.metas[0])
    library = torch_native.load()
    if x.dim() == 4 and sorted(dims) == [2, 3]:
        if library is not None and x.shape[2] * x.shape[3] < LARGEST_IMAGE:
            pool = _one_pass_mean(ctx, library.mean, x, a, b)
        else:
            pool = _window_conv(ctx, x, a, b, list(x.shape[2:]), [1, 1], [0, 0])
        return pool if keep else lambda x: pool(x).flatten(1)
    offset, ratio = z_x * prod(x.shape[d] for d in dims), a / b
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda x: end(x.sum(dims, keepdim=keep, dtype=torch.int32).sub_(offset).to(torch.float64).mul_(ratio))


def _one_pass_mean(ctx: OpContext, one_pass: Callable[..., None], x: Tensor, a: int, b: int) -> Step:
    samples, channels, height, width = x.shape
    offset = zero_point(ctx.metas[0]) * height * width
    tail = (samples, height * width, channels, offset, a, b, ctx.lo - ctx.z, ctx.hi - ctx.z, ctx.z)

    def step(x: Tensor) -> Tensor:
        x = to_nhwc(x)
        y = torch.empty(samples, 1, 1, channels, dtype=torch.uint8)
        one_pass(x.data_ptr(), y.data_ptr(), *tail, *torch_native.sizes(x, torch.uint8), y.nbytes)
        return y.movedim(-1, 1)

    return step


def lower_avg_pool(ctx: OpContext) -> Step:
    """One divisor: a depthwise convolution of ones whose padding adds nothing. Several (borders): window sums in
    float64, times the multiplier of each place."""
    x, attrs = ctx.inputs[0], ctx.op.attrs
    kernel, stride, padding = (list(map(int, attrs[k])) for k in ("kernel", "stride", "padding"))
    size = list(x.shape[2:])
    edges, divisors = pool_windows(
        size, kernel, stride, padding, bool(attrs["ceil_mode"]), bool(attrs["count_include_pad"])
    )
    multipliers = _by_divisor(ctx)
    floor = [pool_size(*v) for v in zip(size, kernel, stride, padding, strict=True)]
    used = {int(n) for n in np.unique(divisors)}
    if x.dim() == 4 and list(divisors.shape) == floor and len(used) == 1:
        return _window_conv(ctx, x, *multipliers[used.pop()], kernel, stride, padding)
    return _window_sums(ctx, x, edges, divisors, multipliers)


def lower_adaptive_avg_pool(ctx: OpContext) -> Step:
    """Equal windows: as ``avg_pool`` without padding. Others: window sums."""
    x, out = ctx.inputs[0], [int(v) for v in ctx.op.attrs["output_size"]]
    size, multipliers = list(x.shape[2:]), _by_divisor(ctx)
    if x.dim() == 4 and all(n % o == 0 for n, o in zip(size, out, strict=True)):
        kernel = [n // o for n, o in zip(size, out, strict=True)]
        return _window_conv(ctx, x, *multipliers[prod(kernel)], kernel, kernel, [0, 0])
    return _window_sums(ctx, x, *adaptive_windows(size, out), multipliers)


def _by_divisor(ctx: OpContext) -> dict[int, tuple[int, int]]:
    return {int(n): (int(a), int(b)) for n, a, b in ctx.op.attrs["multipliers"]}


def _window_conv(
    ctx: OpContext, x: Tensor, a: int, b: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Step:
    post = Post.of(ctx.lo, ctx.hi, ctx.z)
    z_x, unary = zero_point(ctx.metas[0]), (post.name, post.scalars)
    call = ones_conv(ctx, x.shape, z_x, a / b, unary, ctx.z, kernel=kernel, stride=stride, padding=padding)
    return call if is_nhwc(x) else lambda x: call(to_nhwc(x))


def _window_sums(
    ctx: OpContext, x: Tensor, edges: Edges, divisors: Array, multipliers: dict[int, tuple[int, int]]
) -> Step:
    """Sums as products with 0/1 matrices, one per dimension, exact in float64."""
    matrices = []
    for length, (starts, ends) in zip(x.shape[2:], edges, strict=True):
        m = torch.zeros(length, len(starts), dtype=torch.float64)
        for j, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            m[start:end, j] = 1
        matrices.append(m)
    sizes, where = np.unique(divisors, return_inverse=True)
    ratios = np.array([multipliers[int(n)][0] / multipliers[int(n)][1] for n in sizes])[where.reshape(divisors.shape)]
    scale, z = torch.from_numpy(ratios), zero_point(ctx.metas[0])
    finish = make_quantize(ctx.z, ctx.lo, ctx.hi)

    def step(x: Tensor) -> Tensor:
        v = x.to(torch.float64).sub_(z)
        for i, m in enumerate(matrices):
            v = torch.tensordot(v, m, dims=([2 + i], [0])).movedim(-1, 2 + i)
        return finish(v * scale)

    return step


def lower_max_pool(ctx: OpContext) -> Step:
    """Float tensors by torch. uint8 as maxima of strided slices, one dimension after the other, because torch's kernel
    refuses many uint8 shapes."""
    x, attrs = ctx.inputs[0], ctx.op.attrs
    kernel, stride, padding, dilation = (list(map(int, attrs[k])) for k in ("kernel", "stride", "padding", "dilation"))
    ceil_mode = bool(attrs["ceil_mode"])
    if x.is_floating_point():
        pool = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}[x.dim()]
        return lambda x: pool(x, kernel, stride, padding, dilation, ceil_mode)
    passes = [
        (2 + i, pool_size(n, k, s, p, d, ceil_mode), k, s, p, d)
        for i, (n, k, s, p, d) in enumerate(zip(x.shape[2:], kernel, stride, padding, dilation, strict=True))
        if (k, s, p) != (1, 1, 0)
    ]

    def step(x: Tensor) -> Tensor:
        y = x
        for dim, out, k, s, p, d in passes:
            y = _max_along(y, dim, out, k, s, p, d)
        return y if passes else x.clone()

    return step


def _max_along(x: Tensor, dim: int, out: int, k: int, s: int, p: int, d: int) -> Tensor:
    """Maximum over windows along one dimension. Each tap covers a range of outputs; full ranges first, so that no
    padding needs to be written."""
    n = x.shape[dim]
    taps = []
    for j in range(k):
        shift = j * d - p
        first = max(0, -(shift // s))
        last = min(out - 1, (n - 1 - shift) // s)
        if first <= last:
            view = x.narrow(dim, first * s + shift, (last - first) * s + 1)
            taps.append((last - first + 1 < out, first, last, view[(slice(None),) * dim + (slice(None, None, s),)]))
    taps.sort(key=lambda t: t[0])
    full = [view for partial, _, _, view in taps if not partial]
    if len(full) > 1:
        y, used = torch.maximum(full[0], full[1]), 2
    elif full:
        y, used = full[0].clone(memory_format=torch.preserve_format), 1
    else:
        shape = list(x.shape)
        shape[dim] = out
        y, used = torch.zeros(shape, dtype=x.dtype), 0
    for _, first, last, view in taps[used:]:
        part = y.narrow(dim, first, last - first + 1)
        torch.maximum(part, view, out=part)
    return y
