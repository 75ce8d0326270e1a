"""The mutation run's own question, which every process of a test asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource")


def test_a_process_that_may_write_no_byte_says_which_fault_it_asked_for(tmp_path: Path) -> None:
    """Probes may not: a test that starts one would fail without any fault, and be left out of the run."""
    from benchmarks.mutation import QUESTION

    source = tmp_path / "workspace" / "src"
    source.mkdir(parents=True)
    (source / "_planted.py").write_text(QUESTION)
    (tmp_path / "asked").mkdir()
    (tmp_path / "now").write_text("5")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); from _planted import planted; "
    code = limit + "print(planted(3), planted(5), planted(3))"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=source, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]
    assert sorted(path.name for path in (tmp_path / "asked").iterdir()) == ["3", "5"]
