"""What runners make per shape of their inputs and keep: plans, compiled models, sessions."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from intact8.engines.fork_safety import follow, leak
from intact8.program.spill import evict

V = TypeVar("V")


class PreparedCache(Generic[V]):
    """The values last used, each made once however many threads ask for it. Safe to use from several threads.

    One value is made at a time; who asks for another that exists does not wait for it.

    Args:
        most: values kept; the one not used for longest goes first.

    Example:
        >>> squares: PreparedCache[int] = PreparedCache(2)
        >>> [squares.get(n, lambda n=n: n * n) for n in (1, 2, 1, 3)]
        [1, 4, 1, 9]
        >>> list(squares)
        [1, 3]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock, self._making = threading.Lock(), threading.Lock()
        follow(self)

    def after_fork(self) -> None:
        """Free the locks, which nobody may be left to give back."""
        self._lock, self._making = threading.Lock(), threading.Lock()

    def leak(self) -> None:
        """Keep nothing of what there is, and never destroy it: see :func:`intact8.engines.fork_safety.leak`."""
        leak(self._values)
        self._values = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of ``key``, made where there is none. What ``make`` raises is raised, and nothing is kept."""
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
        release_memory()
        return value

    def forget(self, key: Hashable) -> None:
        """Do not keep the value of ``key``."""
        with self._lock:
            self._values.pop(key, None)

    def __iter__(self) -> Iterator[Any]:
        """Keys of what is kept, the one used last at the end."""
        with self._lock:
            return iter(list(self._values))

    def _find(self, key: Hashable) -> tuple[V] | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return (self._values[key],)


def release_memory() -> None:
    """Give memory back to the system: of weights nobody reads now, and freed memory. Making a value leaves twice the
    program's size of that behind, and glibc would keep it for allocations that never come."""
    evict()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
