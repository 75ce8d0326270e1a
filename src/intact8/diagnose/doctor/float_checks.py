"""Whether the float network is wrong as a whole, by its answers, and what these prove of single findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intact8.capture.graph import Graph
from intact8.diagnose.doctor.answers import ABOVE_CHANCE, SURELY_RIGHT, Answers
from intact8.diagnose.doctor.float_causes import (
    COARSE,
    MOST,
    NEARLY_ALL,
    OF_LAYERS,
    OF_REPAIRS,
    PROOF,
    SAME,
    TRAIN_ON,
    repaired_score,
)
from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.statistics_checks import layer_before
from intact8.diagnose.doctor.trials import RECOVERS
from intact8.simulation.simulation import Simulation

OVERCONFIDENT = 0.15
"""Mean probability of the answers over the share of right ones from which the network is not what was trained, or sees
other inputs than in training. Trained networks, overfitted ones among them, stay below 0.1 on data like theirs."""

TOO_LARGE = 4.0
"""Times as large as suits the labels, a power of two, beyond which scores are not those of training. Most sound
networks stay below 2; a recommender that had learned its samples by heart came to 4."""

OTHER_UNITS = 0.06
"""Share of the variance that answers explain in other units only, from which they are not what was trained: least
squares leave no scale and no mean to be corrected. Twelve sound networks stay below 0.021."""

OFF_BOTH = (
    "take off the bias what all its results have in common, and its share off the biases behind; or leave it float"
)
"""What to do about a channel that is an offset."""

TAKEN_BACK = 'smooth = "auto" (rescale channels into the next weights), or look for what wrote these weights'
"""What to do about something large with which float answers are right, as weights behind take it back."""

FORETOLD_INPUTS = "none where labels are meant to be its inputs, as of a language model; else give the right answers"
"""What to do about labels that are the inputs."""

BY_DESIGN = frozenset({"bound", "lengths", "zeros", "tied", "unread"})
"""Entries of the evidence of layers that a network which answers well may have by design."""

ENOUGH = 32
"""Samples from which it is no accident that all have the same answer."""


def wrong_network(
    sim: Simulation, answers: Answers | None, samples: Samples, classes: float | None, known: Sequence[Finding] = ()
) -> list[Finding]:
    """Return the finding of a float network that answers no better than guessing: a note where no labels prove it.

    A network that is right far less often than it is sure is wrong, too, or is shown other inputs than in training.

    Args:
        sim: a simulation of the network.
        answers: how often it is right in float, and how sure; None where no class indices are known.
        samples: the samples that were answered.
        classes: effective number of classes among its answers; None where outputs are not classes.
        known: what was found in single layers; where one of them gives answers back, inputs may do so as well.
    """
    message, severity, evidence = "", "error", {}
    remedy = f"{TRAIN_ON}; see that inputs are prepared, and classes numbered, as in training"
    if answers is not None:
        targets, chance = answers.targets, answers.targets.chance()
        repaired = repaired_score(known)
        right = f"in float it {targets.said(answers.score)} of {len(targets)} samples"
        if answers.guesses:
            message = f"{right}; guessing gives {chance:.1%}" if targets.classes else f"{right}: it foretells nothing"
        elif answers.confidence - answers.score > OVERCONFIDENT:
            message = f"{right}, and sure of {answers.confidence:.1%}"
            severity = "error" if answers.confidence - answers.score > 2 * OVERCONFIDENT else "warning"
        elif not targets.classes and answers.renumbered > max(answers.score + OTHER_UNITS, repaired):
            message = f"{right}, and it {targets.said(answers.renumbered)} with its answers in other units"
            severity = "error" if answers.renumbered - answers.score > 2 * OTHER_UNITS else "warning"
        elif answers.too_large >= TOO_LARGE:
            message = f"{right}, and its scores are {answers.too_large:.0f} times as large as fits that"
            severity = "warning" if answers.too_large > TOO_LARGE else "note"
        # Answers that are right but for their units prove that dead channels do no harm.
        units_only = not targets.classes and answers.reaches(answers.renumbered, SURELY_RIGHT)
        shown = any(
            f.severity == "error"
            and f.cause in OF_LAYERS
            and f.cause not in ("wrong_scale", *(["dead_channels"] if units_only else []))
            and f.evidence.keys() - OF_REPAIRS
            for f in known
        )
        other = 0.0 if shown and not targets.classes else answers.renumbered  # units make up for what is seen elsewhere
        if (message or repaired) and other > max(answers.score + ABOVE_CHANCE, repaired - SAME * targets.classes, MOST):
            how = "its classes numbered otherwise" if targets.classes else "its answers in other units"
            message = message if message and how not in message else right
            message, severity = f"{message}; with {how} it {targets.said(other)}", "error"
            evidence = {"accuracy": (answers.score, other)}
        elif any(f.cause == "float_network_wrong" and {"recovers", "fits", "looks"} & f.evidence.keys() for f in known):
            message = ""  # it is said
    if not message and answers is not None and answers.targets.ahead:
        message = (
            f"the labels are its inputs, of which it foretells the next ones: moved by one place, "
            f"{right.removeprefix('in float ')}"
        )
        severity, remedy = "note", FORETOLD_INPUTS
    told = any("recovers" in f.evidence or f.severity == "error" for f in known)
    if not message and answers is not None and answers.mostly_lost and not told:
        message, severity = f"{right}, less than half of what there is to learn", "note"
    numbers = answers is not None and not answers.targets.classes
    if not message and not numbers and classes is not None and classes < 1.01 and len(samples) >= ENOUGH:
        message, severity = f"in float it gives the same answer to all of {len(samples)} samples", "note"
    return [Finding("float_network_wrong", NETWORK, severity, message, remedy, evidence=evidence)] if message else []


def dead_before_norms(graph: Graph, known: Sequence[Finding]) -> list[Finding]:
    """Add to findings of dead channels which batch norm reads them next where its statistics are surely off.

    These were collected while the channels were alive. Where the answers are right all the same, it is no finding of
    its own.
    """
    stale = {f.place: f for f in known if f.cause == "stale_batch_norm"}
    off = [node for node in graph if node.name in stale and node.inputs]
    read = {layer_before(graph, graph.nodes[node.inputs[0]]): node.name for node in off}
    out, explained = [], set()
    for finding in known:
        behind = stale.get(read.get(finding.place, "")) if finding.cause == "dead_channels" else None
        if behind is not None:
            finding = replace(finding, evidence={**finding.evidence, "before": behind.place})
            if behind.severity != "error":
                message = f"{finding.message}, though they did in training: {behind.message}"
                finding = replace(finding, severity="warning", message=message)
                explained.add(behind.place)
        out.append(finding)
    return [f for f in out if f.cause != "stale_batch_norm" or f.place not in explained]


def proven(findings: Sequence[Finding], verdict: Sequence[Finding], answers: Answers | None) -> list[Finding]:
    """Weigh what the weights show by what the labels say, and add that.

    Args:
        findings: what was found so far.
        verdict: whether the network as a whole is wrong; see :func:`wrong_network`.
        answers: how it answers. Where that is known and right, dead channels are worth a note, unless they
            explain what is wrong behind them; where it is wrong, weights that were never trained are an error, and
            statistics that are suspicious.
    """
    wrong = bool(verdict) or any("recovers" in finding.evidence for finding in findings)
    repaired = {finding.place for finding in findings if "recovers" in finding.evidence}
    # Statistics that are not those of what a layer makes say the same as its weights.
    unlike = {f.place for f in findings if f.cause == "stale_batch_norm" and f.severity == "error"}

    def harmless(finding: Finding) -> bool:
        """With right answers, dead channels are, and a layer that lies as initialized by design."""
        if finding.cause == "dead_channels":
            whole = finding.evidence.get("share", 0.0) > NEARLY_ALL
            return "before" not in finding.evidence and not (whole and answers and not answers.surely_right)
        if "tied" in finding.evidence:  # one parameter in training, saved twice
            return answers is None or not answers.mostly_lost
        by_design = BY_DESIGN & finding.evidence.keys() and "unlike" not in finding.evidence
        return bool(by_design) and answers is not None and answers.surely_right

    sure = {f.place for f in findings if PROOF & f.evidence.keys() and "few" not in f.evidence}
    sure |= {f.place for f in findings if f.cause == "wrong_setting" and f.evidence.get("recovers", 0.0) > RECOVERS}
    shown_elsewhere = any(f.severity == "error" and f.cause in OF_LAYERS for f in findings)
    out = []
    for finding in findings:
        if finding.evidence.get("untouched") and finding.place not in repaired:
            alone = bool(verdict) and answers is not None and not repaired and not shown_elsewhere
            suspects = {f.place for f in findings if f.cause in OF_LAYERS and f.severity != "note"} - {finding.place}
            if not finding.evidence.get("alone"):
                out.append(replace(finding, severity="error") if alone else finding)
            elif alone and not suspects and answers and (answers.guesses or answers.too_large >= TOO_LARGE):
                out.append(replace(finding, severity="error" if answers.guesses else "warning"))
            continue
        if wrong and "few" in finding.evidence and sure - {finding.place}:  # a few weights look like it by chance
            out.append(finding)
            continue
        suspicious = finding.cause in ("wrong_weights", "float_network_wrong", "stale_batch_norm")
        suspicious |= finding.evidence.get("rounding", 0.0) > COARSE or {"unread", "alike"} <= finding.evidence.keys()
        diverged = answers is not None and "dead layers" in finding.evidence and not answers.surely_right
        shown = bool(PROOF & finding.evidence.keys()) and finding.place in unlike
        if diverged or shown or (wrong and answers is not None and suspicious):
            finding = replace(finding, severity="error")
        elif wrong and "unread" in finding.evidence:
            finding = replace(finding, severity="warning")
        elif not wrong and answers is not None and harmless(finding) and finding.evidence.keys() == {"unread"}:
            continue  # there for training only
        elif not wrong and (answers is not None or "tied" in finding.evidence) and harmless(finding):
            finding = replace(finding, severity="note")
        elif not wrong and answers is None and finding.cause == "dead_channels" and finding.severity == "warning":
            finding = replace(finding, severity="note")  # some are dead in any network
        elif not wrong and answers is not None and finding.cause in ("exploded_weight", "exploded_channel"):
            message = f"{finding.message}; in float the network {answers.targets.said(answers.score)} all the same"
            evidence = {**finding.evidence, "right": answers.score}
            finding = replace(finding, message=message, remedy=TAKEN_BACK, evidence=evidence)
            if "offset" in finding.evidence:
                message = f"{message}: its values hardly differ, and biases behind take back what they have in common"
                finding = replace(finding, cause="large_bias", message=message, remedy=OFF_BOTH)
        out.append(finding)
    return [*out, *verdict]
