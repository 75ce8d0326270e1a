"""A module that holds others under names that are a user's."""

from __future__ import annotations

from typing import Any

from torch import nn

from intact8.errors import StateError
from intact8.text import printable


class Branch(nn.Module):
    """A module whose ``repr`` shows the names of its parts as text, whatever characters they are of.

    Its parts stay: a simulation computes with their tensors, not with what stands in their place later.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_another(name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_another(name, None)
        super().__delattr__(name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a part."""
        self._refuse_another(name, module)
        super().add_module(name, module)

    def _refuse_another(self, name: str, value: Any) -> None:
        part = self.__dict__.get("_modules", {}).get(name)
        if part is not None and part is not value:
            raise StateError(
                "a module of a simulation is replaced or removed",
                where=name,
                why="a simulation computes what was captured, and would go on to do so without the new one",
                remedy="do that to the model, before intact8.prepare; other weights are loaded by load_state_dict",
            )

    def __repr__(self) -> str:
        parts = [f"({printable(name)}): {part!r}".replace("\n", "\n  ") for name, part in self._modules.items()]
        inside = "".join(f"\n  {part}" for part in parts)
        return f"{type(self).__name__}({inside}{chr(10) if inside else ''})"
