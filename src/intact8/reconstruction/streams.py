"""Samples on their way through the float network and the quantized one, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.simulation import Simulation

from .blocks import Block

CHUNK = 32
"""Samples that are computed at a time."""


class Streams:
    """What blocks read and make, for all samples.

    Attributes:
        samples: how many there are.
    """

    def __init__(self, sim: Simulation, inputs: list[Tensor]) -> None:
        self.sim, self.samples = sim, len(inputs[0])
        parts = zip(*(torch.split(t, CHUNK) for t in inputs), strict=True)
        self.floating: list[dict[str, Value]] = [dict(zip(sim.graph.inputs, part, strict=True)) for part in parts]
        self.quantized = [dict(values) for values in self.floating]
        self.order = list(sim.graph)
        self.kept = {node.name for node in self.order if node.op in ("input", "constant")}
        self.weights = sim.all_weight_points

    def nodes(self, block: Block, samples: int) -> list[Node]:
        """Return the nodes of a block in the size of so many samples."""
        inputs = [real(self.floating[0][name]) for name in self.sim.graph.inputs]
        whole = [torch.cat([t] * (-(-samples // len(t))))[:samples] for t in inputs]
        return self.sim.graph.sized(whole)[block.first : block.last + 1]

    def of(self, block: Block) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return what a block reads in the quantized and in the float network, and what it makes in the float one."""
        quantized, floating, targets = (
            {name: torch.cat([real(part[name]) for part in parts]) for name in names}
            for parts, names in (
                (self.quantized, block.inputs),
                (self.floating, block.inputs),
                (self.floating, block.outputs),
            )
        )
        return quantized, floating, targets

    def advance_float(self, block: Block) -> None:
        """Compute a block in the float network."""
        for values in self.floating:
            for node in self._sized(values)[block.first : block.last + 1]:
                if node.op != "input":
                    values[node.name] = self._float(node, [values[name] for name in node.inputs])

    def advance_quantized(self, block: Block) -> None:
        """Compute a block in the quantized network, and forget what no later block reads."""
        later = {name for node in self.order[block.last + 1 :] for name in node.inputs} | self.kept
        for values, floating in zip(self.quantized, self.floating, strict=True):
            for node in self._sized(values)[block.first : block.last + 1]:
                if node.op != "input":
                    values[node.name] = self.sim.compute(node, [values[name] for name in node.inputs], True)
            for name in [*values]:
                if name not in later:
                    del values[name], floating[name]

    def _sized(self, values: dict[str, Value]) -> list[Node]:
        return self.sim.graph.sized([real(values[name]) for name in self.sim.graph.inputs])

    def _float(self, node: Node, inputs: list[Value]) -> Value:
        switches = [s for s in (self.sim.point(node.name), self.weights.get(node.name)) if s is not None]
        for switch in switches:
            switch.quantizing = False
        try:
            return self.sim.compute(node, inputs, False)
        finally:
            for switch in switches:
                switch.quantizing = True
