"""Numbers that a model keeps in buffers: sizes that its code computes from them are known while it is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes


class Numbers:
    """What :func:`known_numbers` yields.

    Attributes:
        some: whether there are any.
        changed: when it has ended, whether the code wrote to one of them.
    """

    some = changed = False


@contextmanager
def known_numbers(model: nn.Module) -> Iterator[Numbers]:
    """Let integer buffers of no dimension that are in no state dict (strides, paddings) be numbers in this block.

    torch.export makes an input of every buffer, whose values no size can depend on.
    """
    numbers = Numbers()
    found = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name in getattr(module, "_non_persistent_buffers_set", ()) and _is_number(buffer)
    ]
    if not found:
        yield numbers
        return
    numbers.some = True
    order = {id(module): (module, list(module._buffers)) for module, *_ in found}
    for module, name, _, copy in found:
        del module._buffers[name]
        vars(module)[name] = copy
    try:
        with _KnownNumbers([copy for *_, copy in found]):
            yield numbers
    finally:
        for module, name, buffer, copy in found:
            numbers.changed |= vars(module).pop(name, None) is not copy or not torch.equal(copy, buffer)
            module._buffers[name] = buffer
        for module, names in order.values():
            for name in names:
                module._buffers[name] = module._buffers.pop(name)


def _is_number(buffer: Tensor) -> bool:
    if buffer.dim() or buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        return False
    return buffer.device.type == "cpu"  # elsewhere reading it would wait for the device


class _KnownNumbers(TorchFunctionMode):
    """What is computed from these tensors alone is computed with their values, and any other operation gets numbers."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {id(t): t for t in known}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = _leaves((args, kwargs))
        known = [leaf for leaf in leaves if self._knows(leaf)]
        if not known:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(known) == len(tensors) and not any(isinstance(leaf, torch.SymInt) for leaf in leaves):
            with _disable_current_modes():
                result = func(*args, **kwargs)
            self._known.update(
                (id(leaf), leaf) for leaf in _leaves(result) if isinstance(leaf, Tensor) and not leaf.dim()
            )
            return result
        values, named = map_aggregate((tuple(args), kwargs), self._number)
        if leaves[0] is known[0] and getattr(Tensor, getattr(func, "__name__", ""), None) is func:
            values = torch.full((), values[0], dtype=known[0].dtype), *values[1:]  # a method of that tensor
        return func(*values, **named)

    def _knows(self, x: Any) -> bool:
        return self._known.get(id(x)) is x and isinstance(x, Tensor)

    def _number(self, x: Any) -> Any:
        """Return the number in a known tensor, and anything else as it is."""
        if not self._knows(x):
            return x
        with _disable_current_modes():
            return x.item()


def _leaves(x: Any) -> list[Any]:
    """Return what tuples, lists, dicts and slices hold."""
    found: list[Any] = []
    map_aggregate(x, found.append)
    return found
