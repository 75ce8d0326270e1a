"""``intact8 quantize``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import Debug, friendly, progress_bar, stderr
from intact8.cli.data import batches, load
from intact8.cli.inputs import tensors
from intact8.cli.models import entries_for, load_model, load_recipe
from intact8.errors import InputError


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="package.module:factory; called without arguments.")],
    data: Annotated[Path, typer.Option(help=options.DATA_HELP)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("program.safetensors"),
    recipe: Annotated[str, typer.Option(help="A preset of intact8.recipes, or a recipe in TOML.")] = "default",
    state_dict: Annotated[
        Path | None, typer.Option(help="Weights: .safetensors, or a torch.save file (read with weights_only).")
    ] = None,
    example_shape: Annotated[
        str | None, typer.Option(metavar="N,C,H,W", help="Shape to capture with; the data's own by default.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Calibrate on the first this many; all by default.")
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT:DIM=NAME", help="A dimension that may change, limits after it: ids:1=sequence:1-512."
        ),
    ] = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = "0,0,0",
    std: options.Std = "1,1,1",
    debug: Debug = False,
) -> None:
    """Quantize a network, calibrated on DATA, and write it as one file.

    \b
    Examples:
      intact8 quantize mynets:resnet --data calibration.npy -o resnet.safetensors
      intact8 quantize torchvision.models:resnet18 --state-dict resnet18.pth --data images/ \\
          --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --samples 256
      intact8 quantize mynets:tagger --data batch.npz --key tokens --key mask --recipe mine.toml
      intact8 quantize mynets:encoder --data ids.npz --dynamic input_ids:1=sequence --dynamic attention_mask:1=sequence
    """
    with friendly(debug):
        import torch

        import intact8

        chosen = load_recipe(recipe)
        source = load(data, keys=key or (), preprocessing=options.preprocessing(size, mean, std))
        network = load_model(model, state_dict)
        named = len(source.names) > 1 and not key
        names = entries_for(network, source.names) if named else source.names
        example: Any = tensors(next(batches(source, min(2, batch_size))), names, named)
        if example_shape is not None:
            if not isinstance(example, torch.Tensor):
                raise InputError("is for networks with one input", where="--example-shape", remedy="leave it out")
            example = torch.zeros(options.shape(example_shape), dtype=example.dtype)
        with progress_bar() as bar:
            total = len(source) if samples is None else min(samples, len(source))
            task = bar.add_task("calibrate", total=total)

            def calibration() -> Iterator[Any]:
                for batch in batches(source, batch_size, samples):
                    yield tensors(batch, names, named)
                    bar.advance(task, len(next(iter(batch.values()))))

            program = intact8.quantize(
                network, calibration(), recipe=chosen, example_inputs=example, dynamic_shapes=options.dynamic(dynamic)
            )
        program.save(output)
        islands = program.islands()
        stderr().print(
            f"{output}: {len(program.ops)} operations, {len(program.integer_tensors())} integer tensors, "
            f"{len(islands)} float operations, {output.stat().st_size:,} bytes",
            highlight=False,
        )
        for op in islands:
            stderr().print(f"  stays float: {op.name} ({op.kind.removeprefix('float.')}) {op.note}", highlight=False)
