"""The C sources compile without warnings."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[2] / "native").rglob("*.c"))
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion", "-Werror")


# clang finds all of these warnings before it makes code, gcc does not.
@pytest.mark.parametrize(("compiler", "part"), [("gcc", "-c"), ("clang", "-fsyntax-only")], ids=["gcc", "clang"])
def test_no_warnings(compiler: str, part: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [compiler, part, *FLAGS, include, *map(str, SOURCES)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
