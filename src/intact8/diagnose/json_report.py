"""Reports that become JSON, and the same reports again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from intact8.text import finite

T = TypeVar("T")


class JsonReport:
    """Base of reports that are frozen dataclasses of numbers, text, tuples, mappings and further dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values that JSON can hold."""
        values: dict[str, Any] = json.loads(self.to_json())
        return values

    def to_json(self) -> str:
        """Return the report as JSON text; NaN and infinite numbers are null."""
        return json.dumps(finite(asdict(self)), allow_nan=False)  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Return the report that :meth:`to_dict` wrote (or ``json.loads`` of :meth:`to_json`)."""
        report: T = _restored(cls, values)
        return report


def _restored(kind: Any, value: Any) -> Any:
    """Return a value of the annotated type ``kind`` from what JSON made of it."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        return kind(**{name: _restored(hints[name], entry) for name, entry in value.items()})
    if isinstance(value, list):
        inner = get_args(kind)
        variadic = inner[1:] == (Ellipsis,)
        return tuple(_restored(inner[0 if variadic else i], entry) for i, entry in enumerate(value))
    dataclasses = [inner for inner in get_args(kind) if is_dataclass(inner)]  # of "X | None"
    return value if value is None or not dataclasses else _restored(dataclasses[0], value)
