"""conv, transposed conv and linear: one oneDNN call each, activation, residual and requantization included.

The call gets x_scale = output_scale = 1, the multiplier a/b as the weight scale of its channel and bias·a/b as float32
bias. Float32 roundings of one result, with k = 8 allowed: acc → float32, a/b stored, their product, bias·a/b stored,
the sum, + z: six; a fused residual stores its ratio and adds with one fused multiply-add: eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.windows import sees_padding_only
from intact8.engines.onednn.depthwise_ones import CONV, CONV_SUM, PACK
from intact8.engines.onednn.lowering import OpContext, Step, float32, is_nhwc, to_nhwc, zero_point
from intact8.engines.onednn.native_conv import lower_native_conv
from intact8.engines.onednn.quantize_passes import make_quantize

CONV3D = torch.ops.onednn.qconv3d_pointwise.default
LINEAR = torch.ops.onednn.qlinear_pointwise.default
LINEAR_SUM = torch.ops.onednn.qlinear_pointwise.binary
LINEAR_PACK = torch.ops.onednn.qlinear_prepack.default


@dataclass(frozen=True)
class Post:
    """How a clamp [lo, hi] is had: as a post-op of the call, or by one more pass over the uint8 result."""

    name: str
    scalars: list[float]
    clamp: tuple[int, int] | None

    @staticmethod
    def of(lo: int, hi: int, z: int, *, relu_only: bool = False) -> Post:
        """The post-op works before z is added; conversion to uint8 saturates by itself. Fused residuals know relu
        only (``relu_only``)."""
        if (lo, hi) == (0, 255):
            return Post("none", [], None)
        if (lo, hi) == (z, 255):
            return Post("relu", [], None)
        if relu_only:
            return Post("relu" if lo == z else "none", [], (lo, hi))
        return Post("hardtanh", [float(lo - z), float(hi - z)], None)


@dataclass(frozen=True)
class Numbers:
    """The arrays of a product as the operators take them."""

    weight: Tensor
    scales: Tensor
    bias: Tensor
    zeros: Tensor
    slopes: Tensor | None
    residual: float

    @staticmethod
    def of(ctx: OpContext) -> Numbers:
        """Every float here is an exact rational rounded once."""
        op = ctx.op
        a, b = op.multipliers()
        m = a / b
        slopes = None
        if "a_neg" in op.arrays:
            negative = np.asarray(op.arrays["a_neg"], np.float64) / np.asarray(op.arrays["b_neg"], np.float64)
            slopes = float32(np.divide(negative, m, out=np.zeros_like(negative), where=m != 0))
        residual = float(np.float32(op.attrs.get("residual_a", 0) / int(b[0]))) if len(op.inputs) == 2 else 0.0
        return Numbers(
            torch.from_numpy(np.array(op.arrays["weight"], np.int8)),
            float32(m),
            float32(np.asarray(op.arrays["bias"], np.float64) * a / b + op.arrays.get("shift", 0)),
            torch.zeros(len(a), dtype=torch.int32),
            slopes,
            residual,
        )


def lower_linear(ctx: OpContext) -> Step:
    """``linear`` on the last dimension of a tensor of any rank."""
    x = ctx.inputs[0]
    z_x, n = zero_point(ctx.metas[0]), Numbers.of(ctx)
    rows = x.numel() // x.shape[-1]
    call = _linear_call(ctx, n, z_x, [rows, x.shape[-1]])
    if x.is_contiguous():
        return call
    return lambda x, *residual: call(x.contiguous(), *residual)


def _linear_call(ctx: OpContext, n: Numbers, z_x: int, shape: list[int]) -> Step:
    """A call on (…, K) contiguous memory; a residual of the same layout as the result."""
    z, out = ctx.z, torch.uint8
    pack = ctx.pack(("linear", shape[-1]), lambda: LINEAR_PACK(n.weight.flatten(1).contiguous(), shape))
    bias = n.bias
    head = (1.0, z_x, pack.weight, n.scales, n.zeros)
    if len(ctx.op.inputs) == 2:
        post = Post.of(ctx.lo, ctx.hi, z, relu_only=True)
        own = _owned(ctx, lambda t: t.is_contiguous(), Tensor.contiguous)
        z_r, r = zero_point(ctx.metas[1]), n.residual
        tail: tuple[Any, ...] = (bias, 1.0, z, out, r, z_r, "sum", 1.0, post.name, [], "")
        return _clamped(lambda x, residual: LINEAR_SUM(x, *head, own(residual), *tail), post)
    if n.slopes is not None:
        finish, channels = _leaky_finish(ctx, n.slopes), len(n.scales)

        def leaky(x: Tensor) -> Tensor:
            v = LINEAR(x, *head, bias, 1.0, 0, torch.float32, "none", [], "")
            return finish(v.view(-1, channels)).view(v.shape)

        return leaky
    post = Post.of(ctx.lo, ctx.hi, z)
    fixed = (*head, bias, 1.0, z, out, post.name, post.scalars, "")
    return lambda x: LINEAR(x, *fixed)


def lower_conv(ctx: OpContext) -> Step:
    """``conv`` with one, two or three spatial dimensions, transposed or not."""
    compiled = lower_native_conv(ctx)
    if compiled is not None:
        return compiled
    attrs, x = ctx.op.attrs, ctx.inputs[0]
    n, z_x, dims = Numbers.of(ctx), zero_point(ctx.metas[0]), x.dim() - 2
    stride, padding, dilation = (list(map(int, attrs[k])) for k in ("stride", "padding", "dilation"))
    groups = int(attrs["groups"])
    if attrs.get("transposed", False):
        spread, n = _spread(attrs, n, z_x, x), _flipped(n, groups)
        inner = _conv(ctx, n, z_x, spread(x), [1] * dims, [0] * dims, dilation, groups)
        return lambda x, *residual: inner(spread(x), *residual)
    return _conv(ctx, n, z_x, x, stride, padding, dilation, groups)


def _conv(
    ctx: OpContext,
    n: Numbers,
    z_x: int,
    x: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Step:
    fix = None if is_nhwc(x) else to_nhwc
    kernel = n.weight.shape[2:]
    if groups == 1 and all(v == 1 for v in (*kernel, *stride)) and not any(padding):
        step = _pointwise(ctx, n, z_x, x)
    elif x.dim() == 3:
        step = _conv1d(ctx, n, z_x, x, stride, padding, dilation, groups)
    else:
        step = _conv_nd(ctx, n, z_x, list(x.shape), stride, padding, dilation, groups)
    if fix is None:
        return step
    return lambda x, *residual: step(to_nhwc(x), *residual)


def _pointwise(ctx: OpContext, n: Numbers, z_x: int, x: Tensor) -> Step:
    """A 1×1 convolution is ``linear`` on the same memory, whose operator costs 7 µs less per call."""
    rank = x.dim()
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    call = _linear_call(ctx, n, z_x, [x.numel() // x.shape[1], x.shape[1]])
    if len(ctx.op.inputs) == 2:
        return lambda x, residual: call(x.permute(last), residual.permute(last)).permute(first)
    return lambda x: call(x.permute(last)).permute(first)


def _conv1d(
    ctx: OpContext,
    n: Numbers,
    z_x: int,
    x: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Step:
    """As two-dimensional images of height 1."""
    flat = Numbers(n.weight.unsqueeze(2), n.scales, n.bias, n.zeros, n.slopes, n.residual)
    shape = [x.shape[0], x.shape[1], 1, x.shape[2]]
    call = _conv_nd(ctx, flat, z_x, shape, [1, *stride], [0, *padding], [1, *dilation], groups)
    return lambda *tensors: call(*(t.unsqueeze(2) for t in tensors)).squeeze(2)


def _conv_nd(
    ctx: OpContext,
    n: Numbers,
    z_x: int,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Step:
    """The call, and ways round two bugs of oneDNN 3.12 that tests/conformance found.

    Where some output sees nothing but padding, oneDNN computes it from memory that is not the input's, or crashes: the
    input is then padded before the call. One input channel per group (and no depthwise convolution) gives wrong
    numbers where the output is one column wide with a column stride, and in volumes one slice deep. A second channel
    with zero weights takes another path through oneDNN.
    """
    sizes = zip(shape[2:], n.weight.shape[2:], stride, padding, dilation, strict=True)
    if any(sees_padding_only(*size) for size in sizes):
        around = [v for p in reversed(padding) for v in (p, p)]
        full = [*shape[:2], *(length + 2 * p for length, p in zip(shape[2:], padding, strict=True))]
        padded = _conv_nd(ctx, n, z_x, full, stride, [0] * len(padding), dilation, groups)
        return lambda x, *residual: padded(to_nhwc(F.pad(x, around, value=z_x)), *residual)
    lone = n.weight.shape[1] == 1 and (groups == 1 or n.weight.shape[0] > groups)
    span = dilation[-1] * (n.weight.shape[-1] - 1) + 1
    one_column = stride[-1] > 1 and shape[-1] + 2 * padding[-1] - span < stride[-1]
    if not lone or not (len(shape) == 5 or one_column):
        return _conv_call(ctx, n, z_x, shape, stride, padding, dilation, groups)
    weight = torch.cat([n.weight, torch.zeros_like(n.weight)], 1)
    wide = Numbers(weight, n.scales, n.bias, n.zeros, n.slopes, n.residual)
    call = _conv_call(ctx, wide, z_x, [shape[0], 2 * shape[1], *shape[2:]], stride, padding, dilation, groups)
    return lambda x, *residual: call(to_nhwc(x.repeat_interleave(2, 1)), *residual)


def _conv_call(
    ctx: OpContext,
    n: Numbers,
    z_x: int,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Step:
    """One operator call on channels-last memory."""
    z, out = ctx.z, torch.uint8
    images = len(shape) == 4
    plain = CONV if images else CONV3D
    pack = ctx.pack(
        ("conv", *shape[1:]), lambda: PACK(n.weight, n.scales, 1.0, z_x, stride, padding, dilation, groups, shape)
    )
    head = (1.0, z_x, pack.weight, n.scales, n.zeros)
    where = (n.bias, stride, padding, dilation, groups)

    def to_float(x: Tensor) -> Tensor:
        result: Tensor = plain(x, *head, *where, 1.0, 0, torch.float32, "none", [], "")
        return result

    if n.slopes is not None:
        finish = _leaky_finish(ctx, n.slopes)
        return lambda x: finish(to_float(x))
    if len(ctx.op.inputs) == 2:
        z_r, r = zero_point(ctx.metas[1]), n.residual
        # Volumes have no fused sum. oneDNN 3.12 writes wrong columns for depthwise + dilation + sum on CPUs with
        # AVX-VNNI but not AVX512. Both add outside the call: the same sum of the same two roundings each.
        if not images or (ctx.isa == "avx2_vnni" and groups > 1 and max(dilation) > 1):
            end = make_quantize(z, ctx.lo, ctx.hi)
            return lambda x, residual: end(to_float(x).add_(residual.float().sub_(z_r).mul_(r)))
        post, own = Post.of(ctx.lo, ctx.hi, z, relu_only=True), _owned(ctx, is_nhwc, to_nhwc)
        tail: tuple[Any, ...] = (*where, 1.0, z, out, r, z_r, "sum", 1.0, post.name, [], "")
        return _clamped(lambda x, residual: CONV_SUM(x, *head, own(residual), *tail), post)
    post = Post.of(ctx.lo, ctx.hi, z) if images else Post("none", [], (ctx.lo, ctx.hi))  # volumes know no post-op
    fixed = (*head, *where, 1.0, z, out, post.name, post.scalars, "")
    return _clamped(lambda x: plain(x, *fixed), post)


def _leaky_finish(ctx: OpContext, slopes: Tensor) -> Callable[[Tensor], Tensor]:
    """Negative values times the slope of their channel (dimension 1), then uint8.

    Roundings: five of the product above, the slope stored and its product: seven. The sign needs no care: acc + bias is
    an integer, and where its sign is in doubt, both results round to 0.
    """
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda v: end(torch.prelu(v, slopes))


def _owned(
    ctx: OpContext, fits: Callable[[Tensor], bool], convert: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The residual in memory the call may overwrite: its own when nobody reads it later, a copy otherwise."""
    donated = ctx.may_overwrite[1]

    def own(residual: Tensor) -> Tensor:
        if not fits(residual):
            return convert(residual)
        return residual if donated else residual.clone(memory_format=torch.preserve_format)

    return own


