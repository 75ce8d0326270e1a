"""Random layers of LSTM, GRU and RNN as programs of one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8.arithmetic.recurrent import GATES, gate_steps, state_count, tanh_table
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program

Array = np.ndarray[Any, Any]
RNG = np.random.Generator


def arrays(kind: str, inputs: int, hidden: int, directions: int, relu: bool, rng: RNG) -> dict[str, Array]:
    """Numbers that drive gates from one end of their tables to the other."""
    rows = GATES[kind] * hidden
    steps = gate_steps(kind, hidden, relu)

    def weight(*shape: int) -> Array:  # no pair saturates in int16
        return rng.integers(-63, 64, (directions, rows, *shape)).astype(np.int8)

    def scale(count: int) -> Array:
        return (rng.uniform(0.5, 1.5, (directions, rows)) * steps / 63 / np.sqrt(count)).astype(np.float32)

    found = {
        "weight_ih": weight(inputs),
        "weight_hh": weight(hidden),
        "scale_ih": scale(inputs),
        "scale_hh": scale(hidden) / np.float32(4 if relu else 127),
        "bias": (rng.normal(size=(directions, rows)) * steps * 0.3).astype(np.float32),
    }
    if kind == "gru":
        found["bias_hh"] = (rng.normal(size=(directions, hidden)) * 150).astype(np.float32)
    return found if relu else found | {"tanh": tanh_table()}


def layer(
    kind: str,
    rng: RNG,
    *,
    directions: int = 1,
    states: bool = False,
    lengths: bool = False,
    relu: bool = False,
    time: int = 5,
    inputs: int = 7,
    hidden: int = 6,
) -> Program:
    """A program of one layer; its batch is dynamic."""
    attrs: dict[str, Any] = {"hidden": hidden, "bidirectional": directions == 2, "states": states, "lengths": lengths}
    attrs["result"] = "all"
    if kind == "rnn":
        attrs["nonlinearity"] = "relu" if relu else "tanh"
    count = state_count(kind)
    state = (directions, None, hidden)
    tensors = [Tensor("x", "float32", (time, None, inputs))]
    tensors += [Tensor(name, "float32", state) for name in ("h0", "c0")[: count * states]]
    tensors += [Tensor("lengths", "int64", (None,))] if lengths else []
    names = tuple(t.name for t in tensors)
    op = Op("y", kind, names, attrs, arrays(kind, inputs, hidden, directions, relu, rng))
    tensors.append(Tensor("y", "float32", (count + time, None, directions * hidden)))
    program = certify(Program({t.name: t for t in tensors}, (op,), names, ("y",)))
    check(program)
    return program


def draw_inputs(program: Program, batch: int, rng: RNG) -> dict[str, Array]:
    """Inputs of any size; initial states within and beyond the hidden grid; lengths from 0 to all steps."""
    time = program.tensors["x"].shape[0] or 1
    found: dict[str, Array] = {}
    for name in program.inputs:
        shape = [batch if d is None else d for d in program.tensors[name].shape]
        if name == "lengths":
            found[name] = rng.integers(0, time + 1, shape)
            continue
        size = rng.choice([0.3, 3.0]) if name != "x" else 10 ** rng.uniform(-2, 1)
        found[name] = (rng.normal(size=shape) * size).astype(np.float32)
    return found
