"""The sizes of calls that a child process has to run before this process does, as libraries choose kernels by shape.

Sizes are grouped in ranges: 1, 2, 3 to 4, 5 to 8, 9 to 16 … of the batch and of every named dimension. For a range a
child runs what is asked for, its largest sizes, and one less of each; then all of it counts as probed. So not every
size has been run: what lies between is taken to meet the same kernels. ``probe="always"`` asks for each size itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from intact8.arithmetic.dimensions import LONGEST
from intact8.engines.fork_safety import follow
from intact8.engines.memory import LENGTH, predicted
from intact8.errors import EngineError, InputError
from intact8.machine import available_memory
from intact8.opset.op import Array
from intact8.program.dimensions import batch_size, sizes_near, sizes_of
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program

BATCH = "batch"

CALL, TENSORS, PARTS = "", "every tensor", "operation by operation"
"""Ways of running a program: a call; one that also gives every tensor, and the time of every operation; every operation
as a program of its own."""


@dataclass(frozen=True)
class Size:
    """The size of one call.

    Attributes:
        batch: number of samples; None where the program has no batch.
        named: names and sizes of the named dimensions.
        integers: inputs given as uint8 where the program takes float32.
        way: how it is run: CALL, TENSORS or PARTS.
    """

    batch: int | None
    named: tuple[tuple[str, int], ...] = ()
    integers: tuple[str, ...] = ()
    way: str = CALL

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"batch": self.batch, "named": dict(self.named), "integers": list(self.integers), "way": self.way}


@dataclass(frozen=True)
class Range:
    """Sizes that count as probed together.

    Attributes:
        spans: least and largest of the batch, if there is one, and of every named dimension, which comes with its name.
        integers: inputs given as uint8, see :class:`Size`.
        runs: sizes that a child runs for the range; they do not tell ranges apart.
        way: how they are run, see :class:`Size`.
    """

    spans: tuple[tuple[str, int, int], ...]
    integers: tuple[str, ...]
    runs: tuple[Size, ...]
    way: str = CALL

    def __str__(self) -> str:
        words = [f"{name} {a}" if a == b else f"{name} {a} to {b}" for name, a, b in self.spans]
        words += [f"{name} as integers" for name in self.integers]
        return ", ".join([*(words or ["its only size"]), *([self.way] if self.way else [])])

    def covers(self, size: Size, part: int | None) -> bool:
        """Return whether a call counts as probed.

        Args:
            size: size of the call.
            part: samples that the engine runs at once, of larger batches one part after another; None for all.
        """
        given = _numbers(size)
        if self.integers != size.integers or len(given) != len(self.spans):
            return False
        if self.way != size.way and (self.way, size.way) != (TENSORS, CALL):
            return False
        inside = [a <= n <= b for n, (_, a, b) in zip(given, self.spans, strict=True)]
        if size.batch is not None and part is not None:  # one part of each size has run
            batches = [run.batch or 0 for run in self.runs]
            inside[0] |= any(n > part and n % part == part - 1 for n in batches)
        return all(inside)


def span(size: int, least: int = 1, most: int | None = None) -> tuple[int, int]:
    """Return the range that a size is in.

    Example:
        >>> [span(n) for n in (1, 2, 3, 8, 9)], span(100, 1, 120)
        ([(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)], (65, 120))
    """
    end = 1 << (size - 1).bit_length()
    return max(end // 2 + 1, least), end if most is None else min(end, most)


def range_of(program: Program, engine: str, size: Size, part: int | None = None, exact: bool = False) -> Range:
    """Return the range that a size is in, or the size itself where the largest sizes would take half of the memory.

    Args:
        program: a checked program.
        engine: name of the engine.
        size: size of a call.
        part: see :meth:`Range.covers`.
        exact: whether to return the size itself in any case.
    """
    spans = [] if size.batch is None else [(BATCH, *span(size.batch))]
    for name, n in size.named:
        least, most = program.dimensions[name]
        spans.append((name, *span(n, least, LONGEST if most is None else most)))
    largest = _at(size, [b for _, _, b in spans])
    free = available_memory()
    if exact or (free is not None and _needed(program, engine, largest, part) > free // 2):
        spans = [(name, n, n) for (name, _, _), n in zip(spans, _numbers(size), strict=True)]
        return Range(tuple(spans), size.integers, (size,), size.way)
    less = _at(size, [max(a, b - 1) for _, a, b in spans])
    return Range(tuple(spans), size.integers, tuple(dict.fromkeys((size, less, largest))), size.way)


def _numbers(size: Size) -> list[int]:
    return [*([] if size.batch is None else [size.batch]), *(n for _, n in size.named)]


def _at(size: Size, numbers: Sequence[int]) -> Size:
    rest = list(numbers)
    batch = None if size.batch is None else rest.pop(0)
    return replace(size, batch=batch, named=tuple((name, n) for (name, _), n in zip(size.named, rest, strict=True)))


def _needed(program: Program, engine: str, size: Size, part: int | None) -> int:
    batch = size.batch or 1
    return predicted(program, engine, batch if part is None else min(batch, part), dict(size.named))


def size_of(program: Program, arrays: Mapping[str, Array], way: str = CALL) -> Size:
    """Return the size of a call with these inputs, run in this way."""
    given = sizes_of(program, arrays)
    integers = tuple(n for n in program.inputs if arrays[n].dtype.name != program.tensors[n].dtype)
    return Size(batch_size(program, arrays), tuple((name, given[name]) for name in sorted(given)), integers, way)


def shown(program: Program) -> tuple[Range, ...]:
    """Return the range that has run with the golden vectors, which are single samples."""
    if program.dimensions:
        return ()
    size = Size(1 if _batched(program) else None)
    return (Range(((BATCH, 1, 1),) if size.batch else (), (), (size,)),)


def wanted(
    program: Program,
    engine: str,
    batches: Iterable[int],
    sizes: Mapping[str, Sequence[int]],
    integers: bool = False,
    exact: bool = False,
    way: str = CALL,
) -> tuple[Range, ...]:
    """Return the ranges to probe at load: each batch with each combination of sizes, and with those of random samples.

    Args:
        program: a checked program.
        engine: name of the engine. numpy, on the reference, has no kernels of its own for a shape.
        batches: numbers of samples per call.
        sizes: sizes of named dimensions.
        integers: whether inputs that also take uint8 integers are probed with these, too.
        exact: see :func:`range_of`.
        way: how they are run, see :class:`Size`.

    Raises:
        InputError: a dimension is not known, or the size is outside its limits.
    """
    for name, values in sizes.items():
        if name not in program.dimensions:
            known = ", ".join(program.dimensions) or "none"
            raise InputError("the program has no such dimension", where=f"sizes, {name}", remedy=f"there are: {known}")
        least, most = program.dimensions[name]
        most = LONGEST if most is None else most
        for n in (n for n in values if not least <= n <= most):
            remedy = f"give {least} to {most}"
            raise InputError(f"{n} is outside the dimension's limits", where=f"sizes, {name}", remedy=remedy)
    if engine == "reference":
        return ()
    near = sizes_near(program, LENGTH)
    names = sorted(near)
    numbers = [dict.fromkeys((near[name], *sizes.get(name, ()))) for name in names]
    kinds = dict.fromkeys(((), tuple(n for n in program.inputs if integers and n in sole_quantizers(program))))
    found: dict[Range, None] = {}
    for batch in dict.fromkeys(batches) if _batched(program) else (None,):
        for kind, *chosen in itertools.product(kinds, *numbers):
            size = Size(batch, tuple(zip(names, chosen, strict=True)), kind, way)
            if not any(r.covers(size, None) for r in (*shown(program), *found)):
                found[range_of(program, engine, size, exact=exact)] = None
    return tuple(found)


def _batched(program: Program) -> bool:
    return any(None in program.tensors[name].shape for name in program.inputs)


class Probed:
    """Asks a child process about a size before this process runs it for the first time. Safe to use from threads.

    Args:
        program: a checked program.
        engine: name of the engine.
        part: see :meth:`Range.covers`.
        known: ranges that a child has run.
        exact: see :func:`range_of`.
        ask: has a child run a range, or remembers that one did; returns the error where it did not survive it.
    """

    def __init__(
        self,
        program: Program,
        engine: str,
        part: int | None,
        known: Sequence[Range],
        exact: bool,
        ask: Callable[[Range], EngineError | None],
    ) -> None:
        self._program, self._engine, self._part, self._exact, self._ask = program, engine, part, exact, ask
        self.known = list(known)
        self._failed: dict[Range, EngineError] = {}
        self._lock = threading.Lock()
        follow(self)

    def after_fork(self) -> None:
        """Free the lock, which nobody may be left to give back."""
        self._lock = threading.Lock()

    def __call__(self, arrays: Mapping[str, Array], way: str = CALL) -> None:
        """Return once a child has run calls of these inputs' sizes in this way.

        Raises:
            EngineError: it did not survive, or could not be started.
        """
        size = size_of(self._program, arrays, way)
        if size.batch == 0:  # which no engine is given
            return
        part = self._part if way == CALL else None  # only calls are run in parts
        with self._lock:
            if any(known.covers(size, part) for known in self.known):
                return
            asked = range_of(self._program, self._engine, self._small(size, part), part, self._exact)
            for failed, error in self._failed.items():
                if failed.covers(size, part):
                    raise EngineError(error.what, where=error.where, why=error.why, remedy=error.remedy)
            failure = self._ask(asked)
            if failure is not None:
                self._failed[asked] = failure
                raise failure
            self.known.append(asked)

    def _small(self, size: Size, part: int | None) -> Size:
        """Return the size with one part of each length, where a batch is run in parts."""
        if part is None or self._exact or (size.batch or 0) <= part:
            return size
        return replace(size, batch=2 * part - 1)
