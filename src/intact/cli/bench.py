"""``intact bench``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from intact.cli import options
from intact.cli.inputs import random_samples
from intact.cli.messages import AsJson, Debug, friendly, progress_bar, stdout
from intact.cli.models import load_model

if TYPE_CHECKING:
    from torch import nn

    from intact.program.ops import Array
    from intact.program.program import Program
    from intact.timing import Timing


def bench(
    file: options.ProgramFile,
    engines: Annotated[str, typer.Option(help="Engines to time, separated by commas.")] = "onednn",
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; repeat it. 1 and 8 by default.")] = None,
    threads: options.Threads = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:factory of the float32 network, timed beside it, channels-last.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time spent per batch size.")] = 3.0,
    seed: options.Seed = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time a program on random samples: contenders take turns in one run; medians with quartiles.

    \b
    Examples:
      intact bench resnet.safetensors
      intact bench resnet.safetensors --model mynets:resnet --batch 1 --batch 32 --threads 1
      intact bench resnet.safetensors --engines onednn,reference --json
    """
    with friendly(debug):
        from intact.program.program import Program
        from intact.timing import interleaved

        program = Program.load(file)
        network = None if model is None else load_model(model)
        rows: list[tuple[int, dict[str, Timing]]] = []
        sizes = batch or [1, 8]
        with progress_bar() as bar:
            for number in sizes:
                task = bar.add_task(f"batch {number}", total=1.0)
                inputs = dict(random_samples(program, number, seed).arrays)
                contenders = _contenders(program, inputs, options.names(engines), threads, network)
                timings = interleaved(
                    contenders,
                    seconds=seconds,
                    progress=partial(_fill, bar, task),
                )
                rows.append((number, timings))
        if as_json:
            report = [
                {"batch": number, "threads": threads, "contender": name, **timing.to_json()}
                for number, timings in rows
                for name, timing in timings.items()
            ]
            typer.echo(json.dumps(report, indent=2))
        else:
            stdout().print(_table(rows))


def _fill(bar: Progress, task: TaskID, share: float) -> None:
    bar.update(task, completed=share)


def _contenders(
    program: Program, inputs: dict[str, Array], engines: tuple[str, ...], threads: int | None, network: nn.Module | None
) -> dict[str, Callable[[], object]]:
    """Calls that all start from the same float arrays, so that int8 pays for quantizing them."""
    from intact.engines import get_runner

    contenders: dict[str, Callable[[], object]] = {}
    if network is not None:
        contenders["float32"] = _float32(network, [inputs[name] for name in program.inputs], threads)
    for name in engines:
        runner = get_runner(program, name, threads)
        contenders[name] = partial(runner, inputs)
    return contenders


def _float32(network: nn.Module, arrays: list[Array], threads: int | None) -> Callable[[], object]:
    import torch

    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tensors: list[Any] = [torch.from_numpy(array) for array in arrays]
    tensors = [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors]

    def call() -> object:
        before = torch.get_num_threads()
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return network(*tensors)
        finally:
            if threads is not None:
                torch.set_num_threads(before)

    return call


def _table(rows: list[tuple[int, dict[str, Timing]]]) -> Table:
    table = Table("batch", "contender", "median ms", "quartiles ms", "calls", "ratio")
    for number, timings in rows:
        first = next(iter(timings.values())).median
        for name, timing in timings.items():
            table.add_row(
                str(number),
                name,
                f"{timing.median * 1e3:.3f}",
                f"{timing.lower * 1e3:.3f} … {timing.upper * 1e3:.3f}",
                str(timing.calls),
                f"{first / timing.median:.2f}×",
            )
    table.caption = "ratio: how many times faster than the first contender of the same batch size"
    return table
