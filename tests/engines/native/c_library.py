"""Builds the C library and programs that use it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLASSIFY = ROOT / "examples" / "c" / "classify.c"
CC = shutil.which("gcc") or shutil.which("cc")
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off"]


def build(folder: Path, *programs: Path) -> None:
    """Build the library, quickly and without a warning, and programs, in a folder."""
    engine = [p for p in sorted((ROOT / "native" / "engine").glob("*.c")) if p.name != "module.c"]
    own = sorted((ROOT / "native" / "c_api").glob("*.c"))
    command = [str(CC), *STRICT, "-O0", "-fPIC", "-fvisibility=hidden", "-shared", "-o", str(folder / "libintact8.so")]
    subprocess.run([*command, *map(str, own + engine), "-lpthread", "-lm"], check=True)
    for source in programs:
        link = [f"-I{ROOT / 'native' / 'c_api'}", f"-L{folder}", "-lintact8", f"-Wl,-rpath,{folder}"]
        subprocess.run([str(CC), *STRICT, "-o", str(folder / source.stem), str(source), *link], check=True)
