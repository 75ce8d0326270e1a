"""Exports of program files by a child process: what writes a format and what runs it are libraries that may crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intact8.errors import ProgramError
from intact8.program.file import identity
from intact8.program.program import Program
from intact8.runtime.child import serve
from intact8.runtime.probe_process import PASSED, failure, run_child

from .export import export
from .report import ExportReport


def export_file(
    file: str | Path, path: str | Path, to: str, *, public_key: Path | None, expect: str | None, **how: Any
) -> ExportReport:
    """Do what :func:`intact8.exporting.export` does, from a program file, in a child process.

    Args:
        file: written by ``Program.save``.
        path, to, how: see :func:`intact8.exporting.export`.
        public_key, expect: see :func:`intact8.runtime.load`.

    Raises:
        ProgramError: see :func:`intact8.runtime.load`.
        EngineError: what the export raises, or the child process died.
    """
    program = Program.load(file, public_key=public_key, expect=expect)
    job = {"folder": os.getcwd(), "file": str(file), "identity": identity(program), "path": str(path)}
    outcome, found = run_child(__name__, {**job, "to": to, "how": how}, None)
    if outcome.verdict != PASSED:
        raise failure(outcome, f"the export to {to}", (), False)
    return ExportReport.from_json(found)


def _work(job: dict[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    note("reading the file")
    os.chdir(job["folder"])
    program = Program.load(job["file"])
    if identity(program) != job["identity"]:
        raise ProgramError("the file changed while it was exported", where=job["file"], remedy="export it again")
    note("writing and running what was asked for")
    return export(program, job["path"], job["to"], **job["how"]).to_json()


if __name__ == "__main__":
    serve(_work)
