"""Convolutions of float images, and what is composed of other steps: means of windows, which are copied side by
side, and resizing, which reads pixels by their index."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intact8.arithmetic.integer import flip_transposed
from intact8.arithmetic.resize import taps
from intact8.arithmetic.windows import pool_windows
from intact8.opset.op import Array

from .builder import MAX_RANK, Value, channels_last
from .float_chains import chain
from .lowering import AXES, OpContext, Rule, image_axes, image_fields
from .pools import image, nearest, take_pixels
from .products import PLAIN_WEIGHT, product_fields

BLOCK = 64
"""Columns of a block of weights of a convolution."""

LANES = 16
"""Columns that are computed together, at least."""

MOST_PHASES = 1024
"""Ordinary convolutions, at most, that one transposed convolution is made of: one of stride 32 in both directions."""


def _padded(ctx: OpContext, x: Value, before: Sequence[int], sizes: Sequence[int]) -> Value:
    """Return images of those sizes, zeros before and behind what there is."""
    if tuple(sizes) == x.shape[2:] and not any(before):
        return x
    y = ctx.builder.value((*x.shape[:2], *sizes), x.dtype, x.order)
    ctx.builder.step("fill", y=y, size=4, count=y.size, bits=0)
    from_, to = x.strides(), y.strides()
    offset = sum(n * s for n, s in zip(before, to[2:], strict=True))
    ctx.builder.copy(x, y, x.physical, [from_[d] for d in x.order], [to[d] for d in x.order], 0, offset)
    return y


def _windows(
    ctx: OpContext, x: Value, out: Sequence[int], kernel: Sequence[int], stride: Sequence[int]
) -> Value | None:
    """Return the windows (N, *out, *kernel, C) of images with their channels last; None where the library has no copy
    of so many dimensions."""
    strides = x.strides()
    shape = (x.shape[0], *out, *kernel, x.shape[1])
    if sum(n != 1 for n in shape) > MAX_RANK:
        return None
    y = ctx.builder.value(shape, x.dtype)
    moves = [s * n for s, n in zip(strides[2:], stride, strict=True)]
    ctx.builder.copy(x, y, shape, [strides[0], *moves, *strides[2:], 1])
    return y


def _in_blocks(w: Array) -> Array:
    """Return weights (groups, depth, columns) as ``float_conv`` of ``native/engine/steps.h`` reads them."""
    columns = w.shape[-1]
    filled = np.pad(w, ((0, 0), (0, 0), (0, -columns % LANES)))
    parts = [filled[:, :, at : at + BLOCK] for at in range(0, columns, BLOCK)]
    return np.concatenate([p.reshape(len(w), -1) for p in parts], axis=1)


@dataclass(frozen=True)
class _Windows:
    """Windows of a convolution: result j reads pixels j * stride - pad + k * dilation, for k < kernel."""

    kernel: Sequence[int]
    stride: Sequence[int]
    pad: Sequence[int]
    dilation: Sequence[int]

    def are_pixels(self) -> bool:
        return all(sizes == (1, 1, 0) for sizes in zip(self.kernel, self.stride, self.pad, strict=True))


def _convolve(ctx: OpContext, x: Value, y: Value, windows: _Windows, weight: Callable[[], Array], role: str) -> None:
    """Add the step of a convolution: a product of matrices where every result reads its own pixel.

    Args:
        ctx: the operation.
        x, y: images with their channels last.
        windows: what each result reads.
        weight: makes the weights (O, C / groups, *kernel).
        role: of the weights among the arrays of the operation.
    """
    groups, each, columns = ctx.op.attrs["groups"], x.shape[1], y.shape[1]
    each, columns, depthwise = each // groups, columns // groups, each == columns == groups > 1

    def ordered() -> Array:
        w = np.moveaxis(weight().reshape(groups, columns, each, -1), (1, 2), (-1, -2))
        return w.reshape(groups, -1, columns)

    if windows.are_pixels() and x.shape[2:] == y.shape[2:] and not depthwise:
        pixels, w = x.size // x.shape[1], ctx.constant(f"{role}, columns last", ordered)
        rows = Value(x.index, (groups, pixels, each), (1, 0, 2), x.dtype)
        results = Value(y.index, (groups, pixels, columns), (1, 0, 2), y.dtype)
        more = PLAIN_WEIGHT | {"bias": ctx.stored("bias"), "b3": columns} | product_fields(rows, w, results)
        ctx.builder.step("float_matmul", x=rows, w=w, y=results, **more)
        return
    geometry = image_fields(x, y) | {"out_channels": y.shape[1], "groups": groups}
    for name, sizes in vars(windows).items():
        whole = image_axes(sizes, int(name != "pad"))
        geometry |= {f"{name}_{axis}": n for axis, n in zip(AXES, whole, strict=True)}
    stored = (lambda: ordered()[..., 0].T.copy()) if depthwise else (lambda: _in_blocks(ordered()))
    w = ctx.constant(f"{role}, in blocks", stored)
    ctx.builder.step("float_conv", x=x, w=w, bias=ctx.stored("bias"), y=y, **geometry)


def conv(ctx: OpContext) -> Value | None:
    """Lower a convolution."""
    t, x = ctx.op.attrs, image(ctx)
    if not x.size or not math.prod(ctx.shape):
        return None
    if t["transposed"]:
        phases = math.prod(min(s, n) for s, n in zip(t["stride"], ctx.shape[2:], strict=True))
        return _transposed(ctx, x) if phases <= MOST_PHASES else None
    stored, y = ctx.op.arrays["weight"], ctx.make(channels_last(len(ctx.shape)))
    windows = _Windows(stored.shape[2:], t["stride"], t["padding"], t["dilation"])
    _convolve(ctx, x, y, windows, lambda: stored, "weight")
    return y


def _phase(first: int, stride: int, padding: int, dilation: int, kernel: int) -> tuple[list[int], int, int]:
    """Return what results of a transposed convolution read that begin at ``first`` and lie ``stride`` apart, along one
    axis: the taps of the flipped kernel, how far before result j the first pixel lies, and how far pixels are apart.

    Result ``first + stride j`` reads pixel i with tap k where ``first + stride j = stride i - padding + dilation k``.
    """
    reach = [first + padding - dilation * (kernel - 1 - flipped) for flipped in range(kernel)]
    taps = [k for k, distance in enumerate(reach) if distance % stride == 0]
    pixels = [reach[k] // stride for k in taps]
    return taps, -pixels[0] if taps else 0, pixels[1] - pixels[0] if len(taps) > 1 else 1


def _transposed(ctx: OpContext, x: Value) -> Value:
    """Lower a transposed convolution: results that lie a stride apart are an ordinary convolution of those taps that
    meet pixels and not the zeros between them."""
    t, stored = ctx.op.attrs, ctx.op.arrays["weight"]
    y, groups = ctx.make(channels_last(len(ctx.shape))), t["groups"]
    ones, strides = [1] * len(t["stride"]), y.strides()
    for phase in itertools.product(*(range(min(s, n)) for s, n in zip(t["stride"], y.shape[2:], strict=True))):
        geometry = zip(phase, t["stride"], t["padding"], t["dilation"], stored.shape[2:], strict=True)
        axes = [_phase(*axis) for axis in geometry]
        sizes = [-(-(n - p) // s) for n, p, s in zip(y.shape[2:], phase, t["stride"], strict=True)]
        taps, pad, dilation = [a[0] for a in axes], [a[1] for a in axes], [a[2] for a in axes]
        for axis, found in enumerate(taps):
            if not found:  # no pixel meets these results: a window beyond the image
                taps[axis], pad[axis] = [0], sizes[axis]
        whole = sizes == list(y.shape[2:])
        part = y if whole else ctx.builder.value((*y.shape[:2], *sizes), y.dtype, y.order)
        windows = _Windows([len(found) for found in taps], ones, pad, dilation)

        def weight(taps: list[list[int]] = taps) -> Array:
            w = flip_transposed(stored, groups)
            for axis, kept in enumerate(taps, start=2):
                w = w.take(kept, axis)
            return w

        _convolve(ctx, x, part, windows, weight, f"weight of {phase}")
        if not whole:
            to = [n * s for n, s in zip(strides, (1, 1, *t["stride"]), strict=True)]
            from_, offset = part.strides(), sum(n * s for n, s in zip(phase, strides[2:], strict=True))
            ctx.builder.copy(part, y, part.physical, [from_[d] for d in y.order], [to[d] for d in y.order], 0, offset)
    return y


def _means(
    ctx: OpContext, before: Sequence[int], kernel: Sequence[int], stride: Sequence[int], divisors: Array
) -> Value | None:
    """Lower means of windows of one size, which may reach beyond the image: sums, divided."""
    x, out = image(ctx), ctx.shape[2:]
    if not x.size or not math.prod(ctx.shape):
        return None
    rows = zip(before, x.shape[2:], out, stride, kernel, strict=True)
    padded = _padded(ctx, x, before, [max(p + n, (o - 1) * s + k) for p, n, o, s, k in rows])
    windows = _windows(ctx, padded, out, kernel, stride)
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
