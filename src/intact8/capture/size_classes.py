"""Sizes that a model works for because something comes out even: ``32·n`` where it halves an image five times.

torch.export assumes of a dimension that changes what holds for the example, such as that two sizes computed of it are
equal, or that it is even where the code asks, and writes it down as guards. What it assumes holds for the sizes
m·n + r of the example's class, n = 1, 2, …, so that n is the dimension that a program knows.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sympy

from intact8.errors import CaptureError

LONGEST_PERIOD = 4096
"""Longest period that is looked through."""

QUOTIENTS = frozenset({"FloorDiv", "CleanDiv", "Mod", "PythonMod"})
"""Names of torch's functions of a size and a divisor that repeat with it."""

PROBES = 16
"""How many sizes are tried where a condition has several dimensions."""


class SizeClass(NamedTuple):
    """The sizes ``times``·n + ``more``."""

    times: int
    more: int


class SizeClassError(CaptureError):
    """The model can be followed where dimensions are of some classes.

    Attributes:
        classes: symbol of the export → class.
    """

    def __init__(self, error: CaptureError, classes: Mapping[Any, SizeClass]) -> None:
        super().__init__(error.what, where=error.where, why=error.why, remedy=error.remedy)
        self.classes = dict(classes)


def unit(symbol: Any, size: SizeClass) -> Any:
    """Return the symbol of n in a class of sizes of a symbol."""
    return sympy.Symbol(f"{symbol}_{size.times}", integer=True, positive=True)


def joined(one: SizeClass | None, other: SizeClass) -> SizeClass:
    """Return the sizes that are in both classes, which have one in common: that of the example."""
    if one is None:
        return other
    times = math.lcm(one.times, other.times)
    return SizeClass(
        times, next(n for n in range(times) if n % one.times == one.more and n % other.times == other.more)
    )


def period(expr: Any) -> int:
    """Return after how many steps of its symbols an expression repeats, but for what grows with them.

    Example:
        >>> from torch.utils._sympy.functions import FloorDiv
        >>> s = sympy.Symbol("s", integer=True)
        >>> period(FloorDiv(FloorDiv(s, 2) + 1, 3) + FloorDiv(s, 4))
        12
    """
    if not getattr(expr, "free_symbols", None):
        return 1
    inner = math.lcm(*(period(arg) for arg in expr.args), 1)
    repeats = type(expr).__name__ in QUOTIENTS and expr.args[1].is_Integer
    return inner * abs(int(expr.args[1])) if repeats else inner


def compares(guard: Any) -> bool:
    """Return whether a guard is about equal sizes or remainders; bounds of sizes, and that they are not 1, are not."""
    unequal = [part for part in guard.atoms(sympy.Ne) if any(_is_remainder(side) for side in part.args)]
    return bool(guard.atoms(sympy.Eq) or unequal)


def _is_remainder(expr: Any) -> bool:
    return type(expr).__name__ in ("Mod", "PythonMod") and bool(expr.args[1].is_Integer)


def find_classes(
    guards: Sequence[Any], sizes: Mapping[Any, int], within: Mapping[Any, SizeClass] | None = None
) -> dict[Any, SizeClass]:
    """Return the classes of sizes for which every guard holds.

    Args:
        guards: conditions of the export, as sympy expressions.
        sizes: symbol of a dimension that changes → the example's size.
        within: classes that are known already.

    Returns:
        The classes, without those that are all sizes.

    Raises:
        CaptureError: a condition does not follow from such classes.

    Example:
        >>> from torch.utils._sympy.functions import FloorDiv
        >>> s = sympy.Symbol("s", integer=True)
        >>> find_classes([sympy.Eq(s, 4 * FloorDiv(s, 4))], {s: 64})
        {s: SizeClass(times=4, more=0)}
    """
    asked = [guard for guard in guards if guard.free_symbols and guard.free_symbols <= set(sizes) and compares(guard)]
    found = dict(within or {})
    for symbol, size in sizes.items():
        own = [guard for guard in asked if guard.free_symbols == {symbol}]
        length = math.lcm(*(period(guard) for guard in asked if symbol in guard.free_symbols), 1)
        if length > LONGEST_PERIOD:
            raise refused(asked[0])
        start = -(-max(size, LONGEST_PERIOD) // length) * length
        good = [all(_holds(g, {symbol: start + k * length + r}) for g in own for k in (0, 1, 5)) for r in range(length)]
        steps = (m for m in range(1, length + 1) if length % m == 0)
        times = next((m for m in steps if all(good[r] for r in range(size % m, length, m))), None)
        if times is None:
            raise refused(own[0])
        if times > 1:
            found[symbol] = joined(found.get(symbol), SizeClass(times, size % times))
    rng = random.Random(0)
    for guard, _ in itertools.product((g for g in asked if len(g.free_symbols) > 1), range(PROBES)):
        of = {symbol: found.get(symbol, SizeClass(1, 0)) for symbol in guard.free_symbols}
        if not _holds(guard, {symbol: times * rng.randrange(64, 999) + more for symbol, (times, more) in of.items()}):
            raise refused(guard)
    return found


def _holds(guard: Any, sizes: Mapping[Any, int]) -> bool:
    return bool(guard.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()}) == sympy.true)


def refused(guard: Any) -> CaptureError:
    """Return the error for a condition that dimensions which change do not obey."""
    what = f"the model works for some sizes only: {guard}"
    return CaptureError(what, where="dynamic_shapes", remedy="leave these dimensions out of dynamic_shapes")


__all__ = ["LONGEST_PERIOD", "SizeClass", "SizeClassError", "find_classes", "joined", "period", "unit"]
