"""The scales that the solver starts from and moves, and which are pinned because multipliers depend on them."""

from __future__ import annotations

import numpy as np

from intact8.arithmetic.affine import LARGEST_SCALE, SMALLEST_SCALE, choose_qparams
from intact8.capture.graph import Node
from intact8.errors import CalibrationError
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.scales.frozen_multipliers import NOISE
from intact8.simulation.scales.quant_points import QuantPoint, Requantization

MOVE = 0.02
"""Largest relative move of a scale that is not the output of its sum."""


class SolverState:
    """The scales being solved for, in float64, and which of them may still move."""

    def __init__(self, q: QuantizedGraph, from_observers: bool, freezing: bool) -> None:
        self.q, self.fresh, self.freezing = q, from_observers, freezing
        # Observed and learned scales are nominal: multipliers that were found for them before need not stay.
        self.keep = not from_observers and all(p.source == "held" or p.unmoved for p in q.points.values())
        self.scale: dict[str, float] = {}
        self.zero_point: dict[str, int] = {}
        self.pinned: set[str] = set()
        self.repaired: dict[str, int] = {}
        for name, point in q.points.items():
            origin = _scalar_arithmetic(q, point) if from_observers else None
            if origin is None:
                self.scale[name], self.zero_point[name] = _start(point, from_observers)
            else:
                self.scale[name], self.zero_point[name] = self._derived(origin, point)
            if point.fixed:
                self.pinned.add(name)

    def _derived(self, table: Node, point: QuantPoint) -> tuple[float, int]:
        """Return qparams of scalar arithmetic: those of its input, mapped by it. x·m keeps its integers for m > 0."""
        source = self.q.placed.point_of[table.inputs[0]]
        s, z, x = self.scale[source], self.zero_point[source], self.q.points[source]
        mul, add = 1.0, 0.0
        for step in table.attrs["chain"]:
            mul, add = mul * step["attrs"]["mul"], add * step["attrs"]["mul"] + step["attrs"]["add"]
        same_range = (x.lo, x.hi) == (point.lo, point.hi)
        if add == 0 and SMALLEST_SCALE <= s * mul <= LARGEST_SCALE and same_range:
            return float(np.float32(s * mul)), z
        ends = sorted(((q - z) * s * mul + add) for q in (x.lo, x.hi))
        scale, zero_point = choose_qparams(ends[0], ends[1], point.lo, point.hi, point.scheme.symmetric)
        return float(np.float32(scale)), int(zero_point)

    def points_of(self, node: Node) -> tuple[list[str], str]:
        """Return the names of the points of a node's inputs, and of its output."""
        point_of = self.q.placed.point_of
        return [point_of[name] for name in node.inputs], point_of[node.name]

    def present_multipliers(self, node: Node, nominal: list[float]) -> Requantization | None:
        """Return the node's present multipliers, if the solver may keep them and they are the ``nominal`` ratios."""
        req = self.q.requantizations[node.name]
        a = (req.residual_a if req.residual_a.numel() else req.a).tolist()
        b = req.b.tolist()[: len(a)]
        if not self.keep or len(a) != len(nominal) or not b:
            return None
        b += b[-1:] * (len(a) - len(b))  # the terms of a sum share a denominator
        limit = float(req.gain_error) + NOISE
        return req if all(abs(m / d / r - 1) <= limit for m, d, r in zip(a, b, nominal, strict=True)) else None

    def always_zero(self, name: str) -> bool:
        """Return whether calibration saw nothing but zeros at a point: its scale is then as good as any other."""
        point = self.q.points[name]
        if point.fixed or point.source == "learned" or not point.observer.count:
            return False
        return tuple(point.observer.range(point.lo, point.hi, point.scheme.symmetric)) == (0.0, 0.0)

    def move(self, point: str, scale: float) -> None:
        """Set a free point's scale, rounded to float32, and pin it."""
        self.scale[point] = float(np.float32(scale))
        self.pinned.add(point)

    def write(self) -> None:
        """Store the result in the simulation's points."""
        for name, point in self.q.points.items():
            point.assign(self.scale[name], self.zero_point[name])


def _scalar_arithmetic(q: QuantizedGraph, point: QuantPoint) -> Node | None:
    """Return the table node of a point whose values come from scalar arithmetic alone; None for other points."""
    observed = q.placed.points[point.name].observed
    if point.fixed or point.source != "held" or len(observed) != 1:
        return None
    node = q.graph.nodes[observed[0]]
    if node.op != "table" or any(step["op"] != "affine_scalar" for step in node.attrs["chain"]):
        return None
    return node


def _start(point: QuantPoint, from_observers: bool) -> tuple[float, int]:
    if not point.fixed and (from_observers or point.source == "observed") and point.observer.count:
        scale, zero_point = point.observed_qparams()
        return float(np.float32(scale)), zero_point
    if point.source == "learned" and not point.unmoved and not from_observers:
        assert point.learner is not None
        return float(point.learner().detach()), point.learned_zero_point
    if not point.calibrated:
        what, why = "this quantization point has seen no data", "its part of the network never ran"
        remedy = "calibrate with inputs that reach it, or fix its scale with sim.points[name].set(scale, zero_point)"
        raise CalibrationError(what, where=point.name, why=why, remedy=remedy)
    return point.scale_value, point.zero_point_value
