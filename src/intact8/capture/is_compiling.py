"""What models get to hear that ask ``torch.compiler.is_compiling()`` or its like while they are exported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch._dynamo
from torch._dynamo.trace_rules import get_torch_obj_rule_map

QUESTIONS = ((torch.compiler, "is_compiling"), (torch.compiler, "is_exporting"), (torch._dynamo, "is_compiling"))
"""Modules, and the functions in them that tell what a model runs in."""


class Asked:
    """Whether code outside of torch has asked in any block of :func:`answered`: ``some``."""

    some = False


@contextmanager
def answered(asked: Asked, eager: bool) -> Iterator[None]:
    """Record whether a model asks in this block, and answer no where ``eager``, so that it does what it does in a call.

    Some models leave out, when they are compiled, what they need: a mask made where none is given, for example. torch
    itself, and other threads, get the answer that they would get without this block.
    """
    thread = threading.get_ident()
    get_torch_obj_rule_map()  # torch.compile looks these functions up once, and would remember those of this block

    def question(of_torch: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            asker = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            if asker == "torch" or threading.get_ident() != thread:
                return of_torch()
            asked.some = True
            return not eager and of_torch()

        return answer

    before = [(of, name, getattr(of, name)) for of, name in QUESTIONS if hasattr(of, name)]
    for of, name, function in before:
        setattr(of, name, question(function))
    try:
        yield
    finally:
        for of, name, function in before:
            setattr(of, name, function)
