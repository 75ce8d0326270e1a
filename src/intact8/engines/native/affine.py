"""Convolutions and linear layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from intact8.arithmetic.integer import flip_transposed
from intact8.opset.op import Array

from .builder import Value, channels_last, float_bits, plain
from .lowering import AXES, OpContext, Rule, image_axes, image_fields

Fields = dict[str, Value | int | None]

ONLY_FLOATS: Fields = {
    "code": None,
    "floats": 1,
    "joined_x": None,
    **dict.fromkeys(("instructions", "bytes", "divisor", "zero", "low", "high"), 0),
}
"""Fields of a convolution with float32 results that nothing follows, see :mod:`.float_epilogues`."""


def ratio(a: Array, b: Array) -> Array:
    """Return a/b in float32, rounded once from float64."""
    return np.asarray(a.astype(np.float64) / b.astype(np.float64), np.float32)


def _add_step(
    ctx: OpContext, x: Value, y: Value, geometry: Fields, order: Sequence[int], apart: bool = False, beside: int = 1
) -> None:
    """Add the step of a convolution.

    Args:
        ctx: of the convolution.
        x, y: what it reads and writes.
        geometry: fields of sizes and windows.
        order: the dimensions of the result in memory, which are those of the residual, too.
        apart: whether each place in the kernel of a transposed convolution has outputs of its own, (*kernel, O).
        beside: neighbouring windows along the width that have outputs of their own, (beside, O).
    """
    p, t = ctx.op.arrays, ctx.op.attrs
    places = math.prod(p["weight"].shape[2:]) if apart else beside
    suffix = " apart" if apart else f" beside {beside}" if beside > 1 else ""

    def weight() -> Array:
        if apart:
            return np.moveaxis(p["weight"], (1, 0), (-2, -1)).reshape(-1, len(p["weight"]))
        if beside > 1:
            return _shifted(p["weight"], beside, t["stride"][-1])
        return flip_transposed(p["weight"], t["groups"]) if t.get("transposed") else p["weight"]

    def tiled(role: str, make: Callable[[], Array]) -> Value:
        return ctx.constant(role + suffix, lambda: np.tile(make(), places) if places > 1 else make())

    def ratios(a: str, b: str) -> Value | None:
        return tiled(f"ratio {a}", lambda: ratio(p[a], p[b])) if a in p else None

    fields = geometry | ctx.weight("weight" + suffix, weight) | {"channels_first": 1, "zero_x": ctx.zero_point(0)}
    if "scale" in p:
        bias = tiled("bias", lambda: p["bias"]) if "bias" in p else None
        fields |= {"scale": tiled("scale", lambda: p["scale"]), "bias": bias}
        ctx.builder.step("dequantized_conv", x=x, y=y, q=ctx.builder.value((0,), "uint8"), **fields, **ONLY_FLOATS)
        return
    fields |= {"bias": tiled("bias", lambda: p["bias"]), "ratio": ratios("a", "b")}
    fields |= {"ratio_negative": ratios("a_neg", "b_neg"), **ctx.grid(), **_epilogue(ctx, order)}
    ctx.builder.step("conv", x=x, y=y, **fields)


def _epilogue(ctx: OpContext, order: Sequence[int]) -> Fields:
    """Return the fields of what follows the products in the same step: a residual in either rounding, and a table.

    Args:
        ctx: of the convolution.
        order: the dimensions of its result in memory, which are those of the residual, too.
    """
    sums = ("residual_joint", "own_ratio", "residual_ratio", "residual_zero", "sum_zero", "sum_low", "sum_high")
    fields: Fields = {"residual": None, "table": None, **dict.fromkeys(sums, 0)}
    if len(ctx.inputs) == 2:
        residual_ratio = float_bits(float(np.float32(ctx.op.attrs["residual_a"] / float(ctx.op.arrays["b"][0]))))
        residual = ctx.builder.in_order(ctx.inputs[1], order)
        fields |= {"residual": residual, "residual_joint": 1, "residual_ratio": residual_ratio}
        fields["residual_zero"] = ctx.zero_point(1)
    own = ctx.op.name
    for then in ctx.epilogue:
        if then.op.kind == "table":
            fields["table"] = then.stored("table")
        else:
            at, t = then.op.inputs.index(own), then.op.attrs
            ratios = (np.array(t["a"], np.float64) / t["b"]).astype(np.float32)
            fields |= {f"sum_{name}": value for name, value in then.grid().items()}
            fields |= {"own_ratio": float_bits(ratios[at]), "residual_ratio": float_bits(ratios[1 - at])}
            fields |= {
                "residual": ctx.builder.in_order(then.inputs[0], order),
                "residual_zero": then.zero_point(1 - at),
            }
        own = then.op.name
    return fields


def conv(ctx: OpContext) -> Value:
    """Lower a convolution of one to three dimensions, transposed or not."""
    t, x = ctx.op.attrs, ctx.builder.in_order(ctx.inputs[0], channels_last(len(ctx.inputs[0].shape)))
    order = channels_last(len(x.shape))
    if _windows_lie_apart(ctx):
        return _places_apart(ctx, x, order)
    y = ctx.make(order)
    kernel = ctx.op.arrays["weight"].shape[2:]
    # A transposed convolution reads through its flipped kernel, see native/engine/conv_gather.c.
    pads = t["padding"]
    if t["transposed"]:
        pads = [p - d * (k - 1) for p, d, k in zip(t["padding"], t["dilation"], kernel, strict=True)]
    fields: Fields = {"out_channels": y.shape[1], "groups": t["groups"], "transposed": int(t["transposed"])}
    for name, given in (("kernel", kernel), ("stride", t["stride"]), ("dilation", t["dilation"])):
        fields |= {f"{name}_{axis}": n for axis, n in zip(AXES, image_axes(given, 1), strict=True)}
    pads = [p + n for p, n in zip(pads, ctx.before or [0] * len(pads), strict=True)]
    fields |= {f"pad_{axis}": n for axis, n in zip(AXES, image_axes(pads, 0), strict=True)}
    fields |= image_fields(x, y)
    beside = _windows_beside(ctx, y)
    if beside > 1:
        fields |= {"out_channels": beside * y.shape[1], "out_width": y.shape[-1] // beside}
        fields |= {"kernel_w": kernel[-1] + (beside - 1) * t["stride"][-1], "stride_w": beside * t["stride"][-1]}
    _add_step(ctx, x, y, fields, order, beside=beside)
    return y


LANES = 16
"""Output channels that the kernels of every instruction set compute together."""

MAX_KERNEL = 64
"""The widest window that the kernels for AVX-512 take."""


def _windows_beside(ctx: OpContext, y: Value) -> int:
    """Return how many neighbouring windows are computed as output channels of one wide window.

    Kernels multiply by 16 output channels at a time. Where a layer has fewer, as heads of segmentation and
    super-resolution do, neighbouring windows take the other lanes: one window over all of them, whose weights are the
    kernel at several places and zeros elsewhere. Sums are the same, and so are the results' places in memory.
    """
    t, kernel, channels = ctx.op.attrs, ctx.op.arrays["weight"].shape[-1], y.shape[1]
    if t["transposed"] or t["groups"] != 1 or t["dilation"][-1] != 1 or channels > LANES // 2:
        return 1
    stride = t["stride"][-1]

    def products(beside: int) -> float:
        """Products of each row of the kernel for one window."""
        return float(kernel + (beside - 1) * stride) / beside

    able = [n for n in range(1, LANES // channels + 1) if y.shape[-1] % n == 0 and products(n) * n <= MAX_KERNEL]
    best = min(able, key=products, default=1)
    return best if products(best) < 0.7 * products(1) else 1


def _shifted(weight: Array, beside: int, stride: int) -> Array:
    """Return (beside * O, C, ..., K + (beside - 1) * stride): the kernel at its places in one wide window."""
    outputs, kernel = len(weight), weight.shape[-1]
    wide = np.zeros((beside, *weight.shape[:-1], kernel + (beside - 1) * stride), weight.dtype)
    for i in range(beside):
        wide[i, ..., i * stride : i * stride + kernel] = weight
    return wide.reshape(beside * outputs, *wide.shape[2:])


def _windows_lie_apart(ctx: OpContext) -> bool:
    """Return whether every result of a transposed convolution has one product for each input channel."""
    t = ctx.op.attrs
    kernel = list(ctx.op.arrays["weight"].shape[2:])
    if not t["transposed"] or t["groups"] != 1 or list(t["stride"]) != kernel or any(d != 1 for d in t["dilation"]):
        return False
    added = len(ctx.inputs) > 1 or any(then.op.kind != "table" for then in ctx.epilogue)
    return not added and not any((*t["padding"], *t["output_padding"]))


def _places_apart(ctx: OpContext, x: Value, order: Sequence[int]) -> Value:
    """Lower a transposed convolution whose windows lie apart: products of pixels by the weights of every place in the
    kernel, which are then copied to their places in the image."""
    y, kernel, rank = ctx.make(order), ctx.op.arrays["weight"].shape[2:], len(x.shape) - 2
    z = ctx.builder.value((x.shape[0], *x.shape[2:], *kernel, y.shape[1]), y.dtype)
    _multiply_rows(ctx, x, z, order, apart=True)
    dims = [0, *(d for i in range(1, rank + 1) for d in (i, i + rank)), 2 * rank + 1]
    strides = z.strides()
    ctx.builder.copy(z, y, [z.shape[d] for d in dims], [strides[d] for d in dims])
    return y


def linear(ctx: OpContext) -> Value:
    """Lower a linear layer: a convolution of images one pixel wide, whose rows are all rows of the input."""
    x = ctx.inputs[0]
    rank = len(x.shape)
    order = x.order if x.order[-1] == rank - 1 else plain(rank)
    x, y = ctx.builder.in_order(x, order), ctx.make(order)
    _multiply_rows(ctx, x, y, order)
    return y


def _multiply_rows(ctx: OpContext, x: Value, y: Value, order: Sequence[int], apart: bool = False) -> None:
    """Add the step of a layer that multiplies rows of memory, as a convolution of images one pixel wide."""
    features = x.shape[order[-1]]
    rows = max(x.size // features if features else 0, 1)
    geometry: Fields = {f"{name}_{axis}": 1 for name in ("kernel", "stride", "dilation") for axis in AXES}
    geometry |= dict.fromkeys(("batch", "depth", "width", "out_depth", "out_width", "groups"), 1)
    geometry |= dict.fromkeys(("transposed", "pad_d", "pad_h", "pad_w"), 0)
    geometry |= {"height": rows, "out_height": rows, "channels": features}
    geometry["out_channels"] = math.prod(y.shape[len(order) - 1 :])
    _add_step(ctx, x, y, geometry, order, apart)


RULES: dict[str, Rule] = {"conv": conv, "linear": linear, "dequantized_conv": conv, "dequantized_linear": linear}