def _clamped(step: Step, post: Post) -> Step:
    if post.clamp is None:
        return step
    lo, hi = post.clamp
    return lambda *tensors: step(*tensors).clamp_(lo, hi)


def _flipped(n: Numbers, groups: int) -> Numbers:
    """Weights (I, O/groups, …) of a transposed convolution as those of the ordinary one on the spread input."""
    w = n.weight
    size = w.shape[2:]
    w = w.reshape(groups, w.shape[0] // groups, w.shape[1], *size).transpose(1, 2)
    w = w.reshape(-1, w.shape[2], *size).flip(tuple(range(2, 2 + len(size)))).contiguous()
    return Numbers(w, n.scales, n.bias, n.zeros, n.slopes, n.residual)


def _spread(attrs: dict[str, Any], n: Numbers, z_x: int, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The input of a transposed convolution with z_x between its elements and around it, so that an ordinary
    convolution of stride 1 without padding gives the result. Exact in int32 for any size; oneDNN has no int8
    transposed convolution in torch."""
    size, index = [], []
    for i, length in enumerate(x.shape[2:]):
        s, reach = int(attrs["stride"][i]), int(attrs["dilation"][i]) * (n.weight.shape[2 + i] - 1)
        before = reach - int(attrs["padding"][i])
        after = before + int(attrs["output_padding"][i])
        total = (length - 1) * s + 1
        size.append(before + total + after)
        skip = max(0, -(before // s))  # elements cut away by a padding wider than the kernel
        start = before + skip * s
        index.append((skip, start, s))
    keep = []
    places = []
    for (skip, start, s), length, full in zip(index, x.shape[2:], size, strict=True):
        count = max(0, min(length - skip, (full - 1 - start) // s + 1))
        keep.append(slice(skip, skip + count))
        places.append(slice(start, start + (count - 1) * s + 1 if count else start, s))
    last = (0, *range(2, x.dim()), 1)
    first = (0, x.dim() - 1, *range(1, x.dim() - 1))
    shape = (x.shape[0], *size, x.shape[1])

    def spread(x: Tensor) -> Tensor:
        board = torch.full(shape, z_x, dtype=torch.uint8)
        board[(slice(None), *places)] = x.permute(last)[(slice(None), *keep)]
        return board.permute(first)

    return spread
