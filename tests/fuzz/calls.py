"""Calls that are made in other ways: the same values in other memory, and inputs that no program takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def unaligned(x: Any) -> Any:
    """The same values at an odd address."""
    room = np.empty(x.nbytes + 1, np.uint8)
    made = room[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def spread(x: Any) -> Any:
    """The same values with others between them."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 0] = x
    return wide[..., 0] if x.ndim else x  # an element of it is no array


def backward(x: Any) -> Any:
    """The same values in memory that is read from its end."""
    return np.flip(np.flip(x).copy()) if x.ndim else x  # an element of it is no array


def locked(x: Any) -> Any:
    """The same values where nobody may write."""
    made = x.copy()
    made.setflags(write=False)
    return made


SAME: dict[str, Callable[[Any], Any]] = {
    "columns first": lambda x: np.array(x, order="F"),
    "unaligned": unaligned,
    "spread": spread,
    "backward": backward,
    "locked": locked,
}
"""Other memory with the same values: results are the same."""

WRONG: dict[str, Callable[[Any], Any]] = {
    "a dimension more": lambda x: x[None],
    "a dimension less": lambda x: x[0] if x.ndim else [x],
    "a list": lambda x: [1],
    "float64": lambda x: x.astype(np.float64),
    "other integers": lambda x: x.astype(np.uint16 if x.dtype == np.int64 else np.int8),
    "nothing": lambda x: None,
    "complex": lambda x: x.astype(np.complex64),
    "objects": lambda x: x.astype(object),
    "texts": lambda x: x.astype(str),
    "the other end": lambda x: x.astype(x.dtype.newbyteorder()) if x.itemsize > 1 else [x],
    "longer": lambda x: np.concatenate([x, x], axis=-1) if x.ndim > 1 else [x],
}
"""What is no input of any program, or not of this one: refused."""


def otherwise(given: Arrays, rng: np.random.Generator) -> Iterator[tuple[str, Arrays, bool]]:
    """Calls with one input changed: what was done to it, the inputs, and whether they must be refused."""
    names = list(given)
    for kinds, refused in ((SAME, False), (WRONG, True)):
        what = str(rng.choice(list(kinds)))
        name = str(rng.choice(names))
        yield what, {**given, name: kinds[what](given[name])}, refused


__all__ = ["SAME", "WRONG", "otherwise"]
