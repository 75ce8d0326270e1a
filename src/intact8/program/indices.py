"""Which indices are proved to lie inside the table they are for, by intervals of integers.

Inputs are checked before every call (``intact8.engines.binding``). What a network computes from them (positions,
argmax, casts) is followed here: an embedding whose indices no interval proves is checked by the engine while it runs,
and refused by engines that cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from intact8.opset import KINDS, Array, Call, Interval, Op
from intact8.opset.kind import UNKNOWN, Span

from .dimensions import batch_size, fixed, sizes_of
from .program import Program


def table_rows(program: Program) -> dict[str, int]:
    """Map int64 inputs to the rows of the shortest table that any of their elements may be an index of."""
    return _shortest(program, whole=False)


def bounded_inputs(program: Program) -> dict[str, int]:
    """Map int64 inputs all of whose elements are indices to the rows of the shortest table: no other may be given."""
    return _shortest(program, whole=True)


def _shortest(program: Program, *, whole: bool) -> dict[str, int]:
    sources = {name: frozenset([name]) for name in program.inputs if program.tensors[name].dtype == "int64"}
    found: dict[str, int] = {}
    for op in program.ops:
        kind = KINDS[op.kind]
        behind = frozenset[str]().union(*(sources.get(name, frozenset()) for name in op.inputs))
        if kind.rows_by_index:
            rows = len(op.arrays["weight"])
            found |= {name: min(rows, found.get(name, rows)) for name in behind}
        elif behind and kind.moves and (kind.keeps_elements or not whole):
            sources[op.name] = behind
    return found


def looked_up(program: Program) -> dict[str, int]:
    """Map what embeddings read, where moves alone made it of int64 inputs, to the rows of the shortest table.

    These tensors are looked at before every call, see :class:`Lookups`.
    """
    moved = {name for name in program.inputs if program.tensors[name].dtype == "int64"}
    found: dict[str, int] = {}
    for op in program.ops:
        if KINDS[op.kind].rows_by_index and op.inputs[0] in moved:
            rows = len(op.arrays["weight"])
            found[op.inputs[0]] = min(rows, found.get(op.inputs[0], rows))
        elif KINDS[op.kind].moves and op.inputs and moved.intersection(op.inputs):
            moved.add(op.name)
    return found


class Lookups:
    """Whether the indices of a call lie inside of the tables that they are for.

    Where a network reads some columns of an input with one table and some with another, each is held against its own.

    Args:
        program: checked.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rows = looked_up(program)
        self.inputs = table_rows(program) if self.rows else {}
        needed, self._moves = set(self.rows), []
        for position in reversed(range(len(program.ops))):
            op = program.ops[position]
            if op.name in needed:
                needed.update(op.inputs)
                self._moves.append(position)
        self._moves.reverse()
        # What a move adds (padding, stored values) is not in the inputs.
        self._adds = any(program.ops[i].kind in ("pad", "constant") for i in self._moves)
        self._sized: dict[tuple[int, ...], Program] = {}

    def outside(self, arrays: Mapping[str, Array]) -> tuple[str, int, int] | None:
        """Return the input that holds an index outside of its table, the index, and the rows; None where none does."""
        if not self.rows or any(not arrays[name].size for name in self.inputs):
            return None
        if not self._adds and all(_beyond(arrays[name], rows) is None for name, rows in self.inputs.items()):
            return None
        values = self._moved(arrays) if self._moves else arrays
        for name, rows in self.rows.items():
            found = _beyond(values[name], rows)
            if found is not None:
                return self._source(name, found, arrays), found, rows
        return None

    def _moved(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        sizes = sizes_of(self.program, arrays)
        key = tuple(sizes.values())
        program = self._sized.get(key)
        if program is None:
            if len(self._sized) >= SIZES:
                self._sized.clear()
            program = self._sized[key] = fixed(self.program, sizes)
        values, batch = dict(arrays), batch_size(program, arrays)
        for position in self._moves:
            op = program.ops[position]
            metas = [program.tensors[name] for name in op.inputs]
            call = Call(op, [values[name] for name in op.inputs], metas, program.tensors[op.name], batch)
            values[op.name] = KINDS[op.kind].evaluate(call)
        return values

    def _source(self, name: str, index: int, arrays: Mapping[str, Array]) -> str:
        """Return the first input that a tensor is made of and that holds the index, or that the tensor is made of."""
        made_of = {name: [name] for name in self.inputs}
        for op in (self.program.ops[i] for i in self._moves):
            made_of[op.name] = [source for x in op.inputs for source in made_of.get(x, [])]
        return next((source for source in made_of[name] if (arrays[source] == index).any()), made_of[name][0])


SIZES = 16
"""Sizes of named dimensions for which moves are remembered."""


def _beyond(array: Array, rows: int) -> int | None:
    """Return an element outside of 0 … rows − 1."""
    if not array.size:
        return None
    least, most = int(array.min()), int(array.max())
    return least if least < 0 else most if most >= rows else None


def unproved(program: Program) -> dict[str, int]:
    """Return the embeddings whose indices may lie outside of their table → its rows."""
    found: dict[str, int] = {}
    embeddings = [op for op in program.ops if KINDS[op.kind].rows_by_index]
    known = intervals(program) if embeddings else {}
    for op in embeddings:
        rows = len(op.arrays["weight"])
        low, high = known.get(op.inputs[0], (-1, -1))
        if low < 0 or high >= rows:
            found[op.name] = rows
    return found


def intervals(program: Program, given: Interval | None = None) -> dict[str, Interval]:
    """Return the least and largest value of the tensors of integers and truth values it is known of.

    Args:
        program: checked.
        given: what int64 inputs hold that no table is read with, where the engine looks.
    """
    known: dict[str, Interval] = {name: (0, rows - 1) for name, rows in bounded_inputs(program).items()}
    checked = looked_up(program)
    for name in program.inputs:
        dtype = program.tensors[name].dtype
        if dtype in ("bool", "uint8"):
            known[name] = (0, 1 if dtype == "bool" else 255)
        elif dtype == "int64" and given is not None and name not in known:
            known[name] = given
    floats: dict[str, Span] = {}
    for op in program.ops:
        interval = (0, checked[op.name] - 1) if op.name in checked else _interval(op, program, known)
        if op.kind == "float.cast" and program.tensors[op.name].dtype == "int64" and op.inputs[0] in floats:
            low, high = floats[op.inputs[0]]
            interval = math.floor(low) - 1, math.ceil(high) + 1  # what float32 rounds included
        if interval is not None and max(map(abs, interval)) < UNKNOWN[1]:
            known[op.name] = interval
        span = _span(op, program, floats)
        if span is not None and max(map(abs, span)) < UNKNOWN[1]:
            floats[op.name] = span
    return known


def _span(op: Op, program: Program, floats: dict[str, Span]) -> Span | None:
    """Return the ends of a float32 result; None where nothing is known of its operands: they may hold NaN."""
    kind, inputs = KINDS[op.kind], [program.tensors[name] for name in op.inputs]
    spans = [floats[name] for name, t in zip(op.inputs, inputs, strict=True) if not t.quantized and name in floats]
    if program.tensors[op.name].dtype != "float32" or len(spans) + sum(t.quantized for t in inputs) != len(inputs):
        return None
    return kind.span(op, spans, inputs)


def _interval(op: Op, program: Program, known: dict[str, Interval]) -> Interval | None:
    """Return the least and largest value of an op's result; None where nothing is known, or it holds no integers."""
    dtype = program.tensors[op.name].dtype
    if dtype != "int64":
        return {"bool": (0, 1), "uint8": (0, 255)}.get(dtype)
    intervals = [known.get(name, UNKNOWN) for name in op.inputs]
    return KINDS[op.kind].interval(op, intervals, [program.tensors[name] for name in op.inputs])
