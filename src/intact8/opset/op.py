"""Operations and tensors of an integer program. What each kind of operation means is declared in the other modules of
this room; docs/opset.md is the table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic.dimensions import Dim

Array = npt.NDArray[Any]


INTERPOLATING = ("linear", "bilinear", "trilinear", "bicubic")
"""Modes of ``upsample`` that compute new values, which only float tensors can hold; the others move values."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program.

    Attributes:
        name: unique; the name of the op that makes it.
        dtype: numpy dtype name: uint8 for quantized tensors, float32, int64, bool otherwise.
        shape: ``None`` stands for the batch dimension, a name for another that changes from call to call.
        scale: step size of a quantized tensor, float32 value > 0; None where the tensor is not quantized.
        zero_point: the integer that stands for 0.0.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    scale: float | None = None
    zero_point: int | None = None

    @property
    def quantized(self) -> bool:
        """Whether the integers of this tensor carry a scale and a zero point."""
        return self.scale is not None


def same_arrays(a: Mapping[Any, Array], b: Mapping[Any, Array]) -> bool:
    """Return whether two groups of arrays have the same names, dtypes, shapes and bytes."""

    def same(x: Array, y: Array) -> bool:
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()

    return a.keys() == b.keys() and all(same(array, b[name]) for name, array in a.items())


@dataclass(frozen=True)
class Op:
    """One operation; its output tensor has the op's name.

    Attributes:
        name: name of the op and of its output tensor.
        kind: name of a kind, see ``intact8.opset.KINDS``.
        inputs: names of input tensors.
        attrs: JSON values.
        arrays: role → array, contiguous in the order of its dimensions (made so here: compiled code reads memory).
        module: path of the module it came from.
        source: what was fused into it, for people to read (["conv1", "bn1", "relu"]).
        certificate: what was proved, a JSON object (see ``intact8.program.certify``); None for float and moving ops.
        note: why it stayed float, or anything else worth a line in the report.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    module: str = ""
    source: tuple[str, ...] = ()
    certificate: dict[str, Any] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        arrays = {role: np.asarray(array, order="C") for role, array in self.arrays.items()}
        object.__setattr__(self, "arrays", arrays)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return NotImplemented
        plain = all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.name != "arrays")
        return plain and same_arrays(self.arrays, other.arrays)

    @property
    def is_float(self) -> bool:
        """Whether this op belongs to a float island: it computes float32 values, and engines may round differently."""
        return self.kind.startswith("float.") or (self.kind == "upsample" and self.attrs.get("mode") in INTERPOLATING)

    def multipliers(self) -> tuple[Array, Array]:
        """Return ``a`` and ``b`` as int64 arrays (conv, linear)."""
        return np.asarray(self.arrays["a"], np.int64), np.asarray(self.arrays["b"], np.int64)
