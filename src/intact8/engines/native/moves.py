"""Operations that move values."""

from __future__ import annotations

from .builder import Value, plain
from .lowering import OpContext, Rule


def reshape(ctx: OpContext) -> Value:
    """Lower a reshape: the same memory, where it is plain."""
    x = ctx.builder.plain(ctx.inputs[0])
    return Value(x.index, ctx.shape, plain(len(ctx.shape)), x.dtype)


def permute(ctx: OpContext) -> Value:
    """Lower a permutation: the same memory, in another order of dimensions."""
    x, dims = ctx.inputs[0], ctx.op.attrs["dims"]
    dims = [d % len(x.shape) for d in dims]
    return Value(x.index, ctx.shape, tuple(dims.index(d) for d in x.order), x.dtype)


RULES: dict[str, Rule] = {"reshape": reshape, "permute": permute}
