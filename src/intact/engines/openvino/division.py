"""Quantizing inputs inside the model: clamp(R(x / s) + z, lo, hi) by an IEEE division, as the contract asks.

OpenVINO (2026.4) turns every Divide into a multiplication with 1/s, which is another function, unless the node carries
a runtime attribute that OpenVINO's own passes use where shapes are computed. That it helps is not taken on trust: every
quantization is compared with the definition on all values next to its rounding boundaries, and numpy does those that
differ.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import openvino
from openvino import opset14 as ov

from intact.arithmetic.affine import quantize
from intact.program.ops import Array, Op
from intact.program.program import Program

from .values import Port, port, scalar

KEEP_DIVISION = "nonconvertable_divide_0"
"""OpenVINO's runtime attribute (its spelling) that keeps a Divide a division."""

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


def divided(x: Port, grid: Grid) -> Port:
    """uint8 integers of float32 ``x``. What NaN becomes is not defined."""
    node = ov.divide(x, scalar(grid.scale))
    node.get_rt_info()[KEEP_DIVISION] = True
    # Clamped before z is added, so that nothing large loses digits.
    steps = port(ov.round(port(node), "half_to_even"))
    steps = port(ov.clamp(steps, float(grid.lo - grid.zero), float(grid.hi - grid.zero)))
    return port(ov.convert(port(ov.add(steps, scalar(grid.zero))) if grid.zero else steps, np.uint8))


def proved(program: Program) -> frozenset[str]:
    """Names of the ``quantize`` ops of float32 program inputs that OpenVINO evaluates exactly on this machine."""
    floats = {name for name in program.inputs if program.tensors[name].dtype == "float32"}
    ops = [op for op in program.ops if op.kind == "quantize" and op.inputs[0] in floats]
    return frozenset(op.name for op in ops if _exact(Grid.of(op, program)))


def boundaries(grid: Grid) -> Array:
    """Float32 values around all x where R(x / scale) changes between two uint8 integers, and the extremes; (N,)."""
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


@lru_cache(maxsize=64)
def _exact(grid: Grid) -> bool:
    from .requests import compile_model

    x = boundaries(grid)
    parameter = ov.parameter([1, len(x)], np.float32)
    model = openvino.Model([ov.result(divided(port(parameter), grid))], [parameter], "quantize")
    given = compile_model(model, 1)([x[None]])[0]
    return bool((given[0] == quantize(x, np.float32(grid.scale), grid.zero, grid.lo, grid.hi)).all())
