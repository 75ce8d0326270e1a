"""Samples matched to the inputs of a program or of a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.cli import options
from intact8.cli.data import Arrays, Data, batches, held
from intact8.cli.models import entries_for
from intact8.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress
    from torch import nn

    from intact8.opset.op import Array
    from intact8.program.program import Program


def without_labels(data: Data, labels: str) -> tuple[Data, Array]:
    """Return the data without the entry of class indices, and that entry.

    Raises:
        InputError: there is no such entry, or the data are images.
    """
    import numpy as np

    if labels not in data.names or not isinstance(data, Arrays):
        remedy = "name an entry of the data, or a .npy file with a class index per sample"
        raise InputError(f"no entry {labels!r}", where="--labels", why=held(data), remedy=remedy)
    rest = {name: array for name, array in data.arrays.items() if name != labels}
    return Arrays(rest), np.asarray(data.arrays[labels])


def labelled(
    path: Path, labels: str, key: list[str] | None, size: int, mean: str | None, std: str | None
) -> tuple[Data, Array]:
    """Return the samples at ``path`` and one class index for each: an entry of the file, or the array of a .npy file.

    Raises:
        InputError: there is no such entry, or the numbers of samples and labels differ.
    """
    if labels.endswith(".npy"):
        source = options.samples(path, key, size, mean, std)
        classes = without_labels(options.samples(Path(labels), None, size, mean, std), "")[1]
    else:
        source = options.samples(path, [*key, labels] if key else None, size, mean, std)
        source, classes = without_labels(source, labels)
    if len(classes) != len(source):
        raise InputError(
            f"{len(classes)} labels for {len(source)} samples", where="--labels", remedy="give one per sample"
        )
    return source, classes


def feed_names(program: Program, data: Data, chosen: bool) -> dict[str, str]:
    """Return input name → entry of ``data`` that feeds it.

    One entry feeds the only input. Entries chosen with ``--key`` feed the inputs in order. Otherwise entries feed the
    inputs of their names, and other entries (labels) stay unused.

    Raises:
        InputError: the numbers differ, or an input finds no entry of its name.
    """
    if chosen or len(data.names) == 1:
        if len(data.names) != len(program.inputs):
            what = f"{len(data.names)} entries for {len(program.inputs)} inputs"
            raise InputError(what, remedy=f"the inputs are {', '.join(program.inputs)}")
        return dict(zip(program.inputs, data.names, strict=True))
    missing = [name for name in program.inputs if name not in data.names]
    if missing:
        raise InputError(
            f"no entry for input {missing[0]!r}",
            why=f"the file holds {', '.join(data.names)}",
            remedy="say with --key which entries feed the inputs, in order",
        )
    return {name: name for name in program.inputs}


def feeds(
    program: Program, data: Data, size: int, samples: int | None = None, chosen: bool = False
) -> Iterator[dict[str, Array]]:
    """Yield the first ``samples`` samples (all by default) as inputs of ``program``, at most ``size`` at a time."""
    names = feed_names(program, data, chosen)
    for batch in batches(data, size, samples):
        yield {name: batch[entry] for name, entry in names.items()}


def with_labels(batches: Iterable[Any], labels: Any) -> Iterator[Any]:
    """Yield batches of inputs with their share of the labels: behind a tensor or a tuple, as "labels" in a dict."""
    start = 0
    for batch in batches:
        values = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, tuple) else (batch,)
        share = labels[start : start + len(values[0])]
        start += len(share)
        yield {**batch, "labels": share} if isinstance(batch, dict) else (*values, share)


def tracked(bar: Progress, title: str, total: int, parts: Iterator[Any]) -> Iterator[Any]:
    """Yield what :func:`feeds` or :func:`model_inputs` yields, and show on a bar how many of ``total`` samples ran."""
    task = bar.add_task(title, total=total)
    for batch in parts:
        yield batch
        entries = list(batch.values()) if isinstance(batch, dict) else batch
        bar.advance(task, len(entries[0]) if isinstance(entries, list | tuple) else len(entries))


def model_inputs(network: nn.Module, data: Data, chosen: bool, size: int, samples: int | None = None) -> Iterator[Any]:
    """Yield the first ``samples`` samples (all by default) as a network takes them, at most ``size`` at a time.

    Several entries are a dict of tensors by name; entries chosen with ``--key`` are a tuple of tensors in that order; a
    single entry is the tensor itself.
    """
    import numpy as np
    import torch

    named = len(data.names) > 1 and not chosen
    names = entries_for(network, data.names) if named else data.names
    for batch in batches(data, size, samples):
        found = {name: torch.from_numpy(np.array(batch[name])) for name in names}
        values = tuple(found.values())
        yield found if named else values[0] if len(values) == 1 else values
