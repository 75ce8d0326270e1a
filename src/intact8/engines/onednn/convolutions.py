"""Convolutions by the compiled passes, see ``intact8.engines.convolutions``."""

from __future__ import annotations

from functools import partial

import torch

from ..convolutions import Convolution
from . import native
from .site import Site, Step, is_nhwc, to_nhwc, zero_point


def lower_compiled(site: Site) -> Step | None:
    """``conv`` in one pass; None for those that oneDNN does."""
    library, x = native.load(), site.inputs[0]
    if library is None or x.dim() != 4 or not library.can_convolve():
        return None
    found = Convolution.of(site.op, zero_point(site.metas[0]), site.z)
    if found is None:
        return None

    def packed(i: int) -> torch.Tensor:
        return torch.from_numpy(found.packed[i])

    packs = [site.pack((found.kind, i), partial(packed, i)).weight for i in range(3)]
    addresses, sizes = [pack.data_ptr() for pack in packs], [pack.nbytes for pack in packs]
    n, channels, *size = x.shape
    rows, columns = found.size(size)
    results = len(site.op.arrays["bias"])
    one_pass, fixed = library.convolve, (found.kind == "Dense", False, n, *size, channels, *found.numbers)
    fits = is_nhwc(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x if fits else to_nhwc(x)
        y = torch.empty(n, rows, columns, results, dtype=torch.uint8)
        one_pass(x.data_ptr(), *addresses, y.data_ptr(), *fixed, *native.sizes(x, torch.uint8), *sizes, y.nbytes)
        return y.permute(0, 3, 1, 2)

    return step
