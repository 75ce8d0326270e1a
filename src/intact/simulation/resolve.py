"""From ranges to the numbers that ship: scales, then tie-free multipliers, in one pass over the graph.

Sums come first, in topological order: an add needs one odd denominator for all its ratios, so its output scale, and
the scales of inputs nobody depends on yet, move by a fraction of a percent until the ratios are rationals. What has
been used that way is pinned. Convolutions come last: their weight scales take whatever is left (contract, section 3).

Solving again from present scales keeps every multiplier that still belongs to them. So a loaded, copied or once more
resolved simulation computes the same integers, and new weights move no activation.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from intact.arithmetic.affine import choose_qparams
from intact.arithmetic.tie_free import (
    LARGEST_NEGATIVE,
    best_ratios,
    largest_denominator,
    nearest_ratios,
    negative_steps,
    ratios_above,
)
from intact.calibration.weights import pairs_can_saturate, weight_scales
from intact.capture.graph import Node
from intact.errors import CalibrationError

from .held import NOISE, ROOM, ROOM_STEPS, broken
from .motion import ScaleWarning
from .nodes import POOLS, SUMS, TABLES
from .points import QuantPoint, Requantization
from .pools import adaptive_counts, window_counts
from .tables import table_entries
from .weights import corrected_bias, folded, groups_of, output_first, transposed

if TYPE_CHECKING:
    from .module import Simulation

Array = npt.NDArray[Any]

MOVE = 0.02
"""Largest relative move of a scale that is not the output of its sum."""


class Scales:
    """The scales being solved for, in float64, and which of them may still move."""

    def __init__(self, sim: Simulation, from_observers: bool, freezing: bool) -> None:
        self.sim, self.fresh, self.freezing = sim, from_observers, freezing
        # Scales that follow or are learned are nominal: nothing solved for them before is a reason to stay near it.
        self.keep = not from_observers and all(p.source == "held" for p in sim.points.values())
        self.scale: dict[str, float] = {}
        self.zero_point: dict[str, int] = {}
        self.pinned: set[str] = set()
        self.repaired: dict[str, int] = {}
        for name, point in sim.points.items():
            origin = _scalar_arithmetic(sim, point) if from_observers else None
            if origin is None:
                self.scale[name], self.zero_point[name] = _start(point, from_observers)
            else:
                self.scale[name], self.zero_point[name] = self._derived(origin, point)
            if point.fixed:
                self.pinned.add(name)

    def _derived(self, table: Node, point: QuantPoint) -> tuple[float, int]:
        """Qparams of scalar arithmetic: those of the input, sent through it. x·m keeps its integers for m > 0."""
        source = self.sim.placed.point_of[table.inputs[0]]
        s, z, x = self.scale[source], self.zero_point[source], self.sim.points[source]
        mul, add = 1.0, 0.0
        for step in table.attrs["chain"]:
            mul, add = mul * step["attrs"]["mul"], add * step["attrs"]["mul"] + step["attrs"]["add"]
        if add == 0 and mul > 0 and (x.lo, x.hi) == (point.lo, point.hi):
            return float(np.float32(s * mul)), z
        ends = sorted(((q - z) * s * mul + add) for q in (x.lo, x.hi))
        scale, zero_point = choose_qparams(ends[0], ends[1], point.lo, point.hi, point.scheme.symmetric)
        return float(np.float32(scale)), int(zero_point)

    def kept(self, node: Node, nominal: list[float]) -> Requantization | None:
        """The node's present multipliers, if solving starts from present scales and they still are their ratios.

        Args:
            nominal: ratio of scales per multiplier, in order.
        """
        req = self.sim.requantizations[node.name]
        a = (req.residual_a if req.residual_a.numel() else req.a).tolist()
        b = req.b.tolist()[: len(a)]
        if not self.keep or len(a) != len(nominal) or not b:
            return None
        b += b[-1:] * (len(a) - len(b))  # the terms of a sum share one denominator
        limit = float(req.gain_error) + NOISE
        return req if all(abs(m / d / r - 1) <= limit for m, d, r in zip(a, b, nominal, strict=True)) else None

    def move(self, point: str, scale: float) -> float:
        """Set a free point's scale, rounded to float32, and pin it."""
        self.scale[point] = float(np.float32(scale))
        self.pinned.add(point)
        return self.scale[point]

    def write(self) -> None:
        """Store the result in the simulation's points."""
        for name, point in self.sim.points.items():
            point.assign(self.scale[name], self.zero_point[name])


