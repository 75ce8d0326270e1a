"""Which indices are proved to lie inside the table they are for, by intervals of integers.

Inputs are checked before every call (``intact.engines.binding``). What a network computes from them (positions,
argmax, casts) is followed here: an embedding whose indices no interval proves is checked by the engine while it runs,
and refused by engines that cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .kinds import KINDS
from .ops import EMBEDDINGS, Op
from .program import Program

Interval = tuple[int, int]

Span = tuple[float, float]

LARGEST = 1 << 62
"""Integers beyond are not followed: int64 might wrap around."""


def table_rows(program: Program) -> dict[str, int]:
    """int64 inputs that embeddings read as they are, or after moves → rows of the shortest table."""
    sources = {name: frozenset([name]) for name in program.inputs if program.tensors[name].dtype == "int64"}
    found: dict[str, int] = {}
    for op in program.ops:
        behind = frozenset[str]().union(*(sources.get(name, frozenset()) for name in op.inputs))
        if op.kind in EMBEDDINGS:
            rows = len(op.arrays["weight"])
            found |= {name: min(rows, found.get(name, rows)) for name in behind}
        elif behind and KINDS[op.kind].domain == "any":
            sources[op.name] = behind
    return found


def unproved(program: Program) -> dict[str, int]:
    """Embeddings whose indices may lie outside of their table → its rows."""
    found: dict[str, int] = {}
    embeddings = [op for op in program.ops if op.kind in EMBEDDINGS]
    known = intervals(program) if embeddings else {}
    for op in embeddings:
        rows = len(op.arrays["weight"])
        low, high = known.get(op.inputs[0], (-1, -1))
        if low < 0 or high >= rows:
            found[op.name] = rows
    return found


def intervals(program: Program, given: Interval | None = None) -> dict[str, Interval]:
    """Least and largest value of the tensors of integers and truth values it is known of.

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
        if interval is not None and max(map(abs, interval)) < LARGEST:
            known[op.name] = interval
        span = _span(op, program, floats)
        if span is not None and max(map(abs, span)) < LARGEST:
            floats[op.name] = span
    return known


def _span(op: Op, program: Program, floats: dict[str, Span]) -> Span | None:
    """Ends of a float32 result that follows from integers by moves, sums and products with numbers, and clamps."""
    t = op.attrs
    if op.kind == "dequantize":
        of = program.tensors[op.inputs[0]]
        scale, zero = float(of.scale or 1.0), int(of.zero_point or 0)
        return -zero * scale, (255 - zero) * scale
    if program.tensors[op.name].dtype != "float32" or not all(name in floats for name in op.inputs) or not op.inputs:
        return None
    low, high = floats[op.inputs[0]]
    if op.kind == "float.affine_scalar":
        ends = [v * float(t["mul"]) + float(t["add"]) for v in (low, high)]
        return min(ends), max(ends)
    if op.kind in ("float.clamp", "float.relu"):
        least, most = (0.0, None) if op.kind == "float.relu" else (t["min"], t["max"])
        low, high = (v if least is None else max(v, float(least)) for v in (low, high))
        return (low, high) if most is None else (min(low, float(most)), min(high, float(most)))
    return (low, high) if op.kind in ("reshape", "permute", "slice", "expand", "roll") else None


def _interval(op: Op, program: Program, known: dict[str, Interval]) -> Interval | None:
    """Least and largest value of an op's result; None where nothing is known, or it holds no integers."""
    dtype, t = program.tensors[op.name].dtype, op.attrs
    if dtype == "bool":
        return 0, 1
    if dtype != "int64":
        return (0, 255) if dtype == "uint8" else None
    if op.kind == "constant":
        return int(op.arrays["value"].min()), int(op.arrays["value"].max())
    if op.kind == "float.reduce" and t["fn"] == "argmax":
        sizes = program.tensors[op.inputs[0]].shape
        size = sizes[t["dims"][0]] if t["dims"] else None
        return (0, size - 1) if isinstance(size, int) else None
    if op.kind == "float.clamp":
        low, high = known.get(op.inputs[0], (-LARGEST, LARGEST))
        least, most = (int(v) if isinstance(v, int) else None for v in (t["min"], t["max"]))
        if least is not None:
            low, high = max(low, least), max(high, least)
        return (low, high) if most is None else (min(low, most), min(high, most))
    if not all(name in known for name in op.inputs):
        return None
    return _combined(op, program, [known[name] for name in op.inputs])


def _combined(op: Op, program: Program, x: list[Interval]) -> Interval | None:
    t = op.attrs
    if KINDS[op.kind].domain == "any":
        ends = [*x, *([(int(t["value"]),) * 2] if op.kind == "pad" else [])]
        return min(low for low, _ in ends), max(high for _, high in ends)
    if op.kind in ("float.cast", "float.relu") or (op.kind == "float.reduce" and t["fn"] in ("amax", "amin")):
        return x[0] if op.kind != "float.relu" else (max(x[0][0], 0), max(x[0][1], 0))
    if op.kind == "float.reduce" and t["fn"] == "sum":
        terms = _terms(program.tensors[op.inputs[0]].shape, t["dims"])
        return None if terms is None else (terms * x[0][0], terms * x[0][1])
    if op.kind == "float.add":
        return x[0][0] + x[1][0], x[0][1] + x[1][1]
    if op.kind == "float.sub":
        return x[0][0] - x[1][1], x[0][1] - x[1][0]
    if op.kind == "float.mul":
        return _ends([a * b for a in x[0] for b in x[1]])
    if op.kind == "float.affine_scalar" and float(t["mul"]).is_integer() and float(t["add"]).is_integer():
        return _ends([v * int(t["mul"]) + int(t["add"]) for v in x[0]])
    if op.kind == "float.masked_fill" and float(t["value"]).is_integer():
        return _ends([*x[0], int(t["value"])])
    return None


def _terms(shape: Sequence[int | str | None], dims: list[int]) -> int | None:
    """Elements of a sum; None where that depends on the input."""
    sizes = [shape[d] for d in dims] if dims else shape
    whole = [d for d in sizes if isinstance(d, int)]
    return math.prod(whole) if len(whole) == len(sizes) else None


def _ends(values: list[int]) -> Interval:
    return min(values), max(values)


__all__ = ["intervals", "table_rows", "unproved"]
