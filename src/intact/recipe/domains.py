"""Which nodes compute on integers and which in float, with the fewest transitions between the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from intact.capture.graph import MOVES, Graph, Node

HEAVY = frozenset({"conv", "linear"})
"""Operations worth a transition: they run as integers wherever their inputs come from."""

LIGHT = frozenset({"scale_shift", "add", "sub", "mul", "mean", "avg_pool", "adaptive_avg_pool", "table"})
"""Operations that run as integers where an input is on a grid already."""

_NAMES = {"batch_norm": "batch norm without running statistics", "div": "division by a tensor"}


def is_move(node: Node) -> bool:
    """Whether the output of ``node`` shares scale and zero point with its inputs."""
    return node.op in MOVES or node.op == "cat" or (node.op == "upsample" and node.attrs["mode"] == "nearest")


@dataclass(frozen=True)
class Domains:
    """What :func:`decide` returns.

    Attributes:
        integer: names of the nodes that compute on integers; constants read as integers only are among them.
        reasons: why each other operation stays float. Moves between float operations are no entry: they convert
            nothing and compute nothing.
    """

    integer: frozenset[str]
    reasons: dict[str, str]


def decide(graph: Graph, forced: Mapping[str, str]) -> Domains:
    """Divide a fused graph.

    A convolution or linear map always runs as integers. A light operation or a move does where an input is on a grid;
    with operands of both kinds it does unless everything after it is float. A network input is on a grid where what
    follows leads to a convolution, or to an output without a float operation between. Constants follow their users.

    Args:
        graph: from ``intact.capture.fuse``.
        forced: name → reason for nodes that have to stay float.
    """
    reasons: dict[str, str] = {}
    for node in graph:
        reason = forced.get(node.name) or _incapable(node, graph)
        if reason is not None and node.op not in ("input", "constant"):
            reasons[node.name] = reason
    flexible = _flexible(graph, reasons)
    users = graph.users()
    while True:
        known = len(reasons)
        grids = _on_grid_inputs(graph, users, reasons)
        for node in graph:
            if node.op in HEAVY or node.op in ("input", "constant") or node.name in reasons or node.name in flexible:
                continue
            operands = [i for i in node.inputs if i not in flexible]
            floats = [i for i in operands if i in reasons or (graph.nodes[i].op == "input" and i not in grids)]
            after = users[node.name]
            all_float_after = bool(after) and node.name not in graph.outputs and all(u in reasons for u in after)
            if len(floats) == len(operands) or (floats and all_float_after):
                reasons[node.name] = "between float operations, where integers would add transitions"
        if len(reasons) == known:
            break
    integer = {n.name for n in graph if n.name not in reasons and n.name not in flexible and n.op != "input"}
    for node in reversed(list(graph)):
        if node.name in flexible:
            after = users[node.name]
            if after and node.name not in graph.outputs and all(u in integer for u in after):
                integer.add(node.name)
    listed = {
        name: reason
        for name, reason in reasons.items()
        if name in forced or not (is_move(graph.nodes[name]) or _is_index(graph.nodes[name]))
    }
    return Domains(frozenset(integer), listed)


def _incapable(node: Node, graph: Graph) -> str | None:
    """Why ``node`` cannot compute on integers, None where it can."""
    dtypes = {node.dtype, *(graph.nodes[i].dtype for i in node.inputs)}
    if node.op not in HEAVY | LIGHT and not is_move(node):
        return f"no integer form yet: {_NAMES.get(node.op) or _describe(node)}"
    if dtypes != {"float32"}:
        return f"its numbers are {', '.join(sorted(dtypes - {'float32'}))}, not float32"
    if node.op == "mean":
        shape = graph.nodes[node.inputs[0]].shape
        if any(shape[d] is None for d in node.attrs["dims"]):
            return "no integer form yet: a mean over the batch"
    if node.op == "scale_shift" and (len(node.shape) < 2 or node.shape[1] is None):
        return "no integer form yet: channels that change from call to call"
    if node.op == "roll" and not node.attrs["dims"]:
        return "no integer form yet: rolling the flattened tensor"
    return None


def _describe(node: Node) -> str:
    if node.op == "upsample":
        return f"{node.attrs['mode']} upsampling"
    if node.op in ("reduce", "compare", "unary"):
        return str(node.attrs.get("fn", node.op))
    return node.op.replace("_", " ")


def _is_index(node: Node) -> bool:
    """Whether the values are no real numbers to begin with: indices and masks are not what quantization left out."""
    return not node.dtype.startswith("float") and node.op not in ("reduce", "compare", "cast")


def _flexible(graph: Graph, reasons: Mapping[str, str]) -> set[str]:
    """float32 constants, and moves of nothing but those: known before the network runs, so a transition is free."""
    out: set[str] = set()
    for node in graph:
        constant = node.op == "constant" and node.dtype == "float32"
        moved = is_move(node) and bool(node.inputs) and all(i in out for i in node.inputs) and node.name not in reasons
        if constant or moved:
            out.add(node.name)
    return out


def _on_grid_inputs(graph: Graph, users: Mapping[str, list[str]], reasons: Mapping[str, str]) -> set[str]:
    """Network inputs that integer operations should read."""
    leads: dict[str, bool] = {}
    for node in reversed(list(graph)):
        if node.op == "input":
            leads[node.name] = node.dtype == "float32" and any(leads[u] for u in users[node.name])
        elif node.name in reasons or node.op == "constant":
            leads[node.name] = False
        else:
            ends = node.name in graph.outputs and not is_move(node)
            leads[node.name] = node.op in HEAVY or ends or any(leads[u] for u in users[node.name])
    return {name for name, yes in leads.items() if yes and graph.nodes[name].op == "input"}
