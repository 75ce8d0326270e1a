"""Runners in a process that was forked after they were made, as gunicorn's --preload and multiprocessing's fork do.

A forked child has one thread. The threads of the libraries are gone, although the libraries still count on them, and
locks that other threads held stay locked; waiting for either would never end.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


class Follower(Protocol):
    """An object that is told about a fork."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""
        ...


class _Forks:
    """State of this process in respect of forks.

    Attributes:
        parent: the thread that forked, which goes on in the child; None in a process that was not forked.
        worker: a thread that takes calls for it, once one was needed.
    """

    def __init__(self) -> None:
        self.followers: WeakSet[Follower] = WeakSet()
        self.parent: int | None = None
        self.worker: ThreadPoolExecutor | None = None
        self.starting = threading.Lock()

    def in_child(self) -> None:
        """Make new locks, and tell the followers."""
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
    """Return what ``call`` returns, made in a thread that did not fork.

    OpenMP keeps its threads per calling thread. The thread that forked would wait for those of its parent; every other
    thread, and every thread of a process that was not forked, makes the call itself.

    Example:
        >>> in_unforked_thread(lambda: 1 + 1)
        2
    """
    if _forks.parent != threading.get_ident():
        return call()
    with _forks.starting:
        if _forks.worker is None:
            from concurrent.futures import ThreadPoolExecutor  # ten milliseconds of every load, for forked children

            _forks.worker = ThreadPoolExecutor(1, "intact8-after-fork")
    return _forks.worker.submit(call).result()
