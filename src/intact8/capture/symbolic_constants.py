"""Constants whose size is that of a dimension that changes: position numbers, rows of a table, masks made of both.

``position_ids[:, :length]`` or ``torch.arange(length)`` is the beginning of a constant, ``torch.arange(length) + past``
a window of one, and so is what most operations make of them: they are computed once, at capture, at the largest size,
and cut when the network runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from sympy import sympify
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, added
from intact8.capture.aten_call import Call, Prefix, Value
from intact8.capture.constants import leaves
from intact8.capture.fx_nodes import written
from intact8.capture.ops_shape import is_whole, over_samples

if TYPE_CHECKING:
    from intact8.capture.interpreter import Builder

_ELEMENTWISE = """
to _to_copy type_as float clone copy detach alias contiguous lift_fresh_copy
add sub rsub mul div neg abs eq ne lt le gt ge
__and__ __or__ bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not where masked_fill log cos sin
minimum maximum clamp
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators of which every element of the result depends on the elements at its place, broadcast, and on numbers."""

_NAMES = """
arange eye slice unsqueeze squeeze expand expand_as broadcast_to permute transpose zeros ones full new_zeros new_ones
new_full zeros_like ones_like full_like tril triu gather embedding cumsum diff index matmul cat view reshape repeat
slice_scatter select_scatter
"""
COMMUTING = ELEMENTWISE | frozenset(_NAMES.split())
"""Operators that give the beginning of a result when given the beginning of a constant."""

MADE = ("zeros", "ones", "full")
"""Operators that make tensors, which may be filled afterwards."""

SOME_SIZE = 5
"""Constants are computed with this batch size, and with the example's size of a dimension without a limit; only what
does not depend on it is used."""

SIZES = ("size", "end", "n", "m")
"""Arguments that say how long something is; a number from elsewhere decides what values are."""


def at_largest(call: Call, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the largest sizes: a Prefix or a tensor; None where no part of it is the result."""
    builder, val = call.builder, call.fx.meta.get("val")
    if call.op not in COMMUTING or not isinstance(val, Tensor) or (call.op in MADE and written(call.fx)):
        return None
    dims = [builder.expression(d) for d in val.shape]
    if any(d not in builder.symbols and builder.size_of(d) is None for d in dims if not isinstance(d, int)):
        return None
    if any(isinstance(arg, torch.SymFloat) for arg in call.args.values()):
        return None
    if any(isinstance(arg, torch.SymInt) and name not in SIZES for name, arg in call.args.items()):
        return _counting_from(call, dims)
    if _mixes_places(call):
        return None
    starts = _starts(call, len(dims))
    if starts is None:
        return None
    if call.op == "slice" and starts[call.axis(call["dim"], call["self"])]:
        return call["self"] if is_whole(call["start"], call["end"], call["step"]) else None
    sizes = {symbol: _largest(builder, symbol) for symbol in builder.symbols}

    def concrete(arg: Any) -> Any:
        if isinstance(arg, Prefix):
            return arg.full
        if isinstance(arg, torch.SymInt):
            return int(expr if isinstance(expr := builder.expression(arg), int) else expr.subs(sizes))
        if isinstance(arg, (list, tuple)):
            return type(arg)(concrete(a) for a in arg)
        return arg

    if call.op == "expand" and any(starts):
        wanted = [-1 if start else concrete(size) for start, size in zip(starts, call["size"], strict=True)]
        args = [args[0], wanted]
    if call.op == "embedding" and int(concrete(call["indices"]).max()) >= len(call["weight"]):
        what = f"row {int(concrete(call['indices']).max())} of a table of {len(call['weight'])} rows"
        names = {builder.symbols[s] for d in dims if not isinstance(d, int) for s in d.free_symbols} - {None}
        name = min(map(str, names), default="past")
        most = _rows_of_table(call) if len(names) == 1 else 0
        raise call.unlimited(what, name, why=f"{name} may become too long", most=most)
    result = builder.fold(call, target, [concrete(a) for a in args], {k: concrete(v) for k, v in kwargs.items()})
    ends = [start + d for start, d in zip(starts, dims, strict=True)]
    if tuple(result.shape) != tuple(n if isinstance(n, int) else int(n.subs(sizes)) for n in ends):
        return None
    static = all(isinstance(d, int) for d in ends)
    return result if static else Prefix(result, tuple(dims), tuple(starts) if any(starts) else ())


