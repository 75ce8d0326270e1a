"""A file of the results so far, from which an interrupted sensitivity run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from intact8.atomic_write import write_atomically
from intact8.errors import InputError
from intact8.regular_file import bytes_of, unwritable

Sums = dict[str, list[float]]
"""Name of a run → the sums of its metric."""


class Checkpoint:
    """How far each pass over the data has come, and its sums.

    Args:
        path: the file; None keeps nothing.
        fingerprint: describes the run; a file of another run is refused.

    Raises:
        InputError: the file cannot be read or belongs to another run.
    """

    def __init__(self, path: Path | None, fingerprint: dict[str, Any]) -> None:
        self.path = path
        self._values: dict[str, Any] = {"fingerprint": fingerprint, "passes": {}}
        if path is None or not path.exists():
            return
        try:
            values = json.loads(bytes_of(path))
            found = dict(values["fingerprint"])
            passes = {
                name: {"chunks": int(p["chunks"]), "samples": int(p["samples"]), "sums": dict(p["sums"])}
                for name, p in values["passes"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                "this is no file of a sensitivity run", where=str(path), why=str(error), remedy="delete it"
            ) from error
        other = [key for key in fingerprint if found.get(key) != fingerprint[key]]
        if other:
            raise InputError(
                "the file is of another sensitivity run",
                where=str(path),
                why=f"it differs in {', '.join(other)}",
                remedy="call with the same arguments and data, or delete it to begin anew",
            )
        self._values = {"fingerprint": found, "passes": passes}

    def get(self, name: str) -> tuple[int, int, Sums]:
        """Return the chunks done, their samples and the sums of a pass; zeros where it has not begun."""
        found = self._values["passes"].get(name)
        return (found["chunks"], found["samples"], found["sums"]) if found else (0, 0, {})

    def put(self, name: str, chunks: int, samples: int, sums: Sums) -> None:
        """Set the results of a pass and write the file atomically."""
        if self.path is None:
            return
        self._values["passes"][name] = {"chunks": chunks, "samples": samples, "sums": sums}
        try:
            write_atomically(self.path, json.dumps(self._values).encode())
        except OSError as error:
            raise unwritable(self.path, "the results", InputError, error) from error
