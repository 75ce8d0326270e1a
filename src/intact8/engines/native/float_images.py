"""Convolutions, means of windows and resizing of float images, composed of other steps: windows are copied side by
side, and pixels are read by their index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from intact8.arithmetic.integer import flip_transposed
from intact8.arithmetic.resize import taps
from intact8.arithmetic.windows import pool_windows
from intact8.opset.op import Array

from .builder import MAX_RANK, Value, channels_last
from .float_chains import chain
from .lowering import OpContext, Rule
from .pools import image, nearest, take_pixels
from .products import PLAIN_WEIGHT


def _padded(ctx: OpContext, x: Value, before: Sequence[int], sizes: Sequence[int], spread: Sequence[int]) -> Value:
    """Return images among zeros.

    Args:
        ctx: the operation.
        x: images with their channels last.
        before: zeros before them along each axis.
        sizes: of the result.
        spread: from one pixel of x to the next.
    """
    if tuple(sizes) == x.shape[2:] and not any(before):
        return x
    y = ctx.builder.value((*x.shape[:2], *sizes), x.dtype, x.order)
    ctx.builder.step("fill", y=y, size=4, count=y.size, bits=0)
    steps, sx = y.strides(), x.strides()
    to = [s * n for s, n in zip(steps, (1, 1, *spread), strict=True)]
    offset = sum(n * s for n, s in zip(before, steps[2:], strict=True))
    ctx.builder.copy(x, y, x.physical, [sx[d] for d in x.order], [to[d] for d in x.order], 0, offset)
    return y


def _windows(
    ctx: OpContext,
    x: Value,
    first: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> Value | None:
    """Return the windows (N, *out, groups, *kernel, C / groups) of images with their channels last; None where the
    library has no copy of so many dimensions.

    Args:
        ctx: the operation.
        x: images.
        first: position of the first window along each axis.
        out: number of windows.
        kernel, stride, dilation: of windows.
        groups: of channels.
    """
    batch, channels, *_ = x.shape
    each, strides = channels // groups, x.strides()
    shape = (batch, *out, groups, *kernel, each)
    if sum(n != 1 for n in shape) > MAX_RANK:
        return None
    moves = [s * n for s, n in zip(strides[2:], stride, strict=True)]
    inside = [s * n for s, n in zip(strides[2:], dilation, strict=True)]
    y = ctx.builder.value(shape, x.dtype)
    offset = sum(n * s for n, s in zip(first, strides[2:], strict=True))
    ctx.builder.copy(x, y, shape, [strides[0], *moves, each, *inside, 1], None, offset)
    return y


def conv(ctx: OpContext) -> Value | None:
    """Lower a convolution: a product of windows with the weight, group by group."""
    t, stored, x = ctx.op.attrs, ctx.op.arrays["weight"], image(ctx)
    stride, dilation, groups, rank = t["stride"], t["dilation"], t["groups"], len(t["stride"])
    kernel, out, first = stored.shape[2:], ctx.shape[2:], [0] * rank
    if not x.size or not math.prod(ctx.shape):
        return None
    spread, before, after = [1] * rank, list(t["padding"]), list(t["padding"])
    if t["transposed"]:  # see intact8.arithmetic.integer.spread_transposed
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, t["padding"], strict=True)]
        first, before = [max(0, -r) for r in reach], [max(0, r) for r in reach]
        after = [max(0, r + o) for r, o in zip(reach, t["output_padding"], strict=True)]
        spread, stride = stride, [1] * rank
    rows = zip(before, x.shape[2:], spread, after, strict=True)
    padded = _padded(ctx, x, before, [p + (n - 1) * s + 1 + q for p, n, s, q in rows], spread)
    windows = _windows(ctx, padded, first, out, kernel, stride, dilation, groups)
    if windows is None:
        return None
    channels = ctx.shape[1]
    depth, columns = stored.size // channels, channels // groups

    def weight() -> Array:
        w = flip_transposed(stored, groups) if t["transposed"] else stored
        return np.moveaxis(w.reshape(groups, columns, *w.shape[1:]), (1, 2), (-1, -2)).reshape(groups, depth, columns)

    y = ctx.make(channels_last(len(ctx.shape)))
    fields = {f"{letter}{i}": 0 for letter in "xwyb" for i in range(4)} | {f"d{i}": 1 for i in range(4)}
    fields |= {"d3": groups, "x3": depth, "w3": depth * columns, "y3": columns, "b3": columns}
    fields |= {"rows": windows.size // (groups * depth), "depth": depth, "columns": columns}
    fields |= {"x_row": groups * depth, "w_depth": columns, "w_column": 1, "y_row": channels}
    more = PLAIN_WEIGHT | {"bias": ctx.stored("bias")} | fields
    ctx.builder.step("float_matmul", x=windows, w=ctx.constant("weight, columns last", weight), y=y, **more)
    return y


def _means(
    ctx: OpContext, before: Sequence[int], kernel: Sequence[int], stride: Sequence[int], divisors: Array
) -> Value | None:
    """Lower means of windows of one size, which may reach beyond the image: sums, divided."""
    x, out = image(ctx), ctx.shape[2:]
    if not x.size or not math.prod(ctx.shape):
        return None
    rows = zip(before, x.shape[2:], out, stride, kernel, strict=True)
    padded = _padded(ctx, x, before, [max(p + n, (o - 1) * s + k) for p, n, o, s, k in rows], [1] * len(out))
    windows = _windows(ctx, padded, [0] * len(out), out, kernel, stride, [1] * len(out))
    if windows is None:
        return None
    count, channels = math.prod(kernel), ctx.shape[1]
    whole = bool((divisors == count).all())
    y = ctx.make(channels_last(len(ctx.shape)))
    total = y if whole else ctx.builder.value(y.shape, y.dtype, y.order)
    outer = windows.size // (count * channels)
    ctx.builder.step(
        "float_reduce", x=windows, y=total, outer=outer, count=count, inner=channels, function=int(not whole)
    )
    if whole:
        return y
    wanted = ctx.constant(f"divisors {x.shape[2:]}", lambda: np.broadcast_to(divisors, (1, 1, *out)).astype(np.float32))
    return chain(replace(ctx, inputs=[total]), [total, wanted], [("div", 0, 1, 0.0, 0.0)])


def avg_pool(ctx: OpContext) -> Value | None:
    """Lower means of windows."""
    t, size = ctx.op.attrs, ctx.inputs[0].shape[2:]
    kernel, stride, padding = t["kernel"], t["stride"], t["padding"]
    _, divisors = pool_windows(size, kernel, stride, padding, t["ceil_mode"], t["count_include_pad"])
    return _means(ctx, padding, kernel, stride, divisors)


def adaptive_avg_pool(ctx: OpContext) -> Value | None:
    """Lower means of as many windows as are wanted, where these are of one size."""
    size, out = ctx.inputs[0].shape[2:], ctx.op.attrs["output_size"]
    if any(n % o for n, o in zip(size, out, strict=True)):
        return None
    kernel = [n // o for n, o in zip(size, out, strict=True)]
    return _means(ctx, [0] * len(out), kernel, kernel, np.array(math.prod(kernel)))


def upsample(ctx: OpContext) -> Value | None:
    """Lower a resizing: to the nearest pixels, or axis by axis to weighted sums of rows by index."""
    t, x = ctx.op.attrs, image(ctx)
    if t["mode"].startswith("nearest"):
        return nearest(ctx)
    if not x.size or not math.prod(ctx.shape):
        return None
    for axis, size in enumerate(t["size"], start=2):
        operands, code = list[Value](), list[tuple[str, int, int, float, float]]()
        x = ctx.builder.in_order(x, channels_last(len(x.shape)))  # a chain of one pixel may give another
        rows = taps(x.shape[axis], size, t["mode"] == "bicubic", bool(t["align_corners"]))
        for i, (at, weight) in enumerate(rows):
            place, last = f"{axis} {x.shape[axis]} {size} {i}", len(operands)
            shaped = weight.astype(np.float32).reshape([-1 if d == axis else 1 for d in range(len(x.shape))])
            operands += take_pixels(ctx, x, axis, at, place), ctx.constant(f"weight {place}", shaped.copy)
            code.append(("mul", last, last + 1, 0.0, 0.0))
            if i:
                code.append(("add", -2, -1, 0.0, 0.0))
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        resized = chain(replace(ctx, inputs=operands[::2], out=replace(ctx.out, shape=shape)), operands, code)
        if resized is None:
            return None
        x = resized
    return x


RULES: dict[str, Rule] = {
    "float.conv": conv,
    "float.avg_pool": avg_pool,
    "float.adaptive_avg_pool": adaptive_avg_pool,
    "upsample": upsample,
}
