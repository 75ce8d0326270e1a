"""The fault matrix: everything that goes wrong around a load or a save, case by case.

Each case does its damage in a folder of its own, has a process of its own load or save, and says what came of it. The
tests (test_matrix.py) run the quick ones, ``benchmarks/faults.py`` all of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.runtime.faults.base import Case, Result
from tests.runtime.faults.cpus import emulated, limited, simulated
from tests.runtime.faults.engines import broken, dying, missing, skewed
from tests.runtime.faults.files import cut, flipped, no_file
from tests.runtime.faults.kills import loads, saves
from tests.runtime.faults.room import full

GROUPS = (
    simulated, limited, emulated, dying, broken, skewed, missing, no_file, cut, flipped, saves, loads, full,
)  # fmt: skip


def cases() -> list[Case]:
    """All of them."""
    return [case for group in GROUPS for case in group()]


def run(case: Case) -> Result:
    """One case, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return case.run(Path(folder))
        except OSError as error:
            return Result("", 0, skipped=str(error))
