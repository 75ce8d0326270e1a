"""What a program's inputs are: images, floats that are quantized at once, indices of tables."""

from __future__ import annotations

import sys
from typing import Any

from intact8.errors import InputError, IntactError
from intact8.opset import KINDS, Op

from .program import Program

LAYOUTS = ("NCHW", "NHWC")
"""How a caller orders the dimensions of images; programs always have channels before height and width."""


def check_layout(program: Program, layout: str) -> None:
    """Whether ``program`` can be given its images in ``layout``.

    Raises:
        InputError: the layout is not known, or no input has four dimensions.
    """
    if layout not in LAYOUTS:
        raise InputError(f"layout={layout!r} is not known", where="layout", remedy=f"choose from {', '.join(LAYOUTS)}")
    if layout != "NCHW" and not images(program):
        raise InputError(
            f"layout={layout!r} is for images",
            where="layout",
            why="no input has four dimensions",
            remedy="leave it out",
        )


def images(program: Program) -> list[str]:
    """Return the inputs of four dimensions, (N, C, H, W) in the program."""
    return [name for name in program.inputs if len(program.tensors[name].shape) == 4]


def sole_quantizers(program: Program) -> dict[str, Op]:
    """Return the float inputs whose only use is one ``quantize`` op, with that op: they also take the uint8
    integers."""
    known: dict[str, Op] | None = vars(program).get("_sole_quantizers")
    if known is not None:
        return known
    users: dict[str, list[Op]] = {name: [] for name in program.inputs}
    for op in program.ops:
        for name in op.inputs:
            if name in users:
                users[name].append(op)
    found = {
        name: ops[0]
        for name, ops in users.items()
        if len(ops) == 1 and ops[0].kind == "quantize" and name not in program.outputs
    }
    vars(program)["_sole_quantizers"] = found
    return found


def outside(where: str, why: str) -> InputError:
    """Return what every engine raises for an index that a network computed and its table does not have."""
    return InputError("an index outside the table", where=where, why=why, remedy="look at what makes the indices")


def holds_nan(where: str) -> InputError:
    """Return what every engine and the simulation in evaluation raise for NaN in an input that is quantized."""
    return InputError("the input holds NaN", where=where, why="no integer stands for NaN", remedy="repair the data")


def quantized_inputs(program: Program) -> frozenset[str]:
    """Return the float inputs that a ``quantize`` reads as they are, or after operations that only move values."""
    known: frozenset[str] | None = vars(program).get("_quantized_inputs")
    if known is not None:
        return known
    sources = {name: frozenset([name]) for name in program.inputs if program.tensors[name].dtype == "float32"}
    found: frozenset[str] = frozenset()
    for op in program.ops:
        behind = frozenset[str]().union(*(sources.get(name, frozenset()) for name in op.inputs))
        if op.kind == "quantize":
            found |= behind
        elif behind and KINDS[op.kind].moves and not op.is_float:
            sources[op.name] = behind
    vars(program)["_quantized_inputs"] = found
    return found


def refuse_other_layouts(where: str, value: Any, error: type[IntactError] = InputError) -> None:
    """Refuse a torch tensor that is nested or sparse, in a layout of a library, or without values.

    Raises:
        error: it is one.
    """
    if value.is_nested:
        raise error("nested tensors are not taken", where=where, remedy="pad it: x.to_padded_tensor(0.0)")
    if value.device.type == "meta":
        raise error("a tensor on meta has no values", where=where, remedy="give one that has")
    layout = str(value.layout).removeprefix("torch.").removeprefix("_")
    if layout != "strided":
        raise error(f"{layout} tensors are not taken", where=where, remedy="give a dense one: x.to_dense()")


def refuse_masked(where: str, value: Any, error: type[IntactError] = InputError) -> None:
    """Refuse a masked array of numpy, whose values behind the mask would be read.

    Raises:
        error: it is one.
    """
    masked = sys.modules.get("numpy.ma")  # imported by whoever holds one, and slow to import
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise error("masked arrays are not taken", where=where, remedy="say what stands there: x.filled(value)")
