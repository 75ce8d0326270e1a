"""A pickle reader that executes nothing: it knows the names it is given, and makes plain values of everything else.

Python's own reader imports what a file names and calls it. This one has a table of names instead, each with a function
of this package that makes a value of the arguments; any other name is an error. Every opcode takes at least one byte
and, averaged over the file, constant time and memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from intact8.errors import InputError

Maker = Callable[[tuple[Any, ...]], Any]
"""Makes a value of the arguments of a call."""

LONGEST_LINE = 1024
"""Bytes of a number or name that is written as text."""

LONGEST_NUMBER = 64
"""Bytes of an integer."""

LARGEST_KEY = 2**31
"""Keys of dicts that are integers are smaller."""


class Name(NamedTuple):
    """A name the table knows, before it is called: a dtype, a class, a function."""

    text: str


class Object:
    """An object of a class that only the file knows: the name of the class and the state it was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None


class PickleError(Exception):
    """Why a pickle cannot be read; the reader of the file says where."""


MARK = object()


class PickleMachine:
    """Reads one pickle.

    Args:
        names: name → what a call of it makes; None for a name that is a value, never called.
        persistent: makes a value of a persistent id.
        objects: names that begin like this are classes whose instances become :class:`Object`; "" for none.
    """

    def __init__(self, names: Mapping[str, Maker | None], persistent: Callable[[Any], Any], objects: str = "") -> None:
        self.names, self.persistent, self.objects = names, persistent, objects

    def read(self, data: bytes | memoryview, start: int = 0) -> tuple[Any, int]:
        """Return the value of the pickle that begins at ``start``, and where it ends.

        Raises:
            PickleError: it is damaged, or names what the table does not know.
        """
        self.data, self.at = memoryview(data), start
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        while True:
            code = self._bytes(1)[0]
            if code == STOP:
                return self._pop(), self.at
            operation = OPCODES.get(code)
            if operation is None:
                raise PickleError(f"the opcode {code:#04x} at byte {self.at - 1} is not one that tensors need")
            operation(self)

    # --- bytes ---------------------------------------------------------------------------------------------------
    def _bytes(self, count: int) -> memoryview:
        if not 0 <= count <= len(self.data) - self.at:
            raise PickleError(f"it ends early, at byte {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        """Return a number in a form of the module struct."""
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def line(self) -> str:
        """Return the text up to the end of the line."""
        window = bytes(self.data[self.at : self.at + LONGEST_LINE])
        end = window.find(b"\n")
        if end < 0:
            raise PickleError(f"a line without end at byte {self.at}")
        self.at += end + 1
        return self._decoded(window[:end])

    def text(self, form: str) -> str:
        """Return text behind its length."""
        return self._decoded(bytes(self._bytes(self.number(form))))

    def blob(self, form: str) -> bytes:
        """Return bytes behind their length."""
        return bytes(self._bytes(self.number(form)))

    def long(self, form: str) -> int:
        """Return an integer behind its length in bytes."""
        count = self.number(form)
        if not 0 <= count <= LONGEST_NUMBER:
            raise PickleError(f"an integer of {count} bytes")
        return int.from_bytes(self._bytes(count), "little", signed=True)

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PickleError(f"text that is not UTF-8 at byte {self.at}") from error

    # --- the stack -----------------------------------------------------------------------------------------------
    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def _pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise PickleError(f"a value is missing at byte {self.at}")
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        """Return the values above the last mark, and take them and the mark away."""
        found: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is MARK:
                found.reverse()
                return found
            found.append(value)
        raise PickleError(f"a mark is missing at byte {self.at}")

    def drop(self) -> None:
        """Take the last value away, or the last mark."""
        if not self.stack:
            raise PickleError(f"a value is missing at byte {self.at}")
        self.stack.pop()

    def duplicate(self) -> None:
        """Put the last value on the stack once more."""
        value = self._pop()
        self.stack += [value, value]

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the last values."""
        values = [self._pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def put(self, key: int) -> None:
        """Remember the last value."""
        value = self._pop()
        self.memo[key] = value
        self.push(value)

    def get(self, key: int) -> None:
        """Put a remembered value on the stack."""
        if key not in self.memo:
            raise PickleError(f"value {key} is used before it is there")
        self.push(self.memo[key])

    def text_number(self) -> int:
        """Return an integer written as text."""
        line = self.line()
        try:
            return int(line.removesuffix("L")[:LONGEST_NUMBER])
        except ValueError as error:
            raise PickleError("a number that is none") from error

    # --- containers ----------------------------------------------------------------------------------------------
    def append(self, values: list[Any]) -> None:
        """Append values to the list below them."""
        into = self._pop()
        if not isinstance(into, list):
            raise PickleError("something is appended to what is not a list")
        into += values
        self.push(into)

    def set_items(self, values: list[Any]) -> None:
        """Enter keys and values in turn into the dict below them."""
        into = self._pop()
        if not isinstance(into, dict) or len(values) % 2:
            raise PickleError("an entry is made in what is not a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str) and not (type(key) is int and 0 <= key < LARGEST_KEY):
                raise PickleError(f"a key that is a {type(key).__name__}")
            into[key] = value
        self.push(into)

    def build(self) -> None:
        """Give an object its state; what a dict would get as attributes is left out."""
        state, made = self._pop(), self._pop()
        if isinstance(made, Object):
            made.state = state
        elif not isinstance(made, dict):
            raise PickleError(f"a {type(made).__name__} is given a state")
        self.push(made)

    # --- names ---------------------------------------------------------------------------------------------------
    def name(self, module: Any, name: Any) -> None:
        """Put a name on the stack that the table knows."""
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "?"
        if full not in self.names and not (self.objects and full.startswith(self.objects)):
            raise PickleError(f"it names {full[:200]}, which nothing here reads")
        self.push(Name(full))

    def call(self) -> None:
        """Make a value of a name and its arguments."""
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise PickleError("something is called that is not a name")
        if called.text not in self.names:
            self.push(Object(called.text))
            return
        make = self.names[called.text]
        if make is None:
            raise PickleError(f"{called.text} is called, which is a value")
        self.push(make(arguments))

    def persist(self) -> None:
        """Make a value of a persistent id."""
        self.push(self.persistent(self._pop()))


STOP = ord(".")

Operation = Callable[[PickleMachine], None]

OPCODES: dict[int, Operation] = {
    0x80: lambda m: m.number("<B"),  # PROTO
    0x95: lambda m: m.number("<Q"),  # FRAME
    ord("("): lambda m: m.push(MARK),
    ord("0"): PickleMachine.drop,
    ord("1"): lambda m: [*m.pop_marked()].clear(),
    ord("2"): PickleMachine.duplicate,
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(m.text_number()),
    ord("L"): lambda m: m.push(m.text_number()),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: m.push(m.long("<B")),
    0x8B: lambda m: m.push(m.long("<i")),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("X"): lambda m: m.push(m.text("<I")),
    0x8C: lambda m: m.push(m.text("<B")),
    0x8D: lambda m: m.push(m.text("<Q")),
    ord("T"): lambda m: m.push(m.blob("<i")),
    ord("U"): lambda m: m.push(m.blob("<B")),
    ord("B"): lambda m: m.push(m.blob("<I")),
    ord("C"): lambda m: m.push(m.blob("<B")),
    0x8E: lambda m: m.push(m.blob("<Q")),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("}"): lambda m: m.push({}),
    ord("t"): lambda m: m.push(tuple(m.pop_marked())),
    ord("l"): lambda m: m.push(m.pop_marked()),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("a"): lambda m: m.append([m._pop()]),
    ord("e"): lambda m: m.append(m.pop_marked()),
    ord("s"): lambda m: m.set_items([m._pop(), m._pop()][::-1]),
    ord("u"): lambda m: m.set_items(m.pop_marked()),
    ord("b"): PickleMachine.build,
    ord("c"): lambda m: m.name(m.line(), m.line()),
    0x93: lambda m: m.name(*[m._pop(), m._pop()][::-1]),
    ord("R"): PickleMachine.call,
    0x81: PickleMachine.call,
    ord("Q"): PickleMachine.persist,
    ord("p"): lambda m: m.put(m.text_number()),
    ord("q"): lambda m: m.put(m.number("<B")),
    ord("r"): lambda m: m.put(m.number("<I")),
    0x94: lambda m: m.put(len(m.memo)),
    ord("g"): lambda m: m.get(m.text_number()),
    ord("h"): lambda m: m.get(m.number("<B")),
    ord("j"): lambda m: m.get(m.number("<I")),
}
"""Opcode → what it does; those that import, call or build in other ways are not there."""


def refuse(where: str, error: PickleError) -> InputError:
    """Return the error for a file whose pickle cannot be read."""
    remedy = (
        "give a file that torch.save made of a state dict (tensors, numbers, texts, dicts and lists of them); a whole "
        "model: load it where its code is, and migrate the object"
    )
    return InputError("this checkpoint cannot be read", where=where, why=str(error), remedy=remedy)
