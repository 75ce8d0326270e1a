"""The compiled kernels (``intact8.engines.kernels``) in torch's threads, and sizes of tensors as they take them."""

from __future__ import annotations

import ctypes
from functools import cache
from types import ModuleType

import torch

from intact8.engines import kernels as native
from intact8.errors import EngineError

THREADS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


@cache
def load() -> ModuleType | None:
    """Return the compiled kernels, sharing torch's threads; None where they were not built."""
    library = native.load()
    if library is None:
        return None
    try:
        openmp = ctypes.CDLL(torch._C.__file__)
        addresses = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value or 0 for name in THREADS]
    except (AttributeError, OSError):
        return library  # torch has other threads, so the kernels use one
    library.use_threads(*addresses)
    return library


def sizes(x: torch.Tensor, dtype: torch.dtype, *others: torch.Tensor) -> list[int]:
    """Return the bytes of tensors, which must all have this dtype.

    Raises:
        EngineError: one has another dtype; the plan should not have let it through.
    """
    for tensor in (x, *others):
        if tensor.dtype is not dtype:
            raise _refusal(tensor, dtype)
    return [x.nbytes, *(other.nbytes for other in others)]


def reach(x: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the bytes from the first element of a tensor, whatever its strides, to the end of its memory.

    Raises:
        EngineError: as :func:`sizes`.
    """
    if x.dtype is not dtype:
        raise _refusal(x, dtype)
    return int(x.untyped_storage().nbytes() - x.storage_offset() * x.element_size())


def _refusal(x: torch.Tensor, dtype: torch.dtype) -> EngineError:
    return EngineError(
        f"a compiled kernel for {dtype} was given {x.dtype}", remedy="run with engine='reference', and report this"
    )
