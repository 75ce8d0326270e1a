"""``len(x)`` of a tensor while a model is exported: Python wants a number there, so that the batch size became one."""

from __future__ import annotations

import builtins
import sys
import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from intact8.capture.model_code import innermost_line


class SymbolicLen:
    """In its block ``len`` of a tensor whose first size is a symbol returns that, as ``x.shape[0]`` does.

    That is so in this thread. Code that counts with it (``range(len(x))``) makes a number of it, as before.

    Attributes:
        place: file and line of the model where a symbol became a number first; "" where that is not known.
    """

    place = ""

    def __enter__(self) -> SymbolicLen:
        known, thread = builtins.len, threading.get_ident()
        self._len, self._replace = known, getattr(ShapeEnv, "_set_replacement", None)

        def length(x: Any, /) -> Any:
            if type(x) is FakeTensor and threading.get_ident() == thread and x.dim():
                size = x.shape[0]
                return size if isinstance(size, torch.SymInt) else known(x)
            return known(x)

        def replace(env: ShapeEnv, symbol: Any, value: Any, *rest: Any, **more: Any) -> Any:
            if not self.place and getattr(value, "is_number", False):
                self.place = innermost_line(sys._getframe(1))
            return self._replace(env, symbol, value, *rest, **more)  # type: ignore[misc]

        builtins.len = length
        if self._replace is not None:
            ShapeEnv._set_replacement = replace  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: object) -> None:
        builtins.len = self._len
        if self._replace is not None:
            ShapeEnv._set_replacement = self._replace  # type: ignore[method-assign]


__all__ = ["SymbolicLen"]