def _rows_of_table(call: Call) -> int:
    """Return how long a dimension can be, of which the beginning of known indices of a table is as long; 0: unknown."""
    indices, symbols = call["indices"], call.builder.symbols
    if not isinstance(indices, Prefix):
        return 0
    along = [axis for axis, d in enumerate(indices.dims) if not isinstance(d, int) and symbols.get(d, None) is not None]
    if len(along) != 1 or indices.starts:
        return 0
    others = tuple(axis for axis in range(indices.full.dim()) if axis != along[0])
    outside = (indices.full >= len(call["weight"])).sum(dim=others) if others else indices.full >= len(call["weight"])
    return int(torch.nonzero(outside)[0]) if bool(outside.any()) else 0


def _counting_from(call: Call, dims: list[Any]) -> Prefix | None:
    """Return ``arange(n) + past`` or ``arange(past, past + n)``: a window of the numbers 0, 1, 2 …; None for others."""
    x, first = call.args.get("self"), call.args.get("other")
    if call.op == "arange" and len(dims) == 1 and call.args.get("step", 1) == 1:
        axis, first = 0, call["start"]
    elif call.op == "add" and isinstance(x, (Tensor, Prefix)) and call["alpha"] == 1:
        known = Prefix(x, tuple(x.shape)) if isinstance(x, Tensor) else x
        counted = [a for a, d in enumerate(dims) if known.counts(a) == d and (d != 1 or a + 1 == len(dims))]
        if len(counted) != 1:
            return None
        (axis,) = counted
    else:
        return None
    start = call.builder.expression(first or 0)
    count = int(sympify(start + dims[axis]).subs({s: _largest(call.builder, s) for s in call.builder.symbols}))
    shape = [count if a == axis else 1 for a in range(len(dims))]
    full = torch.arange(count, dtype=call.fx.meta["val"].dtype).reshape(shape)
    return Prefix(full, tuple(dims), tuple(start if a == axis else 0 for a in range(len(dims))))


def as_tensor(call: Call, size: torch.SymInt | torch.SymFloat) -> Value | None:
    """Record a size that changes as a tensor of one element, int64, or float32 where it is a function of one, such as
    its root; None for the batch, and for what is computed of several in other ways.

    Raises:
        LimitError: it has no largest size.
    """
    expr = call.builder.expression(size)
    if isinstance(size, torch.SymFloat):
        return of_size(call, [expr], lambda number: torch.tensor(float(number)))
    found = call.builder.size_of(expr)
    if not isinstance(found, str):
        return of_size(call, [expr], lambda number: torch.tensor(int(number)))
    return number_of(call, found)


def number_of(call: Call, size: str) -> Value:
    """Record a size that changes as a tensor of one element, int64; raise LimitError where it has no largest."""
    numbers, place = torch.arange(_most(call, size) + 1), call.builder.symbolic(size)
    return materialize(call.builder, Prefix(numbers, (1,), (place,)), call.fx)


def of_size(call: Call, sizes: Sequence[Any], row: Callable[..., Tensor]) -> Value | None:
    """Record what is computed of numbers that follow one named dimension: (1, …), a row of the table of all its values.

    None where several dimensions tell the numbers, or the number of samples does.

    Args:
        call: that is recorded.
        sizes: numbers, or expressions of the export.
        row: of the numbers, to a tensor, always of one shape.

    Raises:
        LimitError: the dimension has no largest size.
    """
    given = [sympify(size) for size in sizes]
    symbols = list(set().union(*(size.free_symbols for size in given)))
    name = call.builder.symbols.get(symbols[0]) if len(symbols) == 1 else None
    if name is None:
        return None
    least, most = call.builder.bounds[name][0], _most(call, name)
    try:
        rows = [row(*(size.subs(symbols[0], max(n, least)) for size in given)) for n in range(most + 1)]
    except TypeError:  # torch knows no number for it
        return None
    table = torch.stack(rows)
    starts = (symbols[0], *[0] * (table.dim() - 1))
    return materialize(call.builder, Prefix(table, (1, *table.shape[1:]), starts), call.fx)


