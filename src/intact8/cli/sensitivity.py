"""``intact8 sensitivity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result, progress_bar
from intact8.cli.inputs import model_inputs
from intact8.cli.models import load_model


def sensitivity(
    model: options.Model,
    data: Annotated[Path, typer.Option(help=options.DATA_HELP + " Also calibrates the network.")],
    recipe: options.RecipeName = "default",
    state_dict: options.StateDict = None,
    metric: Annotated[str, typer.Option(help="sqnr, kl, cosine or top1: of the outputs, against float.")] = "sqnr",
    mode: Annotated[
        list[str] | None, typer.Option(help="alone, without or cumulative; repeat it. alone by default.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help="both, weight or activation; repeat it. both by default.")
    ] = None,
    greedy: Annotated[int, typer.Option(min=0, help="Put so many layers back to float, the best each time.")] = 0,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after about so many; what costs most comes first.")
    ] = None,
    state: Annotated[
        Path | None, WRITTEN, typer.Option(help="Keep results here; an interrupted run goes on from them.")
    ] = None,
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure what quantizing each layer of a network costs.

    \b
    Examples:
      intact8 sensitivity mynets:resnet --data images.npy
      intact8 sensitivity mynets:resnet --data images.npy --metric top1 --mode alone --mode without --state run.json
      intact8 sensitivity mynets:resnet --data images.npy --part weight --part activation --greedy 3 --json
    """
    import intact8

    source = options.samples(data, key, size, mean, std)
    network = load_model(model, state_dict)
    inputs = list(model_inputs(network, source, bool(key), batch_size, samples))
    measured: Any = {"metric": metric, "modes": mode or ["alone"], "parts": part or ["both"], "greedy": greedy}
    with progress_bar() as bar:
        task = bar.add_task("sensitivity", total=None)

        def progress(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        limits: Any = {"seconds": seconds, "state": state, "progress": progress}
        found = intact8.sensitivity(network, inputs, recipe=recipe, **limits, **measured)
    print_result(found, found.to_dict, as_json)
