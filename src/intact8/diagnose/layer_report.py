"""What reports of one row per layer have in common: rows by name, plain values, and how they are shown."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from intact8.display import Grid
from intact8.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


class Row(Protocol):
    """A layer by its name and the names it has swallowed."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Row)


class Rows(Generic[R]):
    """Base of the reports, which are frozen dataclasses with the field ``rows``."""

    rows: tuple[R, ...]
    found: ClassVar[str] = "found"
    """What was done to a layer that has a row."""

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> R:
        """The row of that name, or of the operation that has swallowed what bore it (``bn1``, say).

        Raises:
            InputError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        for row in self.rows:
            if name in row.source:
                return row
        raise InputError(
            f"no layer {name!r} was {self.found}", remedy="choose from " + ", ".join(row.name for row in self.rows[:8])
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values that JSON can hold."""
        values: dict[str, Any] = json.loads(self.to_json())
        return values

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @abstractmethod
    def grid(self) -> Grid:
        """The table that is shown."""

    def __rich__(self) -> Table:
        return self.grid().__rich__()

    def _repr_html_(self) -> str:
        return self.grid().to_html()
