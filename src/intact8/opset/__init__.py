"""The opset: every kind of operation, declared once. What programs, engines, proofs and documentation know of a kind
follows from its declaration."""

from __future__ import annotations

from collections.abc import Sequence

from . import (
    affine,
    boundary,
    dequantized,
    dynamic_linear,
    elementwise,
    embedding,
    float_indexing,
    float_layers,
    floats,
    moves,
    norms,
    pools,
    recurrent,
    resize,
    softmax,
)
from .kind import Call, Interval, Kind
from .op import Array, Op, Tensor
from .shapes import Shape, elements
from .types import result_types
from .values import LARGEST_SIZE
from .violation import Violation, need

INTEGER_FAMILIES = (
    boundary,
    affine,
    dequantized,
    elementwise,
    pools,
    softmax,
    norms,
    embedding,
    dynamic_linear,
    recurrent,
)
FAMILIES = (*INTEGER_FAMILIES, resize, moves, floats, float_indexing, float_layers)

KINDS: dict[str, Kind] = {kind.name: kind for family in FAMILIES for kind in family.KINDS}
"""Every kind by its name."""


def kind_of(op: Op) -> Kind:
    """Return the declaration of an operation's kind."""
    return KINDS[op.kind]


def output_dtypes(op: Op, inputs: Sequence[Tensor]) -> list[str]:
    """Return the dtypes that ``op`` may give from ``inputs``; "quantized" stands for uint8 with a scale."""
    return result_types(op, KINDS[op.kind].types, inputs)


def output_shape(op: Op, inputs: Sequence[Tensor], declared: Shape) -> Shape:
    """Return the shape that ``op`` gives. ``declared`` decides only what an expanded −1 stands for.

    Raises:
        Violation: the inputs do not fit the op.
    """
    shape = KINDS[op.kind].shape(op, [t.shape for t in inputs], declared)
    need(len(shape) <= 8 and elements(shape) <= LARGEST_SIZE, f"output of shape {shape} is too large")
    return shape


__all__ = [
    "KINDS",
    "Array",
    "Call",
    "Interval",
    "Kind",
    "Op",
    "Tensor",
    "Violation",
    "kind_of",
    "output_dtypes",
    "output_shape",
]
