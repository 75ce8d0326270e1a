"""``intact8 bench``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from intact8.cli import options
from intact8.cli.console import print_result, progress_bar, show_completed
from intact8.cli.models import load_guarded, load_model
from intact8.errors import InputError, in_short

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from intact8.opset.op import Array
    from intact8.program.program import Program
    from intact8.timing import Timing

FLOAT = "float32"
SETTLE = 0.01
"""Seconds of untimed calls before a timed one, see :func:`intact8.timing.interleaved`."""


def bench(
    file: options.ProgramFile,
    engines: Annotated[
        str | None, typer.Option(help="Engines to time, separated by commas; all that can run here but the reference.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; repeat it. 1 and 8 by default.")] = None,
    threads: options.Threads = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:factory of the float32 network, timed beside it, channels-last.")
    ] = None,
    state_dict: options.StateDict = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time spent per batch size.")] = 3.0,
    seed: options.Seed = 0,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Time a program on random samples: contenders take turns in one run; medians with quartiles.

    The share of the machine's measured int8 peak counts the multiplications of convolutions and linear layers.

    \b
    Examples:
      intact8 bench resnet.safetensors
      intact8 bench resnet.safetensors --model mynets:resnet --batch 1 --batch 32 --threads 1
      intact8 bench resnet.safetensors --engines openvino,onnxruntime --json
    """
    from intact8.engines.peak_throughput import int8_peak
    from intact8.program.golden import products
    from intact8.program.samples import random_samples
    from intact8.timing import interleaved

    batches = batch or [1, 8]
    program = load_guarded(file, public_key, expect, batches)
    network = None if model is None else load_model(model, state_dict)
    names = options.names(engines) if engines is not None else _all_engines(program)
    peak = int8_peak(threads)
    rows: list[Row] = []
    with progress_bar() as bar:
        for number in batches:
            task = bar.add_task(f"batch {number}", total=1.0)
            contenders = _contenders(program, random_samples(program, number, seed), names, threads, network)
            timings = interleaved(
                contenders,
                seconds=seconds,
                settle=SETTLE if seconds and len(contenders) > 1 else 0.0,
                progress=partial(show_completed, bar, task),
            )
            work = number * products(program) / 1e9
            first = next(iter(timings.values())).median
            for name, timing in timings.items():
                share = None if peak is None or name == FLOAT else work / timing.median / peak
                rows.append(Row(number, name, timing, first / timing.median, share))
    print_result(_table(rows, peak), lambda: [row.to_json(threads, peak) for row in rows], as_json)


class Row(NamedTuple):
    """One contender at one batch size."""

    batch: int
    contender: str
    timing: Timing
    ratio: float
    """How many times faster than the first contender."""
    share: float | None
    """Share of the int8 peak; None for float32, and where no peak can be measured."""

    def to_json(self, threads: int | None, peak: float | None) -> dict[str, Any]:
        """Return the row as a JSON object."""
        found: dict[str, Any] = {"batch": self.batch, "threads": threads, "contender": self.contender}
        found |= self.timing.to_json() | {"ratio": self.ratio, "share_of_int8_peak": self.share}
        return found | {"int8_peak_gmacs_per_s": peak}


def _all_engines(program: Program) -> tuple[str, ...]:
    from intact8.engines import available_engines

    names = available_engines(program)
    return tuple(name for name in reversed(names) if name != "reference") or ("reference",)


def _contenders(
    program: Program, inputs: dict[str, Array], engines: tuple[str, ...], threads: int | None, network: nn.Module | None
) -> dict[str, Callable[[], object]]:
    """Return calls that all start from the same float arrays, so that int8 pays for quantizing them."""
    from intact8.engines import admission, get_runner

    contenders: dict[str, Callable[[], object]] = {}
    if network is not None:
        contenders[FLOAT] = _float32(network, [inputs[name] for name in program.inputs], threads)
    for name in engines:
        runner = get_runner(program, name, threads)
        admission(runner, name)(inputs)
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

    try:
        call()
    except Exception as error:  # the network is anybody's code
        shapes = ", ".join(str(tuple(array.shape)) for array in arrays)
        what, remedy = f"the network does not run on the program's inputs, {shapes}", "name the one it was made from"
        raise InputError(what, where="--model", why=in_short(error), remedy=remedy) from error
    return call


def _table(rows: list[Row], peak: float | None) -> Table:
    from rich.table import Table

    table = Table("batch", "contender", "median ms", "quartiles ms", "calls", "ratio", "of int8 peak")
    for row in rows:
        timing = row.timing
        table.add_row(
            str(row.batch),
            row.contender,
            f"{timing.median * 1e3:.3f}",
            f"{timing.lower * 1e3:.3f} … {timing.upper * 1e3:.3f}",
            str(timing.calls),
            f"{row.ratio:.2f}×",
            "" if row.share is None else f"{row.share:.1%}",
        )
    measured = "" if peak is None else f"; the int8 peak measured here is {peak:.0f} GMAC/s"
    table.caption = f"ratio: how many times faster than the first contender of the same batch size{measured}"
    return table
