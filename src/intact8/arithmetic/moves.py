"""Operations that move values: any dtype in, the same values out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic.dimensions import Dim

Array = npt.NDArray[Any]
Ints = Sequence[int]


def reshape(x: Array, shape: Ints) -> Array:
    """Reshape; ``shape`` may hold one −1, the dynamic batch dimension."""
    if -1 in shape and x.size == 0:
        return x.reshape([0 if d == -1 else d for d in shape])
    return x.reshape(tuple(shape))


def permute(x: Array, dims: Ints) -> Array:
    """Permute: output dimension i is input dimension ``dims[i]``."""
    return x.transpose(tuple(dims))


def cut(x: Array, axis: int, start: int, end: int, step: int) -> Array:
    """Return x[start:end:step] along ``axis``."""
    return x[(slice(None),) * axis + (slice(start, end, step),)]


def rows(table: Array, index: Array) -> Array:
    """Return table[index], for indices from 0 to the last row only.

    Raises:
        IndexError: an index outside.

    Example:
        >>> rows(np.eye(2), np.array([1])).tolist()
        [[0.0, 1.0]]
    """
    if index.size and (index.min() < 0 or index.max() >= len(table)):
        raise IndexError(f"indices from {index.min()} to {index.max()}, of {len(table)} rows")
    return np.asarray(table[index])


def pad(x: Array, pads: Sequence[Ints], value: float) -> Array:
    """Put ``value`` before and after every dimension; negative widths crop."""
    cropped = x[tuple(slice(max(0, -p), n - max(0, -q)) for n, (p, q) in zip(x.shape, pads, strict=True))]
    return np.pad(cropped, [(max(0, p), max(0, q)) for p, q in pads], constant_values=value)


def expanded_shape(wanted: Ints, own: Ints, declared: Sequence[Dim], batch: int | None) -> list[int]:
    """Return the sizes an ``expand`` gives: −1 leaves a dimension as it is, but makes 1 the declared batch.

    Args:
        wanted: the op's ``shape``.
        own: sizes of the input, of as many dimensions or fewer.
        declared: the shape of the op's output, None for the batch.
        batch: size of the batch; None where the program has none.

    Example:
        >>> expanded_shape([-1, 4, -1], [1, 1, 8], [None, 4, 8], 16)
        [16, 4, 8]
    """
    padded = (*[1] * (len(wanted) - len(own)), *own)
    return [
        n if n != -1 else batch if stated is None and batch is not None and size == 1 else size
        for n, size, stated in zip(wanted, padded, declared, strict=True)
    ]


def expand(x: Array, shape: Ints) -> Array:
    """Broadcast to ``shape`` (no −1: the caller knows the batch size)."""
    return np.broadcast_to(x, tuple(shape))


def roll(x: Array, shifts: Ints, dims: Ints) -> Array:
    """Return the shift cyclically along ``dims``."""
    return np.roll(x, tuple(shifts), tuple(dims))


def nearest_index(size: int, out: int, exact: bool = False) -> Array:
    """Return the source index of every output: ⌊i·(size/out)⌋ in float32, as torch (i + ½ for nearest-exact).

    Example:
        >>> nearest_index(2, 5).tolist()
        [0, 0, 0, 1, 1]
    """
    position = np.arange(out, dtype=np.float32)
    if exact:
        position = position + np.float32(0.5)
    source = np.floor(position * (np.float32(size) / np.float32(out)))
    return np.asarray(np.minimum(source.astype(np.int64), size - 1))


def repeats(times: int) -> bool:
    """Return whether the nearest source of output i is ⌊i/times⌋ at every size: not where float32 rounds a multiple of
    the inverse down, as it does at 41.

    Example:
        >>> repeats(3), repeats(41)
        (True, False)
    """
    return all(np.array_equal(nearest_index(n, n * times), np.arange(n * times) // times) for n in range(1, 9))


def upsample_nearest(x: Array, size: Ints, exact: bool = False) -> Array:
    """Return the resize the trailing dimensions to ``size`` by nearest neighbours."""
    first = x.ndim - len(size)
    for axis, out in enumerate(size, start=first):
        x = x.take(nearest_index(x.shape[axis], out, exact), axis=axis)
    return x
