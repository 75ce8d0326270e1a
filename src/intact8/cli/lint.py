"""``intact8 lint``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intact8.atomic_write import write_atomically
from intact8.cli import options
from intact8.cli.console import WRITTEN, print_json, stdout
from intact8.cli.inputs import model_inputs
from intact8.cli.models import find_model, load_program
from intact8.errors import InputError

if TYPE_CHECKING:
    from intact8.diagnose.lint import LintReport

FOUND = 1
FORMATS = ("text", "json", "sarif")


def _list_rules(wanted: bool) -> None:
    if wanted:
        from intact8.diagnose.lint import load

        for rule in load().values():
            typer.echo(f"{rule.id} {rule.severity:<8}{rule.name}: {rule.summary}")
        raise typer.Exit


Rules = Annotated[bool, typer.Option("--rules", callback=_list_rules, is_eager=True, help="List all rules and end.")]


def lint(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A program file, or package.module:factory.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help=options.DATA_HELP + " For models; many rules need some.")] = None,
    select: Annotated[str | None, typer.Option(metavar="IDS", help="Only these rules: IQ301,IQ4 …")] = None,
    ignore: Annotated[str | None, typer.Option(metavar="IDS", help="Not these rules.")] = None,
    format: Annotated[str, typer.Option(help="text, json or sarif.")] = "text",
    output: Annotated[Path | None, WRITTEN, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="The mildest finding that fails: error, warning, note, or never.")
    ] = None,
    rules: Rules = False,
    state_dict: options.StateDict = None,
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Look for the mistakes quantization makes silently: in a program, a float, prepared or torch.ao model.

    Exit status 1 when something is found (see --fail-on). The table tool.intact8.lint of pyproject.toml sets rules and
    fail-on; options given here win.

    \b
    Examples:
      intact8 lint resnet.safetensors
      intact8 lint mynets:resnet --data calibration.npy --ignore IQ101
      intact8 lint resnet.safetensors --format sarif -o lint.sarif --fail-on error
    """
    from intact8.diagnose.lint import config
    from intact8.diagnose.lint import lint as run_rules

    if target is None:
        raise InputError("nothing to lint", where="lint", remedy="name a file, or package.module:factory")
    format = "json" if as_json else format
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}", where="--format", remedy=f"choose {', '.join(FORMATS)}")
    chosen = config.find()
    limit = chosen.fail_on if fail_on is None else config.check_fail_on(fail_on, "--fail-on")
    wanted: Any = {"select": chosen.select if select is None else select}
    wanted["ignore"] = chosen.ignore if ignore is None else ignore
    if ":" in target and not Path(target).is_file():
        if public_key is not None or expect is not None:
            raise InputError("only program files are signed", where="--public-key", remedy="leave it out")
        network = find_model(target, state_dict)
        source = None if data is None else options.samples(data, key, size, mean, std)
        given = None if source is None else list(model_inputs(network, source, bool(key), batch_size, samples))
        report = run_rules(network, data=given, **wanted)
    else:
        if data is not None:
            raise InputError("a program is linted without data", where="--data", remedy="leave it out")
        report = run_rules(load_program(target, public_key, expect), **wanted)
        report = replace(report, name=Path(target).as_posix())
    _show(report, format, output)
    if limit != config.NEVER and report.at_least(limit):
        raise typer.Exit(FOUND)


def _show(report: LintReport, format: str, output: Path | None) -> None:
    if format == "text":
        if output is None:
            stdout().print(report)
        else:
            write_atomically(output, ("\n".join(map(str, report)) + "\n" * bool(len(report))).encode())
        return
    found = report.to_dict() if format == "json" else report.to_sarif()
    if output is None:
        print_json(found)
    else:
        write_atomically(output, (json.dumps(found, indent=2) + "\n").encode())
