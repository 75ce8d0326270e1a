"""Hostile plans of the native engine, under sanitizers: compiling takes the time, running thousands a second or two.

``python -m tests.fuzz.plans`` runs millions of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.native.c_library import plan_driver
from tests.fuzz import plans

pytest.importorskip("intact8.engines.native._library")


def test_hostile_plans_are_refused_or_sound(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    hostile(plan_driver(tmp_path_factory), tmp_path, 20_000)


@pytest.mark.long
def test_many_hostile_plans_are_refused_or_sound_under_every_check(tmp_path: Path) -> None:
    hostile(plans.compile_driver(tmp_path, "address"), tmp_path, 200_000)


def hostile(driver: Path | None, folder: Path, count: int) -> None:
    """Run so many mutated plans."""
    if driver is None:
        pytest.skip("no compiler with AddressSanitizer")
    kinds = plans.write_seeds(folder / "seeds", 1, 120)
    assert len(kinds) > 5
    counts, errors = plans.fuzz(driver, folder / "seeds", 0, count)
    assert not counts["faults"], errors
    assert counts["ran"] > 0.15 * count
    assert counts["refused"] > 0.15 * count
