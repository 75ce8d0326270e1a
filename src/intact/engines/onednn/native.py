"""Where the passes of ``native/passes.c`` are, if the package was built with a C compiler.

Without them torch's own operations compute the same bits, one pass over memory each.
"""

from __future__ import annotations

import ctypes
from functools import cache
from types import ModuleType

import torch

THREADS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


@cache
def load() -> ModuleType | None:
    """The compiled passes, sharing torch's threads; None where they were not built."""
    try:
        from . import _native
    except ImportError:
        return None
    try:
        openmp = ctypes.CDLL(torch._C.__file__)
        addresses = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value or 0 for name in THREADS]
    except (AttributeError, OSError):
        return _native  # torch has other threads: these passes use one
    _native.use_threads(*addresses)
    return _native
