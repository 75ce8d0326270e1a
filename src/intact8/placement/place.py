"""Placement: a fused graph and a recipe become a graph of integer and float parts with quantization points."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from intact8.capture.graph import Graph
from intact8.capture.operations import HEAVY
from intact8.placement.assign_schemes import NodeSchemes
from intact8.placement.insert_qdq import insert_qdq
from intact8.placement.layer_roles import layer_roles
from intact8.placement.partition import partition
from intact8.placement.rescale_groups import RescaleGroup, find_rescale_groups
from intact8.placement.shared_qparams import Point, share_qparams
from intact8.recipe.override import BEHIND, check_matches
from intact8.recipe.recipe import FLOAT_BETWEEN_LAYERS, Recipe
from intact8.recipe.scheme import Scheme


@dataclass
class Placed:
    """What :func:`place` returns.

    Attributes:
        graph: the graph with ``quantize``, ``dequantize`` and ``requantize`` nodes, one to one with the program.
        points: quantization points by name.
        point_of: node → point, for every node whose output is integers, and no other.
        dequantized: convolutions and linear maps on integers whose sums become float32.
        weights: node → scheme of its weight, for every conv, linear and scale_shift on integers, and for ``coded``.
        coded: node → "dynamic" or "weight_only", where weights are integers between float activations.
        float_nodes: node → why it stays float.
        transitions: how many quantize and dequantize nodes there are.
        channels: tensors whose channels are rescaled.
    """

    graph: Graph
    points: dict[str, Point] = field(default_factory=dict)
    point_of: dict[str, str] = field(default_factory=dict)
    dequantized: frozenset[str] = frozenset()
    weights: dict[str, Scheme] = field(default_factory=dict)
    coded: dict[str, str] = field(default_factory=dict)
    float_nodes: dict[str, str] = field(default_factory=dict)
    transitions: int = 0
    channels: list[RescaleGroup] = field(default_factory=list)


def place(graph: Graph, recipe: Recipe, sizes: Mapping[str, int] | None = None, sums: Set[str] = frozenset()) -> Placed:
    """Decide integer and float parts, put transitions between them, and find which tensors share qparams.

    Args:
        graph: from ``intact8.fusion.fuse``; it is not changed.
        recipe: schemes and overrides.
        sizes: name of a tensor → number of its values, by which ``layers:small`` are chosen.
        sums: layers whose weights only add up, see :func:`intact8.placement.error_amplification.weighted_sums`.

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
    roles = layer_roles(graph, sizes or {})
    schemes_of = NodeSchemes(graph, recipe, roles)
    forced = schemes_of.forced_float()
    ends = _ends(graph, {name for name, given in roles.items() if "behind" in given} & forced.keys(), recipe)
    floats = recipe.rounds_between_layers in FLOAT_BETWEEN_LAYERS
    parts = partition(
        graph,
        forced,
        nonlinear=recipe.nonlinear == "integer",
        rounded=lambda name: schemes_of.wants_grid(name) if floats or name in ends else True,
        shared=floats,
        sums=sums,
    )
    placed_graph, integer = insert_qdq(graph, parts)
    points = share_qparams(placed_graph, integer, schemes_of)
    point_of = {tensor: point.name for point in points for tensor in point.tensors}
    affine = [n.name for n in placed_graph if n.name in point_of and n.op in HEAVY | {"scale_shift"}]
    weights = {name: schemes_of.weight(name) for name in (*affine, *sorted(parts.dequantized))}
    coded = schemes_of.coded()
    schemes_of.check_effect({schemes_of.owner(placed_graph.nodes[n]) for n in point_of}, {*weights, *coded})
    schemes = {tensor: point.scheme for point in points for tensor in point.tensors}
    channels = find_rescale_groups(placed_graph, schemes, weights, smooth=recipe.smooth != 0, equalize=recipe.equalize)
    return Placed(
        graph=placed_graph,
        points={point.name: point for point in points},
        point_of={name: point_of[name] for name in placed_graph.nodes if name in point_of},
        dequantized=parts.dequantized,
        weights=weights | {name: schemes_of.weight(name) for name in coded},
        coded=coded,
        float_nodes=schemes_of.told(parts.reasons),
        transitions=sum(n.op in ("quantize", "dequantize") for n in placed_graph),
        channels=channels,
    )


def _ends(graph: Graph, behind: Set[str], recipe: Recipe) -> set[str]:
    """Return the nodes that only float operations behind the last layers read, and the network's results themselves."""
    if not any(rule.match == BEHIND and rule.quantize is False for rule in recipe.rules):
        return set()
    return {name for name, users in graph.users().items() if behind >= set(users)}
