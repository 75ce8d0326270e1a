"""The layers of a quantized graph by their mode: static, dynamic or weight-only."""

from __future__ import annotations

from .ops.affine import Affine
from .ops.dequantized import DequantizedLayer
from .ops.weight_only import DecodedEmbedding, DecodedLinear, DynamicLinear
from .quantized_graph import AFFINE, QuantizedGraph

Layer = Affine | DecodedEmbedding


def make_layers(q: QuantizedGraph) -> dict[str, Layer]:
    """Return how every layer with weights but recurrent ones is computed, by node name."""
    layers: dict[str, Layer] = {}
    for node in q.graph:
        name, recipe = node.name, q.recipe
        point = q.coded_points.get(name)
        if point is not None and node.op == "embedding":
            layers[name] = DecodedEmbedding(node, q.tensors, point, recipe.group)
        elif point is not None and q.placed.coded[name] == "dynamic":
            layers[name] = DynamicLinear(node, q.tensors, point, recipe.rows)
        elif point is not None:
            layers[name] = DecodedLinear(node, q.tensors, point, recipe.group)
        elif name in q.placed.dequantized:
            layers[name] = DequantizedLayer(node, q.tensors, q.weight_points[name])
        elif node.op in AFFINE:
            wp, multipliers = q.weight_points.get(name), q.requantizations.get(name)
            layers[name] = Affine(node, q.tensors, wp, q.point(name), multipliers, q.verified)
    return layers
