"""What a few samples tell before ranges are observed: channel ranges to equalize, means for biases, dead channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.sketch_observer import LOUD, loudness_weights
from intact8.capture.graph import Node
from intact8.simulation.equalization import factors
from intact8.simulation.quantized_tensor import Value, real

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation


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
    counts: dict[str, float] = {}
    means: dict[str, list[Tensor]] = {}
    energies: dict[str, list[Tensor]] = {}
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
            counts[node.name] = counts.get(node.name, 0) + y.numel() / max(m.numel(), 1)
        if "correct.mean" in node.params:
            mean, energy = _per_sample(real(inputs[0]), channel_axis(node), samples)
            means.setdefault(node.name, []).append(mean)
            energies.setdefault(node.name, []).append(energy)

    samples = 1
    batched = sim.graph.dynamic_batch and all(sim.graph.nodes[n].shape[:1] == (None,) for n in sim.graph.inputs)
    for inputs in calls:
        samples = len(inputs[0]) if batched and inputs else 1
        sim.run(inputs, visit=visit)
    sim.constant_channels = {}
    for name, (low, high) in extent.items():
        if constant := int((low == high).sum()):
            sim.constant_channels[name] = (constant, low.numel())
    divided: dict[str, Tensor] = {}
    found = {
        place.name: factors(place, largest[place.name], sim.tensors, max(counts.get(n, 1) for n in place.observed))
        for place in sim.equalized
    }
    for place in sim.equalized:
        factor = found[place.name]
        if factor is not None:
            sim.tensors[place.factor].copy_(factor)
            divided |= dict.fromkeys((reader.name for reader in place.readers), factor)
    for node in corrected:
        mean = _usual_mean(torch.cat(means[node.name]), torch.cat(energies[node.name])).float()
        # The reader of an equalized tensor sees it divided by the factors.
        sim.tensors[node.params["correct.mean"]].copy_(mean / divided.get(node.name, torch.ones_like(mean)))


def _per_sample(x: Tensor, axis: int, samples: int) -> tuple[Tensor, Tensor]:
    """Means of channels, (samples, C), and mean squares, (samples,), float64; one sample where they lie otherwise."""
    channels = axis % x.dim()
    if channels == 0 or x.shape[0] % samples:
        samples = 1
    x = x.double().movedim(channels, -1)
    rows = x.reshape(samples, -1, x.shape[-1])
    return rows.mean(1), rows.square().mean((1, 2))


def _usual_mean(means: Tensor, energies: Tensor) -> Tensor:
    """Average means of samples; a bias that suits one loud sample alone would be wrong for all others."""
    weights = loudness_weights(energies.cpu().numpy(), np.ones(len(energies)), LOUD + 1)
    found = torch.from_numpy(weights).to(means.device)
    return (means * found[:, None]).sum(0) / found.sum()


def _extent(node: Node, y: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Least and largest value of every channel, with those seen before."""
    axis = channel_axis(node) % y.dim()
    dims = [d for d in range(y.dim()) if d != axis]
    low, high = y.amin(dims), y.amax(dims)
    return (low, high) if before is None else (torch.minimum(low, before[0]), torch.maximum(high, before[1]))
