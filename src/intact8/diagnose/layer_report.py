"""Base of reports that have one row per layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from intact8.diagnose.json_report import JsonReport
from intact8.display import Grid, Shown
from intact8.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


class Row(Protocol):
    """A layer by its name and the names of the operations fused into it."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Row)


class LayerReport(Shown, JsonReport, Generic[R]):
    """Base of frozen dataclasses with the field ``rows``; prints as a table with rich and in Jupyter."""

    rows: tuple[R, ...]
    verb: ClassVar[str]
    """What was done to every layer that has a row, in the past tense."""

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> R:
        """Return the row of that name, or of the operation into which that name was fused (``bn1``, say).

        Raises:
            InputError: no row has that name.
        """
        found = [row for row in self.rows if row.name == name] or [row for row in self.rows if name in row.source]
        if found:
            return found[0]
        names = ", ".join(row.name for row in self.rows[:8])
        raise InputError(f"no layer {name!r} was {self.verb}", remedy=f"choose from {names}")

    @abstractmethod
    def grid(self) -> Grid:
        """Return the report as a table."""

    def __rich__(self) -> Table:
        return self.grid().__rich__()

    def _repr_html_(self) -> str:
        return self.grid().to_html()
