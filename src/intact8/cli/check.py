"""``intact8 check``."""

from __future__ import annotations

from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import print_result

WOULD_NOT_LOAD = 1


def check(
    file: options.ProgramFile,
    engine: Annotated[str, typer.Option(help="auto, or engines to try, separated by commas.")] = "auto",
    probe: Annotated[bool, typer.Option(help="Try the engines, each in a child process.")] = True,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds each engine may take.")] = 120.0,
    as_json: options.AsJson = False,
) -> None:
    """Show whether a program loads on this machine: file, proofs, CPU, libraries, memory, a probe of every engine.

    Exit status 1 when it would not load.

    \b
    Examples:
      intact8 check resnet.safetensors
      intact8 check resnet.safetensors --engine onnxruntime --public-key release.pem
      intact8 check resnet.safetensors --no-probe --json | jq .verdict
    """
    from intact8.runtime.check import check_file

    names = "auto" if engine == "auto" else options.names(engine)
    report = check_file(file, names, probe=probe, public_key=public_key, expect=expect, time_limit=time_limit)
    print_result(report, report.to_json, as_json)
    if not report.ok:
        raise typer.Exit(WOULD_NOT_LOAD)
