"""The quick part of the fault matrix; ``benchmarks/faults.py`` runs all of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.runtime.faults.base import Case, close, problem
from tests.runtime.faults.matrix import cases, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")


@pytest.fixture(scope="module", autouse=True)
def shared_process() -> Iterator[None]:
    yield
    close()


@pytest.mark.parametrize("case", [c for c in cases() if c.quick], ids=lambda c: f"{c.group}: {c.name}")
def test_the_calling_process_survives(case: Case) -> None:
    result = run(case)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.fine, problem(result)
