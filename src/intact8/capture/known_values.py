"""Values that are known while a model is exported: of buffers that hold one number, and of tensors made of numbers.

torch.export makes an input of every buffer, and knows no value of a tensor that is made in a call, whatever it is made
of; so no size, axis or path can depend on them. Checks of values that end in an error are left out with them.
"""

from __future__ import annotations

import dis
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

MADE: frozenset[Any] = frozenset({torch.arange, torch.linspace, torch.range, torch.tensor, torch.as_tensor})
"""Functions that make tensors of numbers which are not written to as a rule."""

MOST = 4096
"""Elements, at most, of a tensor whose values are kept."""

log = logging.getLogger(__name__)


class Numbers:
    """What :func:`known_numbers` yields.

    Attributes:
        some: whether there are any.
        changed: when it has ended, whether the code wrote to one of them.
        buffers: they.
    """

    some = changed = False

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []


@contextmanager
def known_numbers(model: nn.Module, flags: bool = False) -> Iterator[Numbers]:
    """Let integer buffers of no dimension that are in no state dict (strides, paddings) be numbers in this block.

    torch.export makes an input of every buffer, whose values no size can depend on.

    ``flags``: those in state dicts, too, and such of one element, as tell whether a layer has seen its first data.
    """
    numbers = Numbers()
    found = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
        and (flags or name in getattr(module, "_non_persistent_buffers_set", ()))
        and _is_number(buffer, flags)
    ]
    if not found:
        yield numbers
        return
    numbers.some, numbers.buffers = True, [buffer for _, _, buffer, _ in found]
    order = {id(module): (module, list(module._buffers)) for module, *_ in found}
    for module, name, _, copy in found:
        del module._buffers[name]
        vars(module)[name] = copy
    try:
        with KnownValues([copy for *_, copy in found]):
            yield numbers
    finally:
        for module, name, buffer, copy in found:
            numbers.changed |= vars(module).pop(name, None) is not copy or not torch.equal(copy, buffer)
            module._buffers[name] = buffer
        for module, names in order.values():
            for name in names:
                module._buffers[name] = module._buffers.pop(name)


def _is_number(buffer: Tensor, flags: bool) -> bool:
    if buffer.numel() != 1 or (buffer.dim() and not flags) or buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        return False
    return buffer.device.type == "cpu"  # elsewhere reading it would wait for the device


class KnownValues(TorchFunctionMode):
    """What is computed from known tensors alone is computed with their values; any other operation gets them as numbers
    where they have no dimension, and as constants.

    Args:
        known: tensors whose values are known.
        more: whether those are known, too, that functions of torch make of numbers (``torch.arange(1, x.dim())``); and
            whether ``assert`` of the values of others, and ``if`` in front of ``raise``, are taken to pass.
    """

    def __init__(self, known: Sequence[Tensor] = (), more: bool = False) -> None:
        super().__init__()
        self._known, self._more = {id(t): t for t in known}, more

    def __enter__(self) -> KnownValues:
        if self._more:
            torch.SymBool.__bool__ = _truth  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._more:
            torch.SymBool.__bool__ = TRUTH  # type: ignore[method-assign]

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = _leaves((args, kwargs))
        known = [leaf for leaf in leaves if self._knows(leaf)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        made = self._more and func in MADE and not tensors
        if (known or made) and len(known) == len(tensors) and not any(isinstance(x, torch.SymInt) for x in leaves):
            with _disable_current_modes():
                result = func(*args, **kwargs)
                if func is Tensor.__iter__:
                    result = list(result)
            self._known.update((id(x), x) for x in _leaves(result) if isinstance(x, Tensor) and x.numel() <= MOST)
            return iter(result) if func is Tensor.__iter__ else result
        if self._more and func is Tensor.__bool__ and (passing := passes_check(_asking())) is not None:
            return passing
        if self._more and func is torch._assert and tensors:
            return None
        if not known:
            return func(*args, **kwargs)
        values, named = map_aggregate((tuple(args), kwargs), self._number)
        if (
            leaves[0] is known[0]
            and not known[0].dim()
            and getattr(Tensor, getattr(func, "__name__", ""), None) is func
        ):
            values = torch.full((), values[0], dtype=known[0].dtype), *values[1:]  # a method of that tensor
        return func(*values, **named)

    def _knows(self, x: Any) -> bool:
        return self._known.get(id(x)) is x and isinstance(x, Tensor)

    def _number(self, x: Any) -> Any:
        """Return the number in a known tensor of no dimension, and anything else as it is."""
        if not self._knows(x) or x.dim():
            return x
        with _disable_current_modes():
            return x.item()


TRUTH: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__


def _truth(value: torch.SymBool) -> bool:
    """Return what torch knows of a comparison with ``x.item()``; where that is nothing, what passes a check."""
    try:
        return TRUTH(value)
    except GuardOnDataDependentSymNode:
        passing = passes_check(sys._getframe(1))
        if passing is None:
            raise
        return passing


def _asking() -> FrameType | None:
    """Return the frame of the model that called an operation which modes have passed on to each other."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame


def passes_check(frame: FrameType | None) -> bool | None:
    """Return the truth value with which the code of a frame goes on where it branches to an error in the other case.

    None where it does not branch now, both ways go on, or the code catches errors. An ``assert`` and an ``if`` that is
    followed by ``raise`` alone are such checks: a program is not asked for the error that its model would raise.
    """
    if frame is None or getattr(frame.f_code, "co_exceptiontable", None):
        return None
    steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in ("CACHE", "NOT_TAKEN")]
    if any(step.opname.startswith("SETUP_") for step in steps):  # so Python 3.10 marks code that catches errors
        return None
    at = next((i for i, step in enumerate(steps) if step.offset == frame.f_lasti), len(steps))
    if at < len(steps) and steps[at].opname == "TO_BOOL":
        at += 1
    if at + 1 >= len(steps) or not steps[at].opname.startswith("POP_JUMP"):
        return None
    jumps_if = "TRUE" in steps[at].opname
    there = next((i for i, step in enumerate(steps) if step.offset == steps[at].argval), len(steps))
    ends = _raises(steps[there:]), _raises(steps[at + 1 :])
    if ends[0] == ends[1]:
        return None
    log.info("a check of values is left out: %s:%s", frame.f_code.co_filename, frame.f_lineno)
    return jumps_if != ends[0]


def _raises(steps: Sequence[dis.Instruction]) -> bool:
    """Return whether instructions make an error, without a branch, and raise it."""
    for step in steps:
        if step.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in step.opname or step.opname.startswith(("RETURN", "FOR_ITER", "YIELD")):
            return False
    return False


def _leaves(x: Any) -> list[Any]:
    """Return what tuples, lists, dicts and slices hold."""
    found: list[Any] = []
    map_aggregate(x, found.append)
    return found
