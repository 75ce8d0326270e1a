"""Output of the commands: results on stdout; progress, warnings, and errors as one red line on stderr.

No string is read as markup, and characters that are not printable are shown as their escapes.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.protocol import rich_cast
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from intact8.errors import InputError, IntactError
from intact8.text import one_line, printable, printable_lines

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FAILED = 2
INTERRUPTED = 130  # what shells expect of a process that SIGINT ended: 128 + 2

EXTRAS = {"jinja2": "report", "onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino", "plotly": "report"}
EXTRAS |= {"PIL": "images", "cryptography": "sign", "sklearn": "demo", "torch": "torch", "transformers": "transformers"}
"""Package → the extra of intact8 that installs it."""

WRITTEN = "written"
"""Among the annotations of a parameter of a command: its file is written."""

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def stdout() -> Console:
    """Return the console for results; a new one each time, so that it writes to the current stdout."""
    return _inert(Console(markup=False, emoji=False))


def stderr() -> Console:
    """Return the console for everything that is not a result."""
    return _inert(Console(stderr=True, markup=False, emoji=False))


def _inert(console: Console) -> Console:
    console.push_render_hook(_Inert())
    return console


def encodable(text: str, encoding: str) -> str:
    """Return text with question marks for what the terminal's, or the pipe's, encoding does not have.

    Example:
        >>> encodable("N×16", "ascii"), encodable("N×16", "utf-8")
        ('N?16', 'N×16')
    """
    return text.encode(encoding, "replace").decode(encoding)


class _Inert(RenderHook):
    """Makes the text of whatever rich renders printable, just before the terminal gets it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap what rich is about to print."""
        return [_Rendered(renderable) for renderable in renderables]


class _Rendered:
    def __init__(self, inside: RenderableType) -> None:
        self.inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in map(rich_cast, self.inside.renderables if isinstance(self.inside, Group) else (self.inside,)):
            shown = _listed(part) if isinstance(part, Table) and _too_wide(part, console, options) else part
            for text, style, control in console.render(shown, options):
                yield Segment(text if control else encodable(printable_lines(text), console.encoding), style, control)


def _too_wide(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Return whether words would be broken into columns of fewer than ten characters."""
    needed = table.__rich_measure__(console, options.update(width=1000)).minimum
    return len(table.columns) * 10 > options.max_width < needed


def _listed(table: Table) -> Text:
    """Return the table with a row per paragraph: its first cell, then headings and cells, without the empty ones."""
    columns = [(str(column.header), (printable(str(cell)) for cell in column.cells)) for column in table.columns]
    rows = zip(*(cells for _, cells in columns), strict=True)
    named = ([f"{title} {cell}" for (title, _), cell in zip(columns, row, strict=True) if cell] for row in rows)
    lines = [str(table.title or ""), *("; ".join(facts) for facts in named), str(table.caption or "")]
    return Text("\n".join(filter(None, lines)))


def print_json(value: Any) -> None:
    """Print JSON on stdout, in ASCII that a terminal shows unchanged."""
    typer.echo(json.dumps(value, indent=2).replace("\x7f", r"\u007f"))


def print_result(table: RenderableType, to_json: Callable[[], Any], as_json: bool) -> None:
    """Print what a command found: the table, or with ``--json`` what ``to_json`` returns."""
    if as_json:
        print_json(to_json())
    else:
        stdout().print(table)


def report_written(text: str, facts: dict[str, Any], as_json: bool) -> None:
    """Say on stderr what a command wrote; with ``--json``, print the facts on stdout instead."""
    if as_json:
        print_json(facts)
    else:
        stderr().print(text, highlight=False)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the additional option ``--debug``; :func:`friendly` shows its errors."""

    @functools.wraps(function)
    def run(*args: Any, debug: bool = False, **options: Any) -> None:
        with friendly(debug):
            for name in written:
                _check_output(options.get(name))
            _keep_what_is_read(options, written)
            function(*args, **options)

    signature = inspect.signature(function, eval_str=True)
    written = [k for k, p in signature.parameters.items() if WRITTEN in getattr(p.annotation, "__metadata__", ())]
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), debug])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, "debug": Debug}
    return run


@contextmanager
def friendly(debug: bool) -> Iterator[None]:
    """Turn errors into one red line and exit status 2, Ctrl-C into 130; with ``debug``, let errors through."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]  # called with four arguments or more
        try:
            yield
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            stderr().print("interrupted; nothing was left half written", style="yellow")
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError as error:
            if debug:
                raise
            _fail(f"memory ran out. Reason: {error}. Remedy: give fewer samples at once (--batch-size), or free memory")
        except (IntactError, OSError) as error:
            if debug:
                raise
            _fail(str(error))
        except ModuleNotFoundError as error:
            if debug:
                raise
            package = (error.name or "").split(".")[0]
            name = f"'intact8[{EXTRAS[package]}]'" if package in EXTRAS else package
            _fail(f"this command needs the package {package}. Remedy: pip install {name}")
        except Exception as error:  # the outermost boundary; --debug shows what it hides
            if debug:
                raise
            _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)")


def _check_output(path: Path | None) -> None:
    """Refuse before an hour of work what could not be written after it."""
    if path is None:
        return
    if not os.path.isdir(path.parent):
        why = f"the folder {path.parent} does not exist"
        raise InputError("cannot write here", where=str(path), why=why, remedy="create the folder, or choose another")
    if os.path.isdir(path):
        raise InputError("is a folder", where=str(path), remedy="give the name of a file inside it")


def _keep_what_is_read(options: dict[str, Any], written: Collection[str]) -> None:
    """Refuse to write over the data, the program or the weights of the same call."""
    files = {k: v for k, v in options.items() if v and isinstance(v, str | Path) and os.path.isfile(v)}
    for target in files.keys() & written:
        for name in files.keys() - {target}:
            if os.path.samefile(files[name], files[target]):
                why, remedy = f"{name.replace('_', ' ')} is the same file", "give another name"
                raise InputError("would be written over", where=str(files[target]), why=why, remedy=remedy)


def _fail(text: str) -> None:
    stderr().print(Text(f"error: {one_line(text)}", style="bold red"), soft_wrap=True)
    raise typer.Exit(FAILED)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    if category.__module__.split(".")[0] == "intact8":
        stderr().print(Text(f"warning: {one_line(str(message))}", style="yellow"), soft_wrap=True)
    else:
        sys.stderr.write(printable_lines(warnings.formatwarning(message, category, filename, lineno)))


def show_completed(bar: Progress, task: TaskID, completed: float) -> None:
    """Show how much of a task is completed."""
    bar.update(task, completed=completed)


def progress_bar() -> Progress:
    """Return a progress bar on stderr, so that stdout can be piped; it vanishes when done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
