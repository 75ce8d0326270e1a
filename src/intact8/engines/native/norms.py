"""Norms and softmax of integers, and rows of tables."""

from __future__ import annotations

import math

from intact8.arithmetic.norms import MIDDLE

from .builder import MAX_RANK, Value, channels_last, double_bits, float_bits, plain
from .lowering import OpContext, Rule


def _norm(ctx: OpContext, x: Value, places: int, groups: int, each: int, *, centered: bool = True) -> Value:
    """Add a norm of every group of ``each`` elements with all their places."""
    t, y = ctx.op.attrs, ctx.make(x.order)
    ctx.builder.step(
        "norm",
        x=x,
        y=y,
        gain=ctx.stored("gain"),
        offset=ctx.stored("offset"),
        outer=x.size // (places * groups * each),
        places=places,
        groups=groups,
        each=each,
        shift=MIDDLE if centered else ctx.zero_point(0),
        centered=int(centered),
        epsilon=double_bits(t["eps"]),
        low=t["lo"],
        high=t["hi"],
    )
    return y


def layer_norm(ctx: OpContext) -> Value:
    """Lower a layer norm."""
    return _norm(ctx, ctx.last_dimensions(), 1, 1, math.prod(ctx.op.attrs["shape"]))


def rms_norm(ctx: OpContext) -> Value:
    """Lower an RMS norm."""
    return _norm(ctx, ctx.last_dimensions(), 1, 1, math.prod(ctx.op.attrs["shape"]), centered=False)


def group_norm(ctx: OpContext) -> Value:
    """Lower a group norm of images, whose channels come last."""
    x, groups = ctx.builder.in_order(ctx.inputs[0], channels_last(len(ctx.inputs[0].shape))), ctx.op.attrs["groups"]
    return _norm(ctx, x, math.prod(x.shape[2:]), groups, x.shape[1] // groups)


def softmax(ctx: OpContext) -> Value | None:
    """Lower a softmax along a dimension, which must be the last one in memory."""
    t, rank = ctx.op.attrs, len(ctx.shape)
    if rank > MAX_RANK:
        return None
    axis = t["axis"] % rank
    (x, *mask), masks = ctx.broadcast([*(d for d in ctx.inputs[0].order if d != axis), axis])
    y = ctx.make(x.order)
    ctx.builder.step(
        "softmax",
        x=x,
        y=y,
        entries=ctx.stored("table"),
        mask=mask[0] if mask else None,
        broadcast_mask=masks[-1],
        levels=float_bits(t["levels"]),
        **ctx.sizes(x.order),
        **ctx.grid(),
    )
    return y


def embedding(ctx: OpContext) -> Value:
    """Lower rows by index."""
    table, index = ctx.op.arrays["weight"], ctx.builder.plain(ctx.inputs[0])
    y = ctx.make()
    ctx.builder.step(
        "take_rows",
        x=ctx.stored("weight"),
        index=index,
        y=y,
        outer=1,
        rows=len(table),
        count=index.size,
        bytes=table.shape[1] * table.itemsize,
    )
    return y


def decoded_embedding(ctx: OpContext) -> Value:
    """Lower rows by index that are decoded."""
    t, p, index = ctx.op.attrs, ctx.op.arrays, ctx.builder.plain(ctx.inputs[0])
    y = ctx.make(plain(len(ctx.shape)))
    ctx.builder.step(
        "decode_rows",
        codes=ctx.stored("weight"),
        index=index,
        y=y,
        scales=ctx.stored("scale"),
        rows=len(p["weight"]),
        count=index.size,
        columns=t["columns"],
        group=t["group"],
        bits=t["bits"],
    )
    return y


RULES: dict[str, Rule] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "softmax": softmax,
    "embedding": embedding,
    "float.embedding": embedding,
    "decoded_embedding": decoded_embedding,
}
