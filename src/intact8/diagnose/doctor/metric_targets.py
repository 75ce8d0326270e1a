"""What a metric says of a network's outputs, where the right answers are of a form of their own, as boxes are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from intact8.diagnose.chunks import Chunk, cut
from intact8.diagnose.doctor.float_network import FloatOutputs, Metric
from intact8.diagnose.doctor.samples import Samples, labels_of
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.evaluation_scores import numbers_of

NO_MEAN = 0.05
"""Difference between a metric of batches and the mean of those of their samples from which it is no mean of samples, as
a share of variance is none: then it says nothing of single ones."""

TRIVIAL = 0.8
"""Metric of single samples from which it tells nothing of them where answers to others have it as well: one found among
one."""

FAILS = (ArithmeticError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What metrics raise of outputs that make no sense, as a repair may give."""


@dataclass(frozen=True, kw_only=True)
class MetricTargets(Targets):
    """Targets that only a metric of the user's knows: its value of a sample, from 0 to 1, is how far that is right.

    Attributes:
        metric: called with (outputs, labels); see :func:`intact8.doctor`.
        rebuild: makes the network's outputs, in its own form, of its flat tensors.
        samples: what was answered, with labels.
        shapes: the shape of every output of a sample.
        inputs: number of the network's inputs.
        guessed: the score of answers to other samples.
    """

    metric: Metric
    rebuild: Callable[[list[Tensor]], Any]
    samples: Samples
    shapes: tuple[tuple[int, ...], ...]
    inputs: int
    guessed: float = 0.0

    def taken(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return all outputs, one after the other in a row per sample, float64 (N, numbers)."""
        return torch.cat([y.detach().double().cpu().reshape(len(y), -1) for y in outputs], 1)

    def at(self, numbers: Tensor, samples: Samples) -> MetricTargets:
        """Return those of the samples of these numbers, int64."""
        return replace(self, values=self.values[numbers], samples=samples)

    def tempered(self, output: Tensor) -> tuple[float, Tensor]:
        """Return 1, and what every sample lacks, float64 (N,)."""
        return 1.0, 1 - self.rights(output)

    def score(self, output: Tensor) -> float:
        """Return the mean of the metric."""
        return float(self.rights(output).mean())

    def rights(self, output: Tensor) -> Tensor:
        """Return the metric of every sample, float64 (N,); 0 where it gives no number."""
        parts, start = [], 0
        for batch in self.samples:
            parts.append(self._of(output[start : start + len(batch)], batch))
            start += len(batch)
        return torch.cat(parts).nan_to_num(0.0, 0.0, 0.0)

    def of_batches(self, output: Tensor) -> float:
        """Return the mean of the metric over whole batches of which it is not NaN; NaN where it gives no number."""
        total, start, count = 0.0, 0, 0
        for batch in self.samples:
            try:
                value = float(self._called(output[start : start + len(batch)], batch.batch).mean())
            except FAILS:
                return math.nan
            if not math.isnan(value):
                total, count = total + value * len(batch), count + len(batch)
            start += len(batch)
        return total / count if count else math.nan

    def renumbered(self, output: Tensor) -> float:
        """Return the score: there are no units that could be others."""
        return self.score(output)

    def order(self, output: Tensor) -> Tensor | None:
        """Return None: nothing is known of columns."""
        return None

    def units(self, output: Tensor) -> Tensor | None:
        """Return None: nothing is known of columns."""
        return None

    def chance(self) -> float:
        """Return the score of answers to other samples."""
        return self.guessed

    def said(self, score: float) -> str:
        """Describe a score."""
        return f"scores {score:.1%}"

    def _of(self, rows: Tensor, batch: Chunk) -> Tensor:
        """Return the metric of every sample of a batch, called for each of them where it gives their mean."""
        try:
            found = self._called(rows, batch.batch)
            if len(found) == len(batch):
                return found
            every = range(len(batch))
            parts = [self._called(rows[i : i + 1], cut(batch.batch, slice(i, i + 1), len(batch))).mean() for i in every]
            return torch.stack(parts)
        except FAILS:
            return torch.zeros(len(batch), dtype=torch.float64)

    def _called(self, rows: Tensor, batch: Any) -> Tensor:
        parts = torch.split(rows, [math.prod(shape) for shape in self.shapes], 1)
        ys = [part.reshape(len(rows), *shape).float() for part, shape in zip(parts, self.shapes, strict=True)]
        found = numbers_of(self.metric(self.rebuild(ys), labels_of(batch, self.inputs)), self.metric, "doctor")
        return torch.as_tensor(found, dtype=torch.float64).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class BatchMetricTargets(MetricTargets):
    """Targets that a metric of whole batches knows, as R² or an area under a curve, of which single samples have none.

    What a part of a batch contributes is told by the metric without it (Quenouille's jackknife): of K parts, K times
    the metric less K − 1 times that without the part. Samples stand for the contributions so that the standard error of
    their mean is that of K contributions.
    """

    def score(self, output: Tensor) -> float:
        """Return the mean of the metric over the batches; 0 where it gives no number."""
        value = self.of_batches(output)
        return 0.0 if math.isnan(value) else value

    def _of(self, rows: Tensor, batch: Chunk) -> Tensor:
        count = len(batch)
        parts = torch.arange(count).chunk(min(PARTS, count))
        try:
            whole = float(self._called(rows, batch.batch).mean())
            if len(parts) < 2:
                return torch.full((count,), whole, dtype=torch.float64)
            without = [torch.cat([p for p in parts if p is not part]) for part in parts]
            left = torch.stack([self._called(rows[i], cut(batch.batch, i, count)).mean() for i in without])
        except FAILS:
            return torch.zeros(count, dtype=torch.float64)
        apart = (len(parts) - 1) * (left.mean() - left) * math.sqrt(count / len(parts))
        return whole + apart.repeat_interleave(torch.tensor([len(part) for part in parts]))


PARTS = 8
"""Parts of a batch of which each is left out once."""


def share_by_metric(exact: FloatOutputs) -> float | None:
    """Return how far the metric goes from that of answers to other samples to 1; None where it is not from 0 to 1."""
    if exact.metric is None or isinstance(exact.metric, str):
        return None
    try:
        others = exact.score_of(
            [[y.roll(max(1, len(y) // 2), 0) if y.dim() else y for y in ys] for ys in exact.outputs]
        )
    except FAILS:
        return None
    if not 0 <= others <= 1 or not 0 <= exact.score <= 1:
        return None
    return (exact.score - others) / max(1 - others, 1e-30)


def metric_targets(exact: FloatOutputs, samples: Samples, inputs: int) -> MetricTargets | None:
    """Return targets of the metric with which outputs are compared; None where it has none, or gives other numbers.

    Args:
        exact: the float network's outputs on the samples.
        samples: the samples.
        inputs: number of the network's inputs.
    """
    targets = of_batches(exact, samples, inputs)
    if targets is None:
        return None
    rows = torch.cat([targets.taken(ys) for ys in exact.outputs])
    found, others = targets.rights(rows), targets.rights(rows.roll(max(1, len(rows) // 2), 0))
    single = 0 <= float(found.min()) <= float(found.max()) <= 1
    if not single or abs(float(found.mean()) - exact.score) > NO_MEAN:
        return _of_whole_batches(targets, exact, rows)
    if float(others.mean()) > float(found.mean()) - NO_MEAN and float(found.mean()) > TRIVIAL:
        return None
    return replace(targets, guessed=float(others.clamp(0, 1).mean()))


def _of_whole_batches(targets: MetricTargets, exact: FloatOutputs, rows: Tensor) -> BatchMetricTargets | None:
    """Return targets of a metric from 0 to 1 that says nothing of single samples; None where it says nothing at all."""
    whole = BatchMetricTargets(**{f.name: getattr(targets, f.name) for f in fields(targets)})
    others = whole.of_batches(rows.roll(max(1, len(rows) // 2), 0))
    known = 0 <= exact.score <= 1 and 0 <= others <= min(1.0, exact.score + NO_MEAN)  # else less of it is better
    return replace(whole, guessed=others) if known else None


def of_batches(exact: FloatOutputs, samples: Samples, inputs: int) -> MetricTargets | None:
    """Return the metric as targets that may know whole batches only; None where there is none, or nothing fits it."""
    first = exact.outputs[0]
    alike = all([tuple(y.shape[1:]) for y in ys] == [tuple(y.shape[1:]) for y in first] for ys in exact.outputs)
    whole = all(
        y.dim() and y.is_floating_point() and len(y) == len(b)
        for ys, b in zip(exact.outputs, samples, strict=True)
        for y in ys
    )
    if exact.metric is None or isinstance(exact.metric, str) or not alike or not whole:
        return None
    return MetricTargets(
        torch.zeros(len(samples)), False, metric=exact.metric, rebuild=exact.rebuild, samples=samples,
        shapes=tuple(tuple(y.shape[1:]) for y in first), inputs=inputs,
    )  # fmt: skip
