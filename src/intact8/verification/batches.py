"""Inputs of a verification, batch by batch, for engines and for simulations."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.affine import dequantize
from intact8.engines.binding import bind, fixed_arguments, is_torch
from intact8.errors import InputError
from intact8.nesting import arguments, leaves, nests, without_fixed
from intact8.opset.op import Array
from intact8.program.dimensions import batch_size
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program


def for_simulation(program: Program, batch: Mapping[str, Array]) -> list[Any]:
    """Return the batch as torch tensors in order, integers back to the real numbers they stand for."""
    torch = sys.modules["torch"]  # a simulation is a torch module
    quantizers = sole_quantizers(program)
    out = []
    for name in program.inputs:
        array, grid = batch[name], program.tensors[quantizers[name].name if name in quantizers else name]
        if array.dtype == np.uint8 and grid.scale is not None:
            array = dequantize(array, np.float32(grid.scale), int(grid.zero_point or 0))
        out.append(torch.from_numpy(np.require(array, requirements=["C", "W"])))
    return out


def batches(program: Program, inputs: Any, size: int) -> Iterator[dict[str, Array]]:
    """Every batch of ``inputs`` by name, in parts of at most ``size`` samples where the batch is dynamic."""
    # A tuple as long as the program has inputs is one batch; any other is a sequence of batches (as torch.split gives).
    call = isinstance(inputs, tuple) and _is_call(program, inputs)
    if isinstance(inputs, np.ndarray | Mapping) or call or is_torch(inputs):
        entries: Iterable[Any] = [inputs]
    elif isinstance(inputs, Iterable):
        entries = (_without_labels(program, entry) if isinstance(entry, list | tuple) else entry for entry in inputs)
    else:
        raise InputError(
            f"cannot take inputs from {type(inputs).__name__}", where="verify", remedy="give arrays or batches"
        )
    for entry in entries:
        if isinstance(entry, Mapping):
            whole = bind(program, (), taken(program, entry) or entry)  # none is known: say which
        else:
            whole = bind(program, entry if isinstance(entry, list | tuple) else (entry,), {})
        count = batch_size(program, whole)
        if count is None or any(program.tensors[n].shape[:1] != (None,) for n in program.inputs):
            yield whole
            continue
        for i in range(math.ceil(count / size)):
            yield {name: array[i * size : (i + 1) * size] for name, array in whole.items()}


def taken(program: Program, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a batch by name that are arguments or inputs; labels and others are left out."""
    known = {*program.inputs, *arguments(program.inputs), *fixed_arguments(program)[1]}
    return {name: value for name, value in entry.items() if name in known}


def _is_call(program: Program, values: tuple[Any, ...]) -> bool:
    """Return whether ``values`` are the arguments of one call: a tensor per input, or nested as the model takes
    them."""
    values, _ = without_fixed(values, {}, program.inputs, *fixed_arguments(program))
    if any(map(nests, values)):
        names = (
            name for at, value in zip(arguments(program.inputs), values, strict=False) for name, _ in leaves(at, value)
        )
        return set(names) == set(program.inputs)
    return len(values) == len(program.inputs)


def _without_labels(program: Program, values: Sequence[Any]) -> Sequence[Any] | Mapping[str, Any]:
    if values and isinstance(values[0], Mapping) and taken(program, values[0]):
        return values[0]  # inputs by name, and labels behind them
    values, _ = without_fixed(values, {}, program.inputs, *fixed_arguments(program))
    return values[: len(arguments(program.inputs) if any(map(nests, values)) else program.inputs)]
