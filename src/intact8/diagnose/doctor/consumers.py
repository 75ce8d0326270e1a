"""Who reads a tensor, and how much the noise of each of its channels matters there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intact8.capture.graph import Node
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import groups_of, transposed

Array = npt.NDArray[Any]

_PASSES = frozenset(
    {
        "max_pool", "mean", "avg_pool", "adaptive_avg_pool", "dropout", "requantize", "pad", "add", "sub", "table",
        "reshape", "quantize", "dequantize",
    }
)  # fmt: skip
"""Operations that keep channels apart, so that noise of a channel goes on to the channel of the same number."""


def importance(sim: Simulation, name: str, channels: int) -> Array:
    """Σ w² over the weights that read each channel, float64 (channels,): how much of its noise arrives behind them.

    Noise of variance v in channel j gives the next layer's outputs v·Σ w_j² together. Ones where nobody with a weight
    reads the tensor.

    Args:
        sim: the simulation; its folded weights count.
        name: of the node that makes the tensor.
        channels: of the tensor.
    """
    users = sim.graph.users()
    total = np.zeros(channels)
    found = False
    # Where these channels begin among those of the tensor at hand, and how many it has.
    pending: list[tuple[str, int, int]] = [(name, 0, channels)]
    seen: set[tuple[str, int]] = set()
    while pending:
        here, offset, width = pending.pop()
        for reader in (sim.graph.nodes[n] for n in users[here]):
            if (reader.name, offset) in seen:
                continue
            seen.add((reader.name, offset))
            if reader.name in sim.weight_points and reader.inputs[0] == here and not transposed(reader):
                columns = column_power(sim, reader)
                if len(columns) % width == 0:  # a flattened (C, H, W) has H·W columns in a row for each channel
                    total += columns.reshape(width, -1).sum(1)[offset : offset + channels]
                    found = True
            elif reader.op == "cat" and reader.attrs["axis"] == 1:
                widths = [int(sim.graph.nodes[n].shape[1] or 0) for n in reader.inputs]
                before = sum(widths[: reader.inputs.index(here)])
                pending.append((reader.name, offset + before, sum(widths)))
            elif reader.op in _PASSES:
                pending.append((reader.name, offset, width))
    return total if found and total.max() > 0 else np.ones(channels)


def column_power(sim: Simulation, node: Node) -> Array:
    """Σ w² per input channel of a layer with its batch norm folded in, float64."""
    with torch.no_grad():
        weight = folded(node, sim.tensors)[0].detach().double()
    groups = groups_of(node)
    if node.op == "scale_shift":
        return np.asarray((weight**2).cpu().numpy())
    square = (weight**2).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return np.asarray(square.sum((1, 3)).reshape(-1).cpu().numpy())


def cancels(sim: Simulation, name: str) -> str | None:
    """The sum that reads this node's output, directly or through a change of grid; None where there is none."""
    users = sim.graph.users()
    here = name
    for _ in range(3):
        readers = [sim.graph.nodes[n] for n in users[here]]
        sums = [r.name for r in readers if r.op in ("add", "sub")]
        if sums:
            return sums[0]
        moves = [r.name for r in readers if r.op in ("requantize", "dropout")]
        if not moves:
            return None
        here = moves[0]
    return None
