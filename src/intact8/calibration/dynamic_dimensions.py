"""Dimensions beside the batch that differ between batches of data, as token sequences padded batch by batch do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from intact8.calibration.data import raw_batches
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.pytree import InputLayout, call_of, register_inputs
from intact8.nesting import arguments, is_first_argument, leaves, nests

LOOKED = 16
"""Batches that are looked at."""


def changing(model: nn.Module, example: Any, data: Any) -> tuple[Dynamic, Any]:
    """Return dimensions that differ between the first batches of ``data``.

    Sizes that are the same in every batch have one name: "sequence" where there is only one, that of an input and its
    dimension where there are several. Dimension 0 is the batch; where that differs, it has a name in ``rows``, for
    models that take no batch.

    Args:
        model: names its inputs.
        example: example inputs, as for :func:`intact8.prepare`.
        data: as for :func:`intact8.calibration.data.batches`.

    Returns:
        What was found; and the data, whole again.

    Example:
        >>> import torch
        >>> batches = [{"x": torch.zeros(2, 5, 3)}, {"x": torch.zeros(2, 8, 3)}]
        >>> class Net(nn.Module):
        ...     def forward(self, x): ...
        >>> changing(Net(), batches[0], batches)[0].names
        {'x': {1: 'sequence'}}
    """
    if isinstance(data, (Tensor, np.ndarray, Mapping)):
        return Dynamic({}, {}, found=True), data
    iterator = raw_batches(data)
    looked = list(itertools.islice(iterator, LOOKED))
    if iterator is data:
        data = itertools.chain(looked, iterator)
    args, kwargs = call_of(example)
    register_inputs((args, kwargs))
    layout = InputLayout.of(model, args, kwargs)
    keys = layout.tensor_keys()
    shapes = [_shapes(batch, layout) for batch in looked]
    sizes: dict[tuple[str, int], tuple[int, ...]] = {}
    for key in keys:
        found = [s[key] for s in shapes if key in s]
        if len(found) == len(looked) and len({len(s) for s in found}) == 1:
            sizes |= {(key, axis): tuple(s[axis] for s in found) for axis in range(len(found[0]))}
    differing = {place: lengths for place, lengths in sizes.items() if len(set(lengths)) > 1}
    beside = {place: lengths for place, lengths in differing.items() if place[1]}
    found_beside = _named(beside, "sequence")
    if len(beside) == len(differing):
        return found_beside, data
    return replace(found_beside, rows=_named(differing, "rows")), data


def _named(differing: Mapping[tuple[str, int], tuple[int, ...]], single: str) -> Dynamic:
    """Return dimensions with names: those of equal sizes have one; ``single`` where all have.

    Args:
        differing: (input, dimension) → its sizes, batch by batch.
        single: the name where all dimensions are of equal sizes.
    """
    names: dict[str, dict[int, str]] = {}
    seen: dict[str, tuple[int, ...]] = {}
    groups = list(dict.fromkeys(differing.values()))
    for (key, axis), lengths in differing.items():
        first = next(place for place, other in differing.items() if other == lengths)
        name = single if len(groups) == 1 else re.sub(r"\W", "_", f"{first[0]}_{first[1]}")
        names.setdefault(key, {})[axis] = name
        seen[name] = tuple(sorted(set(lengths)))
    return Dynamic(names, {}, found=True, seen=seen)


def _shapes(batch: Any, layout: InputLayout) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a batch's tensors by input."""
    keys = layout.tensor_keys()
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Mapping):
        batch = batch if is_first_argument(batch[0], keys) else batch[0]
    if is_first_argument(batch, keys):
        batch = (batch,)
    pairs: Iterable[tuple[Any, Any]]
    values = batch if isinstance(batch, (tuple, list)) else [batch]
    if isinstance(batch, Mapping):
        pairs = [pair for key, value in batch.items() for pair in leaves(str(key), value)]
    elif any(map(nests, values)):
        named = zip(arguments(layout.keys), values, strict=False)
        pairs = [pair for key, value in named for pair in leaves(key, value)]
    else:
        pairs = zip(keys, values, strict=False)
    return {key: tuple(x.shape) for key, x in pairs if key in keys and _has_shape(x)}


def _has_shape(value: Any) -> bool:
    """Return whether a value is a tensor with one shape; a nested one has none, and calibration refuses it."""
    return isinstance(value, np.ndarray) or (isinstance(value, Tensor) and not value.is_nested)
