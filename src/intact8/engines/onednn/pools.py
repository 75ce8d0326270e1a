"""mean, average pools and max pool on uint8."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.windows import Edges, adaptive_windows, divisor_ratios, pool_size, pool_windows, window_matrix
from intact8.opset.op import Array

from .conv_linear import Post
from .depthwise_ones import Windows, ones_conv
from .lowering import OpContext, Rule, Step, is_nhwc, to_nhwc
from .quantize_passes import make_quantize


def _mean(ctx: OpContext) -> Step:
    """Over an image: a depthwise convolution of ones (three roundings). Otherwise exact int32 sums times a/b in
    float64."""
    x, (dims,), a, b = ctx.inputs[0], ctx.ints("dims"), int(ctx.op.attrs["a"]), int(ctx.op.attrs["b"])
    keep = bool(ctx.op.attrs["keepdim"])
    if x.dim() == 4 and sorted(dims) == [2, 3]:
        pool = _window_conv(ctx, x, a / b, (list(x.shape[2:]), [1, 1], [0, 0]))
        return pool if keep else lambda x: pool(x).flatten(1)
    offset, ratio = ctx.z_x * prod(x.shape[d] for d in dims), a / b
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda x: end(x.sum(dims, keepdim=keep, dtype=torch.int32).sub_(offset).to(torch.float64).mul_(ratio))


def _avg_pool(ctx: OpContext) -> Step:
    """Return one divisor: a depthwise convolution of ones whose padding adds nothing. Several divisors (at the edges):
    window sums in float64, times the multiplier of each place."""
    x, attrs, (kernel, stride, padding) = ctx.inputs[0], ctx.op.attrs, ctx.ints("kernel", "stride", "padding")
    size, ceil_mode = list(x.shape[2:]), bool(attrs["ceil_mode"])
    edges, divisors = pool_windows(size, kernel, stride, padding, ceil_mode, bool(attrs["count_include_pad"]))
    floor = [pool_size(*v) for v in zip(size, kernel, stride, padding, strict=True)]
    if x.dim() == 4 and list(divisors.shape) == floor and (divisors == divisors.flat[0]).all():
        return _window_conv(ctx, x, _ratio(ctx, divisors.flat[0]), (kernel, stride, padding))
    return _window_sums(ctx, x, edges, divisors)


def _adaptive_avg_pool(ctx: OpContext) -> Step:
    """Equal windows: as ``avg_pool`` without padding. Others: window sums."""
    x, (out,) = ctx.inputs[0], ctx.ints("output_size")
    size = list(x.shape[2:])
    if x.dim() == 4 and all(n % o == 0 for n, o in zip(size, out, strict=True)):
        kernel = [n // o for n, o in zip(size, out, strict=True)]
        return _window_conv(ctx, x, _ratio(ctx, prod(kernel)), (kernel, kernel, [0, 0]))
    return _window_sums(ctx, x, *adaptive_windows(size, out))


def _ratio(ctx: OpContext, divisor: int) -> float:
    return float(divisor_ratios(ctx.op.attrs["multipliers"], np.array(divisor)))


def _window_conv(ctx: OpContext, x: Tensor, ratio: float, windows: Windows) -> Step:
    post = Post.of(ctx)
    call = ones_conv(ctx, x.shape, ratio, (post.name, post.scalars), windows)
    return call if is_nhwc(x) else lambda x: call(to_nhwc(x))


def _window_sums(ctx: OpContext, x: Tensor, edges: Edges, divisors: Array) -> Step:
    """Return the sums as products with 0/1 matrices, one per dimension, exact in float64."""
    windows = zip(edges, x.shape[2:], strict=True)
    matrices = [torch.from_numpy(window_matrix(start, end, n).astype(np.float64)) for (start, end), n in windows]
    scale, z = torch.from_numpy(divisor_ratios(ctx.op.attrs["multipliers"], divisors)), ctx.z_x
    finish = make_quantize(ctx.z, ctx.lo, ctx.hi)

    def step(x: Tensor) -> Tensor:
        v = x.to(torch.float64).sub_(z)
        for i, m in enumerate(matrices):
            v = torch.tensordot(v, m, dims=([2 + i], [0])).movedim(-1, 2 + i)
        return finish(v * scale)

    return step


def _max_pool(ctx: OpContext) -> Step:
    """Return the float tensors by torch. uint8 as maxima of strided slices, one dimension after the other, because
    torch's kernel refuses many uint8 shapes."""
    x, ceil_mode = ctx.inputs[0], bool(ctx.op.attrs["ceil_mode"])
    kernel, stride, padding, dilation = ctx.ints("kernel", "stride", "padding", "dilation")
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
        for sizes in passes:
            y = _max_along(y, *sizes)
        return y if passes else x.clone()

    return step


def _max_along(x: Tensor, dim: int, out: int, k: int, s: int, p: int, d: int) -> Tensor:
    """Return the maximum over windows along one dimension. Each tap covers a range of outputs; full ranges first, so
    that no padding needs to be written."""
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


RULES: dict[str, Rule] = {
    "mean": _mean,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "max_pool": _max_pool,
}
"""Kind → rule."""
