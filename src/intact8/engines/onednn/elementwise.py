"""quantize, dequantize, add, mul, table on uint8."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from intact8.opset.kind import zero_point

from .conv_linear import Post
from .depthwise_ones import scaled_add
from .lowering import OpContext, Rule, Step, is_nhwc, step_size, to_nhwc
from .quantize_passes import make_dequantize, make_lookup, make_quantize, make_quantize_nhwc


def _quantize(ctx: OpContext) -> Step:
    """Return clamp(R(x / s) + z, lo, hi) by IEEE division; uint8 passes as it is. Images become channels last."""
    x, s = ctx.inputs[0], step_size(ctx.out)
    moves_channels = ctx.spatial and x.dim() > 2 and not is_nhwc(x)
    if x.dtype == torch.uint8:
        return to_nhwc if moves_channels else lambda x: x
    if moves_channels:
        return make_quantize_nhwc(ctx.z, ctx.lo, ctx.hi, s)
    return make_quantize(ctx.z, ctx.lo, ctx.hi, s, nan=True)


def _dequantize(ctx: OpContext) -> Step:
    return make_dequantize(ctx.z_x, step_size(ctx.metas[0]))


def _add(ctx: OpContext) -> Step:
    """Return Σ a_j·(x_j − z_j)/b. As a convolution: ratio and product of one term, ratio and fused add of the other, +
    z."""
    b = int(ctx.op.attrs["b"])
    ratios = [float(Fraction(int(a), b)) for a in ctx.op.attrs["a"]]
    zeros = [zero_point(m) for m in ctx.metas]
    views = _image_views(*ctx.inputs) if len(ratios) == 2 else None
    return _add_floats(ctx, ratios, zeros) if views is None else _add_pair(ctx, ratios, zeros, views)


def _add_pair(ctx: OpContext, ratios: list[float], zeros: list[int], views: _ImageViews) -> Step:
    target = 1 if ctx.may_overwrite[1] or not ctx.may_overwrite[0] else 0  # the operand whose memory takes the result
    other, copies = 1 - target, not ctx.may_overwrite[target]
    post = Post.of(ctx, relu_only=True)
    shape, to_image, from_image = views
    call = scaled_add(ctx, shape, zeros[other], ratios[other], zeros[target], ratios[target], post.name)

    def step(*tensors: Tensor) -> Tensor:
        y = tensors[target]
        if copies:
            y = y.clone(memory_format=torch.preserve_format)
        return from_image(call(to_image(tensors[other]), to_image(y)))

    return post.after(step)


def _add_floats(ctx: OpContext, ratios: list[float], zeros: list[int]) -> Step:
    """Each term stores its ratio and multiplies, each sum rounds: 2 + (n − 1), in float64 beyond four terms."""
    dtype = torch.float32 if len(ratios) <= 4 else torch.float64
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)

    def step(*tensors: Tensor) -> Tensor:
        first, *terms = (x.to(dtype).sub_(z).mul_(r) for x, z, r in zip(tensors, zeros, ratios, strict=True))
        return end(sum(terms, first))

    return step


def _mul(ctx: OpContext) -> Step:
    """Return (x − z_x)·(w − z_w)·a/b. The product of two differences is an exact integer below 2¹⁶; the ratio is stored
    and its product rounds: two."""
    ratio = float(np.float32(int(ctx.op.attrs["a"]) / int(ctx.op.attrs["b"])))
    z_x, z_w = (zero_point(m) for m in ctx.metas)
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda x, w: end((x.to(torch.float32).sub_(z_x) * w.to(torch.float32).sub_(z_w)).mul_(ratio))


def _table(ctx: OpContext) -> Step:
    """Return table[x]: as a clamp where that gives all 256 entries."""
    table = torch.from_numpy(np.array(ctx.op.arrays["table"], np.uint8))
    lo, hi = int(table.min()), int(table.max())
    if torch.equal(table, torch.arange(256, dtype=torch.uint8).clamp(lo, hi)):
        return Tensor.clone if (lo, hi) == (0, 255) else lambda x: x.clamp(lo, hi)
    return make_lookup(table)


_ImageViews = tuple[list[int], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _image_views(x: Tensor, y: Tensor) -> _ImageViews | None:
    """Return a shape for the depthwise kernel and the two views to and from it, for tensors of one dense layout.

    Images go as they are; other tensors as 64 (or fewer) channels over their memory, whatever it means.
    """
    if x.shape != y.shape or x.numel() == 0:
        return None
    if x.dim() == 4 and is_nhwc(x) and is_nhwc(y):
        return list(x.shape), lambda t: t, lambda t: t
    channels = next((c for c in (64, 32, 16, 8) if x.numel() % c == 0), 0)
    if not channels or not (x.is_contiguous() and y.is_contiguous()):
        return None
    shape, back = (1, 1, x.numel() // channels, channels), x.shape
    return (
        [1, channels, 1, x.numel() // channels],
        lambda t: t.view(shape).permute(0, 3, 1, 2),
        lambda t: t.permute(0, 2, 3, 1).view(back),
    )


RULES: dict[str, Rule] = {"quantize": _quantize, "dequantize": _dequantize, "add": _add, "mul": _mul, "table": _table}
"""Kind → rule."""
