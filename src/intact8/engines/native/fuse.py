"""Which operations a convolution computes in its own step: a padding before it, a residual sum and a table behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from intact8.opset.op import Op
from intact8.program.program import Program

CONVOLUTIONS = frozenset({"conv", "linear"})
"""Kinds whose step has fields for what follows them."""

PADDED = frozenset({"conv", "dequantized_conv"})
"""Kinds that may read an image through a padding."""

MAX_PADDING = 8
"""Rows or columns on one side that are no copy, within what the kernels of every instruction set take."""


def chains(program: Program, outputs: Collection[str]) -> dict[str, tuple[Op, ...]]:
    """Return the runs of operations that are one step, by the name of the last one, where they have more than one.

    A run is a convolution or linear layer, a sum of it and one other tensor of its shape, and a table, where each
    result has one reader and is no output. A convolution with a residual of its own takes only a table.

    Args:
        program: every shape in numbers.
        outputs: names of the tensors that are wanted.

    Example:
        >>> chains(Program({}, (), (), ()), ())
        {}
    """
    readers = Counter(name for op in program.ops for name in op.inputs) + Counter(outputs)
    open_chains: dict[str, tuple[Op, ...]] = {}
    for op in program.ops:
        if op.kind in CONVOLUTIONS and program.tensors[op.name].dtype == "uint8":
            open_chains[op.name] = (op,)
        elif op.kind in ("add", "table") and program.tensors[op.name].dtype == "uint8":
            joined = _joined(program, op, [open_chains.get(n, ()) for n in op.inputs if readers[n] == 1])
            if joined:
                open_chains[op.name] = (*open_chains.pop(joined[-1].name), op)
    return {name: chain for name, chain in open_chains.items() if len(chain) > 1}


def _joined(program: Program, op: Op, candidates: Iterable[tuple[Op, ...]]) -> tuple[Op, ...]:
    """Return the run that ``op`` joins, of those that end in its inputs; empty where it joins none."""
    if op.kind == "table":
        fitting = [c for c in candidates if c and c[-1].kind != "table"]
    elif len(op.inputs) == 2 and len({program.tensors[n].shape for n in (*op.inputs, op.name)}) == 1:
        fitting = [c for c in candidates if len(c) == 1 and len(c[0].inputs) == 1]
    else:
        fitting = []
    return fitting[-1] if fitting else ()


def paddings(program: Program, outputs: Collection[str]) -> dict[str, Op]:
    """Return the paddings that a convolution reads through: its windows begin and end outside of the image instead.

    A padding is by the zero point, of rows and columns only, by none of which the image gets smaller; the convolution
    alone reads its result, which is no output. TensorFlow's networks have them, one row and column more at the end.

    Args:
        program: every shape in numbers.
        outputs: names of the tensors that are wanted.

    Returns:
        The paddings by the names of the convolutions.

    Example:
        >>> paddings(Program({}, (), (), ()), ())
        {}
    """
    readers = Counter(name for op in program.ops for name in op.inputs) + Counter(outputs)
    pads = {op.name: op for op in program.ops if op.kind == "pad" and readers[op.name] == 1}
    found = dict[str, Op]()
    for op in program.ops:
        pad = pads.get(op.inputs[0]) if op.kind in PADDED and not op.attrs["transposed"] else None
        if pad is not None and pad.attrs["value"] == (program.tensors[pad.name].zero_point or 0):
            (batch, channels, *axes), at_most = pad.attrs["pads"], MAX_PADDING
            if not any((*batch, *channels)) and all(0 <= n <= at_most for axis in axes for n in axis):
                found[op.name] = pad
    return found
