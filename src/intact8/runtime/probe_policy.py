"""Decides whether a child process has to try an engine before this one does, and remembers what it found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from intact8.engines.memory import predicted, seconds
from intact8.program.file import identity, load
from intact8.program.program import Program
from intact8.runtime import cache
from intact8.runtime.facts import Facts
from intact8.runtime.probe_process import AT_SIZE, PASSED, Outcome, run_probe
from intact8.runtime.sizes import Range, Size

GIB = 1 << 30

SMALL = GIB // 4
"""Bytes up to which the reference runs here without having run in a child."""

SHARE = 4
"""The reference's golden vectors must take less than the time limit over this, by an estimate that is long already."""


@dataclass(frozen=True, eq=False, repr=False)
class Subject:
    """What is probed, and how.

    Attributes:
        path: path of the file.
        program: the program in the file.
        identity: that of the program in the file at ``path``.
        engine, threads: the engine that runs it, and its number of threads.
        mode: argument ``probe`` of :func:`intact8.runtime.load`.
        time_limit: seconds that a child may take.
        facts: facts about this machine.
    """

    path: Path
    program: Program
    identity: str
    engine: str
    threads: int | None
    mode: str
    time_limit: float
    facts: Facts

    def key(self, asked: Range | None = None) -> str:
        """Return the cache key of a range of sizes, or of the golden vectors."""
        tried = self.engine if asked is None else f"{self.engine} at {asked}"
        return cache.key(self.program, tried, self.threads, self.facts)


def probed(subject: Subject, ranges: Sequence[Range] = (), golden: bool = True) -> tuple[Outcome | None, str]:
    """Return what a child process found about the engine, now or earlier (None without one), and how it is known.

    Args:
        subject: program and engine.
        ranges: sizes that have to run, too.
        golden: whether the golden vectors have to run.
    """
    if subject.mode == "never":
        return None, "switched off: probe='never'"
    if subject.engine == "reference" and is_small(subject.program, subject.time_limit, subject.facts):
        return None, "not needed: numpy is all it runs"
    names: dict[Range | None, str] = {None: subject.key()} if golden else {}
    names |= {asked: subject.key(asked) for asked in ranges}
    known = _known(subject, names)
    if known is not None:
        return known, "remembered"
    # One process probes, the others wait for what it finds.
    with cache.lock(next(iter(names.values())), subject.time_limit / 2):
        known = _known(subject, names)
        if known is not None:
            return known, "remembered"
        missing = [asked for asked, name in names.items() if subject.mode == "always" or _recall(name) is None]
        outcome = _ask(subject, missing)
        if not outcome.lasting:
            return outcome, outcome.verdict
        problem = ""
        for asked in missing:
            if outcome.verdict == PASSED or (str(asked) in outcome.stage if _at_size(outcome) else asked is None):
                problem = cache.remember(names[asked], outcome.to_json())
        first = None if None in missing or not golden else _recall(names[None])
        told = f"passed, but it cannot be remembered: {problem}" if problem else "passed"
        return first if first is not None and outcome.verdict == PASSED else outcome, told


def _at_size(outcome: Outcome) -> bool:
    return outcome.stage.startswith(AT_SIZE)


def _known(subject: Subject, names: Mapping[Range | None, str]) -> Outcome | None:
    """Return the first remembered outcome if all are remembered, or one that did not pass."""
    if subject.mode != "first":
        return None
    found = [_recall(name) for name in names.values()]
    failed = next((outcome for outcome in found if outcome is not None and outcome.verdict != PASSED), None)
    return failed or (found[0] if found and None not in found else None)


def _ask(subject: Subject, missing: Sequence[Range | None]) -> Outcome:
    ranges = [asked for asked in missing if asked is not None]
    sizes = [{"range": str(asked), **size.to_json()} for asked in ranges for size in asked.runs]
    limit = memory_limit(subject.program, subject.facts, subject.engine, [s for asked in ranges for s in asked.runs])
    every, golden = subject.mode == "always", None in missing
    program = subject.path, subject.identity, subject.engine, subject.threads
    return run_probe(*program, memory=limit, seconds=subject.time_limit, every=every, golden=golden, sizes=sizes)


def is_small(program: Program, time_limit: float, facts: Facts) -> bool:
    """Return whether numpy may run the golden vectors here, because little memory and time are predicted."""
    room = SMALL if facts.memory is None else min(SMALL, facts.memory // 4)
    samples = 1 if program.golden is None else max(len(program.golden.samples), 1)
    return predicted(program, "reference") <= room and samples * seconds(program) * SHARE <= time_limit


def _recall(name: str) -> Outcome | None:
    known = cache.recall(name)
    return None if known is None else Outcome.from_json(known)


def memory_limit(program: Program, facts: Facts, engine: str, sizes: Sequence[Size] = ()) -> int:
    """Return the bytes that a probe may take: generous, but never what would bring the machine down."""
    needed = [predicted(program, engine, size.batch or 1, dict(size.named)) for size in sizes]
    generous = max(4 * GIB, 4 * max(needed, default=predicted(program, engine)) + 2 * GIB)
    return generous if facts.memory is None else min(generous, max(facts.memory, GIB // 4))


@contextmanager
def unchanged(subject: Subject, about: os.stat_result | None) -> Iterator[Subject]:
    """Yield the subject with its own file, or with a temporary copy where that has been replaced or removed.

    Args:
        subject: a subject loaded some time ago.
        about: status of the file at that time.
    """
    then, now = ((s.st_ino, s.st_size, s.st_mtime_ns) if s else None for s in (about, status(subject.path)))
    if then is not None and then == now:
        yield subject
        return
    with tempfile.TemporaryDirectory(prefix="intact8-") as folder:
        path = subject.program.save(Path(folder, "program.safetensors"))
        yield replace(subject, path=path, identity=identity(load(path)))


def status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None where there is none."""
    try:
        return path.stat()
    except OSError:
        return None
