"""The search for a recipe: remedies tried on samples that nothing was calibrated on, and kept if they help."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from intact8.diagnose.doctor.examine import Step
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.remedies import Candidate, Remedy, general, layers_of, leave_float, remedies_for
from intact8.diagnose.doctor.report import Finding, Trial
from intact8.diagnose.doctor.samples import Samples
from intact8.errors import CalibrationError, RecipeError
from intact8.simulation.simulation import Simulation

HELPS, HELPS_MUCH = 0.9, 0.75
"""A remedy is kept if it leaves at most this share of the noise: the second number for remedies that cost speed."""

QUIET = 1e-4
"""Noise over signal (40 dB) below which nothing more is tried."""

MOST_FINDINGS = 10
"""Findings for which remedies are tried; those behind them make little noise."""

MOST_FLOAT = 3
"""Times that layers may be left float in the end."""

MOST_TOGETHER = 4
"""Layers that may be left float at a time: what makes a tensor and what reads it."""


def to_leave_float(findings: Sequence[Finding], worst: Sequence[str], sim: Simulation) -> list[list[str]]:
    """Return the four first groups of layers to leave float: by findings, then the noisiest. Some stay quantized."""
    given = [layers_of(f, sim) for f in findings if f.severity != "note"] + [[name] for name in worst]
    groups = [[n for n in dict.fromkeys(group) if n in sim.all_weight_points] for group in given]
    fewer = min(MOST_TOGETHER + 1, len(sim.all_weight_points))
    return [list(g) for g in dict.fromkeys(tuple(g) for g in groups if 0 < len(g) < fewer)][:4]


@dataclass
class RecipeSearch:
    """The state of the search.

    Attributes:
        network: the float network.
        reference: its outputs on the samples to choose by.
        given, better: calibration data as given, and representative ones.
        candidate: the best way to quantize so far.
        sim, noise, metric: the simulation of that candidate, its noise and its metric on those samples.
        trials: remedies tried so far.
        until: time (``time.monotonic()``) from which no more are tried.
    """

    network: FloatNetwork
    reference: FloatOutputs
    given: Samples
    better: Samples
    candidate: Candidate
    sim: Simulation
    noise: float = math.nan
    metric: float = math.nan
    trials: list[Trial] = field(default_factory=list)
    until: float = math.inf

    def run(self, findings: tuple[Finding, ...], worst: list[str], tolerance: float, again: bool, step: Step) -> None:
        """Try remedies for findings, then settings for all networks, and in the end to leave layers float.

        Args:
            findings: the findings, worst first.
            worst: layers by the noise they make, the noisiest first.
            tolerance: how much of the metric may be lost.
            again: whether the simulation was given, and its scales may not be those of its recipe.
            step: called with the name of what begins.
        """
        self.noise, self.metric = self.reference.noise(self.sim)
        if again:
            self._attempt([Remedy("calibrate again by its recipe", self.candidate)], None, step)
        for finding in findings:
            if finding.cause != "left_float" and (self.noise < QUIET or finding.severity == "note"):
                continue
            if len({(t.cause, t.place) for t in self.trials}) >= MOST_FINDINGS:
                break
            self._attempt(remedies_for(finding, self.candidate, self.sim), finding, step)
        if self.noise >= QUIET:
            for text in [remedy.text for remedy in general(self.candidate)]:
                self._attempt([r for r in general(self.candidate) if r.text == text], None, step)
        for _ in range(MOST_FLOAT):
            if self.reference.score - self.metric <= tolerance:
                return
            if not self._attempt(leave_float(to_leave_float(findings, worst, self.sim), self.candidate), None, step):
                return

    def _attempt(self, remedies: list[Remedy], finding: Finding | None, step: Step) -> bool:
        """Try some remedies and keep the best of those that help. Returns whether one does."""
        best: tuple[float, float, Remedy, Simulation] | None = None
        tried: list[tuple[Remedy, float, float]] = []
        for remedy in remedies:
            if time.monotonic() > self.until:
                break
            step(f"trying: {remedy.text}")
            data = self.better if remedy.candidate.recalibrate else self.given
            try:
                sim = self.network.simulate(remedy.candidate.recipe, data)
            except (RecipeError, CalibrationError):
                continue  # this network cannot have that scheme
            noise, metric = self.reference.noise(sim)
            tried.append((remedy, noise, metric))
            if self._helps(remedy, noise, metric) and (best is None or noise < best[0]):
                best = noise, metric, remedy, sim
        cause, place = ("", "") if finding is None else (finding.cause, finding.place)
        for remedy, noise, metric in tried:
            accepted = best is not None and remedy is best[2]
            self.trials.append(Trial(remedy.text, cause, place, metric, noise, accepted))
        if best is not None:
            self.noise, self.metric, remedy, self.sim = best
            self.candidate = remedy.candidate
        return best is not None

    def _helps(self, remedy: Remedy, noise: float, metric: float) -> bool:
        if remedy.structural:
            return noise <= max(2 * self.noise, 1e-3) or metric >= self.metric
        return noise <= (HELPS_MUCH if remedy.costly else HELPS) * self.noise
