"""Which cases run on every change: chosen by name, so that another version of torch chooses the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from .case import Case, Finding
from .judge import judge


def chosen(cases: Iterable[Case], one_in: int) -> list[Case]:
    """About one case in ``one_in``, whatever others there are."""
    return [case for case in cases if zlib.crc32(case.name.encode()) % one_in == 0]


def share(cases: list[Case], part: int, parts: int) -> list[Case]:
    """Every ``parts``-th case: the work of one test of several."""
    return cases[part::parts]


def faults(cases: Iterable[Case], *, training: bool = False) -> tuple[list[Finding], list[str]]:
    """What was found, and every rule that was broken, as text."""
    findings = [judge(case, training=training) for case in cases]
    return findings, [f"{finding.name}: {fault}" for finding in findings for fault in finding.faults]
