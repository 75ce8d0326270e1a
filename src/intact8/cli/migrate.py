"""``intact8 migrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, report_written
from intact8.cli.inputs import model_inputs
from intact8.cli.models import find_model, find_qconfig

GRAPHS = "a file of a quantized graph: .pt2, .onnx or .xml"


def migrate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{options.MODEL_HELP} Or {GRAPHS}.")],
    data: options.Samples,
    output: Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "program.safetensors"
    ),
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="With the float network as MODEL: a torch.save or TorchScript file of the quantized one."),
    ] = None,
    qconfig: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="With a checkpoint of observers: the QConfig it was prepared with, as "
            "torch.ao.quantization:get_default_qconfig.",
        ),
    ] = None,
    requantize: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A layer whose weight may be quantized anew; a glob.")
    ] = None,
    portable: Annotated[bool, typer.Option("--portable", help="Widen weight scales for CPUs without VNNI.")] = False,
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    as_json: options.AsJson = False,
) -> None:
    """Turn a network that another tool has quantized into a program, with its weights and ranges.

    \b
    Examples:
      intact8 migrate mynets:converted --data images/ -o net.safetensors
      intact8 migrate mynets:Net --checkpoint best_model.pth --data calibration.npy
      intact8 migrate model.pt2 --data calibration.npy
      intact8 migrate model_qdq.onnx --data calibration.npy
    """
    import json

    import intact8

    source = options.samples(data, key, size, mean, std)
    network: Any = model
    if Path(model).suffix in (".pt2", ".onnx", ".xml"):
        from intact8.migration.run import describe

        called = describe(model, requantize=requantize or ()).model
    else:
        network = called = find_model(model)
    batches = list(model_inputs(called, source, bool(key), batch_size, samples or 4 * batch_size))
    wanted: dict[str, Any] = {"requantize": requantize or (), "portable": portable}
    wanted["qconfig"] = None if qconfig is None else find_qconfig(qconfig)
    made = intact8.migrate(network, checkpoint, data=batches, **wanted)
    made.program.save(output)
    report_written(f"{output}: {made.report}", {"file": str(output), **json.loads(made.report.to_json())}, as_json)
