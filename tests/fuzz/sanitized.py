"""The extension built with AddressSanitizer and UndefinedBehaviorSanitizer, and a process that uses it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, flags: str) -> Path:
    """The extension, built with these compiler flags into ``folder`` and not into the source tree."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp", str(folder)]
    environment = os.environ | {"CFLAGS": flags, "LDFLAGS": flags}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return next(folder.glob("intact8/engines/native/_library*"))


def sanitized(command: list[str]) -> NoReturn:
    """Run ``command`` in place of this process, with a sanitized extension that it finds by FUZZ_EXTENSION."""
    folder = Path(tempfile.mkdtemp(prefix="sanitized"))
    extension = build(folder, "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all")
    compiler = os.environ.get("CC", "gcc")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "FUZZ_EXTENSION": str(extension), "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    }  # fmt: skip
    os.execve(command[0], command, environment)


def use(extension: Path) -> None:
    """Make this file the extension of this process, before anything asks for it."""
    name = "intact8.engines.native._library"
    spec = importlib.util.spec_from_file_location(name, extension)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
