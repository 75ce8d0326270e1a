"""Shows whether a program would load and why, without loading it: everything happens in child processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.display import Shown, inert
from intact8.errors import EngineError, ProgramError
from intact8.program.certify import by_claim
from intact8.program.document import VERSION
from intact8.program.file import digest, identity
from intact8.program.golden import Golden
from intact8.program.remarks import remarks
from intact8.runtime.probe_policy import memory_limit
from intact8.runtime.probe_process import PASSED, failure, run_probe
from intact8.text import printable

from . import cache
from .facts import Facts
from .load import Opened, open_program
from .preflight import OK, REFUSED, UNKNOWN, Row, candidates, claim_row, origin_row, preflight, program_rows, refusal

if TYPE_CHECKING:
    from rich.console import Group

STYLES = {OK: "green", UNKNOWN: "yellow", REFUSED: "bold red"}


@dataclass(frozen=True)
class EngineCheck:
    """One engine.

    Attributes:
        engine: name of the engine.
        rows: what was looked at, the probe last.
        usable: whether it can run the program here.
    """

    engine: str
    rows: tuple[Row, ...]
    usable: bool


@dataclass(frozen=True)
class CheckReport(Shown):
    """What ``intact8 check`` shows; prints as tables with rich.

    Attributes:
        path: path of the file.
        ok: whether an engine of those asked for can run it here.
        verdict: the result in one sentence.
        file: what was looked at in the file.
        engines: the engines in the order in which they would be tried.
        facts: facts about the machine.
    """

    path: str
    ok: bool
    verdict: str
    file: tuple[Row, ...]
    engines: tuple[EngineCheck, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def __rich__(self) -> Group:
        from rich.console import Group

        tables = [_table("file", self.file), *(_table(e.engine, e.rows) for e in self.engines)]
        return Group(*tables, inert(self.verdict, "bold green" if self.ok else "bold red"))


def _table(title: str, rows: Sequence[Row]) -> Any:
    from rich.text import Text

    from intact8.display import titled_table

    cells = []
    for row in rows:
        remedy = f"\n→ {printable(row.remedy)}" if row.verdict != OK and row.remedy else ""
        found = Text(printable(row.found) + remedy)
        cells.append((row.what, row.needed, found, inert(row.verdict, STYLES[row.verdict])))
    return titled_table(title, ("", "needed", "found", "verdict"), cells)


def check_file(
    path: str | Path,
    engine: str | Sequence[str] = "auto",
    *,
    probe: bool = True,
    public_key: str | Path | None = None,
    expect: str | None = None,
    time_limit: float = 120.0,
    facts: Facts | None = None,
) -> CheckReport:
    """Report whether a file would load here, and with which engine; nothing it holds is run in this process.

    Args:
        path: a program file.
        engine: as for :func:`intact8.runtime.load`.
        probe: whether child processes try the engines. What they find is remembered for the next load.
        public_key, expect: demand a signature, see :func:`intact8.runtime.load`.
        time_limit: seconds per probe.
        facts: facts about this machine, or another one (then without probes).

    Raises:
        EngineError: no engine is named.
    """
    names = candidates(engine)
    facts = Facts.here() if facts is None else facts
    try:
        opened = open_program(path, public_key, expect)
    except ProgramError as error:
        found = f"{error.what}. {error.why}".rstrip()
        row = Row("file", "a whole program of this format", found, REFUSED, error.remedy)
        return CheckReport(str(path), False, f"refused: {error}", (row,), (), facts.to_json())
    engines = tuple(_engine(opened, name, probe, time_limit, facts) for name in names)
    usable = [e.engine for e in engines if e.usable]
    if usable:
        first = next(group for group in by_claim(opened.program, usable) if group)
        fastest = f"; engine='auto' takes {_taken(first)}" if engine == "auto" and len(usable) > 1 else ""
        verdict = f"loads, on {' or '.join(usable)}{fastest}"
    else:
        reasons = [f"{e.engine}: {r.what}: {r.found}" for e in engines for r in e.rows if r.verdict == REFUSED]
        verdict = f"refused: no engine of {', '.join(names)} can run it here. {' | '.join(reasons)}"
    return CheckReport(str(path), bool(usable), verdict, _file(opened, facts), engines, facts.to_json())


def _taken(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"the fastest of {' and '.join(names)}, as it measures"


def _file(opened: Opened, facts: Facts) -> tuple[Row, ...]:
    program = opened.program
    integers = len(program.integer_tensors())
    signed = Row("signature", "not asked for", "–")
    if opened.signed:
        signed = Row("signature", "by the key given", f"fits: {opened.signed}")
    return (
        Row(
            "file",
            "a whole safetensors file",
            f"{opened.path.stat().st_size} bytes, digest {digest(opened.program)[:16]}…",
        ),
        Row("format", f"version up to {VERSION}", "read"),
        origin_row(program, facts),
        Row("specification", "obeyed", f"{len(program.ops)} operations, {integers} integer tensors"),
        *program_rows(program),
        signed,
        *(Row("remark", "", text, UNKNOWN) for text in remarks(program)),
    )


def _engine(opened: Opened, name: str, probe: bool, time_limit: float, facts: Facts) -> EngineCheck:
    rows = [*preflight(opened.program, name, facts), claim_row(opened.program, name)]
    if refusal(rows, name) is not None:
        return EngineCheck(name, tuple(rows), False)
    if not probe:
        rows.append(Row("probe", "the golden vectors, in a child process", "not asked for", UNKNOWN))
        return EngineCheck(name, tuple(rows), True)
    try:
        memory = memory_limit(opened.program, facts, name)
        outcome = run_probe(
            opened.path, identity(opened.program), name, None, memory=memory, seconds=time_limit, every=True
        )
    except EngineError as error:
        rows.append(Row("probe", "a child process", str(error), REFUSED, error.remedy))
        return EngineCheck(name, tuple(rows), False)
    if outcome.lasting:
        cache.remember(cache.key(opened.program, name, None, facts), outcome.to_json())
    needed = _needed(opened.program.golden)
    if outcome.verdict == PASSED:
        rows.append(Row("probe", needed, f"{outcome.detail} ({outcome.seconds:.1f} s)"))
        return EngineCheck(name, tuple(rows), True)
    failed = failure(outcome, name, ("reference",) if name != "reference" else (), False)
    found = f"{failed.where}: {failed.what}" + (f". {failed.why}" if failed.why else "")
    rows.append(Row("probe", needed, found, REFUSED, failed.remedy))
    return EngineCheck(name, tuple(rows), False)


def _needed(golden: Golden | None) -> str:
    return "a run of one sample" if golden is None or golden.omitted else "every golden vector, bit for bit"
