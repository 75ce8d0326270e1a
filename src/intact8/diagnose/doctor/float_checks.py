"""Faults of the float network itself: wrong before anything is rounded, so that no recipe repairs them."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.capture.trace import sum_of_bits
from intact8.diagnose.doctor.consumers import CHANNELWISE, Users, depthwise_channels, importance
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.network_checks import DEAD_SHARE, stale_batch_norm
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.repairs import (
    COMPENSATING,
    LARGE_EPS,
    RECOVERS,
    Repaired,
    answered_with,
    fitting,
    followed_by,
    tried_repairs,
)
from intact8.diagnose.doctor.report import CALIBRATION, NETWORK, SEVERITIES, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import function_of, kind_of, owner_of, word_of
from intact8.diagnose.doctor.targets import Targets, targets_of
from intact8.diagnose.doctor.tensor_statistics import Statistics, TensorStats
from intact8.diagnose.executors import FloatExecutor
from intact8.opset.op import Array
from intact8.simulation.prepare import in_training_mode
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first

EXPLODED = 30.0
"""Times the usual size from which a weight or a channel has exploded; trained networks stay below 10."""

GROWN = 3.0
"""What the median row of a layer makes of unit inputs from which its weights are large; layers of twenty-two trained
networks stay below 2."""

SURELY = 100.0
"""Times the usual size from which a channel has exploded for sure: one of a sound network reached 31."""

FEW = 1000
"""One weight in so many may be exceptional, and one at least."""

FEW_ROWS = 8
"""Rows of a table, at most and one in so many, that may be exceptional."""

LEAST = 64
"""Weights below which a layer has no usual size."""

ABOVE_CHANCE = 0.2
"""Share of the way from guessing to always right that a network must have gone to have learned anything."""

ABOVE_MEAN = 0.05
"""The same where answers are numbers: the share of their variance; some cannot be foretold much better."""

INFORMED = 0.8
"""Share of the loss of the best answer that is the same for all samples, below which something was learned."""

OVERCONFIDENT = 0.15
"""Mean probability of the answers over the share of right ones from which the network is not what was trained, or sees
other inputs than in training. Trained networks, overfitted ones among them, stay below 0.1 on data like theirs."""

TOO_LARGE = 4.0
"""Times as large as suits the labels, a power of two, beyond which scores are not those of training. Most sound
networks stay below 2; a recommender that had learned its samples by heart came to 4."""

OTHER_UNITS = 0.06
"""Share of the variance that answers explain in other units only, from which they are not what was trained: least
squares leave no scale and no mean to be corrected. Twelve sound networks stay below 0.021."""

DIVERGED, ANOTHER = 0.1, 0.5
"""Loss of the metric by training from which it has diverged; and where there are no labels, the share of what the model
gave that is lost."""

HEALED = 0.4
"""Share of what a score lacks that new statistics of batch norms leave at most where they were at fault."""

ENOUGH = 32
"""Samples from which it is no accident that all have the same answer."""

SURELY_RIGHT = 0.9
"""Share of the way from guessing to always right from which no layer is as it began."""

OVERSHOT, MANY = 8.0, 512
"""Mean gaps of uniform numbers that their largest one may stay below their bound (half as many where there are fewer
weights than the second number: one untrained layer in fifty stays further below), and weights from which bounds are
tried that PyTorch's own layers do not begin with."""

FEW_NUMBERS, COARSE = "few numbers", 1e-2
"""What weights were rounded to that hold few different numbers, and the noise over signal of such weights from which
that explains a network that is wrong: rounding to 8 bits makes a thousandth of it."""

PROOF = frozenset({"bound", "copies", "numbers"})
"""Entries of the evidence of weights that no training leaves behind."""

OF_REPAIRS = frozenset({"recovers", "accuracy", "explains"})
"""Entries of the evidence that a repair alone gives: without others nothing shows the fault but that it helps."""

BEFORE_LAYERS = (
    "not_finite", "training_mode", "rounded_weights", "diverged_training", "float_mismatch", "batch_dependence",
)  # fmt: skip
OF_LAYERS = (
    "exploded_weight", "exploded_channel", "wrong_weights", "stale_batch_norm", "dead_channels", "wrong_setting",
    "wrong_scale",
)  # fmt: skip
FLOAT_CAUSES = (*BEFORE_LAYERS, *OF_LAYERS, "float_network_wrong")
"""Causes that are faults of the float network, in the order in which one leads to the next."""

USABLE = ("training_mode", "dead_channels", "batch_dependence")
"""Faults of the float network with which it may still be of use, once it is in evaluation mode."""

ALIKE, MOST, NEARLY_ALL, SAME = 0.1, 0.5, 0.8, 0.05
"""Repairs are alike that differ by less than this share of what the best one takes away; and the shares of the loss
that are most of it, and nearly all; and the share of right answers by which they may be apart by chance."""

TRAIN_ON = "the float network is already wrong: go back to the last good checkpoint"


@dataclass(frozen=True)
class Answers:
    """How the float network answers.

    Attributes:
        score: the share of right answers, or of the variance that is explained; see Targets.
        confidence: the mean probability that it gives to its answers.
        targets: the right answers.
        too_large: how many times as large as suits the labels the scores are, a power of two.
        renumbered: the score if its classes were numbered otherwise, or its numbers were in other units.
        units: weights of the columns of numbers; see Targets.
        loss: the mean loss; see Targets.
    """

    score: float
    confidence: float
    targets: Targets
    too_large: float
    renumbered: float
    units: Tensor | None = None
    loss: float = float("inf")

    @property
    def guesses(self) -> bool:
        """Whether it answers no better than the best answer that is the same for all samples.

        Where one class is right for most samples, to foretell the others somewhat is to know something, too.
        """
        chance = self.targets.chance()
        learned = ABOVE_CHANCE if self.targets.classes else ABOVE_MEAN
        if self.score >= chance + learned * (1 - chance):
            return False
        return not (self.targets.classes and chance > MOST and self.loss < INFORMED * self.targets.entropy())


def answers_of(exact: FloatOutputs, samples: Samples, inputs: int) -> Answers | None:
    """Judge the float network's first output by what follows the inputs in the data; None where nothing of use does."""
    output = torch.cat([ys[0].cpu() for ys in exact.outputs]) if exact.outputs[0][0].dim() else torch.zeros(())
    targets = targets_of(samples, inputs, output)
    if targets is None or len(targets) != len(output):
        return None
    factor, losses = targets.tempered(output)
    renumbered, units, loss = targets.renumbered(output), targets.units(output), float(losses.mean())
    return Answers(targets.score(output), targets.confidence(output), targets, 1 / factor, renumbered, units, loss)


