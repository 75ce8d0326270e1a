"""Sizes that a model works for because something comes out even: ``32·n`` where it halves an image five times.

torch.export assumes of a dimension that changes what holds for the example, such as that two sizes computed of it are
equal, or that it is even where the code asks, and writes it down as guards. What it assumes holds for the sizes
m·n + r of the example's class, n = 1, 2, …, so that n is the dimension that a program knows. Where it takes sizes of
two inputs for equal, or one for what is computed of another, the second is told by the first.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import sympy

from intact8.capture.model_code import is_models
from intact8.errors import CaptureError

LONGEST_PERIOD = 4096
"""Longest period that is looked through."""

QUOTIENTS = frozenset({"FloorDiv", "CleanDiv", "IntTrueDiv", "Mod", "PythonMod"})
"""Names of torch's functions of a size and a divisor that repeat with it."""

PROBES = 16
"""How many sizes are tried where a condition has several dimensions."""


Limits = tuple[int, int | None]
"""Least and largest size; None: no limit."""


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


def cancelled(expr: Any) -> Any:
    """Return an expression with no quotient by a size where that comes out even.

    Example:
        >>> from torch.utils._sympy.functions import FloorDiv
        >>> s = sympy.Symbol("s", integer=True)
        >>> half = FloorDiv(s, 2)
        >>> cancelled(FloorDiv(half * FloorDiv(half**2, half), half))
        (s//2)
    """
    if not getattr(expr, "args", ()):
        return expr
    made = expr.func(*(cancelled(part) for part in expr.args))
    if type(made).__name__ not in ("FloorDiv", "CleanDiv") or not made.args[1].free_symbols:
        return made
    parts = (part for side in made.args for part in sympy.preorder_traversal(side))
    rounded = {part: sympy.Dummy() for part in parts if type(part).__name__ in QUOTIENTS}
    one, other = (side.xreplace(rounded) for side in made.args)
    even = sympy.cancel(one / other)
    if not even.is_polynomial(*even.free_symbols):
        return made
    return even.xreplace({dummy: part for part, dummy in rounded.items()})


def assumed(environment: Any) -> list[Any]:
    """Return what the export took for granted: guards, and what torch 2.8 leaves to be asserted when it runs."""
    asserted = getattr(environment, "deferred_runtime_asserts", {}).values()
    return [*getattr(environment, "guards", ()), *(each for several in asserted for each in several)]


def conditions(guards: Sequence[Any]) -> list[Any]:
    """Return what the export took for granted of sizes, as sympy expressions: that some are equal, and what the model
    itself asks. Torch's own questions, such as whether a size is not 1, are about the layout of memory."""
    equal = (guard for guard in guards if guard.expr.atoms(sympy.Eq) and not _is_about_layout(guard))
    return [*(guard.expr for guard in equal), *(guard.expr for guard in guards if _is_models(guard))]


def _is_models(guard: Any) -> bool:
    """Return whether a guard comes from the model's code, and is not a limit of one size, which the export keeps."""
    return not is_limit(guard.expr) and bool(asked_by_model([guard]))


def is_limit(expr: Any) -> bool:
    """Return whether a condition is a limit of one size, which the export keeps itself."""
    of_one = isinstance(expr, sympy.Rel) and all(side.is_Symbol or side.is_number for side in expr.args)
    return of_one and len(expr.free_symbols) == 1 and not isinstance(expr, sympy.Ne)


def _place(guard: Any) -> Any:
    return getattr(getattr(guard, "sloc", None), "framework_loc", None)


def asked_by_model(guards: Sequence[Any]) -> list[Any]:
    """Return the guards that come from the model's code, limits of one size among them."""
    return [guard for guard in guards if is_models(getattr(_place(guard), "filename", "<"))]


def line_that_fixes(environment: Any, size: Any) -> str:
    """Return the line of the model's code that makes a number of a dimension; "" where none is known."""
    asked = asked_by_model(assumed(environment)) if isinstance(size, int) else []
    fixed = [g for g in asked if isinstance(g.expr, sympy.Eq) and size in g.expr.args]
    return next((line_of(guard) for guard in fixed if any(side.is_Symbol for side in guard.expr.args)), "")


