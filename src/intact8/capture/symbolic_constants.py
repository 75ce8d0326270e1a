"""Constants as long as a dimension that changes: position numbers, rows of a table, masks made of both.

``position_ids[:, :length]`` or ``torch.arange(length)`` is the beginning of a constant, and so is what most operations
make of it: they are computed once, at capture, at the largest size, and cut when the network runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch import Tensor

if TYPE_CHECKING:
    from intact8.capture.aten_call import Call
    from intact8.capture.interpreter import Builder

COMMUTING = frozenset({
    "arange", "slice", "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "permute", "transpose", "to",
    "_to_copy", "type_as", "float", "clone", "detach", "alias", "contiguous", "lift_fresh_copy", "add", "sub", "rsub",
    "mul", "div", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge", "__and__", "__or__", "bitwise_and", "bitwise_or",
    "bitwise_not", "logical_and", "logical_or", "logical_not", "where", "masked_fill", "zeros", "ones", "full",
    "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "tril", "triu", "gather",
    "embedding", "log", "minimum", "maximum", "clamp", "cumsum", "index",
})  # fmt: skip
"""Operators that give the beginning of a result when given the beginning of a constant."""

SOME_SIZE = 5
"""What a dimension without a limit is while constants are computed; only what does not depend on it is used."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a constant.

    Attributes:
        full: the constant, at the largest sizes.
        dims: per dimension its size: an int, or the export's symbol of a dimension that changes.
    """

    full: Tensor
    dims: tuple[Any, ...]

    def counts(self, axis: int) -> Any:
        """The size up to which it counts 0, 1, 2 … along ``axis`` and nothing else; None where it does not."""
        alone = all(n == 1 for i, n in enumerate(self.full.shape) if i != axis)
        return self.dims[axis] if alone and _counting(self.full) else None


def _counting(x: Tensor) -> bool:
    return x.dtype == torch.int64 and torch.equal(x.flatten(), torch.arange(x.numel(), device=x.device))


def at_largest(call: Call, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operation on beginnings of constants and on sizes: a Prefix or a tensor; None where that is not the same."""
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
    """Whether ``value`` is a constant, or the beginning of one, that is true everywhere."""
    full = value.full if isinstance(value, Prefix) else value
    return isinstance(full, Tensor) and full.dtype == torch.bool and math.prod(full.shape) > 0 and bool(full.all())