def _mixes_places(call: Call) -> bool:
    """Return whether a dimension that changes is summed over or split, or something is put behind it."""
    if call.op in ("view", "reshape", "repeat"):
        x, sizes = call["self"], call.fx.meta["val"].shape
        dims = list(x.dims if isinstance(x, Prefix) else x.shape)
        if call.op != "repeat":
            wanted = [call.builder.expression(d) for d in sizes]
            return [d for d in dims if d != 1] != [d for d in wanted if d != 1]
        dims = [*[1] * (len(sizes) - len(dims)), *dims]
        times = call["repeats"]
        return any(
            d != 1 and n != 1 and not (isinstance(d, int) and isinstance(n, int))
            for d, n in zip(dims, times, strict=True)
        )
    if call.op == "matmul":
        sides = [Prefix(x, tuple(x.shape)) if isinstance(x, Tensor) else x for x in (call["self"], call["other"])]
        if not all(isinstance(x, Prefix) and len(x.dims) > 1 for x in sides):
            return True
        return not (isinstance(sides[0].dims[-1], int) and isinstance(sides[1].dims[-2], int))
    if call.op == "diff":
        return call["append"] is not None or isinstance(call["prepend"], Prefix)
    if call.op == "cat":
        parts = [x for x in call["tensors"] if isinstance(x, Prefix)]
        return any(not isinstance(x.dims[call["dim"]], int) for x in parts)
    if call.op in ("slice_scatter", "select_scatter"):
        whole = call.op == "slice_scatter" and is_whole(call["start"], call["end"], call["step"])
        length = call.builder.expression(call.fx.meta["val"].shape[call["dim"]])
        return not isinstance(length, int) and not whole
    return False


def _starts(call: Call, rank: int) -> list[Any] | None:
    """Return where the window begins that an operation on windows gives, per dimension of the result.

    None where the windows differ, or it is not known what the operation does with them.
    """
    given = [x for x in leaves(list(call.args.values())) if isinstance(x, (Tensor, Prefix))]
    if not any(x.starts for x in given if isinstance(x, Prefix)):
        return [0] * rank
    rows = [_row(x) for x in given]
    if call.op in ELEMENTWISE or call.op in ("expand", "slice"):
        return _aligned(rows, rank)
    if call.op == "cat":
        return list(rows[0][0]) if len({starts for starts, _ in rows}) == 1 else None
    first = rows[0][0]
    if call.op == "unsqueeze":
        at = call["dim"] % rank
        return [*first[:at], 0, *first[at:]]
    if call.op == "transpose":
        order, (i, j) = list(range(rank)), (call.axis(call[name], call["self"]) for name in ("dim0", "dim1"))
        order[i], order[j] = j, i
        return [first[a] for a in order]
    if call.op == "permute":
        return [first[call.axis(d, call["self"])] for d in call["dims"]]
    if call.op == "embedding" and isinstance(call["weight"], Tensor):
        return [*rows[-1][0], 0]
    if call.op == "matmul":
        (a, left), (b, right) = rows
        outer = _aligned([(a[:-2], left[:-2]), (b[:-2], right[:-2])], rank - 2)
        return None if outer is None or a[-1] or b[-2] else [*outer, a[-2], b[-1]]
    return None


