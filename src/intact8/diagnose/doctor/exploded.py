"""Weights, channels and layers that are far larger than their like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.capture.operations import TRANSITIONS
from intact8.diagnose.doctor.consumers import CHANNELWISE, Users, depthwise_channels, importance
from intact8.diagnose.doctor.float_causes import LEAST, NEARLY_ALL, SURELY, TRAIN_ON
from intact8.diagnose.doctor.repair import kind_of
from intact8.diagnose.doctor.repairs import LARGE_EPS, followed_by
from intact8.diagnose.doctor.report import NETWORK, SEVERITIES, Finding
from intact8.diagnose.doctor.tensor_statistics import Statistics, TensorStats
from intact8.opset.op import Array
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first

EXPLODED = 30.0
"""Times the usual size from which a weight or a channel has exploded; trained networks stay below 10."""

HOLDS = 16.0
"""Size of a bias of a recurrent layer from which its gate says nothing of what comes in."""

CONSTANT = 0.1
"""Share of its size that the values of a channel differ by at most where it is an offset and says nothing."""

GROWN, HUGE = 3.0, 8.0
"""What the median row of a layer makes of unit inputs from which its weights are large, and huge; layers of twenty-two
trained networks stay below 2."""

VANISHED = 1e-3
"""What the median row of a layer makes of unit inputs below which its weights have vanished."""

SHORTCUT = 4.0
"""Times the weights beside them, in the median, from which those of a convolution that read their own channel hold a
shortcut; of RepVGG's blocks they are 10 to 30 times as large."""

FEW, BITS = 1000, 60
"""One weight in so many may be exceptional, and one at least; and up to three, one in so many at most."""

FEW_ROWS = 8
"""Rows of a table, at most and one in so many, that may be exceptional."""


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
            behind = _behind_activation(sim, name, seen, users)
            found[name] = _exploded_channels(sim, name, behind, seen.made[behind], sound, users)
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
    """Return the finding of a few weights of a recurrent layer, or of biases, that are far larger than the others."""
    weights = [tensors[name] for role, name in node.params.items() if role.startswith("weight_")]
    found = next(filter(None, (_exploded_weights(node.name, weight.detach()) for weight in weights)), None)
    biases = {name: tensors[name].detach().abs() for role, name in node.params.items() if role.startswith("bias_")}
    for name, size in biases.items() if found is None else ():
        usual = float(size.double().quantile(0.75))
        count = int((size > max(HOLDS, EXPLODED * usual)).sum())
        if count:
            message = f"{count} of {len(size)} numbers of {name} are up to {float(size.max()):.3g}, which hold gates"
            return weight_finding("exploded_weight", node.name, message, ratio=float(size.max()) / max(usual, 1e-30))
    return found


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
    return weight_finding("exploded_weight", node.name, message, row=int(where[0]), ratio=ratio)


def weight_finding(cause: str, place: str, message: str, **evidence: object) -> Finding:
    """Return an error that a layer's own numbers show."""
    remedy = f"{TRAIN_ON}, or look for what wrote these weights"
    return Finding(cause, place, "error", message, remedy, evidence=evidence)


