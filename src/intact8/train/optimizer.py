"""Learned scales and the optimizer: parameter groups, and errors where an optimizer lacks what it should move.

An optimizer that was built before intact8.prepare holds the original model's parameters, and moves nothing: such a
training would run to its end without an error. So until some optimizer steps a parameter of a simulation in training,
every optimizer's step is looked at.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from intact8.errors import StateError, no_simulation
from intact8.train.scale_phase import learned_scales
from intact8.train.trainable import Trainable

REMEDY = "build it from intact8.train.parameter_groups(sim, lr=…)"


def parameter_groups(
    sim: Trainable, *, lr: float, scale_lr: float | None = None, relative: bool = False
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: weights, and learned scales with learning rates of their own.

    Scales get no weight decay: it would pull their ranges towards zero.

    With SGD the gradient of LSQ needs no more than ``lr``. Adam and its kin divide by the gradient's size, so that a
    step is about as large as the learning rate, whatever it moves: scales of 0.003 and of 0.3 then want rates a hundred
    times apart. ``relative=True`` gives them that; start with ``scale_lr = 0.01``.

    Args:
        sim: what :func:`intact8.prepare` returned.
        lr: learning rate of weights.
        scale_lr: learning rate of scales; ``lr`` when None.
        relative: the rate of a scale is ``scale_lr`` times its present value (of one per channel, their mean).

    Returns:
        One group of weights, and, where the recipe has learned scales, one of these (``relative``: one for each).

    Raises:
        StateError: not a simulation; ``scale_lr`` or ``relative`` is given, but no scale is learned; or rates should be
            relative to scales that are not known yet.

    Example:
        >>> import intact8, torch
        >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4), intact8.recipes.qat("learned"))
        >>> [len(group["params"]) for group in parameter_groups(sim, lr=0.1, scale_lr=0.01)]
        [2, 2]
    """
    _require_simulation(sim, "parameter_groups")
    scales = learned_scales(sim)
    known = {id(parameter) for _, parameter in scales}
    groups: list[dict[str, Any]] = [{"params": [p for p in sim.parameters() if id(p) not in known], "lr": lr}]
    if not scales and (scale_lr is not None or relative):
        what, why = "but no scale is learned", f"the recipe says scales = {sim.recipe.scales!r}"
        remedy = 'prepare with intact8.recipes.qat("learned"), or leave both out'
        raise StateError(f"scale_lr = {scale_lr}, relative = {relative}, {what}", why=why, remedy=remedy)
    rate = lr if scale_lr is None else scale_lr
    if relative:
        groups += [{"params": [p], "lr": rate * _size(name, p), "weight_decay": 0.0} for name, p in scales]
    elif scales:
        groups.append({"params": [parameter for _, parameter in scales], "lr": rate, "weight_decay": 0.0})
    return groups


def _size(name: str, scale: torch.nn.Parameter) -> float:
    """Return the mean of a learned scale."""
    size = float(scale.detach().mean())
    if not math.isfinite(size):
        remedy = "call intact8.calibrate(sim, data) first, or set relative=False"
        what = "no rate can be relative to a scale that is not known yet"
        raise StateError(what, where=name, why="nothing was observed", remedy=remedy)
    return size


def check_optimizer(optimizer: Optimizer, sim: Trainable) -> Callable[..., None]:
    """Make sure the optimizer has every learned scale.

    Without this call the second training step raises the same error, at the latest ``Schedule.step``.

    Returns:
        A hook that checks again: ``optimizer.register_step_pre_hook(check_optimizer(optimizer, sim))``, for
        optimizers whose groups change.

    Raises:
        StateError: not a simulation; or the optimizer lacks some: the error names the first.

    Example:
        >>> import intact8, torch
        >>> model = torch.nn.Linear(4, 2)
        >>> sim = intact8.prepare(model, torch.randn(2, 4), intact8.recipes.qat("learned"))
        >>> try:
        ...     check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), sim)
        ... except intact8.StateError as error:
        ...     print(error.what)
        the optimizer lacks 2 of 2 learned scales
    """
    _require_simulation(sim, "check_optimizer")

    def check(optimizer: Optimizer, *step_arguments: Any) -> None:
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        scales = [(name, p) for name, p in learned_scales(sim) if p.requires_grad]
        missing = [name for name, p in scales if id(p) not in owned]
        if missing and sim.phase != "frozen":
            what = f"the optimizer lacks {len(missing)} of {len(scales)} learned scales"
            why = "it was built from other parameters, perhaps before intact8.prepare"
            raise StateError(what, where=missing[0], why=why, remedy=REMEDY)

    check(optimizer)
    return check


def _require_simulation(given: Any, where: str) -> None:
    """Raise StateError for what is no simulation, and no module that holds one."""
    if not isinstance(given, nn.Module) or not any(isinstance(module, Trainable) for module in given.modules()):
        raise no_simulation(given, where)


_waiting: weakref.WeakSet[Trainable] = weakref.WeakSet()
_hooks: list[Any] = []


def expect_step(sim: Trainable) -> None:
    """Look at optimizers' steps until one has a parameter of ``sim``; called before training forwards."""
    if sim.scale_phase.stepped or sim in _waiting:
        return
    _waiting.add(sim)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # A closure computes gradients in the step, so that none are there before.
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    owned, idle = {id(p) for p in parameters}, closure is None and all(p.grad is None for p in parameters)
    for sim in list(_waiting):
        own = [p for p in sim.parameters() if id(p) in owned]
        if own:
            sim.scale_phase.stepped = True
            _waiting.discard(sim)
        elif idle and any(p.grad is not None for p in sim.parameters()):
            what = f"{type(optimizer).__name__} moves nothing: none of its {len(parameters)} parameters has a gradient"
            why = "it was built from another model's parameters, perhaps before intact8.prepare"
            remedy = f"{REMEDY} or sim.parameters()"
            raise StateError(f"{what}, and it has none of the simulation's, which do", why=why, remedy=remedy)
    if not _waiting:
        while _hooks:
            _hooks.pop().remove()
