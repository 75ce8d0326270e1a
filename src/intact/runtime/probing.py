"""Whether a child process has to try an engine before this one does, and what it found, now or earlier."""

from __future__ import annotations

from pathlib import Path

from intact.engines.memory import predicted, seconds
from intact.program.program import Program

from . import cache
from .facts import Facts
from .isolate import Outcome, run_probe

GIB = 1 << 30

SMALL = GIB // 4
"""Bytes up to which the reference runs here without having run in a child."""

SHARE = 4
"""So much shorter than the time limit its golden vectors must be, by an estimate that is long already."""


def probed(
    path: Path, program: Program, digest: str, engine: str, threads: int | None, mode: str, time_limit: float,
    facts: Facts, batch: int = 1,
) -> tuple[Outcome | None, str]:  # fmt: skip
    """What a child process found about the engine, now or earlier, and how it is known; None where none was asked.

    Args:
        path, program, digest: the file, and what it holds.
        engine, threads, time_limit, batch: as given to :func:`intact.runtime.load`.
        mode: its ``probe``.
        facts: about this machine.
    """
    if mode == "never":
        return None, "switched off: probe='never'"
    if engine == "reference" and is_small(program, time_limit, facts):
        return None, "not needed: numpy is all it runs"
    tried = engine if batch == 1 else f"{engine} at batch {batch}"
    name = cache.key(program, digest, tried, threads, facts)
    if mode == "first":
        known = _recall(name)
        if known is not None:
            return known, "remembered"
    # One process probes, the others wait for what it finds.
    with cache.lock(name, 2 * time_limit):
        if mode == "first":
            known = _recall(name)
            if known is not None:
                return known, "remembered"
        outcome = run_probe(
            path, digest, engine, threads, memory=memory_limit(program, facts, engine), seconds=time_limit,
            every=mode == "always", batch=batch,
        )  # fmt: skip
        if not outcome.lasting:
            return outcome, outcome.verdict
        problem = cache.remember(name, outcome.to_json())
        return outcome, f"passed, but it cannot be remembered: {problem}" if problem else "passed"


def is_small(program: Program, time_limit: float, facts: Facts) -> bool:
    """Whether numpy can be let run the golden vectors here: no memory and no time to speak of are predicted."""
    room = SMALL if facts.memory is None else min(SMALL, facts.memory // 4)
    samples = 1 if program.golden is None else max(len(program.golden.samples), 1)
    return predicted(program, "reference") <= room and samples * seconds(program) * SHARE <= time_limit


def _recall(name: str) -> Outcome | None:
    known = cache.recall(name)
    return None if known is None else Outcome.from_json(known)


def memory_limit(program: Program, facts: Facts, engine: str) -> int:
    """Bytes a probe may take: generous, but never what would bring the machine down."""
    generous = max(4 * GIB, 4 * predicted(program, engine) + 2 * GIB)
    return generous if facts.memory is None else min(generous, max(facts.memory, GIB // 4))


__all__ = ["is_small", "memory_limit", "probed"]
