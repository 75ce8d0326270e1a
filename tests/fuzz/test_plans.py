"""Hostile plans of the native engine, under sanitizers. ``python -m tests.fuzz.plans`` runs millions of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import plans

pytest.importorskip("intact8.engines.native._library")


def test_hostile_plans_are_refused_or_sound(tmp_path: Path) -> None:
    driver = plans.compile_driver(tmp_path, "address")
    if driver is None:
        pytest.skip("no compiler with AddressSanitizer")
    kinds = plans.write_seeds(tmp_path / "seeds", 1, 120)
    assert len(kinds) > 5
    counts, errors = plans.fuzz(driver, tmp_path / "seeds", 0, 10_000)
    assert not counts["faults"], errors
    assert counts["ran"] > 1_500
    assert counts["refused"] > 1_500
