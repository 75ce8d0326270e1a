"""How the float network answers, where the right answers are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intact8.diagnose.doctor.float_causes import MOST
from intact8.diagnose.doctor.float_network import FloatOutputs
from intact8.diagnose.doctor.metric_targets import MetricTargets, metric_targets, of_batches, share_by_metric
from intact8.diagnose.doctor.samples import Samples, padded
from intact8.diagnose.doctor.targets import Targets, targets_of
from intact8.diagnose.doctor.trials import standard_errors

ABOVE_CHANCE = 0.2
"""Share of the way from guessing to always right that a network must have gone to have learned anything."""

EXTREME = 10.0
"""How many times as large as the usual sample's the scores of one are that is extreme."""

ABOVE_MEAN = 0.05
"""The same where answers are numbers: the share of their variance; some cannot be foretold much better."""

INFORMED = 2.0
"""Standard errors by which the loss is less than that of the best answer which is the same for all samples, from which
something was learned."""

SURELY_RIGHT = 0.9
"""Share of the way from guessing to always right from which no layer is as it began."""


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
        informed: standard errors by which the loss is less than that of an answer which is the same for all samples.
        metric: the user's, where that has another say than the labels.
    """

    score: float
    confidence: float
    targets: Targets
    too_large: float
    renumbered: float
    units: Tensor | None = None
    informed: float = 0.0
    metric: MetricTargets | None = None

    @property
    def guesses(self) -> bool:
        """Whether it answers no better than the best answer that is the same for all samples.

        Where one class is right for most samples, to foretell the others somewhat is to know something, too.
        """
        chance = self.targets.chance()
        if chance >= 1:  # all samples are of one class
            return False
        learned = ABOVE_CHANCE if self.targets.classes else ABOVE_MEAN
        if self.score >= chance + learned * (1 - chance):
            return False
        return not (self.targets.classes and chance > MOST and self.informed > INFORMED)

    @property
    def mostly_lost(self) -> bool:
        """Whether the network has lost most of what there is to learn, as wrong weights make it."""
        chance = self.targets.chance()
        return self.score - chance < MOST * (1 - chance)

    @property
    def surely_right(self) -> bool:
        """Whether the network has learned nearly all there is to learn, as none does without one of its layers."""
        return self.reaches(self.score, SURELY_RIGHT)

    def reaches(self, score: float, share: float) -> bool:
        """Return whether a score is beyond this share of the way from guessing to always right."""
        chance = self.targets.chance()
        return score - chance > share * (1 - chance)

    def improved_by(self, score: float) -> bool:
        """Return whether a network of this score has more right answers than chance brings."""
        return bool(score - self.score > (self.score * (1 - self.score) / len(self.targets)) ** 0.5)


def answers_of(exact: FloatOutputs, samples: Samples, inputs: int) -> Answers | None:
    """Judge the float network's first output by what follows the inputs in the data, or all outputs by the metric.

    None where nothing of use follows the inputs, and there is no metric from 0 to 1.
    """
    first = [ys[0].cpu() for ys in exact.outputs]
    output = padded(first) if first[0].dim() else torch.zeros(())
    targets = targets_of(samples, inputs, output)
    if targets is not None and len({y.shape[1:] for y in first}) > 1:
        targets = replace(targets, shape=tuple(output.shape[1:]))
    found = None if targets is None else _judged(exact, targets)
    if found is not None and not found.mostly_lost:
        return replace(found, metric=of_batches(exact, samples, inputs))
    other = metric_targets(exact, samples, inputs)
    by_metric = None if other is None else _judged(exact, other)
    share = share_by_metric(exact)
    right = by_metric is not None and not by_metric.mostly_lost
    if share is not None and share > MOST and (right or by_metric is None):
        return by_metric  # it is right, and they are no classes of these outputs, or other numbers
    return by_metric if found is None or (found.guesses and right) else found


def _judged(exact: FloatOutputs, targets: Targets) -> Answers | None:
    output = torch.cat([targets.taken(ys).cpu() for ys in exact.outputs])
    if not output.dim() or len(targets) != len(output):
        return None
    factor, losses = targets.tempered(output)
    sizes = output.detach().flatten(1).abs().amax(1)
    usual = (sizes <= EXTREME * sizes.median()).nonzero().reshape(-1)
    if targets.classes and 2 * len(usual) > len(output) > len(usual):  # a few extreme samples say nothing of all scores
        factor, _ = targets.at(usual, exact.samples.at(usual)).tempered(output[usual])
    renumbered, units = targets.renumbered(output), targets.units(output)
    informed = standard_errors(targets.prior_losses() - losses) if targets.classes and len(losses) > 1 else 0.0
    return Answers(targets.score(output), targets.confidence(output), targets, 1 / factor, renumbered, units, informed)
