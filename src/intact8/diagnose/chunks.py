"""Data a few samples at a time: the inputs of the network, and the batch as it was given, labels included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.calibration.data import Specs, batches, raw_batches
from intact8.capture import Captured
from intact8.errors import InputError

LARGEST = 1 << 23
"""Elements of the largest tensor of a chunk of more than one sample. Larger tensors fall out of the caches, and the
allocator gets memory anew for each of them, which costs more than the work on it."""


@dataclass(frozen=True)
class Chunk:
    """Some samples.

    Attributes:
        inputs: flat inputs of the network, images with channels last.
        batch: the batch as the data gave it, cut along dimension 0.
        samples: number of samples, which is also the length.
    """

    inputs: list[Tensor]
    batch: Any
    samples: int

    def __len__(self) -> int:
        return self.samples


def chunks(
    captured: Captured,
    device: torch.device,
    data: Any,
    samples: int | None = None,
    most: int | None = None,
    elements: float = LARGEST,
) -> Iterator[Chunk]:
    """Yield the samples of the data in chunks of about equal size.

    Args:
        captured: the network, for the shapes of its inputs and tensors.
        device: where the network is.
        data: as for :func:`intact8.calibrate`.
        samples: stop after so many samples; None for all.
        most: samples of a chunk at most; None for no such limit.
        elements: no tensor of the network has more elements than this in a chunk of more than one sample.

    Raises:
        InputError: the data hold no batch.
        CalibrationError: the data do not fit the inputs.
    """
    graph = captured.graph
    specs = Specs.of(graph, captured.layout)
    divisible = graph.dynamic_batch and all(shape[:1] == (None,) for _, _, shape in specs)
    largest = max(math.prod(known(node.shape)) for node in graph)
    bound = max(1, int(min(elements / max(largest, 1), LARGEST if most is None else most)))
    left, empty = samples, True
    for entry in raw_batches(data, specs):
        (call,) = batches([entry], specs, device)
        empty = False
        inputs = [_channels_last(t) for t in captured.flatten(*call)]
        count = whole = inputs[0].shape[0] if inputs and inputs[0].dim() else 1
        if left is not None and divisible:
            count = min(count, left)
        size = math.ceil(count / math.ceil(count / bound)) if divisible else count  # engines plan for every size anew
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            if divisible:
                yield Chunk([t[part] for t in inputs], cut(entry, part, whole), part.stop - start)
            else:
                yield Chunk(inputs, entry, count)
        if left is not None:
            left -= count
            if left <= 0:
                return
    if empty:
        raise InputError(
            "the data hold no batch",
            why="an iterator can be read only once, and a loader may be empty",
            remedy="give a tensor, or an iterable of batches",
        )


def count_samples(data: Any, limit: int | None) -> int | None:
    """Return how many samples the data hold, at most ``limit``; None where it cannot be known beforehand."""
    if isinstance(data, torch.utils.data.DataLoader) and hasattr(data.dataset, "__len__"):
        sizes: list[int | None] = [len(data.dataset)]
    else:
        sizes = [_count(entry) for entry in (data if isinstance(data, list | tuple) else [data])]
    known_sizes = [size for size in sizes if size is not None]
    if len(known_sizes) < len(sizes):
        return None
    return sum(known_sizes) if limit is None else min(sum(known_sizes), limit)


def _count(entry: Any) -> int | None:
    """Return the size of dimension 0 of the first tensor in a batch."""
    if isinstance(entry, Tensor | np.ndarray):
        return len(entry) if entry.ndim else None
    if isinstance(entry, Mapping):
        return _count(next(iter(entry.values()), None))
    return _count(entry[0]) if isinstance(entry, list | tuple) and entry else None


def cut(batch: Any, index: Any, whole: int) -> Any:
    """Return the samples of an index in a nested batch of ``whole`` of them.

    Tensors and arrays of so many samples are indexed along dimension 0, and so are lists within the batch that have an
    entry for each of them, as the targets of detectors.

    Example:
        >>> cut((torch.arange(3), [{"boxes": 0}, {"boxes": 1}, {"boxes": 2}]), slice(1, 3), 3)
        (tensor([1, 2]), [{'boxes': 1}, {'boxes': 2}])
    """
    return _cut(batch, index, whole, inside=False)


def _cut(value: Any, index: Any, whole: int, inside: bool = True) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value[index] if value.ndim and len(value) == whole else value
    if isinstance(value, Mapping):
        return {key: _cut(entry, index, whole) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        if inside and len(value) == whole and not all(_holds_samples(entry, whole) for entry in value):
            parts = [value[i] for i in torch.arange(whole)[index].tolist()]
        else:
            parts = [_cut(entry, index, whole) for entry in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _holds_samples(value: Any, whole: int) -> bool:
    """Return whether there is a tensor of so many samples in a part of a batch."""
    if isinstance(value, Tensor | np.ndarray):
        return bool(value.ndim) and len(value) == whole
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_holds_samples(part, whole) for part in parts)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
