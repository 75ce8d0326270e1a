"""Single operations of a program as programs of their own."""

from __future__ import annotations

from collections.abc import Mapping

from intact8.opset import KINDS
from intact8.opset.op import Op
from intact8.program.dimensions import fixed
from intact8.program.program import Program

NEEDS_BATCH = frozenset(kind.name for kind in KINDS.values() if kind.moves and "shape" in kind.attrs)
"""Operations that move values and need the batch of the whole network. By themselves they cannot tell it from a
multiple of it (heads times samples), or have no operand with a batch."""


def stands_alone(op: Op) -> bool:
    """Return whether an engine can run the operation as a program of its own."""
    return op.kind != "constant" and op.kind not in NEEDS_BATCH


def alone(program: Program, op: Op, sizes: Mapping[str, int]) -> Program:
    """Return the program of one operation, with sizes in place of the names of dimensions.

    Example:
        >>> from intact8.opset.op import Tensor
        >>> x, y, z = (Tensor(name, "float32", (None, 4)) for name in "xyz")
        >>> ops = Op("y", "relu", ("x",), {}), Op("z", "add", ("y", "y"), {})
        >>> program = Program({"x": x, "y": y, "z": z}, ops, ("x",), ("z",))
        >>> alone(program, ops[1], {}).inputs
        ('y',)
    """
    inputs = tuple(dict.fromkeys(op.inputs))
    tensors = {name: program.tensors[name] for name in (*inputs, op.name)}
    part = Program(tensors, (op,), inputs, (op.name,), needs=program.needs, dimensions=program.dimensions)
    return fixed(part, sizes)
