"""Every rule of placement on both sides of its condition, with all that placement decides written out.

The graphs and what becomes of them are in ``placements.txt``. After an intended change
``python -m tests.placement.cases`` writes it anew; each line that differs is a decision that changed.
"""

from __future__ import annotations

import pytest
from tests.placement.cases import answer, read

CASES = read()


@pytest.mark.parametrize("title", CASES)
def test_placement(title: str) -> None:
    lines, recipe, expected = CASES[title]
    assert answer(lines, recipe) == expected


def test_no_graph_comes_twice() -> None:
    assert len({(*lines, recipe) for lines, recipe, _ in CASES.values()}) == len(CASES)
