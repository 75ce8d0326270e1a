"""What earlier probes found, remembered per user. Losing or damaging it costs a probe, nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intact.program.program import Program
from intact.program.write import write

from .facts import Facts

VERSION = 1
LARGEST = 1 << 16


def folder() -> Path | None:
    """Where probes are remembered: ``INTACT_CACHE_DIR``, else the user's cache directory; None where there is none.

    An empty ``INTACT_CACHE_DIR`` means that nothing shall be remembered.
    """
    chosen = os.environ.get("INTACT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base, "intact", "Cache") if base else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification says: relative paths are to be ignored
        return Path(base, "intact")
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    return Path(home, "Library", "Caches", "intact") if sys.platform == "darwin" else Path(home, ".cache", "intact")


def key(program: Program, digest: str, engine: str, threads: int | None, facts: Facts) -> str:
    """SHA-256, hex, of all that could make a probe end differently."""
    golden = None if program.golden is None else program.golden.to_json()
    parts = {
        "version": VERSION, "digest": digest, "golden": golden, "engine": engine, "threads": threads,
        "system": facts.system, "machine": facts.machine, "cpu": facts.cpu, "features": sorted(facts.features),
        "python": [facts.python, sys.executable], "packages": dict(facts.packages), "glibc": facts.glibc,
        "glibcxx": facts.glibcxx, "environment": dict(facts.environment), "passes": _passes(),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _passes() -> list[int] | None:
    """Size and time of the compiled passes, which engines call; None where they were not built."""
    found = importlib.util.find_spec("intact.engines._native")
    if found is None or found.origin is None:
        return None
    about = os.stat(found.origin)
    return [about.st_size, about.st_mtime_ns]


def recall(name: str) -> dict[str, Any] | None:
    """What was remembered under a key; None where nothing was, or it is damaged."""
    place = folder()
    if place is None:
        return None
    try:
        with open(place / f"{name}.json", "rb") as stream:
            entry = json.loads(stream.read(LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("sum") != _sum(name, entry.get("result")):
        return None
    result = entry["result"]
    return result if isinstance(result, dict) else None


def remember(name: str, result: dict[str, Any]) -> str:
    """Keep ``result`` under a key. Returns "" or the reason why it could not be kept: loading does not depend on it."""
    place = folder()
    if place is None:
        return "there is no cache directory"
    text = json.dumps({"result": result, "sum": _sum(name, result)})
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(place / f"{name}.json", text.encode())
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    return ""


def _sum(name: str, result: Any) -> str:
    return hashlib.sha256(f"{name}{json.dumps(result, sort_keys=True)}".encode()).hexdigest()


@contextlib.contextmanager
def lock(name: str, timeout: float) -> Iterator[bool]:
    """Hold the lock of a key, among all processes of this user; False where it cannot be had within ``timeout`` s.

    The operating system gives it back when its holder dies.
    """
    from filelock import FileLock, Timeout

    place = folder()
    held = None
    if place is not None:
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            held = FileLock(str(place / f"{name}.lock"), timeout=timeout)
            held.acquire()
        except (OSError, Timeout, NotImplementedError):  # read-only, too busy, or a file system without locks
            held = None
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()


__all__ = ["folder", "key", "lock", "recall", "remember"]
