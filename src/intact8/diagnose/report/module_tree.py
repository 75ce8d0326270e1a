"""The network as rows of a tree: each module with its operations below it, in execution order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intact8.diagnose.report.contents import Layer


@dataclass(frozen=True)
class TreeRow:
    """A module, or an operation.

    Attributes:
        id: unique id of the row.
        parent: id of the module it is in, "" at the top.
        depth: 0 at the top.
        label: the part of its name behind the parent's name.
        layer: position of the operation among the report's layers; None for a module.
        count: operations in the module, those of submodules included; 1 for an operation.
    """

    id: str
    parent: str
    depth: int
    label: str
    layer: int | None
    count: int


def rows(layers: Sequence[Layer]) -> list[TreeRow]:
    """Return the rows; every module stands before its first operation, and holds its operations in one block.

    Example:
        >>> rows([])
        []
    """
    inside: dict[str, list[tuple[str, int | None]]] = {"": []}  # path of a module → path and position of what is in it
    count: dict[str, int] = {}
    for i, around in enumerate(ancestors(layers)):
        parent = ""
        for path in around:
            if path not in count:
                inside[path] = []
                inside[parent].append((path, None))
            count[path] = count.get(path, 0) + 1
            parent = path
        inside[parent].append((layers[i].name, i))
    ids = {path: f"m{i}" for i, path in enumerate(count)}
    out: list[TreeRow] = []

    def visit(parent: str, depth: int) -> None:
        """Add the rows of a module, even where execution leaves it and comes back."""
        for path, index in inside[parent]:
            id, size = (ids[path], count[path]) if index is None else (f"o{index}", 1)
            out.append(TreeRow(id, ids.get(parent, ""), depth, path.removeprefix(parent + "."), index, size))
            if index is None:
                visit(path, depth + 1)

    visit("", 0)
    return out


def ancestors(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Return for every operation the paths of the modules around it, outermost first.

    A module that is an operation itself (``fc``, and beside it ``fc.dequantize``) surrounds nothing.
    """
    names = {layer.name for layer in layers}
    out = []
    for layer in layers:
        parts = layer.module.split(".") if layer.module else []
        paths = [".".join(parts[: i + 1]) for i in range(len(parts))]
        out.append(tuple(path for path in paths if path not in names))
    return out
