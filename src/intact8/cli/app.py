"""The command ``intact8`` with all its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from intact8 import __version__
from intact8.cli.bench import bench
from intact8.cli.check import check
from intact8.cli.compare import compare
from intact8.cli.console import command
from intact8.cli.demo import demo
from intact8.cli.doctor import doctor
from intact8.cli.evaluate import evaluate
from intact8.cli.export import export
from intact8.cli.inspect import inspect
from intact8.cli.lint import lint
from intact8.cli.migrate import migrate
from intact8.cli.quantize import quantize
from intact8.cli.report import report
from intact8.cli.run import run
from intact8.cli.sensitivity import sensitivity
from intact8.cli.sign import sign
from intact8.cli.tune import tune
from intact8.cli.verify import verify

app = typer.Typer(
    name="intact8",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 fine, 1 integers differ (verify), something was found (lint), int8 does not pay "
    "(doctor) or it would not load (check), 2 an error, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intact8 {__version__}")
        raise typer.Exit


@app.callback()
def _intact(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """int8 quantization for PyTorch whose simulated integers equal the deployed ones, bit for bit."""


FIRST_STEPS = (demo, quantize, migrate, inspect, verify)
DIAGNOSIS = (evaluate, compare, sensitivity, report, lint, doctor, tune)
DEPLOYMENT = (check, run, export, sign, bench)

for function in (*FIRST_STEPS, *DIAGNOSIS, *DEPLOYMENT):
    app.command()(command(function))
