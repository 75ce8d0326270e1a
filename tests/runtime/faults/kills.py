"""Saving and loading, killed by SIGKILL at every stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.runtime.faults import packages
from tests.runtime.faults.base import Case, Result, caller, temporary
from tests.runtime.faults.caller import PATH, Died
from tests.runtime.faults.machines import portable

from intact8.program.file import load, save

SAVES = ("open:1", "write:1", "fsync:1", "link:1", "replace:1", "fsync:2")
"""System calls of a save, in their order; the process dies on entering one."""

SAVE = """
import os, signal, sys
from intact8.program.file import load, save
program = load(sys.argv[1])
which, count = sys.argv[2].split(":")
real, calls = getattr(os, which), 0
def deadly(*args, **named):
    global calls
    calls += 1
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **named)
setattr(os, which, deadly)
save(program, sys.argv[3])
"""

LOADS = (
    "intact8.runtime.load:read:0", "intact8.runtime.load:read:1", "intact8.runtime.load:parse:0",
    "intact8.runtime.load:parse:1", "intact8.program.file:recheck:0", "intact8.runtime.load:digest:0",
    "intact8.runtime.facts:Facts.here:0", "intact8.runtime.load:preflight:0", "intact8.runtime.cache:recall:0",
    "intact8.runtime.cache:lock:0", "intact8.runtime.probe_policy:run_probe:0",
    "intact8.runtime.probe_process:_start:0", "intact8.runtime.probe_process:_start:1",
    "intact8.runtime.probe_process:_send:0", "intact8.runtime.probe_process:_send:1",
    "intact8.runtime.probe_policy:run_probe:1", "intact8.runtime.cache:remember:0", "intact8.runtime.cache:write:0",
    "os:write:0", "os:fsync:0", "os:link:0", "os:replace:0", "os:replace:1", "intact8.runtime.cache:write:1",
    "intact8.runtime.cache:remember:1", "intact8.runtime.load:prepare:0", "intact8.runtime.load:reproduce:0",
    "intact8.runtime.load:reproduce:1",
)  # fmt: skip
"""module:function:n: the process dies on entering it (0) or after its return (1)."""

LOAD = """
import contextlib, importlib, os, signal, sys
import intact8.engines, intact8.runtime
where, name, moment = sys.argv[2].split(":")
place = importlib.import_module(where)
*outer, last = name.split(".")
for part in outer:
    place = getattr(place, part)
real = getattr(place, last)
def deadly(*args, **named):
    if moment == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    out = real(*args, **named)
    if moment == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return out
setattr(place, last, deadly)
intact8.runtime.load(sys.argv[1], engine="fine")
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process of its own, with this process's path."""
    path = os.pathsep.join([*PATH, *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
    )  # fmt: skip


def saves() -> Iterator[Case]:
    """Killed at every stage of a save."""
    for moment in SAVES:
        for old in (b"the old file", None):
            over = "over an old file" if old else "to a new name"
            yield Case(
                "SIGKILL while saving", f"on entering {moment}, {over}", _killed_save(moment, old), old is not None
            )


def _killed_save(moment: str, old: bytes | None) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        source, out = save(portable(), folder / "source"), folder / "out"
        whole, target = source.read_bytes(), out / "net"
        out.mkdir()
        if old is not None:
            target.write_bytes(old)
        done = python(SAVE, str(source), moment, str(target))
        if moment == "link:1" and done.returncode == 0:
            raise OSError("this file system has no unnamed files")
        found = target.read_bytes() if target.exists() else None
        complete = moment == "fsync:2"
        lost = int(found != (whole if complete else old))
        after = [p for p in out.iterdir() if p != target]
        wrong = "" if done.returncode == -signal.SIGKILL else f"exit status {done.returncode}: {done.stderr[-200:]}"
        if len(after) > (moment == "replace:1" or not hasattr(os, "O_TMPFILE")):
            wrong = f"left: {after}"
        for file in after:  # as if time had passed
            os.utime(file, (1, 1))
        save(load(source), target)
        lost += target.read_bytes() != whole
        kept = "the new file" if complete else "the old file" if old else "no file"
        swept = ", a temporary one until the next save" if after else ""
        return Result(f"{kept} is there{swept}", lost=lost, left=len(list(out.iterdir())) - 1, wrong=wrong)

    return run


def loads() -> Iterator[Case]:
    """Killed at every stage of a load."""
    for moment in LOADS:
        quick = moment.split(":", 1)[1] in ("run_probe:1", "replace:0", "reproduce:0")
        yield Case("SIGKILL while loading", moment, _killed_load(moment), quick)


def _killed_load(moment: str) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        path, cache = save(portable(), folder / "net.safetensors"), folder / "cache"
        whole, site = path.read_bytes(), packages.install(folder / "site")
        environment = {"INTACT8_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(site), *PATH])}
        done = python(LOAD, str(path), moment, **environment)
        if done.returncode == 0:
            raise OSError(f"{moment} does not happen on this system")
        wrong = "" if done.returncode == -signal.SIGKILL else f"exit status {done.returncode}: {done.stderr[-200:]}"
        held = [p for p in temporary(cache) if moment != "os:replace:0"]
        wrong = f"left: {held}" if held else wrong
        for file in temporary(cache):
            os.utime(file, (1, 1))
        with caller(site) as process:
            try:
                answer = process(path=str(path), engine="fine", environment={"INTACT8_CACHE_DIR": str(cache)})
            except Died as death:
                return Result(str(death), deaths=1)
        if answer.get("engine") != "fine":
            wrong = f"the next load: {answer}"
        outcome = f"the next load: {answer.get('probe')}, {answer.get('golden')}"
        return Result(outcome, lost=int(path.read_bytes() != whole), left=len(temporary(cache)), wrong=wrong)

    return run
