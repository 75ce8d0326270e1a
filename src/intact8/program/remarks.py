"""What does not stop a program from being used, but should be known about it."""

from __future__ import annotations

from intact8.text import printable

from .certify import uncertified
from .program import Program


def remarks(program: Program) -> tuple[str, ...]:
    """About its file (no checksum, an old signature), and the operations no certificate proves, in sentences.

    Example:
        >>> remarks(Program({}, (), (), ()))
        ()
    """
    found = uncertified(program)
    if not found:
        return program.remarks
    (op, reason), more = found[0], len(found) - 1
    others = f" and {more} other operation{'s' if more > 1 else ''}" if more else ""
    unproved = f"not proved exact, so that engines may differ: {op.name} ({op.kind}: {reason}){others}"
    return (*program.remarks, printable(unproved))
