"""Writing a file all at once or not at all, also when the process is killed half way."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import time
from pathlib import Path
from typing import Any

from intact8.errors import EngineError
from intact8.regular_file import path_of, unwritable

if sys.platform != "win32":
    import fcntl

SETTLED = 1.0
"""Seconds: a younger temporary file may belong to a writer that has not come to locking it."""


def write_atomically(path: Path, data: bytes | memoryview, mode: int = 0o666, *, links: bool = True) -> None:
    """Write ``data`` under no name or a temporary one, flush it to the disk, rename it to ``path``.

    Where the file system can (Linux), the bytes have no name until they are complete, so that a killed process leaves
    nothing; elsewhere, and in the instant between naming and renaming, a killed process leaves a temporary file,
    which the next save to the same path removes.

    Args:
        path: of the file.
        data: what shall be in it.
        mode: its permissions, less those the umask takes away.
        links: whether a symbolic link at ``path`` stays one, and what it points to is written; else it is replaced.

    Raises:
        OSError: as the operating system says; ``path`` is as before.
    """
    check_place(path)
    path = Path(os.path.realpath(path)) if links else path
    # Not tempfile: its files are private to the user, this one gets what the umask allows.
    prefix = f".{path.name[:100]}."
    temporary = path.with_name(f"{prefix}{secrets.token_hex(8)}.tmp")
    _sweep(path.parent, prefix)
    descriptor = _unnamed(path.parent, mode)
    named = descriptor is None
    try:
        if descriptor is None:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        _lock(descriptor)  # until after the renaming, so that a sweep by another process leaves the file alone
        _fill(descriptor, data)
        if not named:
            _name(descriptor, temporary)
        if os.name == "nt":  # an open file cannot be renamed there
            os.close(descriptor)
            descriptor = None
        os.replace(temporary, path)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def target_of(given: Any) -> Path:
    """Return the path that an export is to write, of which nothing stands in the way that can be known beforehand.

    Args:
        given: by the caller.

    Raises:
        EngineError: it is no path, or that of a folder or a device; its folder is missing; or no file has such a name.

    Example:
        >>> target_of("net.onnx").name
        'net.onnx'
    """
    path = path_of(given, kind=EngineError)
    try:
        check_place(path)
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # a name that is too long, or links in a circle
        os.stat(os.path.dirname(os.path.realpath(path)))
    except OSError as error:
        raise unwritable(path, "the file", EngineError, error) from error
    return path


def check_place(path: Path) -> None:
    """Refuse what renaming a file would replace, a device such as /dev/null, and names that no file has."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise OSError(errno.EINVAL, "the name has characters that no file name has", ascii(path)) from error
    except OSError:  # there is nothing yet, or writing will say what is wrong
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "is a device, a pipe or a socket, which is not replaced", str(path))


def _unnamed(folder: Path, mode: int) -> int | None:
    """Return a file in ``folder`` that has no name yet; None where that cannot be had."""
    flag = getattr(os, "O_TMPFILE", 0)
    if not flag or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_WRONLY | flag, mode)
    except OSError:  # the file system has no unnamed files, or nothing may be written here: the named way will say
        return None


def _name(descriptor: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # With a folder's descriptor Python calls linkat, which can follow the link of /proc to the unnamed file.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _fill(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest[: 1 << 30]) :]
    os.fsync(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock a living writer holds on its temporary file; False when another process has it."""
    if sys.platform == "win32":
        return False  # an open file cannot be removed there, and needs no lock
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path, prefix: str) -> None:
    """Remove temporary files of writers that are no more."""
    pattern = re.compile(re.escape(prefix) + r"[0-9a-f]{16}\.tmp")
    if sys.platform == "win32" or not folder.is_dir():
        return
    for name in os.listdir(folder):
        if not pattern.fullmatch(name):
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to remove
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_mtime < time.time() - SETTLED and _lock(descriptor):
                    os.unlink(folder / name)
            finally:
                os.close(descriptor)


def _sync_directory(folder: Path) -> None:
    """The rename itself reaches the disk. Windows has no handle on folders, and needs none."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
