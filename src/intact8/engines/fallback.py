"""Engines tried one after another: what "auto" does wherever a program is made ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from intact8.errors import EngineError

T = TypeVar("T")


def startable(
    names: Sequence[str], start: Callable[[str], T], refused: dict[str, EngineError]
) -> Iterator[tuple[str, T]]:
    """Every engine that starts, with what ``start`` gives for it; the errors of the others are added to ``refused``.

    Example:
        >>> refused = {}
        >>> next(startable(["onednn", "reference"], lambda name: name.upper(), refused))
        ('onednn', 'ONEDNN')
    """
    for name in names:
        try:
            started = start(name)
        except EngineError as error:
            refused[name] = error
        else:
            yield name, started


def no_engine_error(refused: Mapping[str, EngineError], where: str = "") -> EngineError:
    """The error that tells why no engine starts: its own one, where a single engine was tried."""
    errors = list(refused.values())
    if len(errors) == 1:
        return errors[0]
    error = EngineError(
        f"none of the engines {', '.join(refused)} can run this program here", where=where,
        why=" | ".join(f"{name}: {error}" for name, error in refused.items()),
        remedy="see the reasons, or run `intact8 check`",
    )  # fmt: skip
    error.__cause__ = errors[-1] if errors else None
    return error
