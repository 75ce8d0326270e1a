"""The plan: a program lowered for one set of input shapes, as a flat list of calls.

It is built by running the program once: every step is made from the real tensors it will meet, so nothing about
shapes or memory layout is guessed, and afterwards nothing is decided any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import fits, show
from intact8.errors import EngineError, InputError, IntactError
from intact8.opset.op import Op
from intact8.program.dimensions import batch_size
from intact8.program.indices import unproved
from intact8.program.inputs import outside
from intact8.program.program import Program

from ..image_layout import read_as_images
from . import conv_linear, dynamic_linear, elementwise, moves, pools, softmax_norms
from .floats import lower_float
from .lowering import OpContext, Packed, Rule, Step
from .matmul import lower_matmul
from .merge_linear import merge_linear
from .recurrent import lower_recurrent

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **conv_linear.RULES,
    "matmul": lower_matmul,
    **pools.RULES,
    **softmax_norms.RULES,
    **dynamic_linear.RULES,
    **dict.fromkeys(("lstm", "gru", "rnn"), lower_recurrent),
    **moves.RULES,
}
"""Kind → rule. Other kinds ``float.NAME`` go to torch's float operations; ``dynamic_linear`` reads quantized rows."""

Observer = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class _Call:
    """One call of the plan: slots it reads, the slot it fills, slots that nothing reads afterwards.

    A call without a name quantizes rows for all operations that read them.
    """

    name: str
    step: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int
    frees: tuple[int, ...]
    strides: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8


class _Builder:
    """Runs a program once, and makes a call of every operation.

    Attributes:
        names: of the tensor in every slot.
        values: tensors that are still needed.
        root: tensor → the tensor whose memory it lies in.
        borrowed: tensors whose memory belongs to the caller or to the program.
        last: tensor → position of the last operation that reads it.
        needed: tensor that has memory of its own → position of the last operation that reads that memory.
        used_packs: prepacked weights that the calls read.
    """

    def __init__(
        self, program: Program, inputs: Sequence[Tensor], packs: MutableMapping[tuple[Any, ...], Packed], isa: str
    ) -> None:
        self.program, self._packs, self._isa = program, packs, isa
        self.names = [*program.inputs, *(op.name for op in program.ops)]
        self.slot = {name: i for i, name in enumerate(self.names)}
        self.values: dict[str, Tensor] = dict(zip(program.inputs, inputs, strict=True))
        self.root, self.borrowed = {name: name for name in program.inputs}, set(program.inputs)
        self.last = {name: i for i, op in enumerate(program.ops) for name in op.inputs}
        self.needed = {name: self._last_use(name) for name in program.inputs}
        self.calls: list[_Call] = []
        self.used_packs: list[Packed] = []
        self._batch, self._spatial = batch_size(program, self.values), read_as_images(program)
        self._table_rows = unproved(program)
        self._rows: dict[tuple[str, str], tuple[int, dynamic_linear.Rows]] = {}
        self._last_rows = {_rows_key(op): i for i, op in enumerate(program.ops) if op.kind == "dynamic_linear"}

    def add(self, i: int, op: Op) -> None:
        """Run operation ``i`` and add its call."""
        program, tensors = self.program, [self.values[n] for n in op.inputs]
        ctx = OpContext(
            op=op,
            inputs=tensors,
            metas=[program.tensors[n] for n in op.inputs],
            out=program.tensors[op.name],
            may_overwrite=tuple(self._is_free(n, op, i) for n in op.inputs),
            packs=self._packs,
            isa=self._isa,
            used_packs=self.used_packs,
            spatial=op.name in self._spatial,
            batch=self._batch,
        )
        reads, given = tuple(self.slot[n] for n in op.inputs), list[Any](tensors)
        if op.kind == "dynamic_linear":
            slot, rows = self._quantized_rows(op, tensors[0], reads)
            reads, given = (slot,), [rows]
        step, y = _build(ctx, given, self._table_rows.get(op.name))
        _check_result(ctx, y)
        shared = (self.root[n] for n, t in zip(op.inputs, tensors, strict=True) if _shares_memory(y, t))
        root = self.root[op.name] = next(shared, op.name)
        self.needed[root] = max(self.needed.get(root, -1), self._last_use(op.name))
        if op.kind == "constant":
            self.borrowed.add(op.name)
        self.values[op.name] = y
        frees = self._freed_slots(i, op)
        self.calls.append(_Call(op.name, step, reads, self.slot[op.name], frees, y.stride(), tuple(y.shape), y.dtype))
        for index in frees:
            self.values.pop(self.names[index], None)

    def _quantized_rows(self, op: Op, x: Tensor, reads: tuple[int, ...]) -> tuple[int, dynamic_linear.Rows]:
        """Return the slot and the value of the rows of ``x``, quantized at the first request."""
        key = _rows_key(op)
        if key not in self._rows:
            quantize = dynamic_linear.quantizer(op.attrs["granularity"])
            self._rows[key] = len(self.names), quantize(x)
            self.names.append("")
            self.calls.append(_Call("", quantize, reads, self._rows[key][0], ()))
        return self._rows[key]

    def _freed_slots(self, i: int, op: Op) -> tuple[int, ...]:
        """Return the slots that nothing reads after operation ``i``."""
        kept, last = self.program.outputs, self.last
        names = [n for n in dict.fromkeys(op.inputs) if last[n] == i and n not in kept]
        if op.name not in last and op.name not in kept:
            names.append(op.name)
        slots = tuple(self.slot[n] for n in names)
        if op.kind == "dynamic_linear" and self._last_rows[_rows_key(op)] == i:
            return (*slots, self._rows.pop(_rows_key(op))[0])
        return slots

    def _is_free(self, name: str, op: Op, i: int) -> bool:
        """Return whether no view of the memory of an input is read after operation ``i``, returned, or borrowed."""
        memory = self.root[name]
        alone = sum(self.root[n] == memory for n in op.inputs) == 1
        return alone and memory not in self.borrowed and self.needed[memory] <= i

    def _last_use(self, name: str) -> int:
        """Return the position of the last operation that reads a tensor, or that of the end for what is returned."""
        return len(self.program.ops) if name in self.program.outputs else self.last.get(name, -1)


