"""The network with some of its layers quantized, computed again only from where two such networks differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.data import device_of
from intact8.capture.graph import Node
from intact8.diagnose.compare.statistics import Quantizer
from intact8.diagnose.executors import (
    AUTO,
    SIMULATION,
    EngineStep,
    FloatStep,
    SimulationStep,
    Step,
    choose_engine,
    ops_of,
)
from intact8.lower import draft
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import per_output


@dataclass(frozen=True)
class Selection:
    """What is quantized.

    Attributes:
        points: names of the quantization points whose tensors are rounded.
        weights: nodes whose weights are.
    """

    points: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()

    def __or__(self, other: Selection) -> Selection:
        return Selection(self.points | other.points, self.weights | other.weights)

    def __sub__(self, other: Selection) -> Selection:
        return Selection(self.points - other.points, self.weights - other.weights)


Values = dict[str, Tensor]
"""Tensors by node: uint8 where rounded, real numbers elsewhere."""


class PartialNetwork:
    """A calibrated simulation, any part of it quantized.

    Where an operation, its weight and its inputs are all quantized, its integers are those that ship (an engine
    computes them where that is proved, the simulation elsewhere); any other is computed in float and then rounded, as a
    simulation does whose fake quantization is off at some points.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.graph, self.point_of = sim, sim.graph, sim.placed.point_of
        self.program = draft(sim)
        self._ops = ops_of(self.program, sim.graph)
        engine = choose_engine(AUTO, self.program, device_of(sim), SIMULATION)
        simulated = engine == SIMULATION
        self._exact: Step = SimulationStep(sim) if simulated else EngineStep(self.program, sim.graph, engine)
        self._float = FloatStep(sim.tensors)
        self._rounded = FloatStep(sim.tensors, self._on_its_grid)
        self._grids = {name: Quantizer(float(p.scale), int(p.zero_point), p.lo, p.hi) for name, p in sim.points.items()}
        self.everything = Selection(frozenset(sim.points), frozenset(sim.weight_points))
        last = {name: node.name for node in self.graph for name in node.inputs}
        self._done: dict[str, list[str]] = {}
        for name, reader in last.items():
            if name not in self.graph.outputs:
                self._done.setdefault(reader, []).append(name)

    def layers(self) -> list[Node]:
        """The operations on integers that make new values, in execution order."""
        return [n for n in self.graph if n.name in self.point_of and n.op != "constant"
                and (n.op == "cat" or not n.shares_grid)]  # fmt: skip

    def run(self, inputs: Sequence[Tensor], chosen: Selection) -> Values:
        """Every tensor of the network with ``chosen`` quantized."""
        values: Values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node in self.graph.sized(inputs):
            if node.op != "input":
                values[node.name] = self._compute(node, values, {}, chosen)
        return values

    def resume(self, base: Values, before: Selection, after: Selection) -> list[Tensor]:
        """The outputs with ``after`` quantized, given every tensor with ``before``; ``base`` is left as it is."""
        changed = self._changes(base, before, after, keep=False)
        return [changed.get(name, base[name]) for name in self.graph.outputs]

    def advance(self, base: Values, before: Selection, after: Selection) -> list[Tensor]:
        """The same, and ``base`` becomes every tensor with ``after`` quantized."""
        base.update(self._changes(base, before, after, keep=True))
        return [base[name] for name in self.graph.outputs]

    def _changes(self, base: Values, before: Selection, after: Selection, keep: bool) -> Values:
        changed: Values = {}
        fresh: set[str] = set()
        for node in self.graph.sized([base[name] for name in self.graph.inputs]):
            name, point = node.name, self.point_of.get(node.name)
            weight = (name in before.weights) != (name in after.weights)
            rounding = (point in before.points) != (point in after.points)
            moved = any(i in fresh for i in node.inputs)
            if not (moved or weight or rounding):
                continue
            fresh.add(name)
            if not moved and not weight and point in after.points and not self._on_grid(node, after):
                assert point is not None
                changed[name] = self._round(base[name], point)  # the same real numbers, rounded for the first time
            else:
                changed[name] = self._compute(node, base, changed, after)
            if not keep:
                for used in self._done.get(name, []):
                    changed.pop(used, None)
        return changed

    def _on_grid(self, node: Node, chosen: Selection) -> bool:
        """Whether a node computes on integers: its inputs, its weight and its output are quantized."""
        if self.point_of.get(node.name) not in chosen.points or node.op in ("quantize", "constant"):
            return False
        weight = node.name not in self.sim.weight_points or node.name in chosen.weights
        return weight and all(self.point_of.get(i) in chosen.points for i in node.inputs)

    def _compute(self, node: Node, base: Values, changed: Values, chosen: Selection) -> Tensor:
        inputs = [changed[i] if i in changed else base[i] for i in node.inputs]
        if self._on_grid(node, chosen):
            return self._exact(node, inputs)
        reals = [self._real(x, i, chosen) for x, i in zip(inputs, node.inputs, strict=True)]
        y = (self._rounded if node.name in chosen.weights else self._float)(node, reals)
        point = self.point_of.get(node.name)
        return self._round(y, point) if point in chosen.points and point is not None else y

    def _on_its_grid(self, node: Node, weight: Tensor) -> Tensor:
        """The integers that ship, in real numbers and the layout of the module's own weight."""
        op = self._ops[node.name][-1]
        q = torch.from_numpy(np.array(op.arrays["weight"])).to(weight.device, torch.float32)
        if node.op == "scale_shift" and op.kind == "linear":
            q = torch.diagonal(q)
        scale = self.sim.weight_points[node.name].scale
        return q.reshape(weight.shape) * per_output(scale, weight, node)

    def _round(self, y: Tensor, point: str) -> Tensor:
        grid = self._grids[point]
        return grid.round(grid.steps(y))

    def _real(self, x: Tensor, name: str, chosen: Selection) -> Tensor:
        point = self.point_of.get(name)
        if point is None or point not in chosen.points:
            return x
        grid = self._grids[point]
        return x.to(torch.float32).sub_(grid.zero_point).mul_(grid.scale)
