"""A number of threads for one call, which leaves the rest of the process unchanged."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Let torch's operators use so many threads in this block, in the calling thread only; None changes nothing.

    Example:
        >>> before = torch.get_num_threads()
        >>> with thread_count(3):
        ...     torch.get_num_threads()
        3
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    change = _setter()
    try:
        change(threads)
        yield
    finally:
        change(before)


@cache
def _setter() -> Callable[[int], object]:
    """Return OpenMP's own function, where it can be reached through torch's library.

    ``torch.set_num_threads`` also sets the number that new threads start with, which would keep the number of whatever
    call was running at that moment; and it empties oneDNN's caches.
    """
    try:
        change = ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (AttributeError, OSError):
        return torch.set_num_threads
    change.argtypes, change.restype = [ctypes.c_int], None
    before = torch.get_num_threads()
    change(before + 1)
    reached = torch.get_num_threads() == before + 1
    change(before)
    return change if reached else torch.set_num_threads
