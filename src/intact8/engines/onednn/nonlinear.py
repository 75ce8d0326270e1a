"""softmax, layer norm, RMS norm, embedding: eager torch operations, one rounding each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic import torch_nonlinear
from intact8.opset.shapes import axis_of

from .site import Site, Step, zero_point


def lower_softmax(site: Site) -> Step:
    """See ``intact8.arithmetic.softmax``."""
    table = torch.from_numpy(site.op.arrays["table"].astype(np.float32))
    axis, levels = (
        axis_of(site.op, site.metas[0].shape),
        torch.tensor(float(site.op.attrs["levels"]), dtype=torch.float32),
    )
    z, lo, hi = site.z, site.lo, site.hi
    return lambda x, *masked: torch_nonlinear.softmax(x, table, axis, levels, z, lo, hi, *masked)


def lower_norm(site: Site) -> Step:
    """See ``intact8.arithmetic.norms``."""
    gain, offset = (torch.from_numpy(np.array(site.op.arrays[role])) for role in ("gain", "offset"))
    eps, lo, hi = float(site.op.attrs["eps"]), site.lo, site.hi
    if site.op.kind == "group_norm":
        groups = site.op.attrs["groups"]
        return lambda x: torch_nonlinear.group_norm(x, groups, gain, offset, eps, lo, hi)
    if site.op.kind == "layer_norm":
        return lambda x: torch_nonlinear.layer_norm(x, gain, offset, eps, lo, hi)
    z = zero_point(site.metas[0])
    return lambda x: torch_nonlinear.rms_norm(x, z, gain, offset, eps, lo, hi)


def lower_embedding(site: Site) -> Step:
    """Rows of the table."""
    rows = site.array("weight")

    def step(index: Tensor) -> Tensor:
        return rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1])

    return step


LOWER: dict[str, Callable[[Site], Step]] = {
    "softmax": lower_softmax,
    "layer_norm": lower_norm,
    "rms_norm": lower_norm,
    "group_norm": lower_norm,
    "embedding": lower_embedding,
}
"""Kind → rule."""
