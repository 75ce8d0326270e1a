"""The solver finds scales, then tie-free multipliers, in one pass over the graph.

Sums come first, in topological order: an add needs one odd denominator for all its ratios, so its output scale, and
the scales of inputs nobody depends on yet, move by a fraction of a percent until the ratios are rationals. What has
been used that way is pinned. Convolutions come last: their weight scales take whatever is left (docs/arithmetic.md).

Solving again from present scales keeps every multiplier that still belongs to them. So a loaded, copied or once more
resolved simulation computes the same integers, and new weights move no activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.tie_free import best_ratios, largest_denominator, largest_ratio
from intact8.calibration.weights import weight_scales
from intact8.capture.graph import Node
from intact8.errors import warn
from intact8.machine import trim_behind
from intact8.opset.values import LARGEST_A
from intact8.simulation.ops import recurrent
from intact8.simulation.ops.pools import adaptive_counts, window_counts
from intact8.simulation.ops.table import TABLES, table_entries
from intact8.simulation.ops.weight_only import grouped
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.scales.frozen_multipliers import NOISE, ROOM, violated
from intact8.simulation.scales.largest_result import keep_results_held
from intact8.simulation.scales.layer_multipliers import Layer, channel_ratios, integers_of, slopes_of
from intact8.simulation.scales.smallest_multiplier import denominator, keep_in_reach
from intact8.simulation.scales.solver_state import MOVE, SolverState
from intact8.simulation.weights.folding import folded, is_leaky
from intact8.train.scale_phase import ScaleWarning

Array = npt.NDArray[Any]

MOST_STEPS = 2.0**16
"""Output steps of one input step, at most."""

BEYOND = 2.0**40
"""A multiplier larger than any of a program, which conversion refuses: what is larger still is taken for it."""

Solution = dict[str, Any]
"""Arrays of a :class:`Requantization`, by role."""


def resolve(q: QuantizedGraph, *, from_observers: bool, freezing: bool = False) -> None:
    """Compute every scale and multiplier, and store them in the points of ``q``.

    Args:
        q: points, multipliers and tensors of a simulation.
        from_observers: start from what observers saw; else from what the points say: present, observed or learned.
        freezing: the scales are frozen, or will be while biases go on moving, so leave these room.

    Raises:
        CalibrationError: a point has seen no data and has no fixed scale.

    Warns:
        ScaleWarning: frozen scales of some channels could not stay.
    """
    # Tensors made here outlive the call, and those of inference mode cannot be used in training.
    with torch.inference_mode(False), torch.no_grad():
        state = SolverState(q, from_observers, freezing)
        solved = _solve_activations(state)
        state.write()
        for name in (*q.coded_points, *q.placed.dequantized):
            _solve_free(q.graph.nodes[name], state)
            _trim_behind(q.graph.nodes[name], state)
        for node in _integer_nodes(q):
            if node.name in q.weight_points:
                _solve_affine(node, state, solved.get(node.name))
                _trim_behind(node, state)
            elif node.op in TABLES:
                _solve_table(node, q)
            elif node.name in solved:
                q.requantizations[node.name].put(**solved[node.name])
        for name, point in q.recurrent_points.items():
            point.scale = recurrent.weight_scales(q.graph.nodes[name], q.tensors, point, from_observers)
        if state.repaired:
            layers = ", ".join(f"{name} ({n} channels)" for name, n in list(state.repaired.items())[:6])
            message = (
                f"frozen scales were solved again in {len(state.repaired)} layers: {layers}. Their weights or biases "
                "grew beyond what the multipliers were proved for; the integers that ship follow"
            )
            warn(ScaleWarning(message))


def follow_slopes(q: QuantizedGraph) -> None:
    """Bring what a trained PReLU slope decides up to date while scales are frozen: negative multipliers, tables."""
    with torch.inference_mode(False), torch.no_grad():
        state: SolverState | None = None
        for node in _integer_nodes(q):
            if node.name in q.weight_points and node.attrs.get("act", {}).get("kind") == "prelu":
                state = state or SolverState(q, False, True)
                _solve_affine(node, state, None)
            elif node.op in TABLES and node.params:
                _solve_table(node, q)


def _integer_nodes(q: QuantizedGraph) -> list[Node]:
    return [node for node in q.graph if node.name in q.placed.point_of]


def _solve_table(node: Node, q: QuantizedGraph) -> None:
    x, y = q.point(node.inputs[0]), q.point(node.name)
    assert x is not None and y is not None
    q.requantizations[node.name].put(table=table_entries(node, x, y, q.tensors))


def _solve_free(node: Node, state: SolverState) -> None:
    """Compute the scales of a layer with float32 results from its weight, unless they are learned or held."""
    q, wp = state.q, state.q.all_weight_points[node.name]
    if wp.source == "held" and not state.fresh and wp.scale.numel():
        return
    if q.placed.coded.get(node.name, "dynamic") == "dynamic" and node.op != "embedding":
        wp.scale = torch.from_numpy(Layer(node, q, state.fresh).base.astype("float32")).to(wp.scale.device)
        return
    weight = q.tensors[node.params["weight"]] if node.op == "embedding" else folded(node, q.tensors)[0]
    rows = grouped(weight.detach(), q.recipe.group)
    if wp.source == "learned" and not state.fresh:
        wp.scale = wp.scales_of(rows, wp.learner).reshape(len(weight), -1)
        return
    scale = torch.from_numpy(weight_scales(rows.cpu().numpy(), wp.lo, wp.hi, wp.scheme.observer, False))
    if wp.scheme.granularity == "per_tensor":
        scale = torch.full_like(scale, float(scale.max()))
    wp.scale = scale.reshape(len(weight), -1).to(weight.device)


def _solve_activations(state: SolverState) -> dict[str, Solution]:
    """Return the multipliers of everything but layers, and of fused residuals; scales of activations move for them."""
    integer = _integer_nodes(state.q)
    if state.fresh:
        _scale_zeros(state, integer)
        keep_in_reach(state, [_reached(node, state.q) for node in integer if node.op in PRODUCTS or node.op in POOLS])
        keep_results_held(
            state, [node for node in integer if node.op in PRODUCTS or node.name in state.q.weight_points]
        )
    solved: dict[str, Solution] = {}
    for node in integer:
        if node.op in SOLVERS:
            points, out = state.points_of(node)
            solved[node.name] = SOLVERS[node.op](node, state, points, out)
            state.pinned |= {*points, out}
        elif len(node.inputs) == 2 and node.name in state.q.weight_points:
            solved[node.name] = _solve_residual(node, state)
    return solved


def _reached(node: Node, q: QuantizedGraph) -> tuple[Node, str, float]:
    """Return a product or pool, the form of its error bound, and what its ratio of scales is multiplied by."""
    if node.op in PRODUCTS:
        return node, "scaled", float(node.attrs.get("mul", 1.0))
    return node, "mean" if node.op == "mean" else "scaled", 1 / _divisors(node, q.graph.nodes[node.inputs[0]])[-1]


def _solve_sum(node: Node, state: SolverState, points: list[str], out: str) -> Solution:
    """Find a common denominator for Σ s_j/s_y; first the output's scale moves, then those of inputs not used before."""
    signs = [-1 if node.op == "sub" and j else 1 for j in range(len(points))]
    nominal = [sign * state.scale[p] / state.scale[out] for sign, p in zip(signs, points, strict=True)]
    req = state.present_multipliers(node, nominal)
    if req is not None:
        return req.arrays()
    limited = _limited(nominal, state)
    # The reference term is one that cannot move, and the largest of those; the output follows it. It does not follow a
    # term that is less than a step of it throughout.
    fixed = [p in state.pinned and 255 * state.scale[p] > state.scale[out] for p in points]
    order = sorted(range(len(points)), key=lambda j: (not fixed[j], -state.scale[points[j]]))
    ratios = [limited[j] for j in order]
    free_output = out not in state.pinned and out not in points and limited == nominal
    terms = 255 * sum(abs(r) for r in ratios) * 1.05
    b_max = int(largest_denominator("sum", residual_steps=terms, engines=state.q.recipe.engines))
    a, b = best_ratios(ratios, b_max, exact_first=free_output)
    if free_output:
        state.move(out, state.scale[points[order[0]]] * b / abs(a[0]))
    gain = 0.0
    used = {out}
    for j, numerator in zip(order, a, strict=True):
        exact = state.scale[out] * abs(numerator) / b
        # A term so small that its numerator was rounded up from nothing keeps its own scale.
        near = abs(exact / state.scale[points[j]] - 1) < MOVE
        if near and points[j] not in state.pinned and points[j] not in used:
            state.move(points[j], exact)
        used.add(points[j])
        ratio = state.scale[points[j]] / state.scale[out]
        gain = max(gain, abs(abs(numerator) / b / ratio - 1))
    numerators = [numerator for _, numerator in sorted(zip(order, a, strict=True))]
    return {"a": numerators, "b": [b], "gain_error": gain if gain > NOISE else 0.0}


