"""Rules of norms, softmax and reductions of floats, and of reductions of integers."""

from __future__ import annotations

import itertools
import math

from .builder import MAX_RANK, Value, double_bits
from .indexing import TYPES
from .lowering import OpContext, Rule

REDUCTIONS = {"mean": 0, "sum": 1, "amax": 2, "amin": 3, "prod": 4}
"""Functions of ``float_reduce``."""

INTEGER_REDUCTIONS = {"sum": 0, "prod": 1, "amax": 2, "amin": 3, "argmax": 4}
"""Functions of ``integer_reduce``."""


def _norm(ctx: OpContext, x: Value, groups: int, each: int, places: int, *, centered: bool = True) -> Value:
    """Add a norm of every group of ``each`` elements with all their places."""
    y = ctx.make(x.order)
    ctx.builder.step(
        "float_norm",
        x=x,
        y=y,
        outer=x.size // (groups * each * places),
        groups=groups,
        each=each,
        places=places,
        epsilon=double_bits(ctx.op.attrs["eps"]),
        centered=int(centered),
        weight=ctx.stored("weight"),
        bias=ctx.stored("bias"),
    )
    return y


def layer_norm(ctx: OpContext) -> Value:
    """Lower a layer norm."""
    return _norm(ctx, ctx.last_dimensions(), 1, math.prod(ctx.op.attrs["shape"]), 1)


def rms_norm(ctx: OpContext) -> Value:
    """Lower an RMS norm."""
    return _norm(ctx, ctx.last_dimensions(), 1, math.prod(ctx.op.attrs["shape"]), 1, centered=False)


def group_norm(ctx: OpContext) -> Value:
    """Lower a group norm."""
    x, groups = ctx.builder.plain(ctx.inputs[0]), ctx.op.attrs["groups"]
    return _norm(ctx, x, groups, x.shape[1] // groups, math.prod(x.shape[2:]))


def _softmax(logarithm: int) -> Rule:
    """Return the rule of a softmax or of its logarithm along a dimension, which must be the last one in memory."""

    def rule(ctx: OpContext) -> Value | None:
        rank = len(ctx.shape)
        if rank > MAX_RANK:
            return None
        axis, x = ctx.op.attrs["axis"] % rank, ctx.inputs[0]
        x = ctx.builder.in_order(x, [*(d for d in x.order if d != axis), axis])
        y, columns = ctx.make(x.order), ctx.shape[axis]
        ctx.builder.step(
            "float_softmax", x=x, y=y, rows=x.size // max(columns, 1), columns=columns, logarithm=logarithm
        )
        return y

    return rule


def _reduce(ctx: OpContext) -> Value | None:
    """Lower a mean or another reduction; dimensions that do not lie together become the last ones."""
    t, x = ctx.op.attrs, ctx.inputs[0]
    rank, function = len(x.shape), t.get("fn", "mean")
    dims = {d % rank for d in t["dims"]} or set(range(rank))
    if not 0 < rank <= MAX_RANK or 0 in x.shape:
        return None
    if function == "argmax" and len(dims) == rank:
        x = ctx.builder.plain(x)  # the place counts elements in this order
    if sum(reduced for reduced, _ in itertools.groupby(x.order, dims.__contains__)) > 1:
        x = ctx.builder.in_order(x, [*(d for d in x.order if d not in dims), *sorted(dims)])
    kept = [d for d in x.order if d not in dims]
    numbers = range(rank) if t["keepdim"] else [sum(k < d for k in kept) for d in range(rank)]
    order = [numbers[d] for d in kept] + (sorted(dims) if t["keepdim"] else [])
    before = list(itertools.takewhile(lambda d: d not in dims, x.order))
    outer, count = (math.prod(x.shape[d] for d in some) for some in (before, dims))
    y = ctx.make(order)
    inner = x.size // (outer * count)
    if ctx.out.dtype == "float32":
        ctx.builder.step("float_reduce", x=x, y=y, outer=outer, count=count, inner=inner, function=REDUCTIONS[function])
    else:
        number = INTEGER_REDUCTIONS[function]
        ctx.builder.step(
            "integer_reduce", x=x, y=y, type=TYPES[x.dtype], outer=outer, size=count, inner=inner, function=number
        )
    return y


RULES: dict[str, Rule] = {
    "float.layer_norm": layer_norm,
    "float.rms_norm": rms_norm,
    "float.group_norm": group_norm,
    "float.softmax": _softmax(0),
    "float.log_softmax": _softmax(1),
    "float.mean": _reduce,
    "float.reduce": _reduce,
}
