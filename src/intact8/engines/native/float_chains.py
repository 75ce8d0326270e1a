"""Rules of elementwise operations on floats, indices and truth values; they are joined to chains, whose results stay in
the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.unary_functions import UNARY
from intact8.opset.op import Array

from .builder import MAX_RANK, WORKSPACE, PlanBuilder, Value, float_bits
from .float_chain_code import (
    BOOL,
    FLOATS,
    GRID,
    INT64,
    WHOLE_BYTES,
    WHOLE_INT64,
    Chain,
    Instruction,
    Operand,
    Source,
    operations,
)
from .float_epilogues import encoded, fuse_chains
from .lowering import OpContext, Rule

Code = Sequence[tuple[str, int, int, float, float]]
"""Instructions whose arguments are numbers of operands, or −1: the result before, −2: the one before that …"""

NO_GRID = {"type": FLOATS, "divisor": 0, "zero": 0, "low": 0, "high": 0}
TYPES = {"float32": FLOATS, "int64": INT64, "bool": GRID, "uint8": GRID}
WHOLE_TYPES = {"int64": WHOLE_INT64, "bool": WHOLE_BYTES, "uint8": WHOLE_BYTES}
RESULTS = {"float32": FLOATS, "int64": INT64, "bool": BOOL}

LARGEST = 2.0**53
"""Integers below it are exact in float64, which holds the numbers of instructions."""


def chain(ctx: OpContext, inputs: Sequence[Value], code: Code, grids: Sequence[tuple[int, float]] = ()) -> Value | None:
    """Lower an operation to a chain of its own.

    Args:
        ctx: the operation.
        inputs: its operands, which broadcast to its result.
        code: instructions.
        grids: zero point and scale of the operands; empty: raw numbers.

    Where the code computes integers or truth values from those alone, registers hold int64.
    """
    rank, dtype = len(ctx.shape), ctx.out.dtype
    if rank > MAX_RANK or (dtype not in RESULTS and "lo" not in ctx.op.attrs):
        return None
    whole = dtype in ("int64", "bool") and all(x.dtype != "float32" for x in inputs)
    if whole and any(abs(n) >= LARGEST for _, _, _, *numbers in code for n in numbers if np.isfinite(n)):
        return None
    fields = NO_GRID | {"type": RESULTS.get(dtype, GRID)}
    if dtype == "uint8":
        fields = {"type": GRID, "divisor": float_bits(ctx.out.scale or 1.0), **ctx.grid()}
    y = ctx.make(ctx.usual_order())
    types = WHOLE_TYPES if whole else TYPES
    operands = [_operand(ctx.builder, x, y, types, *(grids[i] if grids else (0, 1.0))) for i, x in enumerate(inputs)]
    made: list[Instruction] = []

    def source(number: int) -> Source:
        return operands[number] if number >= 0 else len(made) + number if made else operands[0]

    for name, a, b, p, q in code:
        made.append((f"whole_{name}" if whole else name, source(a), source(b), p, q))
    ctx.builder.chain(Chain(y.index, y.physical, made, source(-1), fields))
    return y


def _operand(builder: PlanBuilder, x: Value, y: Value, types: Mapping[str, int], zero: int, scale: float) -> Operand:
    """Return an operand of a chain that writes ``y``, copied where its dimensions lie in another order."""
    x = builder.in_order(x.of_rank(len(y.shape)), y.order)
    mask = sum(1 << k for k, d in enumerate(y.order) if x.shape[d] != 1)
    return Operand(x.index, mask, types[x.dtype], zero, float_bits(scale))


def quantize(ctx: OpContext) -> Value | None:
    """Lower a quantization that keeps the order of dimensions."""
    return chain(ctx, ctx.inputs, ())


def _dequantize(ctx: OpContext) -> Value | None:
    return chain(ctx, ctx.inputs, (), [(ctx.zero_point(0), ctx.tensors[0].scale or 1.0)])


def _instruction(name: str, arguments: int, numbers: Callable[[Any], tuple[float, float]]) -> Rule:
    """Return the rule of an operation that is one instruction."""

    def rule(ctx: OpContext) -> Value | None:
        return chain(ctx, ctx.inputs, [(name, 0, arguments - 1, *numbers(ctx.op.attrs))])

    return rule


def _none(attrs: Any) -> tuple[float, float]:
    return 0.0, 0.0


def _unary(ctx: OpContext) -> Value | None:
    t = ctx.op.attrs
    name, own = t["fn"], UNARY[t["fn"]].attrs
    given: dict[str, Any] = {**own, **t}
    numbers = [float(given[key]) for key in own if key != "approximate"]
    if name == "gelu" and t.get("approximate") == "tanh":
        name = "gelu_tanh"
    p, q = [*numbers, 0.0, 0.0][:2]
    return chain(ctx, ctx.inputs, [(name, 0, 0, p, q)]) if name in operations() else None


def _compare(ctx: OpContext) -> Value | None:
    return chain(ctx, ctx.inputs, [(ctx.op.attrs["fn"], 0, 0, float(ctx.op.attrs["value"]), 0.0)])


def _cast(ctx: OpContext) -> Value | None:
    if ctx.out.dtype == "bool":
        return chain(ctx, ctx.inputs, [("ne", 0, 0, 0.0, 0.0)])
    return chain(ctx, ctx.inputs, ())


def _by_channel(ctx: OpContext, role: str) -> Value:
    """Return an array of the operation with one element per channel, as an operand."""
    weight = ctx.op.arrays[role]

    def make() -> Array:
        return weight.reshape(-1, *[1] * (len(ctx.shape) - 2)) if weight.size > 1 else weight.reshape(())

    return ctx.constant(f"{role} by channel", make)


def _prelu(ctx: OpContext) -> Value | None:
    return chain(ctx, [ctx.inputs[0], _by_channel(ctx, "weight")], [("prelu", 0, 1, 0.0, 0.0)])


def _scale_shift(ctx: OpContext) -> Value | None:
    given = [role for role in ("weight", "bias") if role in ctx.op.arrays]
    values = [ctx.inputs[0], *(_by_channel(ctx, role) for role in given)]
    names = {"weight": "mul", "bias": "add"}
    code = [(names[role], -1, i + 1, 0.0, 0.0) for i, role in enumerate(given)]
    return chain(ctx, values, code)


def _limits(attrs: Any) -> tuple[float, float]:
    low, high = attrs["min"], attrs["max"]
    return -np.inf if low is None else float(low), np.inf if high is None else float(high)


RULES: dict[str, Rule] = {
    "dequantize": _dequantize,
    "float.unary": _unary,
    "float.relu": _instruction("relu", 1, _none),
    "float.leaky_relu": _instruction("leaky_relu", 1, lambda t: (float(t["slope"]), 0.0)),
    "float.prelu": _prelu,
    "float.clamp": _instruction("clamp", 1, _limits),
    "float.affine_scalar": _instruction("affine", 1, lambda t: (float(t["mul"]), float(t["add"]))),
    "float.add": _instruction("add", 2, _none),
    "float.sub": _instruction("sub", 2, _none),
    "float.mul": _instruction("mul", 2, _none),
    "float.div": _instruction("div", 2, _none),
    "float.maximum": _instruction("maximum", 2, _none),
    "float.minimum": _instruction("minimum", 2, _none),
    "float.masked_fill": _instruction("fill", 2, lambda t: (float(t["value"]), 0.0)),
    "float.scale_shift": _scale_shift,
    "float.compare": _compare,
    "float.cast": _cast,
}


def finish(builder: PlanBuilder) -> None:
    """Join chains that read what others write, or what products of integers give, and give the rest their words."""
    writers = {c.y: at for at, c in builder.chains.items() if builder.storage(c.y)[0] == WORKSPACE}
    readers, last_writers = builder.users()
    for at, later in builder.chains.items():
        while any(_joined(builder, writers, readers, at, o) for o in later.operands()):
            pass
    unused = {at for y, at in writers.items() if not readers.get(y)}
    fuse_chains(builder, unused, readers, last_writers)
    for at, made in builder.chains.items():
        if at not in unused:
            sizes = {f"d{i}": made.sizes[i] if i < len(made.sizes) else 1 for i in range(MAX_RANK)}
            fields = {**sizes, **made.fields, "y": made.y, "rank": len(made.sizes)}
            builder.change(at, "chain", *encoded(builder, at, made, fields))
    builder.drop(unused)


def _joined(
    builder: PlanBuilder, writers: dict[int, int], readers: dict[int, set[int]], at: int, operand: Operand
) -> bool:
    """Let the chain at ``at`` compute an operand itself; return whether it does."""
    where, later = writers.get(operand.value, -1), builder.chains[at]
    earlier = builder.chains.get(where)
    if earlier is None or (earlier.fields["type"], operand.type) not in ((FLOATS, FLOATS), (INT64, WHOLE_INT64)):
        return False
    if earlier.whole != (operand.type == WHOLE_INT64):
        return False  # floats that are cast to integers
    if earlier.code and readers[operand.value] != {at}:
        return False  # another step needs the result in memory
    if not later.absorb(operand, earlier):
        return False
    for o in earlier.operands():
        readers[o.value].add(at)
    if all(o.value != operand.value for o in later.operands()):
        readers[operand.value].discard(at)
        if not readers[operand.value]:  # nothing is left that needs the other chain
            for o in earlier.operands():
                readers[o.value].discard(where)
    return True
