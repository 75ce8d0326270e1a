"""Batch norms whose statistics are not those of their inputs: what is behind it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile

import torch
from torch import Tensor, nn

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.answers import ABOVE_CHANCE, Answers
from intact8.diagnose.doctor.exploded import weight_finding
from intact8.diagnose.doctor.fitting import fitting
from intact8.diagnose.doctor.float_causes import PROOF, TRAIN_ON, repaired_score
from intact8.diagnose.doctor.float_network import FloatNetwork
from intact8.diagnose.doctor.network_checks import stale_batch_norm
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.doctor.trials import A_PART, WORSE, answered_with, standard_errors
from intact8.simulation.simulation import Simulation

HEALED = 0.4
"""Share of what a score lacks that new statistics of batch norms leave at most where they were at fault."""


def behind_statistics(
    known: Sequence[Finding], network: FloatNetwork, sim: Simulation, answers: Answers | None, samples: Samples
) -> list[Finding]:
    """Find out what is wrong where a batch norm's statistics are not those of its inputs.

    Where one thing put right before it makes them fit, it is that. Else new statistics repair stale ones, and wrong
    weights they do not: where the right answers are known, that tells. Of the first layer it may be the inputs, too;
    and where new statistics of another norm help, they are old in general.
    """
    out, graph = [], sim.graph
    for finding in known:
        node = graph.nodes.get(finding.place)
        suspect = finding.cause == "stale_batch_norm" and "batch_norm" in finding.evidence
        # Statistics that were never collected are a proof, and so is what new ones of all give back.
        suspect = suspect and not {"initial", "healed"} & finding.evidence.keys()
        if node is None or not suspect:
            out.append(finding)
            continue
        name, fit = finding.evidence["batch_norm"], fitting(sim, samples, finding.place)
        if fit is not None and answers is not None:
            changed = answered_with(sim, samples, fit[0], answers.targets)
            # Statistics of other inputs make them fit as well; only the right inputs give right answers.
            prepared = fit[0].cause == INPUTS_ARE_WRONG
            if prepared and (changed is None or not answers.improved_by(answers.targets.score(changed))):
                fit = None
            elif changed is not None:
                given = _output(_renewed(network, samples, [name]), samples, answers.targets)
                # What makes them fit in part, as a factor would, leaves more of the loss than new statistics do.
                fit = None if _surely_better(given, changed, answers.targets) else fit
        if fit is not None:
            repair, before, after = fit
            message = (
                f"if {repair.text}, the inputs of batch norm {name} are those of training again: off by {after:.2f}, "
                f"not {before:.2f} standard deviations"
            )
            place = NETWORK if repair.cause == INPUTS_ARE_WRONG else repair.node.name
            if all((f.cause, f.place) != (repair.cause, place) for f in known):
                out.append(Finding(repair.cause, place, "error", message, TRAIN_ON, evidence={"fits": after}))
            continue
        place = layer_before(graph, node)
        renewed_score = 0.0 if answers is None else _score(_renewed(network, samples, None), samples, answers)
        # Where new statistics take answers away that are right, the samples have extremes, and the old ones fit.
        spoilt = answers is not None and not answers.mostly_lost and renewed_score < answers.score - ABOVE_CHANCE
        if answers is not None and (spoilt or (answers.surely_right and not answers.improved_by(renewed_score))):
            message = f"{finding.message}; in float the network {answers.targets.said(answers.score)} all the same"
            out.append(replace(finding, severity="note", message=message))  # it is not what costs accuracy
            continue
        if answers is not None and _old_everywhere(sim, renewed_score, answers):
            finding = replace(finding, evidence={**finding.evidence, "healed": True})
        others = [f for f in known if f.cause == "stale_batch_norm" and "recovers" in f.evidence and f is not finding]
        # In the first layer, of new statistics that give nothing back, the inputs are as likely where less is lost.
        first = _reads_input(graph, graph.nodes[place])
        repaired = repaired_score(known)
        if others or answers is None or not (answers.mostly_lost or (first and not answers.improved_by(renewed_score))):
            out.append(finding)
            continue
        renewed, most = _renewed(network, samples, [name]), HEALED
        score = max(_score(renewed, samples, answers), renewed_score)
        if _norm_behind(graph, node) and not stale_batch_norm(renewed, graph, samples):
            most = 1 - ABOVE_CHANCE  # what comes behind the new statistics is that of training, too
        # What one thing put right gives back, and new statistics do not, is wrong for another reason.
        if 1 - score < most * (1 - answers.score) or 1 - repaired < HEALED * (1 - score):
            out.append(finding)
            continue
        message = (
            f"its results are not those that batch norm {name} saw in training, and with new statistics the network "
            f"{answers.targets.said(score)}, now {answers.score:.1%}: it is the weights, or what they read"
        )
        if first:
            shown = PROOF & {key for f in known if f.place == place for key in f.evidence}
            message = f"{place}: {message}, the inputs"
            told = Finding(INPUTS_ARE_WRONG, NETWORK, "error", message, TRAIN_ON, evidence={"batch_norm": name})
            out.append(finding if shown else told)
            continue
        out.append(weight_finding("wrong_weights", place, message, batch_norm=name))
    return out


def old_statistics(
    network: FloatNetwork, sim: Simulation, answers: Answers, samples: Samples, known: Sequence[Finding], best: Repair
) -> list[Finding] | None:
    """Return what is known, with what new statistics of all batch norms give back where that is surely more than the
    best repair of one place does, or as much where they were never collected; None where it is not.

    Args:
        network: the float network.
        sim: a simulation of it.
        answers: how it answers in float.
        samples: the samples that were answered.
        known: findings of single layers; without one of statistics that do not fit, these are not old.
        best: the repair.
    """
    stale = next((f for f in known if f.cause == "stale_batch_norm" and "batch_norm" in f.evidence), None)
    if stale is None:
        return None
    targets = answers.targets
    renewed = _output(_renewed(network, samples, None), samples, targets)
    score = targets.score(renewed)
    if not _old_everywhere(sim, score, answers):
        return None
    repaired = answered_with(sim, samples, best, targets)
    if repaired is None:
        return None
    as_good = "initial" in stale.evidence and not _surely_better(repaired, renewed, targets)  # these are a proof
    if not as_good and not _surely_better(renewed, repaired, targets):
        return None
    message = f"{stale.message}; with new statistics of all batch norms the network {targets.said(score)}"
    told = replace(stale, severity="error", message=message, evidence={**stale.evidence, "healed": True})
    return [told if f is stale else f for f in known]


def _old_everywhere(sim: Simulation, renewed: float, answers: Answers) -> bool:
    """Return whether new statistics of all batch norms, of which there are several, heal the network."""
    norms = sum("bn" in node.attrs or node.op == "batch_norm" for node in sim.graph)
    return 1 - (renewed if norms > 1 else 0.0) < HEALED * (1 - answers.score)


def _norm_behind(graph: Graph, node: Node) -> bool:
    """Return whether a batch norm runs after this one."""
    return any("bn" in other.attrs for other in dropwhile(lambda n: n is not node, graph) if other is not node)


def layer_before(graph: Graph, node: Node) -> str:
    """Return the name of a node, or where it is a batch norm by itself, of the layer before it."""
    while (node.op == "scale_shift" or "weight" not in node.params) and node.inputs:
        node = graph.nodes[node.inputs[0]]
    return node.name


def _reads_input(graph: Graph, node: Node) -> bool:
    """Return whether no layer with a weight comes before this one."""
    pending = list(node.inputs)
    while pending:
        before = graph.nodes[pending.pop()]
        if "weight" in before.params:
            return False
        pending += before.inputs
    return True


def _surely_better(one: Tensor, other: Tensor, targets: Targets) -> bool:
    """Return whether an output leaves surely less of the loss than another, by more than statistics of the data give.

    These suit the data a little better than those of training in any case.
    """
    left, more = targets.losses(one), targets.losses(other)
    return standard_errors(more - left) > WORSE and float(left.mean()) < (1 - A_PART) * float(more.mean())


def _score(network: FloatNetwork, samples: Samples, answers: Answers) -> float:
    """Return the score of another network's outputs."""
    return answers.targets.score(_output(network, samples, answers.targets))


def _output(network: FloatNetwork, samples: Samples, targets: Targets) -> Tensor:
    """Return what targets judge of a network's outputs, (N, …)."""
    leaves = torch.utils._pytree.tree_leaves
    outputs = [[y for y in leaves(network(batch)) if isinstance(y, Tensor)] for batch in samples]
    return torch.cat([targets.taken(ys).cpu() for ys in outputs])


def _renewed(network: FloatNetwork, samples: Samples, names: list[str] | None) -> FloatNetwork:
    """Return the network with new statistics of batch norms of these names, or of all, from the samples."""
    model = copy.deepcopy(network.model)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (names is None or name in names):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
            module.train()
    other = network.with_model(model)
    for batch in samples:
        if len(batch) > 1:
            other(batch)
    model.eval()
    return other
