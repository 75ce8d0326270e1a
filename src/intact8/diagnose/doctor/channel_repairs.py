"""Repairs of channels of a layer's results, and what their statistics are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.diagnose.doctor.repair import Repair
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.tensor_statistics import axis_of
from intact8.diagnose.executors import FloatExecutor, unquantized
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.simulation import Simulation

UNUSUAL = 5.0
"""Times the size of its like from which a channel, or a weight, is set to it to see whether that helps."""

OFF_CENTRE = 30.0
"""Standard deviations that a channel's mean must be away from 0 to be tried at 0."""


def statistics_of(
    sim: Simulation, samples: Samples
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, tuple[int, Tensor, Tensor]]]:
    """Return mean and variance of the inputs of batch norms; axis, root mean square and mean of channels of layers."""
    sums: dict[str, list[Any]] = {}
    squares: dict[str, list[Any]] = {}
    plain = FloatExecutor(sim.tensors)
    layers = (n for n in sim.graph if (n.op in AFFINE or n.op.endswith("_norm")) and len(n.shape) > 1)
    axes = {node.name: axis_of(node, sim.graph) for node in layers}

    def add(into: dict[str, list[Any]], name: str, x: Tensor, axis: int) -> None:
        rows = x.detach().double().movedim(axis, 0).flatten(1)
        new = [rows.sum(1), rows.square().sum(1), rows.shape[1], axis]
        old = into.get(name)
        into[name] = new if old is None else [*(a + b for a, b in zip(old[:3], new[:3], strict=True)), axis]

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.op in AFFINE and "bn" in node.attrs:
            bare, x = without_norm(node), real(inputs[0])
            add(sums, node.name, plain(bare, [x]) if bare.params else x, 1)
        if node.name in axes:
            y = real(output)
            add(squares, node.name, y, axes[node.name] % y.dim())

    with unquantized(sim), torch.no_grad():
        for batch in samples:
            sim.run(list(batch.inputs), visit=visit)
    statistics = {}
    for name, (total, square, count, _) in sums.items():
        mean = total / count
        statistics[name] = mean.float(), (square / count - mean**2).clamp(min=0).float()
    sizes = {
        name: (axis, (square / count).sqrt().float(), (total / count).float())
        for name, (total, square, count, axis) in squares.items()
    }
    return statistics, sizes


def without_norm(node: Node) -> Node:
    """Return a layer without its batch norm and what comes behind."""
    attrs = {k: v for k, v in node.attrs.items() if k not in ("bn", "act")}
    params = {k: v for k, v in node.params.items() if not k.startswith(("bn.", "act.", "equalize.out"))}
    return replace(node, attrs=attrs, params=params, inputs=node.inputs[:1])


def of_channels(node: Node, sizes: tuple[int, Tensor, Tensor]) -> Iterator[Repair]:
    """Yield the repair of the channel that is by far the largest: it gets the size of the median one."""
    axis, size, mean = sizes
    alive = size[size > 0]
    behind = [1] * (len(node.shape) - 1 - axis)
    beyond = (size.square() - mean.square()).clamp(min=0).sqrt() * OFF_CENTRE < mean.abs()
    if bool(beyond.any()):
        shift = torch.where(beyond, mean, 0.0).reshape(-1, *behind)
        channels = ", ".join(map(str, beyond.nonzero().reshape(-1).tolist()[:5]))
        text = f"channel {channels}, whose mean is over {OFF_CENTRE:.0f} times its deviation, loses its mean"
        yield Repair("exploded_channel", text, node, shift=shift)
    if len(alive) < 4:
        return
    usual = alive.median()
    channel = int(size.argmax())
    if float(size[channel]) > UNUSUAL * float(usual):
        ratio = float(size[channel] / usual)
        factor = torch.ones(len(size))
        factor[channel] = 1 / ratio
        text = f"channel {channel}, {ratio:.3g} times as large as the median one, is made as large"
        yield Repair("exploded_channel", text, node, gain=factor.reshape(-1, *behind))
        if abs(float(mean[channel])) > float(size[channel]) / 2:
            shift = torch.where(factor < 1, mean, 0.0).reshape(-1, *behind)
            text = f"channel {channel}, {ratio:.3g} times as large as the median one, loses its mean"
            yield Repair("exploded_channel", text, node, shift=shift)
