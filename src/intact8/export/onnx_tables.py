"""Tables as float functions, where a run of all 256 entries on this machine gives exactly the table.

A lookup costs ONNX Runtime 0.7 ns per element and keeps it from choosing layouts; these forms cost 0.2 to 0.5 ns. They
are for an engine, which can compare before it uses one, and never for a file, which does not know where it will run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from intact8.opset.kind import zero_point
from intact8.opset.op import Array, Op
from intact8.program.program import Program

from .onnx_builder import CONTRIB, Builder, Choice

Form = Callable[[Builder, str, float, int, float, int], str]
"""(builder, input, its scale, its zero point, output scale, output zero point) → output."""

ENTRIES = np.concatenate([np.arange(256)] * 4 + [np.arange(255, -1, -1)] + [np.arange(255)]).astype(np.uint8)
"""Every table index in several places of a vector register, and in the remainder behind the last full register."""


def _float_form(body: Callable[[Builder, str], str]) -> Form:
    """Build DequantizeLinear → ``body`` → QuantizeLinear."""

    def build(b: Builder, x: str, sx: float, zx: int, sy: float, zy: int) -> str:
        return b.quantized(body(b, b.steps(x, zx, sx)), zy, 0, 255, sy)

    return build


def _sigmoid(b: Builder, x: str, sx: float, zx: int, sy: float, zy: int) -> str:
    args = [x, b.float(sx, "scale"), b.byte(zx), b.float(sy, "scale"), b.byte(zy)]
    return b.node("QLinearSigmoid", args, domain=CONTRIB)


FORMS: dict[str, Form] = {
    "same": lambda b, x, sx, zx, sy, zy: x,
    "affine": _float_form(lambda b, x: x),
    "sigmoid": _sigmoid,
    "silu": _float_form(lambda b, x: b.node("QuickGelu", [x], domain=CONTRIB, alpha=1.0)),
    "hardsigmoid": _float_form(lambda b, x: b.node("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)),
    "hardswish": _float_form(lambda b, x: b.node("HardSwish", [x])),
    "gelu": _float_form(lambda b, x: b.node("Gelu", [x], domain=CONTRIB)),
}
"""Name → nodes, cheapest first. ``same`` is for clamps alone."""


def build_form(b: Builder, op: Op, x: str, choice: Choice) -> str:
    """Return the nodes of a form."""
    entries, (form, clamped) = op.arrays["table"], choice
    value = _nodes(b, op, x, form)
    if clamped or form == "same":
        value = b.node("Clip", [value, b.byte(int(entries.min()), "lo"), b.byte(int(entries.max()), "hi")])
    return value


def _nodes(b: Builder, op: Op, x: str, form: str) -> str:
    source, y = b.tensors[op.inputs[0]], b.tensors[op.name]
    return FORMS[form](b, x, float(source.scale or 0), zero_point(source), float(y.scale or 0), zero_point(y))


def candidates(program: Program, opset: int, ir_version: int) -> Any | None:
    """Return a model with one uint8 input, ``entries``, and an output ``form:index of the op`` for every table and form
    but ``same``.

    None for a program without tables.
    """
    b = Builder({**program.tensors}, contrib=True, places={})
    outputs = []
    for i, op in enumerate(program.ops):
        if op.kind == "table":
            b.begin(op)
            for form in FORMS:
                if form != "same":
                    value = _nodes(b, op, "entries", form)
                    outputs.append(f"{form}:{i}")
                    b.nodes.append(helper.make_node("Identity", [value], [outputs[-1]]))
    if not outputs:
        return None
    described = [helper.make_tensor_value_info(n, TensorProto.UINT8, ["n"]) for n in ["entries", *outputs]]
    graph = helper.make_graph(b.nodes, "tables", described[:1], described[1:], b.initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def choose(program: Program, results: dict[str, Array]) -> dict[str, Choice]:
    """Return the op name → the cheapest form that gives its table, from the outputs of :func:`candidates` for
    ``ENTRIES``.

    Without outputs those that clamp are found.
    """
    chosen: dict[str, Choice] = {}
    for i, op in enumerate(program.ops):
        if op.kind == "table":
            table = op.arrays["table"]
            for form in FORMS:
                got = ENTRIES if form == "same" else results.get(f"{form}:{i}")
                if got is None:
                    break
                exact = np.array_equal(got, table[ENTRIES])
                if exact or np.array_equal(np.clip(got, table.min(), table.max()), table[ENTRIES]):
                    chosen[op.name] = form, not exact
                    break
    return chosen