def _scalar_arithmetic(sim: Simulation, point: QuantPoint) -> Node | None:
    """The table node of a point whose values come from scalar arithmetic alone; None for other points."""
    observed = sim.placed.points[point.name].observed
    if point.fixed or point.source != "held" or len(observed) != 1:
        return None
    node = sim.graph.nodes[observed[0]]
    if node.op != "table" or any(step["op"] != "affine_scalar" for step in node.attrs["chain"]):
        return None
    return node


def _start(point: QuantPoint, from_observers: bool) -> tuple[float, int]:
    if not point.fixed and (from_observers or point.source == "observed") and point.observer.count:
        scale, zero_point = point.observed_qparams()
        return float(np.float32(scale)), zero_point
    if point.source == "learned" and not from_observers:
        assert point.learner is not None
        return float(point.learner().detach()), int(point.zero_point)
    if not point.calibrated:
        raise CalibrationError(
            "this quantization point has seen no data", where=point.name, why="its part of the network never ran",
            remedy="calibrate with inputs that reach it, or fix its scale with sim.points[name].set(scale, zero_point)",
        )  # fmt: skip
    return float(point.scale), int(point.zero_point)


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
    gain = gain if gain > NOISE else 0.0
    back = dict(zip(order, a, strict=True))
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
    return int(largest_denominator("affine", (steps + 1) * room, 255 * ratio * room))


class Layer:
    """A layer's folded weight, bias and the weight scales it would have without tie-free multipliers."""

    def __init__(self, node: Node, sim: Simulation, fresh: bool) -> None:
        self.node, self.tensors, self.point = node, sim.tensors, sim.weight_points[node.name]
        self.weight, self.bias = folded(node, sim.tensors)
        w = output_first(self.weight, groups_of(node), transposed(node)).double().cpu().numpy()
        self.rows: Array = w.reshape(w.shape[0], -1)
        p = self.point
        stays = not fresh and p.source in ("learned", "held")
        try:
            base = weight_scales(self.rows, p.lo, p.hi, "minmax" if stays else p.scheme.observer, p.portable)
        except CalibrationError as error:
            where = node.params.get("weight", node.name)
            raise CalibrationError(error.what, where=where, why=error.why, remedy=error.remedy) from error
        self.base = base.astype(np.float64)
        if p.scheme.granularity == "per_tensor":
            self.base = np.full_like(self.base, self.base.max())
        if stays:
            assert p.source == "held" or p.learner is not None
            present = p.scale if p.source == "held" or p.learner is None else p.learner().detach()
            own = np.broadcast_to(present.double().cpu().numpy(), self.base.shape)
            # Room for pair sums is the one thing that weights still ask for.
            self.base = np.maximum(own, self.base) if pairs_can_saturate(p.lo, p.hi, p.portable) else own.copy()

    def bias_steps(self, scale: Array, s_y: float) -> Array:
        """|bias| in output steps for these weight scales, corrected where the recipe wants it."""
        s = torch.from_numpy(scale.astype(np.float32)).to(self.weight.device)
        bias = corrected_bias(self.node, self.tensors, self.weight, self.bias, s, self.point.lo, self.point.hi)
        return np.zeros(len(scale)) if bias is None else np.abs(bias.double().cpu().numpy()) / s_y


