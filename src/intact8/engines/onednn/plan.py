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
from intact8.program.indices import unproved
from intact8.program.inputs import outside
from intact8.program.program import Program

from ..binding import batch_size
from . import attention, conv_linear, dynamic_linear, elementwise, moves, pools, softmax_norms
from .floats import lower_float
from .lowering import OpContext, Packed, Step
from .matmul import lower_matmul
from .merge_linear import merged
from .recurrent import lower_recurrent

LOWER: dict[str, Callable[[OpContext], Step]] = {
    "quantize": elementwise.lower_quantize,
    "dequantize": elementwise.lower_dequantize,
    "conv": conv_linear.lower_conv,
    "linear": conv_linear.lower_linear,
    "add": elementwise.lower_add,
    "mul": elementwise.lower_mul,
    "matmul": lower_matmul,
    "mean": pools.lower_mean,
    "avg_pool": pools.lower_avg_pool,
    "adaptive_avg_pool": pools.lower_adaptive_avg_pool,
    "table": elementwise.lower_table,
    **softmax_norms.LOWER,
    "decoded_embedding": dynamic_linear.lower_decoded_embedding,
    "float.decoded_linear": dynamic_linear.lower_decoded_linear,
    "float.attention": attention.lower_attention,
    "lstm": lower_recurrent,
    "gru": lower_recurrent,
    "rnn": lower_recurrent,
    "max_pool": pools.lower_max_pool,
    **moves.LOWER,
}
"""Kind → rule. Other kinds ``float.NAME`` go to torch's float operations; ``dynamic_linear`` reads quantized rows."""

Observer = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class _Line:
    """One step of the plan: slots it reads, the slot it fills, slots nobody needs afterwards.

    One without a name quantizes rows, for all operations that read them.
    """

    name: str
    step: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int
    frees: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


