"""Factors per channel that are exact in float and give channels ranges one scale can serve.

There are three kinds of places. Between layers and float operations the factor brings every channel to the range of
the widest: s_j = max|X_j| (Nagel et al. 2019, section 4.1; a reader without a scale loses nothing). So it does before
a depthwise convolution, which has a scale for every channel. Where linear maps or convolutions read the tensor, their
weights take what it gives up, so the two share the burden: s_j = max|X_j|^α / max|W_j|^(1−α) (Xiao et al. 2023,
equation 4).

Behind ReLU6 a factor below 1 lowers the upper limit of its channel to 6·s_j. No value of the first samples exceeds it,
and with s_j = max|X_j|^SHARE there is room for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from intact8.capture.graph import Graph, Node
from intact8.placement.rescale_groups import RescaleGroup, bounded, homogeneous
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.weights.folding import folded

SMALLEST = 1e-3
"""No channel is stretched by more than 1/SMALLEST."""

SHARE = 0.7
"""How much of the difference between channels' ranges is taken out behind ReLU6: the rest is room for values that
calibration has not seen."""

ENOUGH, SAMPLES = 1024, 32
"""From so many values, of so many samples, on the largest is taken for the range of a channel; that of fewer will
probably be exceeded. Values of one sample are alike: thousands of a channel say little of the next image."""


@dataclass(frozen=True)
class Equalized:
    """One place with a factor per channel.

    Attributes:
        name: the node it is named after.
        factor: name of the buffer, (C,); what is stored stands for values divided by it.
        observed: node whose values tell ranges → dimension of its channels.
        readers: layers whose weights are multiplied by it.
        alpha: how much of the ranges goes into the weights, 1 all; None where calibration chooses it
            (``intact8.simulation.smoothing``).
        bounded: whether the activation has an upper limit, as ReLU6 has.
    """

    name: str
    factor: str
    observed: Mapping[str, int]
    readers: tuple[Node, ...]
    alpha: float | None = 1.0
    bounded: bool = False


def attach_factors(q: QuantizedGraph) -> list[Equalized]:
    """Give nodes the factors that the recipe wants, all of them 1."""
    found = [_between(q, channels) for channels in q.placed.channels]
    for node, reader in equalizable(q.graph, set(q.weight_points)) if q.recipe.equalize else []:
        channels = node.shape[1]
        assert isinstance(channels, int)
        factor = q.channel_values(node.name, "equalization", channels, 1.0)
        node.params["equalize.out"] = reader.params["equalize.in"] = factor
        found.append(Equalized(node.name, factor, {node.name: 1}, (reader,), bounded=bounded(node.attrs.get("act"))))
    return found


def _between(q: QuantizedGraph, channels: RescaleGroup) -> Equalized:
    graph = q.graph
    factor = q.channel_values(channels.name, "equalization", channels.size, 1.0)
    for name in channels.divided:
        graph.nodes[name].params["equalize.out"] = factor
        if graph.nodes[name].op == "constant":
            graph.nodes[name].attrs["channel_axis"] = channels.axes[name]
    for name in channels.constants:
        graph.nodes[name].params["value"] = factor
    for name in channels.layers:
        graph.nodes[name].params["equalize.in"] = factor
    observed = {name: channels.axes[name] for name in channels.observed}
    readers = tuple(graph.nodes[n] for n in channels.layers)
    alpha = None if q.recipe.smooth == "auto" else float(q.recipe.smooth)
    return Equalized(channels.name, factor, observed, readers, alpha if readers else 1.0)


def equalizable(graph: Graph, weights: set[str]) -> list[tuple[Node, Node]]:
    """Return pairs of a convolution and the depthwise convolution that alone reads it, both on integers."""
    users, pairs = graph.users(), []
    for node in graph:
        if node.name not in weights or node.op not in ("conv", "scale_shift") or node.name in graph.outputs:
            continue
        readers = users[node.name]
        act = node.attrs.get("act")
        if len(node.inputs) > 1 or len(readers) != 1 or not (homogeneous(act) or bounded(act)):
            continue
        reader = graph.nodes[readers[0]]
        depthwise = reader.op == "conv" and reader.attrs["groups"] == node.shape[1] and not reader.attrs["transposed"]
        if depthwise and reader.name in weights and reader.inputs[0] == node.name:
            pairs.append((node, reader))
    return pairs


def headroom(count: float, samples: int, channels: int) -> float:
    """Return how far a channel may grow: what the largest of enough normal values is over that of those seen.

    A class token is one value per sample and channel. Stretched until the largest of a few fills the range, every
    channel would be clipped in most other samples; so it is with the values of few images, of which each has its own
    largest. It is stretched most where it is smallest by chance, so of all channels that is taken which has the
    smallest: one of them is expected below t where (2Φ(t) − 1)ⁿ = 1/(C + 1).

    Args:
        count: values per channel.
        samples: of so many samples.
        channels: C, how many channels there are.

    Example:
        >>> headroom(1024, 32, 64), round(headroom(4, 4, 64), 2), round(headroom(9216, 4, 64), 2)
        (1.0, 6.29, 3.38)
    """
    return max(_growth(count, ENOUGH, channels), _growth(samples, SAMPLES, channels))


def _growth(seen: float, enough: int, channels: int) -> float:
    chance = 1 / (channels + 1)
    least, most = (NormalDist().inv_cdf((1 + chance ** (1 / max(n, 1.0))) / 2) for n in (seen, enough))
    return max(1.0, most / least)


def factors(
    place: Equalized,
    largest: Tensor,
    tensors: Mapping[str, Tensor],
    count: float = ENOUGH,
    samples: int = SAMPLES,
    alpha: float = 1.0,
) -> Tensor | None:
    """Return what channels are divided by, float32 (C,), the largest 1.

    ``largest`` is max |X_j| of ``count`` values per channel in so many samples, (C,); the factors of the readers are 1
    now, and ``alpha`` of the ranges goes into their weights. None where nothing but zeros was seen, or a value that is
    not finite, which the observers will name.
    """
    peak = largest.max()
    if peak <= 0 or not torch.isfinite(peak):
        return None
    ranges = (largest / peak).clamp(min=SMALLEST)
    if place.bounded:
        return ranges**SHARE
    if alpha == 1.0:
        return (ranges * headroom(count, samples, len(ranges))).clamp(max=1.0)
    columns = torch.stack(
        [folded(node, tensors)[0].detach().abs().transpose(0, 1).flatten(1).amax(1) for node in place.readers]
    ).amax(0)
    columns = (columns / columns.max().clamp(min=1e-30)).clamp(min=SMALLEST)
    shared = ranges**alpha / columns ** (1 - alpha)
    return (shared / shared.max()).clamp(min=SMALLEST)
