"""A program, at given sizes of its inputs, lowered to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from intact8.opset.op import Op, Tensor
from intact8.program.dimensions import fixed, sizes_near
from intact8.program.program import Program

from ..image_layout import read_as_images
from ..shapes import sized
from . import (
    affine,
    dynamic,
    elementwise,
    float_chains,
    float_images,
    float_layers,
    indexing,
    moves,
    norms,
    pools,
    products,
)
from .attention import find_attention, lower_attention
from .builder import INPUT, Constants, PlanBuilder, Value, plain
from .fuse import chains, paddings
from .lowering import OpContext, Rule

RULES: dict[str, Rule] = {
    **affine.RULES,
    **dynamic.RULES,
    **float_chains.RULES,
    **float_images.RULES,
    **float_layers.RULES,
    **indexing.RULES,
    **elementwise.RULES,
    **moves.RULES,
    **norms.RULES,
    **pools.RULES,
    **products.RULES,
}
"""Kind → rule. The reference computes the other kinds, and operations for which a rule returns None."""


@dataclass(frozen=True)
class Fallback:
    """An operation that the reference computes in the middle of a plan.

    Attributes:
        op: the operation, its sizes in numbers.
        inputs, output: values, plain.
        tensors, out: descriptions of them.
    """

    op: Op
    inputs: tuple[Value, ...]
    output: Value
    tensors: tuple[Tensor, ...]
    out: Tensor


@dataclass(frozen=True)
class Lowered:
    """A plan and what belongs to it.

    Attributes:
        program: what was lowered, every shape in numbers.
        builder: the finished builder.
        outputs: the outputs.
        fallbacks: operations that the reference computes, by the index in their step.
    """

    program: Program
    builder: PlanBuilder
    outputs: Sequence[Value]
    fallbacks: Sequence[Fallback]

    @property
    def numpy_operations(self) -> tuple[str, ...]:
        """Names of the operations that the reference computes."""
        return tuple(f.op.name for f in self.fallbacks)


def lower(
    program: Program, inputs: Mapping[str, tuple[str, tuple[int, ...]]], constants: Constants, outputs: Sequence[str]
) -> Lowered:
    """Lower a program.

    Args:
        program: every shape in numbers.
        inputs: name → dtype, and order of dimensions in memory; further tensors that are given instead of computed may
            be among them.
        constants: what plans of the program share.
        outputs: names of the tensors that are wanted.
    """
    b, values, fallbacks = PlanBuilder(constants), dict[str, Value](), list[Fallback]()
    for i, (name, (dtype, order)) in enumerate(inputs.items()):
        shape = tuple(d for d in program.tensors[name].shape if isinstance(d, int))
        values[name] = b.value(shape, dtype, order, INPUT, i)
    images, fused = read_as_images(program, floats=True), chains(program, outputs)
    inside = {op.name for chain in fused.values() for op in chain[:-1]}
    attention = find_attention(program, {*outputs, *inputs})
    inside.update(*(chain.inner for chain in attention.values()))
    pads = {name: pad for name, pad in paddings(program, outputs).items() if pad.name not in values}
    inside.update(pad.name for pad in pads.values())

    def context(op: Op) -> OpContext:
        pad = pads.get(op.name)
        names = op.inputs if pad is None else (pad.inputs[0], *op.inputs[1:])
        before = () if pad is None else [n for n, _ in pad.attrs["pads"][2:]]
        known, tensors = [values[n] for n in names if n in values], [program.tensors[n] for n in op.inputs]
        return OpContext(op, b, known, tensors, program.tensors[op.name], op.name in images, before=before)

    for op in program.ops:
        if op.name in values or op.name in inside:
            continue
        b.owner = op.name
        if op.name in attention:
            values[op.name] = lower_attention(context(op), attention[op.name], values, program.tensors)
            continue
        first, *rest = (context(o) for o in fused.get(op.name, (op,)))
        rule = RULES.get(first.op.kind)
        made = rule(replace(first, epilogue=rest)) if rule is not None else None
        values[op.name] = _fall_back(first, fallbacks) if made is None else made
    b.owner = ""
    found = [values[name] for name in outputs]
    b.outputs(found)
    float_chains.finish(b)
    return Lowered(program, b, found, fallbacks)


def lowered_at(
    program: Program, constants: Constants, batch: int = 1, sizes: Mapping[str, int] | None = None
) -> Lowered:
    """Lower a program for plain inputs of given sizes.

    Args:
        program: checked.
        constants: what plans of the program share.
        batch: number of samples.
        sizes: sizes of named dimensions; None: 2, or what is nearest to it.
    """
    found = sized(fixed(program, sizes_near(program, 2) if sizes is None else sizes), batch)
    given = {name: (found.tensors[name].dtype, plain(len(found.tensors[name].shape))) for name in found.inputs}
    return lower(found, given, constants, found.outputs)


def _fall_back(ctx: OpContext, fallbacks: list[Fallback]) -> Value:
    """Add a step that the reference computes."""
    inputs = tuple(ctx.builder.plain(x) for x in ctx.inputs)
    # Integers that are given where floats are declared are described as what they are.
    tensors = tuple(
        t if t.dtype == x.dtype else replace(t, dtype=x.dtype) for t, x in zip(ctx.tensors, inputs, strict=True)
    )
    y = ctx.make()
    ctx.builder.step("call", inputs, y=y, index=len(fallbacks))
    fallbacks.append(Fallback(ctx.op, inputs, y, tensors, ctx.out))
    return y
