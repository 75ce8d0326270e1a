"""Products and means whose multiplier would be smaller than the smallest there is: their inputs get coarser grids.

A multiplier is a rational a/b with a limited b, so none lies below 1/b. Where small factors (a softmax over hundreds of
positions, a sum of a thousand pixels) meet a large output range, the ratio of scales does. Using 1/b all the same would
multiply by several times too much, or cut the output's range: the inputs' scales grow instead, which costs them a part
of their 255 steps and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from intact8.arithmetic.tie_free import largest_denominator
from intact8.capture.graph import Node
from intact8.simulation.scales.solver_state import SolverState

ROOM = 1.01
"""SolverState move by up to a percent when ratios become rationals."""

_PASSES = 4
"""A coarser grid may be the output of another product; each pass goes once through the graph, from its end."""


def denominator(form: str, ratio: float, terms: float, engines: Collection[str]) -> int:
    """The largest b every engine has a margin for, or every engine but OpenVINO where that one alone is too small.

    OpenVINO rounds a mean before it is scaled: of more than some thousand elements none has a multiplier it proves.

    Args:
        form: key of ``intact8.arithmetic.tie_free.FORMS``.
        ratio: what the multiplier shall be.
        terms: bound of what is rounded before, in output steps; only a mean has any.
        engines: of the recipe.
    """
    terms = terms * 1.03 if form == "mean" else 0.0
    b = int(largest_denominator(form, residual_steps=terms, engines=engines))
    others = tuple(name for name in engines if name != "openvino")
    return b if ratio * b >= ROOM or form != "mean" else int(largest_denominator(form, engines=others))


def keep_in_reach(state: SolverState, nodes: list[tuple[Node, str, float]]) -> None:
    """Enlarge input scales until every ratio can be reached.

    Args:
        scales: fresh from the observers; nothing is pinned but what is fixed.
        nodes: product or pool, form of its bound, and constant factor of its ratio, in execution order.
    """
    for _ in range(_PASSES):
        widened = [_widen(state, *each) for each in reversed(nodes)]
        if not any(widened):
            return


def _widen(state: SolverState, node: Node, form: str, factor: float) -> bool:
    """Enlarge the scales of one operation's inputs; whether that was necessary."""
    point_of, out = state.q.placed.point_of, state.q.placed.point_of[node.name]
    points = [point_of[i] for i in node.inputs]
    ratio = factor / state.scale[out]
    for point in points:
        ratio *= state.scale[point]
    lacking = ROOM / (ratio * denominator(form, ratio, 255 * ratio / factor, state.q.recipe.engines))
    free = [point for point in points if point != out and point not in state.pinned]
    if lacking <= 1 or not free:
        return False
    for point in free:
        state.scale[point] *= lacking ** (1 / len(free))
    return True
