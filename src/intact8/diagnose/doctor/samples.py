"""Labelled batches held in memory and divided: some to calibrate on, some to choose by, some that nothing has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.capture import Captured
from intact8.diagnose.chunks import Chunk, chunks, cut

BATCH = 32
"""Samples per forward, where the network takes any number."""


@dataclass(frozen=True)
class Samples:
    """Batches with a length counted in samples.

    Attributes:
        batches: batches of at most BATCH samples, or of the size with which the network was captured.
    """

    batches: tuple[Chunk, ...]

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.batches)

    def first(self, count: int) -> Samples:
        """Return about the first ``count`` samples: whole batches, one at least."""
        begins = np.cumsum([0, *map(len, self.batches)])
        return Samples(tuple(b for b, begin in zip(self.batches, begins, strict=False) if begin < max(count, 1)))

    def at(self, numbers: Tensor) -> Samples:
        """Return the samples of these numbers, int64 in ascending order, batch by batch."""
        parts, begin = [], 0
        for batch in self.batches:
            index = numbers[(numbers >= begin) & (numbers < begin + len(batch))] - begin
            if len(index):
                parts.append(_part(batch, index))
            begin += len(batch)
        return Samples(tuple(parts))

    def calls(self) -> list[Any]:
        """Return the batches as ``intact8.calibrate`` takes them."""
        return [batch.batch for batch in self.batches]

    def has_labels(self, inputs: int) -> bool:
        """Return whether one class index per sample follows the network's inputs in every batch."""
        batch = self.batches[0].batch
        if not isinstance(batch, (tuple, list)) or len(batch) <= inputs:
            return False
        labels = batch[inputs]
        return isinstance(labels, Tensor) and not labels.is_floating_point() and labels.shape == (len(self.batches[0]),)

    def has_numbers(self, inputs: int, shape: tuple[Any, ...]) -> bool:
        """Return whether real numbers of this shape per sample follow the network's inputs."""
        batch = self.batches[0].batch
        if not isinstance(batch, (tuple, list)) or len(batch) <= inputs or not isinstance(batch[inputs], Tensor):
            return False
        return batch[inputs].is_floating_point() and tuple(batch[inputs].shape[1:]) == tuple(shape)


def gather(data: Any, captured: Captured, device: torch.device, limit: int) -> Samples:
    """Read at most ``limit`` samples; see :func:`intact8.diagnose.chunks.chunks`."""
    return Samples(tuple(chunks(captured, device, data, limit, BATCH, elements=math.inf)))


def divide(samples: Samples, shares: tuple[float, ...], seed: int, whole: bool = False) -> list[Samples]:
    """Return disjoint parts of about these shares, shuffled by ``seed``.

    Samples are dealt one by one, or as ``whole`` batches, where the network does not take parts of them.
    """
    generator, dealt = torch.Generator().manual_seed(seed), 0
    ends = np.cumsum((0.0, *shares)) / sum(shares)

    def deal(count: int) -> list[list[int]]:
        nonlocal dealt
        order = torch.randperm(count, generator=generator).tolist()
        # Batches may be smaller than the number of parts, so that counts are rounded for all samples until here.
        edges = np.maximum.accumulate(np.rint(ends * (dealt + count)) - np.rint(ends * dealt)).astype(int)
        dealt += count
        return [order[a:b] for a, b in pairwise(edges)]

    if whole:
        return [Samples(tuple(samples.batches[i] for i in part)) for part in deal(len(samples.batches))]
    parts: list[list[Chunk]] = [[] for _ in shares]
    for batch in samples:
        for part, chosen in zip(parts, deal(len(batch)), strict=True):
            if chosen:
                part.append(_part(batch, torch.tensor(chosen)))
    return [Samples(tuple(part)) for part in parts]


def _part(batch: Chunk, index: Tensor) -> Chunk:
    return Chunk([x[index] for x in batch.inputs], cut(batch.batch, index, len(batch)), len(index))
