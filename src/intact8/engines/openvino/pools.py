"""mean and the average pools: Σ (x − z)·a_n/b_n over windows of n elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.windows import adaptive_windows, pool_size, pool_windows
from intact8.opset.op import Array

from .elementwise import scaled
from .lowering import (
    OpContext,
    Port,
    Value,
    constant,
    integers,
    named,
    port,
    requantized,
    scalar,
    times,
    unscaled,
    whole,
)

Ints = Sequence[int]

FLOAT32, CANCELLED = 1 << 24, 16
"""Integers float32 counts; and 8 roundings of what is subtracted, which together stay below half of 1/b."""


def mean(ctx: OpContext) -> Value:
    """Over any dimensions; 1/n is part of a/b.

    OpenVINO takes the mean of q and subtracts z from it where it rounds. What that loses grows with n·z·a/b; where it
    might matter, x − z is rounded before, which nothing passes, and added.
    """
    t, x = ctx.op.attrs, ctx.inputs[0]
    axes, keep = ov.constant(np.array(t["dims"], np.int64)), bool(t["keepdim"])
    count, a = math.prod(x.shape[d] for d in t["dims"]), int(t["a"])
    if x.zero_point * count * a * CANCELLED < FLOAT32:
        return scaled(ctx, named(port(ov.reduce_mean(x.port, axes, keep)), ctx.label), x.step / count, a, int(t["b"]))
    centered = port(ov.subtract(integers(x), scalar(x.zero_point)))
    return scaled(ctx, named(port(ov.reduce_sum(centered, axes, keep)), ctx.label), 1.0, a, int(t["b"]))


def avg_pool(ctx: OpContext) -> Value:
    """Return the windows of an average pool. Padding adds nothing."""
    t, x = ctx.op.attrs, ctx.inputs[0]
    kernel, stride, padding = t["kernel"], t["stride"], t["padding"]
    size = x.shape[-len(kernel) :]
    edges, divisors = pool_windows(size, kernel, stride, padding, t["ceil_mode"], t["count_include_pad"])
    return _window_sums(ctx, kernel, stride, padding, [len(start) for start, _ in edges], divisors)


def adaptive_avg_pool(ctx: OpContext) -> Value:
    """Return the adaptive windows; where the output divides the input they are ordinary ones."""
    x, out = ctx.inputs[0], list(ctx.op.attrs["output_size"])
    size = x.shape[-len(out) :]
    _, divisors = adaptive_windows(size, out)
    if all(s % o == 0 for s, o in zip(size, out, strict=True)):
        kernel = [s // o for s, o in zip(size, out, strict=True)]
        return _window_sums(ctx, kernel, kernel, [0] * len(out), out, divisors)
    # Means of integers: their sums are exact.
    y = port(ov.adaptive_avg_pool(unscaled(x), ov.constant(np.array(out, np.int64))))
    factors = _ratios(ctx, divisors) * divisors
    return requantized(ctx, port(ov.multiply(y, constant(factors[None, None]))), 1.0)


def _window_sums(ctx: OpContext, kernel: Ints, stride: Ints, padding: Ints, out: Ints, divisors: Array) -> Value:
    """Build R(Σ·a_n/b_n) as a depthwise convolution with ones.

    OpenVINO's pooling of uint8 rounds to an integer before the FakeQuantize that follows. A convolution does not, and
    what it pads is z, which adds nothing.
    """
    x = ctx.inputs[0]
    channels = x.shape[1]
    ratio = _ratios(ctx, divisors)
    uniform = bool((divisors == divisors.flat[0]).all()) and ratio.flat[0] > 0
    m = float(ratio.flat[0]) if uniform and not ctx.float_product else 1.0
    ones = np.ones((channels, 1, 1, *kernel), np.int8)
    if ctx.float_product:
        weight, y = constant(ones), unscaled(x)
    else:
        integers = port(ov.convert(ov.constant(ones), np.float32))
        scale = np.full((channels, 1, 1, *[1] * len(kernel)), m / x.step)
        weight, y = port(ov.multiply(integers, constant(scale))), x.port
    size, single = x.shape[-len(kernel) :], [1] * len(kernel)
    after = hang(size, kernel, stride, padding, single, out)
    node = ov.group_convolution(y, weight, list(stride), list(padding), after, single)
    node.set_friendly_name(ctx.label)
    y = port(node)
    y = whole(y) if ctx.float_product else y
    if uniform and ctx.float_product:
        y = times(y, float(ratio.flat[0]))
    elif not uniform:
        y = port(ov.multiply(y, constant(ratio[None, None])))
    return requantized(ctx, y, 1.0)


def _ratios(ctx: OpContext, divisors: Array) -> Array:
    """Build a_n/b_n for every window, float64."""
    by_n = {int(n): int(a) / int(b) for n, a, b in ctx.op.attrs["multipliers"]}
    return np.asarray(np.vectorize(by_n.__getitem__, otypes=[np.float64])(divisors))


def average(x: Port, kernel: Ints, stride: Ints, padding: Ints, out: Ints) -> Port:
    """Return the mean of the elements of every window inside the input. ``out`` counts windows: the last may hang
    over."""
    size = [int(d) for d in x.get_shape()][-len(kernel) :]
    after = hang(size, kernel, stride, padding, [1] * len(kernel), out)
    return port(ov.avg_pool(x, list(stride), list(padding), after, list(kernel), True, "floor", "explicit"))


def max_pool(x: Port, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> Port:
    """Return the maximum over windows of the trailing dimensions."""
    size = [int(d) for d in x.get_shape()][-len(kernel) :]
    out = [
        pool_size(n, k, s, p, d, ceil_mode)
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]
    after = hang(size, kernel, stride, padding, dilation, out)
    return port(
        ov.max_pool(x, list(stride), list(dilation), list(padding), after, list(kernel), "floor", "explicit", "i64", 0)
    )


def hang(size: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, out: Ints) -> list[int]:
    """Return how far the last of ``out`` windows reaches beyond the input: padding that makes rounding modes moot."""
    rows = zip(size, kernel, stride, padding, dilation, out, strict=True)
    return [max(0, (o - 1) * s + d * (k - 1) + 1 - p - n) for n, k, s, p, d, o in rows]
