"""The dimensions that change in one capture: what the export calls them, their names and limits, what is computed of
them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from intact8.arithmetic.dimensions import (
    LONGEST,
    Dim,
    NoSizeError,
    Size,
    added,
    divided,
    grows,
    least_of,
    less,
    limits_of,
    multiplied,
    names_of,
    read,
    size_of,
)
from intact8.capture.dynamic_shapes import UNLIMITED, Dynamic
from intact8.capture.size_classes import (
    LONGEST_PERIOD,
    Limits,
    Question,
    SizeClass,
    asked_by_model,
    assumed,
    cancelled,
    conditions,
    find_classes,
    find_relations,
    in_words,
    is_limit,
    joined,
    least_size,
    line_of,
    other_answers,
    period,
    refused,
    unit,
)
from intact8.errors import CaptureError
from intact8.opset.resize import times

MOST_FACTORS = 8
"""Highest power of a size that is written."""

ROUNDED = frozenset({"TruncToInt", "FloorToInt", "CeilToInt"})
"""Names of torch's functions that round a quotient of sizes."""

WHOLE = ROUNDED | {"ToFloat", "RoundToInt"}
"""Names of torch's functions that leave whole numbers as they are."""

LARGEST_RATIO = 1000
"""Largest denominator of a ratio of sizes that is written as a float."""

LARGEST_SCALED = 1 << 16
"""Sizes up to this are tried with such a ratio, where they have no limit."""

WIDE = 8
"""Times the example's size; a dimension without a limit, of which so much is beyond what is proved without one, gets
a limit of as much once more."""


