"""Where NaN and infinity can arise: what engines whose operators leave them out have to look after."""

from __future__ import annotations

import math

from intact8.opset import KINDS, Op
from intact8.program.program import Program


def nonfinite_tensors(program: Program) -> frozenset[str]:
    """Return the float tensors that may hold NaN or infinity: what a caller gives, what some functions make, and what
    follows.

    Results of ``dequantize`` and of everything computed from integers are finite, so most islands hold none.
    """
    found = {name for name in program.inputs if program.tensors[name].dtype == "float32"}
    for op in program.ops:
        if program.tensors[op.name].dtype == "float32" and (_creates(op) or not found.isdisjoint(op.inputs)):
            found.add(op.name)
    return frozenset(found)


def _creates(op: Op) -> bool:
    stored = any(a.dtype.kind == "f" and not math.isfinite(a.sum(dtype="float64")) for a in op.arrays.values())
    kind = KINDS[op.kind]
    return kind.creates_special(op) or (stored and kind.domain in ("float", "any"))
