"""Every rule finds its fault in a model that has it, keeps quiet about one that has not, and has its page."""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import intact8
from intact8.diagnose.lint import LintReport, load

from . import torch_ao_cases  # noqa: F401 - adds to the table
from .cases import CLEAN, FAULTY, Case

DOCS = Path(__file__).parents[3] / "docs"
RULES = load()


def each(table: dict[str, list[Case]]) -> Any:
    cases = [
        pytest.param(id, case, id=f"{id}-{case.__name__}") for id, found in sorted(table.items()) for case in found
    ]
    return pytest.mark.parametrize(("id", "case"), cases)


@functools.cache
def lint(case: Case) -> LintReport:
    """The report of all rules; many rules share a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, given = case()
        return intact8.lint(x, **given)


@each(FAULTY)
def test_the_fault_is_found(id: str, case: Case) -> None:
    report = lint(case)
    found = [f for f in report if f.id == id]
    assert found, report.skipped.get(id, report.ids)
    for finding in found:
        assert finding.severity in ("error", "warning", "note")
        assert finding.message and not finding.message.endswith(".")
        assert finding.remedy and not finding.remedy.endswith(".")


@each(CLEAN)
def test_nothing_is_found_where_nothing_is_wrong(id: str, case: Case) -> None:
    report = lint(case)
    assert id in report.checked, report.skipped
    assert [str(f) for f in report if f.id == id] == []


@pytest.mark.parametrize("id", RULES)
def test_every_rule_is_covered(id: str) -> None:
    rule = RULES[id]
    assert FAULTY.get(id), "no model with the fault"
    assert CLEAN.get(id), "no model without it"
    assert re.fullmatch(r"IQ\d{3}", id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.summary.endswith(".") and rule.remedy and rule.text


def test_names_are_unique_and_no_table_has_unknown_rules() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert {*FAULTY, *CLEAN} <= set(RULES)


PUBLISHED = {1: range(1, 10), 2: range(1, 7), 3: range(1, 12), 4: [*range(1, 9), *range(51, 55)], 5: range(1, 11),
             6: range(1, 7), 7: range(1, 11)}  # fmt: skip


def test_no_published_rule_is_gone() -> None:
    """A project that selects or ignores a rule by its id must not fail with the next version."""
    published = {f"IQ{family}{number:02}" for family, numbers in PUBLISHED.items() for number in numbers}
    assert published <= set(RULES) and len(published) == 64


def test_a_symmetric_scheme_is_one_note() -> None:
    from intact8 import recipes

    from .networks import calibrated

    (finding,) = (f for f in intact8.lint(calibrated(recipes.symmetric())) if f.id == "IQ404")
    assert finding.severity == "note" and len(finding.data["points"]) == 3
