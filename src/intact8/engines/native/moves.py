"""Operations that move values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .builder import Value, plain
from .lowering import OpContext, Rule


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the dimensions of two shapes of as many elements in the smallest groups of equal sizes; those of size 1
    are left out.

    Example:
        >>> _groups([2, 12, 5, 1], [2, 3, 4, 5])
        [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    left, right = [i for i, n in enumerate(a) if n != 1], [i for i, n in enumerate(b) if n != 1]
    found, i, j = list[tuple[list[int], list[int]]](), 0, 0
    while i < len(left):
        first, second, m, n = i, j, a[left[i]], b[right[j]]
        while m != n:
            if m < n:
                i += 1
                m *= a[left[i]]
            else:
                j += 1
                n *= b[right[j]]
        i, j = i + 1, j + 1
        found.append((left[first:i], right[second:j]))
    return found


def reshape(ctx: OpContext) -> Value:
    """Lower a reshape: the same memory, where dimensions that become others lie side by side, else a copy."""
    x, b = ctx.inputs[0], ctx.builder
    if not x.size:
        return Value(b.plain(x).index, ctx.shape, plain(len(ctx.shape)), x.dtype)
    groups = _groups(x.shape, ctx.shape)
    groups.sort(key=lambda group: x.order.index(group[0][-1]))  # as memory has them
    ones = [d for d, n in enumerate(x.shape) if n == 1]
    x = b.in_order(x, [*ones, *(d for taken, _ in groups for d in taken)])
    ones = [d for d, n in enumerate(ctx.shape) if n == 1]
    return Value(x.index, ctx.shape, (*ones, *(d for _, given in groups for d in given)), x.dtype)


def permute(ctx: OpContext) -> Value:
    """Lower a permutation: the same memory, in another order of dimensions."""
    x, dims = ctx.inputs[0], ctx.op.attrs["dims"]
    dims = [d % len(x.shape) for d in dims]
    return Value(x.index, ctx.shape, tuple(dims.index(d) for d in x.order), x.dtype)


def _copy_part(
    ctx: OpContext, x: Value, y: Value, sizes: Sequence[int], from_: Sequence[int], to: Sequence[int], step: int = 1
) -> None:
    """Copy elements of ``x`` from one place on to ``y`` from another place on.

    Args:
        ctx: the operation.
        x, y: tensors of one rank.
        sizes: of the part.
        from_, to: indices of the first element.
        step: from one element of ``x`` to the next where sizes of x and y differ.
    """
    sx, sy = x.strides(), y.strides()
    at_x, at_y = (sum(i * s for i, s in zip(at, v, strict=True)) for at, v in ((from_, sx), (to, sy)))
    steps = [step if n != m else 1 for n, m in zip(x.shape, sizes, strict=True)]
    ctx.builder.copy(
        x, y, [sizes[d] for d in y.order], [sx[d] * steps[d] for d in y.order], [sy[d] for d in y.order], at_x, at_y
    )


def cat(ctx: OpContext) -> Value:
    """Lower a concatenation: a copy of every operand."""
    axis = ctx.op.attrs["axis"] % len(ctx.shape)
    order = max(ctx.inputs, key=lambda x: x.size).order
    y, at = ctx.make(order), [0] * len(ctx.shape)
    for x in ctx.inputs:
        _copy_part(ctx, x, y, x.shape, [0] * len(at), at)
        at[axis] += x.shape[axis]
    return y


def slice_(ctx: OpContext) -> Value:
    """Lower a slice; of all elements it is free."""
    t, x = ctx.op.attrs, ctx.inputs[0]
    if x.shape == ctx.shape:
        return x
    y, axis = ctx.make(x.order), t["axis"] % len(x.shape)
    _copy_part(
        ctx, x, y, y.shape, [t["start"] if d == axis else 0 for d in range(len(x.shape))], [0] * len(x.shape), t["step"]
    )
    return y


def _bits(value: float, dtype: str) -> int:
    """Return the bits of an element."""
    at = np.array(value, dtype)
    return int(at.view(f"u{at.itemsize}"))


def pad(ctx: OpContext) -> Value:
    """Lower a padding: a value everywhere, and then a copy of what is left of the operand."""
    x, pads = ctx.inputs[0], ctx.op.attrs["pads"]
    y = ctx.make(x.order)
    bits = _bits(ctx.op.attrs["value"], x.dtype)
    if any(p > 0 for row in pads for p in row):
        bits -= bits >> 63 << 64  # as int64
        ctx.builder.step("fill", y=y, size=y.itemsize, count=y.size, bits=bits)
    from_, to = [max(0, -p) for p, _ in pads], [max(0, p) for p, _ in pads]
    sizes = [n + min(0, p) + min(0, q) for n, (p, q) in zip(x.shape, pads, strict=True)]
    if min(sizes) > 0:
        _copy_part(ctx, x, y, sizes, from_, to)
    return y


def expand(ctx: OpContext) -> Value:
    """Lower a repetition of dimensions of size 1."""
    x, rank = ctx.inputs[0], len(ctx.shape)
    x = x.of_rank(rank)
    if x.shape == ctx.shape:
        return x
    y, strides = ctx.make(x.order), x.strides()
    from_ = [strides[d] if x.shape[d] != 1 else 0 for d in y.order]
    ctx.builder.copy(x, y, y.physical, from_)
    return y


def roll(ctx: OpContext) -> Value:
    """Lower a cyclic shift: a copy of the two parts along each dimension that is shifted."""
    x, y = ctx.inputs[0], ctx.make(ctx.inputs[0].order)
    shifts = [0] * len(x.shape)
    for d, n in zip(ctx.op.attrs["dims"], ctx.op.attrs["shifts"], strict=True):
        shifts[d] = (shifts[d] + n) % x.shape[d]
    parts = [((list[int](), list[int](), list[int]()))]
    for n, shift in zip(x.shape, shifts, strict=True):
        pieces = [(n - shift, 0, shift), (shift, n - shift, 0)] if shift else [(n, 0, 0)]
        parts = [([*a, p], [*b, q], [*c, r]) for a, b, c in parts for p, q, r in pieces]
    for sizes, from_, to in parts:
        _copy_part(ctx, x, y, sizes, from_, to)
    return y


def constant(ctx: OpContext) -> Value:
    """Lower a stored value."""
    return ctx.constant("value", lambda: ctx.op.arrays["value"])


RULES: dict[str, Rule] = {
    "reshape": reshape,
    "permute": permute,
    "cat": cat,
    "slice": slice_,
    "pad": pad,
    "expand": expand,
    "roll": roll,
    "constant": constant,
}
