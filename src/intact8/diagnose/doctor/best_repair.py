"""The repair that names the operation that is wrong, of all that give answers back."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.answers import ABOVE_CHANCE, ABOVE_MEAN, Answers
from intact8.diagnose.doctor.consumers import Users
from intact8.diagnose.doctor.float_causes import ALIKE, ALREADY_WRONG, MOST, NEARLY_ALL, SURELY
from intact8.diagnose.doctor.float_network import FloatNetwork
from intact8.diagnose.doctor.network_checks import DEAD_SHARE
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.statistics_checks import old_statistics
from intact8.diagnose.doctor.structural_repairs import (
    SQUARED,
    UNCHANGED,
    function_of,
    last_part,
    owner_of,
    source_of,
    word_of,
)
from intact8.diagnose.doctor.trials import (
    COMPENSATING,
    RECOVERS,
    WORSE,
    Repaired,
    answers_with,
    standard_errors,
    tried_repairs,
)
from intact8.diagnose.doctor.weight_repairs import SCRAMBLED
from intact8.simulation.simulation import Simulation

ALL_BUT_A_TENTH = 0.9
"""Share of the loss that other inputs must take away where channels are dead: far larger ones wake many of them."""

ALL_OF_IT = 0.98
"""Share of the loss that the right repair takes away, and others that make up for a fault seldom do."""

NORMALIZED = 2.0
"""Standard deviation of inputs above which they are not as normalizing leaves them."""


def put_right(
    network: FloatNetwork,
    sim: Simulation,
    answers: Answers | None,
    samples: Samples,
    known: Sequence[Finding],
    until: float = math.inf,
) -> list[Finding]:
    """Return what is known of single layers, with what the best repair shows: it names the operation that is wrong.

    Args:
        network: the float network.
        sim: a simulation of it.
        answers: how it answers in float; None where no class indices are known, and nothing can be tried.
        samples: the samples that were answered.
        known: findings of single layers.
        until: time (``time.monotonic()``) from which nothing more is tried.
    """
    tried = [] if answers is None else tried_repairs(sim, samples, answers.targets, until)
    helping = [] if answers is None else _helping(sim, answers, known, tried)
    if answers is None or not helping:
        return list(known)
    best, prepared = _most_likely(sim, answers, samples, known, helping)
    while not _better_by_metric(sim, samples, answers, best) or _only_hides(sim, samples, answers, best):
        helping = [r for r in helping if r is not best]
        if not helping:
            return list(known)
        best, prepared = _most_likely(sim, answers, samples, known, helping)
    old = old_statistics(network, sim, answers, samples, known, best.repair)
    if old is not None:
        return old
    cause, place = best.repair.cause, NETWORK if prepared else _place(sim, best.repair)
    before, after = (answers.targets.said(score) for score in best.accuracy)
    message = (
        f"in float the network {before} of {len(samples)} samples, and it {after} if {best.repair.text}; that takes "
        f"away {best.share:.0%} of its loss"
    )
    remedy = f"{ALREADY_WRONG}: compare this operation, its settings and its parameters with those of training"
    if prepared and best.repair.node.name in sim.graph.outputs:
        remedy = "number, order and place labels as in training, here and wherever answers are read"
    elif prepared:
        remedy = "prepare inputs as in training, here and wherever the network runs"
    evidence: dict[str, Any] = {"recovers": best.share, "accuracy": best.accuracy}
    if best.repair.cause == "wrong_scale" and best.repair.tensors:  # of weights that are unlike all others
        evidence["weights"] = True
    if answers.guesses and answers.reaches(best.accuracy[1], ABOVE_CHANCE) and cause not in COMPENSATING:
        evidence["explains"] = True
    same = next((f for f in known if (f.cause, f.place) == (cause, place)), None)
    if same is None and cause in ("exploded_channel", "wrong_scale"):  # so far off that the whole layer is constant
        dead = [f for f in known if f.cause == "dead_channels" and f.place == place]
        same = next((f for f in dead if f.evidence.get("share", 0.0) > NEARLY_ALL), None)
    if same is None:
        severity = "error" if best.share > RECOVERS or "explains" in evidence else "warning"
        return [*known, Finding(cause, place, severity, message, remedy, evidence=evidence)]
    told = replace(same, severity="error", message=f"{same.message}; {message}", evidence={**same.evidence, **evidence})
    return [told if f is same else f for f in known]


def _place(sim: Simulation, repair: Repair) -> str:
    """Return the name of the operation that is put right: of another activation its own, not that of the layer."""
    node = sim.graph.nodes.get(repair.node.name, repair.node)
    own = last_part(sim, node) if repair.text.startswith("it computes") else None
    if own is None or own.op not in ACTIVATIONS or not re.fullmatch(rf"{re.escape(own.module)}(_\d+)?", own.name):
        return owner_of(sim, node.name)
    return own.module  # of several calls as of one


ACTIVATIONS = ("relu", "leaky_relu", "unary", "clamp", "table", "prelu")
"""Operations of captured graphs that may be modules of their own, and become a part of the layer before them."""


def _helping(sim: Simulation, answers: Answers, known: Sequence[Finding], tried: Sequence[Repaired]) -> list[Repaired]:
    """Return the repairs that help, the best first, without those that make up for what is known."""
    errors = {(f.place, f.cause) for f in known if f.severity == "error"}
    direct = any(cause in ("exploded_weight", "exploded_channel") for _, cause in errors)
    least = 1.0 if direct else ALL_BUT_A_TENTH if any(cause == "dead_channels" for _, cause in errors) else 0.0
    helping = [r for r in tried if r.helps]
    if not answers.targets.classes:  # a loss may shrink much of numbers that explain nothing, and still do
        helping = [r for r in helping if r.accuracy[1] > ABOVE_MEAN]
    if not helping and not answers.guesses:
        helping = [r for r in tried if r.surely_a_part] or [r for r in tried if r.half_of_it and not errors]
    # Inputs make no weights large, and channels dead only where other inputs give nearly all of the answers back.
    helping = [
        r for r in helping if r.repair.cause != INPUTS_ARE_WRONG or r.share > least or (not direct and _whole(r))
    ]
    # What is put right in several places at once gives answers back; without that it only bounds what has exploded.
    helping = [r for r in helping if not r.repair.also or answers.reaches(r.accuracy[1], ABOVE_CHANCE)]
    if any(f.evidence.get("ratio", 0.0) > SURELY for f in known if f.cause in ("exploded_weight", "exploded_channel")):
        # What bounds results, or divides channels into groups, makes up for what has exploded.
        helping = [r for r in helping if not _bounds(r.repair) and r.repair.node.op != "group_norm"]
    stale = {f.place for f in known if f.cause == "stale_batch_norm"}
    if stale:  # another scale would be one more batch norm whose statistics do not fit
        users = sim.graph.users()
        helping = [r for r in helping if not (_rescales(r) and _fits_behind(sim.graph, users, r.repair, stale))]
    # Where gains and biases are 0, it is these; without an activation the channels that are left say more, there and
    # behind.
    gone = {f.place for f in known if f.cause == "dead_channels" and _zeroed(sim, f.place)}
    helping = [r for r in helping if not gone or r.share > MOST]
    return [r for r in helping if r.repair.node.name not in gone or r.repair.cause != "wrong_setting"]


def _only_hides(sim: Simulation, samples: Samples, answers: Answers, found: Repaired) -> bool:
    """Return whether a weight whose numbers are taken in another order gives no more back than results of 0."""
    if SCRAMBLED not in found.repair.text:
        return False
    parts = [replace(part, tensors={}, gain=0.0, also=()) for part in found.repair.parts()]
    hidden = replace(parts[0], also=tuple(parts[1:]))
    _, (after,) = answers_with(sim, samples, [hidden], answers.targets)
    if after is None:
        return False
    losses = answers.targets.losses(after)
    return not standard_errors(losses - found.losses) > WORSE


def _better_by_metric(sim: Simulation, samples: Samples, answers: Answers, found: Repaired) -> bool:
    """Return whether the user's metric, if there is one, is no lower with a repair."""
    if answers.metric is None:
        return True
    before, (after,) = answers_with(sim, samples, [found.repair], answers.metric)
    return after is None or not answers.metric.of_batches(after) < answers.metric.of_batches(before)


