"""Count the integers an engine computes otherwise, and show them as a table of operations × engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from intact8_conformance.case import Case
from intact8_conformance.engines.base import Engine, Unsupported
from intact8_conformance.vectors import vectors


@dataclass(frozen=True)
class Result:
    """What an engine did with the cases of an operation at one corner.

    Attributes:
        operation, corner, engine: names.
        elements: number of integers compared.
        differ: number of integers that are not the exact ones.
        largest: largest difference.
        reason: why the engine ran none of the cases; "" where it did.
    """

    operation: str
    corner: str
    engine: str
    elements: int = 0
    differ: int = 0
    largest: float = 0.0
    reason: str = ""


def compare(engine: Engine, cases: Iterable[Case] | None = None) -> list[Result]:
    """Run all cases and return the results by operation and corner, in the order of the cases.

    Args:
        engine: an engine that can run here.
        cases: those of ``vectors()`` by default.
    """
    found: dict[tuple[str, str], list[tuple[int, int, float, str]]] = {}
    for case in vectors() if cases is None else cases:
        found.setdefault((case.operation, case.corner), []).append(_run(engine, case))
    results = []
    for (operation, corner), rows in found.items():
        elements, differ, largest, reasons = zip(*rows, strict=True)
        reason = next((r for r in reasons if r), "")
        results.append(Result(operation, corner, engine.name, sum(elements), sum(differ), max(largest), reason))
    return results


def _run(engine: Engine, case: Case) -> tuple[int, int, float, str]:
    try:
        got = engine.run(case)
    except Unsupported as error:
        return 0, 0, 0.0, str(error)
    if got.shape != case.expected.shape or got.dtype != case.expected.dtype:
        raise AssertionError(f"{engine.name}: {case.operation} gave {got.dtype} {got.shape}")
    apart = np.abs(got.astype(np.float64) - case.expected.astype(np.float64))
    return got.size, int((apart > 0).sum()), float(apart.max(initial=0)), ""


def markdown(results: Sequence[Result], versions: dict[str, str], machine: str) -> str:
    """Return the table of operations × engines as Markdown."""
    engines = list(dict.fromkeys(r.engine for r in results))
    cells = {(r.operation, r.corner, r.engine): r for r in results}
    rows = list(dict.fromkeys((r.operation, r.corner) for r in results))
    lines = [f"| operation | corner | {' | '.join(engines)} |", "|---|---|" + "---|" * len(engines)]
    for operation, corner in rows:
        shown = [_cell(cells.get((operation, corner, engine))) for engine in engines]
        lines.append(f"| {operation} | {corner} | {' | '.join(shown)} |")
    notes = [f"- {engine}: {versions[engine]}" for engine in engines]
    return "\n".join([*lines, "", f"Machine: {machine}", *notes, ""])


def _cell(result: Result | None) -> str:
    if result is None or result.reason:
        return "–"
    if not result.differ:
        return "**0**"
    return f"{result.differ:,} of {result.elements:,}, up to {result.largest:g}"


def to_json(results: Sequence[Result], versions: dict[str, str], machine: str) -> dict[str, Any]:
    """Return the results as JSON values."""
    return {"machine": machine, "versions": versions, "results": [asdict(r) for r in results]}
