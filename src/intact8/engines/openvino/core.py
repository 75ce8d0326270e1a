"""OpenVINO's one object for reading and compiling models, made when first needed."""

from __future__ import annotations

from typing import Any

from intact8.engines.fork_safety import follow, leak
from intact8.errors import EngineError
from intact8.program.certify import EVALUATIONS

FORKED = "OpenVINO was used before this process was forked, and its threads stayed with the parent"
REMEDY = "load after the fork, start processes with spawn, or use another engine"

LARGEST_INPUT = EVALUATIONS["openvino"].largest_input or 0
"""Integers that int64 inputs may hold: float32 holds sums of three of them, too."""


class _Core:
    """The object, and whether it is the parent's.

    Attributes:
        made: the ``openvino.Core``; None where there is none yet.
        left: whether it was made before a fork. Another one would wait for the same threads.
    """

    def __init__(self) -> None:
        self.made: Any = None
        self.left = False
        follow(self)

    def after_fork(self) -> None:
        """Never use nor destroy what the parent made."""
        if self.made is not None:
            leak(self.made)
            self.left = True


_core = _Core()


def left_behind() -> bool:
    """Return whether OpenVINO cannot be used in this process any more."""
    return _core.left


def core() -> Any:
    """Return the ``openvino.Core`` of this process.

    Raises:
        EngineError: this process was forked after OpenVINO had been used.
    """
    if _core.left:
        raise EngineError("OpenVINO cannot run in a forked process", where="openvino", why=FORKED, remedy=REMEDY)
    if _core.made is None:
        import openvino

        _core.made = openvino.Core()
    return _core.made
