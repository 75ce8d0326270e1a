"""What is known about a loaded program."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from intact8.arithmetic.dimensions import Dim
from intact8.display import Grid, Shown, columns

from .preflight import Row


@dataclass(frozen=True)
class Skipped:
    """An engine that was tried before the one that runs, and why it does not.

    Attributes:
        engine: name of the engine.
        reason: the error in words.
    """

    engine: str
    reason: str


@dataclass(frozen=True)
class Info(Shown):
    """How a program came to run here.

    Attributes:
        path: path of the file.
        engine: engine that runs it.
        threads: number of threads given to the engine; None leaves its choice.
        inputs, outputs: name → (dtype, shape), None for the batch, a name for another dimension that may change.
        preflight: what was compared with this machine, all of it fine or unknown.
        probe: "passed" now, "remembered", or "not needed", "switched off" and why.
        golden: what was reproduced, in this process, or for the reference in the probe's.
        signed: whether a signature was verified.
        skipped: engines tried before this one.
        measured: engine → median milliseconds per call, fastest first, when engine="auto" chose among several.
        packages: versions of the libraries.
        seconds: stage → seconds that it took.
        sizes: sizes that a child process has run, in words; sizes met later are added to the runner's ``info``.
        remarks: what does not stop a load, but should be known.
        digest: SHA-256 of what the program computes.
    """

    path: str
    engine: str
    threads: int | None
    inputs: dict[str, tuple[str, tuple[Dim, ...]]]
    outputs: dict[str, tuple[str, tuple[Dim, ...]]]
    preflight: tuple[Row, ...]
    probe: str
    golden: str
    signed: bool = False
    skipped: tuple[Skipped, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def __rich__(self) -> Any:
        tensors = [
            (way, f"{n}: {d}{list(s)}") for way in ("inputs", "outputs") for n, (d, s) in getattr(self, way).items()
        ]
        times = ", ".join(f"{engine} {time:.3g} ms" for engine, time in self.measured.items())
        rows = (
            ("file", self.path),
            ("engine", f"{self.engine}, chosen from {times}" if times else self.engine),
            *((way.removesuffix("s"), text) for way, text in tensors),
            ("probe", self.probe),
            ("golden vectors", self.golden),
            ("signed", "yes" if self.signed else "no"),
            ("loaded in", f"{sum(self.seconds.values()):.2f} s"),
            *(("skipped", f"{skipped.engine}: {skipped.reason}") for skipped in self.skipped),
            *(("remark", remark) for remark in self.remarks),
        )
        return Grid(columns("<program", f"<{self.digest[:12]}"), rows).__rich__()