def line_of(guard: Any) -> str:
    """Return the file and the line that asks; "" where torch does not tell."""
    place = _place(guard)
    return f"{os.path.basename(place.filename)}:{place.lineno}" if place is not None else ""


class Question(NamedTuple):
    """Something that the model's code asks of a size, and a size of another answer.

    Attributes:
        name: of the dimension; None for the number of samples.
        size: the least size of another answer.
        example: the example's size.
        where: the line that asks.
        asked: what holds for the example, in words.
    """

    name: str | None
    size: int
    example: int
    where: str
    asked: str


def other_answers(guard: Any, free: Collection[Any], sizes: Mapping[Any, int]) -> list[int]:
    """Return sizes of a dimension for which a condition does not hold, the least first.

    Args:
        guard: a condition.
        free: the symbols of the dimension; of the sizes from 2 on some stand for all.
        sizes: symbol of another dimension that changes → the example's size.

    Example:
        >>> s = sympy.Symbol("s", integer=True)
        >>> other_answers(sympy.Ne(s, 24), {s}, {}), other_answers(sympy.Ge(s, 1), {s}, {})
        ([24], [])
    """
    others = [symbol for symbol in guard.free_symbols if symbol not in free]
    if any(symbol not in sizes for symbol in others):
        return []
    near = {int(number) + step for number in guard.atoms(sympy.Integer) for step in (-1, 0, 1)}
    some = {*range(2, 66), *(1 << k for k in range(7, 17)), 97, 999, *near, *sizes.values()}
    known = {symbol: sizes[symbol] for symbol in others}
    return [n for n in sorted(some) if n > 1 and not _holds(guard, {**known, **dict.fromkeys(free, n)})]


def find_relations(
    guards: Sequence[Any], sizes: Mapping[Any, int], names: Mapping[Any, str] | None = None
) -> dict[Any, Any]:
    """Return the dimensions that others tell, since the model works for no other sizes: symbol → expression of others.

    That is so where a condition makes one dimension equal to something of others, and where it holds if two dimensions
    that have the example's size in common are equal. The other arguments are those of :func:`find_classes`.

    Example:
        >>> from torch.utils._sympy.functions import FloorDiv
        >>> fast, slow = sympy.symbols("fast slow", integer=True)
        >>> find_relations([sympy.Eq(FloorDiv(fast - 1, 4) + 1, slow)], {fast: 16, slow: 4})
        {slow: (((fast - 1)//4)) + 1}
    """
    alike = _first_of_name(names)
    known = _known(guards, sizes, alike)
    classes = {
        symbol: of
        for guard in known
        if len(guard.free_symbols) == 1
        for symbol in guard.free_symbols
        if (of := _class_of(guard, symbol, sizes[symbol])) is not None
    }
    found: dict[Any, Any] = {}
    for guard in known:
        rest = guard.xreplace(found)
        if len(getattr(rest, "free_symbols", ())) > 1 and not _holds_in(rest, classes):
            for told in _possible_relations(rest, sizes):
                if _holds_in(rest.xreplace(told), classes):
                    found = {symbol: of.xreplace(told) for symbol, of in found.items()} | told
                    break
    return found | {symbol: found[other] for symbol, other in alike.items() if other in found}


def _possible_relations(guard: Any, sizes: Mapping[Any, int]) -> Iterator[dict[Any, Any]]:
    """Yield what may tell a dimension of a condition by others, the likeliest first."""
    if not isinstance(guard, sympy.Eq):
        return
    for one, other in (guard.args, reversed(guard.args)):
        if one.is_Symbol and one not in other.free_symbols:
            yield {one: other}
    for one, other in itertools.combinations([symbol for symbol in sizes if symbol in guard.free_symbols], 2):
        if sizes[one] == sizes[other]:
            yield {other: one}


