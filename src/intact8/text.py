"""Text from files, paths and models, made inert before it is shown.

A name in a file may hold anything: sequences that move a terminal's cursor or set its title, marks that turn the order
of letters around, ends of lines that make a log say what nobody logged. What Python does not call printable is shown as
its escape instead, as ``repr`` would.
"""

from __future__ import annotations

import re


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


def one_line(text: str) -> str:
    """Return the same on one line: ends of lines, with the spaces around them, become a space. For messages of
    libraries."""
    return text if text.isprintable() else printable(re.sub(r"\s*[\r\n]\s*", " ", text).strip())
