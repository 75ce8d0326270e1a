"""Tensors whose rounding a division would blow up: they stay float from the ordinary activation to the quotient.

Eight bits hold a tensor's large values; a small one becomes 0, and what divides by it explodes. Divisors, arguments of
reciprocals, square roots and logarithms, what is divided, and the squares, sums, means and exponentials these are made
of are therefore never rounded to a grid: they are one float island between the last ordinary activation (the result of
a layer, a norm or an activation function) and the result of the division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from intact8.capture.graph import MOVES, Graph, Node

AMPLIFIED = "a small number in 8 bits is 0, and a division would amplify that"
"""The reason given for such operations."""

_STEEP = frozenset({"rsqrt", "sqrt", "log", "reciprocal", "tan", "atanh"})
_WIDE = frozenset({"rsqrt", "reciprocal", "tan"})
_SATURATING = frozenset({"exp", "sigmoid", "tanh", "softplus", "erf", "hardsigmoid"})
"""Functions behind which a steep one meets no number near its pole: 1 / (1 + exp(−x)), log(1 + exp(x))."""

_LAYERS = frozenset(
    {"conv", "linear", "batch_norm", "layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "embedding",
     "input", "constant", "lstm", "gru", "rnn"}
)  # fmt: skip
"""Operations whose results are ordinary activations, whatever they read."""

_CARRIERS = frozenset({"add", "mul", "scale_shift", "avg_pool", "adaptive_avg_pool", "upsample"}) | MOVES
"""Operations whose results are ordinary where all they read is."""

_ACTIVATIONS = frozenset({"table", "unary", "affine_scalar", "relu", "clamp", "leaky_relu", "prelu"})

_STRETCHING = frozenset({"abs", "square", "pow", "exp"}) | _STEEP
"""Functions that an activation function is not: what they make of an ordinary tensor, a division may amplify."""

_VANISHING = frozenset({"exp", "elu", "softplus", "sigmoid", "hardsigmoid", "softmax"})
"""Functions that make weights of scores: positive, and as small as they like."""


def amplified(graph: Graph) -> dict[str, str]:
    """Name → reason for every operation that stays float because a division would amplify its rounding.

    Args:
        graph: from ``intact8.fusion.fuse``.

    Example:
        >>> g = Graph({"x": Node("x", "input"), "s": Node("s", "mul", ["x", "x"]), "m": Node("m", "mean", ["s"]),
        ...            "r": Node("r", "table", ["m"], {"chain": [{"op": "unary", "attrs": {"fn": "rsqrt"}}]}),
        ...            "y": Node("y", "mul", ["x", "r"])}, ["x"], ["y"])
        >>> list(amplified(g))
        ['s', 'm', 'r', 'y']
    """
    wide = _wide(graph)
    marked, differences = _before(graph, _ends(graph, wide), _ordinary(graph, _LAYERS - _VANISHING, _VANISHING))
    # Of what an exponential reads differences matter, not ratios: scores in 8 bits do, as before a softmax.
    marked |= _before(graph, differences, _ordinary(graph, _LAYERS | {"matmul"}, frozenset()))[0]
    marked |= wide | {n.name for n in graph if n.op == "mul" and any(i in wide for i in n.inputs)}
    return {node.name: AMPLIFIED for node in graph if node.name in marked}


def _ends(graph: Graph, wide: Set[str]) -> list[str]:
    """Tensors that a division or a steep function reads."""
    out: list[str] = []
    for node in graph:
        divides = node.op == "div" and not _constant(graph, node.inputs[1])
        if divides or _is_steep(node) or (node.op == "mul" and any(i in wide for i in node.inputs)):
            out += node.inputs
    return out


def _before(graph: Graph, ends: Sequence[str], ordinary: Set[str]) -> tuple[set[str], list[str]]:
    """Operations between ordinary activations and ``ends``, and what the vanishing functions among them read."""
    seen: set[str] = set()
    differences: list[str] = []
    todo = list(ends)
    while todo:
        node = graph.nodes[todo.pop()]
        if node.name in seen or node.name in ordinary or not node.dtype.startswith("float"):
            continue
        seen.add(node.name)
        (differences if _vanishes(node, _VANISHING) else todo).extend(node.inputs)
    return seen, differences


def _constant(graph: Graph, name: str) -> bool:
    """Whether ``name`` is known before the network runs."""
    node = graph.nodes[name]
    while node.op in MOVES:
        node = graph.nodes[node.inputs[0]]
    return node.op == "constant"


def _steps(node: Node) -> list[tuple[str, Mapping[str, Any]]]:
    """The functions of one number that ``node`` applies, in order."""
    if node.op == "table":
        chain = node.attrs["chain"]
        return [(s.get("attrs", {}).get("fn", s["op"]), s.get("attrs", {})) for s in chain]
    return [(str(node.attrs["fn"]), node.attrs)] if node.op == "unary" else []


def _vanishes(node: Node, functions: Set[str]) -> bool:
    """Whether ``node`` applies one of these functions, whose small values 8 bits make 0."""
    return node.op in functions or any(fn in functions for fn, _ in _steps(node))


def _is_steep(node: Node) -> bool:
    """Whether a small change of what ``node`` reads may be a large one of its result."""
    squared = False
    for fn, attrs in _steps(node):
        if fn in _SATURATING:
            return False
        if fn in _STEEP or (fn == "pow" and not float(attrs["exponent"]).is_integer()):
            return not (squared and fn == "sqrt")
        if fn == "pow" and attrs["exponent"] < 0:
            return True
        squared = squared or fn in ("square", "abs")
    return False


def _wide(graph: Graph) -> set[str]:
    """Reciprocals: tensors whose largest values leave a grid no steps for the others."""
    out: set[str] = set()
    for node in graph:
        steps = _steps(node)
        made = _is_steep(node) and any(fn in _WIDE or (fn == "pow" and a["exponent"] < 0) for fn, a in steps)
        numbers = [i for i in node.inputs if graph.nodes[i].op != "constant"]
        carried = any(i in out for i in numbers) and (
            node.op in MOVES
            or node.op in ("add", "sub", "scale_shift")
            or (node.op == "mul" and len(numbers) == 1)
            or (bool(steps) and all(fn in ("affine_scalar", "neg", "abs") for fn, _ in steps))
        )
        if made or carried:
            out.add(node.name)
    return out


def _ordinary(graph: Graph, makers: Set[str], vanishing: Set[str]) -> set[str]:
    """Results of ``makers``, activation functions of them (but the ``vanishing`` ones), their sums and products."""
    out: set[str] = set()
    for node in graph:
        known = bool(node.inputs) and all(i in out for i in node.inputs)
        if _vanishes(node, vanishing):
            continue
        steps = [fn for fn, _ in _steps(node)]
        activation = node.op in _ACTIVATIONS and not any(fn in _STRETCHING for fn in steps)
        square = node.op == "mul" and len(set(node.inputs)) < len(node.inputs)
        # Two ranges on one grid, as behind a concatenation: the column of ones in a divisor.
        joined = node.op == "pad" and node.attrs["value"] != 0
        if node.op in makers or (known and not square and not joined and (activation or node.op in _CARRIERS)):
            out.add(node.name)
    return out