@dataclass(kw_only=True)
class NamedSizes:
    """What a capture knows of dimensions that change.

    Attributes:
        symbols: symbol → name; None: the batch.
        bounds: name → least and largest size; None: no limit.
        counted: symbol of the export → what it is replaced by: a number, or the sizes of a class.
        classes: symbol of the export → the class of sizes that the model works for, where that is not every size.
        related: symbol of the export → what it is of others, where the model works for no other sizes.
        places: condition that the model's code asks of sizes → the line that asks.
        examples: symbol of the export → the example's size.
        asked: symbol of the export → the name it shall have.
        counts: symbol → the example's size, counted as the name is.
        environment: what holds the export's guards, where the batch is free.
        questions: what the model's code asks of sizes, that not all of those it is to take answer alike.
        notes: what the user may want to know.
    """

    symbols: dict[Any, str | None] = field(default_factory=dict)
    bounds: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    counted: dict[Any, Any] = field(default_factory=dict)
    classes: dict[Any, SizeClass] = field(default_factory=dict)
    related: dict[Any, Any] = field(default_factory=dict)
    places: dict[Any, str] = field(default_factory=dict)
    examples: dict[Any, int] = field(default_factory=dict)
    asked: dict[Any, str] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)
    environment: Any = None
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def batch_symbols(self) -> set[Any]:
        """Return the symbols of the export that stand for the batch."""
        return {symbol for symbol, name in self.symbols.items() if name is None}

    def enter(self, size: torch.SymInt, axis: int, key: str, wanted: Dynamic, limits: Any) -> None:
        """Give the export's symbol for a dimension of an input the name it shall have, with its limits.

        Args:
            size: the dimension in the export.
            axis, key: which it is, of which input.
            wanted: its name, and limits that somebody said.
            limits: those of the export, or None.

        Raises:
            CaptureError: it cannot change as it shall.
        """
        symbol, name = size.node.expr, wanted.names[key][axis]
        of = self.classes.get(symbol, SizeClass(1, 0))
        counted = unit(symbol, of) if symbol in self.classes else symbol
        if self.symbols.setdefault(counted, name) != name:
            other = self.symbols[counted] or "the batch"
            what = f"{name} (dimension {axis} of {key}) must have the size of {other}"
            raise CaptureError(what, why="the model makes them equal", remedy="give both one name")
        if self.examples[symbol] < of.times + of.more:
            what = f"{name} is {self.examples[symbol]} in the example, and the model works for steps of {of.times}"
            raise CaptureError(what, where=key, remedy=f"give an example where it is {of.times + of.more} or more")
        if any(size % of.times != of.more for size in wanted.seen.get(name, ())):
            what = f"dimension {axis} of {key} ({name}) can only change in steps of {of.times}, from {of.more} on"
            raise CaptureError(what, remedy="give data of such sizes, or leave it out of dynamic_shapes")
        least, most = wanted.bounds.get(name, (1, None))
        if limits is not None:
            # torch.export assumes sizes of 2 or more: its limits of 0 and 1 mean nothing.
            low = int(limits.lower) if limits.lower > 2 else 1
            if low > 1:
                low = least_size(size.node.shape_env.guards, self.examples, symbol, low)
            high = int(limits.upper) if limits.upper < UNLIMITED else None
            least, most = _both((least, most), (low, high))
        for guard in asked_by_model(assumed(size.node.shape_env)):
            decides = isinstance(guard.expr, sympy.Rel) and not isinstance(guard.expr, sympy.Eq)
            if decides and not is_limit(guard.expr) and guard.expr.free_symbols == {symbol}:
                self._ask(guard, {symbol}, name, of)
        if most is None and WIDE * self.examples[symbol] > LONGEST:  # samples of sound, say
            most = WIDE * WIDE * self.examples[symbol]
        found = max(-(-(least - of.more) // of.times), 1), None if most is None else (most - of.more) // of.times
        if symbol in self.classes and name not in self.bounds:
            steps = added([multiplied([of.times, name]), of.more])
            self.notes.append(f"{name} counts steps of {of.times}: the model works for {steps}")
        self.bounds[name] = _both(self.bounds.get(name, (1, None)), found)
        self.counts[counted] = (self.examples[symbol] - of.more) // of.times

    def ask_of_samples(self) -> None:
        """Write down what the model's code asks of the number of samples that not all of them answer alike."""
        batch = self.batch_symbols
        for guard in asked_by_model(assumed(self.environment)) if batch else ():
            if guard.expr.free_symbols & batch:
                self._ask(guard, batch, None, SizeClass(1, 0))

    def _ask(self, guard: Any, free: Collection[Any], name: str | None, of: SizeClass) -> None:
        known = {**self.asked, **dict.fromkeys(self.batch_symbols, "batch")}
        example = next((self.examples[symbol] for symbol in free if symbol in self.examples), 0)
        asked = refused(guard.expr, known).what.removeprefix("the model works only where ")
        found = [n for n in other_answers(guard.expr, free, self.examples) if n % of.times == of.more]
        shorter, longer = ([n for n in found if n < example], [n for n in found if n > example])
        # Both answers may be one where the one turns into the other, as with ``if x.shape[1] > 16: x = x[:, :16]``.
        for other in found[:1] if name is None else (*reversed(shorter[-2:]), *longer[:2]):
            size, given = ((n - of.more) // of.times for n in (other, example))
            self.questions.append(Question(name, size, given, line_of(guard), asked))

    def limit_products(self, dims: Collection[Dim]) -> None:
        """Give names without a limit one where sums go over their products, as attention does over height times width:
        so far that the product is as long as what is proved of a name without one."""
        for dim in dims:
            names = names_of(dim)
            product = isinstance(dim, str) and any(len(factors) > 1 for factors, _ in read(dim).terms)
            if dim is None or not product or all(self.bounds[name][1] is not None for name in names):
                continue
            shown = {self.symbols[symbol]: count for symbol, count in self.counts.items()}
            most = max(shown.get(name, 1) for name in names)
            while size_of(dim, dict.fromkeys(names, most + 1)) <= LONGEST:
                most += 1
            for name in names:
                if self.bounds[name][1] is None:
                    self.bounds[name] = (self.bounds[name][0], most)
            self.notes.append(f"{' and '.join(names)} up to {most}: sums over {dim} are proved so far")

    def require_seen(self, wanted: Dynamic) -> None:
        """Raise CaptureError where sizes that were found in data are less than what turned out to be the least."""
        for symbol, name in self.symbols.items():
            raw = next((s for s, of in self.classes.items() if unit(s, of) == symbol), symbol)
            of = self.classes.get(raw, SizeClass(1, 0))
            if name is not None and wanted.seen.get(name):
                least = self.bounds[name][0] * of.times + of.more
                if min(wanted.seen[name]) < least:
                    what = f"{name} is {min(wanted.seen[name])} in the data, and must be {least} or more"
                    raise CaptureError(what, where="dynamic_shapes", remedy="leave shorter ones out of the data")

    def classify(self, guards: Sequence[Any], within: Mapping[Any, SizeClass]) -> None:
        """Find the classes of sizes for which an export holds, in others that are known, and what tells which."""
        asked = conditions(guards)
        self.places = {guard.expr: line_of(guard) for guard in asked_by_model(guards)}
        self.related = find_relations(asked, self.examples, self.asked)
        self.classes = self.classes_of(asked, within)
        classes = {symbol: of.times * unit(symbol, of) + of.more for symbol, of in self.classes.items()}
        self.counted |= classes | {symbol: of.xreplace(classes) for symbol, of in self.related.items()}

    def classes_of(self, asked: Sequence[Any], within: Mapping[Any, SizeClass]) -> dict[Any, SizeClass]:
        """Return the classes for which conditions hold; raise CaptureError where they hold for none."""
        places = {guard.xreplace(self.related): place for guard, place in self.places.items()}
        known = [guard.xreplace(self.related) for guard in asked]
        return find_classes(known, self.examples, within, self.asked, places)

    def expression(self, size: Any) -> Any:
        """Return a number of the export as such, or as an expression of the dimensions that change."""
        if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return size
        expr = size.node.expr.xreplace(self.counted)
        return int(expr) if expr.is_Integer else expr

    def shown(self, size: Any) -> str:
        """Return a size of the export as it would be written in Python, with the names that were asked for."""
        expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size)
        return in_words(expr.xreplace({symbol: sympy.Symbol(name) for symbol, name in self.asked.items()}))

    def symbolic(self, dim: int | str) -> Any:
        """Return a size as the export writes it, the opposite of :meth:`size_of`."""
        symbols = {name: symbol for symbol, name in self.symbols.items() if name is not None}

        def of(size: Size) -> Any:
            total = sympy.Integer(size.number)
            for product, count in size.terms:
                factors = [
                    symbols[f] if isinstance(f, str) else FloorDiv(of(f.of), sympy.Integer(f.by)) for f in product
                ]
                total = total + count * math.prod(factors)
            return total

        return dim if isinstance(dim, int) else of(read(dim))

    def finer(self, expr: Any) -> dict[Any, SizeClass]:
        """Return the classes of the dimensions in which a size is computed of them; none where that is so in none."""
        expr = expr.xreplace(self.related)
        length = period(expr)
        known = [symbol for symbol in expr.free_symbols if symbol in self.examples]
        if not 1 < length <= LONGEST_PERIOD or len(known) < len(expr.free_symbols):
            return {}
        own = {s: joined(self.classes.get(s), SizeClass(length, self.examples[s] % length)) for s in known}
        classes = {**self.classes, **own}
        even = expr.xreplace({s: c.times * unit(s, c) + c.more for s, c in classes.items()})
        names = {unit(s, c): str(s) for s, c in classes.items()}
        return classes if classes != self.classes and self.size_of(even, names) is not None else {}

    def size_of(self, expr: Any, names: Mapping[Any, str | None] | None = None) -> int | str | None:
        """Return a size that is computed of named dimensions and grows with them, None for any other."""
        if isinstance(expr, int):
            return expr
        try:
            found = self._computed(expr, self.symbols if names is None else names)
        except NoSizeError:
            return None
        return found if found is not None and grows(found) else None

    def _computed(self, expr: Any, names: Mapping[Any, str | None]) -> int | str | None:
        if expr.is_Integer or (expr.is_Float and float(expr).is_integer()):
            return int(expr)
        if expr.is_Symbol:
            return names.get(expr)
        kind = type(expr).__name__
        if kind in ROUNDED and type(expr.args[0]).__name__ == "FloatTrueDiv":  # of arange with floats
            of, by = map(_in_integers, expr.args[0].args)
            return self._computed(of * by, names) if by in (1, -1) else None
        if kind in ROUNDED and type(expr.args[0]).__name__ == "IntTrueDiv":
            of, by = (self._computed(part, names) for part in expr.args[0].args)
            if of is None or not isinstance(by, int) or by < 1:
                return None
            return divided(added([of, by - 1 if kind == "CeilToInt" else 0]), by)
        if kind in ROUNDED and expr.args[0].is_Mul and expr.args[0].args[0].is_Float:
            return self._scaled(kind, float(expr.args[0].args[0]), math.prod(expr.args[0].args[1:]), names)
        if kind == "Max" and len(expr.args) == 2 and expr.args[0].is_Integer:
            return self._at_least(self._computed(expr.args[1], names), int(expr.args[0]))
        if kind == "Min" and len(expr.args) == 2 and expr.args[0].is_Integer:
            return self._at_most(self._computed(expr.args[1], names), int(expr.args[0]))
        if kind in ("FloorDiv", "CleanDiv") and expr.args[1].free_symbols:
            if (even := cancelled(expr)) != expr:
                return self._computed(even, names)
            whole, part = (self._computed(arg, names) for arg in expr.args)
            return None if whole is None or part is None else times(part, whole)
        parts = [self._computed(part, names) for part in expr.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if expr.is_Add:
            return added(known)
        if expr.is_Mul:
            return multiplied(known)
        if expr.is_Pow and isinstance(known[1], int) and 0 < known[1] <= MOST_FACTORS:
            return multiplied([known[0]] * known[1])
        if kind in WHOLE:
            return known[0]
        if kind in ("Mod", "PythonMod") and isinstance(known[1], int) and known[1] > 0:
            return less(known[0], multiplied([known[1], divided(known[0], known[1])]))
        quotient = kind in ("FloorDiv", "CleanDiv") and isinstance(known[1], int) and known[1] > 0
        return divided(known[0], known[1]) if quotient else None  # type: ignore[arg-type]

    def _scaled(self, kind: str, factor: float, expr: Any, names: Mapping[Any, str | None]) -> int | str | None:
        """Return the rounded product of a size and a float64 number, as ``scale_factor=0.7`` makes it; None where no
        quotient of small whole numbers rounds to the same for all sizes."""
        of, ratio = self._computed(expr, names), Fraction(factor).limit_denominator(LARGEST_RATIO)
        if of is None or ratio <= 0:
            return None
        most = limits_of(of, self.bounds)[1] if self._has_limits(of) else None
        sizes = np.arange(1 + min(LARGEST_SCALED, LARGEST_SCALED if most is None else most))
        products, up = sizes * factor, ratio.denominator - 1 if kind == "CeilToInt" else 0
        exact = (sizes * ratio.numerator + up) // ratio.denominator
        if not (exact == (np.ceil(products) if up else np.floor(products))).all():
            return None
        return divided(added([multiplied([of, ratio.numerator]), up]), ratio.denominator)

    def _at_least(self, dim: int | str | None, least: int) -> int | str | None:
        """Return the larger of a number and a size, whose names get least sizes where that is the larger one in the
        example only; None where it is not known which that is."""
        if isinstance(dim, str):
            known = self._has_limits(dim)
            if not known or (least_of(dim, self.bounds) or 0) >= least:
                return dim if known else None
            if self._in_example(dim) < least:
                return None
            self.raise_least(dim, least)
            return dim
        return None if dim is None else max(dim, least)

    def _at_most(self, dim: int | str | None, most: int) -> int | str | None:
        """Return the smaller of a number and a size, whose names get least or largest sizes where that is so in the
        example only; None where it is not known which that is."""
        if not isinstance(dim, str):
            return None if dim is None else min(dim, most)
        if not self._has_limits(dim):
            return None
        least, largest = limits_of(dim, self.bounds)
        if least >= most or (largest is not None and largest <= most):
            return most if least >= most else dim
        size = self._in_example(dim)
        if size >= most:
            self.raise_least(dim, most)
            return most
        if size < 0 or [dim] != names_of(dim) or largest is not None:
            return None
        self.bounds[dim] = (least, most)
        return dim

    def _has_limits(self, dim: int | str) -> bool:
        return all(name in self.bounds for name in names_of(dim))

    def _in_example(self, dim: str) -> int:
        """Return the size that the example has; −1 where it is not known."""
        names = names_of(dim)
        counts = {name: self.counts[symbol] for symbol, name in self.symbols.items() if name in names}
        return size_of(dim, counts) if len(counts) == len(names) else -1

    def difference_of(self, expr: Any) -> int | str | None:
        """Return a size that is computed of named dimensions, and may shrink with them; None for others."""
        try:
            return expr if isinstance(expr, int) else self._computed(expr, self.symbols)
        except NoSizeError:
            return None

    def raise_least(self, dim: str, least: int) -> None:
        """Raise the least sizes of the names of ``dim`` together until it is at least so long."""
        names = names_of(dim)
        while limits_of(dim, self.bounds)[0] < least:
            for name in names:
                low, high = self.bounds[name]
                if high is not None and low >= high:
                    what = f"{name} may be {high} at most, which makes {dim} less than {least}"
                    raise CaptureError(what, where="dynamic_shapes", remedy="allow it to be longer")
                self.bounds[name] = (low + 1, high)


def _in_integers(expr: Any) -> Any:
    """Return an expression of floats that are whole numbers as one of integers."""
    if type(expr).__name__ == "ToFloat":
        return expr.args[0]
    if expr.is_Float and float(expr).is_integer():
        return sympy.Integer(int(expr))
    return expr.func(*map(_in_integers, expr.args)) if expr.is_Add or expr.is_Mul else expr


def _both(one: Limits, other: Limits) -> Limits:
    """Return the limits that two pairs of limits make."""
    ends = [most for _, most in (one, other) if most is not None]
    return max(one[0], other[0]), min(ends, default=None)


__all__ = ["NamedSizes"]
