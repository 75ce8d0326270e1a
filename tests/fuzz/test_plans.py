"""Hostile plans of the native engine, under sanitizers: compiling takes the time, running thousands a second or two.

``python -m tests.fuzz.plans`` runs millions of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import plans

pytest.importorskip("intact8.engines.native._library")


@pytest.mark.parametrize(("count", "quick"), [(20_000, True), pytest.param(200_000, False, marks=pytest.mark.long)])
def test_hostile_plans_are_refused_or_sound(tmp_path: Path, count: int, quick: bool) -> None:
    driver = plans.compile_driver(tmp_path, "address", quick)
    if driver is None:
        pytest.skip("no compiler with AddressSanitizer")
    kinds = plans.write_seeds(tmp_path / "seeds", 1, 120)
    assert len(kinds) > 5
    counts, errors = plans.fuzz(driver, tmp_path / "seeds", 0, count)
    assert not counts["faults"], errors
    assert counts["ran"] > 0.15 * count
    assert counts["refused"] > 0.15 * count
