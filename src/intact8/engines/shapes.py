"""Shapes of a program at one batch size.

In a program's shapes None grows with the batch, but is a multiple of its size where windows, heads or positions were
moved into that dimension. So shapes follow from those of the inputs, op by op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.moves import expanded_shape
from intact8.errors import InputError
from intact8.opset import output_shape
from intact8.opset.op import Op, Tensor
from intact8.opset.violation import Violation
from intact8.program.program import Program


def sized(program: Program, batch: int) -> Program:
    """Return the program with the shapes it has at that batch size.

    Args:
        program: checked, without named dimensions.
        batch: size of the batch.

    Raises:
        InputError: a reshape does not work out for this batch.

    Example:
        >>> x, y = Tensor("x", "float32", (None, 2, 3)), Tensor("y", "float32", (None, 3))
        >>> program = Program({"x": x, "y": y}, (Op("y", "reshape", ("x",), {"shape": [-1, 3]}),), ("x",), ("y",))
        >>> sized(program, 5).tensors["y"].shape
        (10, 3)
    """
    tensors: dict[str, Tensor] = {}
    for name in program.inputs:
        t = program.tensors[name]
        tensors[name] = replace(t, shape=tuple(batch if d is None else d for d in t.shape))
    for op in program.ops:
        try:
            shape = _shape(op, tensors, program.tensors[op.name], batch)
        except Violation as error:
            raise InputError(
                f"a batch of {batch} does not fit", where=op.name, why=str(error), remedy="give another batch size"
            ) from error
        tensors[op.name] = replace(program.tensors[op.name], shape=shape)
    return replace(program, tensors=tensors)


def _shape(op: Op, tensors: Mapping[str, Tensor], declared: Tensor, batch: int) -> tuple[int, ...]:
    inputs = [tensors[name] for name in op.inputs]
    if op.kind == "expand":
        return tuple(expanded_shape(op.attrs["shape"], known(inputs[0].shape), declared.shape, batch))
    return tuple(known(output_shape(op, inputs, declared.shape)))
