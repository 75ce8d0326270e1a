"""A cache of what earlier probes found, per user. Losing or damaging it costs a probe, nothing else.

What is remembered decides whether an engine is probed, so it is believed only where nobody else can have written it:
the directory and the files in it must be the user's own, and not writable by others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intact8.atomic_write import write_atomically
from intact8.machine import native_library
from intact8.program.file import identity
from intact8.program.program import Program

from .facts import Facts

VERSION = 1
LARGEST = 1 << 16


def folder() -> Path | None:
    """Return the cache directory: ``INTACT8_CACHE_DIR``, else the user's; None where there is none.

    An empty ``INTACT8_CACHE_DIR`` means that nothing shall be remembered.
    """
    chosen = os.environ.get("INTACT8_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base, "intact8", "Cache") if base else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification says: relative paths are to be ignored
        return Path(base, "intact8")
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    return Path(home, "Library", "Caches", "intact8") if sys.platform == "darwin" else Path(home, ".cache", "intact8")


def key(program: Program, engine: str, threads: int | None, facts: Facts) -> str:
    """Return the SHA-256, hex, of all that could make a probe end differently."""
    golden = None if program.golden is None else program.golden.to_json()
    machine = facts.to_json()
    unimportant = ("memory", "wheels", "glibcxx_loaded")
    parts = {name: value for name, value in machine.items() if name not in unimportant} | {
        "version": VERSION,
        "program": identity(program),
        "golden": golden,
        "engine": engine,
        "threads": threads,
        "python": [facts.python, sys.executable],
        "library": _library(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _library() -> list[int] | None:
    """Return size and time of the native engine's library; None where they were not built."""
    library = native_library()
    if library is None:
        return None
    about = library.stat()
    return [about.st_size, about.st_mtime_ns]


def recall(name: str) -> dict[str, Any] | None:
    """Return what the key's entry holds; None where there is none, it is damaged, or others could have written it."""
    place = folder()
    if place is None or _distrusted(place):
        return None
    try:
        # Opening a pipe would wait for its other end.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(place / f"{name}.json", flags), "rb") as stream:
            if not _own_file(os.fstat(stream.fileno())):
                return None
            entry = json.loads(stream.read(LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("sum") != _sum(name, entry.get("result")):
        return None
    result = entry["result"]
    return result if isinstance(result, dict) else None


def remember(name: str, result: dict[str, Any]) -> str:
    """Write the entry of a key. Returns "" or why it could not be written, which does not stop a load."""
    place = folder()
    if place is None:
        return "there is no cache directory"
    text = json.dumps({"result": result, "sum": _sum(name, result)})
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        problem = _distrusted(place)
        if problem:
            return problem
        write_atomically(place / f"{name}.json", text.encode(), 0o600, links=False)
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    return ""


def _distrusted(place: Path) -> str:
    """Return why nothing in the directory is believed or written; "" where it is trusted or not there yet."""
    try:
        about = os.stat(place)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    if not stat.S_ISDIR(about.st_mode):
        return f"{place} is no directory"
    if sys.platform != "win32":
        if about.st_uid != os.geteuid():
            return f"{place} belongs to another user: set INTACT8_CACHE_DIR to a directory of your own"
        if about.st_mode & 0o022:
            return f"{place} can be written by others (mode {about.st_mode & 0o777:o}): take that away (chmod 700)"
    return ""


def _own_file(about: os.stat_result) -> bool:
    """Return whether it is a regular file that only this user can have written."""
    if not stat.S_ISREG(about.st_mode):
        return False
    return sys.platform == "win32" or (about.st_uid == os.geteuid() and not about.st_mode & 0o022)


def _sum(name: str, result: Any) -> str:
    return hashlib.sha256(f"{name}{json.dumps(result, sort_keys=True)}".encode()).hexdigest()


@contextlib.contextmanager
def lock(name: str, timeout: float) -> Iterator[bool]:
    """Hold the lock of a key, among all processes of this user; False where it cannot be had within ``timeout`` s.

    The operating system gives it back when its holder dies.
    """
    from filelock import FileLock, Timeout

    place = folder()
    acquired = None
    if place is not None:
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = place / f"{name}.lock"
            # Opening a link empties what it leads to, and a pipe has no end.
            if not _distrusted(place) and (not os.path.lexists(file) or stat.S_ISREG(os.lstat(file).st_mode)):
                acquired = FileLock(str(file), timeout=timeout, mode=0o600)
                acquired.acquire()
        except (OSError, Timeout, NotImplementedError):  # read-only, too busy, or a file system without locks
            acquired = None
    try:
        yield acquired is not None
    finally:
        if acquired is not None:
            acquired.release()
