"""Tries engines one after another, as ``engine="auto"`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from intact8.errors import EngineError

T = TypeVar("T")


def startable(
    names: Sequence[str], start: Callable[[str], T], refused: dict[str, EngineError]
) -> Iterator[tuple[str, T]]:
    """Yield every engine that starts with the result of ``start``; add the errors of the others to ``refused``.

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
    """Return the error that tells why no engine starts; where a single engine was tried, its own error."""
    errors = list(refused.values())
    if len(errors) == 1:
        return errors[0]
    what = f"none of the engines {', '.join(refused)} can run this program here"
    why = " | ".join(f"{name}: {error}" for name, error in refused.items())
    error = EngineError(what, where=where, why=why, remedy="see the reasons, or run `intact8 check`")
    error.__cause__ = errors[-1] if errors else None
    return error