def training_mode(model: nn.Module) -> list[Finding]:
    """Return the finding of batch norms or dropouts in training mode."""
    names = in_training_mode(model)
    if not names:
        return []
    message = (
        f"{len(names)} batch norms and dropouts are in training mode, {names[0] or 'the model itself'} first: what the "
        "float network answers is random, or depends on the other samples of the batch; it was examined in evaluation "
        "mode"
    )
    return [
        Finding("training_mode", NETWORK, "error", message, "call model.eval() first", evidence={"modules": names[:10]})
    ]


def not_finite(model: nn.Module) -> list[Finding]:
    """Return the finding of parameters and buffers that hold NaN or infinity."""
    counts: dict[str, int] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            counts[name] = int((~torch.isfinite(tensor)).sum())
    if not counts:
        return []
    places = {name.rpartition(".")[0] for name in counts}
    first = next(iter(counts))
    message = f"{counts[first]} values of {first} are NaN or infinite"
    message += f", and some of {len(counts) - 1} further tensors" if len(counts) > 1 else ""
    place = first.rpartition(".")[0] if len(places) == 1 else ""
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    return [Finding("not_finite", place or NETWORK, "error", message, remedy, evidence={"values": counts})]


def rounded(model: nn.Module) -> list[Finding]:
    """Return the finding of weights that were rounded before: no trained ones are such numbers by chance."""
    found: dict[str, list[str]] = defaultdict(list)
    given = list(model.named_parameters())
    trains = any(p.requires_grad for _, p in given)  # else nothing says which of them are fixed on purpose
    given = [(n, p) for n, p in given if p.requires_grad or not trains]
    weights = {n: p.detach() for n, p in given if p.dtype == torch.float32 and p.numel() >= LEAST}
    for name, weight in weights.items():
        some = weight.reshape(-1)[:4096].cpu().numpy()
        some = some[some != 0]
        different = len(np.unique(some))
        if len(some) < LEAST:
            continue
        if different < len(some) // 4:
            kinds = [FEW_NUMBERS] if different > 1 else []
        else:
            kinds = [n for n in ("bfloat16", "float16") if bool((weight.to(getattr(torch, n)).float() == weight).all())]
        for kind in kinds[:1]:
            found[kind].append(name)
    findings = []
    for kind, names in found.items():
        place = names[0].rpartition(".")[0] if len(names) == 1 else NETWORK
        message = f"{len(names)} of {len(weights)} weights were rounded to {kind}, {names[0]} first"
        remedy = "quantize the float32 weights of the training, where there are any"
        evidence: dict[str, Any] = {"weights": names[:10]}
        if kind == FEW_NUMBERS:
            evidence["rounding"] = max(_rounding(weights[name]) for name in names)
        findings.append(Finding("rounded_weights", place, "warning", message, remedy, evidence=evidence))
    return findings