def _scale_zeros(state: SolverState, nodes: list[Node]) -> None:
    """Give terms of sums that were zero throughout calibration a scale no larger than the output's."""
    for node in reversed(nodes):  # a term may be a sum itself
        fused = len(node.inputs) == 2 and node.name in state.q.weight_points
        if not fused and SOLVERS.get(node.op) is not _solve_sum:
            continue
        points, out = state.points_of(node)
        for point in points[1:] if fused else points:
            if state.scale[point] > state.scale[out] and point not in state.pinned and state.always_zero(point):
                state.scale[point] = state.scale[out]


def _limited(ratios: list[float], state: SolverState) -> list[float]:
    """Return ratios of a sum small enough for a multiplier that every engine evaluates exactly.

    Only terms that cancel each other have larger ones. One step of such a term is most of the range of the output, or
    more, with a smaller ratio as well.
    """
    most = largest_ratio(len(ratios), engines=state.q.recipe.engines)
    return [max(-most, min(most, ratio)) for ratio in ratios]


def _single(
    state: SolverState, form: str, out: str, ratio: float, inputs: list[str], terms: float = 0.0
) -> tuple[int, int, float]:
    """Return a, b and the relative error of one ratio ~ 1/s_y; where the output's scale is free, it moves instead.

    Of a ratio so large that one step of the inputs is the whole range of the output, MOST_STEPS is as good as all.
    """
    near = min(ratio, MOST_STEPS)
    b_max = min(denominator(form, near, terms, state.q.recipe.engines), int(LARGEST_A / near / 2) * 2 - 1)
    free = out not in state.pinned and out not in inputs
    (a,), b = best_ratios([near], b_max, exact_first=free)
    if free:
        state.move(out, state.scale[out] * ratio * b / a)
        return a, b, 0.0
    return a, b, abs(a / b / ratio - 1)


