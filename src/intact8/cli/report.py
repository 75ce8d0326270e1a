"""``intact8 report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result, stderr
from intact8.cli.inputs import feeds, labelled
from intact8.cli.models import load_guarded, load_model
from intact8.errors import InputError

if TYPE_CHECKING:
    from intact8.program.program import Program


def report(
    file: options.ProgramFile,
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second program, compared with the first.")
    ] = None,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option("--output", "-o", metavar="HTML", help="The page; FILE.report.html by default."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:factory of the float32 network: errors layer by layer.")
    ] = None,
    state_dict: options.StateDict = None,
    data: options.OptionalSamples = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One class index per sample: an entry of the data, or a .npy file."),
    ] = None,
    doctor: Annotated[
        bool, typer.Option("--doctor", help="Ask the doctor what to do next; needs --model and --data.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Quantize one layer at a time, too; needs --model and --data.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1, help="Use the first this many samples.")] = 32,
    engine: Annotated[
        str, typer.Option(help="What is timed: native, onednn or reference; the first that is here by default.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.0, help="Time spent on timing; 0 for none.")] = 3.0,
    batch_size: options.BatchSize = 8,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Write one HTML page about a program: network, errors, ranges, weights, findings, proofs and speed by layer.

    The same figures are printed as tables; with --json as JSON, and then no page is written unless -o asks for it.

    \b
    Examples:
      intact8 report resnet.safetensors
      intact8 report resnet.safetensors --model mynets:resnet --data images.npy --sensitivity -o resnet.html
      intact8 report resnet.safetensors better.safetensors --model mynets:resnet --data test.npz --labels y
      intact8 report resnet.safetensors --json | jq '.layers[] | {name, scale}'
    """
    from intact8.diagnose.report import report as gather

    how: dict[str, Any] = {"batch": [1, batch_size], "every_tensor": True}
    program = load_guarded(file, public_key, expect, **how)
    read, classes = None, None
    if data is None and labels is not None:
        raise InputError("labels without samples", where="--labels", remedy="give them with --data")
    if data is not None:
        if labels is None:
            inputs = options.samples(data, key, size, mean, std)
        else:
            inputs, classes = labelled(data, labels, key, size, mean, std)
        read = list(feeds(program, inputs, batch_size, samples, bool(key)))
        classes = None if classes is None else classes[:samples]
    network = None if model is None else load_model(model, state_dict)
    if network is not None and read is None:
        raise InputError("a network without samples", where="--model", remedy="give them with --data")
    scores = _sensitivity(program, network, read) if sensitivity else None
    found = _doctor(program, network, read, classes) if doctor else None
    timing: dict[str, Any] = {"engine": engine, "seconds": seconds, "batch_size": batch_size}
    timing |= {"labels": classes, "doctor": found}
    timing["other"] = None if other is None else load_guarded(other, public_key, expect, **how)
    title = file.name if model is None else f"{model.rpartition(':')[2]} · {file.name}"
    made = gather(program, read, model=network, sensitivity=scores, title=title, **timing)
    print_result(made, made.to_json, as_json)
    if output is not None or not as_json:
        path = made.save(output or file.with_suffix(".report.html"))
        stderr().print(f"wrote {path.resolve().as_uri()}", soft_wrap=True)


def _doctor(program: Program, network: Any, read: Any, classes: Any) -> Any:
    if network is None:
        raise InputError("needs the float32 network", where="--doctor", remedy="give --model and --data")
    import numpy as np
    import torch

    from intact8.diagnose.doctor import doctor
    from intact8.recipe.recipe import Recipe

    entries, start = [], 0
    for batch in read:
        values = tuple(torch.from_numpy(np.array(batch[name])) for name in program.inputs)
        stop = start + len(values[0])
        entries.append(values if classes is None else (*values, torch.from_numpy(classes[start:stop])))
        start = stop
    return doctor(network, entries, recipe=Recipe.from_toml(program.recipe), seconds=0)


def _sensitivity(program: Program, network: Any, read: Any) -> Any:
    if network is None:
        raise InputError("needs the float32 network", where="--sensitivity", remedy="give --model and --data")
    from intact8.diagnose.sensitivity import sensitivity
    from intact8.recipe.recipe import Recipe

    return sensitivity(network, read, recipe=Recipe.from_toml(program.recipe))