class Plan:
    """A program for inputs of fixed shapes, dtypes and strides. Calls are independent of each other (thread-safe).

    Attributes:
        calls: what is called, in order.
        first: outputs of the run that built the plan.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        packs: MutableMapping[tuple[Any, ...], Packed],
        isa: str,
    ) -> None:
        merged = merge_linear(program)
        self._private = set(merged.tensors) - set(program.tensors)
        b = _Builder(merged, inputs, packs, isa)
        for i, op in enumerate(merged.ops):
            b.add(i, op)
        self._names, self.calls, self._used_packs = b.names, b.calls, b.used_packs
        self._inputs, self._outputs = ([b.slot[n] for n in names] for names in (merged.inputs, merged.outputs))
        # A caller may write to what is returned, so it must not be an input, a constant, or part of another output.
        roots = [b.root[n] for n in merged.outputs]
        self._copies = [root in b.borrowed or root in roots[:i] for i, root in enumerate(roots)]
        results = [b.values[n] for n in merged.outputs]
        self.first = [t.clone() if copy else t for t, copy in zip(results, self._copies, strict=True)]
        self._flat_calls = [(call.step, call.reads, call.writes, call.frees) for call in b.calls]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for tensors in the order of ``program.inputs``."""
        slots: list[Any] = [None] * len(self._names)
        for index, x in zip(self._inputs, inputs, strict=True):
            slots[index] = x
        writes = 0
        try:
            for step, reads, writes, frees in self._flat_calls:
                slots[writes] = step(*[slots[i] for i in reads])
                for i in frees:
                    slots[i] = None
        except (IndexError, RuntimeError) as error:
            raise _refusal(error, self._names[writes]) from error
        return [slots[i].clone() if copy else slots[i] for i, copy in zip(self._outputs, self._copies, strict=True)]

    def watch(self, inputs: Sequence[Tensor], feed: Mapping[str, Tensor], seen: Observer) -> None:
        """The same calls; ``seen`` gets each tensor before a later call may overwrite it; ``feed`` replaces results."""
        slots: list[Any] = [None] * len(self._names)
        for index, x in zip(self._inputs, inputs, strict=True):
            slots[index] = x
            seen(self._names[index], x)
        for call in self.calls:
            y = feed.get(call.name)
            if y is None:
                try:
                    y = call.step(*[slots[i] for i in call.reads])
                except (IndexError, RuntimeError) as error:
                    raise _refusal(error, call.name) from error
            elif y.dtype != call.dtype or tuple(y.shape) != call.shape:
                what = f"fed {y.dtype} of shape {tuple(y.shape)}, not {call.dtype} of {call.shape}"
                raise InputError(what, where=call.name, remedy="feed what this operation gives for these inputs")
            elif 0 not in call.strides:  # later steps were made for this layout
                y = torch.empty_strided(y.shape, call.strides, dtype=y.dtype).copy_(y)
            slots[call.writes] = y
            if call.name and call.name not in self._private:
                seen(call.name, y)
            for i in call.frees:
                slots[i] = None


