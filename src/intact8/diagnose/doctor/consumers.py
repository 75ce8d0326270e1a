"""The consumers of a tensor, and how much the noise of each of its channels matters to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import TRANSITIONS
from intact8.diagnose.doctor.tensor_statistics import axis_of
from intact8.opset.op import Array
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import groups_of, transposed

POOLS = ("max_pool", "mean", "avg_pool", "adaptive_avg_pool")
REQUANTIZING = TRANSITIONS | {"table"}
CHANNELWISE = frozenset((*POOLS, *REQUANTIZING, "add", "sub", "pad", "reshape", "dropout"))
"""Operations that keep channels apart, so that noise of a channel goes on to the channel of the same number."""

Users = Mapping[str, Sequence[str]]
"""Node → the nodes that read it."""


def importance(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    layers: Collection[str],
    name: str,
    channels: int,
    users: Users,
    *,
    behind_depthwise: bool = False,
) -> Array:
    """Return Σ w² over the weights that read each channel: how much of its noise arrives behind them.

    Noise of variance v in channel j gives the next layer's outputs v·Σ w_j² together.

    Args:
        graph: the network.
        tensors: its tensors by name.
        layers: its layers with a weight, which counts with batch norms folded in.
        name: node that makes the tensor.
        channels: number of channels of the tensor.
        users: what ``graph.users()`` returns, which is much to ask for every tensor of a large network.
        behind_depthwise: whether a depthwise layer counts by what reads its results: that may take back what it does.

    Returns:
        float64 (channels,); ones where no layer with a weight reads the tensor.
    """
    nodes, total = graph.nodes, np.zeros(channels)
    # A node, the axis of its channels, and for each of these the number of the tensor's, or −1 for another tensor's.
    pending: list[tuple[str, int, Array]] = [(name, axis_of(nodes[name], graph), np.arange(channels))]
    seen: set[tuple[str, bytes]] = set()
    while pending:
        here, axis, numbers = pending.pop()
        own = numbers >= 0
        for reader in (nodes[n] for n in users[here] if (n, numbers.tobytes()) not in seen):
            seen.add((reader.name, numbers.tobytes()))
            if reader.name in layers and reader.inputs[0] == here and not transposed(reader):
                columns = column_power(reader, tensors)
                if behind_depthwise and 1 < len(columns) == depthwise_channels(reader, tensors):
                    count = len(columns)
                    later = importance(graph, tensors, layers, reader.name, count, users, behind_depthwise=True)
                    columns = columns * later / later.mean()
                # A flattened (C, H, W) has H·W columns in a row for each channel.
                if len(columns) % len(numbers) == 0:
                    np.add.at(total, numbers[own], columns.reshape(len(numbers), -1).sum(1)[own])
                continue
            moved = _moved(nodes, reader, here, axis, numbers)
            if moved is not None and bool((moved[1] >= 0).any()):
                pending.append((reader.name, *moved))
    behind = _behind_attention(graph, users, name) if total.max(initial=0.0) == 0 else None
    if behind is not None and behind.name in layers and len(columns := column_power(behind, tensors)) == channels:
        return columns
    return total if total.max(initial=0.0) > 0 else np.ones(channels)


def _moved(nodes: Mapping[str, Node], reader: Node, here: str, axis: int, numbers: Array) -> tuple[int, Array] | None:
    """Return the axis and the numbers of channels behind a reader that keeps them apart; None behind another."""
    rank, shape = len(nodes[here].shape), reader.shape
    if reader.op == "permute":
        return list(reader.attrs["dims"]).index(axis), numbers
    if reader.op == "slice":
        along = reader.attrs["axis"] % rank == axis
        return axis, numbers[reader.attrs["start"] : reader.attrs["end"] : reader.attrs["step"]] if along else numbers
    if reader.op == "cat" and reader.attrs["axis"] % rank == axis:
        widths = known([nodes[n].shape[axis] for n in reader.inputs])
        parts = [numbers if n == here else np.full(w, -1) for n, w in zip(reader.inputs, widths, strict=False)]
        return (axis, np.concatenate(parts)) if len(parts) == len(reader.inputs) else None
    if reader.op not in (*CHANNELWISE, "mul", "cat") or axis in reader.attrs.get("dims", ()):
        return None
    if len(shape) == 2 and axis == 1:  # flattened, and columns in a row belong to one channel
        return axis, numbers
    axis -= sum(dim < axis for dim in reader.attrs.get("dims", ())) if len(shape) < rank else 0
    return (axis, numbers) if axis < len(shape) and shape[axis] == len(numbers) else None


def _behind_attention(graph: Graph, users: Users, name: str) -> Node | None:
    """Return the layer that reads attention with this tensor as its values, of which the channels stay in order."""
    inside = False
    while len(users[name]) == 1:
        reader = graph.nodes[users[name][0]]
        if reader.op == "linear":
            return reader if inside else None
        if reader.op == "matmul" and reader.inputs[1] == name and not inside:
            inside = True
        elif not reader.moves and reader.op not in REQUANTIZING:
            return None
        name = reader.name
    return None


def depthwise_channels(node: Node, tensors: Mapping[str, Tensor]) -> int:
    """Return the channels of a convolution that makes one channel of each; 0 for other layers."""
    groups = groups_of(node)
    return groups if node.op == "conv" and len(tensors[node.params["weight"]]) == groups else 0


def column_power(node: Node, tensors: Mapping[str, Tensor]) -> Array:
    """Return Σ w² per input channel of a layer with its batch norm folded in, float64."""
    with torch.no_grad():
        square = folded(node, tensors)[0].detach().double() ** 2
    if node.op != "scale_shift":
        groups = groups_of(node)
        square = square.reshape(groups, square.shape[0] // groups, square.shape[1], -1).sum((1, 3)).reshape(-1)
    return np.asarray(square.cpu().numpy())


def sum_of(graph: Graph, name: str, users: Users) -> str | None:
    """Return the sum that reads a node's output, directly or behind at most two changes of grid; None without one."""
    here = name
    for _ in range(3):
        readers = [graph.nodes[n] for n in users[here]]
        sums = [r.name for r in readers if r.op in ("add", "sub")]
        passing = [r.name for r in readers if r.op in ("requantize", "dropout")]
        if sums or not passing:
            return sums[0] if sums else None
        here = passing[0]
    return None
