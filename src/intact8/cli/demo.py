"""``intact8 demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact8.cli.console import WRITTEN, print_result, progress_bar
from intact8.cli.options import Seed


def demo(
    output: Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The program's file.")] = Path(
        "digits.safetensors"
    ),
    seed: Seed = 0,
    as_json: Annotated[
        bool, typer.Option("--json", "--report-json", help="Print the measurements as JSON in place of tables.")
    ] = False,
) -> None:
    """Train a small network on real digits, quantize it, verify every integer and time it. Takes under two minutes.

    \b
    Examples:
      intact8 demo
      intact8 demo --seed 1 -o /tmp/digits.safetensors
      intact8 demo --json > demo.json
    """
    from intact8.demo.run import STAGES, run
    from intact8.demo.tables import show

    with progress_bar() as bar:
        tasks = {stage: bar.add_task(stage, total=1.0) for stage in STAGES}
        report = run(output, seed=seed, progress=lambda stage, share: bar.update(tasks[stage], completed=share))
    print_result(show(report), report.to_json, as_json)
    if not report.verification.exact:
        raise typer.Exit(1)
