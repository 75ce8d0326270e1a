"""Which tensors share a scale and a zero point: union-find over moves and concatenations."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from intact8.capture.graph import Graph, Node, unique
from intact8.placement.assign_schemes import NodeSchemes
from intact8.recipe.scheme import Scheme


@dataclass
class Point:
    """One scale and zero point.

    Attributes:
        name: the first module or operation, in execution order, whose result has these qparams. A quantized input
            or result of a float operation has the name of that input or operation.
        scheme: what the recipe asks for.
        tensors: nodes whose integers carry these qparams, in execution order.
        observed: those of them whose values decide the range: everything but moves, which bring no new values.
        constant: whether all of them are constants of the network.
    """

    name: str
    scheme: Scheme
    tensors: list[str]
    observed: list[str]
    constant: bool = False


class _Groups:
    def __init__(self) -> None:
        self.parent: dict[str, str] = {}
        self.scheme: dict[str, Scheme] = {}
        self.explicit: dict[str, bool] = {}

    def add(self, name: str, scheme: Scheme, explicit: bool) -> None:
        self.parent[name], self.scheme[name], self.explicit[name] = name, scheme, explicit

    def find(self, name: str) -> str:
        root = name
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[name] != root:
            self.parent[name], name = root, self.parent[name]
        return root

    def may_unite(self, into: str, other: str) -> bool:
        """Return whether ``other`` may take part in ``into``, as far as schemes go."""
        a, b = self.find(into), self.find(other)
        if a == b or self.scheme[a] == self.scheme[b]:
            return True
        # Fixed qparams describe one tensor; forcing them on others would clip those.
        if self.scheme[b].fixed is not None or (self.explicit[a] and self.explicit[b]):
            return False
        return self.scheme[a].fixed is None or self.explicit[a]

    def unite(self, into: str, other: str) -> None:
        """Make one group of two; an explicit scheme wins, else that of ``into``."""
        a, b = self.find(into), self.find(other)
        if a == b:
            return
        self.parent[b] = a
        if self.explicit[b] and not self.explicit[a]:
            self.scheme[a], self.explicit[a] = self.scheme[b], True


def share_qparams(graph: Graph, integer: Set[str], requests: NodeSchemes) -> list[Point]:
    """Find the quantization points of a placed graph, in execution order.

    What shares the grid of its only input joins it. A ``cat`` joins all its inputs, except one whose scheme cannot be
    shared (fixed qparams, or another scheme somebody named): that one gets a ``requantize`` node, added to ``graph``.
    """
    groups = _Groups()
    for node in list(graph):
        if node.name not in integer:
            continue
        if node.shares_grid and node.op != "cat":
            groups.add(node.name, groups.scheme[groups.find(node.inputs[0])], False)
            groups.unite(node.inputs[0], node.name)
            continue
        owner = requests.owner(node)
        groups.add(node.name, requests.activation(owner), requests.explicit(owner))
        if node.op == "cat":
            _join(graph, node, groups)
    return _collect(graph, groups, requests)


def _join(graph: Graph, cat: Node, groups: _Groups) -> None:
    """Unite ``cat`` with its inputs. Inputs that agree among themselves go first, so that a fixed one gives way."""

    def is_fixed(position: int) -> bool:
        return groups.scheme[groups.find(cat.inputs[position])].fixed is not None

    for position in sorted(range(len(cat.inputs)), key=is_fixed):
        name = cat.inputs[position]
        # A constant's own scheme is a default that nobody named.
        free = graph.origin(name).op == "constant" and not groups.explicit[groups.find(name)]
        if free or groups.may_unite(cat.name, name):
            groups.unite(cat.name, name)
        else:
            cat.inputs[position] = _requantize(graph, name, cat, groups)


def _requantize(graph: Graph, name: str, cat: Node, groups: _Groups) -> str:
    """Insert a node before ``cat`` that brings ``name`` to the grid of ``cat``."""
    origin = graph.nodes[name]
    made = unique(f"{name}.requantize", graph.nodes)
    node = Node(made, "requantize", [name], {}, {}, cat.module, cat.module_type, origin.shape, origin.dtype)
    nodes: dict[str, Node] = {}
    for key, value in graph.nodes.items():
        if key == cat.name:
            nodes[made] = node
        nodes[key] = value
    graph.nodes = nodes
    groups.add(made, groups.scheme[groups.find(cat.name)], False)
    groups.unite(cat.name, made)
    return made


def _collect(graph: Graph, groups: _Groups, requests: NodeSchemes) -> list[Point]:
    """Return points with their tensors in execution order, named after the first node that computes values."""
    members: dict[str, list[Node]] = {}
    for node in graph:
        if node.name in groups.parent:
            members.setdefault(groups.find(node.name), []).append(node)
    out = []
    for root, nodes in members.items():
        makers = [n for n in nodes if not n.shares_grid]
        first = next((n for n in makers if n.op not in ("requantize", "constant")), None)
        first = first or next((n for n in nodes if n.op == "cat"), makers[0])
        name = first.inputs[0] if first.op == "quantize" else requests.owner(first)
        # A pad with another value than 0 brings that value in.
        observed = [n.name for n in nodes if not n.shares_grid or (n.op == "pad" and n.attrs["value"] != 0)]
        constant = all(n.op == "constant" for n in makers)
        out.append(Point(name, groups.scheme[root], [n.name for n in nodes], observed, constant))
    return out
