"""Which dimension of a tensor holds channels: of signals the one that convolutions read, of sequences the last one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.tensor_statistics import axis_of


class Signals(nn.Module):
    """A convolution of signals, a norm, a shift, and a layer for every step of what has been transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.shift = nn.Parameter(torch.randn(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).relu()) + self.shift
        z: Tensor = self.fc(y.sin().transpose(1, 2)).relu() * 2
        return z


def test_channels_of_signals_and_of_sequences() -> None:
    sim = intact8.prepare(Signals().eval(), example_inputs=(torch.randn(4, 4, 10),))
    axes = {node.name: axis_of(node, sim.graph) for node in sim.graph if len(node.shape) == 3}
    sizes = {name: sim.graph.nodes[name].shape[axis] for name, axis in axes.items()}
    assert sizes.pop("x") == 4 and set(sizes.values()) == {4, 6, 5}, sizes
    assert all(sizes[name] != 10 for name in sizes)


def test_a_deep_network_is_walked_without_recursion() -> None:
    deep = nn.Sequential(nn.Conv1d(2, 2, 1), *(nn.Hardtanh(-i - 1.0, i + 1.0) for i in range(3)))
    sim = intact8.prepare(deep.eval(), example_inputs=(torch.randn(4, 2, 9),))
    graph = sim.graph
    last = graph.nodes[graph.outputs[0]]
    for i in range(3000):  # as of a residual stream
        graph.nodes[f"step{i}"] = last = type(last)(f"step{i}", "add", [last.name, last.name], shape=last.shape)
    assert axis_of(last, graph) == 1
