"""The float network, captured once and simulated under as many recipes as there are remedies to try."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import known
from intact8.calibration.data import Specs, batches
from intact8.capture import Captured, capture
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.graph import Graph
from intact8.capture.operations import TRANSITIONS
from intact8.capture.pytree import copied
from intact8.diagnose.chunks import Chunk
from intact8.diagnose.doctor.samples import Samples, labels_of
from intact8.diagnose.evaluation_scores import numbers_of
from intact8.diagnose.executors import unquantized
from intact8.diagnose.sensitivity.metrics import METRICS
from intact8.diagnose.sensitivity.metrics import Metric as Measure
from intact8.diagnose.shared_calibration import SharedCalibration
from intact8.recipe.recipe import Recipe
from intact8.simulation.prepare import simulate_captured
from intact8.simulation.quantized_tensor import real
from intact8.simulation.simulation import Simulation

Metric = Callable[[Any, Any], Any]
"""Called with the network's outputs, in the form in which it returns them, and the labels, as the metrics of
:func:`intact8.evaluate` and :func:`intact8.tune` are: a number that is a mean over the samples, or one per sample."""

NEARLY_ALL, ALL = 0.9, 1 - 1e-10
"""Share of an output's power from which a number that all of its columns share is left out, and from which nothing else
is there: float32 knows no smaller differences."""


class FloatNetwork:
    """The float network under examination.

    Attributes:
        model: the model as it was given; it is not changed.
        captured: its graph, captured once.
        device: where the model is.
        whole: whether batches are taken as they are, and not divided into samples.
    """

    def __init__(
        self, model: nn.Module, example_inputs: Any, device: torch.device, sizes: Dynamic | None = None
    ) -> None:
        self.model, self.device = model, device
        self.captured: Captured = capture(model, example_inputs, dynamic_shapes=sizes)
        self.whole = not self.captured.graph.dynamic_batch
        self._calibrations: dict[int, tuple[Samples, SharedCalibration]] = {}

    def __call__(self, batch: Chunk) -> Any:
        """Run the original model on a batch."""
        ((args, kwargs),) = batches([batch.batch], Specs.of(self.captured.graph, self.captured.layout), self.device)
        with torch.no_grad():
            return self.model(*copied(args), **copied(kwargs))

    def with_model(self, model: nn.Module) -> FloatNetwork:
        """Return the same network with the weights of another model of its class."""
        other = copy.copy(self)
        other.model = model
        return other

    def score(self, samples: Samples, metric: Metric) -> float:
        """Return the mean of a metric over samples."""
        total = 0.0
        for batch in samples:
            total += scored(metric, self(batch), batch, len(self.captured.graph.inputs)) * len(batch)
        return total / max(len(samples), 1)

    def prepare(self, recipe: Recipe) -> Simulation:
        """Return what ``intact8.prepare`` gives, without capturing again."""
        return simulate_captured(self.model, self.captured, recipe)

    def simulate(self, recipe: Recipe, calibration: Samples) -> Simulation:
        """Return a calibrated simulation. What calibration warns about is examined by the doctor itself."""
        if id(calibration) not in self._calibrations:
            self._calibrations[id(calibration)] = calibration, SharedCalibration(calibration.calls())
        sim = self.prepare(recipe)
        self._calibrations[id(calibration)][1].calibrate(sim)
        return sim


def scored(metric: Metric, outputs: Any, batch: Chunk, inputs: int) -> float:
    """Return what a metric says of the outputs for one batch, whose labels follow so many inputs.

    Raises:
        InputError: the batch has no labels.
    """
    value = metric(outputs, labels_of(batch.batch, inputs))
    return float(numbers_of(value, metric, "doctor").mean())


def outputs_of(sim: Simulation, batch: Chunk) -> list[Tensor]:
    """Return the network's flat output tensors for one batch."""
    with torch.no_grad():
        values = sim.run(list(batch.inputs))
    return [real(values[name]) for name in sim.graph.outputs]


def _weights(graph: Graph, name: str, ys: list[Tensor]) -> Tensor:
    """Return the weight of every part of an output, so that a loud part does not hide the noise of others.

    Parts are whole outputs, and what is joined to one: boxes in pixels beside scores, say.
    """
    if not ys[0].is_floating_point():
        return torch.ones(())
    node = graph.nodes[name]
    while node.op in TRANSITIONS:
        node = graph.nodes[node.inputs[0]]
    power = sum(y.double().pow(2).sum() for y in ys) / sum(y.numel() for y in ys)
    whole = torch.as_tensor(power).clamp(min=1e-30).rsqrt().cpu()
    axis = node.attrs["axis"] if node.op == "cat" else 0
    sizes = known([graph.nodes[part].shape[axis] for part in node.inputs]) if axis else []
    if not axis or sum(sizes) != ys[0].shape[axis]:
        return whole
    moved = torch.cat([y.double().movedim(axis, 0).flatten(1) for y in ys], 1)
    powers = [part.pow(2).mean().clamp(min=1e-6 / float(whole) ** 2) for part in torch.split(moved, sizes)]
    weights = torch.cat([p.rsqrt().expand(size) for p, size in zip(powers, sizes, strict=True)])
    return weights.cpu().reshape(-1, *[1] * (ys[0].dim() - 1 - axis))


