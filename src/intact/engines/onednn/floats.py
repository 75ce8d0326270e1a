"""Float islands: torch's operations, in the memory of an operand where nobody reads that later.

In place or not, torch computes the same bits; fresh memory costs page faults and cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from intact.arithmetic.torch_ops import FLOAT_OPS

from .site import Site, Step


def lower_float(site: Site) -> Step:
    """A kind ``float.NAME``."""
    name, attrs = site.op.kind.removeprefix("float."), site.op.attrs
    step = _IN_PLACE[name](site) if name in _IN_PLACE else None
    if step is not None:
        return step
    function = FLOAT_OPS[name]
    params = {role: site.array(role) for role in site.op.arrays}
    return lambda *tensors: function(attrs, list(tensors), params)


def _free(site: Site, i: int) -> bool:
    """Whether the result may be written over operand ``i``."""
    x = site.inputs[i]
    whole = list(x.shape) == list(np.broadcast_shapes(*(tuple(t.shape) for t in site.inputs)))
    return site.donated[i] and whole and x.is_contiguous() and all(t.dtype == torch.float32 for t in site.inputs)


def _add(site: Site) -> Step | None:
    if _free(site, 0):
        return lambda x, y: x.add_(y)
    return (lambda x, y: y.add_(x)) if _free(site, 1) else None


def _mul(site: Site) -> Step | None:
    if _free(site, 0):
        return lambda x, y: x.mul_(y)
    return (lambda x, y: y.mul_(x)) if _free(site, 1) else None


def _relu(site: Site) -> Step | None:
    return Tensor.relu_ if _free(site, 0) else None


def _clamp(site: Site) -> Step | None:
    low, high = site.op.attrs["min"], site.op.attrs["max"]
    return (lambda x: x.clamp_(low, high)) if _free(site, 0) else None


def _unary(site: Site) -> Step | None:
    if site.op.attrs["fn"] != "gelu" or not _free(site, 0):
        return None
    how = site.op.attrs.get("approximate", "none")
    return lambda x: torch.ops.aten.gelu_(x, approximate=how)


_IN_PLACE: dict[str, Callable[[Site], Step | None]] = {
    "add": _add,
    "mul": _mul,
    "relu": _relu,
    "clamp": _clamp,
    "unary": _unary,
}
"""NAME → its form in place, None where no operand may be overwritten."""
