"""``intact8 sensitivity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import AsJson, Debug, friendly, print_json, progress_bar, stdout
from intact8.cli.data import batches, load
from intact8.cli.inputs import tensors
from intact8.cli.models import entries_for, load_model, load_recipe


def sensitivity(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="package.module:factory; called without arguments.")],
    data: Annotated[Path, typer.Option(help=options.DATA_HELP + " Also calibrates the network.")],
    recipe: Annotated[str, typer.Option(help="A preset of intact8.recipes, or a recipe in TOML.")] = "default",
    state_dict: Annotated[
        Path | None, typer.Option(help="Weights: .safetensors, or a torch.save file (read with weights_only).")
    ] = None,
    metric: Annotated[str, typer.Option(help="sqnr, kl, cosine or top1: of the outputs, against float.")] = "sqnr",
    mode: Annotated[
        list[str] | None, typer.Option(help="alone, without or cumulative; repeat it. alone by default.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help="both, weight or activation; repeat it. both by default.")
    ] = None,
    greedy: Annotated[int, typer.Option(min=0, help="Put so many layers back to float, the best each time.")] = 0,
    state: Annotated[Path | None, typer.Option(help="Keep results here; an interrupted run goes on from them.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first this many; all by default.")] = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = "0,0,0",
    std: options.Std = "1,1,1",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure what quantizing each layer of a network costs.

    \b
    Examples:
      intact8 sensitivity mynets:resnet --data images.npy
      intact8 sensitivity mynets:resnet --data images.npy --metric top1 --mode alone --mode without --state run.json
      intact8 sensitivity mynets:resnet --data images.npy --part weight --part activation --greedy 3 --json
    """
    with friendly(debug):
        import intact8

        source = load(data, keys=key or (), preprocessing=options.preprocessing(size, mean, std))
        network = load_model(model, state_dict)
        named = len(source.names) > 1 and not key
        names = entries_for(network, source.names) if named else source.names
        inputs = [tensors(batch, names, named) for batch in batches(source, batch_size, samples)]
        modes: Any = mode or ["alone"]
        parts: Any = part or ["both"]
        with progress_bar() as bar:
            task = bar.add_task("sensitivity", total=None)
            found = intact8.sensitivity(
                network, inputs, recipe=load_recipe(recipe), metric=metric, modes=modes, parts=parts, greedy=greedy,
                state=state, progress=lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
        if as_json:
            print_json(found.to_dict())
        else:
            stdout().print(found)
