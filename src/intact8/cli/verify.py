"""``intact8 verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import print_result, progress_bar
from intact8.cli.data import Arrays, Data, count
from intact8.cli.inputs import feeds, tracked
from intact8.cli.models import load_guarded

DIFFERENT = 1


def verify(
    file: options.ProgramFile,
    data: Annotated[Path | None, typer.Option(help=options.DATA_HELP + " Random ones by default.")] = None,
    engines: Annotated[
        str | None,
        typer.Option(help="Engines to compare, separated by commas; native and onednn where they can run by default."),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first this many; all, or 32 random ones.")] = None,
    batch_size: options.BatchSize = 8,
    seed: options.Seed = 0,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare every integer tensor of the program between engines. Exit status 1 when one integer differs.

    \b
    Examples:
      intact8 verify resnet.safetensors
      intact8 verify resnet.safetensors --data images.npy --engines reference,onednn
      intact8 verify resnet.safetensors --data images/ --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --json
    """
    from intact8.program.samples import random_samples
    from intact8.verification import verify as compare

    program = load_guarded(file, public_key, expect, [1, batch_size], every_tensor=True)
    if data is None:
        source: Data = Arrays(random_samples(program, samples or 32, seed))
    else:
        source = options.samples(data, key, size, mean, std)
    inputs = feeds(program, source, batch_size, samples, bool(key) or data is None)
    with progress_bar() as bar:
        found = tracked(bar, "verify", count(source, samples), inputs)
        report = compare(program, found, engines=None if engines is None else options.names(engines))
    print_result(report, report.to_json, as_json)
    if not report.exact:
        raise typer.Exit(DIFFERENT)
