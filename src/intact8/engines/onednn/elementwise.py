"""quantize, dequantize, add, mul, table.

Sums and products of two tensors have a float32 form of few passes and, where shapes allow, a form as one depthwise
convolution (see ``depthwise``). Roundings are written beside each.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np
import torch
from torch import Tensor

from ..native import float_bits
from . import torch_native
from .conv_linear import Post
from .depthwise_ones import scaled_add
from .lowering import OpContext, Step, is_nhwc, step_size, zero_point
from .quantize_passes import make_dequantize, make_lookup, make_quantize, make_quantize_nhwc


def lower_quantize(ctx: OpContext) -> Step:
    """clamp(R(x / s) + z, lo, hi) by IEEE division; uint8 passes as it is. Images become channels last."""
    x, s = ctx.inputs[0], step_size(ctx.out)
    turned = ctx.spatial and x.dim() > 2 and not is_nhwc(x)
    if x.dtype == torch.uint8:
        return _nhwc if turned else lambda x: x
    if turned:
        return make_quantize_nhwc(x, ctx.z, ctx.lo, ctx.hi, s)
    return make_quantize(ctx.z, ctx.lo, ctx.hi, s, nan=True)


def _nhwc(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def lower_dequantize(ctx: OpContext) -> Step:
    """(q − z)·s, one rounding."""
    return make_dequantize(ctx.inputs[0], zero_point(ctx.metas[0]), step_size(ctx.metas[0]))


def lower_add(ctx: OpContext) -> Step:
    """Σ a_j·(x_j − z_j)/b. As a convolution: ratio and product of one term, ratio and fused add of the other, + z."""
    b = int(ctx.op.attrs["b"])
    ratios = [float(Fraction(int(a), b)) for a in ctx.op.attrs["a"]]
    zeros = [zero_point(m) for m in ctx.metas]
    if len(ratios) == 2:
        flat = _flattener(ctx.inputs[0], ctx.inputs[1])
        if flat is not None:
            return _add_pair(ctx, ratios, zeros, flat)
    return _add_floats(ctx, ratios, zeros)


def _add_pair(ctx: OpContext, ratios: list[float], zeros: list[int], flat: _Flat) -> Step:
    keep = 1 if ctx.may_overwrite[1] or not ctx.may_overwrite[0] else 0  # the operand whose memory takes the result
    other = 1 - keep
    clone = not ctx.may_overwrite[keep]
    post = Post.of(ctx.lo, ctx.hi, ctx.z, relu_only=True)
    shape, pack, unpack = flat
    call = scaled_add(ctx, shape, zeros[other], ratios[other], zeros[keep], ratios[keep], post.name == "relu", ctx.z)

    def step(*tensors: Tensor) -> Tensor:
        target = tensors[keep]
        if clone:
            target = target.clone(memory_format=torch.preserve_format)
        y = unpack(call(pack(tensors[other]), pack(target)))
        return y.clamp_(*post.clamp) if post.clamp else y

    return step


def _add_floats(ctx: OpContext, ratios: list[float], zeros: list[int]) -> Step:
    """Each term stores its ratio and multiplies, each sum rounds: 2 + (n − 1), in float64 beyond four terms."""
    kind = torch.float32 if len(ratios) <= 4 else torch.float64
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)

    def step(*tensors: Tensor) -> Tensor:
        terms = [x.to(kind).sub_(z).mul_(r) for x, z, r in zip(tensors, zeros, ratios, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return end(total)

    return step


def lower_mul(ctx: OpContext) -> Step:
    """(x − z_x)·(w − z_w)·a/b. The product of two differences is an exact integer below 2¹⁶; the ratio is stored and
    its product rounds: two."""
    x, w = ctx.inputs
    ratio = float(np.float32(int(ctx.op.attrs["a"]) / int(ctx.op.attrs["b"])))
    z_x, z_w = (zero_point(m) for m in ctx.metas)
    library = torch_native.load()
    if library is not None:
        if _is_gate(x, w):
            return _multiply_rows(ctx, library.multiply, ratio, 0)
        if _is_gate(w, x):
            return _multiply_rows(ctx, library.multiply, ratio, 1)
        if x.shape == w.shape and x.is_contiguous() and w.is_contiguous():
            return _multiply_rows(ctx, library.multiply, ratio, 0)
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda x, w: end((x.to(torch.float32).sub_(z_x) * w.to(torch.float32).sub_(z_w)).mul_(ratio))


def _multiply_rows(ctx: OpContext, one_pass: Callable[..., None], ratio: float, full: int) -> Step:
    """Operand ``full`` times the other: a value per element, or per channel of an image with channels last."""
    x, w = ctx.inputs[full], ctx.inputs[1 - full]
    gate = x.shape != w.shape
    width, repeat = (x.shape[1], prod(x.shape[2:])) if gate else (x.shape[-1] if x.dim() else 1, 1)
    rows = x.numel() // width
    zeros = (zero_point(ctx.metas[full]), zero_point(ctx.metas[1 - full]), ctx.z)
    last = (float_bits(ratio), ctx.lo - ctx.z, ctx.hi - ctx.z)

    def step(*tensors: Tensor) -> Tensor:
        x, w = tensors[full], tensors[1 - full].contiguous()
        y = torch.empty_like(x)
        one_pass(
            x.data_ptr(),
            w.data_ptr(),
            y.data_ptr(),
            rows,
            width,
            repeat,
            *zeros,
            *last,
            *torch_native.sizes(x, torch.uint8, w),
            y.nbytes,
        )
        return y

    return step


def _is_gate(x: Tensor, w: Tensor) -> bool:
    """Whether w (N, C, 1, 1) scales the channels of x (N, C, H, W), channels last."""
    return x.dim() == w.dim() == 4 and w.shape == (*x.shape[:2], 1, 1) and x.shape[2:] != (1, 1) and is_nhwc(x)


def lower_table(ctx: OpContext) -> Step:
    """table[x]: as a clamp where that gives all 256 entries."""
    table = torch.from_numpy(np.array(ctx.op.arrays["table"], np.uint8))
    lo, hi = int(table.min()), int(table.max())
    if torch.equal(table, torch.arange(256, dtype=torch.uint8).clamp(lo, hi)):
        return (lambda x: x.clone()) if (lo, hi) == (0, 255) else (lambda x: x.clamp(lo, hi))
    return make_lookup(table)


_Flat = tuple[list[int], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _flattener(x: Tensor, y: Tensor) -> _Flat | None:
    """A shape for the depthwise kernel and the two views to and from it, for tensors of one dense layout.

    Images go as they are; other tensors as 64 (or fewer) channels over their memory, whatever it means.
    """
    if x.shape != y.shape or x.numel() == 0:
        return None
    if x.dim() == 4 and is_nhwc(x) and is_nhwc(y):
        return list(x.shape), lambda t: t, lambda t: t
    if not (x.is_contiguous() and y.is_contiguous()):
        return None
    channels = next((c for c in (64, 32, 16, 8) if x.numel() % c == 0), 0)
    if not channels:
        return None
    shape, back = (1, 1, x.numel() // channels, channels), x.shape
    return (
        [1, channels, 1, x.numel() // channels],
        lambda t: t.view(shape).permute(0, 3, 1, 2),
        lambda t: t.permute(0, 2, 3, 1).view(back),
    )
