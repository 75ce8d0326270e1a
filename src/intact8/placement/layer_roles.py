"""Operations by their place in a network, which the patterns of overrides that begin with ``layers:`` name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from intact8.capture.graph import Graph
from intact8.capture.operations import HEAVY

SMALL = 0.05
"""Share of all weights that the layers called small hold together, at most."""


def layer_roles(graph: Graph, sizes: Mapping[str, int]) -> dict[str, set[str]]:
    """Return name → roles: "first" and "last" in execution order and "small" of layers, "behind" of operations.

    Small are the layers with the fewest weights, as many as hold SMALL of all weights together: depthwise convolutions
    and the convolutions next to the image. Layers of one size are small together or not at all. Behind are the
    operations from which no layer is reached: what computes with the results of the last layer of every branch.

    Args:
        graph: fused.
        sizes: name of a tensor → number of its values.

    Example:
        >>> from intact8.capture.graph import Node
        >>> layers = {n: Node(n, "linear", ["x"], params={"weight": n}) for n in "abc"}
        >>> roles = layer_roles(Graph({"x": Node("x", "input"), **layers}), {"a": 10, "b": 1000, "c": 1000})
        >>> sorted(roles["a"]), sorted(roles["c"])
        (['first', 'small'], ['last'])
    """
    layers = [node for node in graph if node.op in HEAVY and "weight" in node.params]
    roles: dict[str, set[str]] = defaultdict(set)
    if layers:
        roles[layers[0].name].add("first")
        roles[layers[-1].name].add("last")
    users, leads_to_layers = graph.users(), set[str]()
    for node in reversed(list(graph)):
        # A layer on a softmax takes its mean, as YOLO's heads do to read a number from bins: that is decoding, too.
        large = node.op in HEAVY and "weight" in node.params and graph.origin(node.inputs[0]).op != "softmax"
        if large or not leads_to_layers.isdisjoint(users[node.name]):
            leads_to_layers.add(node.name)
        elif node.op not in ("input", "constant"):
            roles[node.name].add("behind")
    by_size: dict[int, list[str]] = defaultdict(list)
    for node in layers:
        if node.params["weight"] in sizes:
            by_size[sizes[node.params["weight"]]].append(node.name)
    total = sum(size * len(names) for size, names in by_size.items())
    held = 0
    for size in sorted(by_size):
        held += size * len(by_size[size])
        if held > SMALL * total:
            break
        for name in by_size[size]:
            roles[name].add("small")
    return dict(roles)
