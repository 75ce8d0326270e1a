"""The parameters of points whose scales the recipe wants learned."""

from __future__ import annotations

import math

from intact8.arithmetic.bit_packing import group_count
from intact8.simulation.ops.recurrent import weight_names
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.train.learned_range import LearnedClip, LearnedOffset
from intact8.train.learned_scale import LearnedScale, LearnedScales, lsq_factor

from .quant_points import QuantPoint, WeightPoint


def attach_learners(q: QuantizedGraph) -> None:
    """Give every point whose scale may be learned its parameter; "pact" learns the ranges of activations only."""
    for point in q.points.values():
        if not point.fixed and not _is_input(q, point):
            shape = q.graph.nodes[point.tensors[0]].shape[1:]
            elements = math.prod(d for d in shape if isinstance(d, int))  # a dynamic length counts as one
            steps = (point.hi - point.lo) // (2 if point.scheme.symmetric else 1)
            point.learner = _activation_learner(q, point, _factor(q, elements, steps))
    if q.recipe.scales != "pact":
        for name, weight_point in q.all_weight_points.items():
            weight_point.learner = _weight_learner(q, name, weight_point)


def _factor(q: QuantizedGraph, elements: int, steps: int) -> float:
    return 1.0 if q.recipe.scale_gradient == "plain" else lsq_factor(elements, steps)


def _is_input(q: QuantizedGraph, point: QuantPoint) -> bool:
    """Return whether the point rounds nothing but inputs of the network, to 8 bits: their range is in the data.

    Learning it would take the gradient with respect to the input, in a convolutional network a product as large as the
    first layer's that nothing else asks for. With fewer bits, where to clip is worth that.
    """
    nodes = [q.graph.nodes[name] for name in point.tensors]
    reads = all(node.op == "quantize" and node.inputs[0] in q.graph.inputs for node in nodes)
    return reads and point.hi - point.lo >= 254


def _activation_learner(q: QuantizedGraph, point: QuantPoint, factor: float) -> LearnedScale:
    if q.recipe.scales == "learned":
        return LearnedScale((), factor)
    acts = [q.graph.nodes[name].attrs.get("act") or {} for name in q.placed.points[point.name].observed]
    positive = all((act.get("min") if act.get("kind") == "clamp" else None) in (0, 0.0) for act in acts)
    fixed_zero_point = point.shift if point.scheme.symmetric else point.lo if positive else None
    learner = LearnedOffset if q.recipe.scales == "lsq+" else LearnedClip
    return learner(point.lo, point.hi, fixed_zero_point, factor)


def _weight_learner(q: QuantizedGraph, name: str, point: WeightPoint) -> LearnedScale | LearnedScales | None:
    """Return learned scales of a weight: one per channel, row or group, or one; None for an embedding.

    Scales of embeddings are never learned, they follow each row: a row that no sample holds gives its scale no
    gradient, while weight decay and momentum move the row all the same.
    """
    node, per_channel = q.graph.nodes[name], point.scheme.granularity == "per_channel"
    if node.op == "embedding":
        return None
    if name in q.recurrent_points:
        weights = [q.tensors[weight] for weight in weight_names(node)]
        rows = len(weights[0])
        count = rows if per_channel else 1
        parts = (LearnedScale((count,), _factor(q, w.numel() // count, point.hi)) for w in weights)
        return LearnedScales(parts, rows)
    channels = node.shape[-1] if node.op == "linear" else node.shape[1]
    assert isinstance(channels, int)
    numbers = q.tensors[node.params["weight"]].numel() if "weight" in node.params else channels
    if q.placed.coded.get(name) == "weight_only" and per_channel:
        columns = numbers // channels
        group = q.recipe.group or columns
        return LearnedScale((channels, group_count(columns, group)), _factor(q, min(group, columns), point.hi))
    count = channels if per_channel else 1
    return LearnedScale((count,), _factor(q, numbers // count, point.hi))
