"""Tables in notebooks: headings, captions, nothing unescaped."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tests.diagnose.networks import calibrated, data, net

import intact8
from intact8.diagnose.lint.finding import Finding, LintReport
from intact8.display import Column, Grid, number, percent
from intact8.exporting.report import ExportReport
from intact8.migration.report import MigrationReport
from intact8.program import inspect


class Table(HTMLParser):
    """Collects tags and text; refuses tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.scopes: list[str | None] = []
        self.caption = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "th":
            self.scopes.append(dict(attrs).get("scope"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
        elif self.open and self.open[-1] == "caption":
            self.caption += data


def text_of(view: object) -> str:
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(view)
    return console.export_text()


def test_everything_is_escaped_and_headed() -> None:
    grid = Grid((Column("a<b", "left"), Column("n")), (("<script>[red]x", "1"),), "1 < 2")
    html = grid.to_html()
    assert "<script>" not in html
    table = Table(html)
    assert table.cells == ["a<b", "n", "<script>[red]x", "1"] and table.scopes == ["col", "col", "row"]
    assert table.caption == "1 < 2"
    assert "[red]x" in text_of(grid)


def test_programs_and_reports_show_as_tables() -> None:
    sim = calibrated(net(), data())
    program = intact8.convert(sim)
    for view, rows in [
        (program, [op.name for op in program.ops]),
        (report := intact8.compare(net(), sim, data()), [row.name for row in report]),
        (found := intact8.sensitivity(sim, data(), greedy=1), [row.name for row in found]),
    ]:
        table = Table(view._repr_html_())  # type: ignore[attr-defined]
        columns = table.scopes.count("col")
        assert table.cells[columns::columns] == rows
        assert table.scopes.count("row") == len(rows) and table.caption
    assert "cascade SQNR dB" in text_of(report) and "1: " in text_of(found)


def test_numbers_in_cells() -> None:
    assert [number(v) for v in (None, 0.0, 12345.0, 1e-9)] == ["", "0", "1.23e+04", "1e-09"]
    assert [percent(v) for v in (None, 0.0, 1.0, 0.9999999, 1e-7)] == ["", "0", "100 %", "100 %", "1e-05 %"]


def test_everything_returned_is_readable(tmp_path: Path) -> None:
    """Printed, nothing is a dataclass on one line or an address; a notebook has HTML for all of it."""
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.randn(64, 4)
    sim = intact8.prepare(model, x)
    waiting = str(sim)
    calibration = intact8.calibrate(sim, x)
    program = intact8.convert(sim)
    file = program.save(tmp_path / "x.safetensors")
    returned: list[Any] = [
        sim,
        calibration,
        program,
        inspect.table(program),
        intact8.recipes.default(),
        intact8.verify(program, x[:2], engines=("reference",)),
        intact8.evaluate([model, program], [(x, torch.zeros(64, dtype=torch.int64))]),
        intact8.compare(model, sim, x),
        intact8.sensitivity(sim, x),
        intact8.lint(program),
        LintReport(
            (Finding("IQ101", "reused-module", "note", "called twice", "make two"),), "model", "Net", ("IQ101",), {}
        ),
        intact8.report(program, x, seconds=0.0),
        loaded := intact8.runtime.load(file, engine="reference"),
        loaded.info,
        MigrationReport("torch.ao"),
        ExportReport("onnx", (file,), "onnxruntime 1", True, 10, ()),
    ]
    for value in returned:
        name, text = type(value).__name__, str(value)
        assert not text.startswith(f"{name}(") and " object at 0x" not in text and len(text) > 20, name
        assert "<" in value._repr_html_(), name
    assert "float32[None, 4]" in str(loaded.info)
    assert str(intact8.train.Schedule(freeze_scales=3)).endswith("freeze_scales=3: 0 epochs done>")
    assert "2 tensors wait for calibration" in waiting and "phase calibrated" in str(sim)
    assert len(str(returned[7].worst(1))) < 1000, "tuples of every channel are left out"
    headings = str(returned[7]).splitlines()[:4]
    assert any("saturated" in line for line in headings), "words of headings are not broken"
