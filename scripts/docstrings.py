"""Extension of mkdocstrings' reader: what docstrings of this project say becomes what MkDocs shows.

Roles such as ``:func:`intact8.verify``` become links, and the section "Example:" becomes one of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([\w.]+)`")
CODE = re.compile(r"``([^`]+)``")


def linked(text: str) -> str:
    """Return the text with roles as links to the page of that name, if it has one.

    Example:
        >>> linked("see :func:`intact8.verify`")
        'see <autoref optional identifier="intact8.verify"><code>intact8.verify</code></autoref>'
    """
    text = ROLE.sub(r'<autoref optional identifier="\1"><code>\1</code></autoref>', text)
    return CODE.sub(r"`\1`", text.replace("Example:\n", "Examples:\n"))


class Roles(griffe.Extension):
    """Rewrites every docstring once."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = linked(obj.docstring.value)
