"""What layers of LSTM, GRU and RNN look like: attributes, arrays, shapes."""

from __future__ import annotations

from intact.arithmetic.dimensions import Dim
from intact.arithmetic.recurrent import GATES, REACH, STEPS, state_count

from .ops import Array, Op
from .violation import need

Shape = tuple[Dim, ...]

ARRAYS = {
    "weight_ih": "int8", "weight_hh": "int8", "scale_ih": "float32", "scale_hh": "float32", "bias": "float32",
}  # fmt: skip
"""Arrays every layer has, role → dtype."""


def layer_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Shape of a quantized layer's output, and whether its arrays fit each other.

    Raises:
        Violation: they do not, or hold numbers the formulas are not proved for.
    """
    p, hidden = op.arrays, op.attrs["hidden"]
    directions, rows = 1 + op.attrs["bidirectional"], GATES[op.kind] * hidden
    out, inputs = _output(op, x), x[0][2] if isinstance(x[0][2], int) else 0
    wanted: dict[str, tuple[int, ...]] = {
        "weight_ih": (directions, rows, inputs),
        "weight_hh": (directions, rows, hidden),
        **dict.fromkeys(("scale_ih", "scale_hh", "bias"), (directions, rows)),
        "bias_hh": (directions, hidden),
        "tanh": (STEPS * REACH + 1,),
    }
    for role, array in p.items():
        need(array.shape == wanted[role], f"{role} has shape {array.shape}, not {wanted[role]}")
    for role in ("weight_ih", "weight_hh"):
        need(int(p[role].min()) >= -127, f"{role} holds -128")
    for role in ("scale_ih", "scale_hh"):
        need(bool((p[role] > 0).all()), f"{role} holds a scale that is not positive")
    need(("bias_hh" in p) == (op.kind == "gru"), "bias_hh belongs to gru, which needs it")
    relu = op.kind == "rnn" and op.attrs.get("nonlinearity") == "relu"
    need(("tanh" in p) != relu, "tanh belongs to every layer but those with relu")
    if "tanh" in p:
        # Hidden states between -1 and 1 are what fits the 8 bits of their integers.
        need(bool(((p["tanh"] >= 0) & (p["tanh"] <= 1)).all()), "tanh holds values outside 0..1")
    return out


def float_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Shape of a layer's output in a float island, and whether its arrays fit.

    Raises:
        Violation: they do not.
    """
    kind, hidden = op.kind.removeprefix("float."), op.attrs["hidden"]
    rows, out = GATES[kind] * hidden, _output(op, x)
    roles = {"weight_ih": (rows, x[0][2] or 0), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
    wanted = {role + d: shape for role, shape in roles.items() for d in ("", ".reverse")}
    for role, array in op.arrays.items():
        need(array.shape == wanted[role], f"{role} has shape {array.shape}, not {wanted[role]}")
        need(op.attrs["bidirectional"] or not role.endswith(".reverse"), f"{role} belongs to bidirectional layers")
    both = ("", ".reverse") if op.attrs["bidirectional"] else ("",)
    for role in ("weight_ih", "weight_hh"):
        need(all(role + d in op.arrays for d in both), f"{role}.reverse is missing")
    biases = {role + d in op.arrays for role in ("bias_ih", "bias_hh") for d in both}
    need(len(biases) == 1, "some biases are missing: there are all of them or none")
    return out


def _output(op: Op, x: list[Shape]) -> Shape:
    kind, t = op.kind.removeprefix("float."), op.attrs
    states, directions = state_count(kind), 1 + t["bidirectional"]
    count = 1 + states * t["states"] + t["lengths"]
    need(len(x) == count, f"takes {count} inputs, not {len(x)}")
    need(len(x[0]) == 3, f"input of shape {x[0]} is not (time, batch, features)")
    time, batch, _ = x[0]
    for s in x[1 : 1 + states * t["states"]]:
        need(s == (directions, batch, t["hidden"]), f"state of shape {s} is not {(directions, batch, t['hidden'])}")
    need(not t["lengths"] or x[-1] == (batch,), f"lengths of shape {x[-1]} are not {(batch,)}")
    need((kind == "rnn") == ("nonlinearity" in t), "nonlinearity belongs to rnn, which needs it")
    need(t["result"] != "all" or isinstance(time, int), "everything is given only where the number of steps is known")
    steps = {"all": states + time if isinstance(time, int) else 0, "states": states, "steps": time}
    return (steps[t["result"]], batch, directions * t["hidden"])


__all__ = ["ARRAYS", "Array", "float_shape", "layer_shape"]
