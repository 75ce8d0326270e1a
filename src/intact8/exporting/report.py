"""What was written for another tool, and how it ran there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.display import Grid, Shown, columns
from intact8.errors import EngineError
from intact8.opset.op import Array
from intact8.program.program import Program

if TYPE_CHECKING:
    from rich.table import Table

Values = Mapping[str, Array]
"""Tensors by name."""


@dataclass(frozen=True)
class TensorDifference:
    """Integers of one tensor that differ.

    Attributes:
        tensor: its name, which is also that of the operation.
        kind: of the operation.
        elements: integers compared.
        mismatches: of them, those that differ.
        max_step: the largest difference, in steps of the tensor.
        behind_float: whether a float operation lies before it, which tools round differently.
    """

    tensor: str
    kind: str
    elements: int
    mismatches: int
    max_step: int
    behind_float: bool


@dataclass(frozen=True)
class ExportReport(Shown):
    """What was written, and how it ran on random inputs.

    Attributes:
        format: of the file.
        files: what was written.
        runtime: what ran it, with its version.
        exact: whether the format promises the program's integers wherever no float operation lies before them.
        elements: integers compared.
        differences: tensors with integers that differ, in the program's order.
        notes: what a user of the file has to know, in sentences.
    """

    format: str
    files: tuple[Path, ...]
    runtime: str
    exact: bool
    elements: int
    differences: tuple[TensorDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def mismatches(self) -> int:
        """Return the number of integers that differ."""
        return sum(d.mismatches for d in self.differences)

    def __str__(self) -> str:
        size = sum(path.stat().st_size for path in self.files)
        differ = f"{self.mismatches:,} of {self.elements:,} integers differ"
        return " ".join([f"{', '.join(map(str, self.files))}: {size:,} bytes; {self.runtime}: {differ}.", *self.notes])

    def __rich__(self) -> Table | str:
        if not self.differences:
            return str(self)
        rows = tuple(
            (d.tensor, d.kind, f"{d.mismatches:,} of {d.elements:,}", str(d.max_step), "yes" if d.behind_float else "")
            for d in self.differences
        )
        return Grid(columns("<tensor", "<kind", "differ", "at most", "behind float"), rows, str(self)).__rich__()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "format": self.format,
            "files": [str(path) for path in self.files],
            "bytes": sum(path.stat().st_size for path in self.files),
            "runtime": self.runtime,
            "exact": self.exact,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "differences": [vars(d) for d in self.differences],
            "notes": list(self.notes),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ExportReport:
        """Return the report that :meth:`to_json` was asked of."""
        return ExportReport(
            format=value["format"],
            files=tuple(map(Path, value["files"])),
            runtime=value["runtime"],
            exact=value["exact"],
            elements=value["elements"],
            differences=tuple(TensorDifference(**d) for d in value["differences"]),
            notes=tuple(value["notes"]),
        )


def compare(
    program: Program, want: Values, found: Values, bits: bool = True
) -> tuple[int, tuple[TensorDifference, ...]]:
    """Compare what a file gave with the reference: integers, and floats that are dequantized from them.

    Args:
        program: what was exported.
        want: every tensor, by the reference engine.
        found: tensors that the file gave.
        bits: whether floats must be the same bits; else the integers that they stand for are compared.

    Returns:
        The number of integers compared, and the tensors that differ.

    Raises:
        EngineError: the file gives a tensor of another shape.
    """
    elements, differences, behind = 0, [], _behind_float(program)
    for op in program.ops:
        integers = program.tensors[op.inputs[0] if op.kind == "dequantize" else op.name]
        if op.name not in found or not integers.quantized:
            continue
        near, far = np.asarray(want[op.name]), np.asarray(found[op.name])
        if near.shape != far.shape:
            what = f"the file gives the shape {far.shape}, the program {near.shape}"
            raise EngineError(what, where=op.name, remedy="report this")
        elements += near.size
        step = float(integers.scale or 1.0) if op.kind == "dequantize" else 1.0
        if op.kind == "dequantize" and not bits:
            near, far, step = np.rint(near / step), np.rint(far / step), 1.0
        count = int(np.count_nonzero(near != far))
        if count:
            furthest = float(np.abs(near.astype(np.float64) - far.astype(np.float64)).max()) / step
            found_here = TensorDifference(op.name, op.kind, near.size, count, round(furthest), op.name in behind)
            differences.append(found_here)
    return elements, tuple(differences)


def _behind_float(program: Program) -> set[str]:
    """Return the tensors that depend on the result of a float operation."""
    behind: set[str] = set()
    for op in program.ops:
        if op.is_float or not behind.isdisjoint(op.inputs):
            behind.add(op.name)
    return behind
