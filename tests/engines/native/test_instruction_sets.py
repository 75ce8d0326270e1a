"""Every instruction set that this CPU has computes the reference's integers; each runs in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("intact8.engines.native._library")
ARM = platform.machine() in ("aarch64", "arm64")
SETS = ["plain", "neon", "neon_dot", "neon_i8mm"] if ARM else ["plain", "avx2", "avx_vnni", "avx512_vnni", "amx"]
ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = {"random_convolutions": "60", "random_float_results": "40"}


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_random_convolutions(script: str, isa: str) -> None:
    """Convolutions of all geometries and linear layers, with everything that may follow them."""
    environment = {**os.environ, "INTACT8_ISA": isa, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tests.engines.native.{script}", SCRIPTS[script], "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stdout + done.stderr
    if not done.stdout.startswith(f"{isa}:"):
        pytest.skip(f"this CPU lacks {isa}")