def least_size(guards: Sequence[Any], sizes: Mapping[Any, int], symbol: Any, least: int) -> int:
    """Return the least size of a dimension for which all holds that the export took for granted, but for the layout of
    memory: it asks whether sizes that are computed of others are 1, and takes it that they are not."""
    kept = [guard.expr for guard in guards if symbol in guard.expr.free_symbols and not _is_about_layout(guard)]
    while least > 1 and all(_holds(guard, {**sizes, symbol: least - 1}) for guard in kept):
        least -= 1
    return least


def _is_about_layout(guard: Any) -> bool:
    return str(getattr(_place(guard), "filename", "")).replace("\\", "/").endswith("torch/_prims_common/__init__.py")


def find_classes(
    guards: Sequence[Any],
    sizes: Mapping[Any, int],
    within: Mapping[Any, SizeClass] | None = None,
    names: Mapping[Any, str] | None = None,
    places: Mapping[Any, str] = MappingProxyType({}),
) -> dict[Any, SizeClass]:
    """Return the classes of sizes for which every guard holds.

    Args:
        guards: see :func:`conditions`.
        sizes: symbol of a dimension that changes → the example's size.
        within: classes that are known already.
        names: symbol → name, where some have one name, and so one size.
        places: condition → the line of the model's code that asks, where that is known.

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
    alike = _first_of_name(names)
    asked = _known(guards, sizes, alike)
    found = dict(within or {})
    places = {guard.xreplace(alike): place for guard, place in places.items()}
    for guard in asked:
        if len(guard.free_symbols) == 1:
            (symbol,) = guard.free_symbols
            of = _class_of(guard, symbol, sizes[symbol])
            if of is None:
                raise refused(guard, names, places.get(guard, ""))
            if of.times > 1:
                found[symbol] = joined(found.get(symbol), of)
    for guard in asked:
        if len(guard.free_symbols) > 1 and not _holds_in(guard, found):
            raise refused(guard, names, places.get(guard, ""))
    return found | {symbol: found[other] for symbol, other in alike.items() if other in found}


def _first_of_name(names: Mapping[Any, str] | None) -> dict[Any, Any]:
    """Return of every symbol the first one that has its name."""
    first = {name: symbol for symbol, name in reversed(list((names or {}).items()))}
    return {symbol: first[name] for symbol, name in (names or {}).items()}


def _known(guards: Sequence[Any], sizes: Mapping[Any, int], alike: Mapping[Any, Any]) -> list[Any]:
    """Return the conditions on dimensions that change, each once."""
    known = (guard for guard in guards if guard.free_symbols and guard.free_symbols <= set(sizes))
    return list(dict.fromkeys(guard for given in known if (guard := given.xreplace(alike)).free_symbols))


def _holds_in(guard: Any, classes: Mapping[Any, SizeClass]) -> bool:
    """Return whether a condition holds for some sizes of classes, which stand for all."""
    rng = random.Random(0)
    for _ in range(PROBES):
        within = {symbol: classes.get(symbol, SizeClass(1, 0)) for symbol in sorted(guard.free_symbols, key=str)}
        some = {symbol: times * rng.randrange(64, 999) + more for symbol, (times, more) in within.items()}
        if not _holds(guard, some):
            return False
    return not isinstance(guard, sympy.Ne) or _holds(guard, dict.fromkeys(guard.free_symbols, sympy.Integer(64)))


@lru_cache(maxsize=1024)
def _class_of(guard: Any, symbol: Any, size: int) -> SizeClass | None:
    """Return the sizes of one dimension for which a guard holds: the largest class that has the example's; None for
    those that are of no class."""
    length = period(guard)
    if length > LONGEST_PERIOD:
        return None
    start = -(-max(size, LONGEST_PERIOD) // length) * length

    def good(more: int) -> bool:
        return all(_holds(guard, {symbol: start + k * length + more}) for k in (0, 1, 5))

    if not good(size % length):
        return None
    held = {r for r in range(length) if good(r)}
    times = next(m for m in range(1, length + 1) if length % m == 0 and held.issuperset(range(size % m, length, m)))
    return SizeClass(times, size % times)


def _holds(guard: Any, sizes: Mapping[Any, int]) -> bool:
    try:
        return bool(guard.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()}) == sympy.true)
    except ZeroDivisionError:  # a size is so small that something computed of it is 0
        return False


def refused(guard: Any, names: Mapping[Any, str] | None = None, place: str = "") -> CaptureError:
    """Return the error for a condition that dimensions which change do not obey, and the line that asks."""
    readable = guard.xreplace({symbol: sympy.Symbol(name, integer=True) for symbol, name in (names or {}).items()})
    shown = {f"{symbol}" for symbol in readable.free_symbols}
    sides = [in_words(side) for side in readable.args] if isinstance(readable, sympy.Rel) else []
    if len(sides) == 2 and sum(map(len, sides)) <= LONGEST_CONDITION:
        what = f"the model works only where {sides[0]} {RELATIONS[type(readable)]} {sides[1]}"
    else:
        what = f"the model works for some sizes of {' and '.join(sorted(shown))} only"
        what += ", which follow no rule that can be written in a line"
    remedy = "leave these dimensions out of dynamic_shapes, or give an example of a size that is less special"
    return CaptureError(what, where=", ".join(("dynamic_shapes", *filter(None, (place,)))), remedy=remedy)


RELATIONS: dict[Any, str] = {
    sympy.Eq: "is",
    sympy.Ne: "is not",
    sympy.Lt: "is less than",
    sympy.Le: "is at most",
    sympy.Gt: "is more than",
    sympy.Ge: "is at least",
}
"""Classes of sympy's relations, in words."""

