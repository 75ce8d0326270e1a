"""What is wrong before any rounding: a simulation that is not the network, stale batch norm, dead channels, islands."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import HEAVY, TRANSITIONS
from intact8.diagnose.chunks import Chunk, cut
from intact8.diagnose.doctor.float_causes import NEARLY_ALL
from intact8.diagnose.doctor.float_network import FloatNetwork, outputs_of
from intact8.diagnose.doctor.report import NETWORK, Confidence, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import along_samples, source_of
from intact8.diagnose.doctor.tensor_statistics import Statistics, TensorStats
from intact8.diagnose.executors import unquantized
from intact8.opset.op import Array
from intact8.placement.place import Placed
from intact8.recipe.recipe import FLOAT_BETWEEN_LAYERS, Recipe
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import output_first

FLOAT_BY_RECIPE = 'nonlinear = "float"'
"""Words by which placement says that an operation has an integer form in other recipes."""

LEFT_FLOAT = "the recipe keeps it float"
"""Words by which placement says that the recipe, or a remedy, leaves an operation float."""

FLOAT_NOISE = 1e-3
"""Outputs may differ by this share of the largest one: folding batch norm and another order of sums do that."""

STALE, CERTAIN = 0.45, 0.6
"""How far a batch norm's statistics must be off to be suspicious, and to be stale for sure: the root of the mean square
over channels of the shift of means, in standard deviations, and of twice the mean logarithm of the ratio of deviations.
On held-out data of eleven trained networks it was 0.31 at most, 0.1 in most of them."""

CANCELS, ROUNDINGS = 1000.0, 32.0
"""How many times as large as their difference terms are from which float32 cancels, and by how many roundings of these
terms, relative to the difference, outputs may differ then: sums and what is behind add up several."""

DEAD_SHARE, MOSTLY_DEAD = 0.1, 0.5
"""A smaller share of dead channels than the first is usual; from the second on the layer says little."""

DEAD_WIDTH = 1e-5
"""A channel is dead whose values spread less than this share of the median channel's."""

RARELY, MOSTLY_RARE = 0.01, 0.75
"""A channel behind an activation that is 0 but in this share of its values says next to nothing, and the share of such
channels from which a layer says too little. In 119 trained networks at most half of a layer's were such, but for layers
that squeeze channels."""

DROWNED = 0.01
"""Deviation of a batch norm's results, mostly about 1, below which its channel is a constant."""

PRUNE = {
    "warning": "prune them, or train on: they cost time and say nothing",
    "error": "load the weights of training again, and see that the layer's inputs are those of training",
}
"""What to do about dead channels: where a few are dead, training left them so; where most are, something is wrong."""

GROWN, LEAST_CHANNELS = 5.0, 8
"""Times the usual size from which the weights of a channel, and what their results vary by, have grown; and channels
below which there is no usual size."""

USUAL_EPS = 1e-3
"""The largest number that frameworks add to variances by default; a larger one is a part of what is wrong."""


def check_confidence(network: FloatNetwork, sim: Simulation, samples: Samples) -> Confidence:
    """Compare the simulation without rounding with the model."""
    worst, largest = 0.0, 1e-30
    leaves = torch.utils._pytree.tree_leaves
    with unquantized(sim):
        for batch in samples:
            simulated = leaves(sim.captured.rebuild(outputs_of(sim, batch)))
            for y, other in zip(leaves(network(batch)), simulated, strict=True):
                if isinstance(y, Tensor) and y.is_floating_point():
                    worst = max(worst, float((y - other).abs().max()))
                    largest = max(largest, float(y.abs().max()))
    error = worst / largest
    return Confidence(error, error <= FLOAT_NOISE, len(samples))


def mismatch(confidence: Confidence) -> list[Finding]:
    """Return the finding of a failed confidence check."""
    if confidence.passed:
        return []
    message = f"with rounding off the simulation differs from the model by {confidence.error:.1%} of the largest output"
    remedy = "find the operation that is captured wrongly before looking at anything else; intact8.compare names it"
    evidence = {"relative_error": confidence.error}
    return [Finding("float_mismatch", NETWORK, "error", message, remedy, evidence=evidence)]


