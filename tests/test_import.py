from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import intact8


def run_python(code: str) -> list[str]:
    """The words ``code`` prints in a fresh interpreter that imports the same intact8 as this one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(intact8.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_is_quick_and_brings_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import intact8; t = time.perf_counter() - t; "
        "print(t, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds = []
    for _ in range(3):
        out = run_python(code)
        assert out[1:] == ["False", "False"]
        seconds.append(float(out[0]))
    assert min(seconds) < 0.05


@pytest.mark.parametrize("name", intact8.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(intact8, name).__doc__
    assert name in dir(intact8)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = intact8.quantise


def test_programs_load_and_run_without_torch() -> None:
    code = "import intact8.program.file, intact8.engines, intact8.engines.reference, sys; print('torch' in sys.modules)"
    assert run_python(code) == ["False"]
