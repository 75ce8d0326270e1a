"""Dimensions whose size is known when a network runs: the batch (None), and others by name ("sequence")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Dim = int | str | None
"""A size; a name, or a sum such as ``past+1``, where it changes from call to call; None for the batch, or a multiple of
it."""

Bounds = Mapping[str, tuple[int, int | None]]
"""Name of a dimension → least and largest size; None: no limit."""

SIZED = ("shape", "start", "end")
"""Attributes that may hold names in place of sizes: what ``reshape`` and ``expand`` make, what ``slice`` keeps."""


class SizeError(ValueError):
    """A call whose sizes do not fit. ``args`` are: what is wrong, the input, the remedy."""


def summands(dim: Dim) -> tuple[list[str], int]:
    """Return the names that a size is the sum of, and the number that is added.

    Example:
        >>> summands("past+sequence+1"), summands(4)
        ((['past', 'sequence'], 1), ([], 4))
    """
    if not isinstance(dim, str):
        return [], dim or 0
    *names, last = dim.split("+")
    return (names, int(last)) if last.isascii() and last.isdigit() else ([*names, last], 0)


def added(dims: Iterable[Dim]) -> int | str:
    """Return the sum of sizes, in the one way it is written: names in order, then a number.

    Example:
        >>> added(["sequence", 1, "past"]), added([2, 3])
        ('past+sequence+1', 5)
    """
    parts = [summands(dim) for dim in dims]
    names, number = sorted(name for found, _ in parts for name in found), sum(n for _, n in parts)
    return "+".join([*names, str(number)][: len(names) + (number != 0)]) if names else number


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return a size as a number.

    Example:
        >>> size_of("past+1", {"past": 6})
        7
    """
    names, number = summands(dim)
    return number + sum(sizes[name] for name in names)


def limits_of(dim: int | str, bounds: Bounds) -> tuple[int, int | None]:
    """Return the least and the largest size that ``dim`` may be; None: no limit."""
    names, number = summands(dim)
    most = [bounds[name][1] for name in names]
    known = [n for n in most if n is not None]
    return number + sum(bounds[name][0] for name in names), number + sum(known) if len(known) == len(most) else None


def measure(shapes: Sequence[tuple[str, Sequence[Dim], Sequence[int]]], bounds: Bounds) -> dict[str, int]:
    """Return the size of every named dimension in one call.

    Args:
        shapes: name, declared shape and actual shape of every input.
        bounds: of every named dimension; each is a dimension of an input, and others of inputs may be sums of them.

    Raises:
        SizeError: a dimension has two sizes, or one outside its bounds.

    Example:
        >>> measure([("x", (None, "sequence"), (2, 7)), ("mask", (None, "sequence"), (2, 7))], {"sequence": (1, 512)})
        {'sequence': 7}
    """
    found: dict[str, tuple[int, str]] = {}
    for name, declared, given in shapes:
        for dim, size in zip(declared, given, strict=False):
            if not isinstance(dim, str) or dim not in bounds:
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
    sizes = {dim: size for dim, (size, _) in found.items()}
    for name, declared, given in shapes:
        for dim, size in zip(declared, given, strict=False):
            if isinstance(dim, str) and size != size_of(dim, sizes):
                why = ", ".join(f"{n} is {sizes[n]}" for n in summands(dim)[0])
                raise SizeError(f"{dim} is {size}, but {why}", name, f"give {size_of(dim, sizes)}")
    return sizes


def resolve(attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the attributes with sizes where names stood.

    Example:
        >>> resolve({"shape": [-1, "sequence", 12, 32]}, {"sequence": 7})
        {'shape': [-1, 7, 12, 32]}
        >>> resolve({"axis": 2, "start": "past", "end": "past+1"}, {"past": 7})
        {'axis': 2, 'start': 7, 'end': 8}
    """
    out = dict(attrs)
    for key in SIZED:
        value = out.get(key)
        if isinstance(value, str):
            out[key] = size_of(value, sizes)
        elif isinstance(value, list) and any(isinstance(n, str) for n in value):
            out[key] = [size_of(n, sizes) if isinstance(n, str) else n for n in value]
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
