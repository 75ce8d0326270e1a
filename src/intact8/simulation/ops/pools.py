"""Window sums and divisors of average pools, exact in floating point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.train.straight_through import round_ste

Shape = tuple[int, ...]

_ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def window_sums(attrs: dict[str, Any], x: Tensor) -> Tensor:
    """Sums over the windows of an ``avg_pool`` node; padding adds nothing."""
    rank = len(attrs["kernel"])
    args = (attrs["kernel"], attrs["stride"], attrs["padding"], attrs["ceil_mode"], True)
    if rank == 1:
        k, s, p, ceil, include = args
        return F.avg_pool2d(x.unsqueeze(-2), [1, *k], [1, *s], [0, *p], ceil, include, 1).squeeze(-2)
    pool = F.avg_pool2d if rank == 2 else F.avg_pool3d
    return pool(x, *args, divisor_override=1)


def window_counts(attrs: dict[str, Any], spatial: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """The divisor of every output position of an ``avg_pool`` node, int64, spatial shape of the output."""
    window = (tuple(attrs["kernel"]), tuple(attrs["stride"]), tuple(attrs["padding"]))
    return _window_counts(*window, attrs["ceil_mode"], attrs["count_include_pad"], tuple(spatial), str(device))


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _window_counts(
    kernel: Shape, stride: Shape, padding: Shape, ceil: bool, include_pad: bool, spatial: Shape, device: str
) -> Tensor:
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
    ones = torch.ones(1, 1, *spatial)
    counts = window_sums(attrs, ones)[0, 0]
    if include_pad:
        pads = [p for n in reversed(padding) for p in (n, n)]
        whole = window_sums({**attrs, "padding": [0] * len(spatial)}, F.pad(ones, pads, value=1.0))[0, 0]
        for axis, size in enumerate(counts.shape):
            whole = whole.narrow(axis, 0, size)
        counts = whole
    return counts.long().to(device)


def adaptive_counts(output_size: Sequence[int], spatial: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """The divisor of every output position of an ``adaptive_avg_pool`` node, int64."""
    return _adaptive_counts(tuple(output_size), tuple(spatial), str(device))


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _adaptive_counts(output_size: Shape, spatial: Shape, device: str) -> Tensor:
    total = torch.ones((), dtype=torch.int64)
    for axis, (o, n) in enumerate(zip(output_size, spatial, strict=True)):
        length = torch.tensor([-(-(i + 1) * n // o) - i * n // o for i in range(o)])
        total = total * length.reshape([-1 if a == axis else 1 for a in range(len(spatial))])
    return total.to(device)


def adaptive_sums(attrs: dict[str, Any], x: Tensor, counts: Tensor) -> Tensor:
    """Sums over adaptive windows of integer-valued ``x``: the mean times ``counts``, rounded to the exact integer."""
    size = attrs["output_size"]
    mean: Tensor = _ADAPTIVE[len(size)](x.double(), size)
    return round_ste(mean * counts)
