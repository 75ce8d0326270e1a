"""The partition into nodes that compute on integers and nodes that compute in float, with few transitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from intact8.capture.decisions import only_decide
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import HEAVY, LIGHT, NONLINEAR, UNIVARIATE
from intact8.placement.error_amplification import amplifying

_NAMES = {"batch_norm": "batch norm without running statistics", "div": "division by a tensor"}


@dataclass(frozen=True)
class Partition:
    """What :func:`partition` returns.

    Attributes:
        integer: names of the nodes that compute on integers; constants read as integers only are among them.
        dequantized: those of them, convolutions and linear maps, whose sums become float32.
        reasons: why each other operation stays float. Moves between float operations are no entry: they convert
            nothing and compute nothing.
    """

    integer: frozenset[str]
    dequantized: frozenset[str]
    reasons: dict[str, str]


def partition(
    graph: Graph,
    forced: Mapping[str, str],
    *,
    nonlinear: bool = False,
    rounded: Callable[[str], bool] = lambda name: False,
    shared: bool = False,
    sums: Set[str] = frozenset(),
) -> Partition:
    """Divide a fused graph.

    A convolution or linear map always runs as integers. A light operation or a move does where an input is on a grid;
    with operands of both kinds it does unless everything after it is float, directly or behind moves and arithmetic
    with constants, or light arithmetic that ends in the network's results: those are float anyway, and every rounding
    on the way is for nothing. A sum with a constant (a mask, a position) before float operations alone is one of them,
    and so is a sum that float norms and further sums read: the residual stream of a transformer, rounded once per
    block, would lose its small values. A concatenation of several tensors before float operations alone (boxes in
    pixels and scores from 0 to 1, the last states of the layers of a recurrent network) is one, too: all would share
    one grid. What a division would amplify the rounding of stays float (see
    ``intact8.placement.error_amplification``). A network input is on a grid where what follows leads to a convolution,
    or to an output without a float operation between; a move of one that only float operations read takes what was
    given. Constants follow their users.

    A function of one number of which only comparisons and casts to integers are made stays float as well: the ends of a
    clamp, or the signs that a function gives, lie between the numbers of a grid.

    What nothing but float operations and the network's results read of a convolution or linear map, directly or behind
    moves, is not rounded to a grid at all: its sums become float32.

    Args:
        graph: from ``intact8.fusion.fuse``.
        forced: name → reason for nodes that have to stay float.
        nonlinear: whether softmax, layer norm, RMS norm and embeddings are light operations, too. An embedding reads no
            grid, its rows are integers to begin with.
        rounded: whether the result of a node has to be on a grid somewhere.
        shared: whether sums become float32 also where some of their readers are layers on integers.
        sums: layers whose weights only add up, see :func:`intact8.placement.error_amplification.weighted_sums`.
    """
    reasons: dict[str, str] = {}
    steep = amplifying(graph, sums) | _decisive(graph)
    for node in graph:
        reason = forced.get(node.name) or _incapable(node, graph, nonlinear) or steep.get(node.name)
        if reason is not None and node.op not in ("input", "constant"):
            reasons[node.name] = reason
    flexible, users = _flexible(graph, reasons), graph.users()
    ending, known = _ending(graph, users), -1
    while len(reasons) != known:
        known = len(reasons)
        grids = _quantized_inputs(graph, users, reasons)
        # Nodes come in order, so that a node's turn is before that of what follows it, which is as it was found here.
        ahead = _After(_leading(graph, users, reasons, ending), _moved_to_floats(graph, users, reasons))
        for node in graph:
            if node.op not in HEAVY | {"input", "constant"} and node.name not in flexible and node.name not in reasons:
                reason = _not_worthwhile(node, graph, users, reasons, flexible, grids, ahead)
                if reason is not None:
                    reasons[node.name] = reason
    integer = {n.name for n in graph if n.op not in ("input", "constant")} - reasons.keys() - flexible
    dequantized, moved = _float_results(graph, users, integer, rounded, shared)
    integer -= moved
    for node in reversed(list(graph)):
        after = users[node.name] if node.name in flexible and node.name not in graph.outputs else []
        if after and all(u in integer for u in after):
            integer.add(node.name)
    listed = {
        name: reason
        for name, reason in reasons.items()
        if name in forced or not (graph.nodes[name].moves or _is_index(graph.nodes[name], graph))
    }
    return Partition(frozenset(integer), frozenset(dequantized), listed)


def _decisive(graph: Graph) -> dict[str, str]:
    """Return the functions of one number whose results are only compared, or cast to integers, and why they stay so."""
    found = only_decide(graph)
    why = "it is compared, or cast to integers, and the numbers of a grid are others than those that it gives"
    return {n.name: why for n in graph if n.name in found and (n.op == "table" or n.op in UNIVARIATE)}


def _float_results(
    graph: Graph, users: Mapping[str, list[str]], integer: Set[str], rounded: Callable[[str], bool], shared: bool
) -> tuple[set[str], set[str]]:
    """Return the convolutions and linear maps that float operations read, and the moves between the two."""
    read_as_float: set[str] = set()
    for node in reversed(list(graph)):
        readers = [u not in integer or (u in read_as_float and graph.nodes[u].shares_grid) for u in users[node.name]]
        readers += [True] * (node.name in graph.outputs)
        if all(readers) and rounded(node.name):
            continue
        if readers and (any(readers) if shared else all(readers)):
            read_as_float.add(node.name)
    layers = {n.name for n in graph if n.op in HEAVY and n.name in integer & read_as_float}
    found = set(layers)
    for node in graph:
        if node.shares_grid and node.name in integer & read_as_float and not found.isdisjoint(node.inputs):
            found.add(node.name)
    return layers, found - layers


class _After(NamedTuple):
    """Nodes that only float operations follow, and nodes that only such operations read: see below."""

    leading: set[str]
    moved_to_floats: set[str]


def _not_worthwhile(
    node: Node,
    graph: Graph,
    users: Mapping[str, list[str]],
    reasons: Mapping[str, str],
    flexible: Set[str],
    grids: Set[str],
    ahead: _After,
) -> str | None:
    """Return why a light operation or a move stays float, given those that do already; None if it need not."""
    operands = [i for i in node.inputs if i not in flexible and not _no_number(node, i, graph)]
    floats = [i for i in operands if i in reasons or (graph.nodes[i].op == "input" and i not in grids)]
    after = users[node.name]
    # The network's results are float: an operand that is float already would be rounded for nothing.
    all_float_after = bool(after or node.name in graph.outputs) and ahead.leading.issuperset(after)
    rows = node.op == "embedding"
    if (len(floats) == len(operands) and not rows) or ((floats or rows) and all_float_after):
        return "between float operations, where integers would add transitions"
    moves_input = node.shares_grid and any(graph.nodes[i].op == "input" for i in operands)
    if moves_input and node.name in ahead.moved_to_floats:
        return "moves an input, which is there as it was given, before float operations"
    with_constant = node.op in ("add", "sub") and len(operands) < len(node.inputs)
    if with_constant and node.name in ahead.moved_to_floats:
        return "adds a constant before float operations, where integers would only cost accuracy"
    if node.op in ("add", "cat") and _is_stream(node.name, graph, users, reasons):
        return "the residual stream between float norms, where integers would only cost accuracy"
    if node.op == "cat" and all_float_after and len({graph.origin(i).name for i in operands}) > 1:
        return "joins tensors before float operations alone, which would all share one grid"
    return None


def _leading(graph: Graph, users: Mapping[str, list[str]], reasons: Mapping[str, str], ending: Set[str]) -> set[str]:
    """Return the nodes that only float operations follow: float ones, moves and arithmetic with constants before some,
    and light arithmetic whose results are the network's (``ending``)."""
    found: set[str] = set()
    for node in reversed(list(graph)):
        if node.name in reasons or node.name in ending:
            found.add(node.name)
        elif users[node.name] and node.name not in graph.outputs and found.issuperset(users[node.name]):
            numbers = [i for i in node.inputs if graph.nodes[i].op != "constant"]
            with_constants = node.op in ("add", "sub", "mul") and len(numbers) < 2
            if node.shares_grid or with_constants or node.op == "scale_shift":
                found.add(node.name)
    return found


