"""Writing exported files, all at once or not at all."""

from __future__ import annotations

from pathlib import Path

from intact8.atomic_write import write_atomically
from intact8.errors import EngineError
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
