"""Loading a program where it is deployed, without torch and without risk to the process.

Example:
    >>> import intact8.runtime
    >>> intact8.runtime.load("no/such/file")
    Traceback (most recent call last):
    intact8.errors.ProgramError: no/such/file: cannot read the file. Reason: No such file or directory. ...

In this order: the file's bytes, sizes first; its signature, if a key is given; the specification and the certificates;
the preflight, from facts about the machine; the probe, in a child process; the golden vectors, here. Only what has
passed one step goes to the next, and an engine's library is not imported here before it has survived in the child.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .facts import Facts
    from .info import Info, Skipped
    from .load import LoadedProgram, load
    from .preflight import Row, preflight

_HOMES = {
    "Facts": "facts",
    "Info": "info",
    "LoadedProgram": "load",
    "Row": "preflight",
    "Skipped": "info",
    "load": "load",
    "preflight": "preflight",
}


class _Runtime(ModuleType):
    """This package. Submodules have the names of the functions ``load`` and ``preflight``, which stay what is seen."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, getattr(value, name) if name in _HOMES and isinstance(value, ModuleType) else value)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'intact8.runtime' has no attribute {name!r}")
    value = getattr(import_module(f"intact8.runtime.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


sys.modules[__name__].__class__ = _Runtime

__all__ = ["Facts", "Info", "LoadedProgram", "Row", "Skipped", "load", "preflight"]
