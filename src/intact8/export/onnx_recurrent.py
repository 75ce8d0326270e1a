"""LSTM, GRU and RNN in standard ONNX operators: a Scan over the steps, one operator per rounding of the definition.

ONNX's own LSTM, GRU and RNN compute in float32, with functions whose last bits are each runtime's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from intact8.arithmetic.dynamic import ZERO
from intact8.arithmetic.recurrent import GATES, HIDDEN, STEPS, state_count
from intact8.arithmetic.recurrent import REACH as TABLE_REACH
from intact8.opset.op import Array, Op, Tensor

from .onnx_builder import ONNX_TYPES, Builder, Rule
from .onnx_dynamic_linear import dynamic_linear, largest_magnitude, row_scale

END = STEPS * TABLE_REACH

UNITS = (HIDDEN, STEPS)
"""Steps of one in hidden states and in cell states."""


def _recurrent(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build ``lstm``, ``gru`` and ``rnn``."""
    t, states = op.attrs, state_count(op.kind)
    given = x[1 : 1 + states] if t["states"] else []
    inside = _inside(b, x[0], x[-1]) if t["lengths"] else None
    wild = [name in b.special for name in x]
    x = [_finite(b, x[0]) if wild[0] else x[0], *x[1:]]
    batch = b.node("Slice", [b.node("Shape", [x[0]]), b.ints([1], "start"), b.ints([2], "end")])
    shape = b.node("Concat", [batch, b.ints([t["hidden"]], "hidden")], axis=0)
    zero = b.node("Expand", [b.float(0.0, "zero"), shape])
    steps, lasts = [], []
    for d in range(1 + t["bidirectional"]):
        p = dynamic_linear(b, _inputs(op, d), x[:1], inputs[:1], y)
        own = [b.node("Gather", [v, b.constant(np.int64(d), "direction")], axis=0) for v in given]
        first = [_scale_state(b, op, v, unit) for v, unit in zip(own, UNITS, strict=False)]
        first = [_finite(b, v) if bad else v for v, bad in zip(first, wild[1:], strict=False)] or [zero] * states
        *last, seen = _scan(b, op, d, first, [p, *([] if inside is None else [inside])])
        steps.append(seen)
        lasts.append([_scale_state(b, op, v, 1 / unit) for v, unit in zip(last, UNITS, strict=False)])
    axis = b.ints([0], "axis")
    ends = [b.node("Unsqueeze", [_joined(b, parts), axis]) for parts in zip(*lasts, strict=True)]
    return _result(b, op, ends, _joined(b, steps))


ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Positions of ONNX's gates (i, o, f, c; z, r, h) among those of torch."""


def float_layer(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a layer of a float island, by ONNX's own operator."""
    t, kind = op.attrs, op.kind.removeprefix("float.")
    states, size, two = state_count(kind), t["hidden"], t["bidirectional"]

    def stacked(role: str) -> Array:
        found = [op.arrays[role + d] for d in ("", ".reverse")[: 1 + two]]
        rows = [a.reshape(GATES[kind], size, -1)[list(ORDER[kind])].reshape(GATES[kind] * size, -1) for a in found]
        return np.stack(rows)

    bias = ""
    if "bias_ih" in op.arrays:
        both = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], 1)
        bias = b.constant(both.reshape(1 + two, -1), "bias")
    lengths = b.cast(x[-1], "int32") if t["lengths"] else ""
    given = x[1 : 1 + states] if t["states"] else []
    weights = [b.constant(stacked(role), role) for role in ("weight_ih", "weight_hh")]
    made = [b.value(kind) for _ in range(1 + states)]
    attrs: dict[str, Any] = {"hidden_size": size, "direction": "bidirectional" if two else "forward"}
    if kind == "gru":
        attrs["linear_before_reset"] = 1
    if kind == "rnn":
        attrs["activations"] = [t["nonlinearity"].capitalize()] * (1 + two)
    operands = [x[0], *weights, bias, lengths, *given]
    b.nodes.append(helper.make_node(kind.upper(), operands, made, made[-1], **attrs))
    steps = b.node("Reshape", [b.node("Transpose", [made[0]], perm=[0, 2, 1, 3]), b.ints([0, 0, -1], "flat")])
    axis, flat = b.ints([0], "axis"), b.ints([0, -1], "rows")
    moved = [b.node("Reshape", [b.node("Transpose", [v], perm=[1, 0, 2]), flat]) for v in made[1:]]
    ends = [b.node("Unsqueeze", [v, axis]) for v in moved]
    return _result(b, op, ends, steps)


def _result(b: Builder, op: Op, ends: list[str], steps: str) -> str:
    return _joined(b, {"states": ends, "steps": [steps], "all": [*ends, steps]}[op.attrs["result"]], axis=0)


def _inputs(op: Op, d: int) -> Op:
    """Return a dynamic linear layer: the input product of direction ``d`` for all steps."""
    arrays = {"weight": op.arrays["weight_ih"][d], "scale": op.arrays["scale_ih"][d], "bias": op.arrays["bias"][d]}
    return replace(op, attrs={"granularity": "per_row"}, arrays=arrays)


def _is_relu(op: Op) -> bool:
    return op.attrs.get("nonlinearity") == "relu"


def _finite(b: Builder, value: str) -> str:
    """Return a value as it is; where it holds NaN or infinity, an index outside its table refuses the call."""
    lost = b.node("IsNaN", [b.node("ReduceSum", [b.node("Sub", [value, value])], keepdims=0)])
    nothing = b.node("Gather", [b.constant(np.zeros(1, np.float32), "nothing"), b.cast(lost, "int32")], axis=0)
    return b.node("Add", [value, nothing])


