"""From what was measured at every site to findings: one per fault, the one that makes most noise first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from intact8.simulation.simulation import Simulation

from .activations import Evidence
from .causes import Cause, name_cause
from .report import NETWORK, SEVERITIES, CalibrationQuality, Finding, Site

NAMED = {
    "range": 3.0, "data": 3.0, "bits": 3.0, "symmetric": 3.0, "shared": 8.0, "channels": 15.0, "cancellation": 10.0,
    "tie_free": 3.0, "stale": 3.0, "granularity": 3.0, "outlier_weight": 6.0, "columns": 10.0, "mean_shift": 4.0,
}  # fmt: skip
"""Decibels from which a reason is a fault. What trained networks show by themselves stays below: channels that differ
by 14 dB, weights whose outliers cost 3 dB, means that shift by as much as their noise."""

ERROR, WARNING, NOTE = 1e-2, 1e-3, 1e-4
"""Noise over signal of the outputs (20, 30 and 40 dB) from which a finding is an error, a warning, a note."""

SPREAD = 8.0
"""Noise of a network is accumulated where it comes from at least so many sites, each counted by its share."""


@dataclass(frozen=True)
class Measured:
    """A site's noise and evidence."""

    part: str
    name: str
    noise: float
    evidence: Evidence

    @property
    def reason(self) -> tuple[str, float]:
        """The reason with the largest gain among those that are faults; ("", 0) where none is."""
        faults = {r: g for r, g in self.evidence.gains.items() if g >= NAMED[r]}
        return max(faults.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def avoidable(self) -> float:
        """Noise that goes away with the reason."""
        return self.noise * (1 - 10 ** (-self.reason[1] / 10))

    def site(self) -> Site:
        """For the report."""
        gains = {r: round(g, 2) for r, g in self.evidence.gains.items()}
        return Site(self.name, self.part, self.noise, self.evidence.worst()[0], gains, self.evidence.origin)


def noise_findings(
    sim: Simulation, measured: list[Measured], quality: CalibrationQuality, total: float
) -> list[Finding]:
    """Findings for everything that makes noise.

    Args:
        sim: calibrated.
        measured: all sites.
        quality: of the calibration data.
        total: noise over signal with everything quantized.
    """
    groups: dict[tuple[str, str], list[tuple[Measured, Cause]]] = defaultdict(list)
    for m in measured:
        if m.reason[0]:
            cause = name_cause(sim, m, measured, quality)
            groups[cause.name, cause.place].append((m, cause))
    out = [_finding(name, place, members) for (name, place), members in groups.items()]
    accumulated = _accumulated(measured, total, out)
    return [f for f in [*out, *accumulated] if f.noise >= NOTE]


def _finding(name: str, place: str, members: list[tuple[Measured, Cause]]) -> Finding:
    members = sorted(members, key=lambda pair: -pair[0].avoidable)
    worst, cause = members[0]
    noise = sum(m.avoidable for m, _ in members)
    more = f"; {len(members)} tensors are concerned" if len(members) > 1 else ""
    evidence: dict[str, Any] = {"gains_db": worst.evidence.gains, **cause.evidence}
    return Finding(
        name, place, severity_of(noise), cause.message + more, cause.remedy, noise,
        tuple((m.part, m.name) for m, _ in members), evidence,
    )  # fmt: skip


def severity_of(noise: float) -> str:
    """By what the outputs lose."""
    return "error" if noise >= ERROR else "warning" if noise >= WARNING else "note"


def _accumulated(measured: list[Measured], total: float, found: list[Finding]) -> list[Finding]:
    """Noise that many sites make together and that no finding explains."""
    alone = sum(m.noise for m in measured)
    if alone <= 0:
        return []
    unexplained = max(0.0, total * (1 - sum(f.noise for f in found) / alone))
    spread = alone**2 / sum(m.noise**2 for m in measured)
    if spread < SPREAD or unexplained < total / 2:
        return []
    return [
        Finding(
            "accumulated", NETWORK, severity_of(unexplained),
            f"{len(measured)} tensors make the noise together, none more than "
            f"{max(m.noise for m in measured) / alone:.0%} of it: as if {spread:.0f} made equal parts",
            "finer ranges everywhere, corrected biases, fewer rounding steps; train on (intact8.train), or leave the "
            "noisiest layers float",
            noise=unexplained,
            evidence={"spread": spread, "sites": len(measured), "unexplained": unexplained, "total": total},
        )
    ]  # fmt: skip


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first: what is wrong with the float network, then by severity and noise."""

    def key(finding: Finding) -> tuple[int, int, float]:
        before = finding.severity == "error" and finding.cause in ("float_mismatch", "stale_batch_norm")
        return 0 if before else 1, SEVERITIES.index(finding.severity), -finding.noise

    return tuple(sorted(findings, key=key))
