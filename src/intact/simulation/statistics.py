"""What a few samples tell before ranges are observed: channel ranges to equalize, means for biases, dead channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from intact.capture.graph import Node

from .equalization import factors
from .values import Value, real

if TYPE_CHECKING:
    from .module import Simulation


def channel_axis(node: Node) -> int:
    """Dimension of the channels a node's weight works on."""
    return -1 if node.op == "linear" else 1


def collect(sim: Simulation, calls: list[list[Tensor]]) -> None:
    """Run the float network on a few samples and store equalization factors and mean inputs in ``sim``.

    Args:
        sim: equalization off or as it was before; points are neither observing nor quantizing.
        calls: flat inputs per batch.
    """
    for place in sim.equalized:
        sim.tensors[place.factor].fill_(1.0)
    corrected = [n for n in sim.graph if "correct.mean" in n.params]
    largest: dict[str, Tensor] = {}
    total: dict[str, Tensor] = {}
    count: dict[str, int] = {}
    watched = {name: (place.name, axis) for place in sim.equalized for name, axis in place.observed.items()}
    extent: dict[str, tuple[Tensor, Tensor]] = {}

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.name in sim.weight_points:
            extent[node.name] = _extent(node, real(output), extent.get(node.name))
        if node.name in watched:
            place, axis = watched[node.name]
            y = real(output)
            m = y.abs().amax([d for d in range(y.dim()) if d != axis])
            largest[place] = torch.maximum(largest[place], m) if place in largest else m
        if "correct.mean" in node.params:
            x = real(inputs[0])
            axis = channel_axis(node) % x.dim()
            dims = [d for d in range(x.dim()) if d != axis]
            total[node.name] = total.get(node.name, torch.zeros((), device=x.device)) + x.double().sum(dims)
            count[node.name] = count.get(node.name, 0) + x.numel() // x.shape[axis]

    for inputs in calls:
        sim.run(inputs, visit=visit)
    sim.constant_channels = {}
    for name, (low, high) in extent.items():
        if constant := int((low == high).sum()):
            sim.constant_channels[name] = (constant, low.numel())
    divided: dict[str, Tensor] = {}
    found = {place.name: factors(place, largest[place.name], sim.tensors) for place in sim.equalized}
    for place in sim.equalized:
        factor = found[place.name]
        if factor is not None:
            sim.tensors[place.factor].copy_(factor)
            divided |= dict.fromkeys((reader.name for reader in place.readers), factor)
    for node in corrected:
        mean = (total[node.name] / max(count[node.name], 1)).float()
        # The reader of an equalized tensor sees it divided by the factors.
        sim.tensors[node.params["correct.mean"]].copy_(mean / divided.get(node.name, torch.ones_like(mean)))


def _extent(node: Node, y: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Least and largest value of every channel, with those seen before."""
    axis = channel_axis(node) % y.dim()
    dims = [d for d in range(y.dim()) if d != axis]
    low, high = y.amin(dims), y.amax(dims)
    return (low, high) if before is None else (torch.minimum(low, before[0]), torch.maximum(high, before[1]))
