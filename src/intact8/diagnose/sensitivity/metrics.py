"""Metrics of sensitivity: sums over samples, added up chunk by chunk, and the number that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intact8.diagnose.evaluation_scores import numbers_of
from intact8.errors import InputError

UserMetric = Callable[[Any, Any], Any]
"""Called with the network's outputs, nested as the model nests them, and the batch as the data gave it, labels
included; returns a number, or a tensor with one number per sample. It must be a mean over samples: batches are cut to
fit into memory, and results are averaged by samples."""

CEILING = 150.0
"""Largest SQNR in dB; one above the precision of float32 (144 dB) tells nothing."""


@dataclass(frozen=True)
class Metric:
    """A measure of a network's outputs.

    Attributes:
        name: name of the metric in the report.
        higher_is_better: whether a larger number is better.
        sums: (outputs, the float network's outputs, rebuilt outputs, batch, samples) → numbers to add up.
        value: added sums → the metric.
    """

    name: str
    higher_is_better: bool
    sums: Callable[[Sequence[Tensor], Sequence[Tensor], Any, Any, int], tuple[float, ...]]
    value: Callable[[Sequence[float]], float]


def make_metric(metric: str | Metric | UserMetric, higher_is_better: bool) -> Metric:
    """Return the built-in metric of that name, a metric as it is, or one that calls the user's function.

    Raises:
        InputError: no built-in metric has that name.

    Example:
        >>> metric = make_metric("top1", True)
        >>> y, reference = torch.tensor([[0.0, 1.0], [0.5, 0.4]]), torch.tensor([[0.0, 2.0], [0.1, 0.4]])
        >>> metric.value(metric.sums([y], [reference], None, None, 2))
        0.5
    """
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return _of_user(metric, higher_is_better)
    if metric not in METRICS:
        remedy = f"choose from {', '.join(METRICS)}, or give a function of (outputs, batch)"
        raise InputError(f"there is no metric {metric!r}", where="sensitivity", remedy=remedy)
    return METRICS[metric]


def _mean(sums: Sequence[float]) -> float:
    return sums[0] / sums[1]


def _of_user(function: UserMetric, higher_is_better: bool) -> Metric:
    def sums(y: Sequence[Tensor], reference: Sequence[Tensor], rebuilt: Any, batch: Any, n: int) -> tuple[float, ...]:
        value = function(rebuilt, batch)
        of_samples = value if isinstance(value, Tensor) else numbers_of(value, function, "sensitivity")
        return float(torch.as_tensor(of_samples).double().mean()) * n, float(n)

    return Metric(getattr(function, "__name__", type(function).__name__), higher_is_better, sums, _mean)


def _floats(outputs: Sequence[Tensor]) -> list[Tensor]:
    found = [y.double() for y in outputs if y.is_floating_point()]
    if not found:
        raise InputError("the network has no float output to measure", remedy="give a metric of your own")
    return found


def _sqnr_sums(y: Sequence[Tensor], r: Sequence[Tensor], _: Any, __: Any, n: int) -> tuple[float, ...]:
    pairs = list(zip(_floats(y), _floats(r), strict=True))
    return float(sum((b * b).sum() for _, b in pairs)), float(sum(((a - b) ** 2).sum() for a, b in pairs))


def sqnr(sums: Sequence[float]) -> float:
    """Return the ratio of a signal to its error in dB, within ±CEILING, given the sums of both squared; NaN of NaN.

    Example:
        >>> sqnr((100.0, 1.0)), sqnr((1.0, 0.0)), sqnr((1.0, math.inf)), sqnr((1.0, math.nan))
        (20.0, 150.0, -150.0, nan)
    """
    signal, noise = sums
    if math.isnan(signal) or math.isnan(noise):
        return math.nan
    if noise == 0:
        return CEILING
    return min(CEILING, 10 * math.log10(signal / noise)) if signal > 0 and noise < math.inf else -CEILING


def _cosine_sums(y: Sequence[Tensor], r: Sequence[Tensor], _: Any, __: Any, n: int) -> tuple[float, ...]:
    a, b = (torch.cat([t.reshape(n, -1) for t in _floats(outputs)], 1) for outputs in (y, r))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=1).sum()), float(n)


def _logits(outputs: Sequence[Tensor]) -> Tensor:
    """Reshape the first float output to (positions, classes); classes are dimension 1, or the only one."""
    y = _floats(outputs)[0]
    return y.movedim(1, -1).reshape(-1, y.shape[1]) if y.dim() > 1 else y.reshape(1, -1)


def _kl_sums(y: Sequence[Tensor], r: Sequence[Tensor], _: Any, __: Any, n: int) -> tuple[float, ...]:
    q, p = (torch.log_softmax(_logits(outputs), 1) for outputs in (y, r))
    return float((p.exp() * (p - q)).sum()), float(len(p))


def _top1_sums(y: Sequence[Tensor], r: Sequence[Tensor], _: Any, __: Any, n: int) -> tuple[float, ...]:
    a, b = _logits(y).argmax(1), _logits(r).argmax(1)
    return float((a == b).sum()), float(len(b))


METRICS = {
    "sqnr": Metric("sqnr", True, _sqnr_sums, sqnr),
    "kl": Metric("kl", False, _kl_sums, _mean),
    "cosine": Metric("cosine", True, _cosine_sums, _mean),
    "top1": Metric("top1", True, _top1_sums, _mean),
}
"""Built-in metrics, of the outputs against the float network's:

- sqnr: 10·log10(Σ y² / Σ error²) over all float outputs and samples, dB.
- kl: mean of Σ p·log(p/q) over softmax of the first output, nats; p is the float network's.
- cosine: mean over samples of the cosine between both outputs.
- top1: share of positions where the largest logit is the same.
"""
