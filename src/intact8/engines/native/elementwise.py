"""Operations of one pass over their elements: tables, sums, products, and what comes from float32 or goes there."""

from __future__ import annotations

import numpy as np

from . import float_chains
from .builder import MAX_RANK, Value, channels_last, float_bits, plain
from .lowering import OpContext, Rule


def quantize(ctx: OpContext) -> Value | None:
    """Lower a quantization; images get their channels last on the way. Inputs that are integers already stay."""
    x, rank = ctx.inputs[0], len(ctx.shape)
    if x.dtype == "uint8":
        return x
    if ctx.image and rank > 2 and x.is_in(plain(rank)):
        batch, channels = ctx.shape[:2]
        y, pixels = ctx.make(channels_last(rank)), int(np.prod(ctx.shape[2:]))
        if channels == 1:
            batch, pixels = 1, y.size
        fields = {"batch": batch, "channels": channels, "pixels": pixels, "divisor": float_bits(ctx.out.scale or 1.0)}
        ctx.builder.step("quantize", x=x, y=y, **fields, **ctx.grid())
        return y
    return float_chains.quantize(ctx)


def table(ctx: OpContext) -> Value:
    """Lower a table of 256 entries."""
    x = ctx.inputs[0]
    y = ctx.make(x.order)
    ctx.builder.step("table", x=x, entries=ctx.stored("table"), y=y, count=y.size)
    return y


def add(ctx: OpContext) -> Value | None:
    """Lower a sum."""
    order = ctx.usual_order()
    if len(order) > MAX_RANK:
        return None
    values, masks = ctx.broadcast(order)
    y, t = ctx.make(order), ctx.op.attrs
    zeros = [ctx.zero_point(i) for i in range(len(values))]
    ratios = ctx.constant("ratios", lambda: (np.array(t["a"], np.float64) / t["b"]).astype(np.float32))
    ctx.builder.step(
        "add",
        values,
        y=y,
        zeros=ctx.constant("zeros", lambda: np.array(zeros, np.int32)),
        ratios=ratios,
        broadcast=ctx.constant(f"broadcast {masks}", lambda: np.array(masks, np.uint8)),
        **ctx.sizes(order),
        **ctx.grid(),
    )
    return y


def mul(ctx: OpContext) -> Value | None:
    """Lower a product."""
    order, t = ctx.usual_order(), ctx.op.attrs
    if len(order) > MAX_RANK:
        return None
    (x, w), masks = ctx.broadcast(order)
    y = ctx.make(order)
    ctx.builder.step(
        "mul",
        x=x,
        w=w,
        y=y,
        broadcast_x=masks[0],
        broadcast_w=masks[1],
        zero_x=ctx.zero_point(0),
        zero_w=ctx.zero_point(1),
        ratio=float_bits(t["a"] / t["b"]),
        **ctx.sizes(order),
        **ctx.grid(),
    )
    return y


RULES: dict[str, Rule] = {"quantize": quantize, "table": table, "add": add, "mul": mul}
