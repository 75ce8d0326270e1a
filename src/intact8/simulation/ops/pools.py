"""Means and average pools: window sums and divisors, exact in floating point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.simulation.ops.exact_sums import EXACT
from intact8.simulation.ops.integer_op import IntegerOp
from intact8.simulation.quantized_tensor import Quantized
from intact8.train.straight_through import round_ste

Shape = tuple[int, ...]

_ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def average(op: IntegerOp, x: list[Quantized]) -> Quantized:
    """Compute ``mean``, ``avg_pool`` or ``adaptive_avg_pool``: exact sums, one multiplier per divisor."""
    q, attrs, m = x[0].q, op.node.attrs, op.requantization
    counts: Tensor
    if op.node.op == "mean":
        count = math.prod(q.shape[d] for d in attrs["dims"])
        total, counts = _total(q, count, attrs["dims"], attrs["keepdim"]), torch.full((), count, device=q.device)
    elif op.node.op == "avg_pool":
        total, counts = window_sums(attrs, q), window_counts(attrs, q.shape[2:], q.device)
    else:
        counts = adaptive_counts(attrs["output_size"], q.shape[2:], q.device)
        total = adaptive_sums(attrs, q, counts)
    assert m is not None
    which = torch.searchsorted(m.n, counts.to(m.n.dtype)) if m.n.numel() > 1 else torch.zeros_like(counts)
    ratio = op.ratio(x[0].point.live_scale / (counts * op.point.live_scale), which)
    return op.finish(total * ratio.to(total.dtype))


def _total(q: Tensor, count: int, dims: list[int], keepdim: bool) -> Tensor:
    """Return exact sums of ``count`` 8-bit integers as float64, in which those that may pass 2^24 are added, too."""
    return q.sum(dims, keepdim=keepdim, dtype=torch.float32 if 255 * count < EXACT else torch.float64).double()


def window_sums(attrs: dict[str, Any], x: Tensor) -> Tensor:
    """Return sums over the windows of an ``avg_pool`` node; padding adds nothing."""
    rank = len(attrs["kernel"])
    args = (attrs["kernel"], attrs["stride"], attrs["padding"], attrs["ceil_mode"], True)
    if rank == 1:
        k, s, p, ceil, include = args
        return F.avg_pool2d(x.unsqueeze(-2), [1, *k], [1, *s], [0, *p], ceil, include, 1).squeeze(-2)
    pool = F.avg_pool2d if rank == 2 else F.avg_pool3d
    return pool(x, *args, divisor_override=1)


def window_counts(attrs: dict[str, Any], spatial: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return the divisor of every output position of an ``avg_pool`` node, int64, of the output's spatial shape."""
    window = (tuple(attrs["kernel"]), tuple(attrs["stride"]), tuple(attrs["padding"]))
    return _window_counts(*window, attrs["ceil_mode"], attrs["count_include_pad"], tuple(spatial), str(device))


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _window_counts(
    kernel: Shape, stride: Shape, padding: Shape, ceil: bool, include_pad: bool, spatial: Shape, device: str
) -> Tensor:
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
    ones = torch.ones(1, 1, *spatial, device="cpu")
    counts = window_sums(attrs, ones)[0, 0]
    if include_pad:
        pads = [p for n in reversed(padding) for p in (n, n)]
        whole = window_sums({**attrs, "padding": [0] * len(spatial)}, F.pad(ones, pads, value=1.0))[0, 0]
        for axis, size in enumerate(counts.shape):
            whole = whole.narrow(axis, 0, size)
        counts = whole
    return counts.long().to(device)


def adaptive_counts(output_size: Sequence[int], spatial: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return the divisor of every output position of an ``adaptive_avg_pool`` node, int64."""
    return _adaptive_counts(tuple(output_size), tuple(spatial), str(device))


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _adaptive_counts(output_size: Shape, spatial: Shape, device: str) -> Tensor:
    total = torch.ones((), dtype=torch.int64, device="cpu")
    for axis, (o, n) in enumerate(zip(output_size, spatial, strict=True)):
        length = torch.tensor([-(-(i + 1) * n // o) - i * n // o for i in range(o)], device="cpu")
        total = total * length.reshape([-1 if a == axis else 1 for a in range(len(spatial))])
    return total.to(device)


def adaptive_sums(attrs: dict[str, Any], x: Tensor, counts: Tensor) -> Tensor:
    """Return sums of integers over adaptive windows: the mean times ``counts``, rounded to the exact integer."""
    size = attrs["output_size"]
    mean: Tensor = _ADAPTIVE[len(size)](x.double(), size)
    return round_ste(mean * counts)
