"""Names that engines and conversions make up, which a program may not have taken already."""

from __future__ import annotations

from collections.abc import Container


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """Return ``wanted``, or with a number behind it what is not in ``taken``.

    Example:
        >>> fresh_name("a + b", {"a", "b", "a + b"})
        'a + b (2)'
    """
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted} ({count})"
    return name


def part_name(node: str, index: int, nodes: Container[str]) -> str:
    """Return the tensor behind part ``index`` of a node that becomes several operations; ``nodes``: the names of all
    nodes.

    Example:
        >>> part_name("fc", 0, {"fc"}), part_name("fc", 0, {"fc", "fc.part0"})
        ('fc.part0', 'fc.part0 (2)')
    """
    return fresh_name(f"{node}.part{index}", nodes)
