"""Causes that are faults of the float network itself, and which of several faults comes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.trials import COMPENSATING

SURELY = 100.0
"""Times the usual size from which a channel has exploded for sure: one of a sound network reached 31."""

LEAST = 64
"""Weights below which a layer has no usual size."""

FEW_NUMBERS, COARSE = "few numbers", 1e-2
"""What weights were rounded to that hold few different numbers, and the noise over signal of such weights from which
that explains a network that is wrong: rounding to 8 bits makes a thousandth of it."""

PROOF = frozenset({"bound", "copies", "lengths", "numbers", "vanished", "zeros"})
"""Entries of the evidence of weights that no training leaves behind."""

OF_REPAIRS = frozenset({"recovers", "accuracy", "explains", "weights"})
"""Entries of the evidence that a repair alone gives: without others nothing shows the fault but that it helps."""

BEFORE_LAYERS = (
    "not_finite",
    "training_mode",
    "rounded_weights",
    "float_mismatch",
    "diverged_training",
    "batch_dependence",
)
OF_LAYERS = (
    "exploded_weight",
    "exploded_channel",
    "wrong_weights",
    "stale_batch_norm",
    "dead_channels",
    "wrong_setting",
    "wrong_scale",
)
FLOAT_CAUSES = (*BEFORE_LAYERS, *OF_LAYERS, "float_network_wrong")
"""Causes that are faults of the float network, in the order in which one leads to the next."""

USABLE = ("training_mode", "dead_channels", "batch_dependence")
"""Faults of the float network with which it may still be of use, once it is in evaluation mode."""

ALIKE, MOST, NEARLY_ALL, SAME = 0.1, 0.5, 0.8, 0.05
"""Repairs are alike that differ by less than this share of what the best one takes away; and the shares of the loss
that are most of it, and nearly all; and the share of right answers by which they may be apart by chance."""

ALREADY_WRONG = "the float network is already wrong"
TRAIN_ON = f"{ALREADY_WRONG}: go back to the last good checkpoint"


def refused(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what a verdict says instead where the float network is already wrong, which no recipe repairs."""
    first = findings[0] if findings else None
    if first is None or first.severity != "error" or first.cause not in FLOAT_CAUSES:
        return {}
    if first.cause in USABLE and "vanished" not in first.evidence:
        return {}
    if "right" in first.evidence:  # something is far too large, and the answers are right
        return {}
    reason = f"do not quantize this: the float network is already wrong ({first.place}: {first.cause})"
    return {"pays": False, "reason": reason}


def repaired_score(known: Iterable[Finding]) -> float:
    """Return the score that the best repair among findings gives; 0 without one."""
    return max((f.evidence["accuracy"][1] for f in known if "recovers" in f.evidence), default=0.0)


def causes_first(findings: Sequence[Finding], order: Sequence[str]) -> list[Finding]:
    """Return the faults of the float network, each before what follows from it.

    What concerns the whole comes before single layers, and an earlier layer before a later one, but the layer first
    that was put right and gave the answers back, unless it may have made up for what an earlier one does. A network
    that is wrong and has faults in several layers is wrong as a whole; with one of them, or one that gives most of the
    answers back, that is why.

    Args:
        findings: errors whose cause is one of FLOAT_CAUSES.
        order: names of operations in the order in which they run.
    """
    places = {name: i for i, name in enumerate(order)}
    dead = {f.place: f.evidence.get("share", 1.0) > NEARLY_ALL for f in findings if f.cause == "dead_channels"}

    others = any(f.cause in OF_LAYERS and f.cause != "dead_channels" for f in findings)

    def partly(finding: Finding) -> bool:
        """Where a whole layer is dead, a part of another is no cause, nor are channels that squeeze all others."""
        if finding.cause != "dead_channels" or dead[finding.place]:
            return False
        return any(dead.values()) or (others and "of means" in finding.evidence and "recovers" not in finding.evidence)

    layers = {f.place for f in findings if f.cause in OF_LAYERS and not partly(f)}
    shown = [f for f in findings if f.cause in ("exploded_weight", "exploded_channel", "dead_channels")]
    first, grown = min((places.get(f.place, len(places)) for f in shown), default=len(places)), bool(shown)
    recovers = max((f.evidence.get("recovers", 0.0) for f in findings), default=0.0)
    seen = any(f.cause == "wrong_weights" and "recovers" not in f.evidence for f in findings)
    apart = [f for f in findings if not (grown and f.cause in COMPENSATING)]  # a scale may make up for what has grown
    explained = any("recovers" in f.evidence for f in apart)
    told = any({"explains", "healed"} & f.evidence.keys() for f in findings)
    stale = [f for f in findings if f.cause == "stale_batch_norm" and "recovers" not in f.evidence]
    printed, earliest = bool(stale), min((places.get(f.place, len(places)) for f in stale), default=len(places))
    whole = recovers <= MOST and (len(layers) > 2 or explained) and not seen and not told
    given = {f.place == NETWORK: f.evidence["accuracy"][1] for f in findings if "accuracy" in f.evidence}
    # It is the inputs that come first of all, unless a layer put right makes a batch norm see what it saw in training.
    fits = any("fits" in f.evidence and f.place != NETWORK for f in findings)
    whole |= True in given and given[True] > given.get(False, 0.0) - SAME and not fits
    # In most layers, or inputs with which the first batch norm sees what it saw in training.
    whole |= any(
        f.cause == "float_network_wrong" and {"layers", "fits", "batch_norm", "looks"} & f.evidence.keys()
        for f in findings
    )
    whole &= not any(PROOF & f.evidence.keys() for f in findings)
    whole |= any("gains" in f.evidence for f in findings)  # those of all norms, from which all else follows

    def key(finding: Finding) -> tuple[int, int, int]:
        kind = FLOAT_CAUSES.index(finding.cause)
        if partly(finding):
            return 1, 2 * len(places), kind
        if finding.cause in BEFORE_LAYERS:
            return 0, kind, 0
        if finding.cause in OF_LAYERS:
            told = "recovers" in finding.evidence and finding.cause not in COMPENSATING
            # Behind what the results themselves show, a repair that leaves a part may be making up for it.
            told &= places.get(finding.place, 0) <= first or finding.evidence.get("recovers", 0.0) > NEARLY_ALL
            enough = MOST if "few" in finding.evidence else NEARLY_ALL  # few weights look like it by chance
            if {*PROOF, "fits"} & finding.evidence.keys() and not told and recovers <= enough:
                return 1, -2, places.get(finding.place, len(places))  # what weights and statistics show needs no guess
            # What weights and results themselves show comes before a scale, unless that gives nearly all back.
            part = printed and recovers <= NEARLY_ALL and "weights" not in finding.evidence
            inferred = finding.cause == "wrong_scale" and (grown or part)
            # Of another setting before all of them, statistics that do not fit are what follows.
            follows = finding.cause == "wrong_setting" and places.get(finding.place, len(places)) < earliest
            inferred |= told and printed and recovers <= MOST and not follows
            told &= not inferred
            return 1, -1 if told else len(places) if inferred else places.get(finding.place, len(places)), kind
        return (0 if whole else 2), kind, 0

    return sorted(findings, key=key)
