"""Accuracy of a float network, its simulation and its program side by side, on the same samples."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.calibration.data import tensor_of
from intact8.calibration.distributed import checksum
from intact8.capture.pytree import copied
from intact8.diagnose.evaluation_scores import EvaluationState, Scores, identity, make_scores, require_classes
from intact8.diagnose.json_report import JsonReport
from intact8.display import Grid, Shown, columns, number
from intact8.errors import InputError, in_short, require_number
from intact8.nesting import leaves
from intact8.opset.op import Array
from intact8.program.file import digest
from intact8.program.program import Program
from intact8.regular_file import path_of
from intact8.simulation.prepare import warn_of_training_mode
from intact8.simulation.simulation import Simulation
from intact8.torch import Module
from intact8.verification.batches import taken

Network = nn.Module | Program
Metric = Callable[[Any, Any], Any]
"""Called with (outputs, labels): a score per sample, or one number for the batch. Or an object of torchmetrics."""

LABELS = ("labels", "label", "targets", "target")
"""Keys of a dict batch that hold its labels."""

RESAMPLES = 2000
LEAST_BATCHES, BATCH_RESAMPLES = 8, 200
"""Batches from which intervals are had by drawing batches, and how often these are drawn."""

NORMAL_975 = 1.959963984540054
"""The 97.5 % point of the normal distribution, for intervals of 95 %."""


@dataclass(frozen=True)
class Score:
    """A metric of one network, and its difference from the first network's.

    Attributes:
        network: name of the network.
        metric: name of the metric.
        value: mean over the samples.
        difference: ``value`` minus the first network's, sample by sample; None for the first network.
        low, high: a 95 % confidence interval of the difference; None where scores of single samples are not known.
        p: exact McNemar test of "no difference", for scores that are 0 or 1; otherwise None.
    """

    network: str
    metric: str
    value: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class EvaluationReport(Shown, JsonReport):
    """What :func:`evaluate` measured: a row per metric and network.

    Attributes:
        scores: rows, network by network.
        samples: how many samples were run.
    """

    scores: tuple[Score, ...]
    samples: int

    def score(self, network: str, metric: str | None = None) -> Score:
        """Return the score of a network; of the first metric when None.

        Raises:
            InputError: there is no such score.
        """
        for found in self.scores:
            if found.network == network and metric in (None, found.metric):
                return found
        known = ", ".join(f"{s.network} {s.metric}" for s in self.scores)
        raise InputError(f"no score of {network!r}", where="evaluate", remedy=f"choose from {known}")

    def grid(self) -> Grid:
        """Return the report as a table."""
        rows = tuple(
            (s.network, s.metric, number(s.value, 5), number(s.difference), _interval(s), number(s.p))
            for s in self.scores
        )
        headings = columns("<network", "<metric", "value", "difference", "95 % interval", "p (McNemar)")
        paired = "; differences are paired, from the first network" if len({s.network for s in self.scores}) > 1 else ""
        return Grid(headings, rows, f"{self.samples:,} samples{paired}")

    def __rich__(self) -> Any:
        return self.grid().__rich__()


def evaluate(
    networks: Network | Sequence[Network] | Mapping[str, Network],
    data: Iterable[Any],
    metric: Metric | str | Sequence[str] | None = None,
    *,
    engine: str = "auto",
    batch_size: int = 64,
    progress: Callable[[int], object] | None = None,
    seed: int = 0,
    state: str | Path | None = None,
) -> EvaluationReport:
    """Measure the accuracy of networks side by side, every sample on all of them.

    Args:
        networks: a float network, a simulation or a program; several in a list or, with names, in a dict. Differences
            are from the first. Modules run in evaluation mode without gradients, and go back to their mode.
        data: batches ``(inputs…, labels)`` (a DataLoader), dicts with an entry "labels", whose entries that are no
            inputs are left out, or one pair of tensors ``(inputs, labels)`` with all samples.
        metric: "top1", "top5"; a function of (outputs, labels) that returns a score per sample or one number for the
            batch; a metric of torchmetrics (extra "metrics"); or several of these in a list. Outputs are the tensor the
            network returns: of a dict or ``ModelOutput`` the entry "logits" where it has one, else the first entry.
            "top1" when None.
        engine: what runs programs.
        batch_size: of a pair of tensors.
        progress: called with the number of samples done so far.
        seed: of the bootstrap, which gives the interval of scores that are not 0 or 1 (else: Agresti and Min 2005). It
            draws samples, or batches where a metric has no score of a single sample.
        state: a file in which scores are kept after every batch; a call that was interrupted goes on from it, given the
            same networks, data and metrics.

    Raises:
        InputError: no networks, no data, batches without labels, labels that are no classes, an unknown metric or one
            that gives no number, a batch size below 1, or a state file of another call.

    Example:
        >>> import torch, intact8
        >>> _ = torch.manual_seed(0)
        >>> net, x = torch.nn.Linear(8, 4).eval(), torch.randn(256, 8)
        >>> program = intact8.quantize(net, x)
        >>> report = intact8.evaluate({"float32": net, "int8": program}, (x, net(x).argmax(1)))
        >>> report.score("float32").value, report.score("int8").value > 0.9
        (1.0, True)
    """
    require_number("batch_size", batch_size, 1, "evaluate")
    named = _named(networks)
    metrics = _metrics(metric)
    scores = {(name, m): make_scores(function) for name in named for m, function in metrics.items()}
    kept = None if state is None else EvaluationState(path_of(state, "the scores"), _call(named, metrics, engine))
    begun = 0 if kept is None else kept.restore(scores)
    done = 0
    for network in named.values():
        if isinstance(network, nn.Module) and not isinstance(network, Simulation):
            warn_of_training_mode(network)
    with evaluation_mode([n for n in named.values() if isinstance(n, nn.Module)]), torch.no_grad():
        for number, (inputs, labels) in enumerate(_batches(data, batch_size)):
            if kept is not None:
                kept.see(inputs, labels)
            count = _count(inputs, labels)
            if number >= begun and count:
                for name, network in named.items():
                    outputs = _outputs(_run(network, inputs, engine))
                    for m in metrics:  # a metric may write into what it is given
                        given = copied(outputs) if len(metrics) > 1 else outputs
                        scores[name, m].add(given, copied(labels), count)
                if kept is not None:
                    kept.save(number + 1, scores)
            done += count
            if progress is not None:
                progress(done)
    if kept is not None:
        kept.check_all_seen()
    if not done:
        raise InputError("no samples", where="evaluate", remedy="give batches of inputs and labels")
    first = next(iter(named))
    rng = np.random.default_rng(seed)
    rows = [_score(name, m, scores[name, m], scores[first, m], rng) for name in named for m in metrics]
    return EvaluationReport(tuple(rows), done)


def _call(networks: Mapping[str, Network], metrics: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Return what tells one evaluation from another, as JSON values."""
    sums = {n: digest(net) if isinstance(net, Program) else checksum(net.state_dict()) for n, net in networks.items()}
    return {"networks": sums, "metrics": {m: identity(given) for m, given in metrics.items()}, "engine": engine}


