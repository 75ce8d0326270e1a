"""Builds plans: values, constants, and steps as ``native/steps.h`` declares them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from intact8.opset.op import Array
from intact8.program.spill import spilled

from .float_chain_code import Chain

MAGIC = 0x38746361746E69
WORKSPACE, CONSTANT, INPUT, OUTPUT = range(4)
"""Where the memory of a value is."""

MAX_RANK = 8
"""Dimensions that copies take."""


@cache
def step_fields() -> dict[str, tuple[int, tuple[tuple[str, str], ...]]]:
    """Return kind of step → its number and its fields: whether each is read, maybe read, written or a number, and its
    name. The compiled library declares them."""
    from . import _library

    declared = _library.step_fields()
    return {
        kind: (number, tuple((field[0], field[2:]) for field in fields.split()))
        for number, (kind, fields) in enumerate(declared.items())
    }


def address(x: Array) -> int:
    """Return the address of the first element of ``x``; several times faster than ``x.ctypes``."""
    return int(x.__array_interface__["data"][0])


def float_bits(value: float) -> int:
    """Return the bits of a float32, as steps hold it."""
    return int(np.float32(value).view(np.int32))


def double_bits(value: float) -> int:
    """Return the bits of a float64, as steps hold it."""
    return int(np.float64(value).view(np.int64))


def plain(rank: int) -> tuple[int, ...]:
    """Return the order of dimensions of an array as numpy makes it."""
    return tuple(range(rank))


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the order of dimensions in which channels, dimension 1, come last.

    Example:
        >>> channels_last(4)
        (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1) if rank > 2 else plain(rank)


def without(order: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
    """Return an order of dimensions when some of them are gone, and those behind them have other numbers.

    Example:
        >>> without((0, 2, 3, 1), [2, 3]), without((0, 2, 1), [0])
        ((0, 1), (1, 0))
    """
    return tuple(d - sum(g < d for g in gone) for d in order if d not in gone)


@dataclass(frozen=True)
class Value:
    """A tensor in memory, contiguous in some order of its dimensions.

    Attributes:
        index: of the value in the plan.
        shape: sizes, in the order of the program.
        order: the dimensions in the order of memory, the last one contiguous.
        dtype: numpy's name.
    """

    index: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def physical(self) -> tuple[int, ...]:
        """Sizes in the order of memory."""
        return tuple(self.shape[d] for d in self.order)

    def strides(self) -> list[int]:
        """Return the elements from one index to the next, per dimension of the program."""
        found, step = [0] * len(self.shape), 1
        for d in reversed(self.order):
            found[d], step = step, step * self.shape[d]
        return found

    def of_rank(self, rank: int) -> Value:
        """Return the same memory with dimensions of size 1 before the others."""
        new = rank - len(self.shape)
        return replace(self, shape=(1,) * new + self.shape, order=(*range(new), *(d + new for d in self.order)))

    def is_in(self, order: Sequence[int]) -> bool:
        """Return whether memory is as in ``order``: dimensions of size 1 may lie anywhere."""
        wanted = [d for d in order if self.shape[d] != 1]
        return [d for d in self.order if self.shape[d] != 1] == wanted


class Constants:
    """Arrays that plans of one program share, each made once, and known to the library's model.

    Attributes:
        model: handle of the library's model.
        arrays: the arrays, by their number in the model.
    """

    def __init__(self, library: Any) -> None:
        self._library, self.model = library, library.open_model()
        self.arrays: list[Array] = []
        self._made: dict[tuple[str, str], Array] = {}
        self._number: dict[int, int] = {}

    def get(self, op: str, role: str, make: Callable[[], Array]) -> Array:
        """Return the array of that operation and role, contiguous; made at the first request.

        A copy in another order, of which kernels mostly pack one of their own, takes memory while it is read only.
        """
        key = op, role
        if key not in self._made:
            made = make()
            array = np.asarray(made, order="C")  # ascontiguousarray gives a number one dimension
            self._made[key] = array if array is made or array.base is not None else spilled(array)
        return self._made[key]

    def number(self, array: Array) -> int:
        """Return the number of an array, which must be contiguous and live as long as this object."""
        known = self._number.get(id(array))
        if known is None:
            assert array.flags.c_contiguous
            known = self._number[id(array)] = self._library.add_constant(self.model, address(array), array.nbytes)
            self.arrays.append(array)
        return known


def _merged(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return dimensions of a copy, each a size and two strides, where those that lie together in both are one."""
    found: list[tuple[int, int, int]] = []
    for n, x, y in rows:
        if found and (found[-1][1], found[-1][2]) == (n * x, n * y):
            found[-1] = found[-1][0] * n, x, y
        elif n != 1:
            found.append((n, x, y))
    return found


