"""``intact8 verify``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import AsJson, Debug, friendly, print_json, progress_bar, stdout
from intact8.cli.data import Arrays, batches, load
from intact8.cli.inputs import feed_names

DIFFERENT = 1


def verify(
    file: options.ProgramFile,
    data: Annotated[Path | None, typer.Option(help=options.DATA_HELP + " Random ones by default.")] = None,
    engines: Annotated[str, typer.Option(help="Engines to compare, separated by commas.")] = "reference,onednn",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first this many; all, or 32 random ones.")] = None,
    batch_size: options.BatchSize = 8,
    seed: options.Seed = 0,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = "0,0,0",
    std: options.Std = "1,1,1",
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare every integer tensor of the program between engines. Exit status 1 when one integer differs.

    \b
    Examples:
      intact8 verify resnet.safetensors
      intact8 verify resnet.safetensors --data images.npy --engines reference,onednn
      intact8 verify resnet.safetensors --data images/ --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --json
    """
    with friendly(debug):
        from intact8.program.program import Program
        from intact8.program.samples import random_samples
        from intact8.verification import verify as compare

        program = Program.load(file, public_key=public_key, expect=expect)
        if data is None:
            source: Any = Arrays(random_samples(program, samples or 32, seed))
        else:
            source = load(data, keys=key or (), preprocessing=options.preprocessing(size, mean, std))
        feeds = feed_names(program, source, bool(key) or data is None)
        total = len(source) if samples is None else min(samples, len(source))
        with progress_bar() as bar:
            task = bar.add_task("verify", total=total)

            def inputs() -> Iterator[dict[str, Any]]:
                for batch in batches(source, batch_size, samples):
                    yield {name: batch[entry] for name, entry in feeds.items()}
                    bar.advance(task, len(next(iter(batch.values()))))

            report = compare(program, inputs(), engines=options.names(engines))
        if as_json:
            print_json(report.to_json())
        else:
            stdout().print(report)
        if not report.exact:
            raise typer.Exit(DIFFERENT)
