"""Tables as functions: evaluated by OpenVINO inside the kernel before them, where all 256 entries come out right.

A table whose entries are R(f(v)/s_y + δ) for one small δ keeps every entry away from its rounding boundaries by a
margin; δ goes into the input range of the FakeQuantize. A margin of a thousandth of a step is usual, and what single
precision errs by is a tenth of that. Tables no function fits are indexed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from intact.arithmetic.functions64 import unary64
from intact.program.ops import Array, Op
from intact.program.program import Program

from .elementwise import gathered
from .unary import unary
from .values import LEVELS, Port, Site, Value, clamped, constant, fake_quantize, port, times

FUNCTIONS = ("hardswish", "silu", "sigmoid", "hardsigmoid", "tanh", "gelu", "mish", "elu", "softplus")
"""Functions OpenVINO's kernels evaluate to a few units in the last place."""

IDENTITY = "identity"
"""Requantization and clamps: v itself."""

MARGIN = 4e-4
"""Smallest distance, in output steps, of any entry from its rounding boundaries: 2⁻²⁴·256 is one rounding."""


@dataclass(frozen=True)
class Function:
    """How a table is evaluated.

    Attributes:
        fn: of FUNCTIONS, or IDENTITY.
        lo, hi: the clamp.
        shift: δ, in output steps.
        x_scale, y_scale: real value of one input and output step.
    """

    fn: str
    lo: int
    hi: int
    shift: float
    x_scale: float
    y_scale: float


def fit(op: Op, program: Program) -> Function | None:
    """The function that gives the table, or None."""
    name = str(op.attrs["fn"])
    fn = name if name in FUNCTIONS else IDENTITY
    x, y = program.tensors[op.inputs[0]], program.tensors[op.name]
    table = op.arrays["table"].astype(np.int64)
    s_x, z_x, s_y, z_y = float(x.scale or 1), int(x.zero_point or 0), float(y.scale or 1), int(y.zero_point or 0)
    v = (np.arange(LEVELS, dtype=np.float64) - z_x) * s_x
    exact = (v if fn == IDENTITY else unary64(fn, {}, v)) / s_y
    lo, hi = (int(table.min()), int(table.max())) if fn == IDENTITY else (0, LEVELS - 1)
    steps = table - z_y
    # Entries at an end of the clamp may lie anywhere beyond it.
    up = np.where(table == hi, np.inf, steps + 0.5 - exact).min()
    down = np.where(table == lo, np.inf, exact - (steps - 0.5)).min()
    if up + down < 2 * MARGIN or not np.isfinite(exact).all():
        return None
    shift = 0.0 if min(up, down) > 10 * MARGIN else float(np.clip((up - down) / 2, -0.5, 0.5))
    return Function(fn, lo, hi, shift, s_x, s_y)


def fits(program: Program) -> dict[str, Function]:
    """The tables that are evaluated: those a function fits, checked on all 256 integers by OpenVINO itself."""
    found = {}
    for op in program.ops:
        if op.kind == "table":
            function = fit(op, program)
            if function is not None:
                found[op.name] = function
    wrong = _wrong(found, program)
    return {name: f for name, f in found.items() if name not in wrong}


def table(site: Site, function: Function | None) -> Value:
    """table[x]."""
    if function is None:
        return gathered(site)
    x = site.inputs[0]
    y = evaluated(x.port, function.x_scale / x.steps, function, site.z, site.unit)
    return Value(y, site.unit, site.z)


def evaluated(x: Port, factor: float, f: Function, z: int, unit: float) -> Port:
    """R(f(x·factor)/s_y + δ) + z, as (q − z)·unit."""
    step = f.y_scale
    if f.fn == IDENTITY:
        # No function between: the factor goes into the step, and the kernel before sees a requantization only.
        step /= factor
        y = x
    else:
        y = unary({"fn": f.fn}, times(x, factor))
    if f.lo > 0 or f.hi < LEVELS - 1:
        y = clamped(y, z, f.lo, f.hi, step, relu=True)
    return fake_quantize(y, z, step, unit, f.shift)


def _wrong(functions: Mapping[str, Function], program: Program) -> set[str]:
    """Tables whose function OpenVINO evaluates to other integers, all 256 compared."""
    if not functions:
        return set()
    every = ov.parameter([1, LEVELS, 1, 1], np.float32)
    results, names = [], list(functions)
    for name in names:
        f = functions[name]
        z_x = program.tensors[_source(program, name)].zero_point or 0
        centered = port(ov.subtract(port(every), constant(float(z_x))))
        results.append(ov.result(evaluated(centered, f.x_scale, f, int(program.tensors[name].zero_point or 0), 1.0)))
    model = openvino.Model(results, [every], "tables")
    from .requests import compile_model

    compiled = compile_model(model, None)
    given = compiled([np.arange(LEVELS, dtype=np.float32).reshape(1, LEVELS, 1, 1)])
    wrong = set()
    for i, name in enumerate(names):
        got: Array = np.asarray(given[i]).reshape(-1) + int(program.tensors[name].zero_point or 0)
        if not np.array_equal(got, _table(program, name)):
            wrong.add(name)
    return wrong


def _op(program: Program, name: str) -> Op:
    return next(op for op in program.ops if op.name == name)


def _source(program: Program, name: str) -> str:
    return _op(program, name).inputs[0]


def _table(program: Program, name: str) -> Any:
    return _op(program, name).arrays["table"]
