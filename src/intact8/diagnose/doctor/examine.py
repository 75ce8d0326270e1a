"""The examination: checks before rounding, calibration data, the noise of every site, and what is behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from statistics import median

from torch import Tensor

from intact8.diagnose.doctor.activations import Evidence, examine_activation, examine_rows
from intact8.diagnose.doctor.answers import Answers
from intact8.diagnose.doctor.best_repair import put_right
from intact8.diagnose.doctor.calibration_quality import examine_calibration
from intact8.diagnose.doctor.causes import (
    FAR,
    RECALIBRATE,
    STANDS_OUT,
    Cause,
    Measured,
    name_calibration_fault,
    name_cause,
)
from intact8.diagnose.doctor.channel_repairs import UNUSUAL
from intact8.diagnose.doctor.exploded import (
    averaged_from_zero,
    drowned,
    exploded,
    grown_everywhere,
    norms,
    unlike_others,
)
from intact8.diagnose.doctor.findings import ERROR, HARMLESS, NOTE, WARNING, noise_findings, ordered, severity
from intact8.diagnose.doctor.float_causes import FLOAT_CAUSES, refused
from intact8.diagnose.doctor.float_checks import dead_before_norms, proven, wrong_network
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.input_checks import conspicuous_inputs
from intact8.diagnose.doctor.model_checks import unread
from intact8.diagnose.doctor.network_checks import (
    batch_dependence,
    cancelled,
    check_confidence,
    dead_channels,
    dead_gains,
    emptied,
    islands,
    mismatch,
    reads_nothing_new,
    stale_batch_norm,
)
from intact8.diagnose.doctor.report import CALIBRATION, CalibrationQuality, Confidence, Finding, Site
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.statistics_checks import behind_statistics
from intact8.diagnose.doctor.tensor_statistics import Statistics, observe
from intact8.diagnose.doctor.untrained import ZEROS, silenced, untrained
from intact8.diagnose.doctor.weights import examine_weight
from intact8.diagnose.executors import unquantized
from intact8.diagnose.sensitivity import sensitivity
from intact8.diagnose.sensitivity.report import Part
from intact8.errors import ProgramError, StateError
from intact8.simulation.simulation import Simulation

Step = Callable[[str], object]
"""Called with the name of what begins."""

RANKED = 48
"""Samples on which the noise of single sites is measured."""


LARGE, LOOKED = 2000, 256
"""Operations of a network from which only the noisiest of its sites are examined, and how many of them."""

SHARE = 1 / 6
"""Of the budget: the share that the measurement of the sites has at least, however long the checks before it took."""


@dataclass(frozen=True)
class Examination:
    """What was found before any remedy is tried; the attributes are those of the report."""

    confidence: Confidence
    quality: CalibrationQuality
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    measured: tuple[int, int]


def examine(
    network: FloatNetwork,
    sim: Simulation,
    calibration: Samples,
    data: Samples,
    step: Step,
    known: list[Finding],
    answers: Answers | None,
    judged: tuple[Samples, Answers | None],
    until: float,
    budget: float,
) -> Examination:
    """Examine a calibrated simulation.

    Args:
        network: the float network.
        sim: calibrated, in evaluation mode; its switches are as before afterwards.
        calibration: the samples on which it was calibrated.
        data: representative samples.
        step: called with the name of what begins.
        known: what was found before.
        answers: how the float network answers on ``data``; None without class indices.
        judged: more samples, on which repairs of the float network are judged, and how it answers there.
        until: time (``time.monotonic()``) from which no more repairs of the float network are tried, and the noise of a
            network that is wrong is not measured.
        budget: seconds, of which measuring the noise of all sites takes what is left until then, or its SHARE.
    """
    ranked = data.first(RANKED)
    step("confidence")
    confidence = check_confidence(network, sim, ranked)
    step("float network")
    stale = stale_batch_norm(network, sim.graph, data)
    if stale and not stale_batch_norm(network, sim.graph, calibration):
        stale = []  # the data are unlike those the network was trained and calibrated on
    doubts = [*mismatch(confidence), *batch_dependence(network, ranked, sim.graph)]
    findings = [*known, *cancelled(sim, ranked, doubts), *stale]
    seen, shown = observe(sim, data), observe(sim, calibration)
    findings = [f for f in findings if f.cause != "dead_channels" or not reads_nothing_new(seen, f.place)]
    counted = emptied(dead_channels(sim.graph, sim.weight_points, seen), sim.graph, sim.tensors)
    told = {f.place for f in findings if f.cause == "dead_channels"}
    findings += [*exploded(sim, seen), *(f for f in counted if f.place not in told)]
    findings += dead_gains({n.name: sim.tensors[n.params["weight"]] for n in norms(sim)})
    dead = [f for f in findings if f.cause == "dead_channels"]
    shown_by_weights = [*untrained(sim), *unread(network.model, sim), *grown_everywhere(sim, dead), *unlike_others(sim)]
    # What is dead follows from it.
    empty = {f.place for f in shown_by_weights if f.evidence.get("numbers") == ZEROS} | silenced(sim)
    findings = [f for f in findings if f.cause != "dead_channels" or f.place not in empty]
    shrunk, small = averaged_from_zero(sim), drowned(sim)
    if answers is not None and answers.mostly_lost:
        # What is far larger than its like is so among small numbers; statistics behind what eps drowns do not fit.
        consequences = [*(["exploded_channel"] if shrunk else []), *(["stale_batch_norm"] if small else [])]
        findings = [f for f in findings if f.cause not in consequences]
        shrunk, small = ([replace(f, severity="error") for f in found] for found in (shrunk, small))
    shown_by_weights += [*shrunk, *small]
    findings = put_right(network, sim, judged[1], judged[0], [*findings, *shown_by_weights], until)
    findings = dead_before_norms(sim.graph, behind_statistics(findings, network, sim, answers, data))
    findings += conspicuous_inputs(sim, judged[1], judged[0], findings)
    findings += islands(sim.placed, sim.recipe)
    step("calibration data")
    quality = examine_calibration(network, sim, calibration, data, shown, seen)
    findings = proven(findings, wrong_network(sim, answers, data, quality.data_classes, findings), answers)
    step("sensitivity")
    exact = FloatOutputs(sim, ranked, None)
    units = None if answers is None else answers.units
    exact.weigh(units)
    began = time.monotonic()
    total, _ = exact.noise(sim)
    once = time.monotonic() - began
    findings += float_results(sim, exact)
    refusal = refused(ordered(findings, list(sim.graph.nodes)))
    late = bool(refusal) and time.monotonic() > until  # no recipe repairs it, however much noise there is
    evidence: dict[tuple[str, str], Evidence] = {}
    try:
        left = max(until - time.monotonic(), budget * SHARE)
        noise = {} if late or not (sim.points or sim.weight_points) else _noise_alone(sim, exact, once, left)
        evidence = _evidence(sim, seen, shown, units, _worth_a_look(sim, noise)) if noise else {}
    except (ProgramError, StateError):  # a network may be too wrong for any integers; that it is wrong is known
        if not any(f.severity == "error" and f.cause in FLOAT_CAUSES for f in findings):
            raise
        noise = {}
    loud = max(ERROR, STANDS_OUT * median(noise.values())) if noise else ERROR
    measured = [Measured(p, n, (y := noise.get((p, n), 0.0)), e, y > loud) for (p, n), e in evidence.items()]
    measured.sort(key=lambda m: -m.noise)
    for m in (m for m in measured if m.stands_out and not m.reason[0] and m.name in sim.graph.inputs):
        examine_rows(sim, exact, m.name, m.noise, m.evidence)
    findings += overflows(measured)
    causes = [_named(sim, m, measured, quality) for m in measured if m.reason[0]]
    findings += noise_findings(measured, causes, total, _asked_for(sim))
    cause, text = name_calibration_fault(quality)
    told = {f.cause for f in findings if f.place == CALIBRATION}
    if quality.reach >= FAR and cause == "outlier_sample" and cause not in told and total >= NOTE:
        findings.append(Finding(cause, CALIBRATION, severity(total), text, RECALIBRATE, total))
    elif cause != "unrepresentative" and all(f.place != CALIBRATION for f in findings):
        findings.append(Finding(cause, CALIBRATION, "note", f"{text}; {HARMLESS}", RECALIBRATE))
    sites, every = tuple(m.site() for m in measured), len(sim.points) + len(sim.weight_points)
    return Examination(confidence, quality, ordered(findings, list(sim.graph.nodes)), sites, (len(noise), every))


def _named(sim: Simulation, m: Measured, sites: list[Measured], quality: CalibrationQuality) -> tuple[Measured, Cause]:
    """Return a site and its cause: where that is chance, as samples differ, the next one if that is larger."""
    cause = name_cause(sim, m, sites, quality)
    if cause.chance:
        gains = {reason: gain for reason, gain in m.evidence.gains.items() if reason != m.reason[0]}
        other = replace(m, evidence=replace(m.evidence, gains=gains))
        if other.reason[1] > m.reason[1]:
            return other, name_cause(sim, other, sites, quality)
    return m, cause


def _asked_for(sim: Simulation) -> set[tuple[str, str]]:
    """Return (part, name) of the sites whose scheme the recipe or a person set for them alone."""
    rules, nodes = sim.recipe.rules, sim.graph.nodes
    points = sim.placed.points.items()
    named = {
        ("activation", name)
        for name, point in points
        if sim.points[name].fixed
        or any(rule.activation and rule.matches(nodes[tensor]) for rule in rules for tensor in point.tensors)
    }
    weights = {name for name in sim.weight_points if any(rule.weight and rule.matches(nodes[name]) for rule in rules)}
    return named | {("weight", name) for name in weights}


def _worth_a_look(sim: Simulation, noise: Mapping[tuple[str, str], float]) -> Collection[tuple[str, str]]:
    """Return the sites to examine: all, or of large networks the LOOKED noisiest of those that were measured."""
    if len(sim.graph.nodes) <= LARGE:
        return {*(("activation", name) for name in sim.points), *(("weight", name) for name in sim.weight_points)}
    return set(sorted(noise, key=lambda site: -noise[site])[:LOOKED])


def _evidence(
    sim: Simulation,
    seen: Statistics,
    shown: Statistics,
    units: Tensor | None,
    sites: Collection[tuple[str, str]],
) -> dict[tuple[str, str], Evidence]:
    """Map (part, name) of these sites to its evidence; columns of the output count by ``units`` if these are given."""
    evidence: dict[tuple[str, str], Evidence] = {}
    users = sim.graph.users()
    for name in (n for n in sim.points if ("activation", n) in sites):
        found = examine_activation(sim, name, seen, shown, units, users)
        if found is not None:
            evidence["activation", name] = found
    for name in (n for n in sim.weight_points if ("weight", n) in sites):
        weight = evidence["weight", name] = examine_weight(sim, name, seen)
        output = evidence.get(("activation", sim.placed.point_of.get(name, "")))
        if output is not None and "cancellation" in output.gains:  # the noise of the weight goes the same way
            weight.gains["cancellation"] = output.gains["cancellation"]
            weight.facts |= {k: output.facts[k] for k in ("sum", "term_rms", "sum_rms")}
    return evidence


def _noise_alone(sim: Simulation, exact: FloatOutputs, once: float, left: float) -> dict[tuple[str, str], float]:
    """Map (part, name) to output noise over signal with this site quantized and all others in float.

    Where all sites would take longer than is left, those that lose most are measured, of them as many as there is time
    for.

    Args:
        sim: calibrated.
        exact: the samples, and what the float network gives.
        once: seconds that the whole network takes on them.
        left: seconds there are.
    """
    calls, measure = exact.samples.calls(), exact.measure()
    # With one site quantized, only what lies behind it is computed: half of the network on average.
    late = once / 2 * (len(sim.points) + len(sim.weight_points)) > left
    parts: tuple[Part, ...] = "weight", "activation"
    seconds = max(left, 1e-3) if late else None
    report = sensitivity(sim, calls, metric=measure, modes=("alone",), parts=parts, seconds=seconds)
    out: dict[tuple[str, str], float] = {}
    for row in report:
        for score in row.scores:
            site = score.part, row.name if score.part == "weight" else row.point
            out[site] = max(out.get(site, 0.0), 10 ** (-score.value / 10))
    return out


def float_results(sim: Simulation, exact: FloatOutputs) -> list[Finding]:
    """Return findings of layers whose results are float32 and noisy: recurrent, dynamic and weight-only ones."""
    found = []
    for name in sim.all_weight_points.keys() - sim.weight_points.keys():
        point, node = sim.all_weight_points[name], sim.graph.nodes[name]
        with unquantized(sim):
            point.quantizing = True
            noise, _ = exact.noise(sim)
        roles = [role for role in node.params if role.startswith("weight")]
        ratio, role = max((_imbalance(sim.tensors[node.params[role]]), role) for role in roles)
        uneven = node.op == "embedding" and ratio > UNUSUAL
        small = 0.0 if node.op == "embedding" else max(_least(sim.tensors[node.params[role]]) for role in roles)
        if noise < (NOTE if point.scheme.bits < 8 else WARNING if ratio > UNUSUAL else ERROR):
            continue
        cause, remedy = "few_bits", "leave it float"
        message = f"its weights and the rows of its inputs have {point.scheme.bits} bits, which are too few"
        if uneven:  # every row has a scale of its own, which this column sets
            cause, remedy = "outlier_weight", "take the column's mean away, or leave the table float"
            message = f"{role}: one column is {ratio:.3g} times as large as the median one, and sets every row's scale"
        elif point.scheme.bits < 8:
            message, remedy = f"its weights have {point.scheme.bits} bits", "weight bits = 8"
        elif ratio > UNUSUAL or small > UNUSUAL:
            cause, remedy = "input_imbalance", "rescale the inputs' channels, or leave the layer float"
            message = (
                f"{role}: the weights of one input are {ratio:.3g} times as large as those of the median one"
                if ratio > UNUSUAL
                else f"the weights of the median input are {small:.3g} times as large as those of another, which is as "
                "much larger, and sets the scale of every row"
            )
        found.append(Finding(cause, name, severity(noise), message, remedy, noise, (("weight", name),)))
    return found


def _imbalance(weight: Tensor) -> float:
    """Return the size of the largest column of a weight over that of the median one."""
    size = weight.detach().reshape(len(weight), -1).abs().amax(0)
    return float(size.max() / size.median().clamp(min=1e-30))


def _least(weight: Tensor) -> float:
    """Return the size of the median column of a weight over that of the smallest one that is not 0."""
    size = weight.detach().reshape(len(weight), -1).abs().amax(0)
    return float(size.median() / size[size > 0].min()) if bool((size > 0).any()) else 0.0


def overflows(measured: list[Measured]) -> list[Finding]:
    """Return findings of the layers whose bias does not fit 32 bits on the grid of its sums."""
    remedy = "clip these biases: behind its activation such a channel is constant anyway"
    out = []
    for m in measured:
        facts = m.evidence.facts
        count = facts.get("overflowing_biases")
        if count:
            message = f"{count} biases are up to {facts['largest_bias']:.3g} steps of their grid, clamped to 32 bits"
            sites = (("weight", m.name),)
            out.append(Finding("bias_overflow", m.name, "error", message, remedy, sites=sites, evidence=facts))
    return out
