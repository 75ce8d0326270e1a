"""Inside torch.compile a simulation runs uncompiled. (This is a module because torch.compiler imports slowly.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run_uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``, the forward of a simulation, uncompiled.

    Scales and switches are read in Python at every call, so compiling would take minutes, at every change again; and a
    compiler may reorder the float arithmetic of training.
    """
    return function(*args)
