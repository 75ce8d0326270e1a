"""Programs through checks, files and engines, in forked children whose deaths are counted."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.fuzz.calls import otherwise
from tests.fuzz.programs import NAMES, inputs_of, make
from tests.runtime.mutate import mutations

from intact8.engines import get_engine
from intact8.engines import prepared_cache as kept
from intact8.engines.binding import bind
from intact8.engines.memory import predicted
from intact8.errors import IntactError
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.file import parse, save
from intact8.program.golden import exact_tensors
from intact8.program.program import Program

CHUNK = 400
"""Cases of one child: what one death costs is the time to fork again."""

SECONDS, WAITING = 20, 900
"""Seconds of CPU, and seconds in all, that a case may take; ending a child that takes longer counts as a death."""

ROOM = 1 << 26
"""Bytes; programs that need more are not run."""

MUTATED = 3
"""Mutated files of every file that is written."""


@dataclass
class Found:
    """What some cases did.

    Attributes:
        counts: outcome → how many.
        faults: deaths, foreign errors and differences, each with what makes it again.
        worst: quantity → the largest seen.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)

    def fault(self, what: str, **more: Any) -> None:
        self.counts[what] += 1
        self.faults.append({"fault": what, **more})

    def most(self, what: str, value: float) -> None:
        self.worst[what] = max(value, self.worst.get(what, value))

    def add(self, other: Found) -> None:
        self.counts.update(other.counts)
        self.faults += other.faults
        for what, value in other.worst.items():
            self.most(what, value)


def case(seed: int, index: int, engines: Sequence[str], folder: Path, found: Found, kinds: tuple[str, ...]) -> None:
    """One program, and every fourth time its file and mutations of that."""
    made = make(seed, index, kinds)
    if made is None:
        found.counts["nothing fits"] += 1
        return
    program, kind = made
    where = {"seed": seed, "index": index, "kind": kind}
    found.counts["files"] += 1
    if not guarded(found, where, "check", lambda: check(program)):
        return
    found.counts["accepted"] += 1
    if index % 2:
        program = certify(program, ("reference", *engines))
    run(program, index, engines, found, where, certified=index % 2 == 1)
    if index % 4:
        return
    path = folder / "program"
    if not guarded(found, where, "save", lambda: save(program, path)):
        return
    whole = path.read_bytes()
    guarded(found, where, "load", lambda: parse(whole, path))
    for i, data in enumerate(mutations(whole, seed * 1_000_003 + index, MUTATED)):
        found.counts["files"] += 1
        at, out = {**where, "mutation": i}, list[Program]()
        if guarded(found, at, "load", lambda data=data, out=out: out.append(parse(data, path))):
            found.counts["mutated and accepted"] += 1
            run(out[0], index, engines, found, at)


def guarded(found: Found, where: dict[str, Any], what: str, work: Any) -> bool:
    """Whether it went well; only the project's own errors may say that it did not."""
    try:
        work()
    except IntactError as error:
        found.counts[f"{what}: refused"] += 1
        if os.environ.get("FUZZ_REASONS"):
            found.counts[f"reason {type(error).__name__} {error.what[:60]}"] += 1
        return False
    except MemoryError:
        found.counts[f"{what}: out of memory"] += 1
        return False
    except Exception as error:  # noqa: BLE001 - what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        found.fault("foreign error", **where, at=what, error=f"{type(error).__name__}: {error}"[:200], place=place)
        return False
    return True


def run(
    program: Program, index: int, engines: Sequence[str], found: Found, where: dict[str, Any], certified: bool = False
) -> None:
    """On the reference and on every engine, in two batch sizes, from fresh memory each time."""
    if program.dimensions or predicted(program, "reference") > ROOM:
        found.counts["not run"] += 1
        return
    certificates = [op.certificate for op in program.ops if op.certificate]
    exact, wanted = set(exact_tensors(program)), dict[int, Any]()
    for name in ("reference", *engines):
        out: list[Any] = []
        at = {**where, "engine": name}
        if not guarded(
            found, at, f"{name} prepare", lambda out=out, name=name: out.append(get_engine(name).prepare(program))
        ):
            continue
        for batch in (1, 3):
            x, y = inputs_of(program, index, batch), list[Any]()
            if not guarded(found, at, f"{name} run", lambda x=x, y=y, out=out: y.append(out[0](x))):
                continue
            if batch == 3 and index % 3 == 0:
                call_otherwise(program, out[0], x, y[0], index, found, at)
            if name == "reference":
                wanted[batch] = y[0]
                continue
            claims = certified and all(c.get("exact") and name in c.get("engines", ()) for c in certificates)
            for tensor, a, b in zip(program.outputs, wanted.get(batch, ()), y[0], strict=False):
                compare(program, tensor, a, np.asarray(b), claims and tensor in exact, found, {**at, "batch": batch})


