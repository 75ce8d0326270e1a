"""Constants as long as a dimension that changes, as nodes of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.fx

from intact8.capture.aten_call import Call, Value
from intact8.capture.ops_shape import batch_of
from intact8.capture.symbolic_constants import Prefix

if TYPE_CHECKING:
    from intact8.capture.interpreter import Builder


def materialize(builder: Builder, prefix: Prefix, fx: torch.fx.Node) -> Value:
    """Nodes for a Prefix: the constant, cut where it varies and expanded where it does not. One set per Prefix."""
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
            raise c.error(
                f"a constant as long as {name}, which has no largest size",
                why="constants are computed once, at the largest size",
                remedy=f'say how long it can be: torch.export.Dim("{name}", max=512)',
            )
        else:
            cuts.append((axis, name))
    value = builder.constant(builder.fold(c, torch.ops.aten.contiguous.default, [full], {}), fx)
    for axis, name in cuts:
        shape = list(c.shape(value))
        shape[axis] = name
        value = c.move("slice", value, shape, axis=axis, start=0, end=name, step=1)
    out = tuple(d if isinstance(d, int) else builder.symbols[d] for d in prefix.dims)
    if c.shape(value) != out:
        like = [batch_of(c, [d for d in prefix.dims if not isinstance(d, int)])] if None in out else []
        value = c.emit(
            "expand", value, *like, out=out, out_dtype=builder.nodes[value.name].dtype,
            shape=[-1 if n is None else n for n in out],
        )  # fmt: skip
    builder.prefixes[id(prefix)] = (prefix, value)
    return value
