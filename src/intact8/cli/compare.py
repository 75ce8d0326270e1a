"""``intact8 compare``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import print_result, progress_bar, show_completed
from intact8.cli.data import count
from intact8.cli.inputs import model_inputs
from intact8.cli.models import load_guarded, load_model


def compare(
    model: options.Model,
    file: options.ProgramFile,
    data: options.Samples,
    state_dict: options.StateDict = None,
    engine: Annotated[str, typer.Option(help="auto, or the engine that computes the integers.")] = "auto",
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare a float network with its program, layer by layer: every layer alone, and within the quantized network.

    \b
    Examples:
      intact8 compare mynets:resnet resnet.safetensors --data images.npy
      intact8 compare torchvision.models:resnet18 resnet.safetensors --state-dict resnet18.pth --data images/ \\
          --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --samples 64
      intact8 compare mynets:resnet resnet.safetensors --data images.npy --json | jq '.rows[].own.sqnr'
    """
    import intact8

    source = options.samples(data, key, size, mean, std)
    network, program = load_model(model, state_dict), load_guarded(file, public_key, expect)
    inputs = model_inputs(network, source, bool(key), batch_size, samples)
    with progress_bar() as bar:
        task = bar.add_task("compare", total=count(source, samples))
        progress = partial(show_completed, bar, task)
        found = intact8.compare(network, program, inputs, engine=engine, progress=progress)
    print_result(found, found.to_dict, as_json)