def _scale_state(b: Builder, op: Op, value: str, factor: float) -> str:
    """Return a state in other steps; rectified states have no steps."""
    return value if _is_relu(op) else b.node("Mul", [value, b.float(factor)])


def _joined(b: Builder, parts: Sequence[str], axis: int = -1) -> str:
    return parts[0] if len(parts) == 1 else b.node("Concat", list(parts), axis=axis)


def _inside(b: Builder, x: str, lengths: str) -> str:
    """Return a mask (T, B, 1) of the steps that belong to the sequences."""
    zero, one = (b.constant(np.int64(v), "bound") for v in (0, 1))
    time = b.node("Gather", [b.node("Shape", [x]), zero], axis=0)
    steps = b.node("Unsqueeze", [b.node("Range", [zero, time, one]), b.ints([1], "axis")])
    return b.node("Unsqueeze", [b.node("Less", [steps, lengths]), b.ints([2], "last")])


def _scan(b: Builder, op: Op, d: int, first: list[str], scanned: list[str]) -> list[str]:
    """Run direction ``d``: returns the last states, then the hidden states of all steps as real numbers."""
    states, (p, *inside) = [b.value("state") for _ in first], [b.value("scanned") for _ in scanned]
    with b.body() as nodes:
        new = _step(b, op, d, states, p)
        y = _scale_state(b, op, new[0], 1 / HIDDEN)
        if inside:
            y = b.node("Where", [inside[0], y, b.float(0.0, "zero")])
            new = [b.node("Where", [inside[0], a, s]) for a, s in zip(new, states, strict=True)]
        outs = [b.node("Identity", [v]) for v in (*new, y)]
    taken = [*(_value(n, "float32") for n in (*states, p)), *(_value(n, "bool") for n in inside)]
    body = helper.make_graph(nodes, "step", taken, [_value(n, "float32") for n in outs])
    made = [b.value("Scan") for _ in outs]
    directions: dict[str, Any] = {"scan_input_directions": [d] * len(scanned), "scan_output_directions": [d]}
    inputs = [*first, *scanned]
    loop = helper.make_node("Scan", inputs, made, made[-1], body=body, num_scan_inputs=len(scanned), **directions)
    b.nodes.append(loop)
    return made


def _value(name: str, dtype: str) -> Any:
    return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], None)


def _step(b: Builder, op: Op, d: int, states: list[str], p: str) -> list[str]:
    size, h = op.attrs["hidden"], states[0]
    product = _hidden(b, op, d, h)
    if op.kind == "gru":
        (p, p_new), (product, product_new) = (_split(b, v, [2 * size, size]) for v in (p, product))
    v = b.node("Add", [product, p])
    if _is_relu(op):
        return [b.node("Max", [v, b.float(0.0, "zero")])]
    half = op.arrays["tanh"]
    whole = np.concatenate([-half[:0:-1], half])
    sigmoid, hidden = whole * np.float32(0.5) + np.float32(0.5), whole * np.float32(HIDDEN)
    if op.kind == "rnn":
        return [_look_up(b, v, hidden)]
    if op.kind == "lstm":
        i, f, g, o = _split(b, _look_up(b, v, sigmoid, whole * np.float32(STEPS), size), [size] * 4)
        c = b.node("Add", [b.node("Mul", [f, states[1]]), b.node("Mul", [i, g])])
        return [b.node("Mul", [o, _look_up(b, c, hidden)]), c]
    r, z = _split(b, _look_up(b, v, sigmoid), [size, size])
    product_new = b.node("Add", [product_new, b.constant(op.arrays["bias_hh"][d], "bias_hh")])
    n = _look_up(b, b.node("Add", [p_new, b.node("Mul", [r, product_new])]), hidden)
    return [b.node("Add", [n, b.node("Mul", [z, b.node("Sub", [h, n])])])]


def _hidden(b: Builder, op: Op, d: int, h: str) -> str:
    s = None
    if _is_relu(op) or op.attrs["states"]:
        m = largest_magnitude(b, h, [1])
        limit = b.float(HIDDEN)
        s = row_scale(b, m) if _is_relu(op) else b.node("Div", [b.node("Max", [m, limit]), limit])
        h = b.node("Div", [h, s])
    weight = b.constant(np.ascontiguousarray(op.arrays["weight_hh"][d].T), "weight_hh")
    acc = b.cast(b.node("MatMulInteger", [b.quantized(h, ZERO, 0, 255), weight, b.byte(ZERO)]), "float32")
    value = b.node("Mul", [acc, b.constant(op.arrays["scale_hh"][d], "scale_hh")])
    return value if s is None else b.node("Mul", [value, s])


def _look_up(b: Builder, v: str, table: Array, of_g: Array | None = None, size: int = 0) -> str:
    """Return the table entries of values in steps; gate g of an LSTM, the third of four, reads its own table."""
    middle: Array = np.array(END, np.float32)
    if of_g is not None:
        middle = np.full(GATES["lstm"] * size, END, np.float32)
        middle[2 * size : 3 * size] += len(table)
        table = np.concatenate([table, of_g])
    steps = b.node("Round", [b.node("Clip", [v, b.float(-END, "low"), b.float(END, "high")])])
    index = b.cast(b.node("Add", [steps, b.constant(middle, "middle")]), "int32")
    return b.node("Gather", [b.constant(table.astype(np.float32), "table"), index], axis=0)


def _split(b: Builder, value: str, sizes: list[int]) -> list[str]:
    ends = np.cumsum(sizes)
    axis = b.ints([-1], "last")
    return [
        b.node("Slice", [value, b.ints([int(end - n)], "start"), b.ints([int(end)], "end"), axis])
        for end, n in zip(ends, sizes, strict=True)
    ]


RULES: dict[str, Rule] = dict.fromkeys(("lstm", "gru", "rnn"), _recurrent)
"""Kind → rule."""
