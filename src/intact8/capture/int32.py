"""Integers of 32 bits wrap around where those of 64 bits, which programs hold, do not: hashes of coordinates do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intact8.capture.aten_call import Call, Value

LARGE = 1 << 15
"""What multiplies by less is taken to stay within 32 bits: products with masks, sizes and strides do."""

MULTIPLY = frozenset(["mul", "multiply", "square", "pow", "prod"])
ARITHMETIC = MULTIPLY | frozenset(["add", "sub", "rsub", "neg", "sum", "cumsum"])
CONVERSION = frozenset(["to", "_to_copy", "type_as"])
BOUNDED = frozenset(
    [
        *("remainder", "fmod", "floor_divide", "div", "divide", "eq", "ne", "lt", "le", "gt", "ge"),
        *("argmax", "argmin", "searchsorted", "bucketize", "sort", "argsort"),
    ]
)
"""Operators whose results are small, whatever their operands."""


class Wrapping:
    """Which values of a graph under construction may exceed 32 bits, and what makes numbers of 32 bits of them."""

    def __init__(self) -> None:
        self._wide: set[str] = set()

    def kept(self, call: Call, result: Any) -> Any:
        """Return an operator's result as torch has it: modulo 2³² where it is of 32 bits and may exceed them.

        Example:
            With int32 numbers, ``(i * 73856093) % 61`` is what it is in torch.
        """
        if not isinstance(result, Value) or call.dtype(result) != "int64":
            return result
        op = call.op.removesuffix("_")
        given = [v for v in call.args.values() if isinstance(v, Value)]
        wide = any(v.name in self._wide for v in given)
        if op in MULTIPLY and any(_is_large(v) for v in call.args.values()):
            wide = True
        if not wide or op in BOUNDED:
            return result
        meta = call.fx.meta.get("val")
        if getattr(meta, "dtype", None) is torch.int32 and op in ARITHMETIC | CONVERSION:
            result = wrapped(call, result)
        self._wide.add(result.name)
        return result


def wrapped(c: Call, x: Value) -> Value:
    """Record the number of 32 bits that int64 numbers are congruent to modulo 2³²."""
    shape, turn = c.shape(x), 1 << 32
    moved = c.emit("affine_scalar", x, out=shape, out_dtype="int64", mul=1, add=turn // 2)
    return c.emit("sub", x, c.whole_turns(moved, turn), out=shape, out_dtype="int64")


def _is_large(value: Any) -> bool:
    if isinstance(value, Tensor) and not value.is_floating_point() and value.numel():
        return int(value.long().abs().max()) >= LARGE
    return isinstance(value, int) and abs(value) >= LARGE
