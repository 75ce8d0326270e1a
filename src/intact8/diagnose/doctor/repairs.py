"""Faults of the float network found by putting right one thing at a time: what gives the answers back was wrong.

A repair changes what one operation computes, and only what is behind it is computed again. It counts by the negative
log-likelihood of the labels, each network at the temperature that suits it best, so that being too sure is no fault.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, permutations, takewhile
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.network_checks import STALE, distance, off_by
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import (
    FUNCTIONS,
    UNCHANGED,
    filling,
    function_of,
    otherwise,
    source_of,
    together,
    with_function,
    word_of,
)
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.doctor.tensor_statistics import axis_of
from intact8.diagnose.doctor.wiring_repairs import answers_reordered, rewired, shortcuts
from intact8.diagnose.executors import FloatExecutor, unquantized
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import output_first

GAINS = (1 / 64, 1 / 8, 8.0, 64.0)
"""Factors tried on what every operation gives, and then their neighbours at the best places."""

SCREENED, REFINED = 64, 6
"""Samples on which everything is tried, and the number of places that are tried on all samples."""

RECOVERS, EXTREME, SURE = 0.3, 0.08, 3.5
"""Share of the loss that a repair must take away, and one that is extreme; and standard errors of the difference that
this must be. In twelve sound networks nothing but new statistics of batch norms took away more than 29 %, by 2.7
standard errors at most."""

MOST, A_PART = 0.5, 0.12
"""Share of the loss that is most of it, for which less sureness will do; and one for which twice as much is needed."""

WORSE = 2.0
"""Standard errors from which one repair is worse than another."""

MANY_MORE, NOISY = 0.1, 0.2
"""Share of answers that a repair must put right, and the share of the loss that is enough then: where the trained
network is wrong on one sample in five, most of its loss cannot be taken away."""

COMPENSATING = ("stale_batch_norm", "wrong_scale")
"""Causes of repairs that make up for other faults, too."""

UNUSUAL = 5.0
"""Times the size of its like from which a channel, or a weight, is set to it to see whether that helps."""

OFF_CENTRE = 30.0
"""Standard deviations that a channel's mean must be away from 0 to be tried at 0."""

USUAL_EPS, LARGE_EPS = 1e-5, 1e-3
"""The number that most networks add to variances, and the largest one that frameworks add by default."""

SIZES = 8.0
"""Times the usual size from which a whole weight is tried at it."""

SATURATES = 8.0
"""Size of a bias from which a gate stays open or closed, whatever comes in."""

PAIRS = 2000
"""Pairs of layers that are looked at for weights that were exchanged."""

MOST_COLUMNS = 20
"""Columns of a table up to which any two are exchanged."""

KEPT = 2**25
"""Numbers of a network's tensors that are kept at a time, about."""

AT_ONCE = 32
"""Repairs that are tried together, after which the time is looked at."""

DISCRETE = ("float_network_wrong", "wrong_setting", "wrong_weights", "exploded_weight", "exploded_channel")
"""Causes of repairs that are more than a change of scale."""


@dataclass(frozen=True)
class Repaired:
    """What a repair gives: the score (see Targets) before and after, and the loss.

    Attributes:
        sureness: standard errors by which the loss is less, or more answers are right.
        losses: the loss of every sample after it.
    """

    repair: Repair
    accuracy: tuple[float, float]
    loss: tuple[float, float]
    sureness: float
    losses: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)

    def surely_worse(self, other: Repaired) -> bool:
        """Return whether it is hardly chance that another repair leaves less of the loss, or more right answers."""
        more = self.losses - other.losses
        surely = float(more.mean()) > WORSE * float(more.std()) / len(more) ** 0.5
        return surely or _by_scores(self.accuracy[1], other.accuracy[1], len(more)) > WORSE

    @property
    def share(self) -> float:
        """The share of the loss that is taken away."""
        return 1 - self.loss[1] / max(self.loss[0], 1e-30)

    @property
    def helps(self) -> bool:
        """Whether it is no accident that this takes away much of the loss, or something extreme a part of it."""
        if self.accuracy[1] < self.accuracy[0]:
            return False
        if self.repair.cause == "stale_batch_norm":  # statistics of the data themselves suit them better anyway
            return self.share > RECOVERS and self.accuracy[1] > self.accuracy[0] + 0.05
        if "its eps" in self.repair.text:
            return self.share > EXTREME and self.sureness > 2
        extreme = isinstance(self.repair.gain, float) and not 1 / 16 < self.repair.gain < 16
        prepared = self.repair.cause == INPUTS_ARE_WRONG
        least = EXTREME if extreme else RECOVERS
        surer = self.share > MOST and self.repair.cause in DISCRETE
        sure = SURE - 0.5 if extreme or prepared or surer else SURE
        if self.repair.cause not in COMPENSATING and self.accuracy[1] > self.accuracy[0] + MANY_MORE:
            least = min(least, NOISY)
        return self.share > least and self.sureness > sure

    @property
    def surely_a_part(self) -> bool:
        """Whether it surely takes away a part of the loss, as where most of it cannot be: of letters to come, say."""
        discrete = self.repair.cause in DISCRETE and self.accuracy[1] >= self.accuracy[0]
        return discrete and self.share > A_PART and self.sureness > 2 * SURE


