"""Placement: a fused graph and a recipe become a graph of integer and float parts with quantization points."""

from __future__ import annotations

from dataclasses import dataclass, field

from intact8.capture.graph import Graph
from intact8.capture.operations import HEAVY
from intact8.placement.assign_schemes import Requests
from intact8.placement.insert_qdq import insert_transitions
from intact8.placement.partition import decide
from intact8.placement.rescale_groups import Channels, rescale_channels
from intact8.placement.shared_qparams import assign_points
from intact8.recipe.override import check_matches
from intact8.recipe.recipe import Recipe
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


@dataclass
class Placed:
    """What :func:`place` returns.

    Attributes:
        graph: the graph with ``quantize``, ``dequantize`` and ``requantize`` nodes, one to one with the program.
        points: quantization points by name.
        point_of: node → point, for every node whose output is integers, and no other.
        weights: node → scheme of its weight, for every conv, linear and scale_shift on integers, and for ``coded``.
        coded: node → "dynamic" or "weight_only", where weights are integers between float activations.
        float_nodes: node → why it stays float.
        transitions: how many quantize and dequantize nodes there are.
        channels: tensors whose channels are rescaled.
    """

    graph: Graph
    points: dict[str, Point] = field(default_factory=dict)
    point_of: dict[str, str] = field(default_factory=dict)
    weights: dict[str, Scheme] = field(default_factory=dict)
    coded: dict[str, str] = field(default_factory=dict)
    float_nodes: dict[str, str] = field(default_factory=dict)
    transitions: int = 0
    channels: list[Channels] = field(default_factory=list)


def place(graph: Graph, recipe: Recipe) -> Placed:
    """Decide integer and float parts, put transitions between them, and find which tensors share qparams.

    Args:
        graph: from ``intact8.fusion.fuse``; it is not changed.
        recipe: schemes and overrides.

    Raises:
        RecipeError: a pattern matches nothing or has no effect, or schemes contradict each other.

    Example:
        >>> from intact8.capture.graph import Node
        >>> g = Graph({"x": Node("x", "input", shape=(None, 4)), "fc": Node("fc", "linear", ["x"], shape=(None, 2))},
        ...           ["x"], ["fc"])
        >>> placed = place(g, Recipe())
        >>> list(placed.graph.nodes), placed.point_of
        (['x', 'x.quantize', 'fc', 'fc.dequantize'], {'x.quantize': 'x', 'fc': 'fc'})
    """
    check_matches(recipe.rules, graph)
    requests = Requests(graph, recipe)
    domains = decide(graph, requests.forced_float(), nonlinear=recipe.nonlinear == "integer")
    placed_graph, integer = insert_transitions(graph, domains)
    points = assign_points(placed_graph, integer, requests)
    point_of = {tensor: group.name for group in points for tensor in group.tensors}
    weights = {
        node.name: requests.weight(node.name)
        for node in placed_graph
        if node.name in point_of and node.op in HEAVY | {"scale_shift"}
    }
    coded = requests.coded()
    weights_of_codes = {name: requests.weight(name) for name in coded}
    requests.check_effect(
        points_of={requests.owner(placed_graph.nodes[n]) for n in point_of}, weights={*weights, *coded}
    )
    schemes = {tensor: group.scheme for group in points for tensor in group.tensors}
    channels = rescale_channels(placed_graph, schemes, weights, smooth=recipe.smooth != 0, equalize=recipe.equalize)
    return Placed(
        graph=placed_graph,
        points={g.name: Point(g.name, g.scheme, g.tensors, g.observed, constant=g.constant) for g in points},
        point_of={name: point_of[name] for name in placed_graph.nodes if name in point_of},
        weights={**weights, **weights_of_codes},
        coded=coded,
        float_nodes=requests.told(domains.reasons),
        transitions=sum(n.op in ("quantize", "dequantize") for n in placed_graph),
        channels=channels,
    )
