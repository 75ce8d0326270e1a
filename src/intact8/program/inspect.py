"""Programs for people: a table of operations, a tree by module, and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.arithmetic.dimensions import Dim
from intact8.display import Column, Grid, Shown, inert
from intact8.opset.op import Op

from .certify import certifiable
from .document import to_document
from .file import digest
from .program import Program
from .remarks import remarks

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.tree import Tree as RichTree


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        op, kind, module: of the op.
        inputs: names of its inputs.
        shape: of its output; None is the batch.
        dtype: of its output.
        scale, zero_point: of its output, None where not quantized.
        fused: what went into it, with the clamp where it does something.
        certificate: "exact" with the margin, the reason where it is not, "float" for islands, "" for moves.
        bytes: size of its arrays.
        note: of the op.
    """

    op: str
    kind: str
    module: str
    inputs: tuple[str, ...]
    shape: tuple[Dim, ...]
    dtype: str
    scale: float | None
    zero_point: int | None
    fused: str
    certificate: str
    bytes: int
    note: str


@dataclass(frozen=True)
class Table(Shown):
    """Rows in execution order; prints as a table with rich.

    Attributes:
        rows: one per operation.
        caption: the program in one line, and what should be known about it.
    """

    rows: tuple[Row, ...]
    caption: str

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def grid(self) -> Grid:
        """Return the table that is shown."""
        numbers = ("scale", "zero point", "bytes")
        titles = ("op", "kind", "inputs", "shape", "scale", "zero point", "fused", "certificate", "bytes")
        columns = tuple(Column(title, "right" if title in numbers else "left") for title in titles)
        return Grid(columns, tuple(_cells(row) for row in self.rows), self.caption)

    def __rich__(self) -> RichTable:
        return self.grid().__rich__()

    def _repr_html_(self) -> str:
        return self.grid().to_html()


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.op,
        row.kind,
        ", ".join(row.inputs),
        _shape(row.shape),
        "" if row.scale is None else f"{row.scale:.6g}",
        "" if row.zero_point is None else str(row.zero_point),
        row.fused,
        ": ".join(filter(None, (row.certificate, row.note))),
        f"{row.bytes:,}" if row.bytes else "",
    )


@dataclass
class Branch(Shown):
    """A module and what it holds; prints as a tree with rich.

    Attributes:
        name: last part of the module's path.
        rows: its own operations.
        children: its submodules by name.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    children: dict[str, Branch] = field(default_factory=dict)

    def __rich__(self) -> RichTree:
        from rich.tree import Tree as RichTree

        out = RichTree(inert(self.name))
        self._grow(out)
        return out

    def _grow(self, tree: RichTree) -> None:
        for row in self.rows:
            q = "" if row.scale is None else f" scale {row.scale:.6g} zero point {row.zero_point}"
            proved = f" [{row.certificate}]" if row.certificate else ""
            tree.add(inert(f"{row.op}: {row.kind} {_shape(row.shape)}{q}{proved}"))
        for child in self.children.values():
            child._grow(tree.add(inert(child.name)))


def _shape(shape: tuple[Dim, ...]) -> str:
    return "×".join("N" if d is None else str(d) for d in shape)


def table(program: Program) -> Table:
    """Return one row per operation, in execution order."""
    certified = sum(1 for op in program.ops if op.certificate and op.certificate.get("exact"))
    integers = sum(1 for op in program.ops if certifiable(op))
    islands = len(program.islands())
    caption = (
        f"{len(program.ops)} ops, {certified} of {integers} integer ops proved exact, {islands} float ops, "
        f"{program.nbytes():,} bytes, needs {', '.join(program.needs) or 'nothing special'}"
    )
    return Table(tuple(_row(program, op) for op in program.ops), ". ".join((caption, *remarks(program))))


def tree(program: Program) -> Branch:
    """Return the operations under the modules they came from."""
    root = Branch("program")
    for op in program.ops:
        branch = root
        for part in op.module.split(".") if op.module else []:
            branch = branch.children.setdefault(part, Branch(part))
        branch.rows.append(_row(program, op))
    return root


def to_json(program: Program) -> dict[str, Any]:
    """Return the program as JSON values: its file's document, its digest and the rows of :func:`table`."""
    rows = [asdict(row) | {"inputs": list(row.inputs), "shape": list(row.shape)} for row in table(program)]
    about = {"digest": digest(program), "bytes": program.nbytes(), "remarks": remarks(program)}
    return {**to_document(program), **about, "rows": rows}


def _row(program: Program, op: Op) -> Row:
    t = program.tensors[op.name]
    size = sum(int(np.asarray(a).nbytes) for a in op.arrays.values())
    return Row(
        op.name,
        op.kind,
        op.module,
        op.inputs,
        t.shape,
        t.dtype,
        t.scale,
        t.zero_point,
        _fused(program, op),
        _certificate(op),
        size,
        op.note,
    )


def _fused(program: Program, op: Op) -> str:
    parts = [" + ".join(op.source)] if len(op.source) > 1 else []
    if op.kind == "table":
        parts.append(str(op.attrs["fn"]))
    lo, hi = op.attrs.get("lo", 0), op.attrs.get("hi", 255)
    if (lo, hi) != (0, 255):
        parts.append(f"clamp {lo}..{hi}")
    if len(op.inputs) == 2 and op.kind in ("conv", "linear"):
        parts.append(f"adds {op.inputs[1]}")
    return ", ".join(parts)


def _certificate(op: Op) -> str:
    if op.is_float:
        return "float"
    if not certifiable(op):
        return ""
    c = op.certificate
    if c is None:
        return "none"
    if not c.get("exact"):
        return f"not exact: {c.get('reason', '')}"
    margin = "" if c.get("margin") is None else f", margin {c['margin']:.2g}"
    return f"exact{margin}{'' if c.get('portable', True) else ', needs VNNI'}"
