"""What a file says of how it was made, as far as it has the form that writers give it: nothing else checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def well_formed(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same without entries of another form than reports and lint rules read; what no one reads stays.

    Example:
        >>> well_formed({"machine": "x86_64", "calibration": {"samples": 64, "warnings": 3}, "float_share": []})
        {'machine': 'x86_64', 'calibration': {'samples': 64}}
    """
    return {key: kept for key, value in provenance.items() if (kept := _entry(key, value)) is not None}


def _entry(key: str, value: Any) -> Any:
    if key == "calibration":
        return _calibration(value) if isinstance(value, dict) else None
    if key == "lost":
        fits = _texts(value, "node", "op", "module") and _numbers(value, "before", "after")
    elif key == "outputs":
        fits = isinstance(value, list) and all(map(_output, value))
    elif key == "arguments":
        fits = isinstance(value, dict) and isinstance(value.get("fixed"), dict) and _names(value.get("order"))
    elif key == "float_share":
        fits = _number(value)
    elif key == "float_reason":
        fits = isinstance(value, str)
    else:
        fits = True
    return value if fits else None


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _calibration(found: dict[str, Any]) -> dict[str, Any]:
    kept = dict(found)
    for key in ("samples", "batches"):
        if key in kept and not _number(kept[key]):
            del kept[key]
    warnings = kept.get("warnings", [])
    if not _names(warnings):
        del kept["warnings"]
    if "points" in kept:
        points = kept["points"] if isinstance(kept["points"], dict) else {}
        kept["points"] = {name: point for name, point in points.items() if _range(point)}
    return kept


def _output(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    return "plain" not in row or (_texts(row, "name") and _numbers(row, "sqnr") and _number_or_none(row["plain"]))


def _range(point: Any) -> bool:
    return isinstance(point, dict) and all(_number_or_none(point.get(end)) for end in ("minimum", "maximum"))


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and all(_number(value.get(key)) for key in keys)


def _texts(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in keys)
