"""The commands, gathered."""

from __future__ import annotations

from typing import Annotated

import typer

from intact import __version__
from intact.cli.bench import bench
from intact.cli.check import check
from intact.cli.compare import compare
from intact.cli.demo import demo
from intact.cli.doctor import doctor
from intact.cli.export import export
from intact.cli.inspect import inspect
from intact.cli.lint import lint
from intact.cli.quantize import quantize
from intact.cli.report import report
from intact.cli.run import run
from intact.cli.sensitivity import sensitivity
from intact.cli.sign import sign
from intact.cli.verify import verify

app = typer.Typer(
    name="intact",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 fine, 1 integers differ (verify), something was found (lint), int8 does not pay "
    "(doctor) or it would not load (check), 2 an error, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intact {__version__}")
        raise typer.Exit


@app.callback()
def _intact(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """int8 quantization for PyTorch whose simulated integers equal the deployed ones, bit for bit."""


for command in (
    demo, quantize, inspect, verify, compare, sensitivity, report, lint, doctor, check, run, export, sign, bench,
):  # fmt: skip
    app.command()(command)
