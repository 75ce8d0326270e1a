"""Pools, means, and images of another size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from intact8.arithmetic.moves import nearest_index
from intact8.arithmetic.resize import LARGEST_PRODUCT, linear_axis
from intact8.arithmetic.windows import Edges, adaptive_windows, pool_size, pool_windows
from intact8.opset.op import Array

from .builder import Value, channels_last, float_bits, without
from .lowering import AXES, OpContext, Rule, image_axes, image_fields

SEPARABLE = 16
"""Elements of a window from which a maximum is taken axis by axis."""


def image(ctx: OpContext) -> Value:
    """Return the only input with its channels last."""
    return ctx.builder.in_order(ctx.inputs[0], channels_last(len(ctx.inputs[0].shape)))


def max_pool(ctx: OpContext) -> Value:
    """Lower a largest element of windows: of all axes at once, or axis by axis where windows are large."""
    t, x = ctx.op.attrs, image(ctx)
    rank = len(t["kernel"])
    parts = [range(rank)]
    if math.prod(t["kernel"]) >= SEPARABLE:
        parts = [range(i, i + 1) for i in range(rank) if (t["kernel"][i], t["stride"][i]) != (1, 1)] or parts
    for axes in parts:
        taken = {
            role: [t[role][i] if i in axes else default for i in range(rank)]
            for role, default in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
        }
        rows = enumerate(zip(x.shape[2:], *taken.values(), strict=True))
        size = [pool_size(n, k, s, p, d, t["ceil_mode"] and i in axes) for i, (n, k, s, p, d) in rows]
        y = ctx.builder.value((*x.shape[:2], *size), x.dtype, x.order)
        fields: dict[str, int] = {}
        for name, role in (("kernel", "kernel"), ("stride", "stride"), ("pad", "padding"), ("dilation", "dilation")):
            whole = image_axes(taken[role], int(role != "padding"))
            fields |= {f"{name}_{axis}": n for axis, n in zip(AXES, whole, strict=True)}
        ctx.builder.step("max_pool", x=x, y=y, size=x.itemsize, **image_fields(x, y), **fields)
        x = y
    return x


def _average(ctx: OpContext, edges: Edges, lengths: Sequence[Array]) -> Value:
    """Lower a mean of windows.

    Args:
        ctx: the operation.
        edges: start and end of the windows along each axis.
        lengths: what each window counts along each axis.
    """
    x = image(ctx)
    y = ctx.make(x.order)
    one = (np.zeros(1, np.int64), np.ones(1, np.int64))
    axes = image_axes([np.stack([*e, n], 1) for e, n in zip(edges, lengths, strict=True)], np.stack([*one, one[1]], 1))
    rows = np.array(ctx.op.attrs["multipliers"], np.int64)
    ctx.builder.step(
        "avg_pool",
        x=x,
        y=y,
        count=len(rows),
        zero_x=ctx.zero_point(0),
        windows=ctx.constant(f"windows {x.shape[2:]}", lambda: np.concatenate(axes).astype(np.int32)),
        divisors=ctx.constant("divisors", lambda: rows[:, 0].astype(np.int32)),
        ratios=ctx.constant("ratios", lambda: (rows[:, 1] / rows[:, 2]).astype(np.float32)),
        **image_fields(x, y),
        **ctx.grid(),
    )
    return y


def avg_pool(ctx: OpContext) -> Value:
    """Lower a mean of windows."""
    t, size = ctx.op.attrs, ctx.inputs[0].shape[2:]
    rows = list(zip(size, t["kernel"], t["stride"], t["padding"], strict=True))
    edges, lengths = Edges(), list[Array]()
    for n, k, s, p in rows:
        [edge], length = pool_windows([n], [k], [s], [p], t["ceil_mode"], t["count_include_pad"])
        edges.append(edge)
        lengths.append(length)
    return _average(ctx, edges, lengths)


def adaptive_avg_pool(ctx: OpContext) -> Value:
    """Lower a mean of adaptive windows."""
    edges, _ = adaptive_windows(ctx.inputs[0].shape[2:], ctx.op.attrs["output_size"])
    return _average(ctx, edges, [end - start for start, end in edges])


def mean(ctx: OpContext) -> Value:
    """Lower a mean over dimensions, which must lie side by side in memory."""
    t, x = ctx.op.attrs, ctx.inputs[0]
    reduced = [d for d in x.order if d in t["dims"]]
    places = [k for k, d in enumerate(x.order) if d in t["dims"] and x.shape[d] != 1]
    if any(after - before > 1 for before, after in pairwise(places)):
        x = ctx.builder.in_order(x, [d for d in x.order if d not in reduced] + reduced)
        places = list(range(len(x.shape) - len(reduced), len(x.shape)))
    sizes, first = x.physical, places[0] if places else len(x.shape)
    y = ctx.make(x.order if t["keepdim"] else without(x.order, reduced))
    ctx.builder.step(
        "mean",
        x=x,
        y=y,
        outer=math.prod(sizes[:first]),
        terms=math.prod(sizes[first : first + len(places)]),
        inner=math.prod(sizes[first + len(places) :]),
        zero_x=ctx.zero_point(0),
        ratio=float_bits(t["a"] / t["b"]),
        **ctx.grid(),
    )
    return y


def resize_linear(ctx: OpContext) -> Value | None:
    """Lower linear resizing by weights whose sums float32 holds: all that conversion chooses."""
    t, x = ctx.op.attrs, image(ctx)
    if math.prod(t["denominators"]) > LARGEST_PRODUCT:
        return None
    rows = zip(x.shape[2:], t["size"], t["denominators"], strict=True)
    taps = [linear_axis(n, out, t["align_corners"], d).taps for n, out, d in rows]
    whole = np.concatenate(image_axes(taps, np.zeros((1, 3), np.int32)))
    y, denominators = ctx.make(x.order), image_axes(t["denominators"], 1)
    fields = {f"denominator_{axis}": n for axis, n in zip(AXES, denominators, strict=True)}
    ctx.builder.step(
        "resize", x=x, y=y, taps=ctx.constant(f"taps {x.shape[2:]}", lambda: whole), **image_fields(x, y), **fields
    )
    return y


def nearest(ctx: OpContext) -> Value:
    """Lower resizing to the nearest pixels: a copy that repeats them where sizes are multiples, else rows by index."""
    x, size, mode = image(ctx), ctx.op.attrs["size"], ctx.op.attrs["mode"]
    at = [nearest_index(n, out, mode == "nearest-exact") for n, out in zip(x.shape[2:], size, strict=True)]
    sizes, strides, step = [x.shape[1]], [1], x.shape[1]
    for n, out, index in reversed(list(zip(x.shape[2:], size, at, strict=True))):
        if out % n or (index != np.arange(out) // (out // n)).any():
            for axis, rows in enumerate(at, start=2):
                x = take_pixels(ctx, x, axis, rows, f"{axis} {x.shape[axis]} {len(rows)}")
            return x
        sizes, strides, step = [n, out // n, *sizes], [step, 0, *strides], step * n
    y = ctx.make(x.order)
    ctx.builder.copy(x, y, [x.shape[0], *sizes], [step, *strides])
    return y


def take_pixels(ctx: OpContext, x: Value, axis: int, index: Array, place: str) -> Value:
    """Return the rows of images by their index along an axis.

    Args:
        ctx: the operation.
        x: images with their channels last.
        axis: dimension of x.
        index: row of every result.
        place: tells the indices of an operation apart.
    """
    y = ctx.builder.value((*x.shape[:axis], len(index), *x.shape[axis + 1 :]), x.dtype, x.order)
    ctx.builder.step(
        "take_rows",
        x=x,
        index=ctx.constant(f"index {place}", index.astype(np.int64).copy),
        y=y,
        outer=math.prod(x.shape[:axis]) // x.shape[1],
        rows=x.shape[axis],
        count=len(index),
        bytes=math.prod(x.shape[axis + 1 :]) * x.shape[1] * x.itemsize,
    )
    return y


RULES: dict[str, Rule] = {
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "adaptive_avg_pool": adaptive_avg_pool,
    "mean": mean,
    "resize_linear": resize_linear,
}
