"""Names that engines and conversions make up, which a program may not have taken already."""

from __future__ import annotations

from collections.abc import Container


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """``wanted``, or with a number behind it what is not in ``taken``.

    Example:
        >>> fresh_name("a + b", {"a", "b", "a + b"})
        'a + b (2)'
    """
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted} ({count})"
    return name


__all__ = ["fresh_name"]
