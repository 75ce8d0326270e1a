"""Tables that print with rich in a terminal and as accessible HTML in a notebook; what they show is inert in both."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from intact8.text import printable, printable_lines

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDTH = 120
"""Characters of a line where no terminal says how wide it is."""

_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:0.15em 0.6em;vertical-align:top;text-align:"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and where its cells are aligned."""

    title: str
    align: Literal["left", "right"] = "right"


def columns(*titles: str) -> tuple[Column, ...]:
    """Return the columns by their headings; cells below a heading that begins with ``<`` are aligned to the left.

    Example:
        >>> columns("<layer", "SQNR dB")[0]
        Column(title='layer', align='left')
    """
    return tuple(Column(t.removeprefix("<"), "left" if t.startswith("<") else "right") for t in titles)


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """Text in rows and columns; the first cell of a row names the row.

    Attributes:
        columns: headings.
        rows: as many cells per row as there are columns.
        caption: what the table shows, in a sentence.

    Example:
        >>> grid = Grid((Column("layer", "left"), Column("SQNR dB")), (("conv1", "31.2"),), "one layer")
        >>> "<th scope='row'" in grid.to_html()
        True
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(caption=inert(self.caption) if self.caption else None, caption_justify="left")
        for column in self.columns:
            table.add_column(inert(column.title), justify=column.align, overflow="fold")
        for row in self.rows:
            table.add_row(*map(inert, row))
        return table

    def to_html(self) -> str:
        """Return a ``<table>`` with a caption and headings of rows and columns; everything in it is escaped."""
        head = "".join(f"<th scope='col' style='{_CELL}{c.align}'>{_html(c.title)}</th>" for c in self.columns)
        body = "".join(f"<tr>{self._cells(row)}</tr>\n" for row in self.rows)
        caption = f"<caption style='caption-side:bottom;text-align:left'>{_html(self.caption)}</caption>\n"
        return (
            f"<table style='{_STYLE}'>\n{caption if self.caption else ''}"
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
        )

    def _cells(self, row: tuple[str, ...]) -> str:
        out = []
        for i, (cell, column) in enumerate(zip(row, self.columns, strict=True)):
            tag, scope = ("th", " scope='row'") if i == 0 else ("td", "")
            out.append(f"<{tag}{scope} style='{_CELL}{column.align}'>{_html(cell)}</{tag}>")
        return "".join(out)


class Shown:
    """Base of reports that have ``__rich__``: ``print`` and notebooks show what a terminal shows.

    Example:
        >>> class Answer(Shown):
        ...     def __rich__(self):
        ...         return Grid((Column("answer"),), (("42",),)).__rich__()
        >>> "42" in str(Answer())
        True
    """

    def __rich__(self) -> Any:
        """Return what rich prints."""
        raise NotImplementedError

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, markup=False, emoji=False, color_system=None)
        shown = self.__rich__()
        # A table with many columns is wider than a line, so that its headings are broken between words.
        console.width = max(WIDTH, min(2 * WIDTH, _words(shown)))
        with console.capture() as captured:
            console.print(shown)
        return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())

    def _repr_html_(self) -> str:
        return f"<pre>{_escaped(printable_lines(str(self)))}</pre>"


def _words(shown: Any) -> int:
    """Return the width at which no word of a table's headings is broken; 0 for what is no table."""
    titles = [str(column.header).split() for column in getattr(shown, "columns", ())]
    return sum(3 + max(map(len, words), default=0) for words in titles) + 60


def _html(text: str) -> str:
    return _escaped(printable(text))


def _escaped(text: str) -> str:
    import html  # three milliseconds of every load, for notebooks

    return html.escape(text)


def inert(text: str, style: str = "") -> Text:
    """For rich: what the text says and nothing else. Names may hold brackets, which are no markup here, and sequences
    that would reach the terminal."""
    from rich.text import Text

    return Text(printable(text), style)


def titled_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return a rich table with a title on its left; cells that are plain text are shown inert."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(inert(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def number(value: float | None, digits: int = 3) -> str:
    """Return the text of a number in a cell: significant digits, empty for None.

    Example:
        >>> number(0.0123456), number(None)
        ('0.0123', '')
    """
    return "" if value is None else f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """A share as percent: small ones keep two digits, none at all is 0, and only the whole is 100.

    Example:
        >>> percent(0.5), percent(0.00012), percent(0.0), percent(0.99999)
        ('50 %', '0.012 %', '0', '99.999 %')
    """
    if share is None:
        return ""
    if share == 0:
        return "0"
    value = 100 * share
    if 99.5 <= value < 100:
        return f"{value:.5g} %"
    return f"{value:.3g} %" if value >= 1 else f"{value:.2g} %"
