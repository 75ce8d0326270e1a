"""Histograms of the integers of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from intact8.diagnose.report.contents import Integers
from intact8.engines import get_runner
from intact8.opset.op import Array, Op
from intact8.program.program import Program


def count_integers(
    program: Program, batches: Iterable[Mapping[str, Array]], engine: str
) -> tuple[dict[str, Integers], int]:
    """Return tensor name → its histogram over all batches of inputs by name; and the number of samples."""
    runner = get_runner(program, engine)
    counts = {name: np.zeros(256, np.int64) for name in program.integer_tensors()}
    samples = 0
    for batch in batches:
        found = runner.tensors(batch)
        for name in counts:
            counts[name] += np.bincount(found[name].ravel(), minlength=256)
        samples += next((len(a) for a in batch.values() if a.ndim), 1)
    clamps = {op.name: clamp(op) for op in program.ops}
    return {name: _summary(c, *clamps.get(name, (0, 255))) for name, c in counts.items() if c.any()}, samples


def clamp(op: Op) -> tuple[int, int]:
    """Return the smallest and the largest integer an operation can give."""
    return int(op.attrs.get("lo", 0)), int(op.attrs.get("hi", 255))


def _summary(counts: Array, low: int, high: int) -> Integers:
    total = int(counts.sum())
    return Integers(
        counts=tuple(counts.tolist()),
        used=float(np.count_nonzero(counts[low : high + 1]) / (high - low + 1)),
        at_low=float(counts[low] / total),
        at_high=float(counts[high] / total),
    )
