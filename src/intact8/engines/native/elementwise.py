"""Operations of one pass over their elements."""

from __future__ import annotations

import numpy as np

from .builder import Value, channels_last, float_bits, plain
from .lowering import OpContext, Rule


def quantize(ctx: OpContext) -> Value:
    """Lower a quantization; images get their channels last on the way. Inputs that are integers already stay."""
    x, rank = ctx.inputs[0], len(ctx.shape)
    if x.dtype == "uint8":
        return x
    grid, divisor = ctx.grid(), float_bits(ctx.out.scale or 1.0)
    if ctx.image and rank > 2 and x.is_in(plain(rank)):
        batch, channels = ctx.shape[:2]
        y, pixels = ctx.make(channels_last(rank)), int(np.prod(ctx.shape[2:]))
        if channels == 1:
            batch, pixels = 1, y.size
        ctx.builder.step("quantize", x=x, y=y, batch=batch, channels=channels, pixels=pixels, divisor=divisor, **grid)
        return y
    y = ctx.make(x.order)
    ctx.builder.step("quantize", x=x, y=y, batch=1, channels=1, pixels=y.size, divisor=divisor, **grid)
    return y


def dequantize(ctx: OpContext) -> Value:
    """Lower a dequantization."""
    x, t = ctx.inputs[0], ctx.tensors[0]
    y = ctx.make(x.order)
    ctx.builder.step("dequantize", x=x, y=y, count=y.size, zero=ctx.zero_point(0), scale=float_bits(t.scale or 1.0))
    return y


def table(ctx: OpContext) -> Value:
    """Lower a table of 256 entries."""
    x = ctx.inputs[0]
    y, entries = ctx.make(x.order), ctx.constant("table", lambda: ctx.op.arrays["table"])
    ctx.builder.step("table", x=x, entries=entries, y=y, count=y.size)
    return y


RULES: dict[str, Rule] = {"quantize": quantize, "dequantize": dequantize, "table": table}
