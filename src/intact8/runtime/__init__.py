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

from .facts import Facts
from .info import Info, Skipped
from .load import LoadedProgram, load
from .preflight import Row, preflight

__all__ = ["Facts", "Info", "LoadedProgram", "Row", "Skipped", "load", "preflight"]