def _solve_affine(node: Node, scales: Scales, shared: dict[str, Any] | None) -> None:
    """Weight scales on which every channel's multiplier is a rational its certificate allows."""
    sim = scales.sim
    x, y, layer = sim.point(node.inputs[0]), sim.point(node.name), Layer(node, sim, scales.fresh)
    assert x is not None and y is not None
    s_x, s_y, req = float(x.scale), float(y.scale), sim.requantizations[node.name]
    slopes = _slopes(node, sim) if _leaky(node) else None
    bad = None
    if layer.point.source == "held" and not scales.fresh:
        residual = 0.0 if shared is None else 255.0 * shared["residual_a"][0] / shared["b"][0]
        bad = broken(layer, req, s_x, s_y, "affine" if slopes is None else "leaky", residual)
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
        kept = None if bad is None or shared is not None else (~bad, _numpy(req.a), _numpy(req.b))
        found = _ratios(layer, target, s_x, s_y, slopes, y, scales.freezing, kept)
    if bad is not None and shared is not None and not bad.all():
        found["a"] = np.where(bad, found["a"], _numpy(req.a))
    scale = (found["a"] / found["b"] * s_y / s_x).astype(np.float32)
    if bad is not None:
        scale = np.where(bad, scale, layer.point.scale.cpu().numpy())
    layer.point.scale = torch.from_numpy(scale).to(layer.weight.device)
    req.put(**found)


def _numpy(t: torch.Tensor) -> Array:
    return t.cpu().numpy().astype(np.int64)


def _ratios(
    layer: Layer,
    target: Array,
    s_x: float,
    s_y: float,
    slopes: Array | None,
    y: QuantPoint,
    freezing: bool,
    kept: tuple[Array, Array, Array] | None,
) -> dict[str, Any]:
    """a/b ≥ target per channel. The bias decides how large b may be, and b how the weights, and so the corrected bias,
    are rounded: the bias is counted again on the grid found until it is no larger than was counted on.

    ``kept``: which channels keep their a and b, and these.
    """
    form = "affine" if slopes is None else "leaky"
    steps = layer.bias_steps(layer.base, s_y) + 1
    if freezing:
        steps = steps * ROOM + ROOM_STEPS
    for _ in range(100):
        a, b = ratios_above(target, largest_denominator(form, steps))
        # Rounding the bias to its grid moves it by half of a multiplier.
        counted = layer.bias_steps(a / b * s_y / s_x, s_y) + 0.5 * a / b
        if (counted <= steps).all():
            break
        steps = np.maximum(steps, counted * 1.01)
    if kept is not None:
        a, b = np.where(kept[0], kept[1], a), np.where(kept[0], kept[2], b)
    if slopes is None:
        return {"a": a, "b": b}
    slope = np.broadcast_to(slopes, a.shape)
    limits = _negative_limits(slope, steps * np.abs(slope), y)
    # A slope times a small multiplier may be less than 1/b: then the multiplier grows, up to twice, to meet it.
    reach = 1.001 / (limits * np.maximum(np.abs(slope), 1e-12))
    wanted = np.where((reach > target) & (reach < 2 * target), reach, target)
    a, b = ratios_above(wanted, b)
    if kept is not None:
        a, b = np.where(kept[0], kept[1], a), np.where(kept[0], kept[2], b)
    while True:
        a_neg, b_neg = nearest_ratios(slope * a / b, limits)
        counted = _negative_limits(slope, (steps + 1) * b / a * np.abs(a_neg) / b_neg, y)
        if (b_neg <= counted).all():
            return {"a": a, "b": b, "a_neg": a_neg, "b_neg": b_neg}
        limits = np.minimum(limits, counted)


def _negative_limits(slope: Array, bias_steps: Array, y: QuantPoint) -> Array:
    """Largest denominators for negative sums.

    Their results end a few steps below the zero point, so these may be larger than for positive sums, unless a
    negative slope turns them into results of any size.
    """
    below = negative_steps(int(y.zero_point), y.lo)
    limits = largest_denominator("leaky", bias_steps, result_steps=below, cap=LARGEST_NEGATIVE)
    return np.where(slope < 0, largest_denominator("leaky", bias_steps), limits)


def _leaky(node: Node) -> bool:
    return node.attrs.get("act", {}).get("kind") in ("leaky_relu", "prelu")


def _slopes(node: Node, sim: Simulation) -> Array:
    act = node.attrs["act"]
    if act["kind"] == "leaky_relu":
        return np.asarray([act["slope"]], np.float64)
    values: Array = sim.tensors[node.params["act.weight"]].double().cpu().numpy().reshape(-1)
    return values