def batch_dependence(network: FloatNetwork, samples: Samples, graph: Graph) -> list[Finding]:
    """Return the finding of answers that depend on the other samples of a batch, at a recurrent layer along them."""
    batch = samples.batches[0]
    if network.whole or len(batch) < 2:
        return []
    leaves = torch.utils._pytree.tree_leaves
    worst = 0.0
    for at in (0, len(batch) - 1):  # what runs along the samples leaves the first one as it is
        alone = cut(batch.batch, torch.tensor([at]), len(batch))
        try:
            given = leaves(network(Chunk([], alone, 1)))
        except Exception:  # noqa: BLE001 - the model's code may refuse a sample alone, where a length is the longest's
            return []
        for y, other in zip(leaves(network(batch)), given, strict=True):
            same = isinstance(y, Tensor) and y.is_floating_point() and y.dim() > 0 and y.shape[1:] == other.shape[1:]
            if same and len(y) == len(batch) and len(other) == 1:
                worst = max(worst, float((y[at] - other[0]).abs().max()) / max(float(y.abs().max()), 1e-30))
    if not worst > FLOAT_NOISE:
        return []
    along = [n.name for n in graph if n.op in GATES and along_samples(graph.nodes[n.inputs[0]].shape)]
    if along:
        message = f"it runs along the samples of a batch: the answer to one changes by {worst:.1%} if it is alone"
        remedy = "give it (steps, samples, features), or make it with batch_first=True"
        evidence: dict[str, Any] = {"relative_change": worst}
        return [Finding("batch_dependence", along[0], "error", message, remedy, evidence=evidence)]
    message = f"the answer to a sample changes by {worst:.1%} of the largest output if it is the only one of its batch"
    remedy = "look for a softmax, a mean or a norm that runs along dimension 0, the samples"
    evidence = {"relative_change": worst}
    return [Finding("batch_dependence", NETWORK, "error", message, remedy, evidence=evidence)]


def cancelled(sim: Simulation, samples: Samples, doubts: Sequence[Finding]) -> list[Finding]:
    """Return small doubts about the simulation or batches, or in their place the difference that explains them.

    Of two numbers that are thousands of times as large as their difference, as a mean of squares and a squared mean
    are, float32 leaves little of it; and another order of sums, in the simulation or another batch, another little.
    """
    changes = [f.evidence.get("relative_error", f.evidence.get("relative_change", 0.0)) for f in doubts]
    if not doubts:
        return []
    worst, place = CANCELS, ""

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        nonlocal worst, place
        if node.op == "sub" and (y := real(output)).is_floating_point():
            size, *terms = (float(x.double().square().mean()) for x in (y, *map(real, inputs)))
            if min(terms) > worst**2 * size > 0:
                worst, place = (min(terms) / size) ** 0.5, node.name

    with unquantized(sim), torch.no_grad():
        sim.run(list(samples.batches[0].inputs), visit=visit)
    if not place or max(changes) > ROUNDINGS * worst * 2.0**-24:
        return [*doubts]
    message = (
        f"its terms are {worst:.3g} times as large as their difference, of which float32 leaves few digits: another "
        f"order of sums changes outputs by {max(changes):.1%}"
    )
    remedy = "subtract the mean first: the variance is the mean of (x - mean)², not of x² less the squared mean"
    evidence = {"terms": worst, "changes": max(changes)}
    return [Finding("cancellation", place, "error", message, remedy, evidence=evidence)]


