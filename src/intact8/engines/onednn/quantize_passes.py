"""Passes between float32 and uint8, and lookups in tables of bytes, in the layout of what is read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Pass = Callable[[Tensor], Tensor]


def make_quantize(z: int, lo: int, hi: int, divisor: float = 1.0, *, nan: bool = False) -> Pass:
    """Return float32 multiples of the output step → uint8: R(v / divisor) + z within lo … hi, and NaN as lo if ``nan``.

    Clamping to integers commutes with rounding. A float32 ``divisor`` costs the one rounding of an IEEE division, and
    everything after it none.
    """
    low, high, divides = lo - z, hi - z, divisor != 1.0

    def quantize(v: Tensor) -> Tensor:
        v = (torch.div(v, divisor).clamp_(low, high) if divides else v.clamp(low, high)).round_()
        v = v.nan_to_num_(nan=low) if nan else v
        # Through int16, because torch converts float32 to uint8 at a third of the speed.
        whole = v.to(torch.int16)
        return (whole if z == 0 else whole.add_(z)).to(torch.uint8)

    return quantize


def make_quantize_nhwc(z: int, lo: int, hi: int, divisor: float) -> Pass:
    """Return :func:`make_quantize` for float32 images (N, C, …), whose channels become last in memory."""
    end = make_quantize(z, lo, hi, divisor, nan=True)
    return lambda x: end(x.movedim(1, -1).contiguous()).movedim(-1, 1)


def make_dequantize(z: int, s: float) -> Pass:
    """Return (q − z)·s, one rounding."""
    return lambda x: x.to(torch.float32).sub_(z).mul_(s)


def make_lookup(table: Tensor) -> Pass:
    """Return table[x], 256 bytes; indexing by int64 would take two to three times as long."""
    return lambda x: table.index_select(0, x.reshape(-1).to(torch.int32)).view(x.shape)
