"""What a candidate is judged by: accuracy on labelled samples, likeness to the float network, or a user's function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.calibration.data import Specs, batches, samples
from intact8.capture import Captured
from intact8.capture.pytree import copied
from intact8.diagnose.evaluate import LABELS, evaluation_mode
from intact8.diagnose.evaluate import METRICS as LABELLED
from intact8.diagnose.evaluate import evaluate as evaluate_networks
from intact8.diagnose.sensitivity.metrics import METRICS as UNLABELLED
from intact8.diagnose.sensitivity.metrics import make_metric
from intact8.errors import InputError

PERCENT = frozenset({"top1", "top5", "cosine"})
"""Metrics that are shares, which are multiplied by 100."""


@dataclass(frozen=True)
class Objective:
    """A metric of a network.

    Attributes:
        name: name of the metric.
        higher_is_better: whether a larger number is better.
        measure: network → metric; it is called in evaluation mode, without gradients.
        data: labelled samples, where the metric is computed on them; else None.
        metric: what :func:`intact8.evaluate` takes as metric of these.
    """

    name: str
    higher_is_better: bool
    measure: Callable[[nn.Module], float]
    data: Any = None
    metric: Any = None

    def drop(self, exact: float, score: float) -> float:
        """Return by how much a score is worse than that of the float network; infinitely, where it is no number."""
        if not math.isfinite(score):
            return math.inf
        return exact - score if self.higher_is_better else score - exact


def make_objective(
    model: nn.Module,
    captured: Captured,
    calibration: Sequence[Any],
    evaluate: Any,
    metric: Any,
    higher_is_better: bool,
) -> Objective:
    """Return what candidates are judged by; see :func:`intact8.tune` for the arguments.

    Raises:
        InputError: an unknown metric, or an iterator that can be read only once.
    """
    if isinstance(evaluate, Iterator):
        remedy = "give a tensor, a list or a DataLoader"
        raise InputError("an iterator is read only once, and tuning reads it for every candidate", remedy=remedy)
    if callable(evaluate):
        return Objective(getattr(evaluate, "__name__", "evaluate"), higher_is_better, _quietly(evaluate))
    if evaluate is None or not _has_labels(evaluate, metric):
        return _likeness(model, captured, calibration if evaluate is None else evaluate, metric or "cosine")
    chosen = metric or "top1"
    known = isinstance(chosen, str)
    if known and chosen not in LABELLED:
        raise InputError(f"no metric {chosen!r}", where="tune", remedy=f"choose from {', '.join(LABELLED)}")
    factor = 100.0 if known else 1.0
    name = chosen if known else getattr(chosen, "__name__", type(chosen).__name__)

    def measure(network: nn.Module) -> float:
        return factor * evaluate_networks(network, evaluate, chosen).scores[0].value

    return Objective(name, higher_is_better, measure, evaluate, chosen)


def _has_labels(data: Any, metric: Any) -> bool:
    """Return whether data for a metric are labelled: pairs of tensors, or batches that are no tensors."""
    if isinstance(data, Tensor | np.ndarray) or (isinstance(metric, str) and metric not in LABELLED):
        return False
    try:
        first = next(iter(data), None)
    except TypeError as error:
        what, remedy = f"{type(data).__name__} is nothing to judge by", "give labelled samples, a tensor or a function"
        raise InputError(what, where="tune", remedy=remedy) from error
    if isinstance(first, Mapping):
        return any(name in first for name in LABELS)
    return isinstance(data, tuple) or not isinstance(first, Tensor | np.ndarray)


def _quietly(function: Callable[[nn.Module], Any]) -> Callable[[nn.Module], float]:
    """Return the function, called with networks in evaluation mode and without gradients."""

    def measure(network: nn.Module) -> float:
        with evaluation_mode([network]), torch.no_grad():
            found = function(network)
        try:
            if isinstance(found, str | bytes):
                raise TypeError
            return float(found)
        except (TypeError, ValueError) as error:
            what = f"the function evaluate gave {type(found).__name__}, no number"
            raise InputError(what, where="tune", remedy="return one number for a network") from error

    return measure


def _likeness(model: nn.Module, captured: Captured, data: Any, metric: str) -> Objective:
    """Return a metric of the outputs against those of the float network."""
    if metric not in UNLABELLED:
        why = "no labels were given" if metric in LABELLED else ""
        remedy = f"choose from {', '.join(UNLABELLED)}"
        if not why:
            remedy += f", or with labels from {', '.join(LABELLED)}"
        raise InputError(f"no metric {metric!r}", where="tune", why=why, remedy=remedy)
    if isinstance(data, tuple) and len(data) > 1 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        data = [data]  # (inputs…, labels), as for labelled metrics: labels are left out of a batch
    found, device = make_metric(metric, True), next((p.device for p in model.parameters()), torch.device("cpu"))
    calls = list(batches(data, Specs.of(captured.graph, captured.layout), device))
    with evaluation_mode([model]), torch.no_grad():
        references = [_tensors(model(*copied(args), **copied(kwargs))) for args, kwargs in calls]

    def measure(network: nn.Module) -> float:
        sums: list[tuple[float, ...]] = []
        for (args, kwargs), reference in zip(calls, references, strict=True):
            outputs = _tensors(network(*copied(args), **copied(kwargs)))
            sums.append(found.sums(outputs, reference, None, None, samples((args, kwargs))))
        value = found.value([sum(parts) for parts in zip(*sums, strict=True)])
        return value * (100.0 if metric in PERCENT else 1.0)

    return Objective(metric, found.higher_is_better, _quietly(measure))


def _tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors of nested outputs; of an object, those of its attributes."""
    values = vars(outputs) if hasattr(outputs, "__dict__") and not isinstance(outputs, dict | Tensor) else outputs
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


__all__ = ["Objective", "make_objective"]