class Plan:
    """A program for inputs of fixed shapes, dtypes and strides. Calls are independent of each other (thread-safe).

    With ``every``, every tensor of the program is made; otherwise float attentions are one call.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        packs: MutableMapping[tuple[Any, ...], Packed],
        isa: str,
        every: bool,
    ) -> None:
        whole, program = program, merged(program)
        self._private = set(program.tensors) - set(whole.tensors)
        spatial = read_as_images(program)
        self._names = [*program.inputs, *(op.name for op in program.ops)]
        slot = {name: i for i, name in enumerate(self._names)}
        self._inputs = [slot[n] for n in program.inputs]
        self._outputs = [slot[n] for n in program.outputs]
        last = {name: i for i, op in enumerate(program.ops) for name in op.inputs}
        kept = set(program.outputs)
        values: dict[str, Tensor] = dict(zip(program.inputs, inputs, strict=True))
        root = {name: name for name in program.inputs}
        borrowed = set(program.inputs)
        batch = batch_size(program, values)
        self._lines: list[_Line] = []
        self._held: list[Packed] = []
        rows: dict[Any, tuple[int, dynamic_linear.Rows]] = {}
        loose = unproved(program)
        last_rows = {_rows_key(op): i for i, op in enumerate(program.ops) if op.kind == "dynamic_linear"}
        whole_chains = {} if every else attention.chains(program)
        chains: dict[str, attention.Chain] = {}
        for i, op in enumerate(program.ops):
            chain = whole_chains.get(op.name)
            if chain is not None:
                chains |= dict.fromkeys((*chain.inner, chain.op.name), chain)
                last |= {n: max(last[n], chain.end) for n in chain.op.inputs}
            if op.name in chains:
                if op.name in chains[op.name].inner:
                    continue
                op = chains[op.name].op
            tensors = [values[n] for n in op.inputs]
            mine = _last_readers(op, i, root, last, kept, borrowed)
            ctx = OpContext(
                op,
                tensors,
                [program.tensors[n] for n in op.inputs],
                program.tensors[op.name],
                mine,
                packs,
                isa,
                self._held,
                op.name in spatial,
                batch,
            )
            reads, given = tuple(slot[n] for n in op.inputs), list[Any](tensors)
            if op.kind == "dynamic_linear":
                key = _rows_key(op)
                if key not in rows:
                    quantize = dynamic_linear.quantizer(op.attrs["granularity"])
                    rows[key] = len(self._names), quantize(tensors[0])
                    self._names.append("")
                    self._lines.append(_Line("", quantize, reads, rows[key][0], (), (), (), torch.uint8))
                reads, given = (rows[key][0],), [rows[key][1]]
            step, y = _build(ctx, given, loose.get(op.name))
            _check_result(ctx, y)
            root[op.name] = next((root[n] for n, t in zip(op.inputs, tensors, strict=True) if _shares(y, t)), op.name)
            if op.kind == "constant":
                borrowed.add(op.name)
            values[op.name] = y
            dead = tuple(slot[n] for n in dict.fromkeys(op.inputs) if last[n] == i and n not in kept)
            if op.name not in last and op.name not in kept:
                dead = (*dead, slot[op.name])
            if op.kind == "dynamic_linear" and last_rows[_rows_key(op)] == i:
                dead = (*dead, rows.pop(_rows_key(op))[0])
            made = (y.stride(), tuple(y.shape), y.dtype)
            self._lines.append(_Line(op.name, step, reads, slot[op.name], dead, *made))
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
        writes = 0
        try:
            for step, reads, writes, frees in self._calls:
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
        for line in self._lines:
            y = feed.get(line.name)
            if y is None:
                try:
                    y = line.step(*[slots[i] for i in line.reads])
                except (IndexError, RuntimeError) as error:
                    raise _refusal(error, line.name) from error
            elif y.dtype != line.dtype or tuple(y.shape) != line.shape:
                raise InputError(
                    f"fed {y.dtype} of shape {tuple(y.shape)}, not {line.dtype} of {line.shape}", where=line.name,
                    remedy="feed what this operation gives for these inputs",
                )  # fmt: skip
            elif 0 not in line.strides:  # later steps were made for this layout
                y = torch.empty_strided(y.shape, line.strides, dtype=y.dtype).copy_(y)
            slots[line.writes] = y
            if line.name and line.name not in self._private:
                seen(line.name, y)
            for i in line.frees:
                slots[i] = None


IMAGES = frozenset({"conv", "max_pool", "avg_pool", "adaptive_avg_pool", "upsample"})
"""Kinds with channels in dimension 1."""

SAME_DIMENSIONS = frozenset({"pad", "slice", "cat", "roll", "table", "add", "mul", "mean"})
"""Kinds whose result has the dimensions of their operands: what is best for its readers is best for theirs."""


def read_as_images(program: Program) -> set[str]:
    """Tensors that operations on images read, directly or after others that keep their dimensions."""
    found: set[str] = set()
    for op in reversed(program.ops):
        if op.kind in IMAGES or (op.kind in SAME_DIMENSIONS and op.name in found):
            found.update(op.inputs)
    return found


def supported(op: Op) -> bool:
    """Whether there is a rule for this kind."""
    return op.kind in LOWER or op.is_float or op.kind == "dynamic_linear"


def _rows_key(op: Op) -> tuple[str, str]:
    """Operations of one key read the same quantized rows."""
    return op.inputs[0], op.attrs["granularity"]


def _within(step: Step, rows: int, name: str) -> Step:
    """``step`` behind a look at its indices."""

    def checked(index: Tensor) -> Tensor:
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < rows:
            raise outside(name, f"indices from {int(index.min())} to {int(index.max())}, of {rows} rows")
        return step(index)

    return checked


def _build(ctx: OpContext, given: Sequence[Any], rows: int | None = None) -> tuple[Callable[..., Any], Tensor]:
    """The step and its first result, on what it is ``given``: its inputs, or their quantized rows.

    ``rows``: of a table whose indices have to be looked at.
    """
    op = ctx.op
    try:
        step: Callable[..., Any]
        if op.kind == "dynamic_linear":
            step = dynamic_linear.lower_dynamic_linear(ctx)
        else:
            step = LOWER[op.kind](ctx) if op.kind in LOWER else lower_float(ctx)
            step = step if rows is None else _within(step, rows, op.name)
        # An op that may overwrite an input does so here, too: nobody reads that input later.
        return step, step(*given)
    except IndexError as error:
        raise _refusal(error, op.name) from error
    except (RuntimeError, ValueError) as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in ctx.inputs)
        raise EngineError(
            f"torch refused the {op.kind} on shapes {shapes}",
            where=op.name,
            why=str(error).strip().split("\n")[0],
            remedy="run with engine='reference', and report this with the shapes above",
        ) from error


def _refusal(error: Exception, name: str) -> IntactError:
    """What torch says of an input, in this project's words."""
    why = str(error).strip().split("\n")[0]
    if isinstance(error, IndexError):
        return InputError("an index outside the table", where=name, why=why, remedy="look at what makes the indices")
    return EngineError("torch cannot run this input", where=name, why=why, remedy="run with engine='reference'")


def _check_result(ctx: OpContext, y: Tensor) -> None:
    """What follows relies on the dtype and shape that the program declares, down to addresses of memory."""
    dtype, wanted = str(y.dtype).removeprefix("torch."), ctx.out
    if dtype != wanted.dtype or not fits(wanted.shape, y.shape):
        raise EngineError(
            f"{ctx.op.kind} gave {dtype} of shape {tuple(y.shape)}, the program declares {wanted.dtype} of "
            f"{show(wanted.shape)}", where=ctx.op.name, remedy="run with engine='reference', and report this",
        )  # fmt: skip


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
