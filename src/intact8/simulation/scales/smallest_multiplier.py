"""Products and means whose multiplier would be too small: their inputs get coarser grids.

A multiplier is a rational a/b with a limited b, so none lies below 1/b. Where small factors (a softmax over hundreds of
positions, a sum of a thousand pixels) meet a large output range, the ratio of scales does. With 1/b
instead results would be several times too large, or the output's range too small: the inputs' scales grow, which costs
them a part of their 255 steps and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.arithmetic.tie_free import largest_denominator
from intact8.capture.graph import Node
from intact8.simulation.scales.solver_state import SolverState

ROOM = 1.01
"""SolverState move by up to a percent when ratios become rationals."""

_PASSES = 4
"""Passes through the graph, each from its end: a coarser grid may be the output of another product."""


def denominator(form: str, ratio: float, terms: float, engines: Collection[str]) -> int:
    """Return the largest b that every engine has a margin for, or every one but OpenVINO where its own is too small.

    OpenVINO rounds a mean before it is scaled: of more than some thousand elements none has a multiplier it proves.
    ``form`` is a key of ``intact8.arithmetic.tie_free.FORMS``, ``ratio`` the wanted multiplier, and ``terms`` the bound
    of what a mean rounds before, in output steps.
    """
    terms = terms * 1.03 if form == "mean" else 0.0
    b = int(largest_denominator(form, residual_steps=terms, engines=engines))
    others = tuple(name for name in engines if name != "openvino")
    return b if ratio * b >= ROOM or form != "mean" else int(largest_denominator(form, engines=others))


def keep_in_reach(state: SolverState, nodes: list[tuple[Node, str, float]]) -> None:
    """Enlarge input scales until every ratio can be reached.

    ``nodes`` are products and pools in execution order, with the form of their bound and the factor of their ratio.
    """
    for _ in range(_PASSES):
        widened = [_widen(state, *each) for each in reversed(nodes)]
        if not any(widened):
            return


def _widen(state: SolverState, node: Node, form: str, factor: float) -> bool:
    """Enlarge the scales of one operation's inputs, and return whether that was necessary.

    An output that was zero throughout calibration has a scale that nothing asks for: that one gets smaller, as far as
    scales go, before the inputs' get larger.
    """
    point_of, out = state.q.placed.point_of, state.q.placed.point_of[node.name]
    points = [point_of[i] for i in node.inputs]
    ratio = factor / state.scale[out]
    for point in points:
        ratio *= state.scale[point]
    lacking = ROOM / (ratio * denominator(form, ratio, 255 * ratio / factor, state.q.recipe.engines))
    if lacking <= 1:
        return False
    if out not in state.pinned and out not in points and state.always_zero(out):
        smaller = max(state.scale[out] / lacking, SMALLEST_SCALE)
        lacking *= smaller / state.scale[out]
        state.scale[out] = smaller
        if lacking <= ROOM:
            return True
    free = [point for point in points if point != out and point not in state.pinned]
    for point in free:
        state.scale[point] *= lacking ** (1 / len(free))
    return bool(free)
