"""The examination: checks before rounding, calibration data, the noise of every site, and what is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intact8.diagnose.doctor.calibration_quality import examine_calibration
from intact8.diagnose.doctor.float_network import Patient, Reference
from intact8.diagnose.doctor.network_checks import check_confidence, dead_channels, islands, mismatch, stale_batch_norm
from intact8.diagnose.doctor.tensor_statistics import observe
from intact8.simulation.simulation import Simulation

from ..sensitivity import sensitivity
from .activations import Evidence, examine_activation
from .causes import kind_of_data
from .findings import Measured, noise_findings, ordered
from .report import CALIBRATION, CalibrationQuality, Confidence, Finding, Site
from .samples import Samples
from .weights import examine_weight

Step = Callable[[str], object]
"""Called with the name of what begins."""

RANKED = 48
"""Samples on which the noise of single sites is measured."""


@dataclass(frozen=True)
class Examination:
    """What was found before any remedy is tried."""

    confidence: Confidence
    quality: CalibrationQuality
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]


def examine(patient: Patient, sim: Simulation, calibration: Samples, data: Samples, step: Step) -> Examination:
    """Examine a calibrated simulation.

    Args:
        patient: the float network.
        sim: calibrated, in evaluation mode; its switches are as before afterwards.
        calibration: what it was calibrated on.
        data: representative samples.
        step: told what begins.
    """
    step("confidence")
    confidence = check_confidence(patient, sim, data.first(RANKED))
    step("float network")
    findings = [*mismatch(confidence), *stale_batch_norm(patient, sim, data)]
    seen, shown = observe(sim, data), observe(sim, calibration)
    findings += [*dead_channels(sim, seen), *islands(sim)]
    step("calibration data")
    quality = examine_calibration(patient, sim, sim.recipe, calibration, data, shown, seen)
    step("sensitivity")
    ranked = data.first(RANKED)
    total, _ = Reference(sim, ranked, None).noise(sim)
    evidence: dict[tuple[str, str], Evidence] = {}
    for name in sim.points:
        found = examine_activation(sim, name, seen, shown)
        if found is not None:
            evidence["activation", name] = found
    for name in sim.weight_points:
        evidence["weight", name] = examine_weight(sim, name, seen)
        output = evidence.get(("activation", sim.placed.point_of[name]))
        if output is not None and "cancellation" in output.gains:  # the noise of the weight goes the same way
            weight = evidence["weight", name]
            weight.gains["cancellation"] = output.gains["cancellation"]
            weight.facts |= {k: output.facts[k] for k in ("sum", "term_rms", "sum_rms")}
    noise = _alone(sim, ranked) if evidence else {}
    measured = [Measured(part, name, noise.get((part, name), 0.0), e) for (part, name), e in evidence.items()]
    measured.sort(key=lambda m: -m.noise)
    findings += overflows(measured)
    findings += noise_findings(sim, measured, quality, total)
    findings += _poor_data(quality, findings)
    return Examination(confidence, quality, ordered(findings), tuple(m.site() for m in measured))


def _alone(sim: Simulation, samples: Samples) -> dict[tuple[str, str], float]:
    """(part, name) → output noise over signal with this site quantized and all others in float."""
    report = sensitivity(sim, samples.calls(), metric="sqnr", modes=("alone",), parts=("weight", "activation"))
    out: dict[tuple[str, str], float] = {}
    for row in report:
        for part, name in (("weight", row.name), ("activation", row.point)):
            sqnr = row.score("alone", part)  # type: ignore[arg-type]
            if sqnr is not None:
                out[part, name] = max(out.get((part, name), 0.0), 10 ** (-sqnr / 10))
    return out


def overflows(measured: list[Measured]) -> list[Finding]:
    """Layers whose bias does not fit 32 bits on the grid of its sums."""
    out = []
    for m in measured:
        facts = m.evidence.facts
        if facts.get("overflowing_biases"):
            out.append(
                Finding(
                    "bias_overflow", m.name, "error",
                    f"{facts['overflowing_biases']} biases are up to {facts['largest_bias']:.3g} steps of their grid, "
                    "clamped to 32 bits",
                    "clip these biases: behind its activation such a channel is constant anyway",
                    sites=(("weight", m.name),), evidence=facts,
                )
            )  # fmt: skip
    return out


def _poor_data(quality: CalibrationQuality, findings: list[Finding]) -> list[Finding]:
    """Poor calibration data that did no measurable harm here."""
    name, text = kind_of_data(quality)
    if name == "unrepresentative" or any(f.place == CALIBRATION for f in findings):
        return []
    remedy = "calibrate on a few hundred varied samples, loaded as they are in use"
    return [Finding(name, CALIBRATION, "note", text + "; here it did no measurable harm", remedy)]
