"""Samples made up for a program, where the user has none at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from intact8.opset.op import Array, Tensor

from .dimensions import fixed, sized_near
from .indices import table_rows

if TYPE_CHECKING:
    from .program import Program

LENGTH = 32
"""Size of named dimensions, within their limits."""


def random_samples(
    program: Program, samples: int, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Return the random inputs by name: over the whole range an input is quantized in, and a little past its ends.

    Indices of an embedding stay inside its table. Equality of integers and time do not depend on how real the data
    look, but accuracy does: measure that on real data.

    Args:
        program: whose inputs are made up.
        samples: size of the dynamic batch dimension.
        seed: of the random numbers.
        sizes: of named dimensions; None: 32, or as near to it as their limits allow.

    Returns:
        Input name → array of the declared dtype, (samples, …) where the program has a dynamic batch.

    Example:
        >>> from intact8.opset.op import Op
        >>> from intact8.program.program import Program
        >>> tensors = {"x": Tensor("x", "float32", (None, 2)), "q": Tensor("q", "uint8", (None, 2), 0.5, 10)}
        >>> program = Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
        >>> random_samples(program, 3)["x"].shape
        (3, 2)
    """
    program = sized_near(program, LENGTH) if sizes is None else fixed(program, sizes)
    rng, rows, grids = np.random.default_rng(seed), table_rows(program), first_grids(program)
    return {
        name: _random(program.tensors[name], samples, rng, rows.get(name, 2), grids.get(name))
        for name in program.inputs
    }


def _random(tensor: Tensor, samples: int, rng: np.random.Generator, rows: int, grid: Tensor | None) -> Array:
    shape = tuple(size if isinstance(size, int) else samples for size in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        return rng.integers(0, 256 if dtype == np.uint8 else rows, shape).astype(dtype)
    low, high = -1.0, 1.0
    if grid is not None:
        scale, zero_point = float(grid.scale or 1.0), int(grid.zero_point or 0)
        low, high = -zero_point * scale, (255 - zero_point) * scale
    margin = 0.02 * (high - low)
    return rng.uniform(low - margin, high + margin, shape).astype(dtype)


def first_grids(program: Program) -> dict[str, Tensor]:
    """Return what the first ``quantize`` of a tensor gives, by the tensor's name."""
    return {op.inputs[0]: program.tensors[op.name] for op in reversed(program.ops) if op.kind == "quantize"}
