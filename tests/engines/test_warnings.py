"""The C sources compile without warnings."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.engines.native.c_library import library

NATIVE = Path(__file__).resolve().parents[2] / "native"
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion", "-Werror")


# clang finds all of these warnings before it makes code, gcc does not.
def test_no_warnings_of_clang(tmp_path: Path) -> None:
    compile_without_warnings("clang", "-fsyntax-only", sorted(NATIVE.rglob("*.c")), tmp_path)


def test_no_warnings_of_gcc(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library is made with the same flags; Python's module is compiled here."""
    compile_without_warnings("gcc", "-c", [NATIVE / "engine" / "module.c"], tmp_path)
    assert library(tmp_path_factory).is_dir()


def compile_without_warnings(compiler: str, part: str, sources: list[Path], folder: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [compiler, part, *FLAGS, include, *map(str, sources)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
