"""The table of all kinds for people, made from their declarations: docs/opset.md."""

from __future__ import annotations

from collections.abc import Mapping

from . import KINDS
from .kind import Kind

HEAD = """# The opset

Every kind of operation a program can hold. This page is made from the declarations in `intact8.opset`
(`python -m intact8.opset > docs/opset.md`); a test compares the two.

Notation: `q` integers, `z` zero point, `s` scale, `R` rounding half to even (which meets no tie but in `quantize`),
`M = a/b` with odd `b`. Activations are uint8 with one scale and zero point per tensor; `lo` and `hi`
(0 ≤ lo ≤ hi ≤ 255) are the clamp of the operation, activation included. All sums are exact integers. `fl` is one IEEE
float32 operation. Names with a question mark may be absent.

"""

HEADER = "| kind | meaning | takes and gives | attributes | arrays | since |\n|---|---|---|---|---|---|\n"

DOMAINS = {
    "integer": "Integers: the same bits on every engine, with a certificate",
    "quantize": "Floats to integers",
    "dequantize": "Integers to floats",
    "dynamic": "Float32 results that are the same bits on every engine",
    "any": "Moves: values of any dtype, scale and zero point unchanged",
    "float": "Float islands: engines may round differently",
}


def markdown() -> str:
    """Return the page, in Markdown.

    Example:
        >>> markdown().splitlines()[0]
        '# The opset'
    """
    parts = [HEAD]
    for domain, title in DOMAINS.items():
        parts += [
            f"## {title}\n\n",
            "| kind | meaning | takes and gives | attributes | arrays | since |\n|---|---|---|---|---|---|\n",
        ]
        parts += [_row(kind) for kind in KINDS.values() if kind.domain == domain]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _row(kind: Kind) -> str:
    low, high = kind.inputs
    count = str(low) if low == high else f"{low} to {high}"
    types = "; ".join(dict.fromkeys(map(str, kind.types)))
    arrays = {role: dtype or "any" for role, dtype in kind.arrays.items()}
    maybe = {role: dtype or "any" for role, dtype in kind.optional_arrays.items()}
    cells = (
        f"`{kind.name}`",
        kind.formula,
        f"{count}: {types}",
        _names(dict.fromkeys(kind.attrs, ""), dict.fromkeys(kind.optional, "")),
        _names(arrays, maybe),
        str(kind.since),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _names(required: Mapping[str, str], optional: Mapping[str, str]) -> str:
    names = [f"`{name}`{f' {more}' if more else ''}" for name, more in required.items()]
    return ", ".join([*names, *(f"`{name}`?{f' {more}' if more else ''}" for name, more in optional.items())])