def tried_repairs(sim: Simulation, samples: Samples, targets: Targets, until: float = math.inf) -> list[Repaired]:
    """Try repairs, the likely ones first, and return the best ones, the best first.

    Args:
        sim: a simulation of the network; its switches are as before afterwards.
        samples: the samples.
        targets: their right answers.
        until: time (``time.monotonic()``) from which nothing more is tried.
    """
    few = samples.first(SCREENED)
    candidates = list(repairs(sim, samples))
    candidates += answers_reordered(sim, _answers(sim, samples, [])[0], targets)
    candidates = sorted([*candidates, *together(candidates, sim.graph)], key=_likely)
    now = targets.first(len(few))
    losses: list[tuple[float, Repair]] = []
    for start in range(0, len(candidates), AT_ONCE):
        some = candidates[start : start + AT_ONCE]
        answered = zip(_answers(sim, few, some)[1], some, strict=True)
        losses += [(float(now.losses(y).mean()), repair) for y, repair in answered if y is not None]
        if time.monotonic() > until:
            break
    best: dict[str, list[Repair]] = {}
    for _, repair in sorted(losses, key=lambda pair: pair[0]):
        if len(best) < REFINED or repair.node.name in best:
            best.setdefault(repair.node.name, []).append(repair)
    finer = [r for found in best.values() for r in _finer(found)]
    results: list[Repaired] = []
    for start in range(0, len(finer), AT_ONCE):
        some = finer[start : start + AT_ONCE]
        before, given = _answers(sim, samples, some)
        plain = targets.losses(before)
        pairs = zip(some, given, strict=True)
        results += [_judged(repair, before, after, plain, targets) for repair, after in pairs if after is not None]
        if time.monotonic() > until:
            break
    return sorted(results, key=lambda r: r.loss[1])


def _likely(repair: Repair) -> int:
    """Return the rank of a repair: inputs, then what concerns several places, then one, then its size only."""
    if repair.cause == INPUTS_ARE_WRONG:
        return 0
    return 1 if repair.also else 3 if repair.cause == "wrong_scale" else 2


def _judged(repair: Repair, before: Tensor, after: Tensor, plain: Tensor, targets: Targets) -> Repaired:
    loss = targets.losses(after)
    gained = plain - loss
    error = float(gained.std()) / len(gained) ** 0.5
    means = float(plain.mean()), float(loss.mean())
    scores = targets.score(before), targets.score(after)
    sureness = float(gained.mean()) / max(error, 1e-30)
    if targets.classes:  # few samples that are wrong by far have most of the loss, and make its mean unsure
        sureness = max(sureness, _by_scores(*scores, len(gained)))
    return Repaired(repair, scores, means, sureness, loss)


def _by_scores(before: float, after: float, count: int) -> float:
    """Return by how many standard errors more answers are right, at least: no more than the wrong ones have changed."""
    return (after - before) * math.sqrt(count / max(2 - before - after, 1e-30))