def call_otherwise(
    program: Program, runner: Any, x: dict[str, Any], wanted: Any, index: int, found: Found, where: dict[str, Any]
) -> None:
    """The same values in other memory give the same bits; what is no input is refused."""
    if not guarded(found, where, "bind", lambda: bind(program, (), x)):
        return
    exact = set(exact_tensors(program))
    for what, given, refused in otherwise(x, np.random.default_rng(index)) if x else ():
        y, at = list[Any](), {**where, "inputs": what}
        taken = guarded(found, at, "a call", lambda given=given, y=y: y.append(runner(bind(program, (), given))))
        if taken and refused:
            found.fault("taken though it is no input", **at)
        elif not taken and not refused:
            found.fault("refused though it is the same", **at)
        elif taken:
            for name, a, b in zip(program.outputs, wanted, y[0], strict=True):
                same = np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
                if not same and name in exact:  # float islands may add in another order
                    found.fault("other memory, other values", **at)


def compare(program: Program, name: str, a: Any, b: Any, claimed: bool, found: Found, where: dict[str, Any]) -> None:
    """Dtype and shape always; every bit of what is certified to be exact."""
    if a.shape != b.shape or a.dtype != b.dtype:
        found.fault(
            "other shape or dtype", **where, tensor=name, got=f"{b.dtype}{b.shape}", wanted=f"{a.dtype}{a.shape}"
        )
    elif claimed and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        ops = [op.kind for op in program.ops]
        found.fault("certified and different", **where, tensor=name, ops=ops, count=int((a != b).sum()), of=int(a.size))


def chunk(seed: int, start: int, stop: int, engines: Sequence[str], at: mmap.mmap, kinds: tuple[str, ...]) -> Found:
    """In a child: cases from ``start`` on; ``at`` tells the parent which one it is."""
    found = Found()
    with TemporaryDirectory(prefix="fuzz", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for index in range(start, stop):
            at[:8] = struct.pack("<q", index)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(WAITING)
            with np.errstate(all="ignore"):
                case(seed, index, engines, Path(folder), found, kinds)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return found


def fuzz(
    seed: int,
    count: int,
    engines: Sequence[str],
    seconds: float = float("inf"),
    kinds: tuple[str, ...] = NAMES,
    start: int = 0,
    total: Found | None = None,
) -> Found:
    """Run ``count`` cases from ``start`` on in children of CHUNK cases, and add what each child found to ``total``.

    Where a child dies, the next one begins behind the case that ended it.
    """
    kept.release_memory = lambda _: None  # memory is not what is looked at, and trimming takes longer than most cases
    if "onednn" in engines:
        importlib.import_module("torch")  # once, and not in every child
    total, at, index, began = total or Found(), mmap.mmap(-1, 8), start, time.monotonic()
    while index < start + count and time.monotonic() - began < seconds:
        stop = min(start + count, index + CHUNK)
        found, status = forked(partial(chunk, seed, index, stop, engines, at, kinds))
        total.add(found)
        if status:
            (index,) = struct.unpack("<q", at[:8])
            total.fault("death", seed=seed, index=index, kind=kinds[index % len(kinds)], status=status)
            index += 1
        else:
            index = stop
    return total


def forked(work: Callable[[], Found]) -> tuple[Found, str]:
    """Return what a child found and how it ended: "" where it ended well. Interrupting the parent ends the child."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        for number in (signal.SIGINT, signal.SIGTERM):  # a group may get them, and the parent ends its child by SIGKILL
            signal.signal(number, signal.SIG_IGN)
        try:
            found = work()
            with os.fdopen(write, "w") as stream:
                json.dump([found.counts, found.faults, found.worst], stream)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent is told
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    try:
        with os.fdopen(read) as stream:
            text = stream.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    counts, faults, worst = json.loads(text) if text else ({}, [], {})
    found = Found(Counter(counts), faults, worst)
    if os.WIFSIGNALED(status):
        return found, signal.Signals(os.WTERMSIG(status)).name
    return found, f"exit status {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""


__all__ = ["Found", "forked", "fuzz"]
