"""Statistics of float tensors, by distribution, channel and sample, gathered in one pass over the data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.recurrent import GATES
from intact8.calibration.mse import MSEObserver
from intact8.calibration.sketch import Bins
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.executors import unquantized
from intact8.opset.op import Array
from intact8.simulation.channel_statistics import channel_axis
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation


def _empty() -> Array:
    return np.zeros(0)


@dataclass
class TensorStats:
    """One tensor of the float network over some samples.

    Attributes:
        observer: sketch of all values, and the range of least squared error for any grid.
        low, high: extremes per channel.
        nonzero: number of values other than zero per channel.
        total, square: sum and sum of squares per channel.
        count: number of values per channel.
        sample_low, sample_high: extremes per sample, in the order of the data.
    """

    observer: MSEObserver = field(default_factory=MSEObserver)
    low: Array = field(default_factory=_empty)
    high: Array = field(default_factory=_empty)
    nonzero: Array = field(default_factory=_empty)
    total: Array = field(default_factory=_empty)
    square: Array = field(default_factory=_empty)
    count: int = 0
    sample_low: list[float] = field(default_factory=list)
    sample_high: list[float] = field(default_factory=list)
    _bins: Bins | None = None
    _qparams: dict[tuple[int, int, bool], tuple[float, int]] = field(default_factory=dict)

    def add(self, x: Tensor, axis: int | None, samples: int | None = None, along: int = 0) -> None:
        """Add one batch.

        Args:
            x: the tensor.
            axis: dimension of the channels; None where their number changes: then all values are one channel.
            samples: number of samples in the batch; the size of dimension ``along`` when None.
            along: dimension of the samples, or of parts of samples one after the other.
        """
        x = x.detach().float()
        self._bins, self._qparams = None, {}
        self.observer.observe(x)
        flat = _per_sample(x, samples, along)
        self.sample_low += flat.amin(1).tolist()
        self.sample_high += flat.amax(1).tolist()
        others = [d for d in range(x.dim()) if d != axis] if x.dim() > 1 else [0]
        channels = x.shape[axis] if x.dim() > 1 and axis is not None else 1
        parts = {"nonzero": (x != 0).float().sum(others), "total": x.sum(others), "square": (x * x).sum(others)}
        low, high = (f(x, others).double().cpu().numpy().reshape(-1) for f in (torch.amin, torch.amax))
        if self.count == 0:
            self.low, self.high = low, high
            for name in parts:
                setattr(self, name, np.zeros(channels))
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        for name, value in parts.items():
            setattr(self, name, getattr(self, name) + value.double().cpu().numpy().reshape(-1))
        self.count += x.numel() // channels

    @property
    def bins(self) -> Bins:
        """Distribution of all values."""
        if self._bins is None:
            self._bins = self.observer.sketch.bins()
        return self._bins

    def best_qparams(self, lo: int, hi: int, symmetric: bool) -> tuple[float, int]:
        """Return scale and zero point of least squared error for the integers lo..hi."""
        key = (lo, hi, symmetric)
        if key not in self._qparams:
            scale, zero_point = self.observer.calculate_qparams(lo, hi, symmetric)
            self._qparams[key] = float(scale), int(zero_point)
        return self._qparams[key]

    @property
    def extremes(self) -> tuple[float, float]:
        """Smallest and largest value, widened to zero as ranges are."""
        return min(self.observer.minimum, 0.0), max(self.observer.maximum, 0.0)

    @property
    def width(self) -> float:
        """Distance between the :attr:`extremes`."""
        lo, hi = self.extremes
        return hi - lo

    @property
    def mean(self) -> Array:
        """Mean per channel."""
        return self.total / max(self.count, 1)

    @property
    def moment(self) -> Array:
        """Mean square per channel."""
        return self.square / max(self.count, 1)


MIXING = ("reshape", "expand", "matmul", "embedding", "gather", *GATES)
"""Operations of whose results no dimension need be that of what they read."""


def _per_sample(x: Tensor, samples: int | None, along: int) -> Tensor:
    """Return a row per sample. Values that belong to no single sample belong to each of them."""
    if not x.dim():
        return x.reshape(1, 1).expand(samples or 1, 1)
    count = x.shape[along] if samples is None else samples
    if x.shape[along] % count:
        return x.reshape(1, -1).expand(count, -1)
    return x.movedim(along, 0).reshape(count, -1)


def axis_of(node: Node, graph: Graph) -> int:
    """Return the dimension of a node's channels: the last one of token sequences, else dimension 1.

    Of three dimensions the convolution tells that it is computed from, element by element, or that reads an input.
    """
    rank = len(node.shape)
    there = [*range(rank)]  # which dimension of the node each dimension of what it is computed from becomes
    while rank == 3 and node.op not in ("linear", "conv", *MIXING) and node.inputs:
        source = graph.nodes[node.inputs[0]]
        if len(source.shape) != rank:
            break
        if node.op == "permute":
            there = [there[node.attrs["dims"].index(axis)] for axis in range(rank)]
        node = source
    if node.op in ("linear", "conv"):
        return there[channel_axis(node)] if rank else 0
    if rank != 3:
        return min(1, max(rank - 1, 0))
    reader = _reader(node, graph) if node.op == "input" else None
    return there[1] if reader is not None and reader.op == "conv" else 2


def _reader(node: Node, graph: Graph) -> Node | None:
    """Return the first layer, or what is none that works on single elements, that reads a node; None without any."""
    while True:
        reader = next((other for other in graph if node.name in other.inputs), None)
        if reader is None or reader.op not in ("quantize", "cast", "scale_shift", "table", "pad", "dropout"):
            return reader
        node = reader


@dataclass
class Statistics:
    """The tensors of a float network on some samples.

    Attributes:
        made: statistics of the output of every node whose values decide a range.
        read: statistics of the input of every node with a weight.
        samples: number of samples.
        flat: the ends at which ``made`` is clipped where only activations read it that change no more beyond.
    """

    made: dict[str, TensorStats]
    read: dict[str, TensorStats]
    samples: int
    flat: dict[str, tuple[float, float]]


def observe(sim: Simulation, samples: Samples) -> Statistics:
    """Run samples through the float network of ``sim`` and gather statistics of its tensors."""
    wanted = {name for point in sim.placed.points.values() for name in point.observed}
    made: dict[str, TensorStats] = {}
    read: dict[str, TensorStats] = {}
    count = 0

    flat = flat_ends(sim.points)
    found = {name: axis_of(sim.graph.nodes[name], sim.graph) for name in wanted}
    sizes = {name: (*sim.graph.nodes[name].shape, 1)[axis] for name, axis in found.items()}
    axes = {name: axis if isinstance(sizes[name], int) else None for name, axis in found.items()}

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.name in wanted and node.op != "constant":
            along = node.shape.index(None) if None in node.shape else 0
            y = real(output).clamp(*flat[node.name]) if node.name in flat else real(output)
            made.setdefault(node.name, TensorStats()).add(y, axes[node.name], count, along)
        if node.name in sim.weight_points and node.op in ("conv", "linear"):
            x = real(inputs[0])
            read.setdefault(node.name, TensorStats()).add(x, channel_axis(node) % x.dim())

    with unquantized(sim), torch.no_grad():
        for batch in samples:
            count = len(batch)
            sim.run(list(batch.inputs), visit=visit)
    return Statistics(made, read, len(samples), flat)
