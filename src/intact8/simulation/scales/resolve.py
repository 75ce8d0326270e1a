"""From ranges to the numbers that ship: scales, then tie-free multipliers, in one pass over the graph.

Sums come first, in topological order: an add needs one odd denominator for all its ratios, so its output scale, and
the scales of inputs nobody depends on yet, move by a fraction of a percent until the ratios are rationals. What has
been used that way is pinned. Convolutions come last: their weight scales take whatever is left (docs/arithmetic.md,
section 3).

Solving again from present scales keeps every multiplier that still belongs to them. So a loaded, copied or once more
resolved simulation computes the same integers, and new weights move no activation.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.tie_free import (
    best_ratios,
    largest_denominator,
)
from intact8.capture.graph import Node
from intact8.simulation.ops.pools import adaptive_counts, window_counts
from intact8.simulation.ops.table import table_entries
from intact8.simulation.ops.weight_only import solve
from intact8.simulation.scales.frozen_multipliers import NOISE, ROOM, violated
from intact8.simulation.scales.layer_multipliers import Layer, channel_ratios, integers_of, is_leaky, slopes_of
from intact8.simulation.scales.smallest_multiplier import denominator, keep_in_reach
from intact8.simulation.scales.solver_state import MOVE, Scales
from intact8.train.scale_phase import ScaleWarning

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation

Array = npt.NDArray[Any]

SUMS = frozenset({"add", "sub"})
POOLS = frozenset({"mean", "avg_pool", "adaptive_avg_pool"})
TABLES = frozenset({"table", "requantize"})
PRODUCTS = frozenset({"mul", "matmul"})


def resolve(sim: Simulation, *, from_observers: bool, freezing: bool = False) -> None:
    """Compute every scale and multiplier of ``sim`` and store them in its points.

    Args:
        sim: the simulation.
        from_observers: start from what observers saw; else from what the points say: present, observed or learned.
        freezing: the result is to stay while biases go on moving, so leave them room.

    Warns:
        ScaleWarning: frozen scales of some channels could not stay.
    """
    # What is made here outlives the call, and a tensor made in inference mode cannot be used in training.
    with torch.inference_mode(False), torch.no_grad():
        _resolve(Scales(sim, from_observers, freezing or sim.phase == "frozen"))


def follow_slopes(sim: Simulation) -> None:
    """Bring what a trained PReLU slope decides up to date while scales are frozen: negative multipliers, tables."""
    with torch.inference_mode(False), torch.no_grad():
        scales: Scales | None = None
        for node in sim.graph:
            if node.name in sim.weight_points and node.attrs.get("act", {}).get("kind") == "prelu":
                scales = scales or Scales(sim, False, True)
                _solve_affine(node, scales, None)
            elif node.op in TABLES and node.params and node.name in sim.placed.point_of:
                _solve_table(node, sim)


def _solve_table(node: Node, sim: Simulation) -> None:
    x, y = sim.point(node.inputs[0]), sim.point(node.name)
    assert x is not None and y is not None
    sim.requantizations[node.name].put(table=table_entries(node, x, y, sim.tensors))


def _resolve(scales: Scales) -> None:
    sim = scales.sim
    integer = [n for n in sim.graph if n.name in sim.placed.point_of]
    if scales.fresh:
        keep_in_reach(scales, [_reached(node, sim) for node in integer if node.op in PRODUCTS | POOLS])
    solved: dict[str, dict[str, Any]] = {}
    for node in integer:
        if node.op in SUMS:
            solved[node.name] = _solve_sum(node, scales)
        elif node.op in PRODUCTS:
            solved[node.name] = _solve_product(node, scales)
        elif node.op in POOLS:
            solved[node.name] = _solve_pool(node, scales)
        elif len(node.inputs) == 2 and node.name in sim.weight_points:
            solved[node.name] = _solve_residual(node, scales)
    scales.write()
    for layer in sim.coded.values():
        solve(layer, sim, scales.fresh)
    for node in integer:
        if node.name in sim.weight_points:
            _solve_affine(node, scales, solved.get(node.name))
        elif node.op in TABLES:
            _solve_table(node, sim)
        elif node.name in solved:
            sim.requantizations[node.name].put(**solved[node.name])
    if scales.repaired:
        layers = ", ".join(f"{name} ({n} channels)" for name, n in list(scales.repaired.items())[:6])
        warnings.warn(
            ScaleWarning(
                f"frozen scales were solved again in {len(scales.repaired)} layers: {layers}. Their weights or biases "
                "grew beyond what the multipliers were proved for; the integers that ship follow"
            ),
            stacklevel=2,
        )


def _reached(node: Node, sim: Simulation) -> tuple[Node, str, float]:
    """A product or pool, the form of its error bound, and what its ratio of scales is multiplied by."""
    if node.op in PRODUCTS:
        return node, "scaled", float(node.attrs.get("mul", 1.0))
    return node, "mean" if node.op == "mean" else "scaled", 1 / _divisors(node, sim.graph.nodes[node.inputs[0]])[-1]


def _solve_sum(node: Node, scales: Scales) -> dict[str, Any]:
    """Common denominator for Σ s_j/s_y, moving what is free: output first, then inputs nobody used before."""
    points = [scales.sim.placed.point_of[i] for i in node.inputs]
    out = scales.sim.placed.point_of[node.name]
    signs = [-1 if node.op == "sub" and j else 1 for j in range(len(points))]
    req = scales.kept(node, [sign * scales.scale[p] / scales.scale[out] for sign, p in zip(signs, points, strict=True)])
    if req is not None:
        scales.pinned |= {*points, out}
        return {"a": req.a.tolist(), "b": req.b.tolist(), "gain_error": float(req.gain_error)}
    # The reference term is one that cannot move, and the largest of those; the output follows it.
    order = sorted(range(len(points)), key=lambda j: (points[j] not in scales.pinned, -scales.scale[points[j]]))
    ratios = [signs[j] * scales.scale[points[j]] / scales.scale[out] for j in order]
    free_output = out not in scales.pinned and out not in points
    terms = 255 * sum(abs(r) for r in ratios) * 1.05
    b_max = int(largest_denominator("sum", residual_steps=terms, engines=scales.sim.recipe.engines))
    a, b = best_ratios(ratios, b_max, exact_first=free_output)
    if free_output:
        scales.move(out, scales.scale[points[order[0]]] * b / abs(a[0]))
    gain = 0.0
    used = {out}
    for j, numerator in zip(order, a, strict=True):
        exact = scales.scale[out] * abs(numerator) / b
        # A term so small that its numerator was rounded up from nothing keeps its own scale.
        near = abs(exact / scales.scale[points[j]] - 1) < MOVE
        if near and points[j] not in scales.pinned and points[j] not in used:
            scales.move(points[j], exact)
        used.add(points[j])
        ratio = scales.scale[points[j]] / scales.scale[out]
        gain = max(gain, abs(abs(numerator) / b / ratio - 1))
    scales.pinned |= used
    gain = gain if gain > NOISE else 0.0
    back = dict(zip(order, a, strict=True))
    return {"a": [back[j] for j in range(len(points))], "b": [b], "gain_error": gain}


def _single(
    scales: Scales, form: str, out: str, ratio: float, inputs: list[str], terms: float = 0.0
) -> tuple[int, int, float]:
    """One ratio ~ 1/s_y: exact by moving the output where it is free."""
    b_max = denominator(form, ratio, terms, scales.sim.recipe.engines)
    free = out not in scales.pinned and out not in inputs
    (a,), b = best_ratios([ratio], b_max, exact_first=free)
    if free:
        scales.move(out, scales.scale[out] * ratio * b / a)
        return a, b, 0.0
    return a, b, abs(a / b / ratio - 1)


def _solve_product(node: Node, scales: Scales) -> dict[str, Any]:
    points = [scales.sim.placed.point_of[i] for i in node.inputs]
    out = scales.sim.placed.point_of[node.name]
    ratio = scales.scale[points[0]] * scales.scale[points[1]] / scales.scale[out] * node.attrs.get("mul", 1.0)
    req = scales.kept(node, [ratio])
    if req is not None:
        scales.pinned |= {*points, out}
        return {"a": req.a.tolist(), "b": req.b.tolist(), "gain_error": float(req.gain_error)}
    a, b, gain = _single(scales, "scaled", out, ratio, points)
    scales.pinned |= {*points, out}
    return {"a": [a], "b": [b], "gain_error": gain}


def _solve_pool(node: Node, scales: Scales) -> dict[str, Any]:
    x_node = scales.sim.graph.nodes[node.inputs[0]]
    x, out = scales.sim.placed.point_of[x_node.name], scales.sim.placed.point_of[node.name]
    divisors = _divisors(node, x_node)
    ratios = [scales.scale[x] / (n * scales.scale[out]) for n in divisors]
    req = scales.kept(node, ratios)
    if req is not None and req.n.tolist() == divisors:
        scales.pinned |= {x, out}
        return {"n": divisors, "a": req.a.tolist(), "b": req.b.tolist(), "gain_error": float(req.gain_error)}
    # The commonest divisor is met exactly; windows cut by a border get the nearest rational.
    if node.op == "mean":
        a0, b0, gain = _single(scales, "mean", out, ratios[-1], [x], 255 * divisors[-1] * ratios[-1])
    else:
        a0, b0, gain = _single(scales, "scaled", out, ratios[-1], [x])
    a, b = [], []
    for n in divisors[:-1]:
        ratio = scales.scale[x] / (n * scales.scale[out])
        b_max = int(largest_denominator("scaled", engines=scales.sim.recipe.engines))
        (numerator,), denominator = best_ratios([ratio], b_max)
        gain = max(gain, abs(numerator / denominator / ratio - 1))
        a.append(numerator)
        b.append(denominator)
    scales.pinned |= {x, out}
    return {"n": divisors, "a": [*a, a0], "b": [*b, b0], "gain_error": gain}


def _divisors(node: Node, x: Node) -> list[int]:
    """Distinct divisors of a pool, ascending: the largest, a whole window, is last."""
    if node.op == "mean":
        return [int(np.prod(known(x.shape[d] for d in node.attrs["dims"])))]
    spatial = known(x.shape[2:])
    counts = (
        window_counts(node.attrs, spatial)
        if node.op == "avg_pool"
        else adaptive_counts(node.attrs["output_size"], spatial)
    )
    return [int(n) for n in torch.unique(counts)]


def _solve_residual(node: Node, scales: Scales) -> dict[str, Any]:
    """The ratio s_r/s_y of a fused residual; its denominator serves every channel, so it must suit the worst."""
    sim = scales.sim
    x, residual, out = (sim.placed.point_of[n] for n in (*node.inputs, node.name))
    scales.pinned.add(residual)
    free = out not in scales.pinned and out != x
    ratio = scales.scale[residual] / scales.scale[out]
    req = scales.kept(node, [ratio])
    if req is not None and int(req.b[0]) <= _residual_denominator(node, scales, scales.scale[out], ratio, room=1.0):
        scales.pinned.add(out)
        return {"residual_a": req.residual_a.tolist(), "b": req.b.tolist()[:1]}
    # 3 % of room for the move of the output scale.
    room = 1.03 * ROOM if scales.freezing else 1.03
    b_max = _residual_denominator(node, scales, scales.scale[out], ratio, room)
    (a,), b = best_ratios([ratio], b_max, exact_first=free)
    if free:
        scales.move(out, scales.scale[residual] * b / a)
    scales.pinned.add(out)
    return {"residual_a": [a], "b": [b]}


def _residual_denominator(node: Node, scales: Scales, s_y: float, ratio: float, room: float) -> int:
    layer = Layer(node, scales.sim, scales.fresh)
    # One step of room for the rounding of the bias.
    steps = float(layer.bias_steps(layer.base, s_y).max())
    return int(largest_denominator("fused", (steps + 1) * room, 255 * ratio * room, engines=scales.sim.recipe.engines))


def _solve_affine(node: Node, scales: Scales, shared: dict[str, Any] | None) -> None:
    """Weight scales on which every channel's multiplier is a rational its certificate allows."""
    sim = scales.sim
    x, y, layer = sim.point(node.inputs[0]), sim.point(node.name), Layer(node, sim, scales.fresh)
    assert x is not None and y is not None
    s_x, s_y, req = float(x.scale), float(y.scale), sim.requantizations[node.name]
    slopes = slopes_of(node, sim) if is_leaky(node) else None
    bad = None
    if layer.point.source == "held" and not scales.fresh:
        residual = 0.0 if shared is None else 255.0 * shared["residual_a"][0] / shared["b"][0]
        form = "leaky" if slopes is not None else "affine" if shared is None else "fused"
        bad = violated(layer, req, s_x, s_y, form, residual, sim.recipe.engines)
        if bad is not None and shared is not None:
            same = req.residual_a.tolist() == shared["residual_a"] and req.b.tolist()[:1] == shared["b"]
            bad = bad if same else np.ones_like(bad)
        if bad is not None and not bad.any() and slopes is None:
            return
        if bad is not None and bad.any():
            scales.repaired[node.name] = int(bad.sum())
    target = s_x * layer.base / s_y
    if shared is not None:
        r = sim.point(node.inputs[1])
        assert r is not None
        numerator, common = shared["residual_a"][0], shared["b"][0]
        b = np.full(len(target), common, np.int64)
        a = np.maximum(1, np.ceil(target * common * (1 - 1e-12))).astype(np.int64)
        gain = abs(numerator / common / (float(r.scale) / s_y) - 1)
        found = {"a": a, "b": b, "residual_a": [numerator], "gain_error": gain if gain > NOISE else 0.0}
    else:
        kept = None if bad is None or shared is not None else (~bad, integers_of(req.a), integers_of(req.b))
        found = channel_ratios(layer, target, s_x, s_y, slopes, y, scales.freezing, kept)
    if bad is not None and shared is not None and not bad.all():
        found["a"] = np.where(bad, found["a"], integers_of(req.a))
    scale = (found["a"] / found["b"] * s_y / s_x).astype(np.float32)
    if bad is not None:
        scale = np.where(bad, scale, layer.point.scale.cpu().numpy())
    layer.point.scale = torch.from_numpy(scale).to(layer.weight.device)
    req.put(**found)
