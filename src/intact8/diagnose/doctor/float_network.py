"""A network captured once and simulated under as many recipes as there are remedies to try."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from intact8.calibration.run import Switchable, calibrate
from intact8.calibration.summary import CalibrationWarning
from intact8.capture import Captured, capture
from intact8.diagnose.doctor.samples import Batch, Samples
from intact8.fusion.fuse import fuse
from intact8.placement.place import place
from intact8.recipe.recipe import Recipe
from intact8.simulation.quantized_tensor import real
from intact8.simulation.simulation import Simulation

Metric = Callable[[Any, Any], Any]
"""Called with the network's outputs and the batch as the data gave it: a number that is a mean over the samples, or
one number per sample."""


class Patient:
    """The float network under examination.

    Attributes:
        model: as it was given; it is not changed.
        captured: its graph, captured once.
        device: where it is.
        static: the batch size it insists on; None where any will do.
    """

    def __init__(self, model: nn.Module, example_inputs: Any, device: torch.device) -> None:
        self.model, self.device = model, device
        self.captured: Captured = capture(model, example_inputs)
        graph = self.captured.graph
        shape = graph.nodes[graph.inputs[0]].shape
        self.static = shape[0] if shape and isinstance(shape[0], int) else None

    def prepare(self, recipe: Recipe) -> Simulation:
        """What ``intact8.prepare`` gives, without capturing again."""
        tensors = self.captured.tensors()
        with torch.inference_mode(False):
            fused = fuse(
                self.captured.graph, tensors, residual=recipe.residual == "fused", leaky=recipe.leaky == "fused",
                masks=recipe.nonlinear == "integer",
            )  # fmt: skip
            return Simulation(self.model, self.captured, fused, place(fused.graph, recipe), recipe).eval()

    def simulate(self, recipe: Recipe, calibration: Samples | Iterable[Any]) -> Simulation:
        """A calibrated simulation. What calibration warns about is examined by the doctor itself."""
        sim = self.prepare(recipe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            calibrate(sim, calibration.calls() if isinstance(calibration, Samples) else calibration)
        return sim


def outputs_of(sim: Simulation, batch: Batch) -> list[Tensor]:
    """The network's flat output tensors for one batch."""
    with torch.no_grad():
        values = sim.run(list(batch.inputs))
    return [real(values[name]) for name in sim.graph.outputs]


class Reference:
    """What the float network answers to some samples, to measure others against.

    Args:
        sim: a simulation of the network; its switches are as before afterwards.
        samples: the samples.
        metric: see Metric; "agreement" (share of samples with the float network's class), "signal" (share of the
            output's power that is no noise); None to measure noise only.
    """

    def __init__(self, sim: Simulation, samples: Samples, metric: Metric | str | None) -> None:
        self.samples, self.metric, self.rebuild = samples, metric, sim.captured.rebuild
        with unquantized(sim):
            self.outputs = [outputs_of(sim, batch) for batch in samples]
        self.power = sum(float(y.double().pow(2).sum()) for ys in self.outputs for y in ys if y.is_floating_point())
        self.score = self._score(self.outputs)

    def noise(self, sim: Simulation) -> tuple[float, float]:
        """Noise over signal of the outputs, Σ(ŷ − y)²/Σy², and the metric (NaN without one)."""
        found = [outputs_of(sim, batch) for batch in self.samples]
        return self._noise(found), self._score(found)

    def _noise(self, outputs: list[list[Tensor]]) -> float:
        total = 0.0
        for ys, others in zip(self.outputs, outputs, strict=True):
            for y, other in zip(ys, others, strict=True):
                if y.is_floating_point():
                    total += float((other.double() - y.double()).pow(2).sum())
        return total / max(self.power, 1e-300)

    def _score(self, outputs: list[list[Tensor]]) -> float:
        if self.metric is None:
            return float("nan")
        if self.metric == "signal":
            return 1 / (1 + self._noise(outputs))
        total = 0.0
        for batch, ys, exact in zip(self.samples, outputs, self.outputs, strict=True):
            if isinstance(self.metric, str):
                value: Any = (ys[0].argmax(1) == exact[0].argmax(1)).double()
            else:
                value = self.metric(self.rebuild(ys), batch.raw)
            total += float(torch.as_tensor(value, dtype=torch.float64).mean()) * len(batch)
        return total / max(len(self.samples), 1)


class unquantized:
    """Context: every point of a simulation computes in float; switches are as before afterwards."""

    def __init__(self, sim: Simulation) -> None:
        self.switches: list[Switchable] = [*sim.points.values(), *sim.weight_points.values()]

    def __enter__(self) -> None:
        self.before = [point.quantizing for point in self.switches]
        for point in self.switches:
            point.quantizing = False

    def __exit__(self, *_: object) -> None:
        for point, on in zip(self.switches, self.before, strict=True):
            point.quantizing = on
