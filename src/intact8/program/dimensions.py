"""A program whose shapes hold names, at given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from intact8.arithmetic.dimensions import LONGEST, SizeError, has_names, measure, resolve, size_of
from intact8.errors import InputError

if TYPE_CHECKING:
    from .program import Program

SAMPLE = 7
"""Size of named dimensions in golden samples, or the limit it passes. Part of the file format."""


def sizes_of(program: Program, arrays: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of every named dimension in one call.

    Args:
        program: checked.
        arrays: inputs by name, numpy or torch.

    Raises:
        InputError: a dimension has two sizes, or one outside its limits, or, where it has none, more than proofs reach.
    """
    if not program.dimensions:
        return {}
    reach = {name: (least, LONGEST if most is None else most) for name, (least, most) in program.dimensions.items()}
    shapes = [(name, program.tensors[name].shape, tuple(arrays[name].shape)) for name in program.inputs]
    try:
        return measure(shapes, reach)
    except SizeError as error:
        what, where, remedy = error.args
        raise InputError(what, where=where, remedy=remedy) from error


def batch_size(program: Program, arrays: Mapping[str, Any]) -> int | None:
    """Return the size of the dynamic dimension of inputs by name (numpy or torch), None where the program has none."""
    shapes = ((program.tensors[name].shape, arrays[name].shape) for name in program.inputs)
    return next((int(given[shape.index(None)]) for shape, given in shapes if None in shape), None)


def fixed(program: Program, sizes: Mapping[str, int]) -> Program:
    """Return the program with sizes in place of names; the batch stays free.

    Example:
        >>> from intact8.opset.op import Op, Tensor
        >>> from intact8.program.program import Program
        >>> x, y = Tensor("x", "float32", (None, "n", 4)), Tensor("y", "float32", (None, "n", 2, 2))
        >>> op = Op("y", "reshape", ("x",), {"shape": [-1, "n", 2, 2]})
        >>> program = Program({"x": x, "y": y}, (op,), ("x",), ("y",), dimensions={"n": (1, None)})
        >>> fixed(program, {"n": 7}).ops[0].attrs
        {'shape': [-1, 7, 2, 2]}
    """
    if not program.dimensions:
        return program
    tensors = {
        name: replace(t, shape=tuple(size_of(d, sizes) if isinstance(d, str) else d for d in t.shape))
        for name, t in program.tensors.items()
    }
    ops = tuple(replace(op, attrs=resolve(op.attrs, sizes)) if has_names(op.attrs) else op for op in program.ops)
    return replace(program, tensors=tensors, ops=ops, dimensions={})


def sizes_near(program: Program, size: int) -> dict[str, int]:
    """Return ``size`` for every named dimension, or the limit that it passes."""
    limits = program.dimensions.items()
    return {name: max(least, size if most is None else min(size, most)) for name, (least, most) in limits}


def sized_near(program: Program, size: int) -> Program:
    """Return the program with every named dimension of ``size``, or of the limit that it passes."""
    return fixed(program, sizes_near(program, size))


def largest(program: Program) -> Program:
    """Return the program at its largest sizes, as proofs need it."""
    return fixed(program, {name: LONGEST if most is None else most for name, (_, most) in program.dimensions.items()})
