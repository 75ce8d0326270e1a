"""The pages in docs/lint say what the rules say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intact8.diagnose.lint import load
from intact8.diagnose.lint.documentation import FAMILIES, pages, write

FOLDER = Path(__file__).parents[3] / "docs" / "lint"


def test_every_rule_has_a_page_and_every_page_is_fresh() -> None:
    wanted = pages()
    assert {p.name for p in FOLDER.glob("*.md")} == set(wanted)
    stale = [name for name, text in wanted.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m intact8.diagnose.lint.documentation docs/lint"


@pytest.mark.parametrize("id", load())
def test_a_page_says_what_and_why_and_what_to_do(id: str) -> None:
    rule = load()[id]
    text = pages()[f"{id}.md"]
    assert rule.summary in text and rule.remedy in text
    assert len(rule.text.splitlines()) >= 3, "say why it matters"
    assert id[:3] in FAMILIES and f"[{id}]({id}.md)" in pages()["index.md"]


def test_links_lead_to_files() -> None:
    for name, text in pages().items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (FOLDER / target).exists(), (name, target)


def test_pages_of_rules_that_are_gone_go(tmp_path: Path) -> None:
    (tmp_path / "IQ999.md").write_text("old")
    write(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == set(pages())
