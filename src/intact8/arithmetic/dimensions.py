"""Dimensions whose size is known when a network runs: the batch (None), and others by name ("sequence").

What a network makes of named sizes are sums of products of names and of rounded quotients, with numbers: ``past+1``,
``2*height``, ``(frames+1)//2``, ``height*width``. Each such size is written in one way, so that two are equal where
their texts are; all grow with every name.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

Dim = int | str | None
"""A size; a name, or what is computed of names, such as ``past+1``, where it changes from call to call; None for the
batch, or a multiple of it."""

Bounds = Mapping[str, tuple[int, int | None]]
"""Name of a dimension → least and largest size; None: no limit."""

SIZED = ("shape", "start", "end", "size")
"""Attributes that may hold names in place of sizes: what ``reshape`` and ``expand`` make, what ``slice`` keeps, what
images are resized to."""

LONGEST = 1 << 14
"""Longest size of a named dimension without a limit: sums along it are proved so far, and longer ones refused."""

LONGEST_TEXT = 500
"""Most letters of a size's text."""

DEEPEST = 20
"""How deep the brackets of a size may nest."""

MOST_REMAINDERS = 1024
"""Most remainders of names for which a size is looked at."""

MOST_TERMS = 64
"""Most products whose sum a size is."""

TOKEN = re.compile(r"[0-9]+|//|[-+*()]|[^-+*/()\s\d][^-+*/()\s]*")


class SizeError(ValueError):
    """A call whose sizes do not fit. ``args`` are: what is wrong, the input, the remedy."""


class NoSizeError(ValueError):
    """A text that is no size, or a size that is too long to be written."""


class Quotient(NamedTuple):
    """A size divided by a number, and rounded down."""

    of: Size
    by: int


Factor = str | Quotient
Product = tuple[Factor, ...]
"""Factors in the order of their texts."""


class Size(NamedTuple):
    """A sum of products, each with how often it is added, in the order of their texts, and of a number."""

    terms: tuple[tuple[Product, int], ...]
    number: int


def _sum(parts: Iterable[tuple[Product, int]], number: int) -> Size:
    """Return a sum with equal products added up, and without quotients that are taken away or make up a whole.

    −⌊x/m⌋ = ⌊(m − 1 − x)/m⌋, where what comes out even is taken away and the rest is added; and
    ⌊x/m⌋ + ⌊(x + 1)/m⌋ + … + ⌊(x + m − 1)/m⌋ = x (Hermite).
    """
    found: dict[Product, int] = {}
    for product, times in parts:
        found[product] = found.get(product, 0) + times
    for product, times in list(found.items()):
        first = product[0]
        if times < 0 and len(product) == 1 and isinstance(first, Quotient):
            del found[product]
            one = _negative(first)
            return _sum(
                [*found.items(), *((product, -times * n) for product, n in one.terms)], number - times * one.number
            )
    quotients = [p[0] for p, n in found.items() if n > 0 and len(p) == 1 and isinstance(p[0], Quotient)]
    for first in quotients if len(quotients) > 1 else ():  # ⌊x/m⌋ and ⌊(m − 1 − x)/m⌋ are opposite
        if any(isinstance(factor, Quotient) for inner, _ in first.of.terms for factor in inner):
            continue
        opposite = _negative(first)
        for other, _ in opposite.terms:
            if isinstance(other[0], Quotient) and (least := min(found[first,], found.get(other, 0))) > 0:
                more = [(whole, -least * n) for whole, n in opposite.terms]
                return _sum([*found.items(), ((first,), -least), *more], number - least * opposite.number)
    for product in list(found):
        first = product[0]
        if len(product) == 1 and isinstance(first, Quotient) and first.of.number == 0 and first.by <= MOST_TERMS:
            group: list[Product] = [(Quotient(Size(first.of.terms, n), first.by),) for n in range(first.by)]
            if (least := min(found.get(part, 0) for part in group)) > 0:
                rest = found | {part: found[part] - least for part in group}
                return _sum([*rest.items(), *((whole, least * n) for whole, n in first.of.terms)], number)
    kept = [(product, times) for product, times in found.items() if times]
    if len(kept) > MOST_TERMS:
        raise NoSizeError(f"a size is the sum of {len(kept)} products, more than {MOST_TERMS}")
    return Size(tuple(sorted(kept, key=lambda term: [_text_of(factor) for factor in term[0]])), number)


