"""Tensors whose rounding a division would amplify: they stay float from the ordinary activation to the quotient.

Eight bits hold a tensor's large values; a small one becomes 0, and what divides by it explodes. Divisors, arguments of
reciprocals, square roots and logarithms, what is divided, and the squares, sums, means and exponentials these are made
of are therefore never rounded to a grid: they are one float island between the last ordinary activation (the result of
a layer, a norm or an activation function) and the result of the division. A layer whose weights only add up, as
the bands of a filterbank, is like a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch import Tensor

from intact8.arithmetic.unary_functions import UNARY, Function
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import LAYERS, UNIVARIATE

AMPLIFIED = "a small number in 8 bits is 0, and a division would amplify that"
"""The reason given for such operations."""

_ORDINARY = LAYERS | {"softmax", "log_softmax", "input", "constant"}
"""Operations whose results are ordinary activations, whatever they read."""

_CARRIERS = frozenset({"add", "mul", "scale_shift", "avg_pool", "adaptive_avg_pool", "upsample"})
"""Operations whose results are ordinary where all they read is; so are those of moves."""


def amplifying(graph: Graph, sums: Set[str] = frozenset()) -> dict[str, str]:
    """Return the name → reason for every operation that stays float because a division would amplify its rounding.

    Args:
        graph: from ``intact8.fusion.fuse``.
        sums: layers whose weights only add up, see :func:`weighted_sums`.

    Example:
        >>> g = Graph({"x": Node("x", "input"), "s": Node("s", "mul", ["x", "x"]), "m": Node("m", "mean", ["s"]),
        ...            "r": Node("r", "table", ["m"], {"chain": [{"op": "unary", "attrs": {"fn": "rsqrt"}}]}),
        ...            "y": Node("y", "mul", ["x", "r"])}, ["x"], ["y"])
        >>> list(amplifying(g))
        ['s', 'm', 'r', 'y']
    """
    unbounded = _unbounded(graph)
    marked, differences = _before(graph, _ends(graph, unbounded), _ordinary(graph, sums, vanishing=False))
    # An exponential turns differences into ratios: scores in 8 bits are enough for it, as before a softmax.
    marked |= _before(graph, differences, _ordinary(graph, sums, vanishing=True))[0]
    marked |= unbounded | {n.name for n in graph if n.op == "mul" and any(i in unbounded for i in n.inputs)}
    return {node.name: AMPLIFIED for node in graph if node.name in marked}


def weighted_sums(graph: Graph, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the names of layers that add up what they read by weights of which some are 0 and none is below, as the
    bands of a filterbank do: of powers, say, of which a logarithm is taken. They are no ordinary activations."""

    def adds_up(node: Node) -> bool:
        of = node.params.get("weight")
        if node.op == "matmul":
            held = [graph.origin(name) for name in node.inputs]
            of = next((n.params["value"] for n in held if n.op == "constant"), None)
        weight = tensors.get(of) if of is not None and "bias" not in node.params and "bn" not in node.attrs else None
        return weight is not None and weight.numel() > 1 and float(weight.min()) == 0 < float(weight.max())

    return frozenset(node.name for node in graph if node.op in ("linear", "conv", "matmul") and adds_up(node))


def _ends(graph: Graph, unbounded: Set[str]) -> list[str]:
    """Return the tensors that a division or a steep function reads."""
    out: list[str] = []
    for node in graph:
        divides = node.op == "div" and graph.origin(node.inputs[1]).op != "constant"
        if divides or _is_steep(node) or (node.op == "mul" and any(i in unbounded for i in node.inputs)):
            out += node.inputs
    return out


def _before(graph: Graph, ends: Sequence[str], ordinary: Set[str]) -> tuple[set[str], list[str]]:
    """Return the operations between ordinary activations and ``ends``, and what vanishing functions among them read."""
    seen: set[str] = set()
    differences: list[str] = []
    todo = list(ends)
    while todo:
        node = graph.nodes[todo.pop()]
        if node.name in seen or node.name in ordinary or not node.dtype.startswith("float"):
            continue
        seen.add(node.name)
        (differences if _vanishes(node) else todo).extend(node.inputs)
    return seen, differences


def _steps(node: Node) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the functions of one number that ``node`` applies, in order."""
    if node.op == "table":
        chain = node.attrs["chain"]
        return [(s.get("attrs", {}).get("fn", s["op"]), s.get("attrs", {})) for s in chain]
    return [(str(node.attrs["fn"]), node.attrs)] if node.op == "unary" else []


def _functions(node: Node) -> list[tuple[Function, Mapping[str, Any]]]:
    """Return those of its steps that are named functions."""
    return [(UNARY[fn], attrs) for fn, attrs in _steps(node) if fn in UNARY]


def _vanishes(node: Node) -> bool:
    """Return whether ``node`` makes small positive values, which 8 bits make 0."""
    return node.op == "softmax" or any(function.vanishes for function, _ in _functions(node))


def _is_steep(node: Node) -> bool:
    """Return whether a small change of what ``node`` reads may be a large one of its result."""
    squared = False
    for function, attrs in _functions(node):
        exponent = attrs.get("exponent", 1)
        if function.keeps_off_poles:
            return False
        if function.steep or not float(exponent).is_integer():
            return not (squared and function is UNARY["sqrt"])
        if exponent < 0:
            return True
        squared = squared or function in (UNARY["square"], UNARY["abs"])
    return False


def _unbounded(graph: Graph) -> set[str]:
    """Return reciprocals: tensors whose largest values leave a grid no steps for the others."""
    out: set[str] = set()
    for node in graph:
        steps = _steps(node)
        made = _is_steep(node) and any(f.pole or attrs.get("exponent", 1) < 0 for f, attrs in _functions(node))
        numbers = [i for i in node.inputs if graph.nodes[i].op != "constant"]
        carried = any(i in out for i in numbers) and (
            (node.moves and node.op != "cat")
            or node.op in ("add", "sub", "scale_shift")
            or (node.op == "mul" and len(numbers) == 1)
            or (bool(steps) and all(fn in ("affine_scalar", "neg", "abs") for fn, _ in steps))
        )
        if made or carried:
            out.add(node.name)
    return out


def _ordinary(graph: Graph, sums: Set[str], *, vanishing: bool) -> set[str]:
    """Return results of layers but of ``sums``, activation functions of them, and their sums and products.

    Where ``vanishing`` ones are among them, so are products of two activations, which are the scores of an attention.
    """
    out: set[str] = set()
    for node in graph:
        known = bool(node.inputs) and all(i in out for i in node.inputs)
        if not vanishing and _vanishes(node):
            continue
        stretches = any(function.stretches or function.steep for function, _ in _functions(node))
        activation = (node.op in UNIVARIATE or node.op == "table") and not stretches
        carries = node.op in _CARRIERS or (node.moves and node.op != "cat")
        square = node.op == "mul" and len(set(node.inputs)) < len(node.inputs)
        # The padding has another range than the tensor (a column of ones in a divisor), as in a concatenation.
        joined = node.op == "pad" and node.attrs["value"] != 0
        made = (node.op in _ORDINARY and node.name not in sums) or (vanishing and node.op == "matmul")
        if made or (known and not square and not joined and (activation or carries)):
            out.add(node.name)
    return out
