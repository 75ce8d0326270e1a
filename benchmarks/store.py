"""Results of long benchmarks, kept as they come: what was interrupted goes on where it was."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock


class Store:
    """Results by key, written to a file whenever one is added. Several processes may add to one file."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.results = self._read()

    def _read(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(self.path.read_text())["results"] if self.path.is_file() else {}
        return results

    def once(self, key: str, run: Callable[[], dict[str, Any]]) -> None:
        """Run and keep, unless there is a result already."""
        self.results = self._read()
        if key in self.results:
            return
        start = time.perf_counter()
        result = run()
        result["seconds"] = round(time.perf_counter() - start, 1)
        self.save({key: result})
        print(key, self.results[key], flush=True)

    def save(self, added: dict[str, Any]) -> None:
        """Add to what the file holds by now."""
        with filelock.FileLock(Path(tempfile.gettempdir()) / f"{self.path.name}.lock"):
            self.results = {**self._read(), **added}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({**self.about, "results": self.results}, indent=1) + "\n")
            os.replace(part, self.path)
