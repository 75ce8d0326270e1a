"""Tables as functions: evaluated by OpenVINO inside the kernel of the product before them; all others are indexed.

Nothing but the end of a product's own kernel is trusted with that: it computes in float32 what stands in the model.
Anywhere else OpenVINO's low precision passes come first. Before a Clamp of uint8 integers (2026.4), say, they move the
multiplication behind it, and its ends, which then are no integers, are cut to integers.

So a table is evaluated where it is the only reader of a product, where OpenVINO gives all its 256 entries behind a
product, and where the compiled model shows that it became part of a product's kernel for the same instruction set (see
``execution_graph``): oneDNN evaluates functions of 256 arguments there with the code that gave the entries.

A table whose entries are R(f(v)/s_y + δ) for one small δ keeps every entry away from its rounding boundaries by a
margin; δ goes into the input range of the FakeQuantize. A margin of a thousandth of a step is usual, and what single
precision errs by is a tenth of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.arithmetic.unary_functions import unary64
from intact8.opset.op import Array, Op
from intact8.program.program import Program

from .compile import compile_model
from .elementwise import indexed
from .execution_graph import executed
from .lowering import (
    LEVELS,
    OpContext,
    Port,
    Value,
    clamped,
    constant,
    dequantized,
    fake_quantize,
    named,
    port,
    rounded,
    shaped,
    times,
)
from .unary import unary

PRODUCTS = ("conv", "linear")
"""Kinds whose kernels evaluate a table behind them."""

FUNCTIONS = ("hardswish", "silu", "sigmoid", "hardsigmoid", "tanh", "gelu", "mish", "elu", "softplus")
"""Functions OpenVINO's kernels evaluate to a few units in the last place."""

IDENTITY = "identity"
"""Requantization and clamps: v itself."""

MARGIN = 4e-4
"""Smallest distance, in output steps, of any entry from its rounding boundaries: 2⁻²⁴·256 is one rounding."""

NEGLIGIBLE = 4e-3
"""OpenVINO (2026.4) leaves out what a FakeQuantize adds before it rounds, z + δ, where that is below 255·10⁻⁵."""

SIDE = 16


@dataclass(frozen=True)
class Function:
    """How a table is evaluated.

    Attributes:
        fn: of FUNCTIONS, or IDENTITY.
        lo, hi: the clamp.
        shift: δ, in output steps.
        x_scale, y_scale: real value of one input and output step.
        isa: the instruction set of the kernel that gave all entries; "" before that is known.
    """

    fn: str
    lo: int
    hi: int
    shift: float
    x_scale: float
    y_scale: float
    isa: str = ""


class _Table(NamedTuple):
    function: Function
    z_x: int
    z_y: int
    entries: bytes


def fit(op: Op, program: Program) -> Function | None:
    """Return the function that gives the table, or None."""
    name = str(op.attrs["fn"])
    fn = name if name in FUNCTIONS else IDENTITY
    x, y = program.tensors[op.inputs[0]], program.tensors[op.name]
    table = op.arrays["table"].astype(np.int64)
    s_x, z_x, s_y, z_y = float(x.scale or 1), int(x.zero_point or 0), float(y.scale or 1), int(y.zero_point or 0)
    v = (np.arange(LEVELS, dtype=np.float64) - z_x) * s_x
    exact = (v if fn == IDENTITY else unary64(fn, {}, v)) / s_y
    lo, hi = (int(table.min()), int(table.max())) if fn == IDENTITY else (0, LEVELS - 1)
    if lo == hi or not np.isfinite(exact).all():
        return None
    steps = table - z_y
    # Entries at an end of the clamp may lie anywhere beyond it.
    up = float(np.where(table == hi, np.inf, steps + 0.5 - exact).min())
    down = float(np.where(table == lo, np.inf, exact - (steps - 0.5)).min())
    shift = 0.0 if min(up, down) > 10 * MARGIN else float(np.clip((up - down) / 2, -0.5, 0.5))
    if z_y == 0 and abs(shift) < NEGLIGIBLE:
        shift = max((0.0, NEGLIGIBLE, -NEGLIGIBLE), key=lambda d: min(up - d, down + d))
    if min(up - shift, down + shift) < MARGIN:
        return None
    return Function(fn, lo, hi, shift, s_x, s_y)