def _common(ys: Sequence[Tensor]) -> float:
    """Return the number that all columns of an output share, where it makes nearly all of its power; else 0.

    It says nothing of a sample, and would hide all noise.
    """
    if ys[0].dim() < 2 or ys[0].shape[1] < 2 or not ys[0].is_floating_point():
        return 0.0
    y = torch.cat([y.flatten() for y in ys]).double()
    mean, power = float(y.mean()), float(y.square().mean())
    return mean if NEARLY_ALL * power < mean**2 < ALL * power else 0.0


class FloatOutputs:
    """The outputs of the float network on some samples, with which those of simulations are compared.

    Args:
        sim: a simulation of the network; its switches are as before afterwards.
        samples: the samples.
        metric: see Metric; "agreement" (share of samples with the float network's class), "signal" (share of the
            output's power that is no noise); None to measure noise only.
    """

    def __init__(self, sim: Simulation, samples: Samples, metric: Metric | str | None) -> None:
        self.samples, self.metric, self.rebuild = samples, metric, sim.captured.rebuild
        self.inputs = len(sim.graph.inputs)
        with unquantized(sim):
            self.outputs = [outputs_of(sim, batch) for batch in samples]
        self.common = [_common(ys) for ys in self._by_output()]
        varying = zip(sim.graph.outputs, zip(*map(self._varying, self.outputs), strict=True), strict=True)
        self.weights = [_weights(sim.graph, name, list(ys)) for name, ys in varying]
        self.power = self._power()
        self.score = self.score_of(self.outputs)

    def noise(self, sim: Simulation) -> tuple[float, float]:
        """Return the noise over signal of the outputs, Σ(ŷ − y)²/Σy², and the metric (NaN without one)."""
        found = [outputs_of(sim, batch) for batch in self.samples]
        return self._noise(found), self.score_of(found)

    def noise_of_input(self, sim: Simulation, at: int, change: Callable[[Tensor], Tensor]) -> float:
        """Return the noise over signal of the outputs in float, where one input is changed."""
        found = []
        with unquantized(sim):
            for batch in self.samples:
                inputs = [change(x) if i == at else x for i, x in enumerate(batch.inputs)]
                found.append(outputs_of(sim, replace(batch, inputs=inputs)))
        return self._noise(found)

    def weigh(self, units: Tensor | None) -> None:
        """Count the noise of every column of the first output by a weight of its own, if any is given."""
        if units is not None:
            self.weights[0] = units
            self.power = self._power()

    def likeness(self, network: FloatNetwork) -> float:
        """Return the metric of these outputs with those of another network as the exact ones, 1 where they agree."""
        leaves = torch.utils._pytree.tree_leaves
        other = copy.copy(self)
        other.outputs = [[y for y in leaves(network(batch)) if isinstance(y, Tensor)] for batch in self.samples]
        other.power = other._power()
        return other.score_of(self.outputs)

    def _by_output(self) -> list[list[Tensor]]:
        return [list(ys) for ys in zip(*self.outputs, strict=True)]

    def _varying(self, ys: Sequence[Tensor]) -> list[Tensor]:
        """Return outputs without what all columns of one share."""
        return [y - c if c else y for y, c in zip(ys, self.common, strict=True)]

    def _power(self) -> float:
        return sum(self._square(self._varying(ys)) for ys in self.outputs)

    def _square(self, ys: Sequence[Tensor]) -> float:
        """Return Σ y² of real outputs, each part of them by its weight."""
        pairs = zip(ys, self.weights, strict=True)
        return sum(float((y.double() * w.to(y.device)).pow(2).sum()) for y, w in pairs if y.is_floating_point())

    def _noise(self, outputs: list[list[Tensor]]) -> float:
        total = 0.0
        for ys, others in zip(self.outputs, outputs, strict=True):
            total += self._square(
                [b.double() - y if y.is_floating_point() else y for y, b in zip(ys, others, strict=True)]
            )
        return total / max(self.power, 1e-300)

    def measure(self) -> Measure:
        """Return the measure of sensitivity that is this noise, as SQNR in dB."""

        def sums(y: Sequence[Tensor], r: Sequence[Tensor], *_: Any) -> tuple[float, ...]:
            return self._square(self._varying(r)), self._square(
                [a.double() - b if b.is_floating_point() else b for a, b in zip(y, r, strict=True)]
            )

        return replace(METRICS["sqnr"], sums=sums)

    def score_of(self, outputs: list[list[Tensor]]) -> float:
        """Return the metric of other outputs for the same samples; NaN where it is NaN of all batches.

        Others are left out, as an area under a curve is NaN where all samples are of one class.
        """
        if self.metric is None:
            return float("nan")
        if self.metric == "signal":
            return 1 / (1 + self._noise(outputs))
        total, count = 0.0, 0
        for batch, ys, exact in zip(self.samples, outputs, self.outputs, strict=True):
            if isinstance(self.metric, str):
                value = float((ys[0].argmax(1) == exact[0].argmax(1)).double().mean())
            else:
                value = scored(self.metric, self.rebuild(ys), batch, self.inputs)
            if not math.isnan(value):
                total, count = total + value * len(batch), count + len(batch)
        return total / count if count else float("nan")
