"""Documentation pages of the rules, one per id, made from the rules' docstrings.

    python -m intact8.diagnose.lint.documentation docs/lint

writes them. A test compares them with the pages in the repository, so that a rule has one source: its function.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from intact8.diagnose.lint.rule import Rule
from intact8.diagnose.lint.rules import load
from intact8.errors import InputError

FAMILIES = {
    "IQ1": "The float model",
    "IQ2": "Integer and float parts",
    "IQ3": "Calibration",
    "IQ4": "Ranges and weights",
    "IQ5": "Training",
    "IQ6": "Programs",
    "IQ7": "torch.ao",
}
"""First characters of an id → title."""

WRITTEN = "<!-- Written by python -m intact8.diagnose.lint.documentation docs/lint, from the rule's docstring. -->"


def page(rule: Rule) -> str:
    """Return the page of one rule, Markdown.

    Example:
        >>> page(load()["IQ303"]).splitlines()[2]
        '# IQ303 few-samples'
    """
    paragraphs = [
        WRITTEN,
        f"# {rule.id} {rule.name}",
        rule.text,
        f"**Remedy:** {rule.remedy}.",
        f"Severity: {rule.severity}. Looks at: {', '.join(rule.kinds)}.",
        f'Ignore it with `ignore = ["{rule.id}"]` under `[tool.intact8.lint]` in pyproject.toml. [All rules](index.md)',
    ]
    return "\n\n".join(paragraphs) + "\n"


def index(rules: Mapping[str, Rule]) -> str:
    """Return the page with the table of all rules."""
    lines = [WRITTEN, "", "# Lint rules", "", "How to run them: [diagnosis](../diagnosis.md).", ""]
    for prefix, title in FAMILIES.items():
        lines += [f"## {prefix}xx {title}", "", "| rule | severity | what |", "|---|---|---|"]
        for id, rule in rules.items():
            if id.startswith(prefix):
                lines.append(f"| [{id}]({id}.md) {rule.name} | {rule.severity} | {rule.summary} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return file name → content of every page, the index included."""
    rules = load()
    return {"index.md": index(rules), **{f"{id}.md": page(rule) for id, rule in rules.items()}}


def write(folder: Path) -> None:
    """Write all pages, and remove those of rules that do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise InputError("expected one folder", remedy="python -m intact8.diagnose.lint.documentation docs/lint")
    write(Path(sys.argv[1]))