def stale_batch_norm(network: FloatNetwork, graph: Graph, samples: Samples) -> list[Finding]:
    """Return the first batch norm whose running statistics are not those of its inputs."""
    norms = {n: m for n, m in network.model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    norms = {n: m for n, m in norms.items() if m.running_mean is not None}
    sums: dict[str, tuple[Tensor, Tensor, int]] = {}

    def add(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().double().transpose(0, 1).flatten(1)
        total, square, count = sums.get(name, (torch.zeros(()), torch.zeros(()), 0))
        sums[name] = (total + x.sum(1), square + x.pow(2).sum(1), count + x.shape[1])

    handles = [module.register_forward_pre_hook(partial(add, name)) for name, module in norms.items()]
    try:
        for batch in samples:
            network(batch)
    finally:
        for handle in handles:
            handle.remove()
    trained = dict(network.model.named_parameters())
    found = (_stale(name, norms[name], sums[name], graph, trained) for name in sums)  # in the order they ran
    first = next((finding for finding in found if finding is not None), None)
    return [] if first is None else [first]  # those behind it see what it made of their inputs


def distance(mean: Tensor, variance: Tensor, seen_mean: Tensor, seen: Tensor, eps: float) -> tuple[float, float]:
    """Return by how many standard deviations means, and by which factor deviations, are off from those of training."""
    alive = (seen > 1e-8) | (variance > 1e-8)
    if not alive.any():
        return 0.0, 1.0
    deviation = (seen + eps).sqrt()[alive]
    shift = float(((mean - seen_mean)[alive] / deviation).square().mean().sqrt())
    return shift, float((((variance + min(eps, USUAL_EPS))[alive].sqrt() / deviation).log().abs()).mean().exp())


def off_by(shift: float, ratio: float) -> float:
    """Return how far statistics are off in all, as STALE counts it."""
    return math.hypot(shift, 2 * math.log(ratio))


def _stale(
    name: str, norm: nn.Module, sums: tuple[Tensor, Tensor, int], graph: Graph, trained: Mapping[str, Tensor]
) -> Finding | None:
    total, square, count = sums
    assert isinstance(norm.running_mean, Tensor) and isinstance(norm.running_var, Tensor)
    mean, running, eps = total / count, norm.running_var.double(), float(norm.eps)  # type: ignore[arg-type]
    variance = (square / count - mean**2).clamp(min=0)
    shift, ratio = distance(mean, variance, norm.running_mean.double(), running, eps)
    off = off_by(shift, ratio)
    place = next((n.name for n in graph if name in n.source or name == n.name), name)
    weight = norm.weight if isinstance(norm.weight, Tensor) else torch.ones(())
    gain = weight.detach().double().abs()
    left = float(((gain * (variance / (variance + eps)).sqrt()) < DROWNED).double().mean())
    units = _other_units(variance, running, graph.nodes.get(place), graph, trained)
    if not units and left >= MOSTLY_DEAD and float((gain > DROWNED).double().mean()) >= MOSTLY_DEAD:
        message = (
            f"what batch norm {name} reads varies so little beside its eps, {eps:.3g}, that {left:.0%} of its channels "
            "are constants: the weights before it have vanished"
        )
        vanished = {"share": left, **({"vanished": name} if left > NEARLY_ALL else {})}
        return Finding("dead_channels", place, "error", message, PRUNE["error"], evidence=vanished)
    grown = _grown_rows(mean, variance, norm, graph.nodes.get(place), trained)
    if grown:
        message = (
            f"the weights of channel {grown[0]} are many times as large as those of the others, and batch norm {name}, "
            "whose statistics fit all other channels, did not see them in training"
        )
        remedy = "load the weights of training again, or look for what wrote these"
        return Finding("exploded_channel", place, "error", message, remedy, evidence={"channels": grown})
    if off < STALE + 2 / count**0.5:
        return None
    if eps > USUAL_EPS and off_by(*distance(mean, variance, norm.running_mean.double(), running, USUAL_EPS)) < STALE:
        smaller = float(((running + eps) / (running + USUAL_EPS)).sqrt().median())
        message = f"the eps of batch norm {name} is {eps:.3g}, with which it gives {smaller:.3g} times less than usual"
        remedy = "set the eps of training, which is 1e-5 mostly, and 1e-3 at most"
        return Finding("wrong_setting", place, "error", message, remedy, evidence={"eps": eps, "factor": smaller})
    still = float((variance < DEAD_WIDTH * running).double().mean())
    if not units and still >= MOSTLY_DEAD:
        message = f"{still:.0%} of the channels that batch norm {name} reads never change"
        return Finding("dead_channels", place, "error", message, PRUNE["error"], evidence={"share": still})
    message = (
        f"the running statistics of {name} are not those of its inputs: means are off by {shift:.2f} standard "
        f"deviations, standard deviations by a factor of {ratio:.2f}"
    )
    remedy = "the float network itself is wrong: load the right statistics, or renew them on batches in training mode"
    if _reads_input(graph.nodes.get(place), graph):
        remedy += "; it reads an input: see first that inputs are cut, scaled and prepared as in training"
    evidence: dict[str, Any] = {"batch_norm": name, "mean_shift": shift, "deviation_ratio": ratio}
    if bool((norm.running_mean == 0).all()) and bool((running == 1).all()):
        message += "; all means are 0 and all variances 1, as they begin"
        evidence["initial"] = True
    level = "error" if off >= CERTAIN else "warning"
    return Finding("stale_batch_norm", place, level, message, remedy, evidence=evidence)


def _reads_input(node: Node | None, graph: Graph) -> bool:
    """Return whether a layer reads an input of the network."""
    return node is not None and bool(node.inputs) and graph.nodes[source_of(graph, node.inputs[0])].op == "input"


def _other_units(
    variance: Tensor, seen: Tensor, node: Node | None, graph: Graph, trained: Mapping[str, Tensor]
) -> bool:
    """Return whether all that a layer makes of an input varies less than in training by about one factor, though its
    weights are none that vanished, so that the input comes in other units."""
    weight = None if node is None else trained.get(node.params.get("weight", ""))
    if weight is None or not _reads_input(node, graph):
        return False
    fall = ((variance + 1e-30) / (seen + 1e-30)).log()
    size = weight.detach().double().square().mean().sqrt() * math.sqrt(weight[0].numel())
    return bool(fall.max() < math.log(DEAD_WIDTH)) and len(fall) > 1 and float(fall.std()) < 1 and float(size) > DROWNED


def _grown_rows(
    mean: Tensor, variance: Tensor, norm: nn.Module, node: Node | None, trained: Mapping[str, Tensor]
) -> list[int]:
    """Return the few channels whose weights have grown since a batch norm saw them; [] where it is the statistics.

    Statistics that are old are off in most channels. Where all but a few fit, and the weights of these few are far
    larger than those of the others, as far as their results vary more than they did, these weights have changed.
    """
    weight = None if node is None else trained.get(node.params.get("weight", ""))
    if node is None or weight is None or len(mean) < LEAST_CHANNELS:
        return []
    rows = output_first(weight.detach(), node).double().flatten(1).norm(dim=1)
    if len(rows) != len(mean):
        return []
    assert isinstance(norm.running_mean, Tensor) and isinstance(norm.running_var, Tensor)
    seen_mean, seen, eps = norm.running_mean.double(), norm.running_var.double(), float(norm.eps)  # type: ignore[arg-type]
    growth = ((variance + eps) / (seen + eps)).sqrt()
    few = max(1, len(rows) // 20)
    order = growth.argsort(descending=True)
    off, rest = [int(i) for i in order[:few] if float(growth[i]) > GROWN], order[few:]
    fits = off_by(*distance(mean[rest], variance[rest], seen_mean[rest], seen[rest], eps)) < STALE
    usual = float(rows.median())
    return off if fits and off and all(float(rows[i]) > GROWN * usual for i in off) else []


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else 0.0


def dead_channels(graph: Graph, layers: Collection[str], seen: Statistics) -> list[Finding]:
    """Return findings of the layers with a weight of which, or of whose activation, a good part never changes.

    Where an activation changes no more, only what is 0 behind it counts: a gate that is always open is no fault. What
    a layer makes of inputs that never change follows from the layer before it, and is no finding of its own.
    """
    found: dict[str, Finding] = {}
    for name, (layer, part) in ((n, made) for n in seen.made for made in _made_by(graph, n)):
        t, (low, high) = seen.made[name], seen.flat.get(name, (-np.inf, np.inf))
        width, size = (t.high - t.low)[part], np.maximum(np.abs(t.low), np.abs(t.high))[part]
        usual = _median(width[width > 0])
        still = ~(np.isclose(t.low[part], low) | np.isclose(t.high[part], high))
        if layer != name:
            before = seen.made.get(layer)
            usual = usual if before is None else max(usual, _median(before.high - before.low))
            still = size <= DEAD_WIDTH * max(size.max(), 1.0)
        channels, dead = len(width), int((still & (width <= DEAD_WIDTH * usual)).sum())
        large = channels > 1 and dead >= max(2, DEAD_SHARE * channels)
        rare = _rarely_positive(graph.nodes[name], t) if layer == name and channels >= LEAST_CHANNELS else 0
        squeezes = _reads_means(graph, layer)
        rarely = rare >= MOSTLY_RARE * channels and not squeezes
        if layer in layers and (large or rarely) and not reads_nothing_new(seen, layer):
            message = f"{dead} of {channels} channels never change on {seen.samples} samples"
            if rarely and rare > dead:
                message = f"{rare} of {channels} channels are 0 in more than {1 - RARELY:.0%} of their values"
                dead = rare
            evidence: dict[str, Any] = {"dead": dead, "channels": channels, "share": dead / channels}
            if squeezes:
                evidence["of means"] = True
            mostly = dead >= MOSTLY_DEAD * channels and (channels >= LEAST_CHANNELS or dead == channels)
            mostly &= not squeezes or dead == channels
            severity = "error" if mostly else "warning"
            found[layer] = Finding("dead_channels", layer, severity, message, PRUNE[severity], evidence=evidence)
    return sorted(found.values(), key=lambda f: -f.evidence["share"])


def _rarely_positive(node: Node, t: TensorStats) -> int:
    """Return how many channels an activation that begins at 0 leaves next to nothing of."""
    act = node.attrs.get("act") or {}
    if act.get("min") != 0:
        return 0
    return int((t.nonzero < RARELY * t.count).sum())


def _reads_means(graph: Graph, name: str) -> bool:
    """Return whether a layer reads means of all places, as that which squeezes channels does; some of it dies often."""
    node = graph.nodes[name]
    while node.inputs:
        node = graph.nodes[node.inputs[0]]
        if node.op in ("mean", "adaptive_avg_pool"):
            return True
        if not node.moves and node.op not in TRANSITIONS:
            return False
    return False


def _made_by(graph: Graph, name: str) -> list[tuple[str, slice]]:
    """Return the nodes that make a tensor's channels, and which: of an activation what it reads, joined or not."""
    if graph.nodes[name].op != "table":
        return [(name, slice(None))]
    before = graph.nodes[graph.nodes[name].inputs[0]]
    if before.op != "cat" or before.attrs["axis"] != 1:
        return [(before.name, slice(None))]
    ends = np.cumsum([0, *(int(graph.nodes[n].shape[1] or 0) for n in before.inputs)])
    return [(n, slice(int(a), int(b))) for n, a, b in zip(before.inputs, ends, ends[1:], strict=False)]


def reads_nothing_new(seen: Statistics, layer: str) -> bool:
    """Return whether what a layer reads never changes."""
    read = seen.read.get(layer)
    if read is None:
        return False
    size = np.maximum(np.abs(read.low), np.abs(read.high))
    return bool((read.high - read.low <= DEAD_WIDTH * size).all())


def dead_gains(gains: Mapping[str, Tensor]) -> list[Finding]:
    """Return findings of the norms, given their gains by name, of which a good part multiplies by nothing."""
    found = []
    for name, gain in gains.items():
        size = gain.detach().abs()
        dead, channels = int((size <= DEAD_WIDTH * size.max()).sum()), size.numel()
        if channels > 1 and dead >= max(2, DEAD_SHARE * channels):
            message = f"the gains of {dead} of {channels} channels are 0"
            evidence: dict[str, Any] = {"dead": dead, "channels": channels, "share": dead / channels}
            level = "error" if dead >= MOSTLY_DEAD * channels else "warning"
            found.append(Finding("dead_channels", name, level, message, PRUNE[level], evidence=evidence))
    return found


def emptied(findings: Sequence[Finding], graph: Graph, tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Return findings with the proof, for dead channels of layers, that most of them have filters of zeros only."""
    out = []
    for finding in findings:
        node = graph.nodes.get(finding.place)
        if finding.cause == "dead_channels" and node is not None and node.op in HEAVY and "weight" in node.params:
            filters = output_first(tensors[node.params["weight"]].detach(), node).flatten(1)
            empty = int((filters == 0).all(1).sum())
            if empty >= MOSTLY_DEAD * len(filters):
                message = f"{finding.message}; {empty} of its {len(filters)} filters are nothing but zeros"
                finding = replace(finding, message=message, evidence={**finding.evidence, "zeros": empty})
        out.append(finding)
    return out


def islands(placed: Placed, recipe: Recipe) -> list[Finding]:
    """Return findings of the layers that the recipe keeps float, and of those that have no integer form in it.

    What lies between layers is no finding where the recipe wants it in float32.
    """
    out = []
    layers_only = recipe.rounds_between_layers in FLOAT_BETWEEN_LAYERS
    for name, reason in placed.float_nodes.items():
        node = placed.graph.nodes.get(name)
        if node is not None and layers_only and node.op not in HEAVY:
            continue
        if node is not None and reason == LEFT_FLOAT:
            message = (
                f"the recipe keeps this {node.op} float; {placed.transitions} conversions between float and integers "
                "in the network"
            )
            evidence: dict[str, Any] = {"op": node.op, "transitions": placed.transitions}
            remedy = "quantize it unless that costs accuracy"
            out.append(Finding("left_float", name, "warning", message, remedy, evidence=evidence))
    reasons = placed.float_nodes.items()
    incapable = {n: r for n, r in reasons if r.startswith("no integer form") or FLOAT_BY_RECIPE in r}
    if incapable:
        names = ", ".join(list(incapable)[:5])
        message = f"{len(incapable)} operations have no integer form, or none in this recipe: {names}"
        remedy = (
            "leave them: they cost time, not accuracy; softmax, norms and embeddings become integers with "
            'nonlinear = "integer"'
        )
        evidence = {"operations": incapable}
        out.append(Finding("no_integer_form", NETWORK, "note", message, remedy, evidence=evidence))
    return out
