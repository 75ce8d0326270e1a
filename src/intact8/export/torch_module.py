"""A program as a torch module of plain tensors and operations, and as a ``torch.export`` file (.pt2)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import size_of
from intact8.atomic_write import target_of
from intact8.errors import EngineError
from intact8.outputs import MAPPINGS, rebuild
from intact8.program.dimensions import sizes_near
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program

from .files import write_file
from .torch_operations import RULES, Operands, constants, sizes_of_call

REMEDY = "export with --to onnx, or run the program itself with intact8.torch.Module"
EXAMPLE = 3
"""Size of every dimension that changes in the example that is exported; 0 and 1 would be taken for constants."""

MOST_EXAMPLE = 4096
"""Largest size of an example in which nothing that is computed of it is 1."""


class TorchProgram(nn.Module):
    """A program's operations in torch: buffers are uint8, int8, int32, int64, bool and float32 tensors.

    Args:
        program: checked.
        uint8_input: take the integers of quantized inputs instead of floats.

    Raises:
        EngineError: a kind of operation has no form in plain torch operations.
    """

    def __init__(self, program: Program, *, uint8_input: bool = False) -> None:
        super().__init__()
        self._program, self._roles = program, list[dict[str, str]]()
        self._integers = frozenset(sole_quantizers(program) if uint8_input else ())
        for i, op in enumerate(program.ops):
            if op.kind not in RULES:
                what = f"{op.kind} has no form in plain torch operations"
                raise EngineError(what, where=op.name, remedy=REMEDY)
            arrays = constants(op, [program.tensors[n] for n in op.inputs])
            roles = {role: f"{_identifier(op.name)}_{i}_{_identifier(role)}" for role in arrays}
            for role, name in roles.items():
                self.register_buffer(name, torch.from_numpy(np.array(arrays[role], order="C")))
            self._roles.append(roles)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the program's outputs, nested as the model's; objects of its classes are dicts of their fields."""
        values = self.run(inputs)
        return nested(self._program, [values[name] for name in self._program.outputs])

    def run(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Return every tensor by name."""
        program = self._program
        values = dict(zip(program.inputs, inputs, strict=True))
        sizes = sizes_of_call(program.inputs, program.tensors, inputs)
        for op, roles in zip(program.ops, self._roles, strict=True):
            metas = [program.tensors[n] for n in op.inputs]
            arrays = {role: getattr(self, name) for role, name in roles.items()}
            x = [values[n] for n in op.inputs]
            values[op.name] = RULES[op.kind](Operands(op, x, metas, program.tensors[op.name], arrays, sizes))
        return values

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs of zeros, of sizes in which nothing is 0 or 1 that may change."""
        program, sizes = self._program, self._sizes()
        found = []
        for name in program.inputs:
            t = program.tensors[name]
            shape = [EXAMPLE if d is None else size_of(d, sizes) for d in t.shape]
            found.append(torch.zeros(shape, dtype=torch.uint8 if name in self._integers else getattr(torch, t.dtype)))
        return tuple(found)

    def _sizes(self) -> dict[str, int]:
        """Return sizes of the named dimensions, as small as they may be where none that is computed of them is 1."""
        computed = {d for t in self._program.tensors.values() for d in t.shape if isinstance(d, str)}
        size, sizes = 2 * EXAMPLE, sizes_near(self._program, 2 * EXAMPLE)
        while any(size_of(d, sizes) < 2 for d in computed) and size < MOST_EXAMPLE:
            size += 1
            sizes = sizes_near(self._program, size)
        return sizes

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """Return what changes in every input, as ``torch.export`` is told."""
        return tuple(
            {
                axis: torch.export.Dim.AUTO
                for axis, d in enumerate(self._program.tensors[n].shape)
                if not isinstance(d, int)
            }
            for n in self._program.inputs
        )


def nested(program: Program, outputs: Sequence[Any]) -> Any:
    """Return outputs nested as the model's, objects of its classes as dicts.

    Several outputs of a program that does not say how they nest are a tuple.
    """
    structure = program.structure
    if structure == 0 and len(outputs) > 1:
        structure = {"tuple": [*range(len(outputs))]}
    return rebuild(structure, outputs, lambda name, fields: MAPPINGS.get(name, dict)(fields))


def export_program(program: Program, path: str | Path, *, uint8_input: bool = False) -> Any:
    """Write the program as a ``torch.export.ExportedProgram`` of plain torch operations and integer tensors.

    ``torch.export.load(path).module()`` runs it without intact8, on any device, with the batch and every named
    dimension free. It takes the inputs in the order of ``program.inputs``, and its outputs nest as the model's do.

    Args:
        program: checked.
        path: the .pt2 file, written all at once or not at all.
        uint8_input: take the integers of quantized inputs instead of floats.

    Returns:
        The ExportedProgram.

    Raises:
        EngineError: an operation has no form in plain torch operations, torch cannot export one, or no file that torch
            opens can be written there.
    """
    path = target_of(path)
    _check_name(path)
    module = TorchProgram(program, uint8_input=uint8_input).eval()
    example = module.example()
    with torch.no_grad():
        module(*example)  # tables that are made once are made of real tensors
        shapes: Any = (module.dynamic_shapes(),)
        try:
            exported = torch.export.export(module, example, dynamic_shapes=shapes)
        except (RuntimeError, ValueError, torch._dynamo.exc.UserError) as error:
            why = str(error).strip().split("\n")[0]
            raise EngineError("torch cannot export this program", where=str(path), why=why, remedy=REMEDY) from error
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    write_file(path, buffer.getvalue())
    return exported


def _check_name(path: Path) -> None:
    """Refuse a name that ``torch.export.load`` does not open."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        what, why = "torch opens no file of this name", "it is not UTF-8"
        raise EngineError(what, where=str(path), why=why, remedy="give the file another name") from error


def _identifier(name: str) -> str:
    """Return a name that attributes of modules may have."""
    return re.sub(r"\W", "_", name)
