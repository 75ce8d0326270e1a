"""Labelled batches held in memory and divided: some to calibrate on, some to choose by, some that nothing has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.data import batches
from intact8.capture import Captured
from intact8.errors import InputError

BATCH = 32
"""Samples per forward, where the network takes any number."""


@dataclass(frozen=True)
class Batch:
    """One batch as the data gave it, labels and all, and the network's flat inputs out of it."""

    raw: Any
    inputs: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])


@dataclass(frozen=True)
class Samples:
    """Batches with a length counted in samples.

    Attributes:
        batches: of at most BATCH samples each, or of the size the network was captured with.
    """

    batches: tuple[Batch, ...]

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def first(self, count: int) -> Samples:
        """About the first ``count`` samples: whole batches, one at least."""
        kept: list[Batch] = []
        for batch in self.batches:
            if kept and sum(map(len, kept)) >= count:
                break
            kept.append(batch)
        return Samples(tuple(kept))

    def calls(self) -> list[Any]:
        """The batches as ``intact8.calibrate`` takes them."""
        return [batch.raw for batch in self.batches]

    def has_labels(self, inputs: int) -> bool:
        """Whether what follows the network's inputs in every batch is one class index per sample."""
        raw = self.batches[0].raw
        if not isinstance(raw, (tuple, list)) or len(raw) <= inputs:
            return False
        labels = raw[inputs]
        return isinstance(labels, Tensor) and not labels.is_floating_point() and labels.shape == (len(self.batches[0]),)


def gather(data: Any, captured: Captured, device: torch.device, limit: int, static: int | None) -> Samples:
    """Read batches, check them against the network's inputs and cut them to one size.

    Args:
        data: as for ``intact8.calibrate``.
        captured: of the network.
        device: of the network.
        limit: stop after so many samples.
        static: the batch size the network insists on; None for any.

    Raises:
        CalibrationError: the data does not fit the network.
        InputError: no whole batch of the size the network insists on.
    """
    graph = captured.graph
    specs = [(n.attrs["key"], n.dtype, n.shape) for n in (graph.nodes[name] for name in graph.inputs)]
    found: list[Batch] = []
    seen = 0
    size = static or BATCH
    whole: Any = torch.split(data, size) if isinstance(data, Tensor) else [data] if isinstance(data, Mapping) else data
    for raw in whole:
        (args, kwargs), *_ = batches([raw], specs, device)
        inputs = tuple(captured.flatten(args, kwargs))
        count = len(inputs[0])
        for start in range(0, count, size):
            stop = min(start + size, count)
            if static is None or stop - start == size:
                part = raw if stop - start == count else _sliced(raw, slice(start, stop), count)
                found.append(Batch(part, tuple(x[start:stop] for x in inputs)))
        seen += count
        if seen >= limit:
            break
    if not found:
        raise InputError("the data holds no whole batch", where="doctor", remedy="give at least one batch of samples")
    return Samples(tuple(found))


def divide(samples: Samples, shares: tuple[float, ...], seed: int, static: int | None) -> list[Samples]:
    """Disjoint parts of about these shares, shuffled by ``seed``.

    Samples are dealt one by one where the network takes any batch size, else batch by batch.
    """
    generator = torch.Generator().manual_seed(seed)
    parts: list[list[Batch]] = [[] for _ in shares]
    if static is not None:
        order = torch.randperm(len(samples.batches), generator=generator).tolist()
        for part, chosen in zip(parts, _cut(order, shares), strict=True):
            part += [samples.batches[i] for i in chosen]
        return [Samples(tuple(part)) for part in parts]
    for batch in samples:
        order = torch.randperm(len(batch), generator=generator).tolist()
        for part, chosen in zip(parts, _cut(order, shares), strict=True):
            if chosen:
                index = torch.tensor(chosen)
                part.append(Batch(_sliced(batch.raw, index, len(batch)), tuple(x[index] for x in batch.inputs)))
    return [Samples(tuple(part)) for part in parts]


def _cut(order: list[int], shares: tuple[float, ...]) -> list[list[int]]:
    edges = [0]
    total = 0.0
    for share in shares:
        total += share
        edges.append(round(total / sum(shares) * len(order)))
    return [order[a:b] for a, b in pairwise(edges)]


def _sliced(raw: Any, index: Any, count: int) -> Any:
    """Every tensor and array of a batch cut along dimension 0."""
    if isinstance(raw, Mapping):
        return {key: _sliced(value, index, count) for key, value in raw.items()}
    if isinstance(raw, (tuple, list)):
        return tuple(_sliced(value, index, count) for value in raw)
    cut: Callable[[Any], Any] = getattr(raw, "__getitem__", lambda _: raw)
    return cut(index) if getattr(raw, "shape", None) and raw.shape[0] == count else raw
