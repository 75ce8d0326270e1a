"""The table of measured models in the guide is that of the results."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guide_has_every_result_and_no_integer_differs() -> None:
    lines = (ROOT / "benchmarks" / "results" / "migration.jsonl").read_text(encoding="utf-8").splitlines()
    rows = list({row["model"]: row for row in map(json.loads, lines)}.values())
    page = (ROOT / "docs" / "tutorials" / "migrate.md").read_text(encoding="utf-8")
    assert rows and all("| " + " | ".join(map(str, row.values())) + " |" in page for row in rows)
    assert {row["source"][0] for row in rows} == set("abcdefg")
    assert all(row["mismatches"] == 0 for row in rows)
