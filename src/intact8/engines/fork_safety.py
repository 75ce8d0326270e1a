"""Runners in a process that was forked after they were made, as gunicorn's --preload and multiprocessing's fork do.

A forked child has one thread: those of the libraries are gone, though the libraries still count on them, and locks that
others held stay locked. Waiting for either would never end.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Follower(Protocol):
    """What is told about a fork."""

    def after_fork(self) -> None:
        """In the child, before anything else runs there."""
        ...


class _Forks:
    """This process's place among its parents.

    Attributes:
        parent: the thread that forked, which goes on in the child; None in a process that was not forked.
        worker: takes calls for it, where one was needed.
    """

    def __init__(self) -> None:
        self.followers: WeakSet[Follower] = WeakSet()
        self.parent: int | None = None
        self.worker: ThreadPoolExecutor | None = None
        self.starting = threading.Lock()

    def in_child(self) -> None:
        """Free the locks, and tell the followers."""
        self.parent, self.worker, self.starting = threading.get_ident(), None, threading.Lock()
        for follower in list(self.followers):
            follower.after_fork()


_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forks.in_child)


def follow(follower: Follower) -> None:
    """Call ``follower.after_fork()`` in every forked child, for as long as it lives."""
    _forks.followers.add(follower)


def leak(value: object) -> None:
    """Never destroy ``value``: in a forked child its destructor would wait for threads that are not there."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def in_unforked_thread(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, called in a thread that knows nothing of threads the parent had.

    OpenMP keeps its threads per thread that calls it. The one that forked would wait for those of its parent; every
    other one, and all threads of a process that was not forked, make the call themselves.

    Example:
        >>> in_unforked_thread(lambda: 1 + 1)
        2
    """
    if _forks.parent != threading.get_ident():
        return call()
    with _forks.starting:
        if _forks.worker is None:
            _forks.worker = ThreadPoolExecutor(1, "intact8-after-fork")
    return _forks.worker.submit(call).result()
