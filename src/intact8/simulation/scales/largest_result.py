"""Layers and products whose results could leave what engines hold: their outputs get coarser grids.

A result is a number of output steps, which engines hold up to STEPS before they clamp it. Where calibration saw an
input use next to nothing of its grid (a small operand of a concatenation), one step of it is many times the whole range
of the output. A coarser grid of the output costs nothing there: its steps are still finer than a product of one step.
"""

from __future__ import annotations

from collections.abc import Sequence

from intact8.capture.graph import Graph, Node
from intact8.opset.proof import STEPS
from intact8.simulation.scales.solver_state import SolverState
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first

ROOM = 1.05
"""Scales move a little when ratios become rationals, and weights when they are rounded."""

REACH = 255
"""The largest |x − z| of a quantized tensor."""

_PASSES = 4
"""Passes through the graph: a coarser grid may be that of an input which comes earlier, in a concatenation."""


def keep_results_held(state: SolverState, nodes: Sequence[Node]) -> None:
    """Enlarge output scales until every result of these layers and products, in execution order, can be held."""
    point_of, weights = state.q.placed.point_of, {n.name: _largest_weights(n, state) for n in nodes}
    for _ in range(_PASSES):
        raised = False
        for node in nodes:
            largest = weights[node.name]
            for name in node.inputs[: 1 if node.name in state.q.weight_points else 2]:
                largest *= REACH * state.scale[point_of[name]]
            out = point_of[node.name]
            needed = ROOM * largest / STEPS
            if state.scale[out] < needed and out not in state.pinned:
                state.scale[out], raised = needed, True
        if not raised:
            return


def _largest_weights(node: Node, state: SolverState) -> float:
    """Return what the largest inputs of a node are multiplied by at most, all together.

    Biases do not count: those beyond 32 bits are clamped, and a channel that one of them shuts must not coarsen others.
    """
    if node.name not in state.q.weight_points:
        terms = _terms(node, state.q.graph) if node.op == "matmul" else 1
        return terms * abs(float(node.attrs.get("mul", 1.0)))
    weight, _ = folded(node, state.q.tensors)
    rows = output_first(weight, node)
    return float(rows.detach().abs().reshape(len(rows), -1).sum(1).max())


def _terms(node: Node, graph: Graph) -> int:
    """Return how many products each result of a matrix product is the sum of; 1 where that has no limit."""
    size = graph.nodes[node.inputs[0]].shape[-1]
    if isinstance(size, int):
        return size
    return graph.dimensions.get(size, (1, None))[1] or 1 if size is not None else 1
