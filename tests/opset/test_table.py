"""The page of all kinds, and the schema of files, say what the declarations say."""

from __future__ import annotations

from pathlib import Path

from intact8.opset import KINDS
from intact8.opset.table import DOMAINS, markdown
from intact8.program.schema import schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "opset.md"


def test_the_page_is_the_one_made_from_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "python -m intact8.opset > docs/opset.md"


def test_every_kind_is_on_the_page_and_in_the_schema() -> None:
    assert {kind.domain for kind in KINDS.values()} == set(DOMAINS)
    assert all(f"| `{name}` |" in markdown() for name in KINDS)
    assert schema()["$defs"]["op"]["properties"]["kind"]["enum"] == list(KINDS)
