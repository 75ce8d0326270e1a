"""The dimensions beside the batch that may change from call to call, in the forms of users and of capture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import Dim

from intact8.errors import InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
FIXED_SIZES = "fixed to the example's size"
"""How capture's note begins of dimensions that were found in data, and that the model does not let change."""

LIMITED = "limited to a usual length"
"""How capture's note begins of dimensions that were asked for without a limit, where the model needs one."""

DERIVED = type(Dim("size") + 1)
"""Sizes that torch.export computes of others."""

UNLIMITED = 1 << 40
"""Sizes from this one on count as unlimited; torch.export's infinity is larger."""


@dataclass(frozen=True)
class Dynamic:
    """Named dimensions of a model's inputs.

    Attributes:
        names: input → dimension → name. Dimensions of one name have one size.
        bounds: name → (least, largest size), where somebody said so; None: no limit.
        found: the dimensions were found in data, not asked for: they are given up, with a note, where the model does
            not allow them.
        seen: name → the sizes that were found.
        rows: the same with names for dimension 0 of inputs, for models whose rows depend on one another, so that it is
            no batch: nodes of a graph, say. None where nobody has named it and all data have one size there.
    """

    names: Mapping[str, Mapping[int, str]]
    bounds: Mapping[str, tuple[int, int | None]]
    found: bool = False
    seen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: Dynamic | None = None

    def limited(self, least: int) -> Dynamic:
        """Return the same, found in data, with limits: as many as asked for, or as the largest size that was found."""
        bounds = {name: (1, max(*sizes, least)) for name, sizes in self.seen.items()}
        return replace(self, bounds={**bounds, **self.bounds})

    def up_to(self, name: str, most: int) -> Dynamic:
        """Return the same with a largest size of one name."""
        least, _ = self.bounds.get(name, (1, None))
        return replace(self, bounds={**self.bounds, name: (least, most)})

    @staticmethod
    def of(dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None) -> Dynamic:
        """Return what a caller gave: ``{"input_ids": {1: "sequence"}}``, or a ``torch.export.Dim`` in place of the
        name.

        Raises:
            InputError: of another form.

        Example:
            >>> Dynamic.of({"x": {0: "batch", 1: Dim("sequence", min=1, max=512)}})
            Dynamic(names={'x': {1: 'sequence'}}, bounds={'sequence': (1, 512)}, found=False, seen={}, rows=None)
        """
        if isinstance(dynamic_shapes, Dynamic):
            return dynamic_shapes
        if dynamic_shapes is not None and not isinstance(dynamic_shapes, Mapping):
            raise _refused(f"expected a dict, got {type(dynamic_shapes).__name__}")
        names: dict[str, dict[int, str]] = {}
        bounds: dict[str, tuple[int, int | None]] = {}
        batches: dict[str, str] = {}  # name of a dimension 0 → its input
        rows: dict[str, str] = {}  # input → name of its dimension 0, where that is not "batch"
        limits: dict[str, tuple[int, int | None]] = {}
        for key, dims in (dynamic_shapes or {}).items():
            if not isinstance(dims, Mapping):
                raise _refused(f"{key!r} has {dims!r:.60}, not a dict of dimensions")
            for axis, dim in dims.items():
                if not isinstance(axis, int) or isinstance(axis, bool) or axis < 0:
                    raise _refused(f"{key!r} names dimension {axis!r:.60}, not a number from 0 on")
                if axis == 0:  # the batch, which changes anyway
                    free = dim in ("batch", Dim.AUTO, Dim.DYNAMIC) or getattr(dim, "__name__", "") == "batch"
                    batches.setdefault("batch" if free else _name(dim), key)
                    names.setdefault(key, {})
                    if not free:
                        rows[key] = _name(dim)
                        limits |= {} if isinstance(dim, str) else {rows[key]: _bounds(dim)}
                    continue
                # One that is computed of another (``past + 1``) is found to be so by capture.
                name = re.sub(r"\W", "_", f"{key}_{axis}") if type(dim) is DERIVED else _name(dim)
                names.setdefault(key, {})[axis] = name
                if type(dim) is not DERIVED and not isinstance(dim, str):
                    bounds[name] = _bounds(dim)
        for key, axes in names.items():
            for axis, name in axes.items():
                if name in batches:
                    raise InputError(
                        f"{name} is dimension 0 of {batches[name]}, and dimension {axis} of {key}",
                        where="dynamic_shapes",
                        why="the batch is dimension 0 of every input",
                        remedy="give the model inputs with samples along dimension 0, and transpose them inside of it",
                    )
        if not rows:
            return Dynamic(names, bounds)
        whole = {key: {**({0: rows[key]} if key in rows else {}), **axes} for key, axes in names.items()}
        return Dynamic(names, bounds, rows=Dynamic(whole, {**limits, **bounds}))


def _name(dim: Any) -> str:
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(dim, (str, Dim)):
        raise _refused(f"{dim!r:.60} is not the name of a dimension")
    if name == "batch":
        raise _refused("a dimension is called batch", "that is dimension 0, which changes anyway")
    return name


def _bounds(dim: Any) -> tuple[int, int | None]:
    most = int(dim.max) if dim.max < UNLIMITED else None
    return max(int(dim.min), 1), most


def _refused(what: str, why: str = "") -> InputError:
    remedy = 'give dimensions by input: {"input_ids": {1: "sequence"}}, or torch.export.Dim("sequence", max=512)'
    return InputError(what, where="dynamic_shapes", why=why, remedy=remedy)


def doubled(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return a copy with the dimensions of length 1 doubled: torch.export takes a size of 1 for one that stays."""
    for dim in dims:
        if x.shape[dim] == 1:
            x = torch.cat([x, x], dim)
    return x.detach().clone()
