"""The doctor: from "accuracy fell" to the layer, the cause and the remedy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import known
from intact8.calibration.data import device_of, first_batch
from intact8.diagnose.doctor.decision import judge
from intact8.diagnose.doctor.float_network import Metric, Patient, Reference
from intact8.diagnose.doctor.search import Course, treat
from intact8.errors import InputError, StateError
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

from .examine import examine
from .remedies import Treatment
from .report import DoctorReport, Outcome
from .samples import Samples, divide, gather

SHARES = (0.25, 0.25, 0.5)
"""Of the data: to calibrate on, to examine and choose remedies by, to hold out for the outcomes."""

EXAMINED = 256
"""Samples that are enough to examine and to choose by."""


def doctor(
    model: nn.Module,
    data: Any,
    *,
    calibration: Any = None,
    recipe: Recipe | None = None,
    sim: Simulation | None = None,
    metric: Metric | None = None,
    tolerance: float = 0.01,
    remedies: bool = True,
    max_samples: int = 2048,
    seconds: float = 2.0,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> DoctorReport:
    """Find out where a quantized network loses accuracy, why, and what helps.

    In this order: whether the simulation with rounding off is the network; whether the float network and the
    calibration data are sound; the noise that every tensor makes alone; what is behind it, in decibels per reason;
    remedies, tried on samples nothing was calibrated on; and the outcome on samples nothing was chosen by.

    Args:
        model: the float network; it is not changed.
        data: representative batches, as for :func:`intact8.calibrate`, with labels behind the inputs where there are
            any. A quarter of it stands in for poor calibration data, a quarter is examined, half is held out.
        calibration: the data that the network is calibrated on; a quarter of ``data`` when None.
        recipe: how it is quantized; ``sim``'s, or the default.
        sim: a simulation to examine, with its own scales and weights (after training, say), in place of what
            ``recipe`` and ``calibration`` give.
        metric: called with (outputs, batch): higher is better, a mean over the samples. When None: accuracy where one
            class index per sample follows the inputs; agreement with the float network where outputs are classes; else
            the share of the outputs that is no noise.
        tolerance: loss of the metric that is accepted, on top of the standard error of the difference.
        remedies: try them; otherwise it ends with the findings, and "after" is as "before".
        max_samples: of ``data`` and of ``calibration``.
        seconds: for measuring time; 0 leaves it out.
        seed: divides the data.
        progress: called with the name of every step.

    Raises:
        InputError: too little data.
        CaptureError, CalibrationError, RecipeError: as for :func:`intact8.prepare` and :func:`intact8.calibrate`.
        StateError: ``sim`` is not calibrated, or ``model`` is a simulation.

    Example:
        >>> import torch, intact8
        >>> _ = torch.manual_seed(0)
        >>> report = intact8.doctor(torch.nn.Linear(8, 4), torch.randn(512, 8), seconds=0)
        >>> report.confidence.passed, report.metric, report.outcome("after").name
        (True, 'agreement', 'after')
    """
    step = progress or (lambda _: None)
    if isinstance(model, Simulation):
        raise StateError("doctor takes the float model", remedy="call intact8.doctor(model, data, sim=sim)")
    step("capture")
    if sim is not None:
        sim = copy.deepcopy(sim).eval()
        model = _with_weights(model, sim)
    example, data = first_batch(model, data)
    patient = Patient(model, example, device_of(model))
    samples = gather(data, patient.captured, patient.device, max_samples, patient.static)
    better, chosen, held = divide(samples, SHARES, seed, patient.static)
    if not (better.batches and chosen.batches and held.batches):
        raise InputError(
            f"{len(samples)} samples", where="doctor", why="they cannot be divided in three",
            remedy="give a few hundred, in several batches where the network insists on a batch size",
        )  # fmt: skip
    given = better if calibration is None else gather(
        calibration, patient.captured, patient.device, max_samples, patient.static
    )  # fmt: skip
    chosen = chosen.first(EXAMINED)
    treatment = Treatment(sim.recipe if sim is not None else recipe or _default(), recalibrate=calibration is None)
    step("calibrate")
    again = sim is not None
    before = patient.simulate(treatment.recipe, given) if sim is None else sim
    before.require_deployable()
    name, score = _metric(metric, samples, before)
    found = examine(patient, before, given, chosen, step)
    course = Course(patient, Reference(before, chosen, score), given, better, treatment, before)
    worst = [site.name for site in found.sites]
    if remedies:
        treat(course, found.findings, worst, tolerance, again, step)
    step("outcome")
    reference = Reference(before, held, score)
    outcomes = [Outcome("float", reference.score, 0.0)]
    for label, network in (("before", before), ("after", course.sim)):
        noise, value = reference.noise(network)
        outcomes.append(Outcome(label, value, noise))
    step("time")
    verdict = judge(patient, course.sim, held, outcomes[0], outcomes[2], tolerance, seconds)
    return DoctorReport(
        metric=name,
        confidence=found.confidence,
        calibration=found.quality,
        findings=found.findings,
        sites=found.sites,
        trials=tuple(course.trials),
        outcomes=tuple(outcomes),
        recipe_toml=course.treatment.recipe.to_toml(),
        recalibrate=course.treatment.recalibrate and calibration is not None,
        verdict=verdict,
        samples={"calibration": len(given), "examined": len(chosen), "held_out": len(held)},
    )


def _default() -> Recipe:
    from intact8 import recipes

    return recipes.default()


def _with_weights(model: nn.Module, sim: Simulation) -> nn.Module:
    """A copy of the model with the simulation's parameters and buffers."""
    model = copy.deepcopy(model)
    names = set(model.state_dict())
    model.load_state_dict({k: v for k, v in sim.state_dict().items() if k in names})
    return model


def accuracy(inputs: int) -> Metric:
    """The share of samples whose largest output is their class, which is entry ``inputs`` of every batch."""

    def metric(outputs: Any, batch: Any) -> Tensor:
        y = next(t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, Tensor))
        right: Tensor = y.argmax(1).cpu() == batch[inputs].cpu()
        return right.double()

    return metric


def _metric(metric: Metric | None, samples: Samples, sim: Simulation) -> tuple[str, Metric | str]:
    if metric is not None:
        return getattr(metric, "__name__", "metric"), metric
    output = sim.graph.nodes[sim.graph.outputs[0]]
    classes = len(output.shape) == 2 and any(size > 1 for size in known(output.shape[1:]))
    inputs = len(sim.graph.inputs)
    if classes and samples.has_labels(inputs):
        return "accuracy", accuracy(inputs)
    return ("agreement", "agreement") if classes else ("signal", "signal")
