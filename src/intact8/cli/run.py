"""``intact8 run``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intact8.atomic_write import write_atomically
from intact8.cli import options
from intact8.cli.console import WRITTEN, progress_bar, report_written
from intact8.cli.data import count
from intact8.cli.inputs import feeds, tracked
from intact8.errors import InputError
from intact8.regular_file import unwritable

if TYPE_CHECKING:
    from intact8.opset.op import Array


def run(
    file: options.ProgramFile,
    data: options.Samples,
    output: Annotated[
        Path, WRITTEN, typer.Option("--output", "-o", help="Where results go: .npy (one output) or .npz.")
    ],
    engine: Annotated[str, typer.Option(help="auto, native, reference …")] = "auto",
    samples: options.Limit = None,
    batch_size: options.BatchSize = 16,
    key: options.Keys = None,
    size: options.Size = 224,
    mean: options.Mean = None,
    std: options.Std = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a program on samples and write its outputs.

    An engine that has not run this program on this machine is tried in a child process first, so that one that dies is
    left out, and told.

    \b
    Examples:
      intact8 run resnet.safetensors --data images.npy -o logits.npy
      intact8 run detector.safetensors --data images/ --size 320 -o found.npz --engine onednn
    """
    import numpy as np

    from intact8.runtime.load import load
    from intact8.runtime.preflight import candidates

    if output.suffix not in (".npy", ".npz"):
        raise InputError("results are written as .npy or .npz", where=str(output))
    names = candidates(engine)  # in order: nothing is measured for a single run
    runner = load(file, names, batch=batch_size, public_key=public_key, expect=expect)
    program = runner.program
    source = options.samples(data, key, size, mean, std)
    inputs = feeds(program, source, batch_size, samples, bool(key))
    parts: dict[str, list[Array]] = {}
    with progress_bar() as bar:
        for batch in tracked(bar, "run", count(source, samples), inputs):
            results = runner(*(batch[name] for name in program.inputs))
            for name, array in flatten(results).items():
                parts.setdefault(name, []).append(np.asarray(array))
    arrays = {name: np.concatenate(found) for name, found in parts.items()}
    write(output, arrays)
    shapes = {name or "output": list(array.shape) for name, array in arrays.items()}
    said = f"{output}: {', '.join(f'{name} {tuple(shape)}' for name, shape in shapes.items())}"
    report_written(said, {"file": str(output), "outputs": shapes}, as_json)


def flatten(results: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested outputs as name → array; a name is the keys and indices that lead to the array, joined by dots.

    Example:
        >>> flatten({"a": [1, 2], "b": 3})
        {'a.0': 1, 'a.1': 2, 'b': 3}
    """
    if isinstance(results, dict):
        items = [(str(key), value) for key, value in results.items()]
    elif isinstance(results, list | tuple):
        items = [(str(index), value) for index, value in enumerate(results)]
    else:
        return {} if results is None else {prefix: results}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat.update(flatten(value, f"{prefix}.{name}" if prefix else name))
    return flat


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write .npy or .npz, all at once or not at all.

    Raises:
        InputError: several arrays for a .npy file, or the folder cannot be written.
    """
    if path.suffix == ".npy" and len(arrays) != 1:
        raise InputError(f"{len(arrays)} outputs do not fit one .npy file", where=str(path), remedy="give a .npz file")
    import numpy as np

    stream = io.BytesIO()
    if path.suffix == ".npy":
        np.save(stream, next(iter(arrays.values())))
    else:
        named: dict[str, Any] = {entry or "output": array for entry, array in arrays.items()}
        np.savez(stream, **named)
    try:
        write_atomically(path, stream.getbuffer())
    except OSError as error:
        raise unwritable(path, "the results", InputError, error) from error
