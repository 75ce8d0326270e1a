"""CPUs that lack what a program or an engine needs: told to the preflight, switched off, and emulated."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.runtime.faults.base import Case, Loading, Result, in_environment, shared_load
from tests.runtime.faults.caller import Caller
from tests.runtime.faults.machines import MACHINES, needy, portable

LONG = 600.0
"""Seconds a probe may take where the CPU is emulated."""


def simulated() -> Iterator[Case]:
    """What other machines lack, told to the preflight."""
    for name, (program, engine, facts, words, _) in MACHINES.items():
        job = {"engine": engine, "facts": facts, "good": True}
        yield Case("another machine (simulated)", name, shared_load(Loading([words, engine], job=job, program=program)))


ISA = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
LOW = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
REAL = ("onednn", "onnxruntime", "openvino")


def limited() -> Iterator[Case]:
    """CPU features switched off for real, in the engines' libraries."""
    for which, levels in (("ONEDNN_MAX_CPU_ISA", ISA), ("ATEN_CPU_CAPABILITY", ("default", "avx2", "avx512"))):
        for level in levels:
            for engine in REAL:
                for need, program in (("", portable), (", needs VNNI", needy)):
                    if which.startswith("ATEN") and (engine != "onednn" or need):
                        continue
                    refused = bool(need) and level in LOW and engine != "onnxruntime"
                    words = ["AVX512-VNNI or AVX-VNNI", level] if refused else []
                    loading = Loading(words, "" if refused else "*", {"engine": engine}, program)
                    quick = level == "AVX2" and bool(need) and engine == "onednn"
                    yield Case("CPU features switched off", f"{which}={level}, {engine}{need}",
                               in_environment(loading, {which: level}), quick)  # fmt: skip


EMULATED = ("Nehalem", "SandyBridge", "Haswell")


def emulated() -> Iterator[Case]:
    """Older CPUs, by qemu's user mode, where /proc/cpuinfo still tells of the real one: the preflight is lied to."""
    for cpu in EMULATED:
        for engine in ("reference", *REAL):
            for need, program in (("", portable), (", needs VNNI", needy)):
                job = {"engine": engine, "time_limit": LONG}
                yield Case("older CPU, emulated by qemu", f"{cpu}, {engine}{need}",
                           _emulated(cpu, Loading([], "*", job, program)), False)  # fmt: skip


def _emulated(cpu: str, loading: Loading) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        qemu = shutil.which("qemu-x86_64")
        if qemu is None:
            raise OSError("qemu-x86_64 is not installed (Debian: qemu-user)")
        with tempfile.TemporaryDirectory() as place:
            # What the probe's child is started by: else the kernel would run it on the real CPU.
            python = Path(place, "python")
            python.write_text(f'#!/bin/sh\nexec {qemu} -cpu {cpu} {sys.executable} "$@"\n')
            python.chmod(0o755)
            process = Caller({"OPENBLAS_CORETYPE": None}, command=[str(python)], executable=str(python))
            try:
                return loading.check(process, folder)
            finally:
                process.close()

    return run