def _row(x: Tensor | Prefix) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return where a window begins, and the shape of what it is cut from."""
    shape = tuple(x.full.shape if isinstance(x, Prefix) else x.shape)
    return (x.starts if isinstance(x, Prefix) and x.starts else (0,) * len(shape)), shape


def _aligned(rows: Sequence[tuple[tuple[Any, ...], tuple[int, ...]]], rank: int) -> list[Any] | None:
    """Return the starts that windows have in common, which broadcast; None where they differ."""
    found: list[Any] = []
    for axis in range(-rank, 0):
        seen = {starts[axis] for starts, shape in rows if len(shape) >= -axis and shape[axis] != 1}
        if len(seen) > 1:
            return None
        found.append(seen.pop() if seen else 0)
    return found


def _largest(builder: Builder, symbol: Any) -> int:
    name = builder.symbols[symbol]
    most = None if name is None else builder.bounds[name][1]
    return builder.counts.get(symbol, SOME_SIZE) if most is None else most


def all_true(builder: Builder, value: Any) -> bool:
    """Return whether ``value`` is a constant, or a part of one, that is true everywhere."""
    full = value.full if isinstance(value, Prefix) else value
    if not isinstance(full, Tensor) or full.dtype != torch.bool or math.prod(full.shape) == 0:
        return False
    return bool(full.all()) or (isinstance(value, Prefix) and bool(value.starts) and _windows_true(builder, value))


def _windows_true(builder: Builder, prefix: Prefix) -> bool:
    """Return whether a window is true everywhere wherever it begins, where one named dimension decides that."""
    symbols = set().union(*(n.free_symbols for n in (*prefix.dims, *prefix.starts) if not isinstance(n, int)))
    names = {builder.symbols[s] for s in symbols} - {None}
    if len(names) != 1:
        return False
    least, most = builder.bounds[str(names.pop())]

    def cut(size: int) -> Tensor:
        sizes = {s: SOME_SIZE if builder.symbols[s] is None else size for s in symbols}
        ends = [(a, a + d) for a, d in zip(prefix.starts, prefix.dims, strict=True)]
        return prefix.full[tuple(slice(*(n if isinstance(n, int) else int(n.subs(sizes)) for n in e)) for e in ends)]

    return most is not None and all(bool(cut(size).all()) for size in range(least, most + 1))


def materialize(builder: Builder, prefix: Prefix, fx: torch.fx.Node) -> Value:
    """Record a Prefix once: the constant, cut where it varies and expanded where it does not."""
    if id(prefix) in builder.prefixes:
        return builder.prefixes[id(prefix)][1]
    c, full = Call(builder, fx, str(fx.target).removeprefix("aten."), {}), prefix.full
    cuts: list[tuple[int, int | str, int | str]] = []
    starts = prefix.starts or (0,) * len(prefix.dims)
    out = tuple(_size(c, d) for d in prefix.dims)
    pattern = builder.pattern(full, fx)  # a table that is all zeros yet may be trained
    for axis, (start, size) in enumerate(zip(starts, out, strict=True)):
        if isinstance(size, int) and not start:
            continue
        first = pattern.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(pattern), pattern):
            pattern, full = first, builder.fold(c, torch.ops.aten.narrow.default, [full, axis, 0, 1], {})
        elif size is None:
            raise c.mixes(
                "a constant as long as the batch", why="the number of samples is only known when the program runs"
            )
        else:
            begin = _size(c, start)
            assert begin is not None
            end = added([begin, size])
            _most(c, end)
            cuts.append((axis, begin, end))
    value = builder.constant(builder.fold(c, torch.ops.aten.contiguous.default, [full], {}), fx)
    for axis, begin, end in cuts:
        shape = list(c.shape(value))
        shape[axis] = out[axis]
        value = c.move("slice", value, out=shape, axis=axis, start=begin, end=end, step=1)
    if c.shape(value) != out:
        value = over_samples(c, value, out, prefix.dims)
    builder.prefixes[id(prefix)] = (prefix, value)
    return value


def _size(c: Call, size: Any) -> Dim:
    """Return a size of the export's as an int, a name or a sum of names, or None for the batch."""
    if isinstance(size, int):
        return size
    if c.builder.symbols.get(size, "") is None:
        return None
    found = c.builder.size_of(size)
    if found is None:
        raise c.error(f"a dimension of size {size}", why="a program computes sums, products and quotients of sizes")
    return found


def _most(c: Call, size: int | str) -> int:
    """Return the largest of a size as long as which a constant is."""
    what = f"a constant as long as {size}, which has no largest size"
    return c.most_of(size, what, why="constants are computed once, at the largest size")
