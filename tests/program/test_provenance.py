"""What a file says of its making is for people: whatever it is, nothing that reads it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.program.build import certified

from intact8.diagnose.lint import lint
from intact8.program.provenance import well_formed

ODD: list[Any] = [
    None, True, 1e308, "", [], [[]], {}, {"a": 1}, {"points": None}, {"points": []}, {"points": {"xq": 3}},
    {"points": {"xq": {"minimum": "a", "maximum": []}}}, {"warnings": 3}, {"warnings": [3]},
    {"samples": "x", "batches": []}, [{"plain": None}], [3],
]  # fmt: skip
KEYS = ("calibration", "lost", "outputs", "float_share", "float_reason", "equalized", "machine")
LOST = {"node": "a", "op": "b", "module": "", "before": 1.0, "after": 2.0}


@pytest.mark.parametrize("key", KEYS)
def test_lint_reads_any(key: str) -> None:
    for value in ODD:
        provenance = {"lost": LOST, "float_reason": "so", "float_share": 0.9, key: value}
        lint(replace(certified(), provenance=provenance))


def test_what_writers_write_stays() -> None:
    points = {"xq": {"minimum": -1.5, "maximum": None, "observer": "minmax"}}
    calibration = {"samples": 64, "batches": 4, "warnings": ["few"], "points": points, "more": [1]}
    outputs = [{"name": "y", "sqnr": 12.5, "plain": None}, {"name": "z"}]
    made = {"calibration": calibration, "outputs": outputs, "machine": "x86_64", "float_share": 0.5, "packages": {}}
    assert well_formed(made) == made


@pytest.mark.parametrize("end", ["minimum", "maximum"])
def test_a_range_with_an_end_that_is_no_number_goes(end: str) -> None:
    good = {"minimum": -1.0, "maximum": 2.0}
    made = {"calibration": {"points": {"a": {**good, end: "wide"}, "b": good}}}
    assert well_formed(made) == {"calibration": {"points": {"b": good}}}


@pytest.mark.parametrize("wrong", [{"node": 1}, {"module": None}, {"before": "1"}, {"after": True}], ids=str)
def test_what_was_lost_is_told_whole_or_not_at_all(wrong: dict[str, Any]) -> None:
    assert well_formed({"lost": LOST}) == {"lost": LOST}
    assert well_formed({"lost": LOST | wrong}) == {}


def test_one_malformed_output_and_none_is_told() -> None:
    good = {"name": "y", "sqnr": 12.5, "plain": None}
    assert well_formed({"outputs": [good, {**good, "name": 3}]}) == {}
