"""A graph in blocks that are reconstructed one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from intact8.capture.graph import Graph

ENOUGH, MOST = 2, 12
"""Layers of a block: a chain of layers is cut after ENOUGH of them, and what no single tensor leaves after MOST."""


@dataclass(frozen=True)
class Block:
    """Consecutive nodes of a graph.

    Attributes:
        first, last: positions of its nodes in the graph, both included.
        layers: names of its layers whose weights are rounded.
        inputs: what it reads of nodes before it, the network's inputs among them.
        outputs: what later nodes, or the user, read of it.
    """

    first: int
    last: int
    layers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def blocks_of(graph: Graph, layers: set[str], *, single: bool = False) -> list[Block]:
    """Return the blocks of a graph in execution order; together they are all of its nodes.

    Args:
        graph: placed.
        layers: names of the nodes whose weights are rounded.
        single: every layer is a block of its own (AdaRound); else a block ends where one tensor is all that later
            nodes read (residual blocks, halves of a transformer's layer).
    """
    nodes = list(graph)
    last_use = {name: position for position, node in enumerate(nodes) for name in node.inputs}
    last_use |= dict.fromkeys(graph.outputs, len(nodes))
    free = {node.name for node in nodes if node.op in ("input", "constant")}
    live: set[str] = set()
    found: list[Block] = []
    first, inside = 0, 0
    for position, node in enumerate(nodes):
        live = {name for name in live if last_use.get(name, -1) > position}
        if node.name not in free and last_use.get(node.name, -1) > position:
            live.add(node.name)
        inside += node.name in layers
        narrow = len(live) == 1 and inside >= ENOUGH
        if (single and inside) or narrow or inside >= MOST or position == len(nodes) - 1:
            found.append(_block(graph, first, position, layers, last_use))
            first, inside = position + 1, 0
    return found


def _block(graph: Graph, first: int, last: int, layers: set[str], last_use: dict[str, int]) -> Block:
    nodes = list(graph)[first : last + 1]
    names = {node.name for node in nodes}
    inputs = dict.fromkeys(name for node in nodes for name in node.inputs if name not in names)
    inputs |= dict.fromkeys(node.name for node in nodes if node.op == "input")
    outputs = [n.name for n in nodes if last_use.get(n.name, -1) > last and n.op not in ("input", "constant")]
    return Block(first, last, tuple(n.name for n in nodes if n.name in layers), tuple(inputs), tuple(outputs))
