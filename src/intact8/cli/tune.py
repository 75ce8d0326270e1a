"""``intact8 tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result, progress_bar, stderr
from intact8.cli.inputs import labelled, model_inputs, with_labels
from intact8.cli.models import find_metric, load_model


def tune(
    model: options.Model,
    data: options.Samples,
    validation: Annotated[
        Path | None, typer.Option(help="Samples to judge by; those of --data by default. " + options.DATA_HELP)
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One class per sample of --validation: an entry of it, or a .npy file."),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Other samples, with --labels in them, on which the result is measured.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="With labels top1 (default), top5, or package.module:function of (outputs, labels); "
            "without cosine (default), top1, kl or sqnr."
        ),
    ] = None,
    max_drop: Annotated[float, typer.Option(min=0.0, help="Allowed loss; of shares in percent.")] = 0.5,
    budget: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which nothing more is tried.")] = None,
    max_trials: Annotated[int | None, typer.Option(min=1, help="Recipes to try, at most.")] = None,
    recipe: options.RecipeName = "default",
    state_dict: options.StateDict = None,
    engine: Annotated[str, typer.Option(help="What runs and times programs: auto, native, reference …")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for timing a program; 0 estimates times.")] = 0.5,
    output: Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The recipe to write.")] = Path("tuned.toml"),
    program: Annotated[Path | None, WRITTEN, typer.Option(help="The program to write.")] = None,
    journal: Annotated[
        Path | None, WRITTEN, typer.Option(help="Keep trials here; an interrupted search goes on from them.")
    ] = None,
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    as_json: options.AsJson = False,
) -> None:
    """Search the fastest recipe with which a network loses no more than --max-drop; DATA calibrates.

    Ctrl-C ends the search; the best recipe so far is written.

    \b
    Examples:
      intact8 tune mynets:resnet --data images.npy --validation validation.npz --labels y -o resnet.toml
      intact8 tune mynets:encoder --data ids.npz --recipe integer --max-drop 1 --journal run.jsonl --budget 3600
    """
    import torch

    import intact8

    network = load_model(model, state_dict)
    source = options.samples(data, key, size, mean, std)
    calibration = list(model_inputs(network, source, bool(key), batch_size, samples))

    def judged_by(path: Path | None) -> Any:
        if path is None:
            return None
        if labels is None:
            return list(model_inputs(network, options.samples(path, key, size, mean, std), bool(key), batch_size))
        inputs, classes = labelled(path, labels, key, size, mean, std)
        return list(with_labels(model_inputs(network, inputs, bool(key), batch_size), torch.from_numpy(classes)))

    judged = judged_by(validation if labels is None else validation or data)
    wanted: dict[str, Any] = {"max_drop": max_drop, "budget": budget, "max_trials": max_trials}
    wanted["metric"] = None if metric is None else find_metric(metric)
    with progress_bar() as bar:
        task = bar.add_task("tune", total=None)

        def progress(trial: Any, best: Any) -> None:
            bar.update(task, advance=1, description=f"best: drop {best.drop:.3g}, time ×{best.time:.2f}")

        found = intact8.tune(
            network,
            calibration,
            judged,
            held_out=judged_by(held_out),
            recipe=recipe,
            engine=engine,
            seconds=seconds,
            journal=journal,
            progress=progress,
            **wanted,
        )
    found.recipe.save(output)
    if program is not None:
        found.program.save(program)
    print_result(found, found.to_dict, as_json)
    stderr().print(f"wrote {', '.join(str(path) for path in (output, program) if path)}", soft_wrap=True)