def fits(program: Program) -> dict[str, Function]:
    """Return the tables that are evaluated: only readers of a product, which a function fits, and right in all 256
    entries."""
    users = Counter(name for op in program.ops for name in op.inputs) + Counter(program.outputs)
    products = {op.name for op in program.ops if op.kind in PRODUCTS and users[op.name] == 1}
    found: dict[str, _Table] = {}
    for op in program.ops:
        if op.kind == "table" and op.inputs[0] in products:
            function = fit(op, program)
            if function is not None:
                z_x, z_y = (int(program.tensors[n].zero_point or 0) for n in (op.inputs[0], op.name))
                found[op.name] = _Table(function, z_x, z_y, op.arrays["table"].tobytes())
    right = _right(set(found.values()))
    return {name: replace(t.function, isa=right[t]) for name, t in found.items() if t in right}


def table(ctx: OpContext) -> Value:
    """Build table[x]: the stored entries are indexed, or the function is evaluated that gives them."""
    x, function = ctx.inputs[0], ctx.function
    if function is None:
        return indexed(ctx, x, ctx.op.arrays["table"])
    y = evaluated(x.port, function.x_scale / x.step, function, ctx.z, ctx.scale)
    return Value(shaped(named(y, ctx.label), ctx.out.shape), ctx.scale, ctx.z)


def evaluated(x: Port, factor: float, f: Function, z: int, scale: float) -> Port:
    """Build R(f(x·factor)/s_y + δ) + z, as (q − z)·scale."""
    step = f.y_scale
    if f.fn == IDENTITY:
        # No function between: the factor goes into the step, and the kernel before sees a requantization only.
        step /= factor
        y = x
    else:
        y = unary({"fn": f.fn}, times(x, factor))
    if f.lo > 0 or f.hi < LEVELS - 1:
        y = clamped(y, z, f.lo, f.hi, step, relu=True)
    return fake_quantize(y, z, step, scale, f.shift)


def _right(tables: Iterable[_Table]) -> dict[_Table, str]:
    """Those whose function OpenVINO evaluates to their entries inside the kernel of a product → its instruction set.

    Each gets an int8 convolution of its own, of all 256 integers: times 1, which gives every argument, and times 2,
    which gives results beyond what an argument can be.
    """
    tables = list(tables)
    if not tables:
        return {}
    every = np.arange(LEVELS, dtype=np.uint8).reshape(1, SIDE, 4, 4)
    eye = np.eye(SIDE, dtype=np.int8)
    weight = ov.constant(np.concatenate([eye, 2 * eye])[:, :, None, None])
    inputs, results = [ov.parameter(list(every.shape), np.uint8) for _ in tables], []
    for i, t in enumerate(tables):
        bias = np.repeat([-t.z_x, -t.z_x - 128], SIDE)
        scaled = port(ov.multiply(port(ov.convert(weight, np.float32)), constant(np.ones((2 * SIDE, 1, 1, 1)))))
        y = dequantized(port(inputs[i]), 0, 1.0).port
        y = port(ov.convolution(y, scaled, [1, 1], [0, 0], [0, 0], [1, 1]))
        y = rounded(port(ov.add(y, constant(bias.reshape(1, -1, 1, 1)))), t.z_x, 0, LEVELS - 1)
        y = evaluated(y, t.function.x_scale, t.function, t.z_y, 1.0)
        results.append(ov.result(named(y, f"table.{i}")))
    compiled = compile_model(openvino.Model(results, inputs, "tables"), None)
    given = compiled([every] * len(tables))
    inside = {name: node.isa for node in executed(compiled) if node.exact_product for name in node.names}
    sums = np.concatenate([every, np.clip(2 * every.astype(np.int64) - 128, 0, LEVELS - 1)], axis=1)
    right: dict[_Table, str] = {}
    for i, t in enumerate(tables):
        want: Array = np.frombuffer(t.entries, np.uint8)[sums]
        if f"table.{i}" in inside and np.array_equal(np.asarray(given[i]) + t.z_y, want):
            right[t] = inside[f"table.{i}"]
    return right
