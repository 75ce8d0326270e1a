"""The doctor: from "accuracy fell" to the layer, the cause and the remedy."""

from __future__ import annotations

import copy
import math
import numbers
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intact8 import recipes
from intact8.arithmetic.dimensions import known
from intact8.calibration.data import device_of, first_batch
from intact8.calibration.dynamic_dimensions import changing
from intact8.capture.torch_export import require_module
from intact8.diagnose.doctor.answers import answers_of
from intact8.diagnose.doctor.decision import decide
from intact8.diagnose.doctor.examine import RANKED, examine
from intact8.diagnose.doctor.findings import ordered, tolerated
from intact8.diagnose.doctor.float_causes import refused
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs, Metric
from intact8.diagnose.doctor.model_checks import (
    ANOTHER,
    changed_since,
    diverged,
    nan_samples,
    not_finite,
    overflowing,
    random_answers,
    rounded,
    training_mode,
)
from intact8.diagnose.doctor.remedies import Candidate
from intact8.diagnose.doctor.report import CalibrationQuality, Confidence, DoctorReport, Finding, Outcome, Verdict
from intact8.diagnose.doctor.samples import Samples, divide, gather
from intact8.diagnose.doctor.search import RecipeSearch
from intact8.diagnose.doctor.targets import beyond_classes, directions
from intact8.diagnose.evaluation_scores import require_classes
from intact8.diagnose.executors import unquantized
from intact8.errors import InputError, StateError, require_number
from intact8.recipe.recipe import Recipe
from intact8.simulation.prepare import warn_of_training_mode
from intact8.simulation.simulation import Simulation

SHARES = (0.25, 0.25, 0.5)
"""Shares of the data to calibrate on, to examine and choose remedies by, and to hold out for the outcomes."""

ACCURACY = "accuracy"
"""Name of the metric where one class index per sample follows the inputs."""

EXAMINED = 256
"""Samples to examine and to choose by, at most."""


