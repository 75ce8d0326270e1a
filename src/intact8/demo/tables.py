"""The demonstration's measurements as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from intact8.demo.run import DemoReport
from intact8.display import inert
from intact8.timing import Timing


def show(report: DemoReport) -> RenderableType:
    """Return everything measured as tables."""
    tables = (_network(report), Text(), report.verification, Text(), _fused(report), Text(), _floats(report))
    return Group(*tables, _closing(report))


def _network(report: DemoReport) -> Table:
    title = f"handwritten digits: {report.images} held-out images, {report.threads} threads"
    table = Table("", "float32", f"int8, {report.engine}", "int8 to float32", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    accuracy, nbytes = report.accuracy, report.nbytes
    points = f"{(accuracy['int8'] - accuracy['float32']) * 100:+.2f} points"
    table.add_row("accuracy", f"{accuracy['float32']:.2%}", f"{accuracy['int8']:.2%}", points)
    ratio = f"{nbytes['int8'] / nbytes['float32']:.2f}×"
    table.add_row("file, bytes", f"{nbytes['float32']:,}", f"{nbytes['int8']:,}", ratio)
    for batch, timings in report.latency.items():
        float32, int8 = timings["float32"], timings["int8"]
        ratio = f"{float32.median / int8.median:.2f}× as fast"
        table.add_row(f"ms, batch {batch}", _milliseconds(float32), _milliseconds(int8), ratio)
    table.caption = "ms: median (quartiles); float32 eager channels-last and int8 take turns in one run"
    return table


def _milliseconds(timing: Timing) -> str:
    return f"{timing.median * 1e3:.3g} ({timing.lower * 1e3:.3g}–{timing.upper * 1e3:.3g})"


def _fused(report: DemoReport) -> Table:
    table = Table("integer operation", "stands for", title="fused: one rounding for everything in a row")
    for op in report.fused:
        table.add_row(inert(f"{op.name} ({op.kind})"), inert(" + ".join(op.source)))
    for op in report.tables:
        table.add_row(inert(f"{op.name} (table)"), inert(f"{op.attrs['fn']}: 256 entries, looked up"))
    return table


def _floats(report: DemoReport) -> RenderableType:
    islands = report.program.islands()
    if not islands:
        return Text("stayed float: nothing between the first quantize and the last dequantize")
    table = Table("operation", "kind", "why", title="stayed float")
    for op in islands:
        table.add_row(*map(inert, (op.name, op.kind.removeprefix("float."), op.note)))
    return table


def _closing(report: DemoReport) -> Text:
    text = Text(f"wrote {report.path} in {report.seconds:.0f} s; look inside with: intact8 inspect {report.path}\n")
    if report.page is None:
        return text.append("for a page about it: pip install 'intact8[report]'")
    uri = report.page.resolve().as_uri()
    return text.append("the network layer by layer: ").append(uri, style=f"link {uri}")