def _solve_product(node: Node, state: SolverState, points: list[str], out: str) -> Solution:
    ratio = state.scale[points[0]] * state.scale[points[1]] / state.scale[out] * node.attrs.get("mul", 1.0)
    req = state.present_multipliers(node, [ratio])
    if req is not None:
        return req.arrays()
    a, b, gain = _single(state, "scaled", out, ratio, points)
    return {"a": [a], "b": [b], "gain_error": gain}


def _solve_pool(node: Node, state: SolverState, points: list[str], out: str) -> Solution:
    """Find a ratio per divisor: the commonest exactly, those of windows cut by a border as the nearest rational."""
    (x,) = points
    divisors = _divisors(node, state.q.graph.nodes[node.inputs[0]])
    ratios = [state.scale[x] / (n * state.scale[out]) for n in divisors]
    req = state.present_multipliers(node, ratios)
    if req is not None and req.n.tolist() == divisors:
        return req.arrays()
    if node.op == "mean":
        a0, b0, gain = _single(state, "mean", out, ratios[-1], [x], 255 * divisors[-1] * ratios[-1])
    else:
        a0, b0, gain = _single(state, "scaled", out, ratios[-1], [x])
    a, b = [], []
    b_max = int(largest_denominator("scaled", engines=state.q.recipe.engines))
    for n in divisors[:-1]:
        ratio = state.scale[x] / (n * state.scale[out])
        (numerator,), common = best_ratios([ratio], b_max)
        gain = max(gain, abs(numerator / common / ratio - 1))
        a.append(numerator)
        b.append(common)
    return {"n": divisors, "a": [*a, a0], "b": [*b, b0], "gain_error": gain}


def _divisors(node: Node, x: Node) -> list[int]:
    """Return the distinct divisors of a pool in ascending order: the last belongs to a whole window."""
    if node.op == "mean":
        return [int(np.prod(known(x.shape[d] for d in node.attrs["dims"])))]
    spatial, average = known(x.shape[2:]), node.op == "avg_pool"
    if (
        average and len(spatial) < len(x.shape) - 2
    ):  # a size changes: only pools whose windows are alike have an integer form
        return [math.prod(node.attrs["kernel"])]
    counts = window_counts(node.attrs, spatial) if average else adaptive_counts(node.attrs["output_size"], spatial)
    return [int(n) for n in torch.unique(counts)]


PRODUCTS = dict.fromkeys(("mul", "matmul"), _solve_product)
POOLS = dict.fromkeys(("mean", "avg_pool", "adaptive_avg_pool"), _solve_pool)
SOLVERS: dict[str, Callable[[Node, SolverState, list[str], str], Solution]] = {
    "add": _solve_sum,
    "sub": _solve_sum,
    **PRODUCTS,
    **POOLS,
}
"""Kind → what finds its multipliers: (node, state, points of its inputs, point of its output)."""


