"""Which tensors of a program are images, whose channels should come last in memory."""

from __future__ import annotations

from intact8.program.program import Program

IMAGE_KINDS = frozenset({"conv", "max_pool", "avg_pool", "adaptive_avg_pool", "upsample", "resize_linear"})
"""Kinds with channels in dimension 1."""

FLOAT_IMAGE_KINDS = frozenset({"group_norm", *(f"float.{kind}" for kind in (*IMAGE_KINDS, "group_norm"))})
"""Further kinds with channels in dimension 1, which not every engine computes with channels last."""

SAME_DIMENSIONS = frozenset({"pad", "slice", "cat", "roll", "table", "add", "mul", "mean"})
"""Kinds whose result has the dimensions of their operands: the layout that its readers want is best for these, too."""


def read_as_images(program: Program, *, floats: bool = False) -> set[str]:
    """Return the tensors that operations on images read, directly or after others that keep their dimensions.

    Args:
        program: checked.
        floats: whether operations of float islands and group norms want channels last, too.
    """
    kinds = IMAGE_KINDS | FLOAT_IMAGE_KINDS if floats else IMAGE_KINDS
    found: set[str] = set()
    for op in reversed(program.ops):
        if op.kind in kinds or (op.kind in SAME_DIMENSIONS and op.name in found):
            found.update(op.inputs)
    return found
