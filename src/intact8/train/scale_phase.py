"""Phases of training: scales follow observers, are learned or are frozen, and batch norm is live or frozen.

A simulation goes through phases:

==========  =============================================  ===============================================
phase       scales of activations in training              scales of weights in training
==========  =============================================  ===============================================
calibrated  as last solved                                 as last solved (every evaluation solves them anew)
observe     from the observers, which see every batch      from the weights, every step
learn       parameters                                     parameters ("pact": from the weights, every step)
hold        as observed when holding began                 from the weights, every step
frozen      tie-free and never moved                       tie-free and never moved
==========  =============================================  ===============================================

In observe, learn and hold multipliers are plain ratios of scales; in evaluation they are always tie-free. Frozen,
training computes the integers of evaluation. Only what training breaks there (a bias too large for its multiplier's
proof, weights that could saturate) is solved again at the next evaluation, with a ScaleWarning.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from intact8.calibration.distributed import Ranks
from intact8.errors import StateError
from intact8.recipe.recipe import LEARNED
from intact8.train.extra_state import pack, unpack
from intact8.train.learned_range import LearnedRange
from intact8.train.learned_scale import LearnedScale
from intact8.train.snapshot import Snapshot

if TYPE_CHECKING:
    from intact8.train.trainable import Trainable

INITIAL = {"calibrated": "calibrated", "fixed": "calibrated", **dict.fromkeys(("observed", *LEARNED), "observe")}
"""Phase before calibration, by ``Recipe.scales``."""

CALIBRATED = {"calibrated": "calibrated", "fixed": "frozen", "observed": "observe", **dict.fromkeys(LEARNED, "learn")}
"""Phase after calibration, by ``Recipe.scales``."""

SOURCES = {
    "calibrated": ("held", "solved"),
    "observe": ("observed", "weights"),
    "learn": ("learned", "learned"),
    "hold": ("held", "weights"),
    "frozen": ("held", "held"),
}
"""``QuantPoint.source`` and ``WeightPoint.source`` by phase."""


class ScaleWarning(UserWarning):
    """Frozen scales of some channels had to be solved again, or a schedule observed nothing."""


class ScalePhase(nn.Module):
    """The phase of a simulation, as part of its state dict.

    Attributes:
        phase: see the module's docstring.
        batch_norm_frozen: whether batch norm uses its running statistics in training, too.
        chosen: the recipe that calibration chose in place of the one the simulation was prepared with, as TOML; a
            simulation that loads this state becomes one of that recipe. Empty where nothing was chosen.
        stepped: whether an optimizer has stepped a parameter of the simulation; not saved.
        wrapper, ranks: the DistributedDataParallel that trains the simulation, and its ranks; not saved.
    """

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase, self.batch_norm_frozen, self.chosen = phase, False, ""
        self.stepped = False
        self.wrapper: weakref.ref[nn.Module] | None = None
        self.ranks = Ranks()
        self._before: tuple[Snapshot, Snapshot, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_before": None, "stepped": False, "wrapper": None, "ranks": Ranks()}

    def get_extra_state(self) -> Tensor:
        """Return the phase, whether batch norm is frozen, and the recipe that was chosen."""
        state = {"phase": self.phase, "batch_norm_frozen": self.batch_norm_frozen}
        return pack(state | ({"chosen": self.chosen} if self.chosen else {}))

    def set_extra_state(self, packed: Tensor) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        state = unpack(packed)
        self.phase, self.batch_norm_frozen = state["phase"], state["batch_norm_frozen"]
        self.chosen = state.get("chosen", "")
        self._before = None

    def extra_repr(self) -> str:
        """Return one line for ``print(sim)``."""
        return self.phase + (", batch norm frozen" if self.batch_norm_frozen else "")


def enter(sim: Trainable, phase: str) -> None:
    """Put every point into ``phase``."""
    sim.scale_phase.phase, sim.scale_phase._before = phase, None
    activation, weight = SOURCES[phase]
    for point in sim.points.values():
        moves = not point.fixed and (activation != "learned" or point.learner is not None)
        point.source = activation if moves else "held"
    for weight_point in sim.all_weight_points.values():
        follows = (weight == "learned" and weight_point.learner is None) or (weight == "solved" and weight_point.free)
        weight_point.source = "weights" if follows else weight


def learn(sim: Trainable) -> None:
    """Start learning at the scales that were solved last."""
    for point in sim.points.values():
        if point.learner is not None and not point.fixed:
            if isinstance(point.learner, LearnedRange):
                point.learner.begin(point.scale, point.zero_point_value)
            else:
                point.learner.start(point.scale)
    for weight_point in sim.all_weight_points.values():
        if weight_point.learner is None:
            continue
        one = weight_point.learner.value.numel() == 1
        weight_point.learner.start(weight_point.scale.max().reshape(1) if one else weight_point.scale)
    enter(sim, "learn")


def follow(sim: Trainable, *, missing_only: bool) -> None:
    """Take scales from the observers, everywhere or only where none is known."""
    for point in sim.points.values():
        if point.source == "observed" and point.observer.count and not (missing_only and point.calibrated):
            scale, zero_point = point.observed_qparams()
            if scale != point.scale_value or zero_point != point.zero_point_value:
                # These must be new tensors: a backward pass that is still to come needs the old ones.
                point.scale = torch.full_like(point.scale, float(scale))
                point.zero_point = torch.full_like(point.zero_point, zero_point)


def follow_offsets(sim: Trainable) -> None:
    """Take zero points from the parameters, where they are learned."""
    for point in sim.points.values():
        zero_point = point.learned_zero_point
        if point.source == "learned" and zero_point != point.zero_point_value:
            point.zero_point = torch.full_like(point.zero_point, zero_point)


def check_learning(sim: Trainable) -> None:
    """Raise StateError where an optimizer moved the weights, but none of the learned scales that had gradients.

    Called before every training step of the phase learn.
    """
    modules = list(sim.modules())  # walked once: a network has thousands
    learners = [module for module in modules if isinstance(module, LearnedScale)]
    scales = [module.value for module in learners if module.value.requires_grad]
    others = (module for module in modules if not isinstance(module, LearnedScale))
    weights = [p for module in others for p in module._parameters.values() if p is not None and p.requires_grad]
    reached = [module for module in learners if module.reached]
    values = torch.cat([scale.detach().reshape(-1) for scale in scales]) if scales else torch.empty(0)
    before = sim.scale_phase._before
    if before is not None and reached and scales:
        old_weights, old_scales, old_values = before
        still = old_scales.current(scales) and torch.equal(old_values, values)  # some optimizers write to .data
        if still and not old_weights.current(weights):
            what = f"none of the {len(scales)} learned scales moved in the last training step, but weights did"
            why = "the optimizer does not have them: it was built from other parameters"
            remedy = "build it after intact8.prepare from intact8.train.parameter_groups(sim, lr=…) or sim.parameters()"
            raise StateError(what, where=learned_scales(sim)[0][0], why=why, remedy=remedy)
    for module in reached:
        module.reached = False
    sim.scale_phase._before = Snapshot(weights), Snapshot(scales), values


def learned_scales(sim: Trainable) -> list[tuple[str, nn.Parameter]]:
    """Return name and parameter of every scale that can be learned."""
    learners = {id(module.value) for module in sim.modules() if isinstance(module, LearnedScale)}
    return [(name, p) for name, p in sim.named_parameters() if id(p) in learners]
