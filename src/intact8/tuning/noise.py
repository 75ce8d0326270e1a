"""What quantization adds to the outputs, tensor by tensor, and which operations to keep float to take most of it out.

The noise of a network is taken for the sum of what its tensors make alone. That is a prediction for the order in which
operations are tried, and no more: every candidate is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Node
from intact8.capture.operations import TRANSITIONS
from intact8.diagnose.sensitivity import SensitivityReport
from intact8.simulation.simulation import Simulation

OVERHEAD = 16.0
"""Multiplications that take as long as reading and writing one number."""

LARGEST_GROUP = 8
"""Operations around one tensor that are kept float together, at most."""


@dataclass(frozen=True)
class _Tensor:
    """A quantized tensor.

    Attributes:
        noise: noise over signal of the outputs with this tensor quantized alone.
        makers: operations on integers that compute it; none where it is quantized from floats.
        readers: operations on integers that read it.
        float_readers: whether operations in float read it, too.
    """

    noise: float
    makers: frozenset[str]
    readers: frozenset[str]
    float_readers: bool

    def left(self, floats: frozenset[str]) -> float:
        """Return its noise where these operations are float: readers in float read it without rounding."""
        if not self.makers <= floats:
            return self.noise
        if not self.readers:
            return 0.0
        total = len(self.readers) + self.float_readers
        return self.noise * len(self.readers - floats) / total


class NoiseModel:
    """The noise of every tensor and weight of a simulation, and the work of every operation.

    Args:
        sim: a calibrated simulation.
        report: its sensitivities to weights and activations alone, as SQNR.
    """

    def __init__(self, sim: Simulation, report: SensitivityReport) -> None:
        graph, point_of = sim.graph, sim.placed.point_of
        users = graph.users()
        quantized = point_of.keys() | sim.weight_points.keys()
        self.order = [n.name for n in graph if n.name in quantized and _computes(n)]
        operations = set(self.order)
        weighted = [row for row in report if row.has_weight and row.name in operations]
        self.weights = {row.name: _noise(row.score("alone", "weight")) for row in weighted}
        noise = {row.point: _noise(row.score("alone", "activation")) for row in report}
        self.tensors: list[_Tensor] = []
        for name, point in sim.points.items():
            inside = set(point.tensors)
            readers = {user for tensor in inside for user in users[tensor]} - inside
            makers = frozenset(inside & operations)
            floats = any(graph.nodes[user].op == "dequantize" for user in readers)
            self.tensors.append(_Tensor(noise.get(name, 0.0), makers, frozenset(readers & operations), floats))
        self.work = {name: _work(graph.nodes[name], sim) for name in self.order}

    def left(self, floats: frozenset[str]) -> float:
        """Return the noise that is left where these operations are float."""
        weights = sum(noise for name, noise in self.weights.items() if name not in floats)
        return weights + sum(tensor.left(floats) for tensor in self.tensors)

    def groups(self) -> list[frozenset[str]]:
        """Return what is kept float together: every operation alone, and those around one tensor."""
        around = [t.makers | t.readers for t in self.tensors if 1 < len(t.makers | t.readers) <= LARGEST_GROUP]
        return list(dict.fromkeys([*(frozenset({name}) for name in self.order), *around]))

    def growth(self) -> list[frozenset[str]]:
        """Return growing sets of operations to keep float: each takes out the most noise for the least work."""
        groups, chosen, found = self.groups(), frozenset[str](), list[frozenset[str]]()
        near = {group: [t for t in self.tensors if (t.makers | t.readers) & group] for group in groups}
        while groups:
            gains = [self._gain(group, near[group], chosen) for group in groups]
            best = max(range(len(groups)), key=lambda i: gains[i])
            if gains[best] <= 0:
                break
            chosen |= groups[best]
            found.append(chosen)
            groups = [group for group in groups if not group <= chosen]
        everything = frozenset(self.order)
        return found if found and found[-1] == everything else [*found, everything]

    def _gain(self, group: frozenset[str], near: Iterable[_Tensor], chosen: frozenset[str]) -> float:
        """Return the noise taken out by a group over the work that is added."""
        after = chosen | group
        taken = sum(t.left(chosen) - t.left(after) for t in near)
        taken += sum(self.weights.get(name, 0.0) for name in group - chosen)
        return taken / sum(self.work[name] for name in group - chosen)

    def value(self, name: str, floats: frozenset[str]) -> float:
        """Return the noise that comes back per work that is saved where an operation is no longer float."""
        return (self.left(floats - {name}) - self.left(floats)) / self.work[name]


def _computes(node: Node) -> bool:
    return node.op not in TRANSITIONS | {"input", "constant"} and (node.op == "cat" or not node.shares_grid)


def _noise(sqnr: float | None) -> float:
    return 0.0 if sqnr is None else 10 ** (-sqnr / 10)


def _work(node: Node, sim: Simulation) -> float:
    """Return about how many multiplications an operation takes for one sample, with its reading and writing."""
    elements = math.prod(known(node.shape))
    weight = sim.tensors[node.params["weight"]] if "weight" in node.params else None
    if weight is None or weight.dim() < 2 or node.op == "embedding":
        return elements * OVERHEAD
    return elements * (OVERHEAD + weight[0].numel())
