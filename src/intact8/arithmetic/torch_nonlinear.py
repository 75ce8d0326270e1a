"""Integer softmax and norms in torch: the integers of ``intact8.arithmetic.softmax`` and ``.norms``, on any device.

Eager operations only: each rounds once, and nothing is fused.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .norms import MIDDLE
from .softmax import FLOAT32_TERMS

EXACT = 1 << 24
"""float32 adds integers exactly, in any order, below this."""


def softmax(
    x: Tensor, table: Tensor, axis: int, levels: Tensor, z: int, lo: int, hi: int, masked: Tensor | None = None
) -> Tensor:
    """Compute :func:`intact8.arithmetic.softmax.softmax`.

    Args:
        x: uint8.
        table: float32 (256,), integers.
        levels: float32 (), because torch divides a Python number by a tensor in two roundings.
        masked: bool, broadcasts to ``x``.
    """
    kept = None if masked is None else ~masked
    if kept is not None:
        x = x * kept  # the product is one vectorized pass, masked_fill is none
    distance = x.amax(axis, keepdim=True) - x
    t = table.index_select(0, distance.reshape(-1).to(torch.int32)).view(distance.shape)
    if kept is not None:
        t.mul_(kept.to(torch.float32))
    exact = torch.float32 if x.shape[axis] <= FLOAT32_TERMS else torch.float64
    total = t.sum(axis, keepdim=True, dtype=exact).float().clamp_(min=1.0)
    return _bytes(t.mul_(levels / total), z, lo, hi)


def normalize(
    x: Tensor, shift: int, centered: bool, gain: Tensor, offset: Tensor, eps: float, lo: int, hi: int
) -> Tensor:
    """Compute a layer norm (shift 128), or an RMS norm (the zero point, not centered), as ``arithmetic.norms``.

    Args:
        x: uint8.
        gain, offset: float32, the shape of the trailing dimensions of ``x``.
    """
    n = math.prod(gain.shape)
    u = _rows(x.reshape(*x.shape[: x.dim() - gain.dim()], n), shift, centered, eps)
    u.mul_(gain.reshape(n)).add_(offset.reshape(n))
    return _bytes(u, 0, lo, hi).view(x.shape)


def group_norm(x: Tensor, groups: int, gain: Tensor, offset: Tensor, eps: float, lo: int, hi: int) -> Tensor:
    """Compute :func:`intact8.arithmetic.norms.group_norm`."""
    n, channels = x.shape[:2]
    u = _rows(x.reshape(n, groups, -1), MIDDLE, True, eps).view(n, channels, -1)
    u.mul_(gain[:, None]).add_(offset[:, None])
    return _bytes(u, 0, lo, hi).view(x.shape)


def _rows(x: Tensor, shift: int, centered: bool, eps: float) -> Tensor:
    """Take the mean from rows, the last dimension of ``x``, and divide them by their deviation: float32."""
    n, u = x.shape[-1], x.to(torch.float32).sub_(shift)
    reach = max(shift, 255 - shift)
    exact = torch.float32 if n * reach * reach < EXACT else torch.float64
    spread = (u * u).sum(-1, keepdim=True, dtype=exact).double().mul_(n)
    if centered:
        total = u.sum(-1, keepdim=True)
        spread -= total.double().square_()
        u.sub_(total / total.new_tensor(float(n)))
    r = (spread.new_tensor(float(n)) / spread.add_(eps).sqrt_()).float()
    return u.mul_(r)


def _bytes(v: Tensor, z: int, lo: int, hi: int) -> Tensor:
    """Compute clamp(R(v) + z, lo, hi), overwriting ``v``; through int16, which torch converts float32 to three times
    faster."""
    y = v.clamp_(lo - z, hi - z).round_().to(torch.int16)
    return (y.add_(z) if z else y).to(torch.uint8)


def layer_norm(x: Tensor, gain: Tensor, offset: Tensor, eps: float, lo: int, hi: int) -> Tensor:
    """Compute :func:`intact8.arithmetic.norms.layer_norm`."""
    return normalize(x, MIDDLE, True, gain, offset, eps, lo, hi)


def rms_norm(x: Tensor, z: int, gain: Tensor, offset: Tensor, eps: float, lo: int, hi: int) -> Tensor:
    """Compute :func:`intact8.arithmetic.norms.rms_norm`."""
    return normalize(x, z, False, gain, offset, eps, lo, hi)