def _moved_to_floats(graph: Graph, users: Mapping[str, list[str]], reasons: Mapping[str, str]) -> set[str]:
    """Return the nodes that only float operations read, directly or after moves: a mask before a softmax."""
    found: set[str] = set()
    for node in reversed(list(graph)):
        read = users[node.name] if node.name not in graph.outputs else []
        if read and all(u in reasons or (graph.nodes[u].shares_grid and u in found) for u in read):
            found.add(node.name)
    return found


def _ending(graph: Graph, users: Mapping[str, list[str]]) -> set[str]:
    """Return the nodes that are, with all that follows up to the results of the network, moves and light arithmetic."""
    found: set[str] = set()
    for node in reversed(list(graph)):
        light, read = node.op in LIGHT or node.shares_grid, users[node.name]
        if light and (read or node.name in graph.outputs) and found.issuperset(read):
            found.add(node.name)
    return found


def _is_stream(name: str, graph: Graph, users: Mapping[str, list[str]], reasons: Mapping[str, str]) -> bool:
    """Return whether a float norm reads the sum or concatenation ``name``, and the sums it goes on to.

    A convolution or linear map may read the stream as well, from a grid of its own: positional convolutions do.
    """
    norms, sums = 0, 0
    seen, todo = set[str](), list(users[name])
    while todo:
        node = graph.nodes[todo.pop()]
        if node.name in seen:
            continue
        seen.add(node.name)
        with_constant = node.op == "add" and any(graph.origin(i).op == "constant" for i in node.inputs)
        if node.op in ("layer_norm", "rms_norm") and node.name in reasons:
            norms += 1
        elif with_constant and node.name not in graph.outputs:
            todo += users[node.name]  # positions, which join the stream before it begins
        elif node.op in ("add", "cat"):
            sums += 1
            # A class token and what it is joined with are one stream.
            todo += users[node.name] if node.op == "cat" else []
        elif node.op in ("dropout", "reshape", "permute", "slice", "expand") and node.name not in graph.outputs:
            todo += users[node.name]
        elif node.op not in HEAVY:
            return False
    return norms > 0 and sums > 0


