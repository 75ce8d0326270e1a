"""Which indices are proved to lie inside the table they are for, by intervals of integers.

Inputs are checked before every call (``intact8.program.binding``). What a network computes from them (positions,
argmax, casts) is followed here: an embedding whose indices no interval proves is checked by the engine while it runs,
and refused by engines that cannot.
"""

from __future__ import annotations

import math

from intact8.opset import KINDS, Interval, Op
from intact8.opset.kind import UNKNOWN, Span

from .program import Program


def table_rows(program: Program) -> dict[str, int]:
    """Map int64 inputs that embeddings read as they are, or after moves, to the rows of the shortest table."""
    sources = {name: frozenset([name]) for name in program.inputs if program.tensors[name].dtype == "int64"}
    found: dict[str, int] = {}
    for op in program.ops:
        behind = frozenset[str]().union(*(sources.get(name, frozenset()) for name in op.inputs))
        if KINDS[op.kind].rows_by_index:
            rows = len(op.arrays["weight"])
            found |= {name: min(rows, found.get(name, rows)) for name in behind}
        elif behind and KINDS[op.kind].moves:
            sources[op.name] = behind
    return found


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
    known: dict[str, Interval] = {name: (0, rows - 1) for name, rows in table_rows(program).items()}
    for name in program.inputs:
        dtype = program.tensors[name].dtype
        if dtype in ("bool", "uint8"):
            known[name] = (0, 1 if dtype == "bool" else 255)
        elif dtype == "int64" and given is not None and name not in known:
            known[name] = given
    floats: dict[str, Span] = {}
    for op in program.ops:
        interval = _interval(op, program, known)
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
