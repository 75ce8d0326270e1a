"""Simulations inside wrappers, and on several ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from intact8.calibration import ranks
from intact8.errors import StateError
from intact8.simulation.module import Simulation


def unwrapped(sim: Any) -> Simulation:
    """The simulation itself: what DistributedDataParallel, AveragedModel or torch.compile made of it is taken off.

    Raises:
        StateError: there is none.
    """
    inner = sim
    while isinstance(inner, nn.Module) and not isinstance(inner, Simulation):
        children = list(inner.children())
        if len(children) != 1:
            break
        inner = children[0]
    if not isinstance(inner, Simulation):
        raise StateError(
            f"expected a simulation, not {type(sim).__name__}", remedy="call intact8.prepare(model, …) first, and pass "
            "what it returned",
        )  # fmt: skip
    return inner


def synchronize(sim: nn.Module) -> bool:
    """Make batch norm statistics, ranges and scales on every rank those of rank 0; call it on every rank.

    :meth:`Schedule.step` does it for a simulation trained under DistributedDataParallel. Call it yourself where you
    freeze something without a schedule, or after an evaluation on one rank only: evaluation may solve scales again.
    Parameters stay: keeping them alike is DistributedDataParallel's part.

    Args:
        sim: the simulation, or DistributedDataParallel around it.

    Returns:
        Whether any rank had others; False without a process group.

    Raises:
        StateError: no simulation.

    Example:
        >>> import intact8, torch
        >>> synchronize(intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4)))
        False
    """
    inner = unwrapped(sim)
    if not (dist.is_available() and dist.is_initialized()):
        return False
    group = getattr(sim, "process_group", inner.scale_motion.ranks.group)
    return ranks.synchronize(inner, ranks.Ranks(dist.get_rank(group), dist.get_world_size(group), group=group))
