"""Large programs that begin with something else than an image or rows: sequences through recurrent layers, indices into
tables, masks, and sizes that are known only by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from intact8.arithmetic.recurrent import GATES, REACH, STEPS, state_count
from intact8.errors import ProgramError
from intact8.opset import output_shape
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

HIDDEN, FEATURES = 64, 512
Made = tuple[list[Op], dict[str, Tensor]]


def layer(kind: str, features: int, hidden: int = HIDDEN, both: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes and arrays of a recurrent layer, of a float island where its kind says so."""
    name = kind.removeprefix("float.")
    rows, d = GATES[name] * hidden, 1 + both
    attrs: dict[str, Any] = {
        "hidden": hidden, "bidirectional": both, "states": False, "lengths": False, "result": "steps",
    }  # fmt: skip
    if name == "rnn":
        attrs["nonlinearity"] = "tanh"
    if name != kind:
        shapes = {"weight_ih": (rows, features), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
        ends = ("", ".reverse") if both else ("",)
        return attrs, {role + end: np.full(shape, 1e-3, np.float32) for role, shape in shapes.items() for end in ends}
    arrays: dict[str, Any] = {
        "weight_ih": np.ones((d, rows, features), np.int8), "weight_hh": np.ones((d, rows, hidden), np.int8),
        "scale_ih": np.full((d, rows), 1e-3, np.float32), "scale_hh": np.full((d, rows), 1e-3, np.float32),
        "bias": np.zeros((d, rows), np.float32),
        "tanh": np.tanh(np.arange(STEPS * REACH + 1) / STEPS).astype(np.float32),
    }  # fmt: skip
    if name == "gru":
        arrays["bias_hh"] = np.zeros((d, hidden), np.float32)
    assert state_count(name) in (1, 2)
    return attrs, arrays


def chain(first: Tensor, *steps: tuple[str, dict[str, Any], dict[str, Any], str]) -> Program:
    """Operations one behind the other: kind, attributes, arrays, dtype ("quantized": uint8 with a scale)."""
    tensors, ops, last = {first.name: first}, list[Op](), first
    for i, (kind, attrs, arrays, dtype) in enumerate(steps):
        inputs = (last.name,) if kind != "float.masked_fill" else (first.name, last.name)
        op = Op(f"op{i}", kind, inputs, attrs, arrays)
        read = [tensors[n] for n in inputs]
        shape = output_shape(op, read, (None,) * 3)
        scale = (float(np.float32(0.05)), 100) if dtype == "quantized" else ()
        last = Tensor(op.name, "uint8" if dtype == "quantized" else dtype, shape, *scale)
        tensors[op.name] = last
        ops.append(op)
    program = Program(tensors, tuple(ops), (first.name,), (last.name,), {"list": [0]})
    check(program)
    return program


def recurrent(kind: str, elements: int, both: bool = False) -> Program:
    """Sequences of 64 steps."""
    features = 128
    batch = max(elements // (64 * features), 1)
    attrs, arrays = layer(kind, features, both=both)
    return chain(Tensor("x", "float32", (64, batch, features)), (kind, attrs, arrays, "float32"))


def embedded(kind: str, elements: int) -> Program:
    """Indices, and the rows they choose from a table of 1000."""
    rows = 1000
    arrays = {
        "embedding": {"weight": np.ones((rows, FEATURES), np.uint8)},
        "float.embedding": {"weight": np.ones((rows, FEATURES), np.float32)},
        "decoded_embedding": {
            "weight": np.ones((rows, FEATURES // 2), np.uint8), "scale": np.ones((rows, 1), np.float32),
        },
    }[kind]  # fmt: skip
    attrs = {"bits": 4, "columns": FEATURES, "group": 0} if kind == "decoded_embedding" else {}
    x = Tensor("x", "int64", (None, elements // FEATURES))
    return chain(x, (kind, attrs, arrays, "quantized" if kind == "embedding" else "float32"))


def decoded(elements: int) -> Program:
    arrays = {"weight": np.ones((FEATURES, FEATURES // 2), np.uint8), "scale": np.ones((FEATURES, 1), np.float32)}
    x = Tensor("x", "float32", (None, elements // FEATURES, FEATURES))
    step = ("float.decoded_linear", {"bits": 4, "columns": FEATURES, "group": 0}, arrays, "float32")
    return chain(x, step)


FILL = (
    ("float.compare", {"fn": "gt", "value": 0.5}, {}, "bool"),
    ("float.masked_fill", {"value": float("-inf")}, {}, "float32"),
)
"""What ``where`` becomes: a mask, and numbers in its place."""


def rows(elements: int, *steps: tuple[str, dict[str, Any], dict[str, Any], str]) -> Program:
    return chain(Tensor("x", "float32", (None, elements // FEATURES, FEATURES)), *steps)


def widened(elements: int, dtype: str) -> Program:
    """A column becomes 512 of them."""
    count = elements // FEATURES
    step = ("expand", {"shape": [-1, count, FEATURES]}, {}, dtype)
    scale = (float(np.float32(0.05)), 100) if dtype == "quantized" else ()
    x = Tensor("x", "uint8" if dtype == "quantized" else dtype, (None, count, 1), *scale)
    return chain(x, step)


def named(program: Program, size: int) -> Program:
    """The same where that size has a name, whose least value it is; the same program where that cannot be."""
    tensors = {n: replace(t, shape=tuple("n" if d == size else d for d in t.shape)) for n, t in program.tensors.items()}
    ops = []
    for op in program.ops:
        shape = op.attrs.get("shape")
        changed = {"shape": ["n" if d == size else d for d in shape]} if isinstance(shape, list) else {}
        ops.append(replace(op, attrs={**op.attrs, **changed}))
    found = replace(program, tensors=tensors, ops=tuple(ops), dimensions={"n": (size, None)})
    try:
        check(found)
    except ProgramError:
        return program
    return found


def sequence(elements: int) -> Program:
    """Rows of a length that has a name, through what a transformer begins with."""
    weight = {"weight": np.full((FEATURES, FEATURES), 1e-3, np.float32)}
    norm = ("float.layer_norm", {"shape": [FEATURES], "eps": 1e-5}, {}, "float32")
    steps = (
        norm, ("float.linear", {}, weight, "float32"), ("float.unary", {"fn": "gelu"}, {}, "float32"),
        ("quantize", {"lo": 0, "hi": 255}, {}, "quantized"),
    )  # fmt: skip
    return named(rows(elements, *steps), elements // FEATURES)


LAYERS = ("lstm", "gru", "rnn", "float.lstm", "float.gru", "float.rnn")
SEQUENCES: dict[str, Callable[[int], Program]] = {
    **{kind: (lambda elements, kind=kind: recurrent(kind, elements)) for kind in LAYERS},
    **{f"{kind} both ways": (lambda elements, kind=kind: recurrent(kind, elements, both=True)) for kind in LAYERS},
    **{
        kind: (lambda elements, kind=kind: embedded(kind, elements))
        for kind in ("embedding", "float.embedding", "decoded_embedding")
    },
    "float.decoded_linear": decoded,
    "float.compare": lambda elements: rows(elements, FILL[0]),
    "float.masked_fill": lambda elements: rows(elements, *FILL),
    **{
        f"float.cast {dtype}": (
            lambda elements, dtype=dtype: rows(elements, ("float.cast", {"dtype": dtype}, {}, dtype))
        )
        for dtype in ("int64", "bool", "uint8")
    },
    "expand": lambda elements: widened(elements, "quantized"),
    "expand of floats": lambda elements: widened(elements, "float32"),
    "named rows": sequence,
}  # fmt: skip
"""Name → a program of about so many elements."""
