"""Trying repairs: only what is behind each is computed again, and the answers are compared.

A repair counts by the negative log-likelihood of the labels, each network at the temperature that suits it best, so
that being too sure is no fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter

import torch
from torch import Tensor

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.answer_repairs import answers_moved, answers_reordered, boxes_otherwise
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.repairs import calls_of_modules, in_all_calls, repairs, with_gain
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import grouped, of_one_block, of_several_kinds, together
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.executors import FloatExecutor, unquantized
from intact8.simulation.simulation import Simulation

SCREENED, REFINED = 64, 9
"""Samples on which everything is tried, and the number of places that are tried on all samples."""

RECOVERS, EXTREME, SURE = 0.3, 0.08, 3.5
"""Share of the loss that a repair must take away, and one that is extreme; and standard errors of the difference that
this must be. In twelve sound networks nothing but new statistics of batch norms took away more than 29 %, by 2.7
standard errors at most."""

MOST, A_PART, MUCH = 0.5, 0.12, 0.6
"""Share of the loss that is most of it, for which less sureness will do; one for which twice as much is needed; and one
for which even less will do."""

HALF = 0.45
"""Share of the wrong answers that is about half of them."""

MORE, MORE_AT_ALL, RIGHTLY, RIGHTLY_IN_PART = 1.5, 1.0, 0.1, 0.18
"""Standard errors by which more answers must be right with another scale, and with any repair: with what was wrong they
are; the share of the wrong answers that must be put right by another scale, as a loss may shrink because a network is
more sure, or less; and the same where only a part of the loss is taken away, for which two sound networks came to 13 %.
"""

WORSE = 2.0
"""Standard errors from which one repair is worse than another."""

MANY_MORE, NOISY = 0.1, 0.2
"""Share of answers that a repair must put right, and the share of the loss that is enough then: where the trained
network is wrong on one sample in five, most of its loss cannot be taken away."""

MANY_PLACES = 3
"""Further places in which something is put right at once from which less than most of the loss tells nothing: a network
that is wrong everywhere gets a little better by much."""

COMPENSATING = ("stale_batch_norm", "wrong_scale")
"""Causes of repairs that make up for other faults, too."""

KEPT = 2**25
"""Numbers of a network's tensors that are kept at a time, about."""

FAILS = (ArithmeticError, IndexError, RuntimeError, ValueError)
"""What is raised of numbers, or samples, that do not fit a network."""

AT_ONCE = 32
"""Repairs that are tried together, after which the time is looked at."""

OF_PAIRS = 3
"""Rank of repairs that concern two layers, or several kinds of layers: before other scales, behind all else."""

DISCRETE = ("float_network_wrong", "wrong_setting", "wrong_weights", "exploded_weight", "exploded_channel")
"""Causes of repairs that are more than a change of scale."""


