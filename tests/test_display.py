"""Tables in notebooks: headings, captions, nothing unescaped."""

from __future__ import annotations

import io
from html.parser import HTMLParser

from rich.console import Console
from tests.diagnose.networks import calibrated, data, net

import intact8
from intact8.display import Column, Grid, number, percent


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
