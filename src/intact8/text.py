"""Text from files, paths and models, made inert before it is shown.

A name in a file may hold anything: sequences that move a terminal's cursor or set its title, marks that turn the order
of letters around, ends of lines that make a log say what nobody logged. What Python does not call printable is shown as
its escape instead, as ``repr`` would.
"""

from __future__ import annotations

import math
import re
from typing import Any


def printable(text: str) -> str:
    """Return the text with everything but printable characters and spaces written as escapes.

    Example:
        >>> print(printable("net\\x1b[2J\\nerror: no"))
        net\\x1b[2J\\nerror: no
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return the same line by line, for what is shown as a paragraph of its own, and may have several."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def finite(value: Any) -> Any:
    """Return nested values with None in the place of NaN and infinite numbers, which JSON does not have.

    Example:
        >>> finite({"value": math.nan, "rows": [1.5, -math.inf]})
        {'value': None, 'rows': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def one_line(text: str) -> str:
    """Return the same on one line: ends of lines, with the spaces around them, become a space. For messages of
    libraries."""
    return text if text.isprintable() else printable(re.sub(r"\s*[\r\n]\s*", " ", text).strip())
