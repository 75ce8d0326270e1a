"""Writing exported files, all at once or not at all."""

from __future__ import annotations

from pathlib import Path

from intact8.errors import EngineError
from intact8.program.atomic_write import write_atomically


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``.

    Raises:
        EngineError: the folder is missing, or the operating system refuses.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        remedy = "check the folder and the space on it"
        raise EngineError("cannot write the file", where=str(path), why=str(error), remedy=remedy) from error
