"""Passes between float32 and uint8, and lookups in tables of bytes: one pass each, in the layout of what is read.

Without the compiled kernels (``intact8.engines.onednn.torch_native``) torch computes the same bits in several passes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from intact8.engines.kernels import float_bits
from intact8.engines.onednn import torch_native

Pass = Callable[[Tensor], Tensor]


def make_quantize(z: int, lo: int, hi: int, divisor: float = 1.0, *, nan: bool = False) -> Pass:
    """Return float32 multiples of the output step → uint8: R(v / divisor) + z within lo … hi, and NaN as lo if ``nan``.

    Clamping to integers commutes with rounding. A float32 ``divisor`` costs the one rounding of an IEEE division, and
    everything after it none.
    """
    low, high, divides = lo - z, hi - z, divisor != 1.0
    library, numbers = torch_native.load(), (float_bits(divisor), low, high, z, 0)

    def several(v: Tensor) -> Tensor:
        v = (torch.div(v, divisor).clamp_(low, high) if divides else v.clamp(low, high)).round_()
        v = v.nan_to_num_(nan=low) if nan else v
        # Through int16, because torch converts float32 to uint8 at a third of the speed.
        whole = v.to(torch.int16)
        return (whole if z == 0 else whole.add_(z)).to(torch.uint8)

    if library is None:
        return several
    one_pass = library.quantize

    def one(v: Tensor) -> Tensor:
        if v.dtype != torch.float32:
            return several(v)
        v, y = _like(v, torch.uint8)
        one_pass(v.data_ptr(), y.data_ptr(), v.numel(), *numbers, v.nbytes, y.nbytes)
        return y

    return one


def make_quantize_nhwc(x: Tensor, z: int, lo: int, hi: int, divisor: float) -> Pass:
    """Return :func:`make_quantize` for float32 images (N, C, …) like ``x``, whose channels become last in memory."""
    library, end = torch_native.load(), make_quantize(z, lo, hi, divisor, nan=True)
    if library is None or not x.is_contiguous():
        return lambda x: end(x.movedim(1, -1).contiguous()).movedim(-1, 1)
    one_pass, (samples, channels, *size) = library.quantize_nhwc, x.shape
    numbers = (samples, channels, prod(size), float_bits(divisor), lo - z, hi - z, z, 0)

    def one(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty(samples, *size, channels, dtype=torch.uint8)
        one_pass(x.data_ptr(), y.data_ptr(), *numbers, *torch_native.sizes(x, torch.float32), y.nbytes)
        return y.movedim(-1, 1)

    return one


def make_dequantize(x: Tensor, z: int, s: float) -> Pass:
    """Return (q − z)·s, one rounding, for tensors with the strides of ``x``: dense, in the order of its memory."""
    library = torch_native.load()
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    rows = _rows(x.permute(order))
    if library is None or rows is None:
        return lambda x: x.to(torch.float32).sub_(z).mul_(s)
    one_pass, numbers, strides = library.dequantize, (*rows, float_bits(s), z), x.stride()
    sizes, back = [x.shape[d] for d in order], [order.index(d) for d in range(x.dim())]
    plain = back == sorted(back)

    def one(x: Tensor) -> Tensor:
        if x.stride() != strides:  # an expanded tensor that was replaced by one of full size
            return make_dequantize(x, z, s)(x)
        y = torch.empty(sizes, dtype=torch.float32)
        one_pass(x.data_ptr(), y.data_ptr(), *numbers, torch_native.reach(x, torch.uint8), y.nbytes)
        return y if plain else y.permute(back)

    return one


def make_lookup(table: Tensor) -> Pass:
    """Return table[x], 256 bytes."""
    library = torch_native.load()
    if library is None:  # indexing by int64 takes two to three times as long
        return lambda x: table.index_select(0, x.reshape(-1).to(torch.int32)).view(x.shape)
    one_pass, sizes = library.lookup, torch_native.sizes

    def one(x: Tensor) -> Tensor:
        x, y = _like(x, torch.uint8)
        one_pass(x.data_ptr(), y.data_ptr(), x.numel(), table.data_ptr(), *sizes(x, torch.uint8), y.nbytes, 256)
        return y

    return one


def _like(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return ``x`` in memory without gaps and without elements that are read several times, and an empty result like
    it."""
    y = torch.empty_like(x, dtype=dtype)
    if y.stride() != x.stride():
        x = x.contiguous()
        y = torch.empty_like(x, dtype=dtype)
    return x, y


def _rows(x: Tensor) -> tuple[int, int, int] | None:
    """Count, width and distance of rows that hold the elements of ``x`` in its order; None where x is not such rows."""
    merged: list[tuple[int, int]] = []
    for n, s in zip(x.shape, x.stride(), strict=True):
        if n != 1 and merged and merged[-1][1] == n * s:
            merged[-1] = merged[-1][0] * n, s
        elif n != 1:
            merged.append((n, s))
    if not merged or not x.numel():
        return 1, x.numel(), x.numel()
    if merged[-1][1] != 1 or len(merged) > 2:
        return None
    width = merged[-1][0]
    return (1, width, width) if len(merged) == 1 else (merged[0][0], width, merged[0][1])
