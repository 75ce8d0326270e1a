"""The JSON schema of a program's document: what holds for every document (``schema.json``), and what every kind of
operation declares."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from typing import Any

from intact8.opset import KINDS, Kind


def schema() -> dict[str, Any]:
    """Return the schema of the JSON object in a file (draft 2020-12).

    ``python -m intact8.program.schema`` prints it.

    Example:
        >>> schema()["$defs"]["op"]["properties"]["kind"]["enum"][:3]
        ['quantize', 'dequantize', 'conv']
    """
    out: dict[str, Any] = json.loads(files("intact8.program").joinpath("schema.json").read_text(encoding="utf-8"))
    op = out["$defs"]["op"]
    op["properties"]["kind"] = {"enum": list(KINDS)}
    op["allOf"] = [
        {"if": {"properties": {"kind": {"const": kind.name}}}, "then": _operation(kind)} for kind in KINDS.values()
    ]
    return out


def _operation(kind: Kind) -> dict[str, Any]:
    """Return what operations of one kind look like."""
    low, high = kind.inputs
    attrs = {"required": list(kind.attrs), "propertyNames": {"enum": [*kind.attrs, *kind.optional]}}
    arrays = {
        "items": {"enum": [*kind.arrays, *kind.optional_arrays]},
        "allOf": [{"contains": {"const": role}} for role in kind.arrays],
    }
    return {
        "properties": {"inputs": {"minItems": low, "maxItems": high}, "attrs": attrs, "arrays": arrays},
        "required": [name for name, needed in (("attrs", kind.attrs), ("arrays", kind.arrays)) if needed],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1) + "\n")
