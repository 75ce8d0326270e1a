"""From ranges to the numbers that ship: scales, then tie-free multipliers, in one pass over the graph.

Sums come first, in topological order: an add needs one odd denominator for all its ratios, so its output scale, and
the scales of inputs nobody depends on yet, move by a fraction of a percent until the ratios are rationals. What has
been used that way is pinned. Convolutions come last: their weight scales take whatever is left (contract, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from intact.arithmetic.tie_free import best_ratios, largest_denominator, ratios_above
from intact.calibration.weights import weight_scales
from intact.capture.graph import Node
from intact.errors import CalibrationError

from .nodes import POOLS, SUMS, TABLES
from .points import QuantPoint
from .pools import adaptive_counts, window_counts
from .tables import table_entries
from .weights import folded, groups_of, output_first, transposed

if TYPE_CHECKING:
    from .module import Simulation

Array = npt.NDArray[Any]

MOVE = 0.02
"""Largest relative move of a scale that is not the output of its sum."""


class Scales:
    """The scales being solved for, in float64, and which of them may still move."""

    def __init__(self, sim: Simulation, from_observers: bool) -> None:
        self.sim = sim
        self.scale: dict[str, float] = {}
        self.zero_point: dict[str, int] = {}
        self.pinned: set[str] = set()
        for name, point in sim.points.items():
            self.scale[name], self.zero_point[name] = _start(point, from_observers)
            if point.fixed:
                self.pinned.add(name)

    def of(self, node: str) -> float:
        """Scale of a node's output."""
        return self.scale[self.sim.placed.point_of[node]]

    def move(self, point: str, scale: float) -> float:
        """Set a free point's scale, rounded to float32, and pin it."""
        self.scale[point] = float(np.float32(scale))
        self.pinned.add(point)
        return self.scale[point]

    def write(self) -> None:
        """Store the result in the simulation's points."""
        for name, point in self.sim.points.items():
            point.assign(self.scale[name], self.zero_point[name])


def _start(point: QuantPoint, from_observers: bool) -> tuple[float, int]:
    if not point.fixed and from_observers and point.observer.count:
        scale, zero_point = point.observed_qparams()
        return float(np.float32(scale)), zero_point
    if not point.calibrated:
        raise CalibrationError(
            "this quantization point has seen no data", where=point.name, why="its part of the network never ran",
            remedy="calibrate with inputs that reach it, or fix its scale with sim.points[name].set(scale, zero_point)",
        )  # fmt: skip
    return float(point.scale), int(point.zero_point)


def resolve(sim: Simulation, *, from_observers: bool) -> None:
    """Compute every scale and multiplier of ``sim`` and store them in its points."""
    scales = Scales(sim, from_observers)
    integer = [n for n in sim.graph if n.name in sim.placed.point_of]
    solved: dict[str, dict[str, Any]] = {}
    for node in integer:
        if node.op in SUMS:
            solved[node.name] = _solve_sum(node, scales)
        elif node.op == "mul":
            solved[node.name] = _solve_product(node, scales)
        elif node.op in POOLS:
            solved[node.name] = _solve_pool(node, scales)
        elif len(node.inputs) == 2 and node.name in sim.weight_points:
            solved[node.name] = _solve_residual(node, scales)
    scales.write()
    with torch.no_grad():
        for node in integer:
            if node.name in sim.weight_points:
                _solve_affine(node, sim, solved.get(node.name))
            elif node.op in TABLES:
                x, y = sim.point(node.inputs[0]), sim.point(node.name)
                assert x is not None and y is not None
                sim.requantizations[node.name].put(table=table_entries(node, x, y, sim.tensors))
            elif node.name in solved:
                sim.requantizations[node.name].put(**solved[node.name])


def _solve_sum(node: Node, scales: Scales) -> dict[str, Any]:
    """Common denominator for Σ s_j/s_y, moving what is free: output first, then inputs nobody used before."""
    points = [scales.sim.placed.point_of[i] for i in node.inputs]
    out = scales.sim.placed.point_of[node.name]
    signs = [-1 if node.op == "sub" and j else 1 for j in range(len(points))]
    # The reference term is one that cannot move, and the largest of those; the output follows it.
    order = sorted(range(len(points)), key=lambda j: (points[j] not in scales.pinned, -scales.scale[points[j]]))
    ratios = [signs[j] * scales.scale[points[j]] / scales.scale[out] for j in order]
    free_output = out not in scales.pinned and out not in points
    b_max = int(largest_denominator("sum", residual_steps=255 * sum(abs(r) for r in ratios) * 1.05))
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
    gain = gain if gain > 1e-6 else 0.0  # below that it is the rounding of a float32 scale
    back = {j: numerator for j, numerator in zip(order, a, strict=True)}
    return {"a": [back[j] for j in range(len(points))], "b": [b], "gain_error": gain}


def _single(scales: Scales, form: str, out: str, ratio: float, inputs: list[str]) -> tuple[int, int, float]:
    """One ratio ~ 1/s_y: exact by moving the output where it is free."""
    b_max = int(largest_denominator(form))
    free = out not in scales.pinned and out not in inputs
    (a,), b = best_ratios([ratio], b_max, exact_first=free)
    if free:
        scales.move(out, scales.scale[out] * ratio * b / a)
        return a, b, 0.0
    return a, b, abs(a / b / ratio - 1)


def _solve_product(node: Node, scales: Scales) -> dict[str, Any]:
    points = [scales.sim.placed.point_of[i] for i in node.inputs]
    out = scales.sim.placed.point_of[node.name]
    ratio = scales.scale[points[0]] * scales.scale[points[1]] / scales.scale[out]
    a, b, gain = _single(scales, "scaled", out, ratio, points)
    scales.pinned |= {*points, out}
    return {"a": [a], "b": [b], "gain_error": gain}


