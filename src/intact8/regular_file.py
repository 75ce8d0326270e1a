"""Paths that are given, and files to be read: regular ones only, of which the end comes, and whose opening waits for
nobody."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from intact8.errors import InputError, IntactError


def path_of(given: Any, what: str = "the file", kind: type[IntactError] = InputError) -> Path:
    """Return a path that was given as text or as a path; a number, which opens what has that number, is none.

    Args:
        given: by the caller.
        what: what errors call the file.
        kind: the class of the error.

    Raises:
        IntactError: it is neither.

    Example:
        >>> path_of("a/net.safetensors").name
        'net.safetensors'
    """
    try:
        return Path(given)
    except TypeError as error:
        what = f"{type(given).__name__} is no path of {what}"
        raise kind(what, where="path", remedy='give text or a pathlib.Path, such as "net.safetensors"') from error


def unwritable(path: Path, what: str, kind: type[IntactError], error: OSError) -> IntactError:
    """Return the error of a file that cannot be written.

    Args:
        path: of the file.
        what: what the error calls it.
        kind: the class of the error.
        error: of the operating system.
    """
    why = error.strerror or str(error)
    remedy = "create the folder, free space or choose a path you may write to"
    if os.path.isdir(path):
        remedy = "give a file name inside it"
    elif not os.path.isdir(path.parent):
        why = f"the folder {path.parent} does not exist"
    return kind(f"cannot write {what}", where=str(path), why=why, remedy=remedy)


@contextmanager
def opened(path: str | Path, what: str = "the file", kind: type[IntactError] = InputError) -> Iterator[BinaryIO]:
    """A regular file, open for reading: no folder, and no pipe or device, of which there may be no end.

    Args:
        path: of the file.
        what: what errors call it.
        kind: the class of the error.

    Raises:
        IntactError: it is not that, or cannot be opened or read.
    """
    path = path_of(path, what, kind)
    try:
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        raise _unreadable(path, what, kind, error) from error
    with stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise kind(
                f"cannot read {what}",
                where=str(path),
                why="it is a device or a pipe, no regular file",
                remedy="write what it gives to a file, and give that",
            )
        try:
            yield stream
        except OSError as error:
            raise _unreadable(path, what, kind, error) from error


def bytes_of(path: str | Path, what: str = "the file", kind: type[IntactError] = InputError) -> bytes:
    """Return the bytes of a regular file. As :func:`opened`."""
    with opened(path, what, kind) as stream:
        return stream.read()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; where it is a pipe, without waiting for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _unreadable(path: str | Path, what: str, kind: type[IntactError], error: Exception) -> IntactError:
    why = getattr(error, "strerror", None) or str(error)
    return kind(f"cannot read {what}", where=str(path), why=why, remedy="check the path and its permissions")