def supported(op: Op) -> bool:
    """Return whether there is a rule for this kind."""
    return op.kind in RULES or op.is_float or op.kind == "dynamic_linear"


def _rows_key(op: Op) -> tuple[str, str]:
    """Operations of one key read the same quantized rows."""
    return op.inputs[0], op.attrs["granularity"]


def _within(step: Step, rows: int, name: str) -> Step:
    """Return ``step`` that refuses indices outside of a table of so many rows."""

    def checked(index: Tensor) -> Tensor:
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < rows:
            raise outside(name, f"indices from {int(index.min())} to {int(index.max())}, of {rows} rows")
        return step(index)

    return checked


def _build(ctx: OpContext, given: Sequence[Any], rows: int | None = None) -> tuple[Callable[..., Any], Tensor]:
    """Return the step and its first result on what is ``given``: its inputs, or their quantized rows.

    ``rows`` is the number of rows of a table whose indices have to be checked.
    """
    op = ctx.op
    try:
        step: Callable[..., Any]
        if op.kind == "dynamic_linear":
            step = dynamic_linear.lower_dynamic_linear(ctx)
        else:
            step = RULES[op.kind](ctx) if op.kind in RULES else lower_float(ctx)
            step = step if rows is None else _within(step, rows, op.name)
        # An op that may overwrite an input does so here, too, since nothing reads that input later.
        return step, step(*given)
    except IndexError as error:
        raise _refusal(error, op.name) from error
    except (RuntimeError, ValueError) as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in ctx.inputs)
        what, why = f"torch refused the {op.kind} on shapes {shapes}", str(error).strip().split("\n")[0]
        remedy = "run with engine='reference', and report this with the shapes above"
        raise EngineError(what, where=op.name, why=why, remedy=remedy) from error


def _refusal(error: Exception, name: str) -> IntactError:
    """Return an error of torch about an input, in this project's words."""
    why = str(error).strip().split("\n")[0]
    if isinstance(error, IndexError):
        return InputError("an index outside the table", where=name, why=why, remedy="look at what makes the indices")
    return EngineError("torch cannot run this input", where=name, why=why, remedy="run with engine='reference'")


def _check_result(ctx: OpContext, y: Tensor) -> None:
    """Later steps rely on the declared dtype and shape, down to addresses of memory."""
    dtype, wanted = str(y.dtype).removeprefix("torch."), ctx.out
    if dtype != wanted.dtype or not fits(wanted.shape, y.shape):
        made, declared = f"{dtype} of shape {tuple(y.shape)}", f"{wanted.dtype} of {show(wanted.shape)}"
        what = f"{ctx.op.kind} gave {made}, the program declares {declared}"
        raise EngineError(what, where=ctx.op.name, remedy="run with engine='reference', and report this")


def _shares_memory(y: Tensor, x: Tensor) -> bool:
    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel() > 0
