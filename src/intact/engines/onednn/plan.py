"""The plan: a program lowered for one set of input shapes, as a flat list of calls.

It is built by running the program once: every step is made from the real tensors it will meet, so nothing about
shapes or memory layout is guessed, and afterwards nothing is decided any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact.errors import EngineError
from intact.program.ops import Op
from intact.program.program import Program

from . import elementwise, moves, pools, products
from .site import Packed, Site, Step

LOWER: dict[str, Callable[[Site], Step]] = {
    "quantize": elementwise.lower_quantize,
    "dequantize": elementwise.lower_dequantize,
    "conv": products.lower_conv,
    "linear": products.lower_linear,
    "add": elementwise.lower_add,
    "mul": elementwise.lower_mul,
    "mean": pools.lower_mean,
    "avg_pool": pools.lower_avg_pool,
    "adaptive_avg_pool": pools.lower_adaptive_avg_pool,
    "table": elementwise.lower_table,
    "max_pool": pools.lower_max_pool,
    "cat": moves.lower_cat,
    "reshape": moves.lower_reshape,
    "permute": moves.lower_permute,
    "slice": moves.lower_slice,
    "pad": moves.lower_pad,
    "expand": moves.lower_expand,
    "roll": moves.lower_roll,
    "upsample": moves.lower_upsample,
    "constant": moves.lower_constant,
}
"""Kind → rule. Kinds ``float.NAME`` go to torch's float operations."""

Observer = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class _Line:
    """One step of the plan: slots it reads, the slot it fills, slots nobody needs afterwards."""

    name: str
    step: Step
    reads: tuple[int, ...]
    writes: int
    frees: tuple[int, ...]
    strides: tuple[int, ...]


class Plan:
    """A program for inputs of fixed shapes, dtypes and strides. Calls are independent of each other (thread-safe)."""

    def __init__(
        self, program: Program, inputs: Sequence[Tensor], packs: MutableMapping[tuple[Any, ...], Packed], isa: str
    ) -> None:
        self._names = [*program.inputs, *(op.name for op in program.ops)]
        slot = {name: i for i, name in enumerate(self._names)}
        self._inputs = [slot[n] for n in program.inputs]
        self._outputs = [slot[n] for n in program.outputs]
        last = {name: i for i, op in enumerate(program.ops) for name in op.inputs}
        kept = set(program.outputs)
        values: dict[str, Tensor] = dict(zip(program.inputs, inputs, strict=True))
        root = {name: name for name in program.inputs}
        borrowed = set(program.inputs)
        self._lines: list[_Line] = []
        self._held: list[Packed] = []
        for i, op in enumerate(program.ops):
            tensors = [values[n] for n in op.inputs]
            mine = _last_readers(op, i, root, last, kept, borrowed)
            site = Site(
                op,
                tensors,
                [program.tensors[n] for n in op.inputs],
                program.tensors[op.name],
                mine,
                packs,
                isa,
                self._held,
            )
            step, y = _build(site)
            root[op.name] = next((root[n] for n, t in zip(op.inputs, tensors, strict=True) if _shares(y, t)), op.name)
            if op.kind == "constant":
                borrowed.add(op.name)
            values[op.name] = y
            dead = tuple(slot[n] for n in dict.fromkeys(op.inputs) if last[n] == i and n not in kept)
            if op.name not in last and op.name not in kept:
                dead = (*dead, slot[op.name])
            self._lines.append(_Line(op.name, step, tuple(slot[n] for n in op.inputs), slot[op.name], dead, y.stride()))
            for index in dead:
                values.pop(self._names[index], None)
        # What is returned must not be the caller's input nor the program's constant, which a caller may write to.
        self._copies = [root[n] in borrowed for n in program.outputs]
        results = [values[n] for n in program.outputs]
        self.first = [t.clone() if copy else t for t, copy in zip(results, self._copies, strict=True)]
        self._calls = [(line.step, line.reads, line.writes, line.frees) for line in self._lines]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Outputs for tensors in the order of ``program.inputs``."""
        slots: list[Any] = [None] * len(self._names)
        for index, x in zip(self._inputs, inputs, strict=True):
            slots[index] = x
        for step, reads, writes, frees in self._calls:
            slots[writes] = step(*[slots[i] for i in reads])
            for i in frees:
                slots[i] = None
        return [slots[i].clone() if copy else slots[i] for i, copy in zip(self._outputs, self._copies, strict=True)]

    def watch(self, inputs: Sequence[Tensor], feed: Mapping[str, Tensor], seen: Observer) -> None:
        """The same calls; ``seen`` gets each tensor before a later call may overwrite it; ``feed`` replaces results."""
        slots: list[Any] = [None] * len(self._names)
        for index, x in zip(self._inputs, inputs, strict=True):
            slots[index] = x
            seen(self._names[index], x)
        for line in self._lines:
            y = feed.get(line.name)
            if y is None:
                y = line.step(*[slots[i] for i in line.reads])
            elif 0 not in line.strides:  # later steps were made for this layout
                y = torch.empty_strided(y.shape, line.strides, dtype=y.dtype).copy_(y)
            slots[line.writes] = y
            seen(line.name, y)
            for i in line.frees:
                slots[i] = None


def supported(op: Op) -> bool:
    """Whether there is a rule for this kind."""
    return op.kind in LOWER or op.is_float


def _build(site: Site) -> tuple[Step, Tensor]:
    """The step and its first result."""
    op = site.op
    try:
        step = _lower_float(op) if op.is_float else LOWER[op.kind](site)
        # An op that may overwrite an input does so here, too: nobody reads that input later.
        return step, step(*site.inputs)
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in site.inputs)
        raise EngineError(
            f"torch refused the {op.kind} on shapes {shapes}",
            where=op.name,
            why=str(error).strip().split("\n")[0],
            remedy="run with engine='reference', and report this with the shapes above",
        ) from error


def _lower_float(op: Op) -> Step:
    from intact.arithmetic.torch_ops import FLOAT_OPS

    function, attrs = FLOAT_OPS[op.kind.removeprefix("float.")], op.attrs
    params = {role: torch.from_numpy(np.array(a)) for role, a in op.arrays.items()}
    return lambda *tensors: function(attrs, list(tensors), params)


def _last_readers(
    op: Op, i: int, root: dict[str, str], last: dict[str, int], kept: set[str], borrowed: set[str]
) -> tuple[bool, ...]:
    """Per input of ``op``: whether no view of its memory is read after step i, returned, or somebody else's."""

    def free(name: str) -> bool:
        memory = root[name]
        views = [n for n, r in root.items() if r == memory]
        alone = sum(root[n] == memory for n in op.inputs) == 1
        return alone and memory not in borrowed and all(n not in kept and last.get(n, -1) <= i for n in views)

    return tuple(free(n) for n in op.inputs)


def _shares(y: Tensor, x: Tensor) -> bool:
    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel() > 0
