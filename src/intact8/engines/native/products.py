"""Products of two activations."""

from __future__ import annotations

from .builder import Value, float_bits, plain
from .lowering import OpContext, Rule

LEADING = 4
"""Leading dimensions that the library's products take."""


def leading_strides(x: Value) -> list[int]:
    """Return the strides of the first LEADING dimensions of matrices: 0 where the
    same element is read again, and for dimensions that are not there."""
    strides = [0 if n == 1 else s for n, s in zip(x.shape, x.strides(), strict=True)][:-2]
    return [0] * (LEADING - len(strides)) + strides


def result_order(x: Value, w: Value, rank: int) -> tuple[int, ...]:
    """Return the order of a product's dimensions: that of ``w`` where its rows are contiguous, so that heads of an
    attention stay where the next operation wants them."""
    return w.order if len(w.shape) == rank and w.order[-1] == rank - 1 else plain(rank)


def matmul(ctx: OpContext) -> Value | None:
    """Lower a product of two activations; matrices of any order of dimensions are read where they are."""
    x, w = ctx.inputs
    rank = len(ctx.shape)
    if not min(len(x.shape), len(w.shape)) >= 2 or not rank <= LEADING + 2 or not min((*x.shape, *w.shape), default=0):
        return None
    if x.order[-1] != len(x.shape) - 1:
        x = ctx.builder.plain(x)
    y = ctx.make(result_order(x, w, rank))
    sizes = [1] * (LEADING + 2 - rank) + list(ctx.shape[:-2])
    fields = {f"d{i}": n for i, n in enumerate(sizes)}
    for letter, value in (("x", x), ("w", w), ("y", y)):
        fields |= {f"{letter}{i}": s for i, s in enumerate(leading_strides(value))}
    w_strides = w.strides()
    ctx.builder.step(
        "matmul",
        x=x,
        w=w,
        y=y,
        rows=x.shape[-2],
        depth=x.shape[-1],
        columns=w.shape[-1],
        x_row=x.strides()[-2],
        w_depth=w_strides[-2],
        w_column=w_strides[-1],
        y_row=y.strides()[-2],
        zero_x=ctx.zero_point(0),
        zero_w=ctx.zero_point(1),
        ratio=float_bits(ctx.op.attrs["a"] / ctx.op.attrs["b"]),
        **fields,
        **ctx.grid(),
    )
    return y


RULES: dict[str, Rule] = {"matmul": matmul}
