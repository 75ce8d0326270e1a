"""ATen → operations: LSTM, GRU and RNN, layer by layer, and their cells."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intact8.arithmetic.dimensions import Dim
from intact8.arithmetic.recurrent import state_count
from intact8.capture.aten_call import Call, Value, handles
from intact8.capture.ops_shape import concatenated, cut, permuted

KINDS = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn"}
"""ATen operator → operation."""


@handles(" ".join(KINDS))
def network(c: Call) -> Any:
    """Record a recurrent network on padded sequences: a node per layer, dropout between; projections by a formula."""
    if "data" in c.args:
        remedy = "make it with pack_padded_sequence in the forward pass, and unpack it with pad_packed_sequence"
        raise c.error("a packed sequence", why="its shape depends on the lengths", remedy=remedy)
    if c.op == "lstm" and _projects(c):
        c.static(c.shape(c["input"])[1 if c["batch_first"] else 0])
        return c.builder.by_formula(c, projected)
    return _network(c, c.op, list(c["hx"]) if c.op == "lstm" else [c["hx"]], None)


@handles("sequences")
def sequences(c: Call) -> list[Any]:
    """Record the operator that ``intact8.capture.recurrent_custom_ops`` makes of LSTM, GRU and RNN."""
    if c["lengths"] is None:
        return _network(c, c["mode"], list(c["hx"]), None)
    c.builder.comparable = False
    c.builder.notes.append(
        "pad_packed_sequence keeps all time steps, with zeros behind each sequence; torch cuts the steps off that no "
        "sequence reaches"
    )
    return _network(c, c["mode"], list(c["hx"]), c.value(c["lengths"]))


def _network(c: Call, mode: str, given: list[Any], lengths: Value | None) -> list[Any]:
    kind, first = KINDS[mode], bool(c["batch_first"])
    x: Value = c.value(c["input"])
    if first:
        x = permuted(c, x, [1, 0, *range(2, len(c.shape(x)))])
    layers, hidden = layer_params(c), int(c["params"][1].shape[1])
    relu = "relu" in mode
    parts = states_of(c, given, len(layers))
    states: list[list[Value]] = []
    for i, params in enumerate(layers):
        y, last = layer(c, kind, x, parts[i], params, hidden, f"layer{i}", relu=relu, lengths=lengths)
        states.append(last)
        x = y
        if i + 1 < len(layers) and c["dropout"]:
            x = c.emit("dropout", x, out=c.shape(x), p=float(c["dropout"]), feature=False)
    return [
        permuted(c, x, [1, 0, *range(2, len(c.shape(x)))]) if first else x,
        *(concatenated(c, parts, 0) for parts in zip(*states, strict=True)),
    ]


@handles(" ".join(f"{name}_cell" for name in KINDS))
def cell(c: Call) -> Any:
    """Record a cell as a layer of one step."""
    kind = KINDS[c.op.removesuffix("_cell")]
    given = list(c["hx"]) if kind == "lstm" else [c["hx"]]
    x = c.value(c["input"])
    x = c.reshape(x, (1, *c.shape(x)))
    parameters = {"": c.params(weight_ih=c["w_ih"], weight_hh=c["w_hh"], bias_ih=c["b_ih"], bias_hh=c["b_hh"])}
    states = [] if zero(c, given) else [c.reshape(c.value(v), (1, *c.shape(v))) for v in given]
    _, last = layer(c, kind, x, states, parameters, int(c["w_hh"].shape[1]), kind + "_cell", relu="relu" in c.op)
    out = [c.reshape(v, c.shape(v)[1:]) for v in last]
    return out if kind == "lstm" else out[0]


def _projects(c: Call) -> bool:
    """Return whether an LSTM has a third weight per layer and direction, which projects its hidden state."""
    roles = 4 if c["has_biases"] else 2
    layers: int = c["num_layers"] * (2 if c["bidirectional"] else 1)
    return len(c["params"]) == layers * (roles + 1)


def projected(
    x: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute an LSTM whose hidden state is projected, step by step."""
    y, last = x.transpose(0, 1) if batch_first else x, list[tuple[Tensor, Tensor]]()
    directions, roles = 2 if bidirectional else 1, 5 if has_biases else 3
    for i in range(num_layers):
        results = []
        for direction in range(directions):
            at = i * directions + direction
            w, u, *biases, projection = params[at * roles : (at + 1) * roles]
            inputs = F.linear(y, w, biases[0] + biases[1] if biases else None)
            h, cell = hx[0][at], hx[1][at]
            steps = range(y.shape[0])
            out = {}
            for t in reversed(steps) if direction else steps:
                inner, forget, candidate, outer = (inputs[t] + F.linear(h, u)).chunk(4, -1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(inner) * torch.tanh(candidate)
                h = out[t] = F.linear(torch.sigmoid(outer) * torch.tanh(cell), projection)
            results.append(torch.cat([out[t][None] for t in steps]))
            last.append((h, cell))
        y = torch.cat(results, -1)
    hidden, cells = (torch.cat([state[None] for state in states]) for states in zip(*last, strict=True))
    return y.transpose(0, 1) if batch_first else y, hidden, cells


def layer_params(c: Call) -> list[dict[str, dict[str, str]]]:
    """Return for each layer: direction ("" or ".reverse") → role → name."""
    flat, count = list(c["params"]), int(c["num_layers"])
    directions = ("", ".reverse") if c["bidirectional"] else ("",)
    roles = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if c["has_biases"] else ("weight_ih", "weight_hh")
    each = iter(flat)
    return [{d: c.params(**{role: next(each) for role in roles}) for d in directions} for _ in range(count)]


def zero(c: Call, given: list[Any]) -> bool:
    """Return whether all these states are known to be zero."""
    return all(_is_zero(c, v) for v in given)


def _is_zero(c: Call, value: Any) -> bool:
    if isinstance(value, Tensor):  # of parameters zeros are where they begin, as a rule
        made = c.builder.made_by(value)
        trained = isinstance(value, nn.Parameter) or (made is not None and bool(made.parameters))
        return not trained and not bool(value.any())
    node = c.builder.nodes[value.name]
    while node.op in ("expand", "reshape", "slice") and node.inputs:
        node = c.builder.nodes[node.inputs[0]]
    name = node.params.get("value", "")
    known = name in c.builder.constants and name not in c.builder.derived
    return node.op == "constant" and known and not bool(c.builder.constants[name].any())


def states_of(c: Call, given: list[Any], layers: int) -> list[list[Value]]:
    """Return the initial states (D, B, H) of every layer; none where they are zero."""
    if zero(c, given):
        return [[] for _ in range(layers)]
    values = [c.value(v) for v in given]
    count = c.static(c.shape(values[0])[0])[0] // layers
    return [[cut(c, v, 0, i * count, (i + 1) * count) for v in values] for i in range(layers)]


def layer(
    c: Call,
    kind: str,
    x: Value,
    states: list[Value],
    parameters: dict[str, dict[str, str]],
    hidden: int,
    label: str,
    *,
    relu: bool,
    lengths: Value | None = None,
) -> tuple[Value, list[Value]]:
    """Record one layer of a recurrent network.

    Args:
        x: (T, B, I).
        states: initial ones (D, B, H), or none.
        parameters: per direction ("" and ".reverse"), role → name.
        hidden: H.
        label: its name within the module.
        relu: of an RNN, in place of tanh.
        lengths: int64 (B,), or None where all sequences have T steps.

    Returns:
        (T, B, D·H) and the last states, each (D, B, H).
    """
    params = {role + d: name for d, roles in parameters.items() for role, name in roles.items()}
    (time, batch, _), directions, extra = c.shape(x), len(parameters), state_count(kind)
    attrs: dict[str, Any] = {"hidden": hidden, "bidirectional": directions == 2}
    attrs |= {"states": bool(states), "lengths": lengths is not None}
    if kind == "rnn":
        attrs["nonlinearity"] = "relu" if relu else "tanh"
    width = directions * hidden
    inputs = [x, *states, *([] if lengths is None else [lengths])]

    def node(result: str, length: Dim) -> Value:
        out = (length, batch, width)
        return c.emit(kind, *inputs, out=out, out_dtype="float32", params=params, label=label, result=result, **attrs)

    if isinstance(time, int):
        ends = node("all", extra + time)
        y = cut(c, ends, 0, extra, extra + time)
    else:  # no slice can be told apart from a length that changes; whichever is not read is not kept
        ends, y = node("states", extra), node("steps", time)
    last = []
    for i in range(extra):
        state = cut(c, ends, 0, i, i + 1)
        if directions == 2:
            state = permuted(c, c.reshape(state, (batch, 2, hidden)), [1, 0, 2])
        last.append(state)
    return y, last
