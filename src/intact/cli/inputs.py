"""Samples matched to the inputs of a program, and samples made up where the user has none."""

from __future__ import annotations

import numpy as np

from intact.cli.data import Arrays, Data
from intact.errors import InputError
from intact.program.ops import Array, Tensor
from intact.program.program import Program


def feed_names(program: Program, data: Data, chosen: bool) -> dict[str, str]:
    """Input name → entry of ``data`` that feeds it.

    One entry feeds the only input. Entries chosen with ``--key`` feed the inputs in order. Otherwise they go by name,
    and entries the program does not know (labels) stay unused.

    Raises:
        InputError: the numbers differ, or an input finds no entry of its name.
    """
    if chosen or len(data.names) == 1:
        if len(data.names) != len(program.inputs):
            raise InputError(
                f"{len(data.names)} entries for {len(program.inputs)} inputs",
                remedy=f"the inputs are {', '.join(program.inputs)}",
            )
        return dict(zip(program.inputs, data.names, strict=True))
    missing = [name for name in program.inputs if name not in data.names]
    if missing:
        raise InputError(
            f"no entry for input {missing[0]!r}",
            why=f"the file holds {', '.join(data.names)}",
            remedy="say with --key which entries feed the inputs, in order",
        )
    return {name: name for name in program.inputs}


def random_samples(program: Program, samples: int, seed: int) -> Arrays:
    """Made-up samples for every input: over the whole range an input is quantized in, and a little past its ends.

    Indices of an embedding stay inside its table. Equality of integers does not depend on how real the data look, but
    accuracy does: measure that on real data.
    """
    rng = np.random.default_rng(seed)
    return Arrays({name: _random(program, program.tensors[name], samples, rng) for name in program.inputs})


def _random(program: Program, tensor: Tensor, samples: int, rng: np.random.Generator) -> Array:
    shape = tuple(samples if size is None else size for size in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        return rng.integers(0, 256 if dtype == np.uint8 else _rows(program, tensor.name), shape).astype(dtype)
    low, high = -1.0, 1.0
    for op in program.ops:
        if op.kind == "quantize" and op.inputs[0] == tensor.name:
            grid = program.tensors[op.name]
            scale, zero_point = float(grid.scale or 1.0), int(grid.zero_point or 0)
            low, high = -zero_point * scale, (255 - zero_point) * scale
            break
    margin = 0.02 * (high - low)
    return rng.uniform(low - margin, high + margin, shape).astype(dtype)


def _rows(program: Program, name: str) -> int:
    """How many different indices this input may hold: the shortest embedding table it goes into, else 2."""
    tables = [
        op.arrays["weight"].shape[0] for op in program.ops if op.kind == "float.embedding" and op.inputs[0] == name
    ]
    return min(tables, default=2)