@dataclass(frozen=True)
class Repaired:
    """What a repair gives: the score (see Targets) before and after, and the loss.

    Attributes:
        sureness: standard errors by which the loss is less, or more answers are right.
        more: standard errors by which more answers are right, sample by sample.
        losses: the loss of every sample after it.
    """

    repair: Repair
    accuracy: tuple[float, float]
    loss: tuple[float, float]
    sureness: float
    more: float = math.inf
    losses: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)

    def surely_worse(self, other: Repaired) -> bool:
        """Return whether it is hardly chance that another repair leaves less of the loss, or more right answers."""
        more = self.losses - other.losses
        return standard_errors(more) > WORSE or _by_scores(self.accuracy[1], other.accuracy[1], len(more)) > WORSE

    @property
    def share(self) -> float:
        """The share of the loss that is taken away."""
        return 1 - self.loss[1] / max(self.loss[0], 1e-30)

    @property
    def helps(self) -> bool:
        """Whether it is no accident that this takes away much of the loss, or something extreme a part of it."""
        if self.accuracy[1] < self.accuracy[0] or self.accuracy[1] <= 0:  # numbers that explain nothing
            return False
        made_up = self.repair.cause in ("wrong_scale", INPUTS_ARE_WRONG)  # else the network is only more sure
        if self.more < (MORE if made_up else MORE_AT_ALL) or (made_up and not self.mended > RIGHTLY):
            return False
        if self.repair.cause == "stale_batch_norm":  # statistics of the data themselves suit them better anyway
            return self.share > RECOVERS and self.accuracy[1] > self.accuracy[0] + 0.05
        if self.repair.unusual:
            return self.share > EXTREME and self.sureness > 2
        prepared = self.repair.cause == INPUTS_ARE_WRONG
        least = self.repair.least or (
            MOST if len(self.repair.also) >= MANY_PLACES or self.repair.unlikely else RECOVERS
        )
        surer = self.share > MUCH and self.repair.cause in DISCRETE
        sure = SURE - 0.75 if surer else SURE - 0.5 if prepared or self.share > MOST else SURE
        noisy = self.repair.cause not in COMPENSATING and len(self.repair.also) < MANY_PLACES
        noisy &= not self.repair.doubtful
        if noisy and self.accuracy[1] > self.accuracy[0] + MANY_MORE:
            least = self.repair.least or NOISY
        return self.share > least and self.sureness > sure

    @property
    def mended(self) -> float:
        """The share of the wrong answers, or of the errors, that is put right."""
        return (self.accuracy[1] - self.accuracy[0]) / max(1 - self.accuracy[0], 1e-30)

    @property
    def surely_a_part(self) -> bool:
        """Whether it surely takes away a part of the loss, as where most of it cannot be: of letters to come, say."""
        discrete = self.repair.cause in DISCRETE and self.accuracy[1] >= self.accuracy[0]
        discrete &= self.mended > RIGHTLY_IN_PART and not self.repair.least and len(self.repair.also) < MANY_PLACES
        discrete &= not self.repair.doubtful
        return discrete and self.share > A_PART and self.sureness > 2 * SURE

    @property
    def half_of_it(self) -> bool:
        """Whether another scale surely puts right half of what is wrong, which tells where nothing else does."""
        scale = self.repair.cause == "wrong_scale" and self.share > RECOVERS
        return scale and self.mended > HALF and 2 * SURE < self.more < math.inf


def tried_repairs(sim: Simulation, samples: Samples, targets: Targets, until: float = math.inf) -> list[Repaired]:
    """Try repairs, the likely ones first, and return the best ones, the best first.

    Args:
        sim: a simulation of the network; its switches are as before afterwards.
        samples: the samples.
        targets: their right answers.
        until: time (``time.monotonic()``) from which nothing more is tried.
    """
    candidates, began = list(repairs(sim, samples)), time.monotonic()
    answers, now = answers_with(sim, samples, [], targets)[0], time.monotonic()
    # Half of the network is behind an operation, on average.
    slow = (now - began) * SCREENED / len(samples) * len(candidates) / 2 > (until - now) / 2
    count, losses_now = SCREENED // 2 if slow else SCREENED, targets.losses(answers)
    numbers = _telling(losses_now, count) if _divisible(sim.graph) else _telling_batches(samples, losses_now, count)
    few = samples.at(numbers)
    try:
        answers_with(sim, few, [], targets)
    except FAILS:  # given lengths, some networks insist on the longest of a batch
        numbers = _telling_batches(samples, losses_now, count)
        few = samples.at(numbers)
    candidates += [*answers_reordered(sim, answers, targets), *answers_moved(sim, samples, answers, targets)]
    candidates += boxes_otherwise(sim, targets)
    groups, calls = grouped(candidates), calls_of_modules(sim.graph)
    several = together(groups, sim.graph)
    ranked = [(_likely(r), r) for r in (*(in_all_calls(r, sim.graph, calls) for r in candidates), *several)]
    known = {(r.text, frozenset(r.names())) for r in several}
    blocks = [r for r in of_one_block(candidates, sim.graph) if (r.text, frozenset(r.names())) not in known]
    ranked += [(OF_PAIRS, r) for r in (*of_several_kinds(groups, sim.graph), *blocks)]
    candidates = [repair for _, repair in sorted(ranked, key=itemgetter(0))]
    right = targets.at(numbers, few)
    losses: list[tuple[float, Repair]] = []
    for start in range(0, len(candidates), AT_ONCE):
        some = candidates[start : start + AT_ONCE]
        answered = zip(answers_with(sim, few, some, targets)[1], some, strict=True)
        found = [(float(right.losses(y).mean()), repair) for y, repair in answered if y is not None]
        losses += [(loss, repair) for loss, repair in found if not math.isnan(loss)]
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
        before, given = answers_with(sim, samples, some, targets)
        plain = targets.losses(before)
        pairs = zip(some, given, strict=True)
        results += [_judged(repair, before, after, plain, targets) for repair, after in pairs if after is not None]
        if time.monotonic() > until:
            break
    return sorted(results, key=lambda r: r.loss[1])


