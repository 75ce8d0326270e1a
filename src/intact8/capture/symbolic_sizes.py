"""Sizes that Python's own functions make numbers of while a model is exported, so that its batch size becomes fixed."""

from __future__ import annotations

import builtins
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._export.verifier import Verifier
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from intact8.capture.model_code import innermost_line, is_models

DIVIDE: Callable[[Any, Any], Any] = torch.SymInt.__truediv__


class _Kind(type):
    """What Python asks of ``int``, answered as ``int`` does."""

    def __call__(cls, *args: Any, **more: Any) -> Any:
        size: Any = args[0] if len(args) == 1 else None
        if isinstance(size, torch.SymInt):
            return size
        if isinstance(size, torch.SymFloat):
            return math.trunc(size)
        return int(*args, **more)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, int)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, int)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is int

    def __hash__(cls) -> int:
        return hash(int)


class _Integer(int, metaclass=_Kind):
    """``int`` that leaves symbols as they are."""


def _divided(size: Any, number: Any) -> Any:
    """Return the quotient of a size and a number, a size where it comes out even: ``64 * s / 64.0`` is s."""
    if isinstance(number, (int, float)) and number and float(number).is_integer():
        quotient = size.node.expr / int(number)
        if all(c.is_Integer for c in quotient.as_coefficients_dict().values()):
            return size // int(number)
    return DIVIDE(size, number)


def _is_size(x: Any) -> bool:
    return isinstance(x, (torch.SymInt, torch.SymFloat))


def _root(x: Any, /) -> Any:
    return x**0.5


def _power(x: Any, y: Any, /) -> Any:
    return x**y


def _log(x: Any, base: Any = math.e, /) -> Any:
    return torch._sym_log2(x) / math.log2(base)  # type: ignore[attr-defined]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _root,
    "pow": _power,
    "log": _log,
    "log2": lambda x, /: _log(x, 2),
    "log1p": lambda x, /: _log(x + 1),
}
"""Functions of Python's module math, and how they are computed of a size and of other numbers."""

CHOICES: dict[str, Callable[[Any, Any], Any]] = {"max": torch.sym_max, "min": torch.sym_min}
"""Python's own functions that choose one of several numbers, and those of two of which one is a size."""


def _allowed(verifier: Verifier) -> tuple[type[Any], ...]:
    """Return the types of operators of an exported graph: logarithms of sizes are functions of torch."""
    return (*ALLOWED(verifier), FunctionType)


ALLOWED: Callable[[Verifier], tuple[type[Any], ...]] = Verifier.allowed_op_types


@contextmanager
def functions_of_sizes() -> Iterator[None]:
    """Let ``math.sqrt(x.shape[1])``, powers and logarithms be functions of a size in this block, and not numbers; and
    ``max(x.shape[1] / 16, 1.0)``, of which torch.export takes what is larger in the example if it is no whole number.
    """
    thread = threading.get_ident()
    known = {name: getattr(math, name) for name in FUNCTIONS}
    choices = {name: getattr(builtins, name) for name in CHOICES}

    def of_size(name: str) -> Callable[..., Any]:
        def called(x: Any, /, *more: Any) -> Any:
            sizes = _is_size(x) and not any(map(_is_size, more)) and threading.get_ident() == thread
            return FUNCTIONS[name](x, *more) if sizes else known[name](x, *more)

        return called

    def of_several(name: str) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            sizes = len(args) > 1 and not more and any(map(_is_size, args)) and threading.get_ident() == thread
            return functools.reduce(CHOICES[name], args) if sizes else choices[name](*args, **more)

        return called

    for name in FUNCTIONS:
        setattr(math, name, of_size(name))
    for name in CHOICES:
        setattr(builtins, name, of_several(name))
    Verifier.allowed_op_types = _allowed  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Verifier.allowed_op_types = ALLOWED  # type: ignore[method-assign,assignment]
        for name, function in known.items():
            setattr(math, name, function)
        for name, function in choices.items():
            setattr(builtins, name, function)


class SymbolicSizes:
    """In its block ``len(x)`` is ``x.shape[0]``, also where that is a symbol, and ``int(size)`` in the model's files is
    the size, rounded where it is a fraction; a size divided by a number is one where it comes out even
    (``int(windows.shape[0] / (h * w / 8 / 8))``).

    Code that counts with sizes (``range(len(x))``) makes numbers of them, as without it. ``len`` is another in this
    thread only.

    Attributes:
        place: file and line of the model where a symbol became a number first; "" where that is not known.
    """

    place = ""

    def __init__(self, model: nn.Module) -> None:
        modules = {sys.modules.get(type(module).__module__) for module in model.modules()}
        files = [vars(module) for module in modules if is_models(getattr(module, "__file__", None) or "<")]
        self._files = [names for names in files if "int" not in names]

    def __enter__(self) -> SymbolicSizes:
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
        torch.SymInt.__truediv__ = _divided  # type: ignore[method-assign]
        for names in self._files:
            names["int"] = _Integer
        if self._replace is not None:
            ShapeEnv._set_replacement = replace  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: object) -> None:
        builtins.len = self._len
        torch.SymInt.__truediv__ = DIVIDE  # type: ignore[method-assign]
        for names in self._files:
            del names["int"]
        if self._replace is not None:
            ShapeEnv._set_replacement = self._replace  # type: ignore[method-assign]


__all__ = ["SymbolicSizes", "functions_of_sizes"]
