"""The report's figures as tables in the terminal."""

from __future__ import annotations

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


def show(report: Report) -> Group:
    """The program in numbers, one row per operation, and what lint found."""
    parts: list[RenderableType] = [_summary(report), _layers(report)]
    if report.findings:
        parts.append(_findings(report))
    return Group(*parts)


def _summary(report: Report) -> Table:
    c, speed = report.counts, report.speed
    table = Table(title=inert(report.title), title_justify="left", title_style="bold", show_header=False)
    rows = {
        "proved exact": f"{c.certified} of {c.certifiable} integer operations",
        "stayed float": f"{c.floats} of {c.ops} operations",
        "size": f"{size(c.bytes)}, {amount(c.macs)} multiplications a sample",
        "needs": ", ".join(report.needs) or "nothing special",
        "findings": ", ".join(
            f"{n} {severity}{'s' if n != 1 else ''}"
            for severity in STYLES
            if (n := sum(f.severity == severity for f in report.findings))
        ) or "none",
    }  # fmt: skip
    if speed is not None:
        threads = "" if speed.threads is None else f", {speed.threads} threads"
        quartiles = f"{milliseconds(speed.whole.lower)}–{milliseconds(speed.whole.upper)}"
        rows["one run"] = (
            f"{milliseconds(speed.whole.median)} ms ({quartiles}) on {speed.engine}, batch {speed.batch}{threads}, "
            f"{speed.data} samples"
        )
    compared = [layer for layer in report.layers if layer.error is not None]
    if compared:
        rows["SQNR at the end"] = f"{decibel(compared[-1].cascade_sqnr)} dB over {report.compared} samples"
    for what, found in rows.items():
        table.add_row(what, inert(found))
    return table


def _layers(report: Report) -> Grid:
    columns = [
        Column("operation", "left"), Column("kind", "left"), Column("runs as", "left"), Column("scale"),
        Column("zero point"), Column("lowest"), Column("highest"), Column("activation", "left"),
    ]  # fmt: skip
    optional: list[tuple[str, bool, Callable[[Layer], str]]] = [
        ("own SQNR dB", bool(report.compared), lambda layer: decibel(layer.own_sqnr)),
        ("cascade SQNR dB", bool(report.compared), lambda layer: decibel(layer.cascade_sqnr)),
        ("sensitivity", report.metric is not None, lambda layer: number(layer.sensitivity, 4)),
        ("time ms", report.speed is not None, lambda layer: milliseconds(layer.time.median if layer.time else None)),
        ("share", report.speed is not None, lambda layer: percent(report.share_of_time(layer))),
    ]
    chosen = {title: cell for title, wanted, cell in optional if wanted}
    columns += [Column(title) for title in chosen]
    rows = tuple(
        (*_fixed(layer), *(cell(layer) for cell in chosen.values()), proof(layer.certificate))
        for layer in report.layers
    )
    return Grid((*columns, Column("proof", "left")), rows)


def _fixed(layer: Layer) -> tuple[str, ...]:
    return (
        layer.name, layer.kind, layer.runs_as, number(layer.scale, 4),
        "" if layer.zero_point is None else str(layer.zero_point), number(layer.real_low, 4),
        number(layer.real_high, 4), layer.activation_function,
    )  # fmt: skip


def _findings(report: Report) -> Table:
    table = Table("rule", "", "where", "what, and what to do", title="findings", title_justify="left")
    for f in report.findings:
        severity = Text(f.severity, STYLES[f.severity])
        table.add_row(inert(f.id), severity, inert(f.where), Text(f"{printable(f.message)}\n→ {printable(f.remedy)}"))
    return table
