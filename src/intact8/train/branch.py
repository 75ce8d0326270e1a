"""A module that holds others under names that are a user's."""

from __future__ import annotations

from torch import nn

from intact8.text import printable


class Branch(nn.Module):
    """A module whose ``repr`` shows the names of its parts as text, whatever characters they are of."""

    def __repr__(self) -> str:
        parts = [f"({printable(name)}): {part!r}".replace("\n", "\n  ") for name, part in self._modules.items()]
        inside = "".join(f"\n  {part}" for part in parts)
        return f"{type(self).__name__}({inside}{chr(10) if inside else ''})"
