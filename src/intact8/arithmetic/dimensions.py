"""Dimensions whose size is known when a network runs: the batch (None), and others by name ("sequence")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Dim = int | str | None
"""A size; a name, where it changes from call to call; None for the batch, or a multiple of it."""

Bounds = Mapping[str, tuple[int, int | None]]
"""Name of a dimension → least and largest size; None: no limit."""

SIZED = ("shape", "end")
"""Attributes that may hold names in place of sizes: what ``reshape`` and ``expand`` make, where ``slice`` ends."""


class SizeError(ValueError):
    """A call whose sizes do not fit. ``args`` are: what is wrong, the input, the remedy."""


def measure(shapes: Iterable[tuple[str, Sequence[Dim], Sequence[int]]], bounds: Bounds) -> dict[str, int]:
    """Return the size of every named dimension in one call.

    Args:
        shapes: name, declared shape and actual shape of every input.
        bounds: of every named dimension.

    Raises:
        SizeError: a dimension has two sizes, or one outside its bounds.

    Example:
        >>> measure([("x", (None, "sequence"), (2, 7)), ("mask", (None, "sequence"), (2, 7))], {"sequence": (1, 512)})
        {'sequence': 7}
    """
    found: dict[str, tuple[int, str]] = {}
    for name, declared, given in shapes:
        for dim, size in zip(declared, given, strict=False):
            if not isinstance(dim, str):
                continue
            known, where = found.setdefault(dim, (size, name))
            if known != size:
                raise SizeError(f"{dim} is {size}, but {known} in {where}", name, "give inputs of one size")
            least, most = bounds[dim]
            short, long = size < least, most is not None and size > most
            if short or long:
                span = f"{least} or more" if most is None else f"{least} to {most}"
                remedy = "give at least that" if short else "truncate the input"
                raise SizeError(f"{dim} is {size}, outside {span}", name, remedy)
    return {dim: size for dim, (size, _) in found.items()}


def resolve(attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the attributes with sizes where names stood.

    Example:
        >>> resolve({"shape": [-1, "sequence", 12, 32]}, {"sequence": 7})
        {'shape': [-1, 7, 12, 32]}
    """
    out = dict(attrs)
    for key in SIZED:
        value = out.get(key)
        if isinstance(value, str):
            out[key] = sizes[value]
        elif isinstance(value, list) and any(isinstance(n, str) for n in value):
            out[key] = [sizes[n] if isinstance(n, str) else n for n in value]
    return out


def has_names(attrs: Mapping[str, Any]) -> bool:
    """Return whether an attribute holds the name of a dimension."""
    return any(
        isinstance(value, str) or (isinstance(value, list) and any(isinstance(n, str) for n in value))
        for value in (attrs.get(key) for key in SIZED)
    )


def fits(declared: Sequence[Dim], given: Sequence[int]) -> bool:
    """Return whether a shape has the declared rank and sizes; dimensions that change may have any."""
    return len(declared) == len(given) and all(
        not isinstance(d, int) or d == n for d, n in zip(declared, given, strict=True)
    )


def known(shape: Iterable[Dim]) -> list[int]:
    """Return the sizes that do not change from call to call.

    Example:
        >>> known((None, "sequence", 12, 32))
        [12, 32]
    """
    return [d for d in shape if isinstance(d, int)]


def show(shape: Sequence[Dim]) -> str:
    """Return a shape as text.

    Example:
        >>> show((None, "sequence", 384))
        '(batch, sequence, 384)'
    """
    return "(" + ", ".join("batch" if d is None else str(d) for d in shape) + ")"
