"""Operations that only move values, on tensors of any dtype; channels-last memory is kept where that is possible."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.moves import expanded_shape, nearest_index
from intact8.arithmetic.torch_resize import weighted_sums

from .lowering import OpContext, Rule, Step
from .quantize_passes import make_quantize


def _cat(ctx: OpContext) -> Step:
    axis = int(ctx.op.attrs["axis"])
    return lambda *tensors: torch.cat(tensors, axis)


def _reshape(ctx: OpContext) -> Step:
    """Return a view where memory allows. Regrouping only the channels of images keeps channels last (channel
    shuffle)."""
    x, (shape,) = ctx.inputs[0], ctx.ints("shape")
    target = x.reshape(shape).shape
    spatial = next((k for k in (3, 2, 1) if _keeps_images(x.shape, target, k)), 0)
    if not spatial or x.is_contiguous():
        return lambda x: x.reshape(shape)
    split = x.dim() - spatial
    last = (0, *range(split, x.dim()), *range(1, split))
    middle = (target[0], *target[-spatial:], *target[1:-spatial])
    first = (0, *range(1 + spatial, len(target)), *range(1, 1 + spatial))
    return lambda x: x.permute(last).reshape(middle).permute(first)


def _keeps_images(a: tuple[int, ...], b: tuple[int, ...], spatial: int) -> bool:
    return min(len(a), len(b)) >= 2 + spatial and a[0] == b[0] and a[-spatial:] == b[-spatial:]


def _permute(ctx: OpContext) -> Step:
    (dims,) = ctx.ints("dims")
    return lambda x: x.permute(dims)


def _slice(ctx: OpContext) -> Step:
    axis, start, end, step = (int(ctx.op.attrs[k]) for k in ("axis", "start", "end", "step"))
    index = (slice(None),) * axis + (slice(start, end, step),)
    return lambda x: x[index]


def _pad(ctx: OpContext) -> Step:
    pads = [int(v) for pair in reversed(ctx.op.attrs["pads"]) for v in pair]
    value = ctx.op.attrs["value"]
    return lambda x: F.pad(x, pads, value=value)


def _expand(ctx: OpContext) -> Step:
    shape = expanded_shape(ctx.op.attrs["shape"], ctx.inputs[0].shape, ctx.out.shape, ctx.batch)
    return lambda x: x.expand(shape)


def _roll(ctx: OpContext) -> Step:
    shifts, dims = ctx.ints("shifts", "dims")
    return lambda x: torch.roll(x, shifts, dims)


def _upsample(ctx: OpContext) -> Step:
    """Return the nearest neighbours by index; torch computes the other modes, of float tensors only."""
    x, attrs, (size,), mode = ctx.inputs[0], ctx.op.attrs, ctx.ints("size"), str(ctx.op.attrs["mode"])
    if not mode.startswith("nearest"):
        align = bool(attrs["align_corners"])
        return lambda x: F.interpolate(x, size=size, mode=mode, align_corners=align)
    exact = mode == "nearest-exact"
    picks = [torch.from_numpy(nearest_index(n, o, exact)) for n, o in zip(x.shape[2:], size, strict=True)]

    def step(x: Tensor) -> Tensor:
        for i, index in enumerate(picks):
            x = x.index_select(2 + i, index)
        return x

    return step


def _resize_linear(ctx: OpContext) -> Step:
    """Return the weighted sums in float32, which holds them, and one division."""
    t = ctx.op.attrs
    size, corners, denominators = list(t["size"]), t["align_corners"], list(t["denominators"])
    divided = make_quantize(0, 0, 255, float(prod(denominators)))
    return lambda x: divided(weighted_sums(x, size, corners, denominators))


def _constant(ctx: OpContext) -> Step:
    value = ctx.array("value")
    return lambda: value


RULES: dict[str, Rule] = {
    "cat": _cat,
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "expand": _expand,
    "roll": _roll,
    "upsample": _upsample,
    "resize_linear": _resize_linear,
    "constant": _constant,
}
"""Kind → rule."""