def _rounding(weight: Tensor) -> float:
    """Return the noise over signal of rounding to the numbers that a weight holds, if any between them was possible."""
    numbers, counts = torch.unique(weight.double(), return_counts=True)
    gaps = numbers.diff()
    widths = torch.cat([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
    noise = (counts * widths.square()).sum() / 12 / weight.numel()
    return float(noise / weight.double().square().mean().clamp(min=1e-300))


def nan_samples(samples: Samples) -> list[Finding]:
    """Return the finding of samples that hold NaN: calibration data are taken from them, or are these."""
    bad, start = [], 0
    for batch in samples:
        for x in (x for x in batch.inputs if x.is_floating_point()):
            rows = torch.isnan(x.reshape(len(x), -1)).any(1)
            bad += [start + int(i) for i in rows.nonzero().reshape(-1)]
        start += len(batch)
    if not bad:
        return []
    message = f"{len(bad)} of {start} samples hold NaN, sample {bad[0]} first"
    remedy = "leave them out, and look for what made them"
    return [Finding("not_finite", CALIBRATION, "error", message, remedy, evidence={"samples": bad[:10]})]


def overflowing(sim: Simulation, samples: Samples) -> list[Finding]:
    """Return the finding of the first operation whose results are NaN or infinite though its inputs are not."""
    compute = FloatExecutor(sim.tensors)
    with torch.no_grad():
        for batch in samples:
            values = dict(zip(sim.graph.inputs, batch.inputs, strict=True))
            for node in sim.graph.sized(batch.inputs):
                if node.name in values:
                    continue
                y = values[node.name] = compute(node, [values[name] for name in node.inputs])
                bad = 0 if not y.is_floating_point() else int((~torch.isfinite(y)).sum())
                if bad and all(bool(torch.isfinite(values[name]).all()) for name in node.inputs):
                    message = f"{bad} of its {y.numel()} results are NaN or infinite, though its inputs are not"
                    return [Finding("not_finite", node.name, "error", message, f"{TRAIN_ON}, or check the inputs")]
    return []


def exploded(sim: Simulation, seen: Statistics) -> list[Finding]:
    """Return findings of single weights and of channels that are far larger than their like.

    A layer with an exploded weight says nothing about the channels it reads.
    """
    nodes = sim.graph.nodes
    given = [name for name in sim.weight_points if "weight" in nodes[name].params]
    weights = {name: sim.tensors[nodes[name].params["weight"]].detach() for name in given}
    found = {name: _exploded_weights(name, output_first(w, nodes[name])) for name, w in weights.items() if w.dim() > 1}
    found |= {name: _exploded_recurrent(sim.graph.nodes[name], sim.tensors) for name in sim.recurrent_points}
    found |= {node.name: _exploded_row(node, sim.tensors) for node in sim.graph if node.op == "embedding"}
    users = sim.graph.users()
    for name, what, values in _gains(sim):
        size = values.detach().abs().double().reshape(-1)
        # A wide channel that the next weights divide is none, as of channels of layers.
        power = importance(sim.graph, sim.tensors, list(sim.weight_points), name, len(size), users)
        taken_back = np.asarray(size.cpu()) * np.sqrt(power) if what != "slope" else size
        found[name] = found.get(name) or _exploded_gain(name, what, size, torch.as_tensor(taken_back))
    sound = [name for name in sim.weight_points if found.get(name) is None]
    for name in sound:
        if name in seen.made:
            found[name] = _exploded_channels(sim, name, seen.made[name], sound, users)
    for name in sim.graph.nodes:  # in the order in which they run, so that a finding moves up a chain of them
        _follows(sim, name, found, seen)
    large = _exploded_layers(sim, [name for name in given if found.get(name) is None])
    return [*(finding for finding in found.values() if finding is not None), *large]


def _follows(sim: Simulation, name: str, found: dict[str, Finding | None], seen: Statistics) -> None:
    """Leave one finding of a channel that is far too large before a depthwise layer and behind it: where it grows."""
    node, finding = sim.graph.nodes[name], found.get(name)
    if finding is None or finding.cause != "exploded_channel" or not depthwise_channels(node, sim.tensors):
        return
    before = sim.graph.nodes[node.inputs[0]]
    while before.op in CHANNELWISE and len(before.inputs) == 1 and before.name not in found:
        before = sim.graph.nodes[before.inputs[0]]
    earlier, made = found.get(before.name), seen.made.get(before.name)
    channels = finding.evidence["channels"]
    if (
        made is None
        or earlier is None
        or earlier.cause != "exploded_channel"
        or earlier.evidence["channels"] != channels
    ):
        return
    equalized = before.params.get("equalize.out")
    width = np.maximum(np.abs(made.low), np.abs(made.high))
    width = width if equalized is None else width * np.asarray(sim.tensors[equalized].detach().cpu()).reshape(-1)
    if width.max() / max(float(np.median(width)), 1e-30) < earlier.evidence["ratio"] ** 0.5:
        found[before.name] = None  # it weighs so much because of the depthwise weights
    else:
        severity = min(earlier.severity, finding.severity, key=SEVERITIES.index)
        message = f"{earlier.message}; behind {name} it weighs {finding.evidence['ratio']:.3g} times as much"
        found[before.name], found[name] = replace(earlier, severity=severity, message=message), None


def norms(sim: Simulation) -> list[Node]:
    """Return layer norms, group norms and RMS norms that have gains."""
    return [n for n in sim.graph if n.op.endswith("_norm") and n.op != "batch_norm" and "weight" in n.params]


def _gains(sim: Simulation) -> list[tuple[str, str, Tensor]]:
    """Return the operation, the meaning and the values of gains and biases of norms and slopes of PReLUs."""
    roles = [(node, role) for node in norms(sim) for role in ("weight", "bias") if role in node.params]
    found = [(n.name, "gain" if role == "weight" else "bias", sim.tensors[n.params[role]]) for n, role in roles]
    slopes = [node for node in sim.graph if "act.weight" in node.params]
    return [*found, *((node.name, "slope", sim.tensors[node.params["act.weight"]]) for node in slopes)]


def _exploded_recurrent(node: Node, tensors: Mapping[str, Tensor]) -> Finding | None:
    """Return the finding of a few weights of a recurrent layer that are far larger than all others."""
    weights = [tensors[name] for role, name in node.params.items() if role.startswith("weight_")]
    found = (_exploded_weights(node.name, weight.detach()) for weight in weights)
    return next((finding for finding in found if finding is not None), None)


def _exploded_row(node: Node, tensors: Mapping[str, Tensor]) -> Finding | None:
    """Return the finding of a few rows of a table that are far longer than all others."""
    rows = tensors[node.params["weight"]].detach().double().flatten(1).square().mean(1).sqrt()
    few = max(1, len(rows) // FEW, min(len(rows) // 8, FEW_ROWS))
    if len(rows) < 4:
        return None
    largest, where = rows.topk(few + 1)
    ratio = float(largest[0]) / max(float(largest[-1]), 1e-30)
    if not ratio > EXPLODED:
        return None
    message = f"row {int(where[0])} of its table is {ratio:.3g} times as long as nearly all others"
    return _finding("exploded_weight", node.name, message, row=int(where[0]), ratio=ratio)


def _finding(cause: str, place: str, message: str, **evidence: object) -> Finding:
    remedy = f"{TRAIN_ON}, or look for what wrote these weights"
    return Finding(cause, place, "error", message, remedy, evidence=evidence)


def _exploded_weights(name: str, weight: Tensor) -> Finding | None:
    """Return the finding of a few weights of a layer that are far larger than all others."""
    if weight.numel() < LEAST:
        return None
    size = weight.abs().double().reshape(-1)
    few = max(1, len(size) // FEW)
    largest, where = size.topk(few + 1)
    rest = float(largest[-1])
    if not float(largest[0]) > EXPLODED * rest:
        return None
    count = int((largest > EXPLODED * rest).sum())
    index = [int(i) for i in np.unravel_index(int(where[0]), tuple(weight.shape))]
    message = (
        f"{count} of {len(size)} weights are up to {float(largest[0]) / max(rest, 1e-30):.3g} times as large as all "
        f"others, the largest at {index}"
    )
    return _finding("exploded_weight", name, message, index=index, ratio=float(largest[0]) / max(rest, 1e-30))


def _exploded_gain(name: str, what: str, size: Tensor, arriving: Tensor) -> Finding | None:
    """Return the finding of a few channels of a norm or a PReLU whose values are far larger than all others.

    Args:
        name: the operation.
        what: what the values are.
        size: their sizes, float64 (channels,).
        arriving: the same, of which the channels are told apart behind the weights that read them.
    """
    few = max(1, len(size) // 20)
    if len(size) < 8:
        return None
    largest, where = size.topk(few + 1)
    ratio = float(largest[0]) / max(float(largest[-1]), 1e-30)
    channel = int(where[0])
    others = float(arriving.median())
    if not ratio > EXPLODED or float(arriving[channel]) < EXPLODED**0.5 * others:
        return None
    message = f"the {what} of channel {channel} is {ratio:.3g} times as large as those of nearly all others"
    return _finding("exploded_channel", name, message, channels=[channel], ratio=ratio)


def untrained(sim: Simulation) -> list[Finding]:
    """Return findings of layers whose weights are no result of training: warnings, as answers may be right anyway.

    Uniform numbers that reach exactly as far as initialization goes lie as they were initialized: training moves them
    beyond. Nor does it make rows that are copies of each other.
    """
    found, layers = [], 0
    for node in sim.graph:
        weights = [name for role, name in node.params.items() if role.startswith("weight") and node.op != "batch_norm"]
        weights = [name for name in weights if sim.tensors[name].dim() > 1 and sim.tensors[name].numel() >= LEAST]
        layers += bool(weights)
        bounds = [_uniform_bound(sim.tensors[name].detach(), *_beside(node, name, sim.tensors)) for name in weights]
        copies = [_copies(sim.tensors[name].detach()) for name in weights]
        blank = next((text for name in weights if (text := _numbers(sim.tensors[name].detach()))), "")
        if blank:
            found.append(_finding("wrong_weights", node.name, f"{weights[0]} holds {blank}", numbers=blank))
        elif any(bounds):
            message = f"{weights[0]} is uniform in ±{max(bounds):.3g}, as it is initialized, and was never trained"
            few = {"few": True} if all(sim.tensors[name].numel() < MANY for name in weights) else {}
            found.append(_finding("wrong_weights", node.name, message, bound=max(bounds), **few))
        elif any(2 * same > len(sim.tensors[name]) for same, name in zip(copies, weights, strict=True)):
            message = f"{max(copies)} rows of its weight are copies of others"
            found.append(_finding("wrong_weights", node.name, message, copies=max(copies)))
    if 2 * len(found) > layers > 1:
        message = f"the weights of {len(found)} of {layers} layers are no result of training: they are as initialized"
        found = [_finding("float_network_wrong", NETWORK, message, layers=[f.place for f in found])]
    found = [_unlike_trained(sim, f, {other.place for other in found}) for f in found]
    found += [*_empty_tables(sim), *_copied_layers(sim, {f.place for f in found})]
    found = [replace(f, severity="warning") for f in found] + [replace(f, severity="note") for f in _untouched(sim)]
    return [replace(f, remedy=f"load the trained weights; {TRAIN_ON}") for f in found]


def _unlike_trained(sim: Simulation, finding: Finding, untrained: Collection[str]) -> Finding:
    """Add to the finding of a layer that lies as initialized how many layers like it were trained, where all were.

    Nobody leaves one of several equal layers at random by design, which a network that answers well may have done with
    a layer of its own kind.
    """
    if "bound" not in finding.evidence or "few" in finding.evidence:
        return finding
    kind, node = kind_of(finding.place), sim.graph.nodes[finding.place]
    layers = (n for n in sim.graph if n is not node and n.op == node.op and kind_of(n.name) == kind)
    others = [n.name for n in layers if _weight_shape(sim, n) == _weight_shape(sim, node)]
    if "#." not in kind or not others or any(name in untrained for name in others):
        return finding
    message = f"{finding.message}, as {len(others)} layers like it were"
    return replace(finding, message=message, evidence={**finding.evidence, "unlike": len(others)})


def _weight_shape(sim: Simulation, node: Node) -> torch.Size | None:
    return sim.tensors[node.params["weight"]].shape if "weight" in node.params else None


def _numbers(weight: Tensor) -> str:
    """Return in words that weights are numbers that no training ends with: zeros, or whole numbers; else ""."""
    if not bool(weight.any()):
        return "nothing but zeros"
    whole = bool((weight == weight.round()).all())
    share = float((weight == 0).double().mean())
    return f"whole numbers only, {share:.0%} of them zeros, as after a cast to integers" if whole else ""


def _empty_tables(sim: Simulation) -> list[Finding]:
    """Return findings of parameters that are added, or factors, and hold zeros, or one number unlike their like."""
    trained = {name for name, _ in sim.named_parameters()} | sim.captured.derived.keys()
    values = {n.name: n.params["value"] for n in sim.graph if n.op == "constant"}
    one = {}
    for place, name in values.items():
        held = sim.tensors[name].detach() if name in trained else torch.zeros(0)
        if held.numel() >= LEAST and not bool(held.any()):
            one[place] = "holds nothing but zeros"
        elif held.numel() >= 8 and bool((held == held.reshape(-1)[0]).all()):
            alike = [sim.tensors[of] for at, of in values.items() if at != place and kind_of(at) == kind_of(place)]
            if any(len(torch.unique(other)) > 1 for other in alike):
                one[place] = "holds one number only, as it begins, and those of layers like it do not"
    return [
        _finding("wrong_weights", owner_of(sim, place), f"{values[place]} {text}", numbers=text)
        for place, text in one.items()
    ]


def _copied_layers(sim: Simulation, told: Collection[str]) -> list[Finding]:
    """Return findings of layers whose names differ in numbers only and whose weights are another's, bit by bit."""
    alike: dict[tuple[Any, ...], list[Node]] = defaultdict(list)
    for node in sim.graph:
        weight = sim.tensors[node.params["weight"]].detach() if "weight" in node.params else torch.zeros(0)
        if node.op != "batch_norm" and weight.dim() > 1 and weight.numel() >= LEAST and node.name not in told:
            alike[kind_of(node.name), weight.shape, float(weight.double().sum())].append(node)
    found = []
    for nodes in alike.values():
        first, *others = nodes
        weight = sim.tensors[first.params["weight"]]
        apart = [n for n in others if n.params["weight"] != first.params["weight"]]
        same = [n for n in apart if torch.equal(sim.tensors[n.params["weight"]], weight)]
        if same:
            names = ", ".join(n.name for n in same)
            message = f"the weights of {names} are those of {first.name}, bit by bit"
            found.append(_finding("wrong_weights", same[0].name, message, copies=len(same)))
    for node in sim.graph:
        both = [sim.tensors[node.params[role]] for role in ("weight_hh", "weight_hh.reverse") if role in node.params]
        if len(both) > 1 and torch.equal(*both):
            message = "its weights are the same in both directions, bit by bit"
            found.append(_finding("wrong_weights", node.name, message, copies=1))
    order = {name: i for i, name in enumerate(sim.graph.nodes)}
    return sorted(found, key=lambda f: order[f.place])


def _beside(node: Node, name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor | None, int]:
    """Return the bias beside a weight of a node, if any, and the number of gates of a recurrent one."""
    role = next(role for role, of in node.params.items() if of == name)
    bias = node.params.get(role.replace("weight", "bias", 1))
    return None if bias is None else tensors[bias].detach(), GATES.get(node.op, 0)


def _untouched(sim: Simulation) -> list[Finding]:
    """Return findings of the few norms and layers whose gains are 1 and biases 0, as they begin, unlike others'."""
    gains = {n.name: [sim.tensors[n.params[r]] for r in ("weight", "bias") if r in n.params] for n in norms(sim)}
    batch = [n for n in sim.graph if "bn.weight" in n.params]
    gains |= {n.name: [sim.tensors[n.params[r]] for r in ("bn.weight", "bn.bias") if r in n.params] for n in batch}
    bare = [
        name
        for name, (gain, *bias) in gains.items()
        if bool((gain == 1).all()) and all(not bool(b.any()) for b in bias)
    ]
    layers = [n for n in sim.graph if n.op in ("conv", "linear", *GATES)]
    biases = {n.name: [sim.tensors[of] for role, of in n.params.items() if role.startswith("bias")] for n in layers}
    biases = {name: held for name, held in biases.items() if held}
    blank = [name for name, held in biases.items() if not any(bool(b.any()) for b in held)]
    found = []
    for names, count, what in ((bare, len(gains), "gains are 1 and its biases"), (blank, len(biases), "biases are")):
        if 0 < 2 * len(names) < count:
            message = f"its {what} 0, as they begin, and those of {count - len(names)} others are not"
            found += [_finding("wrong_weights", name, message, untouched=True) for name in names]
    return found


def grown_everywhere(sim: Simulation, dead: Sequence[Finding] = ()) -> list[Finding]:
    """Return the finding of weights that are huge in most layers: it is the training, and no single layer.

    Where a layer is dead as a whole, weights that are large in most layers say the same.

    Args:
        sim: a simulation of the network.
        dead: findings of dead channels.
    """
    killed = any(f.evidence.get("share", 0.0) > NEARLY_ALL for f in dead)
    weights = {n.name: sim.tensors[n.params["weight"]].detach() for n in sim.graph if n.op in ("conv", "linear")}
    gains = {
        name: float(output_first(w, sim.graph.nodes[name]).flatten(1).norm(dim=1).median())
        for name, w in weights.items()
    }
    grown = [name for name, gain in gains.items() if gain > (GROWN if killed else EXPLODED)]
    if not len(gains) > 1 or not (2 * len(grown) >= len(gains) + (not killed)):
        return []
    largest = max(gains.values())
    message = (
        f"the weights of {len(grown)} of {len(gains)} layers are {'large' if killed else 'huge'}, and make "
        f"{largest:.3g} of unit inputs{', and whole layers are dead' if killed else ''}: training has diverged"
    )
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    evidence: dict[str, Any] = {"layers": grown, **({"dead layers": True} if killed else {})}
    return [Finding("float_network_wrong", NETWORK, "warning", message, remedy, evidence=evidence)]


def _copies(weight: Tensor) -> int:
    """Return the number of rows that repeat others and are not 0."""
    rows = weight.reshape(len(weight), -1)
    rows = rows[rows.abs().amax(1) > 0]
    return len(rows) - len(torch.unique(rows, dim=0))


def _uniform_bound(weight: Tensor, bias: Tensor | None, gates: int = 0) -> float:
    """Return how far uniform initialization goes where these weights look like it; else 0.

    Args:
        weight: the weight, (outputs, inputs, …).
        bias: the bias beside it, if any: where it has been trained, so have a few weights.
        gates: of the recurrent layer whose weights these are, which begin by its hidden size; 0 of others.
    """
    size = weight.abs().double().reshape(-1).sort().values
    if len(size) < 2 * LEAST:
        return 0.0
    spatial = weight[0, 0].numel()
    fan = len(weight) // gates if gates else weight.shape[1] * spatial
    usual = fan**-0.5  # what PyTorch's own layers begin with, their biases, too, of which recurrent ones add two
    trained = bias is not None and float(bias.abs().max()) > usual * (2 if gates else 1) * (1 + 1e-6)
    if trained and len(size) < MANY:
        return 0.0
    # Few numbers that training has moved a little stay below their bound by chance, and reach one of several bounds.
    bounds = {usual: OVERSHOT if len(size) >= MANY else OVERSHOT / 2}
    if len(size) >= MANY:
        both = (weight.shape[0] + weight.shape[1]) * spatial
        bounds |= {(6 / n) ** 0.5: OVERSHOT / 2 for n in (both, weight.shape[1] * spatial)}
    for bound, slack in bounds.items():
        if bound * (1 - slack / len(size)) <= float(size[-1]) <= bound * (1 + 1e-6):
            steps = torch.arange(1, len(size) + 1, dtype=torch.float64, device=size.device) / len(size)
            apart = float((size / bound - steps).abs().max()) * len(size) ** 0.5
            if apart < 1.36:  # Kolmogorov and Smirnov, 5 %; no trained layer of twenty networks came below 1.9
                return float(bound)
    return 0.0


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
        suspect = suspect and "initial" not in finding.evidence  # statistics that were never collected are a proof
        if node is None or not suspect:
            out.append(finding)
            continue
        name, fit = finding.evidence["batch_norm"], fitting(sim, samples, finding.place)
        if fit is not None and answers is not None and fit[0].cause == INPUTS_ARE_WRONG:
            changed = answered_with(sim, samples, fit[0])
            # Statistics of other inputs make them fit as well; only the right inputs give right answers.
            if changed is None or answers.targets.score(changed) <= answers.score:
                fit = None
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
        place = _layer_before(graph, node)
        renewed_score = 0.0 if answers is None else _score(_renewed(network, samples, None), samples, answers)
        if answers is not None and _surely_right(answers) and not _better(renewed_score, answers):
            message = f"{finding.message}; in float the network {answers.targets.said(answers.score)} all the same"
            out.append(replace(finding, severity="warning", message=message))
            continue
        if answers is not None and _old_everywhere(sim, renewed_score, answers):
            finding = replace(finding, evidence={**finding.evidence, "healed": True})
        others = [f for f in known if f.cause == "stale_batch_norm" and "recovers" in f.evidence and f is not finding]
        if others or answers is None or not _mostly_lost(answers) or _reads_input(graph, graph.nodes[place]):
            out.append(finding)
            continue
        renewed, most = _renewed(network, samples, [name]), HEALED
        score = max(_score(renewed, samples, answers), renewed_score)
        if _norm_behind(graph, node) and not stale_batch_norm(renewed, graph, samples):
            most = 1 - ABOVE_CHANCE  # what comes behind the new statistics is that of training, too
        if 1 - score < most * (1 - answers.score):
            out.append(finding)
            continue
        message = (
            f"its results are not those that batch norm {name} saw in training, and with new statistics the network "
            f"{answers.targets.said(score)}, now {answers.score:.1%}: it is the weights, or what they read"
        )
        out.append(_finding("wrong_weights", place, message, batch_norm=name))
    return out


def _old_everywhere(sim: Simulation, renewed: float, answers: Answers) -> bool:
    """Return whether new statistics of all batch norms, of which there are several, heal the network."""
    norms = sum("bn" in node.attrs or node.op == "batch_norm" for node in sim.graph)
    return 1 - (renewed if norms > 1 else 0.0) < HEALED * (1 - answers.score)


def _better(renewed: float, answers: Answers) -> bool:
    """Return whether new statistics of all batch norms bring more right answers than chance does."""
    return bool(renewed - answers.score > (answers.score * (1 - answers.score) / len(answers.targets)) ** 0.5)


def _mostly_lost(answers: Answers) -> bool:
    """Return whether a network has lost most of what there is to learn, as wrong weights make it."""
    chance = answers.targets.chance()
    return answers.score - chance < MOST * (1 - chance)


def _above(score: float, answers: Answers, share: float) -> bool:
    """Return whether a score is beyond this share of the way from guessing to always right."""
    chance = answers.targets.chance()
    return score - chance > share * (1 - chance)


def _surely_right(answers: Answers) -> bool:
    """Return whether a network has learned nearly all there is to learn, as none does without one of its layers."""
    return _above(answers.score, answers, SURELY_RIGHT)


def _norm_behind(graph: Graph, node: Node) -> bool:
    """Return whether a batch norm runs after this one."""
    return any("bn" in other.attrs for other in dropwhile(lambda n: n is not node, graph) if other is not node)


def _layer_before(graph: Graph, node: Node) -> str:
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


def _score(network: FloatNetwork, samples: Samples, answers: Answers) -> float:
    """Return the score of another network's first output."""
    leaves = torch.utils._pytree.tree_leaves
    outputs = [next(y for y in leaves(network(batch)) if isinstance(y, Tensor)).cpu() for batch in samples]
    return answers.targets.score(torch.cat(outputs))


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


def unlike_others(sim: Simulation) -> list[Finding]:
    """Return findings of settings that no other layer like it has: a large eps, or no activation: warnings.

    Alike are layers with weights of one shape whose names differ in numbers only, and not at the end: blocks repeat,
    while in a sequence of layers the last one differs.
    """
    remedy = "compare its settings with those of training"
    found = []
    eps = {node.name: float(node.attrs["eps"]) for node in norms(sim) if "eps" in node.attrs}
    for name, value in eps.items():
        if value > LARGE_EPS and min(eps.values()) <= LARGE_EPS:
            message = f"its eps is {value:.3g}, elsewhere in the network {min(eps.values()):.3g}"
            found.append(Finding("wrong_setting", name, "warning", message, remedy))
    alike: dict[tuple[str, torch.Size], list[str]] = defaultdict(list)
    for name in sim.weight_points:
        kind = kind_of(name)
        if "#." in kind and "weight" in sim.graph.nodes[name].params and not kind.endswith("#"):
            alike[kind, sim.tensors[sim.graph.nodes[name].params["weight"]].shape].append(name)
    users = sim.graph.users()
    for names in alike.values():
        behind = {name: followed_by(sim.graph, name, users) for name in names}
        usual = next((word for word in behind.values() if word), "")
        without = [name for name in names if not behind[name]]
        if usual and len(without) == 1 and without != names[-1:]:
            message = f"no activation follows, as {usual} does behind layers like it"
            found.append(Finding("wrong_setting", without[0], "warning", message, remedy))
    return found


def _exploded_layers(sim: Simulation, names: Sequence[str]) -> list[Finding]:
    """Return findings of layers whose weights are far larger than those of layers like them: warnings.

    What comes behind may take that back. Alike are layers of one shape whose names differ in numbers only.
    """
    alike: dict[tuple[str, torch.Size], dict[str, float]] = defaultdict(dict)
    growth = {}
    for name in names:
        weight = folded(sim.graph.nodes[name], sim.tensors)[0].detach()
        size = float(weight.square().mean().sqrt())
        growth[name] = size * (weight[0].numel() ** 0.5)
        alike[kind_of(name), weight.shape][name] = size
    found = []
    for sizes in alike.values():
        largest = max(sizes, key=lambda name: sizes[name])
        others = [size for name, size in sizes.items() if name != largest]
        usual = float(np.median(others)) if others else sizes[largest]
        if sizes[largest] > EXPLODED * usual and growth[largest] > EXPLODED:
            ratio = sizes[largest] / max(usual, 1e-30)
            parameter = sim.graph.nodes[largest].params["weight"]
            message = f"{parameter} is {ratio:.3g} times as large as the weights of {len(others)} layers like it"
            found.append(replace(_finding("exploded_weight", largest, message, ratio=ratio), severity="warning"))
    return found


def _exploded_channels(
    sim: Simulation, name: str, made: TensorStats, readers: Sequence[str], users: Users
) -> Finding | None:
    """Return the finding of a few channels that decide alone what is computed from a layer's output.

    A wide channel that the next weights divide is none: they take it back, and only rounding suffers.
    """
    width = np.maximum(np.abs(made.low), np.abs(made.high))
    power = importance(sim.graph, sim.tensors, readers, name, len(width), users, behind_depthwise=True)
    arriving: Array = width * np.sqrt(power)
    alive = arriving[arriving > 0]
    if len(alive) < 4:
        return None
    usual = float(np.median(alive))
    large = np.flatnonzero(arriving > EXPLODED * usual)
    if not 0 < len(large) <= max(1, len(width) // 20):
        return None
    ratio = float(arriving.max() / usual)
    message = (
        f"channel {int(arriving.argmax())} weighs {ratio:.3g} times as much as the median one in what is computed "
        f"from it; {len(large)} of {len(width)} channels do"
    )
    found = _finding("exploded_channel", name, message, channels=[int(c) for c in large], ratio=ratio)
    return found if ratio > SURELY else replace(found, severity="warning")


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
    if answers is not None:
        targets, chance = answers.targets, answers.targets.chance()
        repaired = max((f.evidence["accuracy"][1] for f in known if "recovers" in f.evidence), default=0.0)
        right = f"in float it {targets.said(answers.score)} of {len(targets)} samples"
        if answers.guesses:
            message = f"{right}; guessing gives {chance:.1%}"
        elif answers.confidence - answers.score > OVERCONFIDENT:
            message = f"{right}, and sure of {answers.confidence:.1%}"
            severity = "error" if answers.confidence - answers.score > 2 * OVERCONFIDENT else "warning"
        elif not targets.classes and answers.renumbered > max(answers.score + OTHER_UNITS, repaired):
            message = f"{right}, and it {targets.said(answers.renumbered)} with its answers in other units"
            severity = "error" if answers.renumbered - answers.score > 2 * OTHER_UNITS else "warning"
        elif answers.too_large >= TOO_LARGE:
            message = f"{right}, and its scores are {answers.too_large:.0f} times as large as fits that"
            severity = "warning" if answers.too_large > TOO_LARGE else "note"
        shown = any(
            f.severity == "error"
            and f.cause in OF_LAYERS
            and f.cause != "wrong_scale"
            and f.evidence.keys() - OF_REPAIRS
            for f in known
        )
        other = 0.0 if shown and not targets.classes else answers.renumbered  # units make up for what is seen elsewhere
        if (message or repaired) and other > max(answers.score + ABOVE_CHANCE, repaired - SAME * targets.classes, MOST):
            how = "its classes numbered otherwise" if targets.classes else "its answers in other units"
            message, severity = f"{message or right}; with {how} it {targets.said(other)}", "error"
            evidence = {"accuracy": (answers.score, other)}
        elif any(f.cause == "float_network_wrong" and {"recovers", "fits"} & f.evidence.keys() for f in known):
            message = ""  # it is said
    numbers = answers is not None and not answers.targets.classes
    if not message and not numbers and classes is not None and classes < 1.01 and len(samples) >= ENOUGH:
        message, severity = f"in float it gives the same answer to all of {len(samples)} samples", "note"
    remedy = f"{TRAIN_ON}; see that inputs are prepared, and classes numbered, as in training"
    return [Finding("float_network_wrong", NETWORK, severity, message, remedy, evidence=evidence)] if message else []


def dead_before_norms(graph: Graph, known: Sequence[Finding]) -> list[Finding]:
    """Add to findings of dead channels which batch norm reads them next where its statistics are surely off.

    These were collected while the channels were alive.
    """
    stale = {f.place for f in known if (f.cause, f.severity) == ("stale_batch_norm", "error")}
    off = [node for node in graph if node.name in stale]
    read = {_layer_before(graph, graph.nodes[node.inputs[0]]): node.name for node in off if node.inputs}
    return [
        replace(f, evidence={**f.evidence, "before": read[f.place]})
        if f.cause == "dead_channels" and f.place in read
        else f
        for f in known
    ]


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

    def harmless(finding: Finding) -> bool:
        """With right answers, dead channels are, and a layer that lies as initialized by design."""
        if finding.cause == "dead_channels":
            whole = finding.evidence.get("share", 0.0) > NEARLY_ALL
            return "before" not in finding.evidence and not (whole and answers and not _surely_right(answers))
        by_design = "bound" in finding.evidence and "unlike" not in finding.evidence
        return by_design and answers is not None and _surely_right(answers)

    out = []
    for finding in findings:
        if finding.evidence.get("untouched") and finding.place not in repaired:
            out.append(finding)
            continue
        suspicious = finding.cause in ("wrong_weights", "float_network_wrong", "stale_batch_norm")
        suspicious |= finding.evidence.get("rounding", 0.0) > COARSE
        diverged = answers is not None and "dead layers" in finding.evidence and not _surely_right(answers)
        if diverged or (wrong and answers is not None and suspicious):
            finding = replace(finding, severity="error")
        elif not wrong and answers is not None and harmless(finding):
            finding = replace(finding, severity="note")
        elif not wrong and answers is not None and finding.cause in ("exploded_weight", "exploded_channel"):
            message = f"{finding.message}; in float the network {answers.targets.said(answers.score)} all the same"
            finding = replace(finding, message=message, evidence={**finding.evidence, "right": answers.score})
        out.append(finding)
    return [*out, *verdict]


def put_right(
    sim: Simulation, answers: Answers | None, samples: Samples, known: Sequence[Finding], until: float = math.inf
) -> list[Finding]:
    """Return what is known of single layers, with what the best repair shows: it names the operation that is wrong.

    Args:
        sim: a simulation of the network.
        answers: how it answers in float; None where no class indices are known, and nothing can be tried.
        samples: the samples that were answered.
        known: findings of single layers.
        until: time (``time.monotonic()``) from which nothing more is tried.
    """
    errors = {(f.place, f.cause) for f in known if f.severity == "error"}
    direct = any(cause in ("exploded_weight", "exploded_channel") for _, cause in errors)
    least = 1.0 if direct else NEARLY_ALL if any(cause == "dead_channels" for _, cause in errors) else 0.0
    tried = [] if answers is None else tried_repairs(sim, samples, answers.targets, until)
    helping = [r for r in tried if r.helps]
    if answers is not None and not helping and not answers.guesses:
        helping = [r for r in tried if r.surely_a_part]
    # Inputs make no weights large, and channels dead only where other inputs give nearly all of the answers back.
    helping = [r for r in helping if r.repair.cause != INPUTS_ARE_WRONG or r.share > least]
    # What is put right in several places at once gives answers back; without that it only bounds what has exploded.
    helping = [
        r
        for r in helping
        if not r.repair.also or (answers is not None and _above(r.accuracy[1], answers, ABOVE_CHANCE))
    ]
    if any(f.evidence.get("ratio", 0.0) > SURELY for f in known if f.cause in ("exploded_weight", "exploded_channel")):
        helping = [r for r in helping if not _bounds(r.repair)]  # what bounds results makes up for what has exploded
    # Where gains and biases are 0, it is these; without an activation the channels that are left say more.
    gone = {f.place for f in known if f.cause == "dead_channels" and _zeroed(sim, f.place)}
    helping = [r for r in helping if r.repair.node.name not in gone or r.repair.cause != "wrong_setting"]
    if not helping:
        return list(known)
    enough = helping[0].loss[1] + ALIKE * (helping[0].loss[0] - helping[0].loss[1])
    alike = [r for r in helping if r.loss[1] <= enough]
    if helping[0].repair.cause == "wrong_scale":  # which makes up for other faults in part, so that theirs is not worse
        alike = [r for r in alike if not r.surely_worse(helping[0])]
    best = next((r for r in alike if r.repair.cause not in COMPENSATING), None)
    best = best or next((r for r in alike if r.repair.cause == "wrong_scale" and r.repair.tensors), helping[0])
    if best.repair.also:  # of what gives as much back, the least that is put right
        fewer = [r for r in alike if r.repair.cause == best.repair.cause and not r.surely_worse(best)]
        best = min([best, *fewer], key=lambda r: len(r.repair.also))
    if best.repair.node.op == "table":  # a function has no scale that could be wrong, but layers beside it have
        best = next((r for r in alike if r.repair.cause == best.repair.cause and r.repair.node.params), best)
    # They are prepared wrongly more often than layers are.
    # Classes numbered otherwise give any answers back that go by pairs, as those of images with red for blue do.
    prepared = [r for r in helping if r.repair.cause == INPUTS_ARE_WRONG and (r in alike or r.share > MOST)]
    renumbered = [r for r in prepared if r in alike and r.repair.tensors]
    inputs = next((r for r in prepared if not r.repair.tensors and (renumbered or r in alike)), None)
    inputs = inputs or next(iter(renumbered), None)
    errors |= {(f.place, f.cause) for f in known if f.cause == "stale_batch_norm"}  # it is wrong, so they may well be
    suspects, order = {place for place, _ in errors}, list(sim.graph.nodes)

    def suspected(found: Repaired) -> tuple[int, bool]:
        place = found.repair.node.name
        return order.index(place), (place, found.repair.cause) not in errors

    suspect = min((r for r in alike if r.repair.node.name in suspects), key=suspected, default=best)
    made_up = suspect.repair.cause in COMPENSATING and best.repair.cause not in COMPENSATING
    apart = suspect.repair.cause == "stale_batch_norm" and not _comes_before(sim.graph, best.repair, suspect.repair)
    if not made_up or apart or suspected(suspect) < suspected(best):  # what makes up for a fault comes behind it
        best = suspect
    weak = best.repair.cause in (*COMPENSATING, INPUTS_ARE_WRONG)
    if inputs is not None and (weak or not inputs.surely_worse(best)):
        best = inputs
    inputs = inputs if best is inputs else None
    cause, place = best.repair.cause, NETWORK if inputs else owner_of(sim, best.repair.node.name)
    assert answers is not None
    before, after = (answers.targets.said(score) for score in best.accuracy)
    message = (
        f"in float the network {before} of {len(samples)} samples, and it {after} if {best.repair.text}; that takes "
        f"away {best.share:.0%} of its loss"
    )
    remedy = f"compare this operation, its settings and its parameters with those of training; {TRAIN_ON}"
    evidence: dict[str, Any] = {"recovers": best.share, "accuracy": best.accuracy}
    if answers.guesses and _above(best.accuracy[1], answers, ABOVE_CHANCE) and cause not in COMPENSATING:
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


def _zeroed(sim: Simulation, place: str) -> bool:
    """Return whether a part of the channels of a layer's batch norm has gains and biases of 0."""
    params = sim.graph.nodes[place].params if place in sim.graph.nodes else {}
    held = [sim.tensors[params[role]] for role in ("bn.weight", "bn.bias") if role in params]
    return len(held) == 2 and float(((held[0] == 0) & (held[1] == 0)).double().mean()) >= DEAD_SHARE


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


def diverged(before: float, after: float, least: float = DIVERGED) -> list[Finding]:
    """Return the finding of training that made the float network worse by more than ``least``, given its metric."""
    if not before - after > least:
        return []
    message = f"before any rounding the trained weights have {after:.4g}, the model's own {before:.4g}"
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    evidence = {"before": before, "after": after}
    return [Finding("diverged_training", NETWORK, "error", message, remedy, evidence=evidence)]


def changed_since(model: nn.Module, sim: Simulation) -> list[Finding]:
    """Return the finding of a model that was trained, or loaded, after the simulation was made, which has old weights.

    A simulation that was trained itself differs from the model, too, but the model is still what it was made of.
    """
    own, made = model.state_dict(), sim.state_dict()
    sums = {name: total for name, total in sim.captured.sums_of_bits.items() if name in own and name in made}
    changed = [name for name, total in sums.items() if sum_of_bits(own[name]) not in (total, sum_of_bits(made[name]))]
    if not changed:
        return []
    message = (
        f"{len(changed)} of {len(sums)} parameters of the model have changed since the simulation was made, "
        f"{changed[0]} first: the simulation is of another network"
    )
    remedy = "make it of the present model: intact8.prepare and intact8.calibrate again, before any training of it"
    return [Finding("float_mismatch", NETWORK, "error", message, remedy, evidence={"parameters": changed[:10]})]


def refused(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what a verdict says instead where the float network is already wrong, which no recipe repairs."""
    first = findings[0] if findings else None
    if first is None or first.severity != "error" or first.cause not in FLOAT_CAUSES or first.cause in USABLE:
        return {}
    if "right" in first.evidence:  # something is far too large, and the answers are right
        return {}
    reason = f"do not quantize this: the float network is already wrong ({first.place}: {first.cause})"
    return {"pays": False, "reason": reason}


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

    def partly(finding: Finding) -> bool:
        """Where a whole layer is dead, a part of another one is no cause."""
        return finding.cause == "dead_channels" and any(dead.values()) and not dead[finding.place]

    layers = {f.place for f in findings if f.cause in OF_LAYERS and not partly(f)}
    shown = [f for f in findings if f.cause in ("exploded_weight", "exploded_channel", "dead_channels")]
    first, grown = min((places.get(f.place, len(places)) for f in shown), default=len(places)), bool(shown)
    recovers = max((f.evidence.get("recovers", 0.0) for f in findings), default=0.0)
    seen = any(f.cause == "wrong_weights" and "recovers" not in f.evidence for f in findings)
    apart = [f for f in findings if not (grown and f.cause in COMPENSATING)]  # a scale may make up for what has grown
    explained = any("recovers" in f.evidence for f in apart)
    told = any({"explains", "healed"} & f.evidence.keys() for f in findings)
    whole = recovers <= MOST and (len(layers) > 2 or explained) and not seen and not told
    given = {f.place == NETWORK: f.evidence["accuracy"][1] for f in findings if "accuracy" in f.evidence}
    whole |= True in given and given[True] > given.get(False, 0.0) - SAME  # it is the inputs that come first of all
    # In most layers, or inputs with which the first batch norm sees what it saw in training.
    whole |= any(f.cause == "float_network_wrong" and {"layers", "fits"} & f.evidence.keys() for f in findings)
    whole &= not any(PROOF & f.evidence.keys() for f in findings)

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
            if PROOF & finding.evidence.keys() and not told and recovers <= enough:
                return 1, -2, places.get(finding.place, len(places))  # what weights show needs no guess
            inferred = finding.cause == "wrong_scale" and grown  # what weights and results themselves show comes first
            return 1, -1 if told else len(places) if inferred else places.get(finding.place, len(places)), kind
        return (0 if whole else 2), kind, 0

    return sorted(findings, key=key)
