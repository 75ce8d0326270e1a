"""The compiled passes (``intact.engines.native``) in torch's threads."""

from __future__ import annotations

import ctypes
from functools import cache
from types import ModuleType

import torch

from .. import native

THREADS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


@cache
def load() -> ModuleType | None:
    """The compiled passes, sharing torch's threads; None where they were not built."""
    library = native.load()
    if library is None:
        return None
    try:
        openmp = ctypes.CDLL(torch._C.__file__)
        addresses = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value or 0 for name in THREADS]
    except (AttributeError, OSError):
        return library  # torch has other threads: these passes use one
    library.use_threads(*addresses)
    return library