LONGEST_CONDITION = 100
"""Most characters of a condition that a reader takes in."""

OPERATORS = {"FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Mod": "%", "PythonMod": "%"}
"""Names of torch's functions of two sizes, as Python writes them."""

FUNCTIONS = {"Max": "max", "Min": "min", "CeilToInt": "ceil", "FloorToInt": "floor", "TruncToInt": "int", "ToFloat": ""}
"""Names of other functions of sizes, as Python writes them; "": not at all."""

_NAMED = OPERATORS.keys() | FUNCTIONS.keys()


def in_words(expr: Any) -> str:
    """Return an expression of sizes as it would be written in Python.

    Example:
        >>> from torch.utils._sympy.functions import FloorDiv
        >>> height = sympy.Symbol("height", integer=True)
        >>> in_words(4 * FloorDiv(height - 1, 8) + 1)
        '4*((height - 1)//8) + 1'
    """
    kind = type(expr).__name__
    if kind in ("IntTrueDiv", "FloatTrueDiv") and expr.args[1] in (1, sympy.Float(1)):
        return in_words(expr.args[0])
    if kind in OPERATORS:
        one, other = (f"({in_words(part)})" if part.args else str(part) for part in expr.args)
        return f"{one}{OPERATORS[kind]}{other}"
    if kind in FUNCTIONS:
        return (
            f"{FUNCTIONS[kind]}({', '.join(map(in_words, expr.args))})" if FUNCTIONS[kind] else in_words(expr.args[0])
        )
    inner = {part: in_words(part) for part in sympy.preorder_traversal(expr) if type(part).__name__ in _NAMED}
    within = {
        part: sympy.Symbol(text if text.isidentifier() or FUNCTIONS.get(type(part).__name__) else f"({text})")
        for part, text in inner.items()
    }
    whole = {number: sympy.Integer(number) for number in expr.atoms(sympy.Float) if float(number).is_integer()}
    found = expr.xreplace(within).xreplace(whole)
    return next((inner[part] for part, symbol in within.items() if symbol == found), str(found))


__all__ = [
    "LONGEST_PERIOD",
    "SizeClass",
    "SizeClassError",
    "assumed",
    "cancelled",
    "conditions",
    "find_classes",
    "find_relations",
    "in_words",
    "is_limit",
    "joined",
    "least_size",
    "line_that_fixes",
    "period",
    "unit",
]