def doctor(
    model: nn.Module,
    data: Any,
    *,
    calibration: Any = None,
    recipe: Recipe | str | Path | None = None,
    sim: Simulation | None = None,
    metric: Metric | None = None,
    tolerance: float = 0.01,
    remedies: bool = True,
    max_samples: int = 2048,
    seconds: float = 2.0,
    budget: float = 120.0,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> DoctorReport:
    """Find out where a quantized network loses accuracy, why, and what helps.

    In this order: whether the simulation with rounding off is the network; whether the float network and the
    calibration data are sound; the noise that every tensor makes alone; what is behind it, in decibels per reason;
    remedies, tried on samples nothing was calibrated on, unless the float network is already wrong, which no recipe
    repairs; and the outcome on samples nothing was chosen by.

    Args:
        model: the float network; it is not changed.
        data: representative batches, as for :func:`intact8.calibrate`, with labels behind the inputs where there are
            any. A quarter of it stands in for poor calibration data, a quarter is examined, half is held out.
        calibration: the data that the network is calibrated on; a quarter of ``data`` when None.
        recipe: how it is quantized, as for :func:`intact8.prepare`; ``sim``'s, or the default.
        sim: a simulation to examine, with its own scales and weights (after training, say), in place of what
            ``recipe`` and ``calibration`` give.
        metric: called with (outputs, labels), as by :func:`intact8.evaluate`: higher is better, a mean over the samples
            or one number per sample. Labels are what follows the inputs in a batch, a tuple where that is several.
            When None: accuracy where one class index per sample follows the inputs, unless outputs are vectors of
            length 1; agreement with the float network where outputs are classes; else the share of the outputs that is
            no noise.
        tolerance: loss of the metric that is accepted, on top of the standard error of the difference.
        remedies: whether to try remedies; otherwise it ends with the findings, and "after" is as "before".
        max_samples: samples of ``data`` and of ``calibration`` to read at most.
        seconds: seconds for measuring time; 0 leaves it out.
        budget: seconds of work from which nothing more is tried; half of them are for what may be wrong with the float
            network, where the likely faults are tried first. What has begun is ended, and reported. Where the noise of
            every site alone would take longer than these halves leave, or a sixth of the whole, the sites that lose
            most are measured, as many as there is time for.
        seed: seed that divides the data.
        progress: called with the name of every step.

    Raises:
        InputError: too little data, labels that are no classes, a metric that gives no number, or a negative number.
        CaptureError, CalibrationError, RecipeError: as for :func:`intact8.prepare` and :func:`intact8.calibrate`.
        StateError: ``sim`` is not calibrated, or ``model`` is a simulation.

    Example:
        >>> import torch, intact8
        >>> _ = torch.manual_seed(0)
        >>> report = intact8.doctor(torch.nn.Linear(8, 4), torch.randn(512, 8), seconds=0)
        >>> report.confidence.passed, report.metric, report.outcome("after").name
        (True, 'agreement', 'after')
    """
    require_number("max_samples", max_samples, 1, "doctor")
    for argument, number in {"tolerance": tolerance, "budget": budget, "seconds": seconds}.items():
        require_number(argument, number, 0, "doctor", numbers.Real, finite=False)
    step, began = progress or (lambda _: None), time.monotonic()
    if isinstance(model, Simulation):
        raise StateError("doctor takes the float model", remedy="call intact8.doctor(model, data, sim=sim)")
    require_module(model)
    warn_of_training_mode(model)
    if sim is not None and not sim.calibration:
        sim.require_deployable()
    known = [*training_mode(model), *rounded(model), *not_finite(model if sim is None else sim)]
    as_given = model
    if any(module.training for module in model.modules()):
        model = copy.deepcopy(model).eval()
    if any(finding.cause == "not_finite" for finding in known):
        return _without_examination(known, recipes.as_recipe(recipe) if sim is None else sim.recipe)
    step("capture")
    given_sim = sim is not None
    if sim is not None:
        sim = copy.deepcopy(sim).eval()
    given_model, model = model, model if sim is None else _with_weights(model, sim)
    example, data = first_batch(model, data)
    sizes, data = changing(model, example, data)
    network = FloatNetwork(model, example, device_of(model), sizes)
    samples = gather(data, network.captured, network.device, max_samples)
    better, chosen, held_out = _divided(samples, network, seed)
    given = better
    if calibration is not None:
        given = gather(calibration, network.captured, network.device, max_samples)
    chosen = chosen.first(EXAMINED)
    candidate = Candidate(recipes.as_recipe(recipe) if sim is None else sim.recipe, recalibrate=calibration is None)
    if not any(finding.cause == "training_mode" for finding in known):
        known += random_answers(network, as_given, chosen.batches[0])
    known += nan_samples(given) or nan_samples(samples)
    if any(finding.cause == "not_finite" for finding in known):
        return _without_examination(known, candidate.recipe)
    step("calibrate")
    bare = network.prepare(candidate.recipe) if sim is None else sim
    infinite = overflowing(bare, chosen.first(RANKED))
    if infinite and sim is not None:  # the model's own weights may be sound
        own = FloatNetwork(given_model, example, network.device).prepare(sim.recipe)
        infinite = infinite if overflowing(own, chosen.first(RANKED)) else diverged(1.0, 0.0, ANOTHER)
    if infinite:
        return _without_examination([*known, *infinite], candidate.recipe)
    before = network.simulate(candidate.recipe, given) if sim is None else sim
    before.require_deployable()
    name, score = _metric(metric, held_out, before)
    exact = FloatOutputs(before, chosen, score)
    if sim is not None:
        known += changed_since(given_model, sim)
    if given_sim and callable(score):
        known += diverged(network.with_model(given_model).score(chosen, score), exact.score)
    elif given_sim:
        known += diverged(1.0, exact.likeness(network.with_model(given_model)), ANOTHER)
    answers = answers_of(exact, chosen, len(before.graph.inputs))
    units = None if answers is None else answers.units
    exact.weigh(units)
    # What is put right in float chooses no recipe, and the more samples the surer it is.
    more = Samples((*chosen.batches, *better.first(EXAMINED).batches))
    judged = more, answers_of(FloatOutputs(before, more, score), more, len(before.graph.inputs))
    found = examine(network, before, given, chosen, step, known, answers, judged, began + budget / 2, budget)
    search = RecipeSearch(network, exact, given, better, candidate, before, until=began + budget)
    refusal = refused(found.findings)
    if remedies and not refusal:
        search.run(found.findings, [site.name for site in found.sites], tolerance, given_sim, step)
    step("outcome")
    reference = FloatOutputs(before, held_out, score)
    reference.weigh(units)
    outcomes = [Outcome("float", reference.score, 0.0)]
    for label, quantized in (("before", before), ("after", search.sim)):
        noise, value = reference.noise(quantized)
        outcomes.append(Outcome(label, value, noise))
    step("time")
    seconds = 0.0 if refusal else seconds
    verdict = decide(network, search.sim, held_out, outcomes[0], outcomes[2], tolerance, seconds)
    return DoctorReport(
        metric=name,
        confidence=found.confidence,
        calibration=found.quality,
        findings=tolerated(
            found.findings, outcomes[0].metric - outcomes[1].metric, tolerance, divided=calibration is None
        ),
        sites=found.sites,
        measured=found.measured,
        trials=tuple(search.trials),
        outcomes=tuple(outcomes),
        recipe_toml=search.candidate.recipe.to_toml(),
        recalibrate=search.candidate.recalibrate and calibration is not None,
        verdict=replace(verdict, **refusal),
        samples={"calibration": len(given), "examined": len(chosen), "held_out": len(held_out)},
    )


def _without_examination(findings: list[Finding], recipe: Recipe) -> DoctorReport:
    """Return the report about a network, or calibration data, that hold what is no number."""
    nan, nothing = math.nan, (math.nan, math.nan)
    told = ordered(findings, [])
    return DoctorReport(
        metric="",
        confidence=Confidence(nan, False, 0),
        calibration=CalibrationQuality(0, 0, None, None, nothing, nothing, nan, nan, 0, nan, "", (), (), None),
        findings=told,
        sites=(),
        trials=(),
        outcomes=tuple(Outcome(name, nan, nan) for name in ("float", "before", "after")),
        recipe_toml=recipe.to_toml(),
        recalibrate=False,
        verdict=Verdict(False, f"do not quantize this: {told[0].message}", nan),
        samples={"calibration": 0, "examined": 0, "held_out": 0},
    )


def _divided(samples: Samples, network: FloatNetwork, seed: int) -> list[Samples]:
    parts = divide(samples, SHARES, seed, whole=network.whole)
    if not network.whole and not _takes_parts(network, parts):
        parts = divide(samples, SHARES, seed, whole=True)
    if not all(part.batches for part in parts):
        why = "they cannot be divided in three"
        remedy = "give a few hundred, in several batches where the network insists on a batch size"
        raise InputError(f"{len(samples)} samples", where="doctor", why=why, remedy=remedy)
    return parts


def _takes_parts(network: FloatNetwork, parts: list[Samples]) -> bool:
    """Return whether the model's own code takes parts of batches; some that are given lengths insist on the longest."""
    batches = [batch for part in parts for batch in part]
    if all(x.is_floating_point() for batch in batches for x in batch.inputs):
        return True
    try:
        for batch in batches:
            network(batch)
    except Exception:  # noqa: BLE001 - whatever the model's code raises
        return False
    return True


def _with_weights(model: nn.Module, sim: Simulation) -> nn.Module:
    """Copy the model, with the simulation's parameters and buffers."""
    model = copy.deepcopy(model)
    state = model.state_dict()  # with the versions of its modules, which some of them insist on
    state.update({name: tensor for name, tensor in sim.state_dict().items() if name in state})
    model.load_state_dict(state)
    return model


def accuracy(outputs: Any, labels: Any) -> Tensor:
    """Return 1 for every sample whose largest output is its class, the first one of its labels, else 0."""
    y = next(t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, Tensor))
    classes = torch.as_tensor(labels[0] if isinstance(labels, tuple) else labels).cpu()
    require_classes(classes, y.shape[1], "doctor")
    right: Tensor = y.argmax(1).cpu() == classes
    return right.double()


def _metric(metric: Metric | None, samples: Samples, sim: Simulation) -> tuple[str, Metric | str]:
    if metric is not None:
        return getattr(metric, "__name__", "metric"), metric
    output = sim.graph.nodes[sim.graph.outputs[0]]
    inputs = len(sim.graph.inputs)
    classes = len(output.shape) == 2 and any(size > 1 for size in known(output.shape[1:]))
    labels = samples.labels(inputs)
    if labels is not None and labels.is_floating_point():
        classes = classes and tuple(labels.shape[1:]) != tuple(output.shape[1:])
    elif classes and labels is not None and labels.dim() == 1:
        with unquantized(sim), torch.no_grad():
            first = sim.outputs_of(samples.batches[0].inputs)[0]
        none = directions(first) or beyond_classes(labels, first)
        return ("signal", "signal") if none else (ACCURACY, accuracy)
    return ("agreement", "agreement") if classes else ("signal", "signal")
