"""Lint reports for people: a table for the terminal and for notebooks, and a line that sums up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact8.display import Column, Grid

if TYPE_CHECKING:
    from .finding import LintReport


COLUMNS = tuple(Column(title, "left") for title in ("rule", "severity", "place", "what", "remedy"))


def summary(report: LintReport) -> str:
    """One line: how much was found, by how many rules, and what could not be checked.

    Example:
        >>> from intact8.diagnose.lint.finding import LintReport
        >>> summary(LintReport((), "model", "Net", ("IQ101", "IQ102"), {"IQ303": "data"}))
        'Net (model): nothing found by 2 rules; 1 rule could not run (data: IQ303)'
    """
    counts = [_many(n, severity) for severity, n in report.counts().items() if n]
    text = f"{report.name} ({report.subject}): {', '.join(counts) or 'nothing'} found by "
    text += _many(len(report.checked), "rule")
    if report.skipped:
        needs: dict[str, list[str]] = {}
        for rule, need in report.skipped.items():
            needs.setdefault(need, []).append(rule)
        listed = "; ".join(f"{need}: {', '.join(rules)}" for need, rules in needs.items())
        text += f"; {_many(len(report.skipped), 'rule')} could not run ({listed})"
    return text


def grid(report: LintReport) -> Grid:
    """One row per finding."""
    rows = tuple((f"{f.id} {f.name}", f.severity, f.where, f.message, f.remedy) for f in report.findings)
    return Grid(COLUMNS, rows, summary(report))


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
