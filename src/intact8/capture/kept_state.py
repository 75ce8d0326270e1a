"""What modules keep in attributes that are neither parameters nor buffers, from one call to the next."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from intact8.errors import CaptureError

OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has."""

SAME = 1e-5
"""Largest difference of an output, relative to its norm, of a model that is called again."""


class Attributes:
    """The attributes of a model's modules at one time: what they are bound to, and what lists and dicts hold."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found = {
            module: {name: (value, _copy(value)) for name, value in vars(module).items() if name not in OWN}
            for module in model.modules()
        }

    def changed(self) -> list[tuple[str, nn.Module, str]]:
        """Return the path, the module and the name of every attribute that is bound to or holds something else now."""
        return [
            (path, module, name)
            for path, module in self._model.named_modules()
            if module in self._found
            for name in {**vars(module), **self._found[module]}
            if name not in OWN and not self._is_as_before(module, name)
        ]

    def restore(self) -> None:
        """Bind all attributes to what they were bound to, and give lists and dicts what they held."""
        for _, module, name in self.changed():
            if name not in self._found[module]:
                vars(module).pop(name, None)
                continue
            value, held = self._found[module][name]
            if type(value) is list:
                value[:] = held
            elif type(value) is dict:
                value.clear()
                value.update(held)
            vars(module)[name] = value

    def _is_as_before(self, module: nn.Module, name: str) -> bool:
        if name not in self._found[module] or name not in vars(module):
            return False
        value, held = self._found[module][name]
        now = vars(module)[name]
        if now is not value:
            return type(now) is type(value) and isinstance(now, (bool, int, float, str)) and now == value
        if type(value) is list:
            return len(value) == len(held) and all(one is other for one, other in zip(value, held, strict=True))
        if type(value) is dict:
            return value.keys() == held.keys() and all(value[key] is held[key] for key in held)
        return True


class BySize(dict[Any, Any]):
    """A dict that takes sizes that change for keys, which are no numbers: what is kept under one is made in the call.

    Example:
        >>> tables = BySize({6: "six"})
        >>> 6 in tables, tables[6], tables.get(7)
        (True, 'six', None)
    """

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__(given)
        self._made: list[tuple[torch.SymInt, Any]] = []

    def _found(self, key: torch.SymInt) -> list[Any]:
        return [value for size, value in self._made if size.node.expr == key.node.expr]

    def __contains__(self, key: object) -> bool:
        return bool(self._found(key)) if isinstance(key, torch.SymInt) else super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, torch.SymInt):
            return super().__getitem__(key)
        if found := self._found(key):
            return found[-1]
        raise KeyError(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, torch.SymInt):
            self._made.append((key, value))
        else:
            super().__setitem__(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is kept under a key, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return what is kept under a key, or keep the default there."""
        if key not in self:
            self[key] = default
        return self[key]


def by_size(given: dict[Any, Any]) -> bool:
    """Return whether a dict is empty or its keys may be sizes."""
    return all(type(key) is int for key in given)


def _copy(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict) else None


def refuse_state(model: nn.Module, before: Attributes, call: Callable[[], Any]) -> None:
    """Refuse a model whose results depend on what earlier calls left in attributes.

    Args:
        model: was called once.
        before: its attributes before that.
        call: calls it again, with the same inputs.

    Raises:
        CaptureError: names the module and the attribute.
    """
    changed = before.changed()
    if not changed:
        return
    before.restore()
    first = pytree.tree_leaves(call())
    second = pytree.tree_leaves(call())
    same = len(first) == len(second) and all(_is_same(one, other) for one, other in zip(first, second, strict=True))
    before.restore()
    if same:
        return
    path, module, name = changed[0]
    raise CaptureError(
        f"{name} is changed by every call, and what the model gives depends on it",
        where=f"{path or 'the model itself'} ({type(module).__name__})",
        why="a program gives the same result whenever it is given the same input",
        remedy="take what is kept as an input and return it, as a recurrent layer does its state",
    )


@contextmanager
def caches_emptied(model: nn.Module) -> Iterator[None]:
    """Empty, before and after, what ``functools.lru_cache`` holds for the classes of a model and their files.

    A table of an earlier call would become a constant of the graph, and later calls would be given the tensors without
    values of which graphs are made.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    files = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "builtins")}
    places = [*(kind for kind in kinds if kind.__module__ in files), *(sys.modules.get(file) for file in files)]
    held = [getattr(value, "__func__", value) for place in places if place for value in list(vars(place).values())]
    caches = [value for value in held if isinstance(value, functools._lru_cache_wrapper) and value.__module__ in files]
    for cache in caches:
        cache.cache_clear()
    try:
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def _is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return isinstance(one, Tensor) is isinstance(other, Tensor)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = torch.isfinite(one) & torch.isfinite(other)
    a, b = one[finite].double(), other[finite].double()
    return float((a - b).norm()) <= SAME * float(b.norm())
