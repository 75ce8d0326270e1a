"""Operations that move, order or sum elements along a dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .builder import MAX_RANK, Value
from .lowering import OpContext, Rule

TYPES = {"float32": 0, "int64": 1, "bool": 2, "uint8": 2}
"""Types of elements, as the library numbers them."""

REDUCTIONS = {"none": 0, "sum": 1, "prod": 2, "amax": 3, "amin": 4}
"""What a scatter does where several elements have one place."""


def _columns(x: Value, axis: int) -> dict[str, int]:
    """Return the sizes before and behind a dimension in memory."""
    at = x.order.index(axis % len(x.shape))
    return {"outer": math.prod(x.physical[:at]), "inner": math.prod(x.physical[at + 1 :])}


def _along(kind: str, numbers: Sequence[str] = ()) -> Rule:
    """Return the rule of a step along the dimension ``axis``.

    Args:
        kind: of the step.
        numbers: attributes that it has as fields.
    """

    def rule(ctx: OpContext) -> Value | None:
        x, *others = ctx.inputs
        if len(x.shape) > MAX_RANK:
            return None
        axis, y = ctx.op.attrs["axis"], ctx.make(x.order)
        fields: dict[str, Value | int] = {name: int(ctx.op.attrs[name]) for name in numbers}
        for name, value in zip(("index", "source"), others, strict=False):
            fields[name] = ctx.builder.in_order(value, x.order)
        if others:
            fields["count"] = others[0].shape[axis]
        if "reduce" in ctx.op.attrs:
            fields["function"] = REDUCTIONS[ctx.op.attrs["reduce"]]
        ctx.builder.step(kind, x=x, y=y, type=TYPES[x.dtype], size=x.shape[axis], **_columns(x, axis), **fields)
        return y

    return rule


RULES: dict[str, Rule] = {
    "float.gather": _along("gather"),
    "float.scatter": _along("scatter"),
    "float.cumsum": _along("cumsum"),
    "float.argsort": _along("argsort", ["descending"]),
}
