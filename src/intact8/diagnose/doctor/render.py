"""A doctor's report as rich tables and as HTML."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from intact8.display import Grid, columns, inert, number, percent
from intact8.text import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from intact8.diagnose.doctor.report import DoctorReport

SHOWN = 12
"""Findings shown."""

_STYLE = {"error": "bold red", "warning": "yellow", "note": "dim"}


def sqnr(noise: float) -> str:
    """Format noise over signal as SQNR in dB."""
    return "exact" if noise <= 0 else f"{-10 * math.log10(noise):.1f} dB"


def findings(report: DoctorReport) -> Grid:
    """Return the findings as a table, the worst first."""
    titles = columns("<place", "<cause", "<severity", "noise", "<measured", "<remedy")
    rows = tuple(
        (f.place, f.cause, f.severity, sqnr(f.noise) if f.noise else "", f.message, f.remedy)
        for f in report.findings[:SHOWN]
    )
    more = len(report.findings) - len(rows)
    caption = "noise: what would go away, as signal over noise of the outputs" + (f"; {more} more" if more > 0 else "")
    return Grid(titles, rows, caption if rows else "nothing was found")


def outcomes(report: DoctorReport) -> Grid:
    """Return the outcomes as a table: float, before, after."""
    rows = tuple((o.name, number(o.metric, 4), sqnr(o.noise)) for o in report.outcomes)
    caption = f"on {report.samples.get('held_out', 0)} held-out samples"
    return Grid(columns("<network", report.metric, "signal over noise"), rows, caption)


def trials(report: DoctorReport) -> Grid:
    """Return the remedies tried as a table."""
    titles = columns("<tried", "<for", report.metric, "signal over noise", "<kept")
    rows = []
    for t in report.trials:
        cause, kept = f"{t.place}: {t.cause}" if t.cause else "", "yes" if t.accepted else ""
        rows.append((t.remedy, cause, number(t.metric, 4), sqnr(t.noise), kept))
    return Grid(titles, tuple(rows), f"on {report.samples.get('examined', 0)} samples to choose by")


def calibration(report: DoctorReport) -> Grid:
    """Return the quality of the calibration data as a table."""
    q = report.calibration
    furthest = f"number {q.extreme_sample}: {q.extreme_ratio:.3g} times the others, most at {q.extreme_tensor}"
    rows = [
        ("samples, different ones", f"{q.samples}, {q.distinct}"),
        ("1 % … 99 % of the inputs", f"{q.input_quantiles[0]:.3g} … {q.input_quantiles[1]:.3g}"),
        ("… of the data", f"{q.data_quantiles[0]:.3g} … {q.data_quantiles[1]:.3g}"),
        ("furthest sample", furthest),
        ("width of ranges by samples", ", ".join(f"{n}: {percent(w)}" for n, w in q.convergence)),
        ("ranges still growing", f"{len(q.unconverged)}"),
    ]
    if q.classes is not None and q.data_classes is not None:
        rows.insert(1, ("classes the network sees", f"{q.classes:.1f}, in the data {q.data_classes:.1f}"))
    if q.batch_dependence is not None:
        rows.append(("scales depend on the batch size by", percent(q.batch_dependence)))
    return Grid(columns("<calibration data", "<"), tuple(rows))


def _summary(report: DoctorReport) -> list[str]:
    c = report.confidence
    check = "is the float network" if c.passed else "IS NOT the float network"
    lines = [f"Simulation without rounding {check} (largest difference {c.error:.1e} of the largest output)."]
    done, every = report.measured
    if 0 < done < every:
        lines.append(f"The noise of {done} of {every} sites was measured in the time there was; budget gives more.")
    if report.recovered is not None:
        lines.append(f"Remedies won back {report.recovered:.0%} of the {report.metric} that quantizing lost.")
    if report.recalibrate:
        lines.append("The recipe counts on better calibration data than was given.")
    return [*lines, f"Verdict: {report.verdict.reason}."]


def as_rich(report: DoctorReport) -> Group:
    """Render the whole report for the terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    *lines, verdict = _summary(report)
    parts: list[Padding | Text | Table] = [inert(line) for line in lines]
    for i, f in enumerate(report.findings[:SHOWN], 1):
        noise = f", {sqnr(f.noise)}" if f.noise else ""
        parts.append(inert(f"{i}. {f.place}: {f.cause} ({f.severity}{noise})", _STYLE[f.severity]))
        parts.append(Padding(Text(f"{printable(f.message)}.\nRemedy: {printable(f.remedy)}."), (0, 0, 0, 3)))
    more = len(report.findings) - SHOWN
    if more > 0:
        parts.append(Text(f"… and {more} more"))
    if not report.findings:
        parts.append(Text("Nothing was found.", style="green"))
    parts += [table(report).__rich__() for table in (calibration, trials, outcomes)]
    return Group(*parts, inert(verdict, "green" if report.verdict.pays else "bold red"))


def as_html(report: DoctorReport) -> str:
    """Render the whole report for a notebook."""
    lines = "".join(f"<p>{html.escape(printable(line))}</p>\n" for line in _summary(report))
    return lines + "\n".join(table(report).to_html() for table in (findings, calibration, trials, outcomes))