def _solve_residual(node: Node, state: SolverState) -> Solution:
    """Find the ratio s_r/s_y of a fused residual; its denominator serves every channel, so it must suit the worst."""
    q = state.q
    x, residual, out = (q.placed.point_of[n] for n in (*node.inputs, node.name))
    state.pinned.add(residual)
    nominal = [state.scale[residual] / state.scale[out]]
    (ratio,) = _limited(nominal, state)
    free = out not in state.pinned and out != x and [ratio] == nominal and 255 * ratio > 1
    req = state.present_multipliers(node, [ratio])
    if req is not None and int(req.b[0]) <= _residual_denominator(node, state, state.scale[out], ratio, room=1.0):
        state.pinned.add(out)
        return {"residual_a": req.residual_a.tolist(), "b": req.b.tolist()[:1]}
    # The output scale may move, which takes 3 % of room.
    room = 1.03 * ROOM if state.freezing else 1.03
    b_max = _residual_denominator(node, state, state.scale[out], ratio, room)
    (a,), b = best_ratios([ratio], b_max, exact_first=free)
    if free:
        state.move(out, state.scale[residual] * b / a)
    state.pinned.add(out)
    return {"residual_a": [a], "b": [b]}


def _residual_denominator(node: Node, state: SolverState, s_y: float, ratio: float, room: float) -> int:
    layer = Layer(node, state.q, state.fresh)
    # Rounding the bias takes one step of room.
    steps = float(layer.bias_steps(layer.base, s_y).max())
    return int(largest_denominator("fused", (steps + 1) * room, 255 * ratio * room, engines=state.q.recipe.engines))


def _trim_behind(node: Node, state: SolverState) -> None:
    if state.fresh:
        trim_behind(max(state.q.tensors[name].nbytes for name in node.params.values()))


def _solve_affine(node: Node, state: SolverState, shared: Solution | None) -> None:
    """Find weight scales with which every channel's multiplier is a rational that its certificate allows."""
    q = state.q
    x, y, layer = q.point(node.inputs[0]), q.point(node.name), Layer(node, q, state.fresh)
    assert x is not None and y is not None
    s_x, s_y, req = x.scale_value, y.scale_value, q.requantizations[node.name]
    slopes = slopes_of(node, q) if is_leaky(node) else None
    bad, point = None, layer.point
    if not (layer.held and point.unmoved):
        point.solved_at_start = None
    elif point.solved_at_start is not None:  # other weights were put in for a while, as averages are
        point.scale, arrays = point.solved_at_start[0].clone(), point.solved_at_start[1]
        req.put(**arrays)
    if layer.held:
        residual = 0.0 if shared is None else 255.0 * shared["residual_a"][0] / shared["b"][0]
        form = "leaky" if slopes is not None else "affine" if shared is None else "fused"
        bad = violated(layer, req, s_x, s_y, form, residual, q.recipe.engines)
        if bad is not None and shared is not None:
            same = req.residual_a.tolist() == shared["residual_a"] and req.b.tolist()[:1] == shared["b"]
            bad = bad if same else np.ones_like(bad)
        if bad is not None and not bad.any() and slopes is None:
            return
        if bad is not None and bad.any() and layer.point.source == "held":
            state.repaired[node.name] = int(bad.sum())
        if point.unmoved and point.solved_at_start is None:
            point.solved_at_start = point.scale.clone(), req.arrays()
    target = np.minimum(s_x * layer.base / s_y, BEYOND)
    if shared is not None:
        r = q.point(node.inputs[1])
        assert r is not None
        numerator, common = shared["residual_a"][0], shared["b"][0]
        b = np.full(len(target), common, np.int64)
        a = np.maximum(1, np.ceil(target * common * (1 - 1e-12))).astype(np.int64)
        gain = abs(numerator / common / (r.scale_value / s_y) - 1)
        found = {"a": a, "b": b, "residual_a": [numerator], "gain_error": gain if gain > NOISE else 0.0}
    else:
        kept = None if bad is None or shared is not None else (~bad, integers_of(req.a), integers_of(req.b))
        found = channel_ratios(layer, target, s_x, s_y, slopes, y, state.freezing, kept)
    if bad is not None and shared is not None and not bad.all():
        found["a"] = np.where(bad, found["a"], integers_of(req.a))
    scale = (found["a"] / found["b"] * s_y / s_x).astype(np.float32)
    if bad is not None:
        scale = np.where(bad, scale, layer.point.scale.cpu().numpy())
    layer.point.scale = torch.from_numpy(scale).to(layer.weight.device)
    req.put(**found)
