"""Builds the C library and programs that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[3]
CLASSIFY = ROOT / "examples" / "c" / "classify.c"
CC = shutil.which("gcc") or shutil.which("cc")
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off"]


def library(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of libintact8.so, compiled once for all processes of a test run, without warnings."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "libintact8"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        made = folder / "libintact8.so"
        if not made.exists():
            engine = [p for p in sorted((ROOT / "native" / "engine").glob("*.c")) if p.name != "module.c"]
            own = sorted((ROOT / "native" / "c_api").glob("*.c"))
            command = [str(CC), *STRICT, "-O1", "-fPIC", "-fvisibility=hidden", "-shared", "-o", str(made)]
            subprocess.run([*command, *map(str, own + engine), "-lpthread", "-lm"], check=True)
    return folder


def build(factory: pytest.TempPathFactory, folder: Path, *programs: Path) -> None:
    """Build programs that use the library, without a warning, in a folder."""
    made = library(factory)
    for source in programs:
        link = [f"-I{ROOT / 'native' / 'c_api'}", f"-L{made}", "-lintact8", f"-Wl,-rpath,{made}"]
        subprocess.run([str(CC), *STRICT, "-o", str(folder / source.stem), str(source), *link], check=True)
