"""Chains that convolutions and linear layers with float32 results compute in their own step, sums still in cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .builder import WORKSPACE, PlanBuilder, Value, double_bits
from .float_chain_code import FLOATS, GRID, INT64, MAX_OPERANDS, Chain, Operand, Source, operations

KIND = "dequantized_conv"
Fields = dict[str, Value | int | None]


def encoded(
    builder: PlanBuilder, at: int, chain: Chain, fields: Mapping[str, Value | int | None], first: Sequence[Operand] = ()
) -> tuple[list[int], Fields]:
    """Return the list of values and the fields of the step that computes a chain.

    Args:
        builder: of the plan.
        at: number of the step that owns the code, which plans of the same operation share.
        chain: what is computed.
        fields: the fields besides ``code`` and ``instructions``.
        first: operands that come before the others and are not in the list.
    """
    operands = [*first, *(o for o in chain.operands() if o not in first)]
    registers: dict[Source, int] = {o: i for i, o in enumerate(operands)}
    registers |= {i: len(operands) + i for i in range(len(chain.code))}
    words = [w for o in operands for w in (o.type, o.mask, o.zero, o.scale)]
    for name, a, b, p, q in chain.code:
        words += operations()[name], registers[a], registers[b], double_bits(p), double_bits(q)
    code = np.array(words, np.int64)
    shared = builder.constants.get(builder.owners[at], f"chain {code.tobytes().hex()}", lambda: code)
    values = [o.value for o in operands[len(first) :]]
    return values, {**fields, "code": builder.constant(shared), "instructions": len(chain.code)}


def fuse_chains(
    builder: PlanBuilder, unused: set[int], readers: dict[int, set[int]], last_writers: Mapping[int, int]
) -> None:
    """Move chains that read the results of products into the steps of these.

    Args:
        builder: of the plan.
        unused: steps that nobody needs any more, to which moved chains are added.
        readers: value → steps that read it; changed.
        last_writers: value → the last step that writes it.
    """
    bare: dict[int, tuple[int, int]] = {}  # results that nothing follows in their step → the step, what it reads
    for at, fields in builder.fields(KIND).items():
        values: list[int] = []
        known: Fields = dict(fields)
        chain = _only_reader(builder, readers, unused, fields["y"])
        split = chain and _split(builder, chain, at, fields, last_writers)
        if chain is not None and split is not None:
            values, known = encoded(builder, at, split, known, [_result(split, fields["y"])])
            known["joined_x"] = _joined(builder, bare, chain, at, readers, unused)
            readers[fields["y"]].clear()
            unused.update(i for i in builder.chains if builder.chains[i] is chain)
            known |= _target(builder, chain)
        _quantize(builder, unused, readers, known)
        if known["code"] in (None, -1) and not known["bytes"]:
            bare[fields["y"]] = at, fields["x"]
        builder.change(at, KIND, values, known)


def _only_reader(builder: PlanBuilder, readers: Mapping[int, set[int]], unused: set[int], value: int) -> Chain | None:
    """Return the chain that alone reads a value in the workspace."""
    found = readers.get(value, set()) - unused
    if len(found) != 1 or builder.storage(value)[0] != WORKSPACE:
        return None
    return builder.chains.get(next(iter(found)))


def _joined(
    builder: PlanBuilder,
    bare: Mapping[int, tuple[int, int]],
    chain: Chain,
    at: int,
    readers: Mapping[int, set[int]],
    unused: set[int],
) -> int | None:
    """Return what the convolution reads whose results only this chain reads, and which the step before ``at`` computes.

    Args:
        builder: of the plan.
        bare: results of convolutions → their step, and what they read.
        chain: of the step at ``at``.
        at: number of a step.
        readers: value → steps that read it.
        unused: steps that nobody needs any more.
    """
    for value in (o.value for o in chain.operands() if o.value in bare):
        step, x = bare[value]
        if all(i in unused for i in range(step + 1, at)) and _only_reader(builder, readers, unused, value) is chain:
            return x
    return None


def _result(chain: Chain, value: int) -> Operand:
    return next(o for o in chain.operands() if o.value == value)


def _split(
    builder: PlanBuilder, chain: Chain, at: int, fields: Mapping[str, int], last_writers: Mapping[int, int]
) -> Chain | None:
    """Return the chain with two dimensions, places and channels, where the step at ``at`` can compute it."""
    own = [o for o in chain.operands() if o.value == fields["y"]]
    channels = fields["out_channels"]
    places = math.prod(fields[n] for n in ("batch", "out_depth", "out_height", "out_width"))
    rank = len(chain.sizes)
    k = next((k for k in range(rank, -1, -1) if math.prod(chain.sizes[k:]) == channels), -1)
    if k < 0 or math.prod(chain.sizes[:k]) != places or chain.fields["type"] not in (FLOATS, GRID) or chain.whole:
        return None
    if len(own) != 1 or own[0].type != FLOATS or len(chain.operands()) > MAX_OPERANDS:
        return None
    sides = [chain.dimensions((1 << k) - 1), chain.dimensions(-1 << k)]
    moved: dict[Operand, Operand] = {}
    for o in chain.operands():
        mask = 0
        for bit, side in enumerate(sides):
            having = [i for i in chain.dimensions(o.mask) if i in side]
            if having and having != side:
                return None
            mask |= bool(having) << bit
        if o is not own[0] and (o.type > INT64 or last_writers.get(o.value, -1) >= at):
            return None
        moved[o] = replace(o, mask=mask)
    if moved[own[0]].mask != sum(bool(side) << bit for bit, side in enumerate(sides)):
        return None

    def new(s: Source) -> Source:
        return s if isinstance(s, int) else moved[s]

    code = [(n, new(a), new(b), p, q) for n, a, b, p, q in chain.code]
    return Chain(chain.y, (places, channels), code, new(chain.result), chain.fields)


def _target(builder: PlanBuilder, chain: Chain) -> Fields:
    """Return the fields of the results of a chain."""
    if chain.fields["type"] == FLOATS:
        return {"y": chain.y}
    grid = {name: chain.fields[name] for name in ("divisor", "zero", "low", "high")}
    return {"y": builder.value((0,), "float32"), "floats": 0, "q": chain.y, "bytes": 1, **grid}


def _quantize(builder: PlanBuilder, unused: set[int], readers: Mapping[int, set[int]], known: Fields) -> None:
    """Let the step write bytes, too, where a chain quantizes its floats as they lie; without floats if nobody else
    reads them."""
    y = known["y"]
    if not isinstance(y, int) or known["bytes"]:
        return
    for i in sorted(readers.get(y, set()) - unused):
        chain = builder.chains.get(i)
        if chain is None or chain.code or chain.fields["type"] != GRID:
            continue
        (operand,) = chain.operands()
        if operand.type != FLOATS or chain.dimensions(operand.mask) != chain.dimensions(-1):
            continue
        unused.add(i)
        target = _target(builder, chain)
        if readers[y] - unused or builder.storage(y)[0] != WORKSPACE:
            target = {name: value for name, value in target.items() if name not in ("y", "floats")}
        known |= target
        return
