"""Data a few samples at a time: what the network takes, and the batch as it was given, labels and all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.calibration.data import SLICE, batches, device_of
from intact8.errors import InputError
from intact8.simulation.simulation import Simulation

LARGEST = 1 << 23
"""Samples run at once are so many that no tensor has more elements than this (one sample in any case): larger ones
fall out of the caches, and memory the allocator gets anew for each costs more than the work on it."""


@dataclass(frozen=True)
class Chunk:
    """Some samples.

    Attributes:
        inputs: flat inputs of the network, images with channels last.
        batch: the batch as the data gave it, cut along dimension 0.
        samples: how many.
    """

    inputs: list[Tensor]
    batch: Any
    samples: int


def chunks(sim: Simulation, data: Any, samples: int | None = None, most: int | None = None) -> Iterator[Chunk]:
    """The first ``samples`` samples (all by default), at most ``most`` and what LARGEST allows at a time.

    Raises:
        InputError: no data.
        CalibrationError: data that do not fit the inputs.
    """
    graph, device = sim.graph, device_of(sim)
    cut = graph.dynamic_batch and all(graph.nodes[n].shape[:1] == (None,) for n in graph.inputs)
    largest = max(math.prod(known(node.shape)) for node in graph)
    bound = max(1, min(LARGEST // max(largest, 1), LARGEST if most is None else most))
    left, empty = samples, True
    for entry in _entries(data, sim):
        (call,) = batches([entry], sim.input_specs, device)
        empty = False
        inputs = [_channels_last(t) for t in sim.flatten(*call)]
        count = whole = inputs[0].shape[0] if inputs and inputs[0].dim() else 1
        if left is not None and cut:
            count = min(count, left)
        parts = math.ceil(count / bound) if cut else 1
        size = math.ceil(count / parts)  # parts of equal size: engines plan for every size anew
        for start in range(0, count, size):
            stop = min(start + size, count)
            here = [t[start:stop] for t in inputs] if cut else inputs
            yield Chunk(here, _slice(entry, start, stop, whole) if cut else entry, stop - start)
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


def samples_in(data: Any, limit: int | None) -> int | None:
    """How many samples data hold, at most ``limit``; None where it cannot be known beforehand."""
    count: int | None = None
    if isinstance(data, Tensor | np.ndarray):
        count = len(data)
    elif isinstance(data, torch.utils.data.DataLoader) and hasattr(data.dataset, "__len__"):
        count = len(data.dataset)
    elif isinstance(data, Mapping):
        count = len(next(iter(data.values()), ()))
    elif isinstance(data, list | tuple):
        sizes = [_count(entry) for entry in data]
        count = None if None in sizes else sum(size or 0 for size in sizes)
    return count if count is None or limit is None else min(count, limit)


def _count(entry: Any) -> int | None:
    if isinstance(entry, Tensor | np.ndarray):
        return len(entry) if entry.ndim else None
    if isinstance(entry, Mapping):
        return _count(next(iter(entry.values()), None))
    return _count(entry[0]) if isinstance(entry, list | tuple) and entry else None


def _entries(data: Any, sim: Simulation) -> Iterator[Any]:
    """Batches as the data give them; a tensor is cut into some."""
    if isinstance(data, Tensor | np.ndarray) and data.ndim:
        shape = sim.input_specs[0][2] if sim.input_specs else ()
        size = shape[0] if shape and isinstance(shape[0], int) else SLICE
        return (data[i : i + size] for i in range(0, len(data), size))
    whole = isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable)
    return iter([data]) if whole else iter(data)


def _slice(value: Any, start: int, stop: int, whole: int) -> Any:
    """Every tensor and array of ``whole`` samples cut to some of them."""
    if isinstance(value, Tensor | np.ndarray):
        return value[start:stop] if value.ndim and len(value) == whole else value
    if isinstance(value, Mapping):
        return {key: _slice(entry, start, stop, whole) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        cut = [_slice(entry, start, stop, whole) for entry in value]
        return cut if isinstance(value, list) else tuple(cut)
    return value


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