def _most_likely(
    sim: Simulation, answers: Answers, samples: Samples, known: Sequence[Finding], helping: Sequence[Repaired]
) -> tuple[Repaired, bool]:
    """Return the repair that names the fault, of those that help, and whether it is that inputs are prepared wrongly.

    Some of them make up for other faults, and of what gives as much back one thing is likelier than another.
    """
    enough = helping[0].loss[1] + ALIKE * (helping[0].loss[0] - helping[0].loss[1])
    alike = [r for r in helping if r.loss[1] <= enough]
    if helping[0].repair.cause == "wrong_scale":  # which makes up for other faults in part, so that theirs is not worse
        alike = [r for r in alike if _has_grown(r) or not r.surely_worse(helping[0])]
    best = next((r for r in alike if r.repair.cause not in COMPENSATING and not r.repair.least), None)
    best = best or next((r for r in alike if r.repair.cause == "wrong_scale" and r.repair.tensors), helping[0])
    if not answers.targets.classes and best.repair.cause == "wrong_scale":  # units of the answers, as likely
        last = [r for r in helping if r.repair.cause == "wrong_scale" and _is_last(sim.graph, r.repair.node)]
        best = next((r for r in last if not r.surely_worse(best)), best)
    if best.repair.also:  # of what gives as much back, the least that is put right, and of what there is already
        fewer = [r for r in alike if r.repair.cause == best.repair.cause and not r.surely_worse(best)]
        best = min([best, *fewer], key=lambda r: (r.repair.inserted, len(r.repair.also)))
    # A function has no scale that could be wrong, but layers beside it have.
    if best.repair.node.op == "table" and best.repair.cause == "wrong_scale":
        best = next((r for r in alike if r.repair.cause == best.repair.cause and r.repair.node.params), best)
    # They are prepared wrongly more often than layers are.
    # Classes numbered otherwise give any answers back that go by pairs, as those of images with red for blue do.
    prepared = [r for r in helping if r.repair.cause == INPUTS_ARE_WRONG and (r in alike or r.share > MOST)]
    renumbered = [r for r in prepared if r in alike and r.repair.tensors]
    inputs = next((r for r in prepared if not r.repair.tensors and (renumbered or r in alike)), None)
    inputs = inputs or next(iter(renumbered), None)
    if inputs is None and best.repair.cause == "wrong_scale":  # as good as another scale of inputs that it reads
        source = next((source_of(sim.graph, name) for name in best.repair.node.inputs[:1]), "")
        wide = source in _wide(sim.graph, samples)
        inputs = next((r for r in prepared if wide and r.repair.node.name == source and r.surely_a_part), None)
    errors = {(f.place, f.cause) for f in known if f.severity == "error" or f.cause == "stale_batch_norm"}  # it may be
    suspects, order = {place for place, _ in errors}, list(sim.graph.nodes)

    def suspected(found: Repaired) -> tuple[int, bool]:
        place = found.repair.node.name
        return order.index(place), (place, found.repair.cause) not in errors

    changed = [r for r in alike if r.repair.inserted <= best.repair.inserted and r.repair.node.name in suspects]
    suspect = min(changed, key=suspected, default=best)
    made_up = suspect.repair.cause in COMPENSATING and best.repair.cause not in COMPENSATING
    before = _comes_before(sim.graph, best.repair, suspect.repair)
    whole = best.share > ALL_OF_IT and best.share - suspect.share > 1 - ALL_OF_IT
    explained = before and whole and best.repair.cause not in COMPENSATING  # statistics change with it
    apart = suspect.repair.cause == "stale_batch_norm" and not before
    # What makes up for a fault comes behind it.
    if not explained and (not made_up or apart or suspected(suspect) < suspected(best)):
        best = suspect
    stale = {place for place, cause in errors if cause == "stale_batch_norm"}
    squared = [r for r in helping if SQUARED in r.repair.text and stale & r.repair.names()]
    deviations = [r for r in squared if not r.surely_worse(helping[0])]
    if deviations:  # nothing else is put right by it, where the variances are not those of what it reads
        return deviations[0], False
    weak = best.repair.cause in (*COMPENSATING, INPUTS_ARE_WRONG)
    weak &= inputs is not None and not inputs.repair.least  # another scale of inputs makes up for much, too
    if inputs is not None and (weak or not inputs.surely_worse(best)):
        best = inputs
    return best, best is inputs


