"""The network with some of its layers quantized, computed again only from where two such networks differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.data import device_of
from intact8.capture.graph import Node
from intact8.diagnose.executors import (
    AUTO,
    SIMULATION,
    EngineExecutor,
    Executor,
    FloatExecutor,
    SimulationExecutor,
    choose_engine,
    ops_of,
)
from intact8.diagnose.quantizer import Quantizer
from intact8.diagnose.sensitivity.metrics import CEILING, sqnr
from intact8.lower import draft
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import per_output


@dataclass(frozen=True)
class Selection:
    """What is quantized.

    Attributes:
        points: names of the quantization points whose tensors are rounded.
        weights: names of the nodes whose weights are rounded.
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
    """A calibrated simulation of which any part can be quantized.

    Where an operation, its weight and its inputs are all quantized, its integers are those that ship (an engine
    computes them where that is proved, the simulation elsewhere). Any other operation is computed in float and then
    rounded, as a simulation does whose fake quantization is off at some points.
    """

    def __init__(self, sim: Simulation) -> None:
        self.graph, self.captured, self.device = sim.graph, sim.captured, device_of(sim)
        self.point_of, self.weight_points = sim.placed.point_of, sim.weight_points
        self.program = draft(sim)
        self._ops = ops_of(self.program, sim.graph)
        engine = choose_engine(AUTO, self.program, self.device, SIMULATION)
        simulated = engine == SIMULATION
        self._exact: Executor = (
            SimulationExecutor(sim) if simulated else EngineExecutor(self.program, sim.graph, engine)
        )
        self._float = FloatExecutor(sim.tensors)
        self._rounded = FloatExecutor(sim.tensors, self._integer_weight)
        points = sim.points.items()
        self._quantizers = {name: Quantizer(float(p.scale), int(p.zero_point), p.lo, p.hi) for name, p in points}
        self.everything = Selection(frozenset(sim.points), frozenset(sim.weight_points))
        self._last_uses = dict(zip((node.name for node in sim.graph), sim.last_uses, strict=True))

    def layers(self) -> list[Node]:
        """Return the operations on integers that make new values, in execution order."""
        quantized = self.point_of.keys() | self.weight_points.keys()
        nodes = [n for n in self.graph if n.name in quantized and n.op != "constant"]
        return [n for n in nodes if n.op == "cat" or not n.shares_grid]

    def select(self, node: Node, *, weight: bool = True, activation: bool = True) -> Selection:
        """Select the weight of a layer, where it has one, and its output, where that is rounded."""
        points = {self.point_of[node.name]} if activation and node.name in self.point_of else ()
        weights = {node.name} if weight and node.name in self.weight_points else ()
        return Selection(frozenset(points), frozenset(weights))

    def run(self, inputs: Sequence[Tensor], chosen: Selection) -> Values:
        """Return every tensor of the network with ``chosen`` quantized."""
        values: Values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node in self._nodes(inputs):
            if node.op != "input":
                values[node.name] = self._compute(node, values, {}, chosen)
        return values

    def _nodes(self, inputs: Sequence[Tensor]) -> list[Node]:
        if isinstance(self._exact, EngineExecutor):
            self._exact.begin(inputs)
        return self.graph.sized(inputs)

    def losses(self, real: Values, quantized: Values | None, inputs: Sequence[Tensor]) -> dict[str, float]:
        """Return by how many decibels what a layer gives is further from float than what it reads, by its name.

        Args:
            real, quantized: every tensor of the network with nothing and with everything quantized; the latter is
                computed where it is None.
            inputs: of the network.
        """
        values = self.run(inputs, self.everything) if quantized is None else quantized
        ratios: dict[str, float] = {}
        losses: dict[str, float] = {}
        for node in self.graph:
            wanted = real[node.name]
            if not wanted.is_floating_point():
                continue
            error = self._real(values[node.name], node.name, self.everything) - wanted
            signal, noise = (float(t.double().square().sum()) for t in (wanted, error))
            ratios[node.name] = sqnr((signal, noise)) if signal > 0 else CEILING
            read = min((ratios[name] for name in node.inputs if name in ratios), default=CEILING)
            losses[node.name] = read - ratios[node.name]
        return {node.name: losses.get(node.name, 0.0) for node in self.layers()}

    def resume(self, base: Values, before: Selection, after: Selection) -> list[Tensor]:
        """Return the outputs with ``after`` quantized, given every tensor with ``before``, which are not changed."""
        changed = self._changes(base, before, after, keep=False)
        return [changed.get(name, base[name]) for name in self.graph.outputs]

    def advance(self, base: Values, before: Selection, after: Selection) -> list[Tensor]:
        """Return the outputs with ``after`` quantized; ``base`` becomes every tensor with ``after`` quantized."""
        base.update(self._changes(base, before, after, keep=True))
        return [base[name] for name in self.graph.outputs]

    def _changes(self, base: Values, before: Selection, after: Selection, keep: bool) -> Values:
        changed: Values = {}
        fresh: set[str] = set()
        for node in self._nodes([base[name] for name in self.graph.inputs]):
            name, point = node.name, self.point_of.get(node.name)
            weight = (name in before.weights) != (name in after.weights)
            rounding = (point in before.points) != (point in after.points)
            moved = any(i in fresh for i in node.inputs)
            if not (moved or weight or rounding):
                continue
            fresh.add(name)
            if not moved and not weight and point in after.points and not self._on_integers(node, after):
                assert point is not None
                changed[name] = self._round(base[name], point)  # the same real numbers, rounded for the first time
            else:
                changed[name] = self._compute(node, base, changed, after)
            if not keep:
                for used in self._last_uses[name]:
                    changed.pop(used, None)
        return changed

    def _on_integers(self, node: Node, chosen: Selection) -> bool:
        """Return whether the inputs, the weight and the output of a node are all quantized."""
        if self.point_of.get(node.name) not in chosen.points or node.op in ("quantize", "constant"):
            return False
        weight = node.name not in self.weight_points or node.name in chosen.weights
        return weight and all(self.point_of.get(i) in chosen.points for i in node.inputs)

    def _compute(self, node: Node, base: Values, changed: Values, chosen: Selection) -> Tensor:
        inputs = [changed[i] if i in changed else base[i] for i in node.inputs]
        if self._on_integers(node, chosen):
            return self._exact(node, inputs)
        reals = [self._real(x, i, chosen) for x, i in zip(inputs, node.inputs, strict=True)]
        y = (self._rounded if node.name in chosen.weights else self._float)(node, reals)
        point = self.point_of.get(node.name)
        return self._round(y, point) if point in chosen.points and point is not None else y

    def _integer_weight(self, node: Node, weight: Tensor) -> Tensor:
        """Return the integers that ship as real numbers, in the layout of the module's own weight."""
        op = self._ops[node.name][0]
        q = torch.from_numpy(np.array(op.arrays["weight"])).to(weight.device, torch.float32)
        if node.op == "scale_shift" and op.kind == "linear":
            q = torch.diagonal(q)
        scale = self.weight_points[node.name].scale
        return q.reshape(weight.shape) * per_output(scale, weight, node)

    def _round(self, y: Tensor, point: str) -> Tensor:
        quantizer = self._quantizers[point]
        return quantizer.round(quantizer.steps(y))

    def _real(self, x: Tensor, name: str, chosen: Selection) -> Tensor:
        point = self.point_of.get(name)
        return self._quantizers[point].dequantize(x) if point is not None and point in chosen.points else x
