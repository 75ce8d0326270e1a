"""``intact8 doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import AsJson, Debug, friendly, print_json, stderr, stdout
from intact8.cli.data import Data, batches, load
from intact8.cli.models import entries_for, load_model, load_recipe
from intact8.errors import InputError

if TYPE_CHECKING:
    from torch import nn

DO_NOT = 1


def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="package.module:factory; called without arguments.")
    ] = None,
    data: Annotated[Path | None, typer.Argument(metavar="[DATA]", help=options.DATA_HELP)] = None,
    env: Annotated[bool, typer.Option("--env", help="Examine this machine in place of a network.")] = False,
    labels: Annotated[
        str | None, typer.Option(metavar="NAME", help="Entry of DATA with one class index per sample.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="What the network is calibrated on; a quarter of DATA by default.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="A preset of intact8.recipes, or a recipe in TOML.")] = "default",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="TOML", help="Write the recipe that applies the remedies.")
    ] = None,
    state_dict: Annotated[
        Path | None, typer.Option(help="Weights: .safetensors, or a torch.save file (read with weights_only).")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Loss of the metric that is accepted.")] = 0.01,
    samples: Annotated[int, typer.Option(min=8, help="Look at the first this many.")] = 2048,
    seconds: Annotated[float, typer.Option(min=0.0, help="For measuring time; 0 leaves it out.")] = 2.0,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = 32,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = "0,0,0",
    std: options.Std = "1,1,1",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find out where a quantized network loses accuracy, why, and what helps; or, with --env, what can run here.

    Ends with a recipe that applies the remedies, and with whether to quantize this at all: exit status 1 when not.

    \b
    Examples:
      intact8 doctor mynets:resnet validation.npz --labels y -o better.toml
      intact8 doctor mynets:resnet validation.npz --labels y --calibration calibration.npy --recipe mine.toml
      intact8 doctor --env
    """
    with friendly(debug):
        if env:
            _environment(as_json)
            return
        if model is None or data is None:
            raise InputError("MODEL and DATA are missing", where="intact8 doctor", remedy="give both, or --env")
        import intact8

        chosen = load_recipe(recipe)
        preprocessing = options.preprocessing(size, mean, std)
        network = load_model(model, state_dict)
        wanted = [*key, *([labels] if labels else [])] if key else ()
        source = load(data, keys=wanted, preprocessing=preprocessing)
        inputs = _inputs(network, source, labels, bool(key))
        given = None
        if calibration is not None:
            shown = load(calibration, keys=key or (), preprocessing=preprocessing)
            given = list(_batches(shown, _inputs(network, shown, None, bool(key)), None, batch_size, samples))
        examined = list(_batches(source, inputs, labels, batch_size, samples))
        with stderr().status("capture") as status:
            report = intact8.doctor(
                network, examined, calibration=given, recipe=chosen, tolerance=tolerance, max_samples=samples,
                seconds=seconds, seed=seed, progress=status.update,
            )  # fmt: skip
        if output is not None:
            report.save_recipe(output)
            stderr().print(f"{output}: the recipe that applies the remedies", highlight=False)
        if as_json:
            print_json(report.to_dict())
        else:
            stdout().print(report)
        if not report.verdict.pays:
            raise typer.Exit(DO_NOT)


def _environment(as_json: bool) -> None:
    from intact8.runtime.environment import environment as examine

    environment = examine()
    if as_json:
        print_json(environment.to_json())
    else:
        stdout().print(environment)


def _inputs(network: nn.Module, source: Data, labels: str | None, chosen: bool) -> tuple[str, ...]:
    """The entries of ``source`` that feed the network, in the order of its arguments."""
    if labels is not None and labels not in source.names:
        raise InputError(
            f"no entry {labels!r}", where="--labels", why=f"the file holds {', '.join(map(repr, source.names))}"
        )
    names = tuple(name for name in source.names if name != labels)
    return names if chosen or len(names) == 1 else entries_for(network, names)


def _batches(data: Data, inputs: tuple[str, ...], labels: str | None, size: int, samples: int) -> Iterator[Any]:
    """Tuples of the inputs and, behind them, the labels."""
    import numpy as np
    import torch

    for batch in batches(data, size, samples):
        yield tuple(torch.from_numpy(np.array(batch[name])) for name in (*inputs, *([labels] if labels else [])))
