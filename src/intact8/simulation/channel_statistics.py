"""Statistics of a few samples before calibration: channel ranges to equalize, mean inputs, constant channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.sketch_observer import LOUD, loudness_weights
from intact8.capture.graph import Node
from intact8.capture.operations import HEAVY
from intact8.simulation.equalization import Equalized, factors
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.smoothing import Spread, choose_strength, with_others


def channel_axis(node: Node) -> int:
    """Return the dimension of the channels that a node's weight reads."""
    return -1 if node.op == "linear" else 1


def attach_mean_inputs(q: QuantizedGraph) -> None:
    """Give layers whose bias the recipe corrects a buffer for the mean of their input, named ``correct.mean``."""
    for node in q.graph if q.recipe.bias_correction else ():
        if node.op in HEAVY and not node.attrs.get("transposed") and node.name in q.weight_points:
            channels = q.graph.nodes[node.inputs[0]].shape[channel_axis(node)]
            node.params["correct.mean"] = q.channel_values(node.name, "mean_input", channels, 0.0)


def attach_rounding(q: QuantizedGraph, tensors: Mapping[str, Tensor]) -> None:
    """Give layers that the recipe reconstructs a buffer for what is added to weights before they are rounded.

    And where their biases are learned, too, one for what is added to these.
    """
    for node in q.graph if q.recipe.reconstruction != "none" else ():
        if node.op in HEAVY and not node.attrs.get("transposed") and node.name in q.weight_points:
            shape = tensors[node.params["weight"]].shape
            node.params["correct.rounding"] = q.values(node.name, "rounding", torch.zeros(shape, dtype=torch.float16))
            if q.recipe.reconstruction == "distill" and "correct.mean" in node.params:
                node.params["correct.bias"] = q.channel_values(node.name, "bias", shape[0], 0.0)


class _Collector:
    """Statistics of one pass over samples: channel ranges for equalization, mean inputs, and extremes of channels."""

    def __init__(self, q: QuantizedGraph, places: list[Equalized]) -> None:
        self.q, self.samples, self.total = q, 1, 0
        self.watched = {name: (place.name, axis) for place in places for name, axis in place.observed.items()}
        self.wanted = {name for place in places if place.alpha is None for name in place.observed}
        self.spreads: dict[str, Spread] = {}
        self.largest: dict[str, Tensor] = {}
        self.counts: dict[str, float] = {}
        self.means: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.extent: dict[str, tuple[Tensor, Tensor]] = {}

    def count(self, place: Equalized) -> float:
        """Return of how many values per channel ``largest`` is the largest."""
        return max(self.counts.get(name, 1) for name in place.observed)

    def factors(self, place: Equalized) -> Tensor | None:
        """Return what the channels of a place are divided by; None where they stay as they are."""

        def factor(alpha: float) -> Tensor | None:
            return factors(place, self.largest[place.name], self.q.tensors, self.count(place), self.total, alpha)

        if place.alpha is not None:
            return factor(place.alpha)
        spreads = {name: self.spreads[name] for name in place.observed}
        return factor(choose_strength(self.q, place.readers, spreads, factor))

    def __call__(self, node: Node, inputs: list[Value], output: Value) -> None:
        """Take in a node's inputs and output."""
        if node.name in self.q.weight_points:
            self.extent[node.name] = _extent(node, real(output), self.extent.get(node.name))
        if node.name in self.watched:
            place, axis = self.watched[node.name]
            y = real(output)
            values, others = with_others(y.abs(), axis)
            m = values.amax(others)
            self.largest[place] = torch.maximum(self.largest[place], m) if place in self.largest else m
            self.counts[node.name] = self.counts.get(node.name, 0) + y.numel() / max(m.numel(), 1)
            if node.name in self.wanted:
                found, before = Spread.of(y, axis), self.spreads.get(node.name)
                self.spreads[node.name] = found if before is None else before.with_more(found)
        if "correct.mean" in node.params:
            mean = _per_sample(real(inputs[0]), channel_axis(node), self.samples)
            self.means.setdefault(node.name, []).append(mean)


def collect(
    q: QuantizedGraph, places: list[Equalized], calls: list[list[Tensor]], run: Callable[..., Any]
) -> dict[str, tuple[int, int]]:
    """Run the float network on a few samples, and store equalization factors and mean inputs.

    Args:
        q: its points are neither observing nor quantizing.
        places: where channels are equalized.
        calls: flat inputs per batch.
        run: computes the graph, see ``Simulation.run``.

    Returns:
        layer → (channels that never changed, channels), for layers that have such.
    """
    for place in places:
        q.tensors[place.factor].fill_(1.0)
    seen = _Collector(q, places)
    for inputs in calls:
        seen.samples = len(inputs[0]) if q.batched and inputs else 1
        seen.total += seen.samples
        run(inputs, visit=seen)
    found = {place.name: seen.factors(place) for place in places}
    divided: dict[str, Tensor] = {}
    for place in places:
        factor = found[place.name]
        if factor is not None:
            q.tensors[place.factor].copy_(factor)
            divided |= dict.fromkeys((reader.name for reader in place.readers), factor)
    for name, parts in seen.means.items():
        means, energies = (torch.cat(part) for part in zip(*parts, strict=True))
        mean = _usual_mean(means, energies).float()
        # The layer reads the equalized tensor divided by the factors.
        q.tensors[q.graph.nodes[name].params["correct.mean"]].copy_(mean / divided.get(name, torch.ones_like(mean)))
    constant = {name: (int((low == high).sum()), low.numel()) for name, (low, high) in seen.extent.items()}
    return {name: counts for name, counts in constant.items() if counts[0]}


def _per_sample(x: Tensor, axis: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return means of channels, (samples, C), and mean squares, (samples,), float64."""
    channels = axis % x.dim()
    if channels == 0 or x.shape[0] % samples:
        samples = 1
    means, energies = [], []
    for sample in x.movedim(channels, -1).reshape(samples, -1, x.shape[channels]):
        rows = sample.double()
        means.append(rows.mean(0))
        energies.append(rows.square_().mean())
    return torch.stack(means), torch.stack(energies)


def _usual_mean(means: Tensor, energies: Tensor) -> Tensor:
    """Return the average means of samples; a bias that suits one loud sample alone would be wrong for all others."""
    weights = loudness_weights(energies.cpu().numpy(), np.ones(len(energies)), LOUD + 1)
    found = torch.from_numpy(weights).to(means.device)
    return (means * found[:, None]).sum(0) / found.sum()


def _extent(node: Node, y: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return the least and largest value of every channel, with those seen before."""
    axis = channel_axis(node) % y.dim()
    y, dims = with_others(y, axis)
    low, high = y.amin(dims), y.amax(dims)
    return (low, high) if before is None else (torch.minimum(low, before[0]), torch.maximum(high, before[1]))
