"""``intact8 compare``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import AsJson, Debug, friendly, print_json, progress_bar, stdout
from intact8.cli.data import batches, load
from intact8.cli.inputs import tensors
from intact8.cli.models import entries_for, load_model


def compare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="package.module:factory of the float network.")],
    file: options.ProgramFile,
    data: Annotated[Path, typer.Option(help=options.DATA_HELP)],
    state_dict: Annotated[
        Path | None, typer.Option(help="Weights: .safetensors, or a torch.save file (read with weights_only).")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, or the engine that computes the integers.")] = "auto",
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first this many; all by default.")] = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = "0,0,0",
    std: options.Std = "1,1,1",
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare a float network with its program, layer by layer: every layer by itself, and where it stands.

    \b
    Examples:
      intact8 compare mynets:resnet resnet.safetensors --data images.npy
      intact8 compare torchvision.models:resnet18 resnet.safetensors --state-dict resnet18.pth --data images/ \\
          --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --samples 64
      intact8 compare mynets:resnet resnet.safetensors --data images.npy --json | jq '.rows[].own.sqnr'
    """
    with friendly(debug):
        import intact8

        source = load(data, keys=key or (), preprocessing=options.preprocessing(size, mean, std))
        network = load_model(model, state_dict)
        named = len(source.names) > 1 and not key
        names = entries_for(network, source.names) if named else source.names
        total = len(source) if samples is None else min(samples, len(source))
        with progress_bar() as bar:
            task = bar.add_task("compare", total=total)

            def inputs() -> Iterator[Any]:
                for batch in batches(source, batch_size, samples):
                    yield tensors(batch, names, named)

            found = intact8.compare(
                network, intact8.Program.load(file, public_key=public_key, expect=expect), inputs(), engine=engine,
                progress=lambda done: bar.update(task, completed=done),
            )  # fmt: skip
        if as_json:
            print_json(found.to_dict())
        else:
            stdout().print(found)
