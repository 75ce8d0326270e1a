"""``len(x)`` of a tensor while a model is exported: Python wants a number there, so that the batch size became one."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def symbolic_len() -> Iterator[None]:
    """Let ``len`` of a tensor whose first size is a symbol return that, as ``x.shape[0]`` does, in this thread.

    Code that counts with it (``range(len(x))``) makes a number of it, as before.
    """
    known, thread = builtins.len, threading.get_ident()

    def length(x: Any, /) -> Any:
        if type(x) is FakeTensor and threading.get_ident() == thread and x.dim():
            size = x.shape[0]
            return size if isinstance(size, torch.SymInt) else known(x)
        return known(x)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = known


__all__ = ["symbolic_len"]
