"""``intact8 evaluate``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result, progress_bar, show_completed
from intact8.cli.data import count
from intact8.cli.inputs import feeds, labelled, with_labels
from intact8.cli.models import find_metric, load_guarded, load_model


def evaluate(
    file: options.ProgramFile,
    data: options.Samples,
    labels: options.Labels,
    model: Annotated[
        str | None, typer.Option(help="package.module:factory of the float32 network, measured beside the program.")
    ] = None,
    state_dict: options.StateDict = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="top1, top5, or package.module:function of (outputs, labels); repeat it. top1 by default."),
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, native, reference …")] = "auto",
    state: Annotated[
        Path | None, WRITTEN, typer.Option(help="Keep scores here; an interrupted evaluation goes on from them.")
    ] = None,
    samples: options.Limit = None,
    batch_size: options.BatchSize = 64,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure accuracy: the program and, with --model, the float network on the same samples, with the difference.

    \b
    Examples:
      intact8 evaluate resnet.safetensors --data validation.npz --labels y
      intact8 evaluate resnet.safetensors --model mynets:resnet --data validation.npz --labels y --metric mynets:f1
      intact8 evaluate resnet.safetensors --model mynets:resnet --data images/ --labels labels.npy --mean 0.5 --std 0.5
    """
    import torch

    import intact8

    program = load_guarded(file, public_key, expect, [batch_size])
    source, classes = labelled(data, labels, key, size, mean, std)
    networks = {} if model is None else {"float32": load_model(model, state_dict)}
    total = count(source, samples)

    parts = feeds(program, source, batch_size, samples, bool(key))
    inputs = (tuple(torch.tensor(batch[name]) for name in program.inputs) for batch in parts)
    batches = with_labels(inputs, torch.from_numpy(classes))
    metrics = [find_metric(name) for name in metric or ["top1"]]
    with progress_bar() as bar:
        progress = partial(show_completed, bar, bar.add_task("evaluate", total=total))
        found = intact8.evaluate(
            {**networks, "int8": program}, batches, metrics, engine=engine, progress=progress, state=state
        )
    print_result(found, found.to_dict, as_json)
