"""Labelled batches held in memory and divided: some to calibrate on, some to choose by, some that nothing has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.capture import Captured
from intact8.capture.pytree import copied
from intact8.diagnose.chunks import Chunk, chunks, cut
from intact8.diagnose.evaluate import LABELS
from intact8.errors import InputError

BATCH = 32
"""Samples per forward, where the network takes any number."""


UNKNOWN = -100
"""Label of places whose right answer is not known: padding, or what nobody labelled. Losses of torch leave it out."""


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

    def labels(self, inputs: int) -> Tensor | None:
        """Return the first of what follows so many inputs in every batch, or labels by name, as one tensor (N, …).

        Lists of numbers and arrays count as tensors. Whole numbers of batches of different sizes end in UNKNOWN. None
        where there are none, not as many as samples, or other numbers of different sizes.
        """
        try:
            given = [labels_of(batch.batch, inputs) for batch in self.batches]
        except InputError:
            return None
        found = [_numbers(labels[0] if isinstance(labels, tuple) else labels) for labels in given]
        parts = [t.cpu() for t in found if t is not None and t.dim()]
        if len(parts) < len(found) or len({t.dim() for t in parts}) != 1 or sum(map(len, parts)) != len(self):
            return None
        whole = not any(t.is_floating_point() or t.dtype == torch.bool for t in parts)
        return padded(parts, UNKNOWN) if whole or len({t.shape[1:] for t in parts}) == 1 else None


def padded(parts: Sequence[Tensor], fill: float = 0) -> Tensor:
    """Return batches as one, (N, …), those that are smaller filled up at the ends.

    Example:
        >>> padded([torch.ones(1, 2), torch.ones(1, 3)])
        tensor([[1., 1., 0.],
                [1., 1., 1.]])
    """
    largest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    return torch.cat([filled_up(part, largest, fill) for part in parts])


def filled_up(part: Tensor, sizes: Sequence[int], fill: float = 0) -> Tensor:
    """Return a batch (N, …) with these sizes beside N, filled up at the ends.

    Raises:
        ValueError: it is larger.
    """
    missing = [size - own for size, own in zip(sizes, part.shape[1:], strict=True)]
    if min(missing, default=0) < 0:
        raise ValueError(f"{tuple(part.shape)} is larger than {tuple(sizes)}")
    return nn.functional.pad(part, [n for size in reversed(missing) for n in (0, size)], value=fill)


def _numbers(value: Any) -> Tensor | None:
    """Return numbers as a tensor; None for anything else."""
    if isinstance(value, list) and value and all(isinstance(n, (bool, int, float)) for n in value):
        return torch.tensor(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(value))
    return value if isinstance(value, Tensor) else None


def labels_of(batch: Any, inputs: int) -> Any:
    """Return what follows so many inputs in a batch, a tuple where that is several.

    Raises:
        InputError: the batch has no labels.
    """
    if isinstance(batch, Mapping):
        labels = [batch[key] for key in LABELS if key in batch][:1]
    else:
        labels = list(batch[inputs:]) if isinstance(batch, (tuple, list)) else []
    if not labels:
        remedy = "give batches (inputs…, labels), or leave the metric out"
        raise InputError("a metric, and data without labels", where="doctor", remedy=remedy)
    labels = copied(labels)  # a metric may write into them
    return labels[0] if len(labels) == 1 else tuple(labels)


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
