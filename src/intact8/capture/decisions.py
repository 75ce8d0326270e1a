"""What is only compared, or cast to integers."""

from __future__ import annotations

from intact8.capture.graph import Graph
from intact8.capture.operations import UNIVARIATE


def only_decide(graph: Graph) -> set[str]:
    """Return the nodes whose results are only compared, or cast to integers, directly or behind functions and moves.

    Example:
        >>> from intact8.capture.graph import Graph, Node
        >>> nodes = {"x": Node("x", "input"), "c": Node("c", "clamp", ["x"]), "y": Node("y", "compare", ["c"])}
        >>> sorted(only_decide(Graph(nodes, ["x"], ["y"])))
        ['c', 'y']
    """
    users, found = graph.users(), set[str]()
    for node in reversed(list(graph)):
        read = users[node.name] if node.name not in graph.outputs else []
        decides = node.op == "compare" or (node.op == "cast" and node.dtype != "float32")
        passes = node.shares_grid or node.op == "table" or node.op in UNIVARIATE
        if decides or (passes and read and found.issuperset(read)):
            found.add(node.name)
    return found
