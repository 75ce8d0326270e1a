"""Products and means whose multiplier would be smaller than the smallest there is: their inputs get coarser grids.

A multiplier is a rational a/b with a limited b, so none lies below 1/b. Where small factors (a softmax over hundreds of
positions, a sum of a thousand pixels) meet a large output range, the ratio of scales does. Using 1/b all the same would
multiply by several times too much, or cut the output's range: the inputs' scales grow instead, which costs them a part
of their 255 steps and nothing else.
"""

from __future__ import annotations

from intact.arithmetic.tie_free import largest_denominator
from intact.capture.graph import Node

from .scales import Scales

ROOM = 1.01
"""Scales move by up to a percent when ratios become rationals."""

_PASSES = 4
"""A coarser grid may be the output of another product; each pass goes once through the graph, from its end."""


def keep_in_reach(scales: Scales, nodes: list[tuple[Node, str, float]]) -> None:
    """Enlarge input scales until every ratio can be reached.

    Args:
        scales: fresh from the observers; nothing is pinned but what is fixed.
        nodes: product or pool, form of its bound, and constant factor of its ratio, in execution order.
    """
    for _ in range(_PASSES):
        if not any([_widen(scales, *each) for each in reversed(nodes)]):
            return


def _widen(scales: Scales, node: Node, form: str, factor: float) -> bool:
    """Enlarge the scales of one operation's inputs; whether that was necessary."""
    point_of, out = scales.sim.placed.point_of, scales.sim.placed.point_of[node.name]
    points = [point_of[i] for i in node.inputs]
    ratio = factor / scales.scale[out]
    for point in points:
        ratio *= scales.scale[point]
    terms = 255 * ratio * ROOM / min(factor, 1.0) if form == "mean" else 0.0
    lacking = ROOM / (ratio * int(largest_denominator(form, residual_steps=terms, engines=scales.sim.recipe.engines)))
    free = [point for point in points if point != out and point not in scales.pinned]
    if lacking <= 1 or not free:
        return False
    for point in free:
        scales.scale[point] *= lacking ** (1 / len(free))
    return True
