"""A cache of what runners prepare per shape of their inputs: plans, compiled models, sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from intact8.engines.fork_safety import follow, leak
from intact8.machine import trim_behind
from intact8.program.spill import evict

V = TypeVar("V")


class PreparedCache(Generic[V]):
    """A least-recently-used cache whose values are made once however many threads ask for them. Thread-safe.

    One value is made at a time; a thread that asks for another that exists does not wait for it.

    Args:
        most: number of values that are kept.
        size: bytes of the program they are made of; decides whether freed memory is given back behind each.

    Example:
        >>> squares: PreparedCache[int] = PreparedCache(2, 0)
        >>> [squares.get(n, lambda n=n: n * n) for n in (1, 2, 1, 3)]
        [1, 4, 1, 9]
        >>> list(squares)
        [1, 3]
    """

    def __init__(self, most: int, size: int) -> None:
        self._most, self._size = most, size
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock, self._making = threading.Lock(), threading.Lock()
        follow(self)

    def after_fork(self) -> None:
        """Make new locks, since the threads that held the old ones may be gone."""
        self._lock, self._making = threading.Lock(), threading.Lock()

    def leak(self) -> None:
        """Empty the cache without destroying its values: see :func:`intact8.engines.fork_safety.leak`."""
        leak(self._values)
        self._values = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of ``key``, made where there is none; nothing is kept if ``make`` raises."""
        found = self._find(key)
        if found is not None:
            return found[0]
        with self._making:
            found = self._find(key)
            if found is not None:
                return found[0]
            value = make()
            with self._lock:
                self._values[key] = value
                if len(self._values) > self._most:
                    self._values.popitem(last=False)
        release_memory(self._size)
        return value

    def forget(self, key: Hashable) -> None:
        """Drop the value of ``key``."""
        with self._lock:
            self._values.pop(key, None)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys, the one used last at the end."""
        with self._lock:
            return iter(list(self._values))

    def _find(self, key: Hashable) -> tuple[V] | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return (self._values[key],)


def release_memory(size: int) -> None:
    """Give memory back to the system: weights that nothing reads now, and freed memory.

    Preparing leaves twice the program's size behind, and glibc would keep it for allocations that never come. Looking
    through all that a process has freed takes milliseconds, so nothing is done for a small program.

    Args:
        size: bytes of the program that was prepared.
    """
    evict()
    trim_behind(size)