def _wide(graph: Graph, samples: Samples) -> list[str]:
    """Return the inputs whose numbers vary more than those that were normalized once."""
    given = zip(graph.inputs, samples.batches[0].inputs, strict=True)
    return [name for name, x in given if x.is_floating_point() and float(x.std()) > NORMALIZED]


def _rescales(found: Repaired) -> bool:
    """Return whether a repair gives results or inputs another scale, and no more."""
    return found.repair.cause == "wrong_scale" or (found.repair.cause == INPUTS_ARE_WRONG and found.repair.least > 0)


def _fits_behind(graph: Graph, users: Users, repair: Repair, stale: Collection[str]) -> bool:
    """Return whether batch norms read next what is put right, and their statistics are those of what they read."""
    pending, norms, seen = [repair.node.name], set[str](), {repair.node.name}
    while pending:
        for reader in (graph.nodes[n] for n in users[pending.pop()] if n not in seen):
            seen.add(reader.name)
            if "bn.weight" in reader.params or reader.op == "scale_shift":
                norms.add(reader.name)
            else:
                pending.append(reader.name)
    return bool(norms) and norms.isdisjoint(stale)


def _whole(found: Repaired) -> bool:
    """Return whether inputs in another form, and not only of another size, put nearly all right."""
    return not found.repair.least and found.share > NEARLY_ALL and found.mended > NEARLY_ALL


