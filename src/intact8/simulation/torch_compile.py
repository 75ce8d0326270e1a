"""A simulation inside torch.compile runs as it is: its own module, because torch.compiler takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation


@torch.compiler.disable  # type: ignore[untyped-decorator]
def compute_uncompiled(sim: Simulation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The forward of ``sim``. Its scales and switches are read in Python at every call, so compiling it would take
    minutes, at every change again; and a compiler may reorder the float arithmetic of training."""
    return sim.call(args, kwargs)
