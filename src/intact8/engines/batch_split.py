"""Whether a program treats the samples of a batch independently, so that a batch may be run in parts."""

from __future__ import annotations

from intact8.opset import KINDS, Op, Tensor
from intact8.opset.shapes import elements
from intact8.program.dimensions import fixed
from intact8.program.program import Program

PROBES = (101, 103)
"""Sizes that named dimensions are given in turn."""


def is_sample_wise(program: Program) -> bool:
    """Return whether running parts of a batch and joining the results along dimension 0 gives the result of the whole
    batch.

    This is proved for programs in which every tensor has at most one dimension that grows with the batch, each sample
    has whole rows of it, and no operation works along it.

    Example:
        >>> x, y = (Tensor(n, "float32", (None, 4)) for n in "xy")
        >>> is_sample_wise(Program({"x": x, "y": y}, (Op("y", "float.softmax", ("x",), {"axis": 1}),), ("x",), ("y",)))
        True
        >>> is_sample_wise(Program({"x": x, "y": y}, (Op("y", "float.softmax", ("x",), {"axis": 0}),), ("x",), ("y",)))
        False
    """
    if program.dimensions:  # two primes, so that no size fits by chance
        least = {name: limits[0] - 1 for name, limits in program.dimensions.items()}
        return all(is_sample_wise(fixed(program, {name: n + more for name, more in least.items()})) for n in PROBES)
    tensors = program.tensors
    if any(t.shape.count(None) > 1 for t in tensors.values()):
        return False
    rows = {name: int(None in tensors[name].shape) for name in program.inputs}
    for op in program.ops:
        found = _rows(op, [(tensors[n], rows[n]) for n in op.inputs], tensors[op.name])
        if found is None:
            return False
        rows[op.name] = found
    ends = [tensors[n] for n in (*program.inputs, *program.outputs)]
    return all(rows[n] for n in program.outputs) and all(None not in t.shape[1:] for t in ends)


def _rows(op: Op, inputs: list[tuple[Tensor, int]], out: Tensor) -> int | None:
    """Return the rows per sample in the batch dimension of ``out``, 0 without one; None where samples may mix."""
    batched = [(t, rows) for t, rows in inputs if rows]
    if not batched:
        return int(None in out.shape)
    rows = batched[0][1]
    kind = KINDS[op.kind]
    if None not in out.shape or any(other != rows for _, other in batched):
        return None
    if any(kind.works_along(op, t, t.shape.index(None)) for t, _ in batched):
        return None
    if op.kind == "reshape":
        return _reshaped(batched[0][0], rows, out)
    aligned = all(len(t.shape) - t.shape.index(None) == len(out.shape) - out.shape.index(None) for t, _ in batched)
    return rows if aligned or not kind.aligned else None


def _reshaped(t: Tensor, rows: int, out: Tensor) -> int | None:
    """Return the rows per sample behind a reshape that keeps the elements before the batch dimension; None for
    others."""
    (first, inner), (after, outer) = _around(t), _around(out)
    if first != after or outer == 0 or rows * inner % outer or rows * inner == 0:
        return None
    return rows * inner // outer


def _around(t: Tensor) -> tuple[int, int]:
    """Return the numbers of elements before and behind the batch dimension."""
    at = t.shape.index(None)
    return elements(t.shape[:at]), elements(t.shape[at + 1 :])
