"""Treatment: remedies tried one after the other on samples that nothing was calibrated on, and kept if they help."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from intact8.diagnose.doctor.examine import Step
from intact8.diagnose.doctor.float_network import Patient, Reference
from intact8.diagnose.doctor.remedies import Remedy, Treatment, general, layers_of, leave_float, remedies_for
from intact8.diagnose.doctor.report import Finding, Trial
from intact8.diagnose.doctor.samples import Samples
from intact8.errors import CalibrationError, RecipeError
from intact8.simulation.simulation import Simulation

HELPS = 0.9
"""A remedy is kept if it leaves at most this share of the noise …"""

HELPS_MUCH = 0.75
"""… and this one if it costs speed."""

QUIET = 1e-4
"""Below this noise over signal (40 dB) nothing more is tried."""

MOST_FINDINGS = 10
"""Findings that remedies are tried for; those behind them make little noise."""

MOST_FLOAT = 3
"""Times that layers may be left float in the end."""

MOST_TOGETHER = 4
"""Layers that may be left float at a time: what makes a tensor and what reads it."""


@dataclass
class Course:
    """Where a treatment stands.

    Attributes:
        patient: the float network.
        reference: float answers on the samples to choose by.
        given, better: calibration data as given, and representative ones.
        treatment: what is in force.
        sim, noise, metric: the simulation under it and what it does on those samples.
        trials: so far.
    """

    patient: Patient
    reference: Reference
    given: Samples
    better: Samples
    treatment: Treatment
    sim: Simulation
    noise: float = math.nan
    metric: float = math.nan
    trials: list[Trial] = field(default_factory=list)

    def measure(self) -> None:
        """Noise and metric of the present simulation."""
        self.noise, self.metric = self.reference.noise(self.sim)

    def attempt(self, remedies: list[Remedy], finding: Finding | None, step: Step) -> bool:
        """Try some remedies and keep the best of those that help."""
        best: tuple[float, float, Remedy, Simulation] | None = None
        tried: list[tuple[Remedy, float, float]] = []
        for remedy in remedies:
            step(f"trying: {remedy.text}")
            try:
                sim = self.simulate(remedy.treatment)
            except (RecipeError, CalibrationError):
                continue  # a scheme that this network cannot have
            noise, metric = self.reference.noise(sim)
            tried.append((remedy, noise, metric))
            if self._helps(remedy, noise, metric) and (best is None or noise < best[0]):
                best = noise, metric, remedy, sim
        cause, place = ("", "") if finding is None else (finding.cause, finding.place)
        for remedy, noise, metric in tried:
            chosen = best is not None and remedy is best[2]
            self.trials.append(Trial(remedy.text, cause, place, metric, noise, chosen))
        if best is None:
            return False
        self.noise, self.metric, remedy, self.sim = best
        self.treatment = remedy.treatment
        return True

    def _helps(self, remedy: Remedy, noise: float, metric: float) -> bool:
        if remedy.structural:
            return noise <= max(2 * self.noise, 1e-3) or metric >= self.metric
        return noise <= (HELPS_MUCH if remedy.costly else HELPS) * self.noise

    def simulate(self, treatment: Treatment) -> Simulation:
        """The simulation under a treatment."""
        return self.patient.simulate(treatment.recipe, self.better if treatment.recalibrate else self.given)


def treat(
    course: Course, findings: tuple[Finding, ...], worst: list[str], tolerance: float, again: bool, step: Step
) -> None:
    """Try remedies for findings, then settings for all networks, and in the end to leave layers float.

    Args:
        course: at its beginning; it is moved on.
        findings: worst first.
        worst: layers by the noise they make, the noisiest first.
        tolerance: how much of the metric may be lost.
        again: whether the simulation was given, and its scales may not be those of its recipe.
        step: told what begins.
    """
    course.measure()
    if again:
        course.attempt([Remedy("calibrate again by its recipe", course.treatment)], None, step)
    for finding in findings:
        if finding.cause != "left_float" and (course.noise < QUIET or finding.severity == "note"):
            continue
        if len({(t.cause, t.place) for t in course.trials}) >= MOST_FINDINGS:
            break
        course.attempt(remedies_for(finding, course.treatment, course.sim), finding, step)
    if course.noise >= QUIET:
        for text in [remedy.text for remedy in general(course.treatment)]:
            course.attempt([r for r in general(course.treatment) if r.text == text], None, step)
    for _ in range(MOST_FLOAT):
        if course.reference.score - course.metric <= tolerance:
            return
        groups = [layers_of(f, course.sim) for f in findings if f.severity != "note"] + [[name] for name in worst]
        groups = [[n for n in dict.fromkeys(group) if n in course.sim.weight_points] for group in groups]
        distinct = list(dict.fromkeys(tuple(g) for g in groups if 0 < len(g) <= MOST_TOGETHER))
        if not course.attempt(leave_float([list(g) for g in distinct[:4]], course.treatment), None, step):
            return