def _divisible(graph: Graph) -> bool:
    """Return whether the first dimension of the first input are the samples, of any number."""
    shape = graph.nodes[graph.inputs[0]].shape
    return bool(shape) and shape[0] is None


def _telling(losses: Tensor, count: int) -> Tensor:
    """Return the numbers of samples that tell repairs apart, int64 in ascending order: half are answered worst."""
    order = losses.argsort(descending=True, stable=True)
    worst, others = order[: count // 2], order[count // 2 :].sort().values[: count - count // 2]
    return torch.cat([worst, others]).sort().values


def _telling_batches(samples: Samples, losses: Tensor, count: int) -> Tensor:
    """Return the numbers of the samples of the batches that are answered worst, about so many."""
    parts = torch.split(torch.arange(len(samples)), [len(batch) for batch in samples])
    worst = sorted(parts, key=lambda part: -float(losses[part].mean()))[: max(1, count // len(parts[0]))]
    return torch.cat(worst).sort().values


def _likely(repair: Repair) -> int:
    """Return the rank of a repair: inputs, what concerns several places, one, pairs, and then what has another size."""
    if repair.cause == INPUTS_ARE_WRONG:
        return 0
    return 1 if repair.also else OF_PAIRS + 1 if repair.cause == "wrong_scale" else OF_PAIRS if repair.others else 2


def _judged(repair: Repair, before: Tensor, after: Tensor, plain: Tensor, targets: Targets) -> Repaired:
    loss = targets.losses(after)
    gained = plain - loss
    # Numbers that are worse than their mean (whose loss is 1) are all lost: less of what is beyond gives none back.
    most = math.inf if targets.classes else 1.0
    means = min(float(plain.mean()), most), float(loss.mean())
    scores = targets.score(before), targets.score(after)
    sureness, more = standard_errors(gained), math.inf
    if targets.classes:  # few samples that are wrong by far have most of the loss, and make its mean unsure
        sureness = max(sureness, _by_scores(*scores, len(gained)))
        more = standard_errors(targets.rights(after) - targets.rights(before))
    return Repaired(repair, scores, means, sureness, more, loss)


def standard_errors(values: Tensor) -> float:
    """Return the mean of values of samples over its standard error."""
    error = float(values.std()) / math.sqrt(len(values))
    return float(values.mean()) / max(error, 1e-30)


def _by_scores(before: float, after: float, count: int) -> float:
    """Return by how many standard errors more answers are right, at least: no more than the wrong ones have changed."""
    return (after - before) * math.sqrt(count / max(2 - before - after, 1e-30))


def _finer(found: list[Repair]) -> list[Repair]:
    """Return the repairs of one place to try on all samples: for the best gain its neighbours, too."""
    plain = [
        r for r in found if r.cause == "wrong_scale" and not r.also
    ]  # what has a factor of its own has no finer one
    scaled = [(r, r.gain) for r in plain if isinstance(r.gain, float) and r.gain != 1.0]
    near = [with_gain(r.node, gain * factor) for r, gain in scaled[:1] for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    others = [r for r in found if all(r is not one for one, _ in scaled)]
    return [*others, *near]


def answers_with(
    sim: Simulation,
    samples: Samples,
    candidates: Sequence[Repair],
    targets: Targets | None = None,
    last: Node | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the output as it is and with every repair, (N, …); or what ``last`` gives, put in for its like.

    What cannot be computed with a repair, as indices beyond a table, is None. The output is what ``targets`` judge of
    all of them, or the first one.
    """
    plain: list[Tensor] = []
    found: list[list[Tensor] | None] = [[] for _ in candidates]
    behind = {name: sim.graph.depending_on(name) for repair in candidates for name in repair.names()}
    affected = [set[str]().union(*(behind[name] for name in repair.names())) for repair in candidates]
    outputs, compute = [*sim.graph.outputs] if last is None else [last.name], FloatExecutor(sim.tensors)

    def judged(given: Mapping[str, Tensor]) -> Tensor:
        ys = [given[name] for name in outputs]
        return ys[0] if targets is None else targets.taken(ys)

    with unquantized(sim), torch.no_grad():
        for inputs in joined(sim, samples):
            values = dict(zip(sim.graph.inputs, inputs, strict=True))
            nodes = [node for node in sim.graph.sized(inputs) if node.name not in values]
            if last is not None:
                nodes = [*takewhile(lambda node: node.name != outputs[0], nodes), last]
            for node in nodes:
                values[node.name] = compute(node, [values[i] for i in node.inputs])
            plain.append(judged(values))
            for i, repair in enumerate(candidates):
                given = found[i]
                if given is not None:
                    try:
                        feed = _fed(sim, repair, [node for node in nodes if node.name in affected[i]], values, last)
                        given.append(_like(judged({**values, **feed}), plain[-1]))
                    except FAILS:  # it does not fit this network
                        found[i] = None
    return _together(plain), [None if given is None else _together(given) for given in found]


def _together(parts: Sequence[Tensor]) -> Tensor:
    """Return results of batches as one, (N, …); of those of different sizes (N, channels, …) every place is a row."""
    alike = len({part.shape[1:] for part in parts}) == 1
    return torch.cat([part if alike else part.movedim(1, -1).flatten(0, -2) for part in parts])


def _like(found: Tensor, plain: Tensor) -> Tensor:
    """Return a result that is as large as without the repair."""
    if found.shape != plain.shape:
        raise ValueError(f"the result is {tuple(found.shape)}, not {tuple(plain.shape)}")
    return found


def answered_with(sim: Simulation, samples: Samples, repair: Repair, targets: Targets) -> Tensor | None:
    """Return the output that targets judge, with a repair, (N, …); None where it does not fit."""
    return answers_with(sim, samples, [repair], targets)[1][0]


def _fed(
    sim: Simulation, repair: Repair, nodes: Sequence[Node], values: Mapping[str, Tensor], last: Node | None
) -> dict[str, Tensor]:
    """Return what operations give with a repair, given those that it affects, and the values of all without it."""
    parts = {part.node.name: part for part in repair.parts()}
    renewed = {node.name: FloatExecutor({**sim.tensors, **p.tensors}) for p in parts.values() for node in p.others}
    compute = FloatExecutor(sim.tensors)
    feed = {name: p.change(values[p.source or name]).contiguous() for name, p in parts.items() if p.change is not None}
    inputs = (name for name in sim.graph.inputs if name in parts and parts[name].compute is not None)
    feed |= {name: parts[name].value(sim, [values[name]], values).contiguous() for name in inputs}
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
