"""Constants as long as a dimension that changes: position numbers, rows of a table, masks made of both.

``position_ids[:, :length]`` or ``torch.arange(length)`` is the beginning of a constant, and so is what most operations
make of it: they are computed once, at capture, at the largest size, and cut when the network runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch import Tensor

from intact8.capture.aten_call import Call, Prefix, Value
from intact8.capture.ops_shape import batch_of

if TYPE_CHECKING:
    from intact8.capture.interpreter import Builder

_NAMES = """
arange slice unsqueeze squeeze expand expand_as broadcast_to permute transpose to _to_copy type_as float clone detach
alias contiguous lift_fresh_copy add sub rsub mul div neg abs eq ne lt le gt ge __and__ __or__ bitwise_and bitwise_or
bitwise_not logical_and logical_or logical_not where masked_fill zeros ones full new_zeros new_ones new_full zeros_like
ones_like full_like tril triu gather embedding log minimum maximum clamp cumsum index
"""
COMMUTING = frozenset(_NAMES.split())
"""Operators that give the beginning of a result when given the beginning of a constant."""

SOME_SIZE = 5
"""Constants are computed with this size of a dimension without a limit; only what does not depend on it is used."""


def at_largest(call: Call, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the largest sizes: a Prefix or a tensor; None where its beginning is not the result."""
    builder, val = call.builder, call.fx.meta.get("val")
    if call.op not in COMMUTING or not isinstance(val, Tensor):
        return None
    dims: list[Any] = []
    for size in val.shape:
        symbol = size.node.expr if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer else int(size)
        if not isinstance(symbol, int) and symbol not in builder.symbols:
            return None
        dims.append(symbol)
    sizes = {symbol: _largest(builder, symbol) for symbol in builder.symbols}

    def concrete(arg: Any) -> Any:
        if isinstance(arg, Prefix):
            return arg.full
        if isinstance(arg, torch.SymInt):
            return int(arg.node.expr.subs(sizes))
        if isinstance(arg, (list, tuple)):
            return type(arg)(concrete(a) for a in arg)
        return arg

    result = builder.fold(call, target, [concrete(a) for a in args], {k: concrete(v) for k, v in kwargs.items()})
    if tuple(result.shape) != tuple(sizes.get(d, d) for d in dims):
        return None
    return result if all(isinstance(d, int) for d in dims) else Prefix(result, tuple(dims))


def _largest(builder: Builder, symbol: Any) -> int:
    name = builder.symbols[symbol]
    most = None if name is None else builder.bounds[name][1]
    return SOME_SIZE if most is None else most


def all_true(value: Any) -> bool:
    """Return whether ``value`` is a constant, or the beginning of one, that is true everywhere."""
    full = value.full if isinstance(value, Prefix) else value
    return isinstance(full, Tensor) and full.dtype == torch.bool and math.prod(full.shape) > 0 and bool(full.all())


def materialize(builder: Builder, prefix: Prefix, fx: torch.fx.Node) -> Value:
    """Record a Prefix once: the constant, cut where it varies and expanded where it does not."""
    if id(prefix) in builder.prefixes:
        return builder.prefixes[id(prefix)][1]
    c, full = Call(builder, fx, str(fx.target).removeprefix("aten."), {}), prefix.full
    cuts: list[tuple[int, str]] = []
    changing = [axis for axis, d in enumerate(prefix.dims) if not isinstance(d, int)]
    pattern = builder.pattern(full, fx)  # a table that is all zeros yet may be trained
    for axis in changing:
        first = pattern.narrow(axis, 0, 1)
        name = builder.symbols[prefix.dims[axis]]
        if torch.equal(first.expand_as(pattern), pattern):
            pattern, full = first, builder.fold(c, torch.ops.aten.narrow.default, [full, axis, 0, 1], {})
        elif name is None:
            raise c.mixes(
                "a constant as long as the batch", why="the number of samples is only known when the program runs"
            )
        elif builder.bounds[name][1] is None:
            what = f"a constant as long as {name}, which has no largest size"
            why = "constants are computed once, at the largest size"
            raise c.error(what, why=why, remedy=f'say how long it can be: torch.export.Dim("{name}", max=512)')
        else:
            cuts.append((axis, name))
    value = builder.constant(builder.fold(c, torch.ops.aten.contiguous.default, [full], {}), fx)
    for axis, name in cuts:
        shape = list(c.shape(value))
        shape[axis] = name
        value = c.move("slice", value, out=shape, axis=axis, start=0, end=name, step=1)
    out = tuple(d if isinstance(d, int) else builder.symbols[d] for d in prefix.dims)
    if c.shape(value) != out:
        like = [batch_of(c, [d for d in prefix.dims if not isinstance(d, int)])] if None in out else []
        value = c.move("expand", value, *like, out=out, shape=[-1 if n is None else n for n in out])
    builder.prefixes[id(prefix)] = (prefix, value)
    return value
