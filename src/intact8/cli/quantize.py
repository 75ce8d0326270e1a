"""``intact8 quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, progress_bar, report_written
from intact8.cli.data import count
from intact8.cli.inputs import model_inputs, tracked
from intact8.cli.models import load_model
from intact8.errors import InputError


def quantize(
    model: options.Model,
    data: options.Samples,
    output: Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "program.safetensors"
    ),
    recipe: options.RecipeName = "default",
    state_dict: options.StateDict = None,
    example_shape: Annotated[
        str | None, typer.Option(metavar="N,C,H,W", help="Shape to capture with; the data's own by default.")
    ] = None,
    samples: options.Limit = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT:DIM=NAME", help="A dimension that may change, limits after it: ids:1=sequence:1-512."
        ),
    ] = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    as_json: options.AsJson = False,
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
    import torch

    import intact8

    source = options.samples(data, key, size, mean, std)
    network = load_model(model, state_dict)
    example = next(model_inputs(network, source, bool(key), min(2, batch_size)))
    if example_shape is not None:
        if not isinstance(example, torch.Tensor):
            raise InputError("is for networks with one input", where="--example-shape", remedy="leave it out")
        example = torch.zeros(options.shape(example_shape), dtype=example.dtype)
    with progress_bar() as bar:
        inputs = model_inputs(network, source, bool(key), batch_size, samples)
        calibration = tracked(bar, "calibrate", count(source, samples), inputs)
        shapes = options.dynamic(dynamic)
        program = intact8.quantize(network, calibration, recipe=recipe, example_inputs=example, dynamic_shapes=shapes)
    program.save(output)
    islands = program.islands()
    facts = {
        "file": str(output),
        "operations": len(program.ops),
        "integer_tensors": len(program.integer_tensors()),
        "bytes": output.stat().st_size,
        "float_operations": [{"name": op.name, "kind": op.kind, "note": op.note} for op in islands],
    }
    said = (
        f"{output}: {facts['operations']} operations, {facts['integer_tensors']} integer tensors, "
        f"{len(islands)} float operations, {facts['bytes']:,} bytes"
    )
    floats = [f"  stays float: {op.name} ({op.kind.removeprefix('float.')}) {op.note}" for op in islands]
    report_written("\n".join([said, *floats]), facts, as_json)
