"""``intact8 doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result, stderr
from intact8.cli.data import Data, batches
from intact8.cli.models import entries_for, load_model
from intact8.errors import InputError

if TYPE_CHECKING:
    from torch import nn

DO_NOT = 1


def doctor(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=options.MODEL_HELP)] = None,
    given: Annotated[Path | None, typer.Argument(metavar="", help="DATA, as before --data.", hidden=True)] = None,
    data: options.OptionalSamples = None,
    env: Annotated[bool, typer.Option("--env", help="Examine this machine in place of a network.")] = False,
    labels: Annotated[
        str | None, typer.Option(metavar="NAME", help="Entry of the data with one class index per sample.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="What the network is calibrated on; a quarter of the data by default.")
    ] = None,
    recipe: options.RecipeName = "default",
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option("--output", "-o", metavar="TOML", help="Write the recipe that applies the remedies."),
    ] = None,
    state_dict: options.StateDict = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Loss of the metric that is accepted.")] = 0.01,
    samples: Annotated[int, typer.Option(min=8, help="Look at the first this many.")] = 2048,
    seconds: Annotated[float, typer.Option(min=0.0, help="For measuring time; 0 leaves it out.")] = 2.0,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = 32,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    as_json: options.AsJson = False,
) -> None:
    """Find out where a quantized network loses accuracy, why, and what helps; or, with --env, what can run here.

    Ends with a recipe that applies the remedies, and with whether to quantize this at all: exit status 1 when not.

    \b
    Examples:
      intact8 doctor mynets:resnet --data validation.npz --labels y -o better.toml
      intact8 doctor mynets:resnet --data validation.npz --labels y --calibration calibration.npy --recipe mine.toml
      intact8 doctor --env
    """
    if env:
        _environment(as_json)
        return
    data = data or given
    if model is None or data is None:
        raise InputError("MODEL and --data are missing", where="intact8 doctor", remedy="give both, or --env")
    import intact8

    settings: dict[str, Any] = {"recipe": recipe, "tolerance": tolerance, "seconds": seconds, "seed": seed}
    network = load_model(model, state_dict)
    if calibration is not None:
        source = options.samples(calibration, key, size, mean, std)
        settings["calibration"] = list(_batches(network, source, None, bool(key), batch_size, samples))
    source = options.samples(data, [*key, *filter(None, [labels])] if key else None, size, mean, std)
    examined = list(_batches(network, source, labels, bool(key), batch_size, samples))
    with stderr().status("capture") as status:
        report = intact8.doctor(network, examined, max_samples=samples, progress=status.update, **settings)
    if output is not None:
        report.save_recipe(output)
        stderr().print(f"{output}: the recipe that applies the remedies", highlight=False)
    print_result(report, report.to_dict, as_json)
    if not report.verdict.pays:
        raise typer.Exit(DO_NOT)


def _environment(as_json: bool) -> None:
    from intact8.runtime.environment import environment as examine

    environment = examine()
    print_result(environment, environment.to_json, as_json)


def _batches(
    network: nn.Module, data: Data, labels: str | None, chosen: bool, size: int, samples: int
) -> Iterator[Any]:
    """Yield tuples of the network's inputs in the order of its arguments and, behind them, the labels."""
    import numpy as np
    import torch

    if labels is not None and labels not in data.names:
        why = f"the file holds {', '.join(map(repr, data.names))}"
        raise InputError(f"no entry {labels!r}", where="--labels", why=why)
    names = tuple(name for name in data.names if name != labels)
    inputs = names if chosen or len(names) == 1 else entries_for(network, names)
    for batch in batches(data, size, samples):
        yield tuple(torch.from_numpy(np.array(batch[name])) for name in (*inputs, *([labels] if labels else [])))
