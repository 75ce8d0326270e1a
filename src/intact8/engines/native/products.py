"""Products of two activations, and of floats with weights."""

from __future__ import annotations

from dataclasses import replace

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


def product_fields(x: Value, w: Value, y: Value) -> dict[str, int]:
    """Return the sizes and strides of a product of matrices, which are the last two dimensions."""
    sizes = [1] * (LEADING + 2 - len(y.shape)) + list(y.shape[:-2])
    fields = {f"d{i}": n for i, n in enumerate(sizes)}
    for letter, value in (("x", x), ("w", w), ("y", y)):
        fields |= {f"{letter}{i}": s for i, s in enumerate(leading_strides(value))}
    fields |= {"rows": x.shape[-2], "depth": x.shape[-1], "columns": w.shape[-1], "x_row": x.strides()[-2]}
    return fields | {"w_depth": w.strides()[-2], "w_column": w.strides()[-1], "y_row": y.strides()[-2]}


def _matrices(ctx: OpContext) -> tuple[Value, Value, Value] | None:
    """Return two operands and the result of a product of activations: matrices of any order of dimensions are read
    where they are. None where the library has no such product."""
    x, w = ctx.inputs
    rank = len(ctx.shape)
    if not min(len(x.shape), len(w.shape)) >= 2 or not rank <= LEADING + 2 or not min((*x.shape, *w.shape), default=0):
        return None
    if x.order[-1] != len(x.shape) - 1:
        x = ctx.builder.plain(x)
    return x, w, ctx.make(result_order(x, w, rank))


def matmul(ctx: OpContext) -> Value | None:
    """Lower a product of two activations."""
    found = _matrices(ctx)
    if found is None:
        return None
    x, w, y = found
    ctx.builder.step(
        "matmul",
        x=x,
        w=w,
        y=y,
        zero_x=ctx.zero_point(0),
        zero_w=ctx.zero_point(1),
        ratio=float_bits(ctx.op.attrs["a"] / ctx.op.attrs["b"]),
        **product_fields(x, w, y),
        **ctx.grid(),
    )
    return y


PLAIN_WEIGHT: dict[str, Value | int | None] = {
    **dict.fromkeys(("bias", "scales")),
    **dict.fromkeys(("b0", "b1", "b2", "b3", "bits", "group"), 0),
}
"""Fields of a product of floats without a bias and without codes."""


def float_matmul(ctx: OpContext) -> Value | None:
    """Lower a product of two activations of float32."""
    found = _matrices(ctx)
    if found is None:
        return None
    x, w, y = found
    ctx.builder.step("float_matmul", x=x, w=w, y=y, **(PLAIN_WEIGHT | product_fields(x, w, y)))
    return y


def float_linear(ctx: OpContext) -> Value | None:
    """Lower a linear layer of float32, whose weight may be decoded."""
    x, t, stored = ctx.builder.plain(ctx.inputs[0]), ctx.op.attrs, ctx.op.arrays["weight"]
    if not x.size or not stored.size:
        return None
    y, depth, columns = ctx.make(), x.shape[-1], ctx.shape[-1]
    rows, result = (Value(v.index, (x.size // depth, v.shape[-1]), plain(2), v.dtype) for v in (x, y))
    fields = PLAIN_WEIGHT | {"bias": ctx.stored("bias")}
    if "bits" in t:
        weight = replace(ctx.constant("weight", lambda: stored), shape=(depth, columns))
        fields |= {"scales": ctx.stored("scale"), "bits": t["bits"], "group": t["group"]}
    else:
        weight = ctx.constant("weight, columns last", lambda: stored.T)
    ctx.builder.step("float_matmul", x=x, w=weight, y=y, **(fields | product_fields(rows, weight, result)))
    return y


RULES: dict[str, Rule] = {
    "matmul": matmul,
    "float.matmul": float_matmul,
    "float.linear": float_linear,
    "float.decoded_linear": float_linear,
}
