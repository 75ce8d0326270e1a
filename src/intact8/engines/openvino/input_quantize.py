"""Quantizing inputs inside the model: clamp(R(x / s) + z, lo, hi) by an IEEE division, as the contract asks.

OpenVINO (2026.4) turns every Divide into a multiplication with 1/s, which is another function, unless the node carries
a runtime attribute that OpenVINO's own passes use where shapes are computed. That it helps is not taken on trust: every
quantization is compared with the definition on all values next to its rounding boundaries, and numpy does those that
differ. A product's kernel, or another one before, would take the Divide in as a multiplication all the same: what a
model computes itself is divided behind ``lowering.fusion_barrier``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.arithmetic.affine import quantize
from intact8.engines.openvino.compile import compile_model
from intact8.engines.openvino.lowering import Port, port, scalar
from intact8.opset.op import Array, Op
from intact8.program.program import Program

KEEP_DIVISION = "nonconvertable_divide_0"
"""OpenVINO's runtime attribute (its spelling) that keeps a Divide a division."""

QUANTIZES = "intact8_quantizes"
"""Runtime attribute of the Divide of a quantization."""

NEIGHBOURS = 4
"""Floats tried on each side of every boundary: 1/s and the product err by less than two units in the last place."""


class Grid(NamedTuple):
    """What a ``quantize`` op rounds to: clamp(R(x / scale) + zero, lo, hi)."""

    scale: float
    zero: int
    lo: int
    hi: int

    @staticmethod
    def of(op: Op, program: Program) -> Grid:
        """That of a ``quantize`` op."""
        t = program.tensors[op.name]
        return Grid(float(t.scale or 1.0), int(t.zero_point or 0), int(op.attrs["lo"]), int(op.attrs["hi"]))


def quotient(x: Port, y: Port) -> Port:
    """Build x / y by a node that OpenVINO keeps a division."""
    node = ov.divide(x, y)
    node.get_rt_info()[KEEP_DIVISION] = True
    return port(node)


def divided(x: Port, grid: Grid) -> Port:
    """Build uint8 integers of float32 ``x``. What NaN becomes is not defined."""
    # Clamped before z is added, so that nothing large loses digits.
    steps = quotient(x, scalar(grid.scale))
    steps.get_node().get_rt_info()[QUANTIZES] = True
    steps = port(ov.round(steps, "half_to_even"))
    steps = port(ov.clamp(steps, float(grid.lo - grid.zero), float(grid.hi - grid.zero)))
    return port(ov.convert(port(ov.add(steps, scalar(grid.zero))) if grid.zero else steps, np.uint8))


def proved(program: Program) -> frozenset[str]:
    """Return the names of the ``quantize`` ops of float32 tensors that OpenVINO evaluates exactly on this machine."""
    tensors = program.tensors
    ops = [op for op in program.ops if op.kind == "quantize" and tensors[op.inputs[0]].dtype == "float32"]
    grids = {op.name: Grid.of(op, program) for op in ops}
    exact = _exact(tuple(sorted(set(grids.values()))))
    return frozenset(name for name, grid in grids.items() if grid in exact)


def boundaries(grid: Grid) -> Array:
    """Build Float32 values around all x where R(x / scale) changes between two uint8 integers, and the extremes;
    (N,)."""
    with np.errstate(over="ignore"):
        ties = ((np.arange(-1, 256) - grid.zero + 0.5) * np.float64(np.float32(grid.scale))).astype(np.float32)
    found = [ties]
    for end in (np.float32(np.inf), np.float32(-np.inf)):
        x = ties
        for _ in range(NEIGHBOURS):
            x = np.nextafter(x, end)
            found.append(x)
    largest = np.finfo(np.float32).max
    return np.concatenate([*found, np.array([0.0, -0.0, largest, -largest, np.inf, -np.inf], np.float32)])


@lru_cache(maxsize=16)
def _exact(grids: tuple[Grid, ...]) -> frozenset[Grid]:
    if not grids:
        return frozenset()
    x = [boundaries(grid) for grid in grids]
    inputs = [ov.parameter([1, len(v)], np.float32) for v in x]
    results = [ov.result(divided(port(p), grid)) for p, grid in zip(inputs, grids, strict=True)]
    given = compile_model(openvino.Model(results, inputs, "quantize"), 1)([v[None] for v in x])
    want = [quantize(v, np.float32(g.scale), g.zero, g.lo, g.hi) for v, g in zip(x, grids, strict=True)]
    return frozenset(g for i, g in enumerate(grids) if np.array_equal(given[i][0], want[i]))
