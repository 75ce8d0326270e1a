"""Builds the C library and programs that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from intact8.machine import cpu_features

ROOT = Path(__file__).parents[3]
CLASSIFY = ROOT / "examples" / "c" / "classify.c"
CC = shutil.which("gcc") or shutil.which("cc")
ENGINE = ROOT / "native" / "engine"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off")

SANITIZED = (
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-fno-sanitize=null,object-size",
    "-fsanitize-undefined-trap-on-error",
    "--param",
    "asan-instrumentation-with-call-threshold=0",
)
"""Flags of the library that is tested, where the compiler has them.

What the address sanitizer sees as well when it happens (null pointers and sizes of objects) is left out, a function is
called for every access, and undefined behaviour ends the process without a word: vector kernels are full of these
checks, and written out they take most of the compiler's time. ``python -m tests.fuzz.plans`` has them all, with words.
"""

OPTIONS = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096:exitcode=99"
"""``ASAN_OPTIONS`` of programs that use it."""


def library(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of libintact8.so and its objects, compiled once for a test run, without warnings, sanitized."""
    os.environ.setdefault("ASAN_OPTIONS", OPTIONS)
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "libintact8"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        made = folder / "libintact8.so"
        if not made.exists():
            engine = [p for p in sorted(ENGINE.glob("*.c")) if p.name != "module.c"]
            own = sorted((ROOT / "native" / "c_api").glob("*.c"))
            command = [str(CC), *STRICT, *checks(), "-O1", "-fPIC", "-fvisibility=hidden"]
            if "amx_int8" not in cpu_features():  # what cannot run here is compiled for its warnings alone
                for source in (p for p in engine if p.stem.endswith("_amx")):
                    subprocess.run([str(CC), *STRICT, "-O1", "-c", str(source), "-o", os.devnull], check=True)
                command.append("-DWITHOUT_AMX_KERNELS=1")
            subprocess.run([*command, "-c", *map(str, own + engine)], cwd=folder, check=True)
            objects = sorted(str(p) for p in folder.glob("*.o"))
            subprocess.run([*command, "-shared", "-o", str(made), *objects, "-lpthread", "-lm"], check=True)
    return folder


@cache
def checks() -> tuple[str, ...]:
    """Return ``SANITIZED``; nothing where the compiler cannot link it."""
    given = [str(CC), *SANITIZED, "-x", "c", "-", "-o", os.devnull]
    done = subprocess.run(given, input=b"int main(void) { return 0; }", capture_output=True, check=False)
    return SANITIZED if done.returncode == 0 else ()


def build(factory: pytest.TempPathFactory, folder: Path, *programs: Path) -> None:
    """Build programs that use the library, without a warning, in a folder."""
    made = library(factory)
    for source in programs:
        link = [f"-I{ROOT / 'native' / 'c_api'}", f"-L{made}", "-lintact8", f"-Wl,-rpath,{made}"]
        subprocess.run([str(CC), *STRICT, *checks(), "-o", str(folder / source.stem), str(source), *link], check=True)


def plan_driver(factory: pytest.TempPathFactory) -> Path | None:
    """Return what runs mutated plans, ``tests/fuzz/plan_fuzz.c`` with the library; None where there is no sanitizer."""
    if CC is None or not checks():
        return None
    made = library(factory)
    objects = [str(made / f"{p.stem}.o") for p in sorted(ENGINE.glob("*.c")) if p.name != "module.c"]
    command = [str(CC), *STRICT, *checks(), "-O1", f"-I{ENGINE}", str(ROOT / "tests" / "fuzz" / "plan_fuzz.c")]
    subprocess.run([*command, *objects, "-lpthread", "-lm", "-o", str(made / "plan_fuzz")], check=True)
    return made / "plan_fuzz"
