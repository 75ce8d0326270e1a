"""What scales do in training: follow observers, be learned, or stay; and when batch norm's statistics stop.

A simulation goes through phases:

==========  =============================================  ===============================================
phase       scales of activations in training              scales of weights in training
==========  =============================================  ===============================================
calibrated  as last solved                                 as last solved (every evaluation solves them anew)
observe     from the observers, which see every batch      from the weights, every step
learn       parameters                                     parameters
hold        as observed when holding began                 from the weights, every step
frozen      tie-free and never moved                       tie-free and never moved
==========  =============================================  ===============================================

In observe, learn and hold multipliers are plain ratios of scales; in evaluation they are always tie-free. Frozen,
training computes the integers of evaluation. Only what training breaks there (a bias too large for its multiplier's
proof, weights that could saturate) is solved again at the next evaluation, with a ScaleWarning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from intact.errors import StateError

from .learned import LearnedScale, lsq_factor
from .versions import Snapshot

if TYPE_CHECKING:
    from .module import Simulation

INITIAL = {"calibrated": "calibrated", "fixed": "calibrated", "observed": "observe", "learned": "observe"}
"""Phase before calibration, by ``Recipe.scales``."""

CALIBRATED = {"calibrated": "calibrated", "fixed": "frozen", "observed": "observe", "learned": "learn"}
"""Phase after it."""

SOURCES = {
    "calibrated": ("held", "solved"),
    "observe": ("observed", "weights"),
    "learn": ("learned", "learned"),
    "hold": ("held", "weights"),
    "frozen": ("held", "held"),
}
"""``QuantPoint.source`` and ``WeightPoint.source`` by phase."""


class ScaleWarning(UserWarning):
    """Scales that were frozen had to be solved again for some channels."""


class Motion(nn.Module):
    """The phase of a simulation, as part of its state dict.

    Attributes:
        phase: see the module's docstring.
        batch_norm_frozen: whether batch norm uses its running statistics in training, too.
    """

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase, self.batch_norm_frozen = phase, False
        self._before: tuple[Snapshot, Snapshot] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_before": None}

    def get_extra_state(self) -> dict[str, Any]:
        """Phase and frozen batch norm, for the state dict."""
        return {"phase": self.phase, "batch_norm_frozen": self.batch_norm_frozen}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        self.phase, self.batch_norm_frozen = state["phase"], state["batch_norm_frozen"]
        self._before = None

    def extra_repr(self) -> str:
        """One line for ``print(sim)``."""
        return self.phase + (", batch norm frozen" if self.batch_norm_frozen else "")


def attach_learners(sim: Simulation) -> None:
    """Give every point whose scale may be learned its parameter."""
    plain = sim.recipe.scale_gradient == "plain"
    for point in sim.points.values():
        if not point.fixed:
            shape = sim.graph.nodes[point.tensors[0]].shape[1:]
            elements = int(torch.tensor([d for d in shape if d is not None]).prod()) if shape else 1
            steps = (point.hi - point.lo) // (2 if point.scheme.symmetric else 1)
            point.learner = LearnedScale((), 1.0 if plain else lsq_factor(elements, steps))
    for name, weight_point in sim.weight_points.items():
        node = sim.graph.nodes[name]
        channels = node.shape[-1] if node.op == "linear" else node.shape[1]
        assert channels is not None
        count = channels if weight_point.scheme.granularity == "per_channel" else 1
        weight = node.params.get("weight")
        elements = (sim.tensors[weight].numel() if weight is not None else channels) // count
        weight_point.learner = LearnedScale((count,), 1.0 if plain else lsq_factor(elements, weight_point.hi))


def enter(sim: Simulation, phase: str) -> None:
    """Put every point into ``phase``."""
    sim.scale_motion.phase, sim.scale_motion._before = phase, None
    activation, weight = SOURCES[phase]
    for point in sim.points.values():
        point.source = "held" if point.fixed else activation
    for weight_point in sim.weight_points.values():
        weight_point.source = weight


def learn(sim: Simulation) -> None:
    """Start learning at the scales that were solved last."""
    for point in sim.points.values():
        if point.learner is not None and not point.fixed:
            point.learner.start(point.scale)
    for weight_point in sim.weight_points.values():
        assert weight_point.learner is not None
        one = weight_point.learner.value.numel() == 1
        weight_point.learner.start(weight_point.scale.max().reshape(1) if one else weight_point.scale)
    enter(sim, "learn")


def follow(sim: Simulation, *, missing_only: bool = False) -> None:
    """Take scales from the observers; ``missing_only``: where there are none yet."""
    for point in sim.points.values():
        if point.source == "observed" and point.observer.count and not (missing_only and point.calibrated):
            scale, zero_point = point.observed_qparams()
            if scale != float(point.scale) or zero_point != int(point.zero_point):
                point.assign(scale, zero_point)


def check_learning(sim: Simulation) -> None:
    """Raise StateError where an optimizer moved the weights, but none of the learned scales that had gradients.

    Called before every training step of the phase learn.
    """
    learners = dict(learned_scales(sim))
    weights = [p for name, p in sim.named_parameters() if name not in learners and p.requires_grad]
    scales = [scale for scale in learners.values() if scale.requires_grad]
    reached = [m for m in sim.modules() if isinstance(m, LearnedScale) and m.reached]
    before = sim.scale_motion._before
    if before is not None and reached and scales and before[1].current(scales) and not before[0].current(weights):
        raise StateError(
            f"none of the {len(scales)} learned scales moved in the last training step, but weights did",
            where=next(iter(learners)), why="the optimizer does not have them: it was built from other parameters",
            remedy="build it after intact.prepare from intact.train.parameter_groups(sim, lr=…) or sim.parameters()",
        )  # fmt: skip
    for module in reached:
        module.reached = False
    sim.scale_motion._before = Snapshot(weights), Snapshot(scales)


def learned_scales(sim: Simulation) -> list[tuple[str, nn.Parameter]]:
    """Name and parameter of every scale that can be learned."""
    learners = {id(module.value) for module in sim.modules() if isinstance(module, LearnedScale)}
    return [(name, p) for name, p in sim.named_parameters() if id(p) in learners]
