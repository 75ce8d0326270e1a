"""What the first output should have been, where the data say it: classes, or numbers of its own shape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor, nn

from intact8.diagnose.doctor.samples import UNKNOWN, Samples, filled_up, padded

FACTORS = range(-24, 9)
"""Powers of two by which scores are multiplied to find the temperature that suits the labels best."""

PLACES = 512
"""Places of a sample that are judged, about."""

UNITS, FORETOLD = 30.0, 0.5
"""Ratio of deviations of columns from which they have units of their own, and the share of the variance of each that
must be explained, so that none is a column of nothing."""

ALMOST = 1e-3
"""By how much the lengths of normalized vectors may differ from 1."""

FAINT = 0.2
"""Mean of maps of peaks below which most of them is 0."""

NARROW = 1e-3
"""Share of the variance of a narrow column (three in four of those that vary are wider) below which one counts by this
share: a pixel that is always black has no variance of its own to count errors by."""


LINKS: dict[str, Callable[[Tensor], Tensor]] = {"": lambda y: y, "sigmoid": torch.sigmoid, "exp": torch.exp}
"""Functions of what is given that may be compared with numbers."""

UNSEEN, COUNTED = 1.25, 0.3
"""How many times as many scores as classes there are from which that is asked; and the share of the variance that the
exponential of outputs must explain beyond what they do themselves where counts are to be foretold."""

SEVERAL, SEEN = 5, 0.15
"""Classes below which samples may lack any number of them; and the share of answers beyond the classes of all samples,
which are all there up to the largest one, from which outputs are no scores of classes."""


VOID = 255
"""Label of pixels of no class, or of several, in many data sets of segmentation."""


@dataclass(frozen=True)
class Targets:
    """The right answers to some samples.

    Attributes:
        values: class indices, int64 (N, …), UNKNOWN where none is known, for scores (N, classes, …); or numbers (N, …)
            of the output's shape.
        classes: whether they are class indices.
        yes: whether these are 0 and 1, no and yes, for one score of yes: its logit, or a probability.
        link: function of what is given that is compared with numbers: "" itself, "sigmoid" of logits, as of heat maps,
            "exp" of logarithms, as of counts.
        ahead: whether what is given belongs to the next place, as where a language model's labels are its inputs.
        last: whether classes are the last dimension though others are as large.
        shape: of the largest output of a sample, where these are of different sizes; they are filled up with zeros.
    """

    values: Tensor
    classes: bool
    yes: bool = False
    link: str = ""
    ahead: bool = False
    last: bool = False
    shape: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def taken(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return what is judged of the network's outputs, (N, …): the first one."""
        output = filled_up(outputs[0], self.shape) if self.shape else outputs[0]
        return output[:, :-1] if self.ahead else output

    def at(self, numbers: Tensor, samples: Samples) -> Targets:
        """Return those of the samples of these numbers, int64."""
        return replace(self, values=self.values[numbers])

    def losses(self, output: Tensor) -> Tensor:
        """Return the loss of every sample, float64 (N,): −log p(class) at the best temperature, or squared errors.

        Errors of numbers count by the variance of their column, as numbers of different units may stand side by side.
        """
        return self.tempered(output)[1]

    def tempered(self, output: Tensor) -> tuple[float, Tensor]:
        """Return the factor of the scores, a power of two, at which the mean loss is least (1 for numbers), and losses.

        Being too sure is no fault that repairs should be judged by.
        """
        if not self.classes:
            return 1.0, self._errors(output).mean((1, 2))
        scores = self._scores(output)
        if self._probabilities(scores):
            scores = scores.clamp(min=1e-30).log()
        scores, index = scores.nan_to_num(0.0, 1e30, -1e30), self._index().clamp(min=0)[:, None]

        @cache
        def at(k: int) -> tuple[float, Tensor]:
            losses = self._mean(-(2.0**k * scores).log_softmax(1).gather(1, index).flatten(1))
            return float(losses.mean()), losses

        # The loss is a convex function of the factor: it falls as far as the least, and rises from there.
        least = FACTORS[bisect_left(FACTORS[:-1], True, key=lambda k: at(k)[0] <= at(k + 1)[0])]
        return 2.0**least, at(least)[1]

    def score(self, output: Tensor) -> float:
        """Return the share of right classes; for numbers, that of a column's variance which is explained, their mean.

        A column that is foretold worse than by its mean counts as one of which nothing is explained.
        """
        if self.classes:
            return float(self.rights(output).mean())
        return float((1 - self._errors(output).mean((0, 2))).clamp(min=0).mean())

    def rights(self, output: Tensor) -> Tensor:
        """Return the share of right classes of every sample, float64 (N,); 1 where none of it is known."""
        right = self._mean((self._scores(output).argmax(1) == self._index()).double())
        return torch.where(self._known.any(1), right, 1.0)

    def renumbered(self, output: Tensor) -> float:
        """Return the score if the network's classes were numbered otherwise, or its numbers were in other units."""
        if not self.classes:
            right, given = self._columns(self.values), self._given(output).nan_to_num(0.0, 0.0, 0.0)
            left, other = (t - t.mean((0, 2), keepdim=True) for t in (given, right))
            power = left.square().sum((0, 2)) * other.square().sum((0, 2))
            return float(((left * other).sum((0, 2)).square() / power.clamp(min=1e-30)).mean())
        scores = self._scores(output)
        pairs = (scores.argmax(1) * scores.shape[1] + self._index())[self._known]
        counts = torch.bincount(pairs, minlength=scores.shape[1] ** 2).reshape(scores.shape[1], -1)
        label = counts.argmax(1)[counts.sum(1) > 0]
        seen = counts.amax(1)[counts.sum(1) > 1].sum()  # an answer that is given once fits any label
        return float(seen / counts.sum()) if len(set(label.tolist())) == len(label) else 0.0

    def order(self, output: Tensor) -> Tensor | None:
        """Return the order in which the network's columns suit the labels best; None where they do, or none is best."""
        if self.classes and not self.yes:
            scores, index = self._scores(output), self._index()
            known = self._known
            given = nn.functional.one_hot(scores.argmax(1)[known], scores.shape[1]).double()
            like = nn.functional.one_hot(index[known], scores.shape[1]).double().T @ given
            order = _assigned(like)
        else:
            columns = self._columns(self.values), self._given(output)
            right, given = (t.movedim(1, 0).flatten(1) for t in columns)
            order = torch.corrcoef(torch.cat([right, given])).nan_to_num(0.0)[: len(right), len(right) :].argmax(1)
        sorted_ = torch.arange(len(order))
        return order if torch.equal(order.sort().values, sorted_) and not torch.equal(order, sorted_) else None

    def prior_losses(self) -> Tensor:
        """Return the loss of every sample, float64 (N,), of answers that know how often every class is right only."""
        index = self._index()
        known = index[self._known]
        share = torch.bincount(known).double() / len(known)
        return self._mean(-share[index.clamp(min=0)].clamp(min=1e-30).log())

    def units(self, output: Tensor) -> Tensor | None:
        """Return one over the deviation of every column of numbers that all are foretold, where they differ much."""
        if self.classes or self.values.dim() != 2 or self.values.shape[1] < 2:
            return None
        deviation = self.values.double().std(0, correction=0)
        explained = 1 - self._errors(output).mean((0, 2))
        alike = float(deviation.max()) < UNITS * float(deviation.min())
        return None if alike or float(explained.min()) < FORETOLD else 1 / deviation

    def chance(self) -> float:
        """Return the score of the best answer that is the same for all samples."""
        if not self.classes:
            return 0.0
        counts = np.unique(self.values[self.values != UNKNOWN].numpy(), return_counts=True)[1]
        return float(counts.max() / counts.sum())

    def confidence(self, output: Tensor) -> float:
        """Return the mean probability of the answers; for numbers, which have none, the score."""
        if not self.classes:
            return self.score(output)
        scores = self._scores(output)
        sure = (scores if self._probabilities(scores) else scores.softmax(1)).amax(1)
        return float(sure[self._known].mean())

    def said(self, score: float) -> str:
        """Describe a score."""
        return f"is right on {score:.1%}" if self.classes else f"explains {score:.1%} of the variance"

    def _given(self, output: Tensor) -> Tensor:
        """Return numbers that are given as :meth:`_columns` does."""
        return self._columns(LINKS[self.link](output.double()))

    def _columns(self, numbers: Tensor) -> Tensor:
        """Return numbers as float64 (N, columns, places): dimension 1 holds what may have units of its own."""
        rows = numbers.double().cpu().reshape(self.values.shape)
        return rows.reshape(len(rows), rows.shape[1] if rows.dim() > 1 else 1, -1)

    def _errors(self, output: Tensor) -> Tensor:
        """Return squared errors over the variance of their column, float64 (N, columns, places)."""
        right = self._columns(self.values)
        variance = right.var((0, 2), correction=0)
        varying = variance[variance > 1e-12 * right.square().mean((0, 2))]
        narrow = NARROW * float(varying.quantile(0.25, interpolation="lower")) if len(varying) else 0.0
        errors = (self._given(output) - right).nan_to_num(1e30, 1e30, -1e30)
        return errors.square() / variance.clamp(min=narrow + 1e-30)[:, None]

    def _mean(self, values: Tensor) -> Tensor:
        """Return the mean of what (N, places) have, over those of which the class is known, (N,); 0 where none is."""
        return values.mul(self._known).sum(1) / self._known.sum(1).clamp(min=1)

    @cached_property
    def _known(self) -> Tensor:
        """The places of which the class is known, bool (N, places); of many places some."""
        return self._index() != UNKNOWN

    def _probabilities(self, scores: Tensor) -> bool:
        """Return whether scores (N, classes, places) are probabilities."""
        sums = (scores.sum(1) - 1).abs()[self._known]
        return bool((scores >= 0).all()) and bool((sums < 1e-3).all())

    def _index(self) -> Tensor:
        """Return classes, int64 (N, places); of many places some."""
        index = self.values.reshape(len(self.values), -1)
        return index[:, :: max(1, index.shape[1] // PLACES)]

    def _scores(self, output: Tensor) -> Tensor:
        """Return scores, float64 (N, classes, places)."""
        if self.yes:
            yes = output.double().reshape(len(output), *self.values.shape[1:])
            probable = bool(((yes >= 0) & (yes <= 1)).all())
            output = torch.stack([1 - yes if probable else torch.zeros_like(yes), yes], 1)
        last = self.last or output.shape[2:] != self.values.shape[1:]
        scores = output.movedim(-1, 1) if last else output
        scores = scores.reshape(len(scores), scores.shape[1], -1)
        return scores[:, :, :: max(1, scores.shape[2] // PLACES)].double().cpu()


def _assigned(counts: Tensor) -> Tensor:
    """Return for every class the answer that is given to it most often, or the class to which an answer is.

    A frequent class has the answers to others, too, so that either may tell. Classes that are no answer keep the rest.

    Args:
        counts: how often each answer (column) is given to each class (row).
    """
    order = counts.argmax(1)
    given = counts.sum(0) > 0
    of = counts.argmax(0)[given].tolist()
    if len(set(order.tolist())) < len(counts) and len(set(of)) == len(of):
        rest = [c for c in range(len(counts)) if c not in of]
        order = torch.zeros_like(order)
        order[[*of, *rest]] = torch.cat([given.nonzero(), (~given).nonzero()])[:, 0]
    return order


def targets_of(samples: Samples, inputs: int, output: Tensor) -> Targets | None:
    """Return the targets that follow the inputs in every batch; None where there are none of a form that is known.

    Args:
        samples: the samples.
        inputs: number of the network's inputs.
        output: its first output for one or more samples.
    """
    values, shape = samples.labels(inputs), output.shape[1:]
    if values is None or output.dim() < 1 or not output.is_floating_point():
        return None
    if len(shape) == 1 and shape[0] > 1:  # scores of classes, and one number for each sample
        values = values.squeeze(1) if values.dim() == 2 and values.shape[1] == 1 else values
        whole = values.dim() == 1 and values.is_floating_point() and bool((values == values.round()).all())
        whole = whole and bool((values != values[0]).any())
        values = values.long() if whole else values
    alike = values.shape[1:] == shape or values.shape[1:] == (*shape, 1) or (*values.shape[1:], 1) == shape
    if values.is_floating_point():
        if not alike or not bool(torch.isfinite(values).all()) or not float(values.std()) > 0:
            return None
        values = values.reshape(len(values), *shape)
        if len(shape) == 1 and shape[0] > 1 and _shares(values):
            return Targets(values.argmax(1), True)
        if not _logits(values, output.cpu()):
            return _numbers(values, output.cpu())
    marked = _without_unknown(values, 2)
    if alike and bool(((marked == 0) | (marked == 1) | (marked == UNKNOWN)).all()):
        values = marked.long().reshape(len(values), *shape)
        one = values.dim() > 1 and values.shape[1] > 1 and bool((values.sum(1) == 1).all())
        return Targets(values.argmax(1), True) if one else Targets(values, True, yes=True)
    if values.dtype == torch.bool or not len(shape) or directions(output):
        return None
    places = values.shape[1:]
    count = shape[0] if shape[1:] == places else shape[-1] if shape[:-1] == places else 0
    values = _without_unknown(values.long(), count)
    known = values[values != UNKNOWN]
    if not (count > 1 and len(known) and int(known.min()) >= 0 and int(known.max()) < count):
        return None
    return _classes(Targets(values, True), samples, output.cpu(), shape[:-1] == places)


def _without_unknown(values: Tensor, count: int) -> Tensor:
    """Return classes of places, of ``count``, with UNKNOWN for one number below 0, and for VOID, if that is none."""
    if values.dim() < 2 or values.is_floating_point() or values.dtype == torch.bool:
        return values
    negative = values[values < 0]
    unknown = values < 0 if len(negative) and bool((negative == negative[0]).all()) else torch.zeros_like(values).bool()
    return values.masked_fill(unknown | ((values == VOID) & (count <= VOID)), UNKNOWN)


def _classes(found: Targets, samples: Samples, output: Tensor, last: bool) -> Targets | None:
    """Return the classes of outputs in the form that suits them; None where most answers are no class of any sample."""
    forms = [found, replace(found, last=True)] if last and output.shape[2:] == found.values.shape[1:] else [found]
    given = [x for batch in samples for x in batch.inputs[:1]]
    tokens = padded(given).cpu().long() if last and all(x.dim() == 2 for x in given) else found.values[:0]
    if tokens.shape == found.values.shape and bool(((tokens == found.values) | (found.values == UNKNOWN)).all()):
        forms += [replace(f, values=f.values[:, 1:], ahead=True) for f in forms]
    if len(output) < len(found):  # of one batch, which tells the form as well
        forms = [replace(f, values=f.values[: len(output)]) for f in forms]
    best = max(range(len(forms)), key=lambda i: forms[i].score(forms[i].taken([output])))
    scores = forms[best]._scores(forms[best].taken([output]))
    if beyond_classes(found.values, scores):
        return None
    return replace(forms[best], values=found.values[:, 1:] if forms[best].ahead else found.values)


def _numbers(values: Tensor, output: Tensor) -> Targets | None:
    """Return numbers that are compared with outputs, or with a function of them that suits them far better."""
    signs = bool(((values == -1) | (values == 0) | (values == 1)).all()) and bool((values == -1).any())
    if signs and not bool((values == 0).any()):
        return Targets((values > 0).long(), True, yes=True)
    if signs and float((output.abs() < 1.5).double().mean()) < 0.9:
        return None  # 0 or −1 stands for what is not known
    two = values.unique()  # type: ignore[no-untyped-call]
    if len(two) == 2 and bool((two.sum() - 1).abs() < ALMOST) and bool(two[0] > 0) and _beyond(values, output):
        return Targets((values > two[0]).long(), True, yes=True)  # smoothed
    if _probable(values, output):
        return Targets(values, False, link="sigmoid")
    plain, counts = Targets(values, False), Targets(values, False, link="exp")
    whole = bool((values >= 0).all()) and bool((values == values.round()).all()) and float(values.max()) > 1
    better = whole and len(output) == len(values) and counts.score(output) > plain.score(output) + COUNTED
    return counts if better else plain


def beyond_classes(values: Tensor, scores: Tensor) -> bool:
    """Return whether outputs (N, classes, …) are no scores of classes, by answers beyond those that samples have."""
    known = values[values != UNKNOWN]
    if values.is_floating_point() or values.dtype == torch.bool or int(known.min()) < 0:
        return False
    counts = torch.bincount(known.flatten().long().cpu())
    beyond = float((scores.argmax(1) >= len(counts)).double().mean())
    whole = len(counts) >= SEVERAL and bool((counts > 0).all())
    return whole and scores.shape[1] > UNSEEN * len(counts) and beyond > SEEN


def directions(output: Tensor) -> bool:
    """Return whether all samples are answered by vectors of length 1: they are embeddings, and no scores of classes."""
    if output.dim() != 2 or len(output) < 2:
        return False
    lengths = output.double().norm(dim=1)
    return bool(((lengths - 1).abs() < ALMOST).all()) and bool((output < 0).any())


def _shares(values: Tensor) -> bool:
    """Return whether rows are shares of classes, as where labels are smoothed or samples mixed."""
    sums = bool(((values.double().sum(1) - 1).abs() < ALMOST).all())
    classes = values.argmax(1)
    return sums and bool((values >= 0).all()) and bool((classes != classes[0]).any())


def _probable(values: Tensor, output: Tensor) -> bool:
    """Return whether numbers from 0 to 1 are answered by logits."""
    if not bool(((values >= 0) & (values <= 1)).all()) or not _beyond(values, output) or len(output) != len(values):
        return False
    maps = values.dim() > 2 and bool((values == 1).any()) and float(values.double().mean()) < FAINT
    return maps or Targets(values, False, link="sigmoid").score(output) > Targets(values, False).score(output) + COUNTED


def _logits(values: Tensor, output: Tensor) -> bool:
    """Return whether numbers that are 0 and 1 only are answered by logits, and not by numbers about as large."""
    return bool(((values == 0) | (values == 1)).all()) and _beyond(values, output)


def _beyond(values: Tensor, output: Tensor) -> bool:
    """Return whether numbers from 0 to 1 are answered by others that fit them better behind a sigmoid."""
    output = output.reshape(len(output), *values.shape[1:])
    near = float(((output > -0.5) & (output < 1.5)).double().mean())
    errors = [float((y.double() - values.to(y.device)).square().mean()) for y in (output.sigmoid(), output)]
    return near < 0.9 or errors[0] < errors[1]
