"""The numbers of a report as tables in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from intact8.diagnose.report.formatting import amount, decibel, milliseconds, proof, size
from intact8.display import Column, Grid, inert, number, percent
from intact8.text import printable

if TYPE_CHECKING:
    from intact8.diagnose.report.contents import Layer, Report

STYLES = {"error": "bold red", "warning": "yellow", "note": "default"}
TEXTS = ("operation", "kind", "runs as", "activation", "proof")
"""Columns that do not hold numbers."""


def show(report: Report) -> Group:
    """Return the program in numbers, a table of operations, and the findings of lint."""
    parts: list[RenderableType] = [_summary(report), _layers(report)]
    if report.findings:
        parts.append(_findings(report))
    if report.other is not None:
        parts.append(_summary(report.other))
    return Group(*parts)


def _summary(report: Report) -> Table:
    c, speed = report.counts, report.speed
    table = Table(title=inert(report.title), title_justify="left", title_style="bold", show_header=False)
    found = Counter(f.severity for f in report.findings)
    counts = [f"{found[severity]} {severity}{'s' * (found[severity] != 1)}" for severity in STYLES if found[severity]]
    rows = {
        "proved exact": f"{c.certified} of {c.certifiable} integer operations",
        "stayed float": f"{c.floats} of {c.ops} operations",
        "size": f"{size(c.bytes)}, {amount(c.macs)} multiplications a sample",
        "needs": ", ".join(report.needs) or "nothing special",
        "findings": ", ".join(counts) or "none",
    }
    if speed is not None:
        threads = "" if speed.threads is None else f", {speed.threads} threads"
        quartiles = f"{milliseconds(speed.whole.lower)}–{milliseconds(speed.whole.upper)}"
        beside = "" if speed.float32 is None else f"; float32 {milliseconds(speed.float32.median)} ms"
        rows["one run"] = (
            f"{milliseconds(speed.whole.median)} ms ({quartiles}) on {speed.engine}, batch {speed.batch}{threads}, "
            f"{speed.data} samples{beside}"
        )
    if report.accuracy is not None:
        a = report.accuracy
        beside = "" if a.float32 is None else f", float32 {percent(a.float32)}"
        rows["accuracy"] = f"{percent(a.int8)}{beside}, {a.samples} samples"
    if report.compared:
        rows["SQNR at the end"] = f"{decibel(report.end_sqnr)} dB over {report.compared} samples"
    for what, text in rows.items():
        table.add_row(what, inert(text))
    for step in report.next_steps:
        table.add_row("to do next", inert(step))
    return table


def _layers(report: Report) -> Grid:
    compared, scored, timed = bool(report.compared), report.metric is not None, report.speed is not None
    columns: list[tuple[str, bool, Callable[[Layer], str]]] = [
        ("operation", True, lambda layer: layer.name),
        ("kind", True, lambda layer: layer.kind),
        ("runs as", True, lambda layer: layer.runs_as),
        ("scale", True, lambda layer: number(layer.scale, 4)),
        ("zero point", True, lambda layer: "" if layer.zero_point is None else str(layer.zero_point)),
        ("lowest", True, lambda layer: number(layer.real_low, 4)),
        ("highest", True, lambda layer: number(layer.real_high, 4)),
        ("activation", True, lambda layer: layer.activation_function),
        ("own SQNR dB", compared, lambda layer: decibel(layer.own_sqnr)),
        ("cascade SQNR dB", compared, lambda layer: decibel(layer.cascade_sqnr)),
        ("sensitivity", scored, lambda layer: number(layer.sensitivity, 4)),
        ("time ms", timed, lambda layer: milliseconds(layer.time.median if layer.time else None)),
        ("share", timed, lambda layer: percent(report.share_of_time(layer))),
        ("proof", True, lambda layer: proof(layer.certificate)),
    ]
    chosen = {title: cell for title, wanted, cell in columns if wanted}
    rows = tuple(tuple(cell(layer) for cell in chosen.values()) for layer in report.layers)
    return Grid(tuple(Column(title, "left" if title in TEXTS else "right") for title in chosen), rows)


def _findings(report: Report) -> Table:
    table = Table("rule", "", "where", "what, and what to do", title="findings", title_justify="left")
    for f in report.findings:
        severity = Text(f.severity, STYLES[f.severity])
        table.add_row(inert(f.id), severity, inert(f.where), Text(f"{printable(f.message)}\n→ {printable(f.remedy)}"))
    return table