def _no_number(node: Node, name: str, graph: Graph) -> bool:
    """Return whether ``name`` is the index or the mask of an operation, which no grid is for."""
    return node.op in NONLINEAR and graph.nodes[name].dtype in ("int64", "bool")


def _incapable(node: Node, graph: Graph, nonlinear: bool) -> str | None:
    """Return why ``node`` cannot compute on integers, None where it can."""
    dtypes = {node.dtype, *(graph.nodes[i].dtype for i in node.inputs if not _no_number(node, i, graph))}
    if node.op in NONLINEAR and not nonlinear:
        return f'{_describe(node)} is float in this recipe (nonlinear = "float")'
    if node.op not in HEAVY | LIGHT | NONLINEAR and not node.shares_grid:
        return f"no integer form yet: {_NAMES.get(node.op) or _describe(node)}"
    if dtypes != {"float32"}:
        return f"its numbers are {', '.join(sorted(dtypes - {'float32'}))}, not float32"
    if node.op == "mean":
        shape = graph.nodes[node.inputs[0]].shape
        changing = [shape[d] or "the batch" for d in node.attrs["dims"] if not isinstance(shape[d], int)]
        if changing:
            return f"no integer form yet: a mean over {changing[0]}"
    if node.op == "scale_shift" and (len(node.shape) < 2 or not isinstance(node.shape[1], int)):
        return "no integer form yet: channels that change from call to call"
    if node.integer_kind is not None:
        lacking = node.integer_kind.lacks_form(node.attrs, graph.nodes[node.inputs[0]].shape)
        if lacking is not None:
            return f"no integer form yet: {_describe(node)} with {lacking}"
    if node.op == "roll" and not node.attrs["dims"]:
        return "no integer form yet: rolling the flattened tensor"
    return None


def _describe(node: Node) -> str:
    if node.op == "upsample":
        return f"{node.attrs['mode']} upsampling"
    if node.op in ("reduce", "compare", "unary"):
        return str(node.attrs.get("fn", node.op))
    return node.op.replace("_", " ")


def _is_index(node: Node, graph: Graph) -> bool:
    """Return whether the values are indices or masks, which quantization does not leave out."""
    if node.dtype.startswith("float"):
        return False
    real = any(graph.nodes[i].dtype.startswith("float") for i in node.inputs)
    return node.op not in ("reduce", "compare", "cast") or not real


def _flexible(graph: Graph, reasons: Mapping[str, str]) -> set[str]:
    """Return float32 constants, and moves of nothing else: they are known ahead, so a transition is free."""
    out: set[str] = set()
    for node in graph:
        constant = node.op == "constant" and node.dtype == "float32"
        values = node.inputs[:1] if node.op == "expand" else node.inputs  # of the other it takes the batch size only
        moved = node.shares_grid and bool(values) and all(i in out for i in values)
        if constant or (moved and node.name not in reasons):
            out.add(node.name)
    return out


def _quantized_inputs(graph: Graph, users: Mapping[str, list[str]], reasons: Mapping[str, str]) -> set[str]:
    """Return the network inputs that integer operations should read."""
    leads: dict[str, bool] = {}
    for node in reversed(list(graph)):
        if node.op == "input":
            leads[node.name] = node.dtype == "float32" and any(leads[u] for u in users[node.name])
        elif node.name in reasons or node.op == "constant":
            leads[node.name] = False
        else:
            ends = node.name in graph.outputs and not node.shares_grid
            leads[node.name] = node.op in HEAVY or ends or any(leads[u] for u in users[node.name])
    return {name for name, yes in leads.items() if yes and graph.nodes[name].op == "input"}
