"""Optimizers that were built before intact8.prepare: they hold the original model's parameters and move nothing.

Such a training would run to its end without an error. So until some optimizer steps a parameter of a simulation in
training, every optimizer's step is looked at.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from intact8.errors import StateError

if TYPE_CHECKING:
    from .module import Simulation

_waiting: weakref.WeakSet[Simulation] = weakref.WeakSet()
_hooks: list[Any] = []


def expect_step(sim: Simulation) -> None:
    """Look at optimizers' steps until one has a parameter of ``sim``; called before training forwards."""
    if sim.scale_motion.stepped or sim in _waiting:
        return
    _waiting.add(sim)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    owned, idle = {id(p) for p in parameters}, all(p.grad is None for p in parameters)
    for sim in list(_waiting):
        own = [p for p in sim.parameters() if id(p) in owned]
        if own:
            sim.scale_motion.stepped = True
            _waiting.discard(sim)
        elif idle and any(p.grad is not None for p in sim.parameters()):
            raise StateError(
                f"{type(optimizer).__name__} moves nothing: none of its {len(parameters)} parameters has a gradient, "
                "and it has none of the simulation's, which do",
                why="it was built from another model's parameters, perhaps before intact8.prepare",
                remedy="build it from intact8.train.parameter_groups(sim, lr=…) or sim.parameters()",
            )
    if not _waiting:
        while _hooks:
            _hooks.pop().remove()
