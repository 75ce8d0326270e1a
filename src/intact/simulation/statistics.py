"""What a few samples tell before ranges are observed: channel ranges to equalize, means for biases, dead channels.

Equalization is Nagel et al. 2019, section 4.1, where it costs nothing: between a convolution whose activation is
positively homogeneous (none, ReLU, leaky ReLU, PReLU) and a depthwise convolution, which has a weight scale per
channel, so that whatever the activation gives up the weight takes without loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from intact.capture.graph import Graph, Node

from .values import Value, real

if TYPE_CHECKING:
    from .module import Simulation

SMALLEST = 1e-3
"""No channel is stretched by more than 1/SMALLEST."""


def equalizable(graph: Graph, weights: set[str]) -> list[tuple[Node, Node]]:
    """Pairs of a convolution and the depthwise convolution that alone reads it, both on integers."""
    users, pairs = graph.users(), []
    for node in graph:
        if node.name not in weights or node.op not in ("conv", "scale_shift") or node.name in graph.outputs:
            continue
        readers = users[node.name]
        if len(node.inputs) > 1 or len(readers) != 1 or not _homogeneous(node.attrs.get("act")):
            continue
        reader = graph.nodes[readers[0]]
        depthwise = reader.op == "conv" and reader.attrs["groups"] == node.shape[1] and not reader.attrs["transposed"]
        if depthwise and reader.name in weights and reader.inputs[0] == node.name:
            pairs.append((node, reader))
    return pairs


def _homogeneous(act: dict[str, Any] | None) -> bool:
    if act is None or act["kind"] in ("leaky_relu", "prelu"):
        return True
    return bool(act["kind"] == "clamp" and act.get("min") in (None, 0.0) and act.get("max") is None)


def channel_axis(node: Node) -> int:
    """Dimension of the channels a node's weight works on."""
    return -1 if node.op == "linear" else 1


def collect(sim: Simulation, calls: list[list[Tensor]]) -> None:
    """Run the float network on a few samples and store equalization factors and mean inputs in ``sim``.

    Args:
        sim: equalization off or as it was before; points are neither observing nor quantizing.
        calls: flat inputs per batch.
    """
    for node, _ in sim.equalized:
        sim.tensors[node.params["equalize.out"]].fill_(1.0)
    corrected = [n for n in sim.graph if "correct.mean" in n.params]
    largest: dict[str, Tensor] = {}
    total: dict[str, Tensor] = {}
    count: dict[str, int] = {}
    stretched = {node.name for node, _ in sim.equalized}
    extent: dict[str, tuple[Tensor, Tensor]] = {}

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.name in sim.weight_points:
            extent[node.name] = _extent(node, real(output), extent.get(node.name))
        if node.name in stretched:
            y = real(output)
            m = y.abs().amax([d for d in range(y.dim()) if d != 1])
            largest[node.name] = torch.maximum(largest[node.name], m) if node.name in largest else m
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
    factors: dict[str, Tensor] = {}
    for node, reader in sim.equalized:
        peak = largest[node.name].max()
        if peak > 0:
            factor = (largest[node.name] / peak).clamp(min=SMALLEST)
            sim.tensors[node.params["equalize.out"]].copy_(factor)
            factors[reader.name] = factor
    for node in corrected:
        mean = (total[node.name] / max(count[node.name], 1)).float()
        # The reader of an equalized tensor sees it divided by the factors.
        sim.tensors[node.params["correct.mean"]].copy_(mean / factors.get(node.name, torch.ones_like(mean)))


def _extent(node: Node, y: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Least and largest value of every channel, with those seen before."""
    axis = channel_axis(node) % y.dim()
    dims = [d for d in range(y.dim()) if d != axis]
    low, high = y.amin(dims), y.amax(dims)
    return (low, high) if before is None else (torch.minimum(low, before[0]), torch.maximum(high, before[1]))
