"""Writing exported files, all at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from intact8.atomic_write import target_of, write_atomically
from intact8.errors import EngineError, in_short
from intact8.regular_file import unwritable


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``.

    Raises:
        EngineError: the folder is missing, or the operating system refuses.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise unwritable(path, "the file", EngineError, error) from error


def write_together(path: Path, suffixes: Sequence[str], write: Callable[[Path], object]) -> None:
    """Write files of one name that belong together, which a library makes, and put them in place when all are whole.

    Args:
        path: of one of the files.
        suffixes: of all files, in the order in which they are put in place.
        write: makes them, given the path of one, beside which it writes the others.

    Raises:
        EngineError: the folder is missing, one of the files is a folder or a device, the library fails, or the
            operating system refuses.
    """
    for suffix in suffixes:
        target_of(path.with_suffix(suffix))
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.stem[:100]}.", dir=path.parent) as folder:
            made = Path(folder) / f"model{path.suffix}"
            write(made)
            for suffix in suffixes:
                with made.with_suffix(suffix).open("rb+") as file:
                    os.fsync(file.fileno())
            for suffix in suffixes:
                made.with_suffix(suffix).replace(os.path.realpath(path.with_suffix(suffix)))
    except (OSError, RuntimeError) as error:  # OpenVINO tells of a full disk by the latter, without saying so
        told = error if isinstance(error, OSError) else OSError(f"the library could not: {in_short(error)}")
        raise unwritable(path, "the files", EngineError, told) from error