@dataclass
class PlanBuilder:
    """A plan that is being built.

    Attributes:
        constants: arrays that steps may read.
        owner: operation that the next steps belong to.
        owners: the operation of every step.
        chains: steps, by their number, whose words are not known before all steps are.
    """

    constants: Constants
    owner: str = ""
    owners: list[str] = field(default_factory=list)
    _values: list[list[int]] = field(default_factory=list)
    chains: dict[int, Chain] = field(default_factory=dict)
    _steps: list[list[int]] = field(default_factory=list)
    _reordered: dict[tuple[Value, tuple[int, ...]], Value] = field(default_factory=dict)
    _shared: dict[tuple[object, ...], tuple[Value, ...]] = field(default_factory=dict)

    def value(
        self,
        shape: Sequence[int],
        dtype: str,
        order: Sequence[int] | None = None,
        storage: int = WORKSPACE,
        at: int = 0,
    ) -> Value:
        """Return a new value.

        Args:
            shape: sizes.
            dtype: numpy's name.
            order: of its dimensions in memory; None: plain.
            storage: where its memory is.
            at: number of the constant, input or output.
        """
        made = Value(len(self._values), tuple(shape), plain(len(shape)) if order is None else tuple(order), dtype)
        self._values.append([storage, at, made.size * made.itemsize])
        return made

    def constant(self, array: Array) -> Value:
        """Return the value of an array, see :meth:`Constants.number`."""
        return self.value(array.shape, array.dtype.name, storage=CONSTANT, at=self.constants.number(array))

    def step(self, kind: str, values: Sequence[Value] = (), /, **fields: Value | int | None) -> None:
        """Add a step.

        Args:
            kind: as the library declares it.
            values: the list of further values it reads.
            fields: a value, a number, or None where a value may be absent.
        """
        self._steps.append(self._words(kind, [v.index for v in values], fields))
        self.owners.append(self.owner)

    def _words(self, kind: str, values: Sequence[int], fields: Mapping[str, Value | int | None]) -> list[int]:
        """Return the words of a step."""
        number, declared = step_fields()[kind]
        assert fields.keys() == {name for _, name in declared}, f"{kind}: {fields.keys() ^ {n for _, n in declared}}"
        given = (fields[name] for _, name in declared)
        words = [v.index if isinstance(v, Value) else -1 if v is None else int(v) for v in given]
        return [number, 2 + len(words) + len(values), *words, *values]

    def chain(self, made: Chain) -> None:
        """Add a chain, whose words are known when all steps are there."""
        self.chains[len(self._steps)] = made
        self._steps.append([])
        self.owners.append(self.owner)

    def fields(self, kind: str) -> dict[int, dict[str, int]]:
        """Return the fields of the steps of a kind, by their numbers."""
        number, declared = step_fields()[kind]
        names = [name for _, name in declared]
        return {i: dict(zip(names, w[2:], strict=False)) for i, w in enumerate(self._steps) if w and w[0] == number}

    def change(self, at: int, kind: str, values: Sequence[int], fields: Mapping[str, Value | int | None]) -> None:
        """Give the step at that number other fields and another list of values."""
        self._steps[at] = self._words(kind, values, fields)

    def drop(self, steps: Collection[int]) -> None:
        """Remove steps, by their numbers."""
        self._steps = [s for i, s in enumerate(self._steps) if i not in steps]
        self.owners[:] = [s for i, s in enumerate(self.owners) if i not in steps]

    def users(self) -> tuple[dict[int, set[int]], dict[int, int]]:
        """Return index of a value → the steps that read it, and → the last step that writes it."""
        fields = [declared for _, declared in step_fields().values()]
        read: dict[int, set[int]] = {}
        written: dict[int, int] = {}
        for i, words in enumerate(self._steps):
            declared = fields[words[0]] if words else ()
            end = 2 + len(declared)
            forms = [(form, w) for (form, _), w in zip(declared, words[2:end], strict=True)]
            forms += [("r", w) for w in words[end:]]
            if not words:
                forms = [*(("r", o.value) for o in self.chains[i].operands()), ("w", self.chains[i].y)]
            for form, value in forms:
                if form == "w":
                    written[value] = i
                elif form in "rm":
                    read.setdefault(value, set()).add(i)
        return read, written

    def copy(
        self,
        x: Value,
        y: Value,
        sizes: Sequence[int],
        from_: Sequence[int],
        to: Sequence[int] | None = None,
        at_x: int = 0,
        at_y: int = 0,
    ) -> None:
        """Add a strided copy.

        Args:
            x, y: from and to.
            sizes: of the part that is copied.
            from_, to: strides in elements; None: those of contiguous memory of these sizes.
            at_x, at_y: offsets in elements.
        """
        if to is None:
            to = Value(0, tuple(sizes), plain(len(sizes)), y.dtype).strides()
        rows = _merged(list(zip(sizes, from_, to, strict=True)))
        assert len(rows) <= MAX_RANK
        fields: dict[str, int] = {}
        for k, letter in enumerate("dxy"):
            fields |= {f"{letter}{i}": rows[i][k] if i < len(rows) else 0 for i in range(MAX_RANK)}
        self.step("copy", x=x, y=y, size=x.itemsize, rank=len(rows), offset_x=at_x, offset_y=at_y, **fields)

    def in_order(self, x: Value, order: Sequence[int]) -> Value:
        """Return ``x`` in that order of dimensions, copied at most once."""
        if x.is_in(order):
            return Value(x.index, x.shape, tuple(order), x.dtype)
        key = x, tuple(order)  # reshaped values share an index
        if key not in self._reordered:
            y = self._reordered[key] = self.value(x.shape, x.dtype, order)
            x_strides = x.strides()
            self.copy(x, y, y.physical, [x_strides[d] for d in y.order])
        return self._reordered[key]

    def once(self, key: tuple[object, ...], make: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        """Return the values that ``make`` adds steps for; they are made at the first request of that key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def plain(self, x: Value) -> Value:
        """Return ``x`` as numpy would lay it out."""
        return self.in_order(x, plain(len(x.shape)))

    def outputs(self, values: Sequence[Value]) -> None:
        """Make these values the outputs of the plan, plain and each in memory of its own."""
        taken: set[int] = set()
        for i, x in enumerate(values):
            x = self.plain(x)
            if self._values[x.index][0] == WORKSPACE and x.index not in taken:
                self._values[x.index][:2] = OUTPUT, i
            else:
                y = self.value(x.shape, x.dtype, storage=OUTPUT, at=i)
                self.copy(x, y, [x.size], [1], [1])
            taken.add(x.index)

    def storage(self, index: int) -> tuple[int, int]:
        """Return where the memory of a value is, and the number of its constant, input or output."""
        return self._values[index][0], self._values[index][1]

    def index_at(self, step: int) -> int:
        """Return the index in a ``call`` step."""
        return self._steps[step][3]

    def words(self) -> Array:
        """Return the plan as the library reads it: int64."""
        words = [MAGIC, len(self._values), len(self._steps)]
        for part in (*self._values, *self._steps):
            words += part
        return np.array(words, np.int64)
