"""What the command line says on stderr: progress, warnings, and errors as one red line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from intact.errors import IntactError

FAILED = 2
INTERRUPTED = 130  # what shells expect of a process that SIGINT ended: 128 + 2

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")]


def stdout() -> Console:
    """The console for results; made anew, so that it writes to the stdout of the moment."""
    return Console()


def stderr() -> Console:
    """The console for everything that is not a result."""
    return Console(stderr=True)


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
        except (IntactError, OSError) as error:
            if debug:
                raise
            _fail(str(error))
        except Exception as error:  # the outermost boundary; --debug shows what it hides
            if debug:
                raise
            _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)")


def _fail(text: str) -> None:
    line = " ".join(text.split())
    stderr().print(Text(f"error: {line}", style="bold red"), soft_wrap=True)
    raise typer.Exit(FAILED)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    if category.__module__.split(".")[0] == "intact":
        stderr().print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def progress_bar() -> Progress:
    """A bar on stderr, so that what is printed on stdout can be piped; it vanishes when done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
