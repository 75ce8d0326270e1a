"""A mergeable summary of a tensor's values: how many fall into each of 65,536 bins, and the exact extremes.

A bin is the top 16 bits of the float32 representation: sign, exponent and 7 bits of mantissa. Bins are therefore
1/128 to 1/256 of their value wide at any magnitude, no range has to be known beforehand, and merging is adding
integers: halves in any order give the same bits as the whole.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

_CHUNK = 1 << 18
"""Values counted at a time: their keys (1 MiB) stay in the second-level cache."""


@functools.lru_cache(maxsize=8)
def _lanes(device: torch.device) -> Tensor:
    return torch.arange(_CHUNK, dtype=torch.int32, device=device) & 1


@dataclass(frozen=True)
class Bins:
    """The non-empty bins of a sketch in ascending order, cut at the extremes.

    Attributes:
        low, high: float64 (K,), ends of every bin, low ≤ high; equal for exact values such as zero and constants.
        count: int64 (K,).
    """

    low: Array
    high: Array
    count: Array

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.count.sum())

    @property
    def middle(self) -> Array:
        """Centers, float64 (K,)."""
        return (self.low + self.high) / 2


class Sketch:
    """Counts per bin, smallest and largest value."""

    def __init__(self) -> None:
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.minimum = np.nan
        self.maximum = np.nan

    def add(self, values: Tensor, lo: float, hi: float) -> None:
        """Count a non-empty, finite, contiguous float32 vector whose extremes are ``lo`` and ``hi``."""
        self._extend(lo, hi)
        # After a ReLU most values are the same zero, and increments of one counter wait for each other: two
        # interleaved lanes of counters are 1.4 times as fast there. (-0.0 is a key of its own, and stays one.)
        lanes = _lanes(values.device) if lo == 0 else None
        whole = values.view(torch.int32)
        for start in range(0, whole.numel(), _CHUNK):
            bits = whole[start : start + _CHUNK]
            if lanes is None:
                self._add_counts(torch.bincount((bits >> 16).bitwise_and_(0xFFFF)))
                continue
            keys = (bits >> 15).bitwise_and_(0x1FFFE).bitwise_or_(lanes[: bits.numel()])
            found = torch.bincount(keys)
            self._add_counts(found[0::2])
            self._add_counts(found[1::2])

    def merge(self, other: Sketch) -> None:
        """Add the other's counts."""
        if other.counts.numel():
            self._extend(other.minimum, other.maximum)
            self._add_counts(other.counts)

    def _extend(self, lo: float, hi: float) -> None:
        # fmin and fmax ignore the NaN that stands for "nothing yet"; adding 0.0 turns -0.0 into 0.0.
        self.minimum = float(np.fmin(self.minimum, lo)) + 0.0
        self.maximum = float(np.fmax(self.maximum, hi)) + 0.0

    def _add_counts(self, found: Tensor) -> None:
        if found.numel() > self.counts.numel() or found.device != self.counts.device:
            grown = torch.zeros(max(found.numel(), self.counts.numel()), dtype=torch.int64, device=found.device)
            grown[: self.counts.numel()] = self.counts.to(found.device)
            self.counts = grown
        self.counts[: found.numel()] += found

    @property
    def count(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def bins(self) -> Bins:
        """Non-empty bins. Zeros are exact: ±0 and the denormals below 9.2e-41 that share their bins count as 0."""
        counts = self.counts.cpu().numpy()
        keys = np.flatnonzero(counts)
        negative = keys >= 0x8000
        magnitude = keys & 0x7FFF
        near = (magnitude.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        # The first bits of the next bin; behind the last finite bin comes infinity, cut off by the maximum.
        far = ((magnitude + 1).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        far = np.where(magnitude == 0, 0.0, far)
        low, high = np.where(negative, -far, near), np.where(negative, -near, far)
        order = np.argsort(low, kind="stable")
        low = np.clip(low[order], self.minimum, self.maximum)
        high = np.clip(high[order], self.minimum, self.maximum)
        return Bins(low, high, counts[keys][order])

    def state(self) -> dict[str, Tensor]:
        """Keys and counts of the non-empty bins, and the extremes, as tensors on the CPU."""
        counts = self.counts.cpu()
        keys = torch.nonzero(counts).flatten()
        extremes = torch.tensor([self.minimum, self.maximum], dtype=torch.float64)
        return {"keys": keys.to(torch.int32), "counts": counts[keys], "extremes": extremes}

    @staticmethod
    def from_state(state: dict[str, Tensor]) -> Sketch:
        """The sketch :meth:`state` was called on."""
        sketch = Sketch()
        keys = state["keys"].cpu().long()
        if keys.numel():
            sketch.counts = torch.zeros(int(keys.max()) + 1, dtype=torch.int64)
            sketch.counts[keys] = state["counts"].cpu()
            sketch.minimum, sketch.maximum = state["extremes"].tolist()
        return sketch