def _negative(quotient: Quotient) -> Size:
    """Return a quotient that is taken away, as a sum with another one that is added."""
    of = quotient.of
    return _over(Size(tuple((product, -n) for product, n in of.terms), quotient.by - 1 - of.number), quotient.by)


def _plus(a: Size, b: Size, times: int = 1) -> Size:
    more = [(product, times * n) for product, n in b.terms]
    return _sum([*a.terms, *more], a.number + times * b.number)


def _times(a: Size, b: Size) -> Size:
    left, right = ([*x.terms, *([((), x.number)] if x.number else [])] for x in (a, b))
    parts = [(tuple(sorted(p + q, key=_text_of)), n * m) for p, n in left for q, m in right]
    return _sum([(p, n) for p, n in parts if p], sum(n for p, n in parts if not p))


def _over(a: Size, by: int) -> Size:
    """Return ⌊a / by⌋: what comes out even stands outside of the quotient, and a quotient of a quotient is one.

    ⌊(g·x + r)/(g·by)⌋ = ⌊(x + ⌊r/g⌋)/by⌋ and ⌊(⌊x/m⌋ + y)/by⌋ = ⌊(x + m·y)/(m·by)⌋ for integers r, x and y.
    """
    whole, rest = divmod(a.number, by)
    even = _sum([(product, n // by) for product, n in a.terms], whole)
    odd = [(product, n % by) for product, n in a.terms if n % by]
    if not odd:
        return even
    common = math.gcd(by, *(n for _, n in odd))
    inner, by = _sum([(product, n // common) for product, n in odd], rest // common), by // common
    rounded = [(p, n) for p, n in inner.terms if any(isinstance(factor, Quotient) for factor in p)]
    (first, times), *others = rounded or inner.terms
    if not others and len(first) == times == 1 and isinstance(first[0], Quotient):
        of, more = first[0]
        plain = Size(tuple(term for term in inner.terms if term not in rounded), inner.number)
        return _plus(even, _over(_plus(of, plain, more), by * more))
    return _plus(even, Size((((Quotient(inner, by),), 1),), 0))


def _text_of(factor: Factor) -> str:
    if isinstance(factor, str):
        return factor
    inner = _text(factor.of)
    return f"({inner if inner in _names(factor.of) else f'({inner})'}//{factor.by})"


def _text(size: Size) -> str:
    out = ""
    for product, times in size.terms:
        factors = [_text_of(factor) for factor in product]
        if len(factors) == 1 and times == 1 and isinstance(product[0], Quotient):
            factors = [factors[0][1:-1]]
        sign = "-" if times < 0 else "+" if out else ""
        out += sign + "*".join([*([str(abs(times))] if abs(times) != 1 else []), *factors])
    return f"{out}{size.number:+d}" if size.number and out else out or str(size.number)


def written(size: Size) -> int | str:
    """Return a size in the one way it is written."""
    if not size.terms:
        return size.number
    text = _text(size)
    if len(text) > LONGEST_TEXT:
        raise NoSizeError(f"a size of {len(text)} letters, more than {LONGEST_TEXT}")
    return text


@lru_cache(maxsize=4096)
def read(dim: int | str) -> Size:
    """Return what a size is made of.

    Raises:
        NoSizeError: it is none.
    """
    if not isinstance(dim, str):
        return Size((), dim)
    if len(dim) > LONGEST_TEXT:
        raise NoSizeError(f"a size of {len(dim)} letters, more than {LONGEST_TEXT}")
    tokens = TOKEN.findall(dim)
    if "".join(tokens) != dim:
        raise NoSizeError(f"{dim!r:.60} is no size")
    tokens.append("")
    size, at = _read_sum(tokens, 0, 0)
    if at != len(tokens) - 1:
        raise NoSizeError(f"{dim!r:.60} is no size")
    return size


def _read_sum(tokens: Sequence[str], at: int, depth: int) -> tuple[Size, int]:
    total, sign = Size((), 0), "+"
    if tokens[at] == "-":
        sign, at = "-", at + 1
    while True:
        part, at = _read_product(tokens, at, depth)
        total = _plus(total, part, -1 if sign == "-" else 1)
        if tokens[at] not in ("+", "-"):
            return total, at
        sign, at = tokens[at], at + 1


def _read_product(tokens: Sequence[str], at: int, depth: int) -> tuple[Size, int]:
    size, at = _read_factor(tokens, at, depth)
    while tokens[at] in ("*", "//"):
        if tokens[at] == "*":
            other, at = _read_factor(tokens, at + 1, depth)
            size = _times(size, other)
        else:
            by = tokens[at + 1]
            if not by.isascii() or not by.isdigit() or int(by) < 1:
                raise NoSizeError(f"a size is divided by {by!r:.20}")
            size, at = _over(size, int(by)), at + 2
    return size, at


def _read_factor(tokens: Sequence[str], at: int, depth: int) -> tuple[Size, int]:
    token = tokens[at]
    if token == "(" and depth < DEEPEST:
        size, at = _read_sum(tokens, at + 1, depth + 1)
        if tokens[at] != ")":
            raise NoSizeError("a bracket of a size is not closed")
        return size, at + 1
    if token.isascii() and token.isdigit():
        return Size((), int(token)), at + 1
    if not token or token[0] in "+-*/()":
        raise NoSizeError(f"a size has {token!r} where a name or a number is expected")
    return Size((((token,), 1),), 0), at + 1


def added(dims: Iterable[int | str]) -> int | str:
    """Return the sum of sizes, in the one way it is written.

    Example:
        >>> added(["sequence", 1, "past"]), added([2, 3]), added(["frames-2", "frames"])
        ('past+sequence+1', 5, '2*frames-2')
    """
    total = Size((), 0)
    for dim in dims:
        total = _plus(total, read(dim))
    return written(total)


def multiplied(dims: Iterable[int | str]) -> int | str:
    """Return the product of sizes.

    Example:
        >>> multiplied(["height", "width", 4]), multiplied(["past+1", 2])
        ('4*height*width', '2*past+2')
    """
    product = Size((), 1)
    for dim in dims:
        product = _times(product, read(dim))
    return written(product)


def divided(dim: int | str, by: int) -> int | str:
    """Return a size divided by a number, rounded down.

    Example:
        >>> divided("frames-1", 2), divided(added([divided("frames-1", 2), 1]), 2), divided("32*height+1", 2)
        ('(frames+1)//2-1', '(frames+1)//4', '16*height')
    """
    return written(_over(read(dim), by))


def less(dim: int | str, other: int | str) -> int | str:
    """Return the difference of two sizes.

    Example:
        >>> less("past+1", "past"), less("sequence", 3), less("sequence", "sequence//2")
        (1, 'sequence-3', '(sequence+1)//2')
    """
    return written(_plus(read(dim), read(other), -1))


def names_of(dim: Dim) -> list[str]:
    """Return the names that a size is made of, each once, in order.

    Example:
        >>> names_of("past+sequence+1"), names_of("(height+1)//2*width"), names_of(4)
        (['past', 'sequence'], ['height', 'width'], [])
    """
    return sorted(_names(read(dim))) if isinstance(dim, str) else []


def _names(size: Size) -> set[str]:
    found: set[str] = set()
    for product, _ in size.terms:
        for factor in product:
            found |= {factor} if isinstance(factor, str) else _names(factor.of)
    return found


def is_name(dim: Dim) -> bool:
    """Return whether a size is a name and nothing else.

    Example:
        >>> is_name("past"), is_name("past+1")
        (True, False)
    """
    try:
        return isinstance(dim, str) and read(dim) == Size((((dim,), 1),), 0)
    except NoSizeError:
        return False


def telling(dim: Dim, size: Any) -> tuple[str, Any] | None:
    """Return the name whose size follows from that of a dimension, and its size; None for other dimensions.

    Args:
        dim: as it is declared.
        size: a number, or a symbol.

    Example:
        >>> telling("frames", 7), telling("32*height+1", 65), telling("height*width", 6)
        (('frames', 7), ('height', 2), None)
    """
    told = told_by(dim)
    if told is None:
        return None
    name, times, more = told
    return name, (size - more) // times if times > 1 or more else size


def least_of(dim: int | str, bounds: Bounds) -> int | None:
    """Return the least that a difference of sizes may be, or less; None where that is not known.

    What repeats with a name is looked at for every remainder of it: in each, quotients come out even.

    Example:
        >>> least_of("frames-(frames//8)*8", {"frames": (1, None)}), least_of("9-frames", {"frames": (1, 8)})
        (0, 1)
    """
    names = names_of(dim) if isinstance(dim, str) else []
    return _least_of(dim, tuple((name, *bounds[name]) for name in names))


@lru_cache(maxsize=4096)
def _least_of(dim: int | str, limits: tuple[tuple[str, int, int | None], ...]) -> int | None:
    size, bounds = read(dim), {name: (least, most) for name, least, most in limits}
    names, length = sorted(bounds), _period(size)
    if length ** len(names) > MOST_REMAINDERS:
        return None
    found: list[int] = []
    for rests in itertools.product(range(length), repeat=len(names)):
        of = {name: Size((((name,), length),), rest) for name, rest in zip(names, rests, strict=True)}
        total = _replaced(size, of)
        least = total.number
        for product, times in total.terms:
            for factor in product:
                if not isinstance(factor, str):
                    return None
                low, high = bounds[factor]
                low, rest = max(-(-(low - of[factor].number) // length), 0), of[factor].number
                if times < 0 and (high is None or high < rest):
                    return None
                times *= low if times > 0 else ((high or 0) - rest) // length
            least += times
        found.append(least)
    return min(found)


def _period(size: Size) -> int:
    """Return after how many steps of its names a size repeats, but for what grows with them."""
    quotients = [factor for product, _ in size.terms for factor in product if not isinstance(factor, str)]
    return math.lcm(*(factor.by * _period(factor.of) for factor in quotients), 1)


def _replaced(size: Size, of: Mapping[str, Size]) -> Size:
    """Return a size with others in place of its names."""
    total = Size((), size.number)
    for product, times in size.terms:
        part = Size((), times)
        for factor in product:
            one = of[factor] if isinstance(factor, str) else _over(_replaced(factor.of, of), factor.by)
            part = _times(part, one)
        total = _plus(total, part)
    return total


def told_by(dim: Dim) -> tuple[str, int, int] | None:
    """Return the only name of a size, how many times it is in it, and the number that is added; None for others.

    A name's size follows from that of such a dimension.

    Example:
        >>> told_by("frames"), told_by("32*height+1"), told_by("height*width")
        (('frames', 1, 0), ('height', 32, 1), None)
    """
    size = read(dim) if isinstance(dim, str) else None
    if size is None or len(size.terms) != 1:
        return None
    ((product, times),) = size.terms
    return (product[0], times, size.number) if len(product) == 1 and isinstance(product[0], str) else None


def grows(dim: int | str) -> bool:
    """Return whether a size grows, or stays, where any of its names does: nothing but a number is taken away.

    Example:
        >>> grows("frames-2"), grows("frames-past")
        (True, False)
    """
    return _grows(read(dim))


def _grows(size: Size) -> bool:
    return all(
        times > 0 and all(isinstance(factor, str) or _grows(factor.of) for factor in product)
        for product, times in size.terms
    )


def computed(dim: int | str, sizes: Mapping[str, Any]) -> Any:
    """Return a size where those of the names are given; they may be symbols.

    Example:
        >>> computed("past+1", {"past": 6}), computed("(frames+1)//2", {"frames": 6})
        (7, 3)
    """
    return _computed(read(dim), sizes)


def _computed(size: Size, sizes: Mapping[str, Any]) -> Any:
    total: Any = size.number
    for product, times in size.terms:
        part: Any = times
        for factor in product:
            part = part * (sizes[factor] if isinstance(factor, str) else _computed(factor.of, sizes) // factor.by)
        total = total + part
    return total


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return a size as a number.

    Example:
        >>> size_of("past+1", {"past": 6})
        7
    """
    size: int = dim if isinstance(dim, int) else computed(dim, sizes)
    return size


def limits_of(dim: int | str, bounds: Bounds) -> tuple[int, int | None]:
    """Return the least and the largest size that ``dim`` may be; None: no limit.

    Example:
        >>> limits_of("(frames+1)//2", {"frames": (3, 8)})
        (2, 4)
    """
    names = names_of(dim)
    most = {name: limit for name in names if (limit := bounds[name][1]) is not None}
    least = size_of(dim, {name: bounds[name][0] for name in names})
    return least, size_of(dim, most) if len(most) == len(names) else None


def measure(shapes: Sequence[tuple[str, Sequence[Dim], Sequence[int]]], bounds: Bounds) -> dict[str, int]:
    """Return the size of every named dimension in one call.

    Args:
        shapes: name, declared shape and actual shape of every input.
        bounds: of every named dimension; each is told by a dimension of an input, and others of inputs may be computed
            of them.

    Raises:
        SizeError: a dimension has two sizes, or one outside its bounds.

    Example:
        >>> measure([("x", (None, "sequence"), (2, 7)), ("mask", (None, "sequence"), (2, 7))], {"sequence": (1, 512)})
        {'sequence': 7}
        >>> measure([("x", (None, 3, "32*height", "32*width"), (2, 3, 64, 96))], {"height": (1, 9), "width": (1, 9)})
        {'height': 2, 'width': 3}
    """
    found: dict[str, tuple[int, str]] = {}
    every = [(name, dim, size) for name, declared, given in shapes for dim, size in zip(declared, given, strict=False)]
    told = [(name, dim, size) for name, dim, size in every if isinstance(dim, str)]
    for name, dim, size in sorted(told, key=lambda row: not is_name(row[1])):
        of, times, more = told_by(dim) or ("", 1, 0)
        if of not in bounds or (of in found and not is_name(dim)):
            continue  # what is computed of sizes that other dimensions tell: see below
        count, rest = divmod(size - more, times)
        if rest:
            what = f"{more} more than a multiple of {times}" if more else f"a multiple of {times}"
            raise SizeError(f"a dimension of size {size} is not {what}", name, "pad, crop or resize the input")
        known, where = found.setdefault(of, (count, name))
        if known != count:
            raise SizeError(f"{dim} is {size}, but {known} in {where}", name, "give inputs of one size")
        least, most = limits_of(dim, bounds)
        short, long = size < least, most is not None and size > most
        if short or long:
            span = f"{least} or more" if most is None else f"{least} to {most}"
            remedy = "give at least that" if short else "truncate the input"
            raise SizeError(f"{dim} is {size}, outside {span}", name, remedy)
    sizes = {of: count for of, (count, _) in found.items()}
    for name, dim, size in told:
        if size != size_of(dim, sizes):
            why = ", ".join(f"{n} is {sizes[n]}" for n in names_of(dim))
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
