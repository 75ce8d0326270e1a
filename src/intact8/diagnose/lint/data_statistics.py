"""Statistics of the given data: one pass through the float network collects everything that rules ask about them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.table_range import flat_ends

if TYPE_CHECKING:
    from intact8.calibration.data import Call
    from intact8.simulation.simulation import Simulation

MOST_CLASSES = 10_000
"""An output with more columns does not belong to a classifier."""


@dataclass
class DataStatistics:
    """Statistics of the given data.

    Attributes:
        samples: number of samples.
        repeats: samples that are bit for bit equal to an earlier one.
        predicted: class → samples the float network puts into it; empty where the output is not a classifier's.
        classes: number of columns of that output, 0 where there is none.
        outside: point → (values outside its range, values); for points whose scale is known.
        channels: point → largest magnitude per channel.
        masked: samples whose attention mask leaves nothing to attend to.
    """

    samples: int = 0
    repeats: int = 0
    predicted: Counter[int] = field(default_factory=Counter)
    classes: int = 0
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)
    channels: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    masked: int = 0


def collect(sim: Simulation, calls: Iterable[Call]) -> DataStatistics:
    """Run the float network on every call. The simulation's modes and switches are afterwards what they were."""
    found, digests = DataStatistics(), set()
    point_of = {name: point for point, p in sim.placed.points.items() for name in p.observed}
    ranges = {
        name: ((p.lo - int(p.zero_point)) * float(p.scale), (p.hi - int(p.zero_point)) * float(p.scale), float(p.scale))
        for name, p in sim.points.items()
        if p.calibrated
    }

    counted = flat_ends(sim.points)

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        point = point_of.get(node.name)
        if point is None:
            return
        values = real(output)
        if point in ranges:
            lo, hi, step = ranges[point]
            # Values up to half a step beyond the ends still round to them.
            clipped = values.clamp(*counted[node.name]) if node.name in counted else values
            out = int(((clipped < lo - step / 2) | (clipped > hi + step / 2)).sum())
            before = found.outside.get(point, (0, 0))
            found.outside[point] = before[0] + out, before[1] + values.numel()
        if values.dim() > 1 and values.shape[1] > 1:
            # Sequences are (N, T, channels), except those of convolutions.
            axis = 2 if values.dim() == 3 and node.op != "conv" else 1
            largest = values.abs().transpose(0, axis).flatten(1).amax(1).double().cpu().numpy()
            known = found.channels.get(point)
            if known is None or known.shape == largest.shape:
                found.channels[point] = largest if known is None else np.maximum(known, largest)

    with _float_evaluation(sim), torch.no_grad():
        for args, kwargs in calls:
            flat = sim.flatten(args, kwargs)
            for sample in _samples(flat):
                digest = _digest(sample)
                found.repeats += digest in digests
                digests.add(digest)
                found.samples += 1
            found.masked += _fully_masked(sim, flat)
            values = sim.run(flat, visit=visit)
            _count_classes(found, [real(values[name]) for name in sim.graph.outputs])
    return found


def _fully_masked(sim: Simulation, flat: list[Tensor]) -> int:
    """Count the samples of an input called …mask, (N, T), that are 0 everywhere."""
    for name, mask in zip(sim.graph.inputs, flat, strict=True):
        if "mask" in sim.graph.nodes[name].attrs["key"] and mask.dim() == 2:
            return int((mask == 0).all(1).sum())
    return 0


def _samples(flat: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs of every sample; of a batch whose inputs are not equally many, as of a graph, all as one."""
    given = [t.cpu() for t in flat]
    alike = all(t.dim() for t in given) and len({len(t) for t in given}) == 1
    yield from zip(*given, strict=True) if alike else [tuple(given)]


def _digest(sample: tuple[Tensor, ...]) -> bytes:
    out = hashlib.blake2b(digest_size=16)
    for t in sample:
        out.update(t.contiguous().numpy().tobytes())
    return out.digest()


def _count_classes(found: DataStatistics, outputs: list[Tensor]) -> None:
    if len(outputs) == 1 and outputs[0].dim() == 2 and 2 <= outputs[0].shape[1] <= MOST_CLASSES:
        found.classes = outputs[0].shape[1]
        found.predicted.update(outputs[0].argmax(1).tolist())


@contextmanager
def _float_evaluation(sim: Simulation) -> Iterator[None]:
    """Evaluate without observing or rounding, and restore every mode and switch afterwards."""
    points: list[Any] = [*sim.points.values(), *sim.weight_points.values()]
    before = [(module, "training", module.training) for module in sim.modules()]
    before += [(point, "observing", point.observing) for point in sim.points.values()]
    before += [(point, "quantizing", point.quantizing) for point in points]
    try:
        sim.eval()
        sim.observe(False)
        sim.fake_quantize(False)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
