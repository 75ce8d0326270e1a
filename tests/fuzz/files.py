"""Mutated files of every release through all of loading, and files made to take memory: time, memory, soundness."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.run import Found, forked
from tests.runtime.hostile import HOSTILE
from tests.runtime.mutate import mutations
from tests.runtime.sound import accepted_is_sound

from intact8.errors import EngineError, ProgramError
from intact8.program.file import digest, load
from intact8.runtime import Facts
from intact8.runtime.load import Attempt, Opened, open_program

CHUNK = 500
"""Mutations of one file by one child."""

SLOW = 2.0
"""Seconds of CPU that no file may take."""

MULTIPLE, FIXED, SMALL = 50, 1 << 20, 4096
"""Reading takes at most MULTIPLE times the file's size and FIXED bytes; of files below SMALL no multiple is told."""

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def fuzz_files(seed: int, count: int, seconds: float = float("inf"), total: Found | None = None) -> Found:
    """Load ``count`` mutations of the files kept for every release, in turn, in forked children; add to ``total``."""
    total, began, done = total or Found(), time.monotonic(), 0
    sources = sorted(FIXTURES.glob("*/*.safetensors"))
    while done < count and time.monotonic() - began < seconds:
        number, size = seed + done // CHUNK, min(CHUNK, count - done)
        source = sources[number % len(sources)]
        found, status = forked(partial(mutated, source, number, size))
        total.add(found)
        if status:
            total.fault("death", source=source.name, seed=number, status=status)
        done += size
    return total


def mutated(source: Path, seed: int, count: int) -> Found:
    """In a child: the whole way of ``intact8.runtime.load`` on the reference engine."""
    found, original, facts = Found(), digest(load(source)), Facts.here()
    with TemporaryDirectory() as folder:
        path = Path(folder, "mutated")
        for i, data in enumerate(mutations(source.read_bytes(), seed, count)):
            path.write_bytes(data)
            found.counts["files"] += 1
            one(path, len(data), original, facts, found, {"source": source.name, "seed": seed, "mutation": i})
    return found


def one(path: Path, length: int, original: str, facts: Facts, found: Found, where: dict[str, object]) -> None:
    """One file: what became of it, how long that took and how much memory reading it took."""
    opened: Opened | None = None
    tracemalloc.start()
    began = time.process_time()
    try:
        opened = open_program(path)
    except ProgramError:
        found.counts["mutated file: refused"] += 1
    seconds, taken = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if opened is not None:
        try:
            accepted_is_sound(opened.program)
        except AssertionError as error:
            found.fault("accepted and unsound", **where, error=f"{error!s:.80}")
        began = time.process_time()
        try:
            Attempt(opened, None, "never", SLOW, facts).first(["reference"])
            same = digest(opened.program) == original
            found.counts[f"mutated file: accepted, {'as it was' if same else 'another program'}"] += 1
        except (EngineError, ProgramError):
            found.counts["mutated file: refused by preflight or golden vectors"] += 1
        seconds += time.process_time() - began
    found.most("seconds of a mutated file", seconds)
    if length >= SMALL:
        found.most("memory of a mutated file / its size", taken / length)
    if seconds > SLOW:
        found.fault("slow", **where, seconds=seconds)
    if taken > MULTIPLE * length + FIXED:
        found.fault("memory", **where, bytes=taken, of=length)


def fuzz_memory(size: int, total: Found | None = None) -> Found:
    """Load every file made to take memory, of ``size`` bytes, in a child of its own; add to ``total``."""
    total = total or Found()
    for name in HOSTILE:
        found, status = forked(partial(hostile, name, size))
        total.add(found)
        if status:
            total.fault("death", source=name, status=status)
    return total


def hostile(name: str, size: int) -> Found:
    """In a child: the resident memory that one such file takes beyond what the process has anyway."""
    found = Found()
    with TemporaryDirectory() as folder:
        path, small = Path(folder, "hostile"), Path(folder, "small")
        small.write_bytes(HOSTILE[name](1000))
        length = path.write_bytes(HOSTILE[name](size))
        for file in (small, path):  # the first one brings in what is imported late
            _forget_peak()
            before = _memory("VmRSS")
            try:
                load(file)
                found.fault("accepted and unsound", source=name)
            except ProgramError:
                found.counts["file made to take memory: refused"] += 1
        multiple = (_memory("VmHWM") - before) / length
    found.most("memory of a file made to take it / its size", multiple)
    if multiple > MULTIPLE:
        found.fault("memory", source=name, multiple=multiple)
    return found


def _forget_peak() -> None:
    """A forked child begins with the peak of its parent."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5")


def _memory(field: str) -> int:
    """VmRSS or VmHWM of this process in bytes; 0 where there is none."""
    status = Path("/proc/self/status")
    return int(status.read_text().split(f"{field}:")[1].split()[0]) * 1024 if status.exists() else 0


__all__ = ["fuzz_files", "fuzz_memory"]