def _has_grown(found: Repaired) -> bool:
    """Return whether a repair bounds what the network shows has grown, and that gives nearly all back."""
    return found.repair.cause in ("exploded_weight", "exploded_channel") and found.share > NEARLY_ALL


def _zeroed(sim: Simulation, place: str) -> bool:
    """Return whether a part of the channels of a layer's batch norm has gains and biases of 0."""
    params = sim.graph.nodes[place].params if place in sim.graph.nodes else {}
    held = [sim.tensors[params[role]] for role in ("bn.weight", "bn.bias") if role in params]
    return len(held) == 2 and float(((held[0] == 0) & (held[1] == 0)).double().mean()) >= DEAD_SHARE


def _is_last(graph: Graph, node: Node) -> bool:
    """Return whether a layer's results are the first output, in another form at most."""
    at = graph.nodes[graph.outputs[0]]
    while at is not node and len(at.inputs) == 1 and (at.moves or at.op in UNCHANGED):
        at = graph.nodes[at.inputs[0]]
    return at is node


def _bounds(repair: Repair) -> bool:
    """Return whether a repair gives an operation an activation with bounded results."""
    chain = function_of(repair.behind or repair.node) if repair.cause == "wrong_setting" else []
    return bool(chain) and word_of(chain[-1:]) in ("clamp", "tanh", "sigmoid")


def _comes_before(graph: Graph, repair: Repair, norm: Repair) -> bool:
    """Return whether a batch norm reads what an operation makes that is put right: else its statistics know nothing."""
    found, pending = {norm.node.name}, list(norm.node.inputs[:1])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += graph.nodes[name].inputs
    return bool(found & repair.names())
