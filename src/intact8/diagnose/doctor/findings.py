"""Makes findings of what was measured at every site: one per fault, the one that makes most noise first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from intact8.diagnose.doctor.causes import LAYER_CAUSES, Cause, Measured
from intact8.diagnose.doctor.float_causes import FLOAT_CAUSES, causes_first
from intact8.diagnose.doctor.report import CALIBRATION, NETWORK, SEVERITIES, Finding

ERROR, WARNING, NOTE = 1e-2, 1e-3, 1e-4
"""Noise over signal of the outputs (20, 30 and 40 dB) from which a finding is an error, a warning, a note."""

SPREAD = 8.0
"""Noise of a network is accumulated where it comes from at least so many sites, each counted by its share."""

IN_WEIGHTS = ("rounded_weights", "wrong_weights", "wrong_setting")
"""Causes that the weights themselves prove, and that come before noise."""

OF_SCHEMES, MOST_OF_IT = ("granularity", "bits", "symmetric"), 0.4
"""Reasons that a scheme gives, which the recipe sets for all layers alike, and the share of the noise of all that goes
with another scheme from which it is why the noise accumulates."""

LEFT = ("unrepresentative", "accumulated")
"""Causes of noise that is left where nothing is wrong: notes on them come behind those that name something."""

BY_THE_WAY = ("dead_channels", *LEFT, "no_integer_form")
"""Causes that say little where another fault is as grave, those first that say more."""

HARMLESS = "here it did no measurable harm"
"""How the message of a finding ends that is a note only."""


def noise_findings(
    measured: list[Measured], causes: list[tuple[Measured, Cause]], total: float, asked_for: Container[tuple[str, str]]
) -> list[Finding]:
    """Return findings for everything that makes noise, and notes on settings that could.

    Args:
        measured: all sites.
        causes: the sites with a fault, and its cause.
        total: noise over signal with everything quantized.
        asked_for: (part, name) of the sites whose scheme was set for them alone.
    """
    groups: dict[tuple[str, str], list[tuple[Measured, Cause]]] = defaultdict(list)
    for m, cause in causes:
        groups[cause.name, cause.place].append((m, cause))
    out = [_finding(members) for members in groups.values()]
    loud = [f for f in [*out, *_accumulated(measured, total, out)] if f.noise >= NOTE]
    quiet = [f for f in out if f.noise < NOTE and any(site in asked_for for site in f.sites)]
    return [*loud, *(replace(f, message=f"{f.message}; {HARMLESS}") for f in quiet)]


def _finding(members: list[tuple[Measured, Cause]]) -> Finding:
    members = sorted(members, key=lambda pair: -pair[0].avoidable)
    worst, cause = members[0]
    noise = sum(m.avoidable for m, _ in members)
    message = cause.message + (f"; {len(members)} tensors are concerned" if len(members) > 1 else "")
    evidence: dict[str, Any] = {"gains_db": worst.evidence.gains, **cause.evidence}
    sites = tuple((m.part, m.name) for m, _ in members)
    level = "note" if all(c.chance for _, c in members) else severity(noise)
    return Finding(cause.name, cause.place, level, message, cause.remedy, noise, sites, evidence)


def severity(noise: float) -> str:
    """Return the severity of noise over signal of the outputs."""
    return "error" if noise >= ERROR else "warning" if noise >= WARNING else "note"


def _accumulated(measured: list[Measured], total: float, found: list[Finding]) -> list[Finding]:
    """Return a finding of the noise that many sites make together and that no finding explains."""
    alone = sum(m.noise for m in measured)
    if alone <= 0:
        return []
    unexplained = max(0.0, total * (1 - sum(f.noise for f in found) / alone))
    spread = alone**2 / sum(m.noise**2 for m in measured)
    if spread < SPREAD or unexplained < total / 2:
        return []
    largest = max(m.noise for m in measured) / alone
    message = (
        f"{len(measured)} tensors make the noise together, none more than {largest:.0%} of it: as if {spread:.0f} made "
        "equal parts"
    )
    evidence: dict[str, Any] = {"spread": spread, "sites": len(measured), "unexplained": unexplained, "total": total}
    share, reason = max((sum(m.saved_by(reason) for m in measured) / alone, reason) for reason in OF_SCHEMES)
    if share > MOST_OF_IT:
        cause, _, remedy = LAYER_CAUSES[reason]
        message = f"{message}; with other schemes by the recipe ({remedy}) {share:.0%} of it would go"
        evidence["share"] = share
    else:
        cause = "accumulated"
        remedy = (
            "finer ranges everywhere, corrected biases, fewer rounding steps; train on (intact8.train), or leave the "
            "noisiest layers float"
        )
    return [Finding(cause, NETWORK, severity(unexplained), message, remedy, noise=unexplained, evidence=evidence)]


def tolerated(findings: Sequence[Finding], loss: float, tolerance: float, *, divided: bool) -> tuple[Finding, ...]:
    """Make notes of findings that say no more than that noise adds up, where the metric loses no more than allowed, or
    that one half of the data, which was ``divided`` here, does not cover the other's ranges: that is nobody's fault, so
    that it comes behind what is one where the metric loses more."""
    summed = [f for f in findings if f.cause == "accumulated" and f.severity == "warning"]
    halves = [f for f in findings if divided and f.cause == "unrepresentative" and f.place == CALIBRATION]
    mild = [f for f in (*summed, *halves) if f.severity != "note" and loss <= tolerance]
    last = [f for f in halves if f.severity != "note" and loss > tolerance]
    others = [f for f in findings if all(f is not m for m in (*mild, *last))]
    behind = max((i + 1 for i, f in enumerate(others) if f.severity != "note"), default=0)
    notes = (replace(f, severity="note", message=f"{f.message}; {HARMLESS}") for f in mild)
    return (*others[:behind], *(replace(f, severity="warning") for f in last), *notes, *others[behind:])


def ordered(findings: list[Finding], order: list[str]) -> tuple[Finding, ...]:
    """Sort findings: first what is wrong with the float network, causes before consequences, then the worst first.

    Args:
        findings: all findings.
        order: names of operations in the order in which they run.
    """
    places = {name: i for i, name in enumerate(order)}
    stale = [f for f in findings if f.cause == "stale_range" and f.severity == "error"]
    changed = min((places.get(f.place, len(places)) for f in stale), default=len(places))
    loudest = max((f.noise for f in stale), default=0.0)

    def follows(finding: Finding) -> bool:
        return finding.cause == "stale_batch_norm" and places.get(finding.place, -1) > changed

    def key(finding: Finding) -> tuple[int, bool, float, int, int]:
        noise, place = finding.noise, 0
        rank = BY_THE_WAY.index(finding.cause) if finding.cause in BY_THE_WAY else -1
        if finding.cause in LEFT and finding.severity == "note":
            noise = 0.0
        if finding in stale:  # the first of them is where the network was changed
            noise, place = loudest, places.get(finding.place, len(places))
        grave = SEVERITIES.index(finding.severity)
        shown = finding.cause in IN_WEIGHTS or "terms" in finding.evidence  # whatever is rounded
        return grave, not shown, -noise, rank, place

    first = [f for f in findings if f.severity == "error" and f.cause in FLOAT_CAUSES and not follows(f)]
    if any(f.severity == "error" and f.place == CALIBRATION for f in findings):  # weights are equalized by these data
        first = [f for f in first if "right" not in f.evidence]
    return (*causes_first(first, order), *sorted((f for f in findings if f not in first), key=key))
