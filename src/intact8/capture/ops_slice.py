"""Slices: with bounds that follow sizes, and windows that begin at a place which is computed of one."""

from __future__ import annotations

from typing import Any

import torch
from sympy import sympify

from intact8.arithmetic.dimensions import Dim, less, limits_of
from intact8.capture.aten_call import Call, Prefix, Value, handles
from intact8.capture.ops_shape import WHOLE, cut, taken
from intact8.capture.symbolic_constants import materialize


@handles("slice narrow")
def slice_(c: Call) -> Value:
    """Record a slice."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    start = c["start"] or 0
    end = c["start"] + c["length"] if "length" in c.args else c["end"]
    if not isinstance(c.shape(x)[axis], int) and start == 0 and whole(c, axis):
        return x
    step = c.args.get("step") or 1
    if isinstance(start, torch.SymInt) and not _follows(c, start):
        found = window(c, x, axis, start, step)
        if found is not None:
            return found
    bounds = [position(c, n, c.shape(x)[axis]) for n in (start, WHOLE if end is None else end)]
    return cut(c, x, axis, bounds[0], bounds[1], step)


def position(c: Call, n: Any, length: Dim) -> int | str:
    """Return where a slice begins or ends; a computed size that is subtracted counts from the end."""
    if not isinstance(n, torch.SymInt):
        return int(n)
    back = c.builder.size_of(-c.builder.expression(n))
    if back is not None and length is not None and limits_of(back, c.builder.bounds)[0] >= 1:
        return less(length, back)
    found = c.builder.dim(n, c.fx)
    return c.static(found)[0] if found is None else found


def whole(c: Call, axis: int) -> bool:
    """Return whether a slice keeps the whole dynamic dimension."""
    before = c.fx.all_input_nodes[0].meta["val"].shape[axis].node.expr
    after = c.fx.meta["val"].shape[axis]
    return isinstance(after, torch.SymInt) and bool(before == after.node.expr)


def _follows(c: Call, place: torch.SymInt) -> bool:
    """Return whether a place grows with sizes, seen from one of the ends, or is counted in samples."""
    expr = c.builder.expression(place)
    if isinstance(expr, int) or expr.free_symbols & c.builder.batch_symbols:
        return True
    back = c.builder.size_of(-expr)
    return c.builder.size_of(expr) is not None or (back is not None and limits_of(back, c.builder.bounds)[0] >= 1)


def window(c: Call, x: Value, axis: int, start: torch.SymInt, step: int) -> Value | None:
    """Record a slice that begins at a place that is computed of one dimension in any way, such as one that shrinks with
    it: a gather of as many elements as the export says, ``step`` apart. None where several dimensions tell the place.

    The dimension gets a limit where a longer one would leave the tensor.
    """
    builder, size = c.builder, c.fx.meta["val"].shape[axis]
    first, count = (builder.expression(n) for n in (start, size))
    length = builder.symbolic(c.shape(x)[axis] or 0)
    free = set().union(*(n.free_symbols for n in map(sympify, (first, count, length))))
    name = builder.symbols.get(next(iter(free))) if len(free) == 1 else None
    if name is None or builder.size_of(count) is None or c.shape(x)[axis] is None:
        return None
    (symbol,) = free
    what = f"{name}, which has no largest size, tells where a slice begins"
    most = c.most_of(name, what, why="the places are computed once, for every size")
    least = builder.bounds[name][0]
    at = {n: [int(sympify(e).subs(symbol, n)) for e in (first, count, length)] for n in range(least, most + 1)}
    inside = {n: b >= 0 and many >= 1 and b + (many - 1) * step < end for n, (b, many, end) in at.items()}
    shown = builder.counts[symbol]
    if not inside.get(shown, False):
        return None
    least = next((n + 1 for n in range(shown, least - 1, -1) if not inside[n]), least)
    most = next((n - 1 for n in range(shown, most + 1) if not inside[n]), most)
    builder.bounds[name] = least, most
    starts = torch.tensor([at[n][0] if least <= n <= most else 0 for n in range(most + 1)])
    place = materialize(builder, Prefix(starts, (1,), (symbol,)), c.fx)
    numbers = Prefix(torch.arange(max(at[n][1] for n in range(least, most + 1))) * step, (count,))
    out = [builder.size_of(count)]
    return taken(c, x, axis, c.emit("add", materialize(builder, numbers, c.fx), place, out=out, out_dtype="int64"))