def _solve_pool(node: Node, scales: Scales) -> dict[str, Any]:
    x_node = scales.sim.graph.nodes[node.inputs[0]]
    x, out = scales.sim.placed.point_of[x_node.name], scales.sim.placed.point_of[node.name]
    divisors = _divisors(node, x_node)
    ratios = [scales.scale[x] / (n * scales.scale[out]) for n in divisors]
    # The commonest divisor is met exactly; windows cut by a border get the nearest rational.
    a0, b0, gain = _single(scales, "scaled", out, ratios[-1], [x])
    a, b = [], []
    for n in divisors[:-1]:
        ratio = scales.scale[x] / (n * scales.scale[out])
        (numerator,), denominator = best_ratios([ratio], int(largest_denominator("scaled")))
        gain = max(gain, abs(numerator / denominator / ratio - 1))
        a.append(numerator)
        b.append(denominator)
    scales.pinned |= {x, out}
    return {"n": divisors, "a": [*a, a0], "b": [*b, b0], "gain_error": gain}


def _divisors(node: Node, x: Node) -> list[int]:
    """Distinct divisors of a pool, ascending: the largest, a whole window, is last."""
    if node.op == "mean":
        sizes = [x.shape[d] for d in node.attrs["dims"]]
        return [int(np.prod([s for s in sizes if s is not None]))]
    spatial = [s for s in x.shape[2:] if s is not None]
    counts = window_counts(node.attrs, spatial) if node.op == "avg_pool" else adaptive_counts(node.attrs["output_size"], spatial)
    return [int(n) for n in torch.unique(counts)]


def _solve_residual(node: Node, scales: Scales) -> dict[str, Any]:
    """The ratio s_r/s_y of a fused residual; its denominator serves every channel, so it must suit the worst."""
    sim = scales.sim
    x, residual, out = (sim.placed.point_of[n] for n in (*node.inputs, node.name))
    scales.pinned.add(residual)
    free = out not in scales.pinned and out != x
    ratio = scales.scale[residual] / scales.scale[out]
    b_max = _residual_denominator(node, sim, scales.scale[out], ratio)
    (a,), b = best_ratios([ratio], b_max, exact_first=free)
    if free:
        scales.move(out, scales.scale[residual] * b / a)
    scales.pinned.add(out)
    return {"residual_a": [a], "b": [b]}


def _residual_denominator(node: Node, sim: Simulation, s_y: float, ratio: float) -> int:
    with torch.no_grad():
        _, bias = folded(node, sim.tensors)
    steps = 0.0 if bias is None else float(bias.abs().max()) / s_y
    # 2 % room for the move of the output scale.
    return int(largest_denominator("affine", (steps + 1) * 1.03, 255 * ratio * 1.03))


def _solve_affine(node: Node, sim: Simulation, shared: dict[str, Any] | None) -> None:
    """Weight scales on which every channel's multiplier is a rational its certificate allows."""
    wp, req = sim.weight_points[node.name], sim.requantizations[node.name]
    x, y = sim.point(node.inputs[0]), sim.point(node.name)
    assert x is not None and y is not None
    weight, bias = folded(node, sim.tensors)
    w = output_first(weight, groups_of(node), transposed(node)).double().cpu().numpy()
    w = w.reshape(w.shape[0], -1)
    s_x, s_y = float(x.scale), float(y.scale)
    base = weight_scales(w, wp.lo, wp.hi, wp.scheme.observer, sim.recipe.portable).astype(np.float64)
    if wp.scheme.granularity == "per_tensor":
        base = np.full_like(base, base.max())
    # One step more than the bias: rounding it to the integer grid moves it by less.
    steps = np.ones(len(w)) if bias is None else np.abs(bias.double().cpu().numpy()) / s_y + 1
    act = node.attrs.get("act", {})
    leaky = act.get("kind") in ("leaky_relu", "prelu")
    target = s_x * base / s_y
    extra: dict[str, Any] = {}
    if shared is not None:
        r = sim.point(node.inputs[1])
        assert r is not None
        residual_a, common = shared["residual_a"][0], shared["b"][0]
        b = np.full(len(w), common, np.int64)
        a = np.maximum(1, np.ceil(target * common * (1 - 1e-12))).astype(np.int64)
        ratio = float(r.scale) / s_y
        extra = {"residual_a": [residual_a], "gain_error": abs(residual_a / common / ratio - 1)}
    else:
        a, b = ratios_above(target, largest_denominator("leaky" if leaky else "affine", steps))
    if leaky:
        slope = np.broadcast_to(_slopes(node, sim), a.shape)
        extra["a_neg"], extra["b_neg"] = _signed_ratios(slope * a / b, largest_denominator("leaky", steps))
    scale = (a / b * s_y / s_x).astype(np.float32)
    wp.scale = torch.from_numpy(scale).to(weight.device)
    req.put(a=a, b=b, **extra)


def _slopes(node: Node, sim: Simulation) -> Array:
    act = node.attrs["act"]
    if act["kind"] == "leaky_relu":
        return np.asarray([act["slope"]], np.float64)
    values: Array = sim.tensors[node.params["act.weight"]].double().cpu().numpy().reshape(-1)
    return values


def _signed_ratios(m: Array, b_max: Array) -> tuple[Array, Array]:
    """Nearest a/b to ``m`` of any sign, channel by channel; 0 is 0/1."""
    a, b = np.zeros(m.shape, np.int64), np.ones(m.shape, np.int64)
    for i, (value, limit) in enumerate(zip(m, b_max, strict=True)):
        if abs(value) * limit >= 0.5:
            (a[i],), b[i] = best_ratios([float(value)], int(limit))
    return a, b