def _exploded_weights(name: str, weight: Tensor) -> Finding | None:
    """Return the finding of a few weights of a layer that are far larger than all others."""
    if weight.numel() < LEAST:
        return None
    size = _without_shortcut(weight).abs().double().reshape(-1)
    few = max(1, len(size) // FEW, min(3, len(size) // BITS))
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
    return weight_finding("exploded_weight", name, message, index=index, ratio=float(largest[0]) / max(rest, 1e-30))


def _without_shortcut(weight: Tensor) -> Tensor:
    """Return the weights of a convolution with 0 where a shortcut was merged into them, as in a RepVGG for inference.

    That is in the middle of every filter over its own channel: these weights are mostly much larger than those beside
    them, and may be so by far where a batch norm of the shortcut divided by a small deviation.
    """
    if weight.dim() < 3 or weight.shape[0] != weight.shape[1]:
        return weight
    places = weight.flatten(2)
    middle = places.shape[2] // 2  # of sides that are odd
    taps = places[:, :, middle].abs()
    beside = ~torch.eye(len(taps), dtype=torch.bool, device=taps.device)
    if not float(taps.diagonal().median()) > SHORTCUT * float(taps[beside].median()):
        return weight
    own = torch.arange(len(taps), device=taps.device)
    rest = places.clone()
    rest[own, own, middle] = 0
    return rest


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
    return weight_finding("exploded_channel", name, message, channels=[channel], ratio=ratio)


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
    grown = [name for name, gain in gains.items() if gain > (GROWN if killed else HUGE)]
    vanished = [name for name, gain in gains.items() if gain < VANISHED] if killed else []
    if len(gains) > 1 and 2 * len(vanished) > len(gains):
        message = (
            f"the weights of {len(vanished)} of {len(gains)} layers are next to nothing, and make "
            f"{min(gains.values()):.3g} of unit inputs, and whole layers are dead: training made them vanish"
        )
        remedy = f"{TRAIN_ON}, and train on with less weight decay"
        evidence: dict[str, Any] = {"layers": vanished, "dead layers": True}
        return [Finding("float_network_wrong", NETWORK, "warning", message, remedy, evidence=evidence)]
    if not len(gains) > 1 or not (2 * len(grown) >= len(gains) + (not killed)):
        return []
    largest = max(gains.values())
    message = (
        f"the weights of {len(grown)} of {len(gains)} layers are {'large' if killed else 'huge'}, and make "
        f"{largest:.3g} of unit inputs{', and whole layers are dead' if killed else ''}: training has diverged"
    )
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    evidence = {"layers": grown, **({"dead layers": True} if killed else {})}
    return [Finding("float_network_wrong", NETWORK, "warning", message, remedy, evidence=evidence)]


def averaged_from_zero(sim: Simulation) -> list[Finding]:
    """Return the finding that the gains of all norms are next to nothing: training leaves them near 1.

    A moving average of weights that begins with zeros is so where it has not been corrected.
    """
    gains = [n.params["weight"] for n in norms(sim)]
    gains += [n.params["bn.weight"] for n in sim.graph if "bn.weight" in n.params]
    sizes = [float(sim.tensors[name].detach().abs().median()) for name in gains]
    if len(sizes) < MANY_NORMS or not 0 < max(sizes) < SHRUNK:
        return []
    message = f"the gains of all {len(sizes)} norms are next to nothing, {max(sizes):.2g} at most in the median"
    message += ", as where a moving average of weights begins with zeros and is not corrected"
    return [replace(weight_finding("float_network_wrong", NETWORK, message, gains=max(sizes)), severity="warning")]


MANY_NORMS, SHRUNK = 3, 0.2
"""Norms from which it says something that the gains of all are small, and the median gain that is small."""


def drowned(sim: Simulation) -> list[Finding]:
    """Return findings of batch norms whose eps is far larger than most running variances of channels that change."""
    found: dict[str, Finding] = {}
    for node in sim.graph:
        attrs = node.attrs.get("bn") or (node.attrs if node.op == "batch_norm" else {})
        name = node.params.get("bn.running_var", "")
        if not name or "eps" not in attrs:
            continue
        variance = sim.tensors[name].detach()
        alive = variance[variance > STILL]
        share = float((alive < float(attrs["eps"]) / DROWNS).double().mean()) if 2 * len(alive) > len(variance) else 0.0
        if share > 0.5:
            message = f"its eps of {attrs['eps']:.3g} is larger than {share:.0%} of its running variances"
            remedy = "compare its eps with that of training"
            found.setdefault(name, Finding("wrong_setting", node.name, "warning", message, remedy))
    return list(found.values())


DROWNS, STILL = 5.0, 1e-12
"""How many times as large as running variances eps is that leaves nothing of them, and a variance of dead channels."""


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
    growth, users = {}, sim.graph.users()
    for name in names:
        weight = folded(sim.graph.nodes[name], sim.tensors)[0].detach()
        factors = _factors_behind(sim, name, users)
        if len(factors) == len(weight):
            weight = weight * factors.reshape(-1, *[1] * (weight.dim() - 1))
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
            found.append(replace(weight_finding("exploded_weight", largest, message, ratio=ratio), severity="warning"))
    return found


def _factors_behind(sim: Simulation, name: str, users: Users) -> Tensor:
    """Return the constant factors of a layer's channels, as layer scales are, that alone read it; else none."""
    reader = sim.graph.nodes[users[name][0]] if len(users[name]) == 1 else None
    while reader is not None and reader.op in TRANSITIONS:
        reader = sim.graph.nodes[users[reader.name][0]] if len(users[reader.name]) == 1 else None
    if reader is None or reader.op not in ("mul", "scale_shift"):
        return torch.zeros(0)
    given = [sim.graph.nodes[n].params.get("value", "") for n in reader.inputs] + [reader.params.get("weight", "")]
    return next((sim.tensors[n].detach().abs().reshape(-1) for n in given if n), torch.zeros(0))


def _behind_activation(sim: Simulation, name: str, seen: Statistics, users: Users) -> str:
    """Return the activation that alone reads a layer, or the layer: what is large may be nothing behind it."""
    readers = users[name]
    while len(readers) == 1 and sim.graph.nodes[readers[0]].op in TRANSITIONS:
        readers = users[readers[0]]
    behind = readers[0] if len(readers) == 1 and sim.graph.nodes[readers[0]].op == "table" else name
    alike = behind in seen.made and len(seen.made[behind].low) == len(seen.made[name].low)
    return behind if alike else name


def _exploded_channels(
    sim: Simulation, name: str, behind: str, made: TensorStats, readers: Sequence[str], users: Users
) -> Finding | None:
    """Return the finding of a few channels that decide alone what is computed from a layer's output.

    A wide channel that the next weights divide is none: they take it back, and only rounding suffers.

    Args:
        sim: a simulation of the network.
        name: the layer.
        behind: its activation, if there is one, else the layer.
        made: what that gives.
        readers: layers whose weights are sound.
        users: what reads every node.
    """
    width = np.maximum(np.abs(made.low), np.abs(made.high))
    power = importance(sim.graph, sim.tensors, readers, behind, len(width), users, behind_depthwise=True)
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
    constant = bool(((made.high - made.low)[large] < CONSTANT * width[large]).all())
    found = weight_finding("exploded_channel", name, message, channels=[int(c) for c in large], ratio=ratio)
    if constant:
        found = replace(found, evidence={**found.evidence, "offset": float(width[large].max())})
    return found if ratio > SURELY else replace(found, severity="warning")