def _finer(found: list[Repair]) -> list[Repair]:
    """Return the repairs of one place to try on all samples: for the best gain its neighbours, too."""
    plain = [
        r for r in found if r.cause == "wrong_scale" and not r.also
    ]  # what has a factor of its own has no finer one
    scaled = [(r, r.gain) for r in plain if isinstance(r.gain, float) and r.gain != 1.0]
    near = [_gain(r.node, gain * factor) for r, gain in scaled[:1] for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    others = [r for r in found if all(r is not one for one, _ in scaled)]
    return [*others, *near]


def _answers(
    sim: Simulation, samples: Samples, candidates: Sequence[Repair], last: Node | None = None
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the first output as it is and with every repair, (N, …); or what ``last`` gives, put in for its like.

    What cannot be computed with a repair, as indices beyond a table, is None.
    """
    plain: list[Tensor] = []
    found: list[list[Tensor] | None] = [[] for _ in candidates]
    behind = {name: _behind(sim.graph, name) for repair in candidates for name in repair.names()}
    affected = [set[str]().union(*(behind[name] for name in repair.names())) for repair in candidates]
    output, compute = sim.graph.outputs[0] if last is None else last.name, FloatExecutor(sim.tensors)
    with unquantized(sim), torch.no_grad():
        for inputs in joined(sim, samples):
            values = dict(zip(sim.graph.inputs, inputs, strict=True))
            nodes = [node for node in sim.graph.sized(inputs) if node.name not in values]
            if last is not None:
                nodes = [*takewhile(lambda node: node.name != output, nodes), last]
            for node in nodes:
                values[node.name] = compute(node, [values[i] for i in node.inputs])
            plain.append(values[output])
            for i, repair in enumerate(candidates):
                given = found[i]
                if given is not None:
                    try:
                        feed = _fed(sim, repair, [node for node in nodes if node.name in affected[i]], values, last)
                        given.append(feed.get(output, values[output]))
                    except (ArithmeticError, IndexError, RuntimeError, ValueError):  # it does not fit this network
                        found[i] = None
    return torch.cat(plain), [None if given is None else torch.cat(given) for given in found]


def answered_with(sim: Simulation, samples: Samples, repair: Repair) -> Tensor | None:
    """Return the first output with a repair, (N, …); None where it does not fit."""
    return _answers(sim, samples, [repair])[1][0]


def _fed(
    sim: Simulation, repair: Repair, nodes: Sequence[Node], values: Mapping[str, Tensor], last: Node | None
) -> dict[str, Tensor]:
    """Return what operations give with a repair, given those that it affects, and the values of all without it."""
    parts = {part.node.name: part for part in repair.parts()}
    renewed = {node.name: FloatExecutor({**sim.tensors, **p.tensors}) for p in parts.values() for node in p.others}
    compute = FloatExecutor(sim.tensors)
    feed = {name: p.change(values[name]).contiguous() for name, p in parts.items() if p.change is not None}
    whole = last is None or last is sim.graph.nodes[last.name]
    for node in nodes:
        taken = [feed.get(i, values[i]) for i in node.inputs]
        part = parts.get(node.name)
        if node.op == "embedding" and not 0 <= int(taken[0].min()) <= int(taken[0].max()) < len(
            sim.tensors[node.params["weight"]]
        ):
            raise IndexError("an index outside of the table")
        if part is not None and (node is not last or whole):
            feed[node.name] = part.value(sim, taken, values)
        elif part is not None:
            feed[node.name] = FloatExecutor({**sim.tensors, **part.tensors})(node, taken)
        else:
            feed[node.name] = renewed.get(node.name, compute)(node, taken)
    return feed


def joined(sim: Simulation, samples: Samples) -> Iterator[list[Tensor]]:
    """Yield the inputs of some batches at once, where the network takes any number and memory allows it."""
    batches = [batch.inputs for batch in samples]
    first = sim.graph.nodes[sim.graph.inputs[0]].shape
    per_sample = sum(math.prod(size for size in node.shape if isinstance(size, int)) for node in sim.graph)
    count = 1
    if first and first[0] is None and len({len(x) for x in batches[0]}) == 1:
        count = max(1, KEPT // max(1, per_sample * len(batches[0][0])))
    for start in range(0, len(batches), count):
        together = batches[start : start + count]
        alike = {tuple(x.shape[1:] for x in inputs) for inputs in together}
        if len(alike) == 1 and count > 1:
            yield [torch.cat(parts) for parts in zip(*together, strict=True)]
        else:
            yield from together


def _behind(graph: Graph, name: str) -> set[str]:
    """Return the names of an operation and of all that depends on it."""
    found = {name}
    for node in graph:
        if found.intersection(node.inputs):
            found.add(node.name)
    return found


def _gain(node: Node, factor: float) -> Repair:
    return Repair("wrong_scale", f"its results are multiplied by {factor:.3g}", node, gain=factor)


def repairs(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield the repairs to try on a network."""
    given, trained = sim.captured.graph.nodes, dict(sim.named_parameters())
    nodes = [n for n in sim.graph if n.name in given and n.dtype == "float32" and not n.moves and n.op not in UNCHANGED]
    nodes = [n for n in nodes if n.op != "constant" or n.params["value"] in trained]
    statistics, sizes = _statistics(sim, samples)
    usual, users = _usual_function(sim.graph), sim.graph.users()
    yield from _prepared(sim, samples)
    for node in nodes:
        for factor in GAINS:
            yield _gain(node, factor)
        yield from _configured(
            sim.graph, node, usual, all(sim.graph.nodes[u].op != "table" for u in users[node.name]), nodes
        )
        if node.name in statistics:
            mean, variance = statistics[node.name]
            renewed = {node.params["bn.running_mean"]: mean, node.params["bn.running_var"]: variance}
            yield Repair("stale_batch_norm", "its batch norm gets the statistics of its inputs", node, renewed)
        if node.name in sizes:
            yield from _channel(node, sizes[node.name])
        yield from _saturated(node, sim.tensors)
        yield from _reordered(node, sim.tensors)
        if node.op in AFFINE and "weight" in node.params:
            yield from _clipped(node, sim.tensors[node.params["weight"]])
            before = sim.graph.nodes[node.inputs[0]] if node.inputs else node
            weight = sim.tensors[node.params["weight"]].detach()
            yield from _turned(node, weight, _flattened(sim.graph, before))
            yield from _heads(node, weight, before, sim.graph)
        yield from _rolled(node, sim.graph, sim.tensors)
    yield from _joined_otherwise(sim.graph)
    yield from otherwise(sim, samples, nodes)
    yield from rewired(sim)
    layers = [node for node in nodes if node.op in AFFINE and "weight" in node.params]
    yield from _sized(nodes, sim.tensors)
    yield from _exchanged(layers, sim.tensors)
    yield from _exchanged_parts(nodes, sim.tensors)


def _rolled(node: Node, graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a table of positions that begins one row later, or earlier, as where a token comes last, not first."""
    role = {"constant": "value", "embedding": "weight"}.get(node.op)
    if role is None or any(name in graph.inputs for name in node.inputs):
        return
    table = tensors[node.params[role]].detach()
    if table.dim() > 1 and table.shape[-2] > 2:
        for rows in (1, -1):
            text = f"its rows come one {'later' if rows > 0 else 'earlier'}"
            yield Repair("wrong_weights", text, node, {node.params[role]: table.roll(rows, -2)})


def _joined_otherwise(graph: Graph) -> Iterator[Repair]:
    """Yield what is joined in another order."""
    for node in graph:
        joins = node.op == "cat" and node.dtype == "float32" and len(set(node.inputs)) == len(node.inputs)
        count = len(node.inputs) if joins else 0
        for order in list(permutations(range(count)))[1:] if 1 < count < 4 else []:
            yield Repair("wrong_setting", f"it joins its inputs in the order {order}", node, order=order)


def _sized(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield layers of which a weight is far larger or smaller than usual, by what it makes of unit inputs, as usual."""
    weights = {}
    for node in nodes:
        if node.op in AFFINE and node.op != "scale_shift" and "weight" in node.params:
            weights[node.params["weight"]] = node, output_first(tensors[node.params["weight"]].detach(), node)
        elif "weight_hh" in node.params:
            names = [name for role, name in node.params.items() if role.startswith("weight_")]
            weights |= {name: (node, tensors[name].detach()) for name in names}
    gains = {name: float(w.flatten(1).square().sum(1).mean().sqrt()) for name, (_, w) in weights.items()}
    usual = sorted(gains.values())[len(gains) // 2] if gains else 0.0
    for name, (node, _) in weights.items():
        gain = gains[name]
        if usual > 0 and gain > 0 and not 1 / SIZES < gain / usual < SIZES:
            text = f"{name}, {gain / usual:.3g} times as large as the weights of other layers, is as large"
            yield Repair("wrong_scale", text, node, {name: tensors[name].detach() * (usual / gain)})


def _flattened(graph: Graph, node: Node) -> list[int]:
    """Return the sizes (C, …) of what is flattened before a layer; [] where nothing is."""
    while node.op in UNCHANGED and node.inputs:
        node = graph.nodes[node.inputs[0]]
    shape = graph.nodes[node.inputs[0]].shape if node.op == "reshape" and len(node.shape) == 2 else ()
    return known(shape[1:]) if len(shape) > 2 else []


def _turned(node: Node, weight: Tensor, places: list[int]) -> Iterator[Repair]:
    """Yield the layer with its weight the other way round, as in converting from another layout."""
    turned = {"negated": -weight}
    if weight.dim() > 1 and weight.shape[0] == weight.shape[1] > 1:
        turned["transposed"] = weight.transpose(0, 1)
    if weight.dim() > 2 and weight[0, 0].numel() > 1:
        turned["reversed in space"] = weight.flip([*range(2, weight.dim())])
    if weight.dim() == 4 and weight.shape[2] == weight.shape[3] > 1:
        turned["transposed in space"] = weight.transpose(2, 3)
    if weight.dim() == 2 and math.prod(places) == weight.shape[1]:
        last = weight.reshape(len(weight), *places[1:], places[0])
        turned["taken as made for channels last"] = last.movedim(-1, 1).flatten(1)
    for text, changed in turned.items():
        yield Repair("wrong_weights", f"its weight is {text}", node, {node.params["weight"]: changed.contiguous()})


def _heads(node: Node, weight: Tensor, before: Node, graph: Graph) -> Iterator[Repair]:
    """Yield the layer behind an attention with the heads that it reads in another order."""
    while before.inputs and (before.op in UNCHANGED or before.moves):
        before = graph.nodes[before.inputs[0]]
    shape = known(before.shape[1:]) if before.op == "matmul" and len(before.shape) == 4 else []
    if weight.dim() != 2 or len(shape) < 2 or shape[0] < 2 or weight.shape[1] != shape[0] * shape[-1]:
        return
    parts = weight.reshape(len(weight), shape[0], -1)
    orders = {"rolled by one": parts.roll(1, 1), "rolled back by one": parts.roll(-1, 1), "reversed": parts.flip(1)}
    orders["between each other"] = weight.reshape(len(weight), -1, shape[0]).transpose(1, 2)
    for text, changed in orders.items():
        tensors = {node.params["weight"]: changed.flatten(1).contiguous()}
        yield Repair("wrong_weights", f"the heads that it reads are {text}", node, tensors)


def _exchanged(layers: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of layers of one shape and about one size with each other's weights, and biases."""
    pairs = [(a, b) for i, a in enumerate(layers) for b in layers[i + 1 :] if a.params["weight"] != b.params["weight"]]
    for a, b in pairs[:PAIRS]:
        both = [role for role in ("weight", "bias") if role in a.params and role in b.params]
        if any(tensors[a.params[role]].shape != tensors[b.params[role]].shape for role in both):
            continue
        one, other = (float(tensors[n.params["weight"]].detach().square().mean().sqrt()) for n in (a, b))
        if max(one, other) > SIZES * min(one, other):  # what was trained together is of one size
            continue
        for count in range(1, len(both) + 1):
            names = [(a.params[role], b.params[role]) for role in both[:count]]
            text = f"it and {b.name} exchange their {' and '.join(both[:count])}"
            yield Repair("wrong_weights", text, a, _swapped(names, tensors), others=(b,))


def _exchanged_parts(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of blocks, or of parts of them, with each other's weights: names that differ in one number."""
    parts: dict[tuple[str, str], dict[str, list[Node]]] = defaultdict(dict)
    for node in (n for n in nodes if any(role.startswith("weight") for role in n.params)):
        for found in re.finditer(r"(?<=\.)\d+(?=\.)", node.name):
            before, behind = node.name[: found.start()], node.name[found.end() :]
            for rest in {"", behind.split(".")[1]}:
                parts[before, rest].setdefault(found.group(), []).append(node)
    for (before, rest), blocks in parts.items():
        for one, other in islice(combinations(blocks, 2), PAIRS):
            pairs = list(zip(blocks[one], blocks[other], strict=False))
            names = [
                (a.params[r], b.params.get(r, ""))
                for a, b in pairs
                for r in a.params
                if r.startswith(("weight", "bias", "bn."))
            ]
            fits = all(b in tensors and tensors[a].shape == tensors[b].shape for a, b in names)
            if len(pairs) > 1 and fits and len(blocks[one]) == len(blocks[other]):
                text = f"{before}{one} and {before}{other} exchange the weights of {rest or 'all their layers'}"
                others = [node for pair in pairs for node in pair if node is not pairs[0][0]]
                yield Repair("wrong_weights", text, pairs[0][0], _swapped(names, tensors), others=tuple(others))


def _swapped(names: Sequence[tuple[str, str]], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of both names of every pair, each under the other's name."""
    return {a: tensors[b].detach() for pair in names for a, b in (pair, pair[::-1])}


def _elsewhere(node: Node, alike: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Yield the settings of operations like this one, where these have other numbers of groups, say."""
    same = [n for n in alike if n.op == node.op and n.shape == node.shape and n.name != node.name]
    one = node.op.endswith("_norm") and len({repr(n.attrs) for n in same}) == 1
    if one and node.attrs != same[0].attrs:
        yield dict(same[0].attrs)


def _configured(graph: Graph, node: Node, usual: list[Any], silent: bool, alike: Sequence[Node]) -> Iterator[Repair]:
    """Yield the operation with the settings that operations like it have, or an activation where others have one."""
    for role, attrs in (("", node.attrs), *((r, node.attrs[r]) for r in ("bn", "pre") if r in node.attrs)):
        eps = attrs.get("eps", 0.0)
        if eps > LARGE_EPS:
            plain = {**attrs, "eps": USUAL_EPS}
            changed = replace(node, attrs={**node.attrs, role: plain} if role else plain)
            yield Repair("wrong_setting", f"its eps is not {eps:.3g}", changed)
    if node.op == "softmax":
        for axis in range(1, len(node.shape)):
            if axis != node.attrs["axis"]:
                changed = replace(node, attrs={**node.attrs, "axis": axis})
                yield Repair("wrong_setting", f"it runs along axis {axis}, not {node.attrs['axis']}", changed)
        if graph.nodes[node.inputs[0]].op == "softmax":
            yield Repair("wrong_setting", "it is left out, as what it reads is a softmax", replace(node, op="dropout"))
    for attrs in _elsewhere(node, alike):
        text = ", ".join(f"{key} {value}" for key, value in attrs.items() if node.attrs.get(key) != value)
        yield Repair("wrong_setting", f"it has {text}, as elsewhere in the network", replace(node, attrs=attrs))
    now, foldable = function_of(node), node.op in AFFINE or node.op == "add" or node.op.endswith("_norm")
    bare = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "act"})
    if usual and now != usual and node.op == "table" and not node.params:
        yield with_function(node, usual, f"it computes {word_of(usual)}, as elsewhere in the network")
    elif usual and now != usual and foldable and silent and "act.weight" not in node.params:
        yield with_function(node, usual, f"{word_of(usual)} follows, as elsewhere in the network")
    elif not usual and node.op in AFFINE and silent:  # somebody may have lost them all
        for word in ("relu", "gelu", "silu"):
            yield with_function(node, FUNCTIONS[word], f"{word} follows")
    if now and foldable:
        yield Repair("wrong_setting", f"no {word_of(now)} follows", bare)


def _usual_function(graph: Graph) -> list[Any]:
    """Return the activation that the network has most, as the chain of a table; [] where it has none."""
    found = Counter(repr(function_of(node)) for node in graph if function_of(node))
    return (
        next((function_of(n) for n in graph if repr(function_of(n)) == found.most_common(1)[0][0]), []) if found else []
    )


def followed_by(graph: Graph, name: str, users: Mapping[str, Sequence[str]]) -> str:
    """Return the name of the activation of an operation, or of one that reads it; "" where there is none."""
    chains = [function_of(graph.nodes[n]) for n in (name, *users[name])]
    return next((word_of(chain) for chain in chains if chain), "")


def _statistics(
    sim: Simulation, samples: Samples
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, tuple[int, Tensor, Tensor]]]:
    """Return mean and variance of the inputs of batch norms; axis, root mean square and mean of channels of layers."""
    sums: dict[str, list[Any]] = {}
    squares: dict[str, list[Any]] = {}
    plain = FloatExecutor(sim.tensors)

    def add(into: dict[str, list[Any]], name: str, x: Tensor, axis: int) -> None:
        rows = x.detach().double().movedim(axis, 0).flatten(1)
        new = [rows.sum(1), rows.square().sum(1), rows.shape[1], axis]
        old = into.get(name)
        into[name] = new if old is None else [*(a + b for a, b in zip(old[:3], new[:3], strict=True)), axis]

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.op in AFFINE and "bn" in node.attrs:
            bare, x = without_norm(node), real(inputs[0])
            add(sums, node.name, plain(bare, [x]) if bare.params else x, 1)
        if (node.op in AFFINE or node.op.endswith("_norm")) and len(node.shape) > 1:
            y = real(output)
            add(squares, node.name, y, axis_of(node) % y.dim())

    with unquantized(sim), torch.no_grad():
        for batch in samples:
            sim.run(list(batch.inputs), visit=visit)
    statistics = {}
    for name, (total, square, count, _) in sums.items():
        mean = total / count
        statistics[name] = mean.float(), (square / count - mean**2).clamp(min=0).float()
    sizes = {
        name: (axis, (square / count).sqrt().float(), (total / count).float())
        for name, (total, square, count, axis) in squares.items()
    }
    return statistics, sizes


def without_norm(node: Node) -> Node:
    """Return a layer without its batch norm and what comes behind."""
    attrs = {k: v for k, v in node.attrs.items() if k not in ("bn", "act")}
    params = {k: v for k, v in node.params.items() if not k.startswith(("bn.", "act.", "equalize.out"))}
    return replace(node, attrs=attrs, params=params, inputs=node.inputs[:1])


def fitting(sim: Simulation, samples: Samples, place: str) -> tuple[Repair, float, float] | None:
    """Return the repair with which a batch norm's inputs are those of training again, how far off they were and are.

    Statistics of a batch norm are a print of what came before it in training, labels or not. Only what lies between it
    and the batch norms before it is put right, and no scale, as other statistics would do the same.

    Args:
        sim: a simulation of the network.
        samples: the samples.
        place: the layer with the batch norm.

    Returns:
        None where no repair fits.
    """
    node = sim.graph.nodes.get(place)
    if node is None or node.op not in AFFINE or "bn" not in node.attrs:
        return None
    before_norm = without_norm(node) if without_norm(node).params else sim.graph.nodes[node.inputs[0]]
    near = _since_batch_norm(sim.graph, node)
    found = [r for r in repairs(sim, samples) if r.cause in DISCRETE and near & r.names()]
    found = [r for r in found if r.node.name != place or r.cause == "wrong_weights"]
    found += shortcuts(sim, [name for name in sim.graph.nodes if name in near and name != place])
    seen_mean, seen = (sim.tensors[node.params[f"bn.running_{s}"]].detach().double() for s in ("mean", "var"))

    def off(x: Tensor) -> float:
        rows = x.double().movedim(1, 0).flatten(1)
        mean, variance = rows.mean(1), rows.var(1, correction=0)
        return off_by(*distance(mean, variance, seen_mean, seen, float(node.attrs["bn"]["eps"])))

    before, answers = _answers(sim, samples.first(SCREENED), found, before_norm)
    found, given = (
        [r for r, y in zip(found, answers, strict=True) if y is not None],
        [y for y in answers if y is not None],
    )
    usual = _usual_function(sim.graph)
    if usual:
        table = replace(before_norm, op="table", attrs={"chain": usual}, params={}, inputs=[place])
        found.append(Repair("wrong_setting", f"{word_of(usual)} comes before its batch norm", node))
        given.append(FloatExecutor(sim.tensors)(table, [before]))
    now, (best, which) = off(before), min(((off(x), i) for i, x in enumerate(given)), default=(math.inf, 0))
    return (found[which], now, best) if best < STALE and best < now / 3 else None


def _since_batch_norm(graph: Graph, node: Node) -> set[str]:
    """Return the names of a layer and of what it is computed from, to the batch norms before it and with them."""
    found, pending = {node.name}, list(node.inputs)
    while pending:
        before = graph.nodes[pending.pop()]
        if before.name not in found:
            found.add(before.name)
            pending += [] if "bn" in before.attrs else before.inputs
    return found


def _channel(node: Node, sizes: tuple[int, Tensor, Tensor]) -> Iterator[Repair]:
    """Yield the repair of the channel that is by far the largest: it gets the size of the median one."""
    axis, size, mean = sizes
    alive = size[size > 0]
    behind = [1] * (len(node.shape) - 1 - axis)
    beyond = (size.square() - mean.square()).clamp(min=0).sqrt() * OFF_CENTRE < mean.abs()
    if bool(beyond.any()):
        shift = torch.where(beyond, mean, 0.0).reshape(-1, *behind)
        channels = ", ".join(map(str, beyond.nonzero().reshape(-1).tolist()[:5]))
        text = f"channel {channels}, whose mean is over {OFF_CENTRE:.0f} times its deviation, loses its mean"
        yield Repair("exploded_channel", text, node, shift=shift)
    if len(alive) < 4:
        return
    usual = alive.median()
    channel = int(size.argmax())
    if float(size[channel]) > UNUSUAL * float(usual):
        ratio = float(size[channel] / usual)
        factor = torch.ones(len(size))
        factor[channel] = 1 / ratio
        text = f"channel {channel}, {ratio:.3g} times as large as the median one, is made as large"
        yield Repair("exploded_channel", text, node, gain=factor.reshape(-1, *behind))
        if abs(float(mean[channel])) > float(size[channel]) / 2:
            shift = torch.where(factor < 1, mean, 0.0).reshape(-1, *behind)
            text = f"channel {channel}, {ratio:.3g} times as large as the median one, loses its mean"
            yield Repair("exploded_channel", text, node, shift=shift)


def _saturated(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield the repair of biases of a recurrent layer that close or open gates for good: they become 0."""
    names = [name for role, name in node.params.items() if role.startswith("bias_")]
    large = {name: tensors[name].detach().abs() > SATURATES for name in names}
    if any(bool(mask.any()) for mask in large.values()):
        smaller = {name: tensors[name].detach().masked_fill(mask, 0.0) for name, mask in large.items()}
        text = (
            f"{sum(int(mask.sum()) for mask in large.values())} biases beyond {SATURATES:.0f}, which hold gates, are 0"
        )
        yield Repair("exploded_weight", text, node, smaller)


def _reordered(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a recurrent layer with its gates, or its directions, in another order, as other frameworks have them."""
    given = {role: name for role, name in node.params.items() if role.startswith(("weight_", "bias_"))}
    if "weight_hh" not in given:
        return
    count = len(tensors[given["weight_hh"]]) // tensors[given["weight_hh"]].shape[1]
    for order in list(permutations(range(count)))[1:] if 1 < count < 5 else []:
        parts = {name: tensors[name].detach().chunk(count) for name in given.values()}
        text = f"its gates are in the order {order}"
        yield Repair("wrong_weights", text, node, {name: torch.cat([p[i] for i in order]) for name, p in parts.items()})
    if "weight_hh.reverse" in given:
        pairs = [(name, given[f"{role}.reverse"]) for role, name in given.items() if f"{role}.reverse" in given]
        turned = {a: tensors[b].detach() for one, other in pairs for a, b in ((one, other), (other, one))}
        yield Repair("wrong_weights", "its directions exchange their weights", node, turned)


def _clipped(node: Node, weight: Tensor) -> Iterator[Repair]:
    """Yield the repair of the largest weights: they get the size of the largest of the others."""
    size = output_first(weight.detach(), node).abs().reshape(-1)
    few = max(1, len(size) // 1000)
    if len(size) < 64:
        return
    largest = size.topk(few + 1).values
    if float(largest[0]) > UNUSUAL * float(largest[-1]):
        clipped = weight.detach().clamp(-largest[-1], largest[-1])
        text = f"weights up to {float(largest[0] / largest[-1]):.3g} times as large as all others are made as large"
        yield Repair("exploded_weight", text, node, {node.params["weight"]: clipped})


INPUTS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "inputs divided by 255": (2, lambda x: x / 255),
    "inputs multiplied by 255": (2, lambda x: x * 255),
    "inputs with mean 0 and standard deviation 1": (3, lambda x: (x - x.mean()) / x.std().clamp(min=1e-12)),
    "channels with mean 0": (2, lambda x: _centred(x, 1)),
    "channels with mean 0 and standard deviation 1": (2, lambda x: _standard(x, 1)),
    "features with mean 0 and standard deviation 1": (3, lambda x: _standard(x, x.dim() - 1)),
    "channels in reverse order": (3, lambda x: x.flip(1)),
    "inputs negated": (2, lambda x: -x),
    "inputs the other way round, the largest for the least": (2, lambda x: x.max() + x.min() - x),
    "inputs from 0 to 1": (2, lambda x: _spread(x, tuple(range(x.dim())))),
    "inputs from -1 to 1": (2, lambda x: 2 * _spread(x, tuple(range(x.dim()))) - 1),
    "channels from 0 to 1": (4, lambda x: _spread(x, (0, *range(2, x.dim())))),
    "inputs upside down": (3, lambda x: x.flip(-2)),
    "inputs left to right": (3, lambda x: x.flip(-1)),
    "inputs transposed": (3, lambda x: x.transpose(-1, -2)),
    "inputs whose numbers have channels last": (
        3,
        lambda x: x.reshape(len(x), *x.shape[2:], x.shape[1]).movedim(-1, 1),
    ),
}
"""Ways in which inputs are often prepared otherwise than in training, and the dimensions that inputs need for them."""

INDICES: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "indices one less": (1, lambda x: (x - 1).clamp(min=0)),
    "indices one more": (1, lambda x: torch.where(x < x.max(), x + 1, x)),
    "indices one more, column by column": (2, lambda x: torch.where(x < x.amax(0), x + 1, x)),
    "indices in reverse order": (2, lambda x: x.flip(-1)),
}
"""The same for indices, of words say."""


def _spread(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    return (x - low) / (high - low).clamp(min=1e-12)


def _centred(x: Tensor, axis: int) -> Tensor:
    return x - x.mean([d for d in range(x.dim()) if d != axis], keepdim=True)


def _standard(x: Tensor, axis: int) -> Tensor:
    x = _centred(x, axis)
    return x / x.std([d for d in range(x.dim()) if d != axis], keepdim=True).clamp(min=1e-12)


def _prepared(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield inputs prepared otherwise, one at a time."""
    graph = sim.graph
    for name, x in zip(graph.inputs, samples.batches[0].inputs, strict=True):
        of = f" as {name}" if len(graph.inputs) > 1 else ""
        ways = {**INPUTS, **_columns(x)} if x.is_floating_point() else {**INDICES, **_filled(sim, name, x)}
        for text, (least, change) in ways.items():
            if x.dim() < least or x.dtype == torch.bool:
                continue
            changed = change(x)
            if changed.shape == x.shape and not torch.equal(changed, x):
                yield Repair(INPUTS_ARE_WRONG, f"it sees {text}{of}", graph.nodes[name], change=change)


def _columns(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return any two columns of a table swapped, and up to four channels, or sensors, in any order."""
    count = x.shape[1] if x.dim() == 2 else 0
    pairs = combinations(range(count), 2) if count <= MOST_COLUMNS else ()
    found = {f"columns {a} and {b} swapped": (1, [{a: b, b: a}.get(i, i) for i in range(count)]) for a, b in pairs}
    for axis in {1, x.dim() - 1} if x.dim() > 2 else ():
        if 2 < x.shape[axis] <= 4:
            orders = list(permutations(range(x.shape[axis])))[1:-1]  # the last one is the reverse
            found |= {f"dimension {axis} in the order {order}": (axis, list(order)) for order in orders}

    def taken(axis: int, order: list[int]) -> Callable[[Tensor], Tensor]:
        return lambda x: x.index_select(axis, torch.tensor(order, device=x.device))

    return {text: (2, taken(axis, order)) for text, (axis, order) in found.items()}


def _filled(sim: Simulation, name: str, x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return other indices than the one that fills the ends of rows moved by one, and this one become what the table
    holds nothing of, as of padding."""
    tables = [n for n in sim.graph if n.op == "embedding" and source_of(sim.graph, n.inputs[0]) == name]
    if x.dim() != 2 or x.shape[1] < 3 or not tables:
        return {}
    fills = filling(x)
    moved = {}
    if fills is not None:

        def by(step: int) -> Callable[[Tensor], Tensor]:
            return lambda ids: torch.where(ids == fills, ids, (ids + step).clamp(0, int(x.max())))

        more = f"but {fills}, which fills rows"
        moved = {f"indices one more, {more}": (2, by(1)), f"indices one less, {more}": (2, by(-1))}
    empty = (sim.tensors[tables[0].params["weight"]].detach() == 0).all(1).nonzero().reshape(-1).tolist()
    if fills is None or fills in empty:
        return moved

    def become(index: int) -> Callable[[Tensor], Tensor]:
        return lambda ids: torch.where(ids == fills, index, ids)

    return {**moved, **{f"padding of {index}, not {fills}": (2, become(index)) for index in empty[:3]}}
