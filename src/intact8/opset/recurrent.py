"""Layers of LSTM, GRU and RNN: quantized while they run, and in float islands."""

from __future__ import annotations

from dataclasses import replace

from intact8.arithmetic import recurrent
from intact8.arithmetic.numpy_recurrent import float_layer
from intact8.arithmetic.recurrent import GATES, REACH, STEPS, state_count
from intact8.errors import InputError

from .attributes import FLOAT, INT, SMALL
from .dynamic_linear import weight_sums
from .floats import in_floats
from .kind import Call, Kind
from .op import Array, Op, Tensor
from .proof import Proof, named
from .shapes import Shape
from .types import signature
from .values import Validator, boolean, exactly, integer, one_of
from .violation import need

WEIGHTS, SCALES = ("weight_ih", "weight_hh"), ("scale_ih", "scale_hh")
ARRAYS = {**dict.fromkeys(WEIGHTS, "int8"), **dict.fromkeys((*SCALES, "bias"), "float32")}
"""Arrays every layer has, role → dtype."""


def layer_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a quantized layer's output, and whether its arrays fit each other.

    Raises:
        Violation: they do not, or hold numbers the formulas are not proved for.
    """
    p, hidden = op.arrays, op.attrs["hidden"]
    directions, rows = 1 + op.attrs["bidirectional"], GATES[op.kind] * hidden
    out, inputs = _output(op, x), x[0][2] if isinstance(x[0][2], int) else 0
    wanted: dict[str, tuple[int, ...]] = {
        "weight_ih": (directions, rows, inputs),
        "weight_hh": (directions, rows, hidden),
        **dict.fromkeys((*SCALES, "bias"), (directions, rows)),
        "bias_hh": (directions, hidden),
        "tanh": (STEPS * REACH + 1,),
    }
    for role, array in p.items():
        need(array.shape == wanted[role], f"{role} has shape {array.shape}, not {wanted[role]}")
    for role in WEIGHTS:
        need(int(p[role].min()) >= -127, f"{role} holds -128")
    for role in SCALES:
        need(bool((p[role] > 0).all()), f"{role} holds a scale that is not positive")
    need(("bias_hh" in p) == (op.kind == "gru"), "bias_hh belongs to gru, which needs it")
    relu = op.kind == "rnn" and op.attrs.get("nonlinearity") == "relu"
    need(("tanh" in p) != relu, "tanh belongs to every layer but those with relu")
    if "tanh" in p:
        # Hidden states between -1 and 1 are what fits the 8 bits of their integers.
        need(bool(((p["tanh"] >= 0) & (p["tanh"] <= 1)).all()), "tanh holds values outside 0..1")
    return out


def float_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a layer's output in a float island, and whether its arrays fit.

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
    for role in WEIGHTS:
        need(all(role + d in op.arrays for d in both), f"{role}.reverse is missing")
    biases = {role + d in op.arrays for role in BIASES for d in both}
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


def _quantized(call: Call) -> Array:
    op, x = call.op, call.x
    states = state_count(op.kind) if op.attrs["states"] else 0
    h0, c0 = (*x[1 : 1 + states], None, None)[:2]
    lengths = x[-1] if op.attrs["lengths"] else None
    try:
        y = recurrent.run_layer(recurrent.Layer(op.kind, **op.arrays), x[0], h0, c0, lengths)
        return y[recurrent.part(op.kind, op.attrs["result"])]
    except ValueError as error:
        raise not_finite(op.name, str(error)) from error


def not_finite(where: str, why: str) -> InputError:
    """Return what engines raise for numbers that a recurrent layer does not take."""
    return InputError("NaN or infinity reached a recurrent layer", where=where, why=why, remedy="repair the data")


def _in_floats(call: Call) -> Array:
    return float_layer(call.op.kind.removeprefix("float."), call.attrs, list(call.x), call.arrays)


def _along(op: Op, t: Tensor, dim: int) -> bool:
    """Return whether ``dim`` is not the batch of inputs of shape (time, batch, features)."""
    return dim != 1


LAYERS = (
    signature(FLOAT, gives=FLOAT, lengths=exactly(False)),
    signature(FLOAT, gives=FLOAT, last=INT, lengths=exactly(True)),
)
ATTRS: dict[str, Validator] = {
    "hidden": integer(1, SMALL),
    **dict.fromkeys(("bidirectional", "states", "lengths"), boolean),
    "result": one_of("all", "states", "steps"),
}
BIASES = ("bias_ih", "bias_hh")
NONLINEARITY: dict[str, Validator] = {"nonlinearity": one_of("tanh", "relu")}
ROLES = [role + d for d in ("", ".reverse") for role in (*WEIGHTS, *BIASES)]


def _kinds(name: str, formula: str, more: dict[str, Validator]) -> tuple[Kind, Kind]:
    """Return a layer that is quantized while it runs, and the same in a float island."""
    attrs = {**ATTRS, **more}
    quantized = Kind(
        name,
        formula,
        (1, 4),
        LAYERS,
        layer_shape,
        _quantized,
        attrs=attrs,
        arrays=ARRAYS,
        optional_arrays={"bias_hh": "float32", "tanh": "float32"},
        domain="dynamic",
        proof=Proof(named("dynamic"), weight_sums),
        since=2,
        works_along=_along,
    )
    in_island = replace(
        quantized,
        name=f"float.{name}",
        formula=f"{name} with float weights",
        shape=float_shape,
        evaluate=in_floats(_in_floats),
        arrays=dict.fromkeys(ROLES[:2], "float32"),
        optional_arrays=dict.fromkeys(ROLES[2:], "float32"),
        domain="float",
        proof=None,
    )
    return quantized, in_island


KINDS = (
    *_kinds(
        "lstm",
        "one layer: the input (T, B, I), initial states (D, B, H) where attr states says so (h0, and c0), lengths "
        "int64 (B,) where attr lengths does; formulas and result (S + T, B, D·H) are those of "
        "intact8.arithmetic.recurrent; D = 2 where bidirectional; result: all, or only the states, or only the steps; "
        "weight_ih (D, G·H, I), weight_hh (D, G·H, H), scale_ih, scale_hh, bias (D, G·H), tanh (4097,)",
        {},
    ),
    *_kinds("gru", "the same with bias_hh (D, H)", {}),
    *_kinds("rnn", "the same with one gate; tanh is absent where nonlinearity is relu", NONLINEARITY),
)
