"""A file of the trials so far, one JSON object per line, from which an interrupted search goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intact8.atomic_write import write_atomically
from intact8.errors import InputError
from intact8.regular_file import bytes_of, unwritable
from intact8.tuning.result import Trial


class Journal:
    """Trials by their recipes, and the file they are written to, whole, after every trial.

    A last line that a killed process or a full disk left half written is left out: its trial is made again.

    Args:
        path: the file; None writes nothing.
        search: what must be the same for trials to be used again: network, calibration, metric, engine.

    Raises:
        InputError: the file cannot be read, is damaged elsewhere, or belongs to another search.
    """

    def __init__(self, path: Path | None, search: Mapping[str, Any]) -> None:
        self.path, self.search = path, dict(search)
        self.trials: dict[str, Trial] = {}
        if path is None or not path.exists():
            return
        found, self.trials = _read(path)
        other = [name for name in self.search if found.get(name) != self.search[name]]
        if other:
            why, remedy = f"it differs in {', '.join(other)}", "name another file, or delete it to begin anew"
            raise InputError("the journal is of another search", where=str(path), why=why, remedy=remedy)

    def add(self, trials: Mapping[str, Trial]) -> None:
        """Add trials by the TOML of their recipes, and write the file."""
        if not trials.keys() - self.trials.keys():
            return
        self.trials |= trials
        if self.path is None:
            return
        lines = [{"search": self.search}, *map(asdict, self.trials.values())]
        try:
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        except OSError as error:
            raise unwritable(self.path, "the journal", InputError, error) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Trial]]:
    """Return what a journal says of its search, and its trials by their recipes."""
    first, *rest = bytes_of(path, "the journal").split(b"\n")
    try:
        search = dict(json.loads(first)["search"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what, why = "no journal of a search", f"its first line names none: {error}"
        raise InputError(what, where=str(path), why=why, remedy="name another file") from error
    trials = {}
    for number, line in enumerate(rest, 2):
        try:
            if line:
                values = json.loads(line)
                trials[values["recipe_toml"]] = Trial(**values)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(rest) + 1:  # no line break follows: it was not written to its end
                break
            what, why = "the journal is damaged", f"line {number} is no trial: {error}"
            remedy = "take this line out, which keeps the other trials, or name another file"
            raise InputError(what, where=str(path), why=why, remedy=remedy) from error
    return search, trials
