"""What a long run prints: every fault when it is found, a line per EVERY files, and a last line, interrupted or not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fuzz.run import Found

EVERY = 5_000
"""Files between two lines."""


class Progress(Found):
    """Findings that are printed as they are added, one JSON object a line."""

    def __init__(self, output: Path | None = None, every: int = EVERY) -> None:
        super().__init__()
        self.began, self.every, self.printed, self.output = time.monotonic(), every, 0, output

    def fault(self, what: str, **more: Any) -> None:
        super().fault(what, **more)
        self._print_fault(self.faults[-1])

    def add(self, other: Found) -> None:
        super().add(other)
        for fault in other.faults:
            self._print_fault(fault)
        if self.counts["files"] - self.printed >= self.every:
            self.line("so far")

    def line(self, how: str) -> None:
        """Print all counts, with ``how`` the run stands."""
        self.printed = self.counts["files"]
        cpu = os.times()
        times = {
            "seconds": round(time.monotonic() - self.began),
            "cpu": round(cpu.children_user + cpu.children_system),
        }
        worst = {name: round(value, 3) for name, value in self.worst.items()}
        told = {"run": how, **times, "faults": len(self.faults), **dict(sorted(self.counts.items())), **worst}
        print(json.dumps(told), flush=True)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Print the last line however the work ends: SIGINT and SIGTERM end the work and not the report."""

        def stop(number: int, _: Any) -> None:
            raise KeyboardInterrupt(signal.Signals(number).name)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        how = "ended"
        try:
            yield
        except KeyboardInterrupt as error:
            how = f"interrupted by {error}"
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.line(how)

    def _print_fault(self, fault: dict[str, Any]) -> None:
        text = json.dumps(fault, ensure_ascii=False)
        print(text, flush=True)
        if self.output:
            with self.output.open("a", encoding="utf-8") as stream:
                stream.write(text + "\n")


__all__ = ["Progress"]
