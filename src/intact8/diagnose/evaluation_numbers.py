"""Numbers that verbs of diagnosis are given."""

from __future__ import annotations

import math
import numbers
from typing import Any

from intact8.errors import InputError


def require_number(name: str, given: Any, least: int, where: str, kind: type = numbers.Integral) -> None:
    """Raise InputError where an argument is no finite number of that kind, or less than ``least``.

    Example:
        >>> require_number("batch_size", 8, 1, "report")
        >>> require_number("seconds", math.nan, 0, "report", numbers.Real)
        Traceback (most recent call last):
        ...
        intact8.errors.InputError: report: seconds is nan. Remedy: give a number of 0 or more
    """
    if not isinstance(given, kind) or not least <= float(given) < math.inf:  # type: ignore[arg-type]
        what = "an integer" if kind is numbers.Integral else "a number"
        raise InputError(f"{name} is {given!r:.40}", where=where, remedy=f"give {what} of {least} or more")
