"""A mergeable summary of tensors' values: how many fall into each of 65,536 bins, and the exact extremes.

A bin is the top 16 bits of the float32 representation: sign, exponent and 7 bits of mantissa. Bins are therefore
1/128 to 1/256 of their value wide at any magnitude, no range has to be known beforehand, and merging is adding
integers: halves in any order give the same bits as the whole.

Counting costs about a nanosecond per value, too much for large feature maps beside a fast convolution. So of samples
(entries of dimension 0) of 2·SAMPLED values or more only every k-th run of 16 values is counted, k times. Which ones
depends on the sample alone, so that splitting a batch changes nothing. The extremes are exact in any case. A tensor of
one dimension is counted whole.
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

SAMPLED = 1 << 14
"""Of a larger sample about this many values are counted."""

_RUN = 16
"""Neighbors that are counted or skipped together: a line of cache, so that what is skipped is not even read."""

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
        count: (K,), int64; float64 where samples have weights.
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
    """Counts per bin, smallest and largest value.

    Attributes:
        count: number of values seen, counted or not.
        counts: int64, occurrences by key (the top 16 bits); as long as the largest key needs.
        minimum, maximum: exact extremes; NaN when nothing was seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.minimum = np.nan
        self.maximum = np.nan

    def add(self, values: Tensor, lo: float, hi: float) -> None:
        """Count finite, contiguous float32 values.

        Args:
            values: (n,), or (samples, n) where the samples are independent; not empty.
            lo, hi: their extremes.
        """
        self._extend(lo, hi)
        self.count += values.numel()
        bits, weight = values.view(torch.int32), 1
        if values.dim() == 2:
            bits, weight = _thinned(bits)
        # After a ReLU most values are the same zero, and increments of one counter wait for each other: two
        # interleaved lanes of counters are 1.4 times as fast there. (-0.0 is a key of its own, and stays one.)
        lanes = _lanes(values.device) if lo == 0 else None
        for start in range(0, bits.numel(), _CHUNK):
            part = bits[start : start + _CHUNK]
            if lanes is None:
                self._add_counts(torch.bincount((part >> 16).bitwise_and_(0xFFFF)), weight)
                continue
            keys = (part >> 15).bitwise_and_(0x1FFFE).bitwise_or_(lanes[: part.numel()])
            found = torch.bincount(keys)
            self._add_counts(found[0::2], weight)
            self._add_counts(found[1::2], weight)

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch."""
        if other.counts.numel():
            self._extend(other.minimum, other.maximum)
            self._add_counts(other.counts, 1)
            self.count += other.count

    def _extend(self, lo: float, hi: float) -> None:
        # fmin and fmax ignore the NaN that stands for "nothing yet"; adding 0.0 turns -0.0 into 0.0.
        self.minimum = float(np.fmin(self.minimum, lo)) + 0.0
        self.maximum = float(np.fmax(self.maximum, hi)) + 0.0

    def _add_counts(self, found: Tensor, weight: int) -> None:
        if found.numel() > self.counts.numel() or found.device != self.counts.device:
            grown = torch.zeros(max(found.numel(), self.counts.numel()), dtype=torch.int64, device=found.device)
            grown[: self.counts.numel()] = self.counts.to(found.device)
            self.counts = grown
        self.counts[: found.numel()].add_(found, alpha=weight)

    def bins(self) -> Bins:
        """Return the non-empty bins; ±0 and the denormals below 9.2e-41 that share their bins count as exactly 0.

        The extremes are in it, once at least, even where they were not among the values counted.
        """
        counts = np.zeros(1 << 16, np.int64)
        counts[: self.counts.numel()] = self.counts.cpu().numpy()
        return bins_of(counts, self.minimum, self.maximum)

    def state(self) -> dict[str, Tensor]:
        """Return keys and counts of the non-empty bins, number of values and extremes, as tensors on the CPU."""
        counts = self.counts.cpu()
        keys = torch.nonzero(counts).flatten()
        extremes = torch.tensor([self.minimum, self.maximum], dtype=torch.float64)
        return {
            "keys": keys.to(torch.int32),
            "counts": counts[keys],
            "count": torch.tensor(self.count),
            "extremes": extremes,
        }

    @staticmethod
    def from_state(state: dict[str, Tensor]) -> Sketch:
        """Return the sketch that :meth:`state` was called on."""
        sketch = Sketch()
        keys = state["keys"].cpu().long()
        if keys.numel():
            sketch.counts = torch.zeros(int(keys.max()) + 1, dtype=torch.int64)
            sketch.counts[keys] = state["counts"].cpu()
            sketch.minimum, sketch.maximum = state["extremes"].tolist()
            sketch.count = int(state["count"])
        return sketch


def bins_of(counts: Array, minimum: float, maximum: float, least: float = 1) -> Bins:
    """Return the non-empty bins among 65,536 counts by key, cut at the extremes.

    Args:
        counts: changed where the extremes were not counted: they count ``least``.
        minimum, maximum: exact extremes.
        least: the count of one value.
    """
    extremes = np.array([minimum, maximum], np.float32).view(np.uint32) >> 16
    extremes = extremes[(extremes & 0x7FFF) != 0]
    counts[extremes] = np.maximum(counts[extremes], least)
    keys = np.flatnonzero(counts)
    negative = keys >= 0x8000
    magnitude = keys & 0x7FFF
    near = (magnitude.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    # The first bits of the next bin; behind the last finite bin comes infinity, cut off by the maximum.
    far = ((magnitude + 1).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    far = np.where(magnitude == 0, 0.0, far)
    low, high = np.where(negative, -far, near), np.where(negative, -near, far)
    order = np.argsort(low, kind="stable")
    low = np.clip(low[order], minimum, maximum)
    high = np.clip(high[order], minimum, maximum)
    return Bins(low, high, counts[keys][order])


def mean_squares(samples: Tensor) -> Tensor:
    """Return Σ x²/n of every sample, float64 (n,); of larger samples from about SAMPLED values, the same in any batch.

    Args:
        samples: float32 (n, values per sample), contiguous.
    """
    step = (samples.shape[1] // SAMPLED) | 1
    if step > 1:
        runs = samples.shape[1] // _RUN
        samples = samples[:, : runs * _RUN].view(len(samples), runs, _RUN)[:, ::step].flatten(1)
    return samples.double().square_().mean(1)


def _thinned(bits: Tensor) -> tuple[Tensor, int]:
    """Return every k-th run of every sample, flat, and k."""
    # Numbers of channels are mostly even, so an odd k walks through all of them in any layout; where k divides their
    # number, starts that differ from sample to sample do.
    step = (bits.shape[1] // SAMPLED) | 1
    if step == 1:
        return bits.reshape(-1), 1
    # Where to start comes from the sample's own bits: always the same would never, or always, meet a value that is
    # remarkable at one position (massive activations are).
    starts = (bits[:, :64].sum(1) % step).tolist()
    runs = bits.shape[1] // _RUN
    samples = bits[:, : runs * _RUN].view(len(bits), runs, _RUN)
    return torch.cat([sample[start::step] for sample, start in zip(samples, starts, strict=True)]).view(-1), step