def _count(inputs: Any, labels: Any) -> int:
    """Return the number of samples of a batch.

    Raises:
        InputError: the labels are those of one sample, without a dimension that counts.
    """
    if isinstance(labels, Mapping | list | tuple) and labels:  # several targets, or one of any form for each sample
        sizes = [len(x) for _, x in leaves("", inputs) if isinstance(x, Tensor) and x.ndim]
        if isinstance(labels, Mapping) or len(labels) not in sizes:
            own = {len(x) for _, x in leaves("", labels) if isinstance(x, Tensor) and x.ndim}
            return own.pop() if len(own) == 1 else sizes[0] if sizes else len(labels)
    try:
        return len(labels)
    except TypeError as error:
        what, why = f"labels of type {type(labels).__name__}, without samples", "data are batches, not single samples"
        remedy = "give a DataLoader of the data set, or batches (inputs…, labels)"
        raise InputError(what, where="evaluate", why=why, remedy=remedy) from error


def _score(name: str, metric: str, scores: Scores, first: Scores, rng: np.random.Generator) -> Score:
    value = scores.value()
    if scores is first:
        return Score(name, metric, value)
    one, other = scores.samples(), first.samples()
    if one is None or other is None:
        return Score(name, metric, value, value - first.value(), *_batch_interval(scores, first, rng))
    d = one - other
    if np.isin(np.concatenate([one, other]), (0, 1)).all():
        gained, lost = int((d > 0).sum()), int((d < 0).sum())
        low, high = paired_interval(gained, lost, len(d))
        return Score(name, metric, value, float(d.mean()), low, high, mcnemar(gained, lost))
    means = [float(rng.choice(d, len(d)).mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Score(name, metric, value, float(d.mean()), float(low), float(high))


def _batch_interval(scores: Scores, first: Scores, rng: np.random.Generator) -> tuple[float | None, float | None]:
    """Return a 95 % interval of the difference by drawing batches; None where there are too few of them."""
    count = len(scores)
    if count < LEAST_BATCHES:
        return None, None
    draws = [rng.integers(count, size=count).tolist() for _ in range(BATCH_RESAMPLES)]
    low, high = np.quantile([scores.over(draw) - first.over(draw) for draw in draws], (0.025, 0.975))
    return float(low), float(high)


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p of the exact McNemar test: ``gained`` and ``lost`` are as likely.

    Example:
        >>> mcnemar(0, 0), round(mcnemar(1, 9), 4)
        (1.0, 0.0215)
    """
    n, k = gained + lost, min(gained, lost)
    tail = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2 * tail / (1 << n))


def paired_interval(gained: int, lost: int, samples: int) -> tuple[float, float]:
    """Return a 95 % interval of a difference of paired shares: Wald's with half a sample more in every cell (Agresti
    and Min 2005).

    Example:
        >>> low, high = paired_interval(0, 0, 1000)
        >>> round(low, 4), round(high, 4)
        (-0.002, 0.002)
    """
    more, less, n = gained + 0.5, lost + 0.5, samples + 2
    difference = (more - less) / n
    error = math.sqrt(more + less - n * difference * difference) / n
    return difference - NORMAL_975 * error, difference + NORMAL_975 * error


def _named(networks: Any) -> dict[str, Network]:
    if isinstance(networks, Mapping):
        found = dict(networks)
    else:
        several = list(networks) if isinstance(networks, list | tuple) else [networks]
        found = {}
        for network in several:
            base = "int8" if isinstance(network, Program) else "float32"
            base = "simulation" if isinstance(network, Simulation) else base
            count = sum(name.split(" ")[0] == base for name in found)
            found[f"{base} {count + 1}" if count else base] = network
    wrong = [type(n).__name__ for n in found.values() if not isinstance(n, nn.Module | Program)]
    if wrong or not found:
        what = f"a {wrong[0]} is no network" if wrong else "no networks"
        raise InputError(what, where="evaluate", remedy="give modules, simulations or programs")
    return found


def _metrics(metric: Any) -> dict[str, Any]:
    given = ["top1"] if metric is None else list(metric) if isinstance(metric, list | tuple) else [metric]
    found: dict[str, Any] = {}
    remedy = f"choose from {', '.join(METRICS)}, or give a function of (outputs, labels)"
    for each in given:
        if isinstance(each, str) and each not in METRICS:
            raise InputError(f"no metric {each!r}", where="evaluate", remedy=remedy)
        if not isinstance(each, str) and not callable(each):
            raise InputError(f"metric: {type(each).__name__} is no metric", where="evaluate", remedy=remedy)
        name = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
        count = sum(known.split(" ")[0] == name for known in found)
        found[f"{name} {count + 1}" if count else name] = METRICS[each] if isinstance(each, str) else each
    if not found:
        raise InputError("no metric is named", where="evaluate", remedy=remedy)
    return found


def top1(outputs: Tensor, labels: Tensor) -> Array:
    """Return 1 for every sample whose largest output is its label's, else 0."""
    return _within(outputs, labels, 1)


def top5(outputs: Tensor, labels: Tensor) -> Array:
    """Return 1 for every sample whose label is among the five largest outputs, else 0."""
    return _within(outputs, labels, 5)


METRICS: dict[str, Metric] = {"top1": top1, "top5": top5}


def _within(outputs: Any, labels: Any, k: int) -> Array:
    outputs, labels = torch.as_tensor(outputs), torch.as_tensor(labels)
    if labels.shape != outputs.shape[:-1]:
        raise InputError(
            f"outputs of shape {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}",
            where="evaluate",
            why="top1 and top5 take a score per class, classes in the last dimension, and a class index per sample",
            remedy="give a function of (outputs, labels) as metric",
        )
    classes = outputs.shape[-1]
    require_classes(labels, classes, "evaluate")
    # Outputs of 8 bits are often equal: argmax takes the first of them, as everybody's own metric does; topk does not.
    best = outputs.argmax(-1, keepdim=True) if k == 1 else outputs.topk(min(k, classes), dim=-1).indices
    found: Array = (best == labels.unsqueeze(-1)).any(-1).cpu().numpy()
    return found


def _run(network: Network, inputs: Any, engine: str) -> Any:
    """Run a network on inputs: a tuple, a dict by name, or a tuple of such a dict alone."""
    ordered: Sequence[Any] = [] if isinstance(inputs, Mapping) else list(inputs)
    named: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    if len(ordered) == 1 and isinstance(ordered[0], Mapping) and _named_inputs(network, ordered[0]):
        ordered, named = [], ordered[0]
    named = _named_inputs(network, named)
    if isinstance(network, Program):
        return network.run(*ordered, engine=engine, **named)
    if not isinstance(network, (Simulation, Module)):
        try:
            inspect.signature(network.forward).bind(*ordered, **named)
        except TypeError as error:
            what = f"a batch does not fit {type(network).__name__}.forward"
            remedy = "give (inputs…, labels), or inputs by name and labels"
            raise InputError(what, where="evaluate", why=str(error), remedy=remedy) from error
        ordered, named = copied(tuple(ordered)), copied(dict(named))  # it may write into what the next network is given
        try:
            return network(*ordered, **named)
        except (RuntimeError, TypeError, ValueError) as error:  # its code is anybody's
            what, remedy = f"{type(network).__name__} does not run on a batch", "see that network(inputs) works"
            raise InputError(what, where="evaluate", why=in_short(error), remedy=remedy) from error
    return network(*ordered, **named)


def _named_inputs(network: Network, entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries of a batch by name that a network takes."""
    if isinstance(network, Program | Module):
        return taken(network if isinstance(network, Program) else network.program, entries)
    if isinstance(network, Simulation):
        known: Collection[str] = network.captured.layout.parameters
    else:
        parameters = inspect.signature(network.forward).parameters
        known = entries if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else parameters
    return {name: value for name, value in entries.items() if name in known}


def _outputs(found: Any) -> Any:
    if isinstance(found, Mapping):
        return found["logits"] if "logits" in found else next(iter(found.values()))
    if not isinstance(found, Tensor) and hasattr(found, "logits"):
        return found.logits
    return found[0] if isinstance(found, list | tuple) else found


def _batches(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, labels): inputs as a tuple, or as a dict by name; arrays as tensors."""
    if isinstance(data, tuple) and len(data) > 1 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        data = zip(*(_split(part, batch_size) for part in data), strict=True)
    try:
        found = iter(data)
    except TypeError as error:
        what, remedy = f"{type(data).__name__} is no data", "give batches (inputs…, labels)"
        raise InputError(what, where="evaluate", remedy=remedy) from error
    for batch in found:
        if isinstance(batch, Mapping):
            key = next((key for key in LABELS if key in batch), None)
            if key is None:
                remedy = f"name them {', '.join(LABELS)}"
                raise InputError("a batch without labels", where="evaluate", remedy=remedy)
            yield {name: _tensor(value) for name, value in batch.items() if name != key}, _tensor(batch[key])
        elif isinstance(batch, list | tuple) and len(batch) > 1:
            yield tuple(map(_tensor, batch[:-1])), _tensor(batch[-1])
        else:
            raise InputError("a batch without labels", where="evaluate", remedy="give (inputs…, labels)")


def _split(whole: Any, size: int) -> Iterator[Any]:
    return (whole[start : start + size] for start in range(0, len(whole), size))


def _tensor(value: Any) -> Any:
    return tensor_of(value) if isinstance(value, np.ndarray) else value


@contextmanager
def evaluation_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put networks in evaluation mode for a while; every module of theirs gets its own mode back."""
    modes = [(module, module.training) for network in modules for module in network.modules()]
    try:
        for network in modules:
            network.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def _interval(score: Score) -> str:
    return "" if score.low is None else f"{number(score.low)} … {number(score.high)}"


__all__ = ["EvaluationReport", "Score", "evaluate"]
