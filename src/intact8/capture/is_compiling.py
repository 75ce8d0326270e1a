"""What models get to hear that ask ``torch.compiler.is_compiling()`` while they are exported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._dynamo.trace_rules import get_torch_obj_rule_map

QUESTIONS = ("is_compiling", "is_exporting")


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

    before = {name: getattr(torch.compiler, name) for name in QUESTIONS if hasattr(torch.compiler, name)}
    for name, function in before.items():
        setattr(torch.compiler, name, question(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch.compiler, name, function)
