"""Linear, bilinear and trilinear resizing of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import Dim, multiplied, names_of, size_of
from intact8.arithmetic.resize import LARGEST_PRODUCT, exact_denominators, resize_linear

from .attributes import IMAGE_SIZE, INTEGERS
from .kind import Call, Kind, along_all_but_first
from .moves import check_unchanged
from .op import Array, Op, Tensor
from .proof import FLOAT32, Evaluation, Multipliers, Proof, Sums, Tensors, named
from .shapes import Shape, spatial
from .values import boolean, integers
from .violation import need

LARGEST_SUM = 1 << 30
"""Sums of this size and a half of their denominator fit int32."""

HALF_RESULT = 128.0
"""float32 numbers below 256 are off by at most 128·2⁻²⁴ after one rounding."""

PROBE = 1009
"""Size that is given to every name where the ratio of two sizes is sought."""

MOST_AXES = 2
"""Interpolated axes: the weights of three would have denominators below 40, and differ too much from torch's."""


def _shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    size, denominators = op.attrs["size"], op.attrs["denominators"]
    need(len(size) <= 3 and len(denominators) == len(size), f"size {size} and denominators {denominators} do not fit")
    for before, after in zip(spatial(x[0], len(size)), size, strict=True):
        known_ratio = not op.attrs["align_corners"] and times(before, after) is not None
        need(known_ratio or {type(before), type(after)} == {int}, f"the ratio of {after} and {before} is not known")
    return (*x[0][:2], *size)


def times(before: int | str, after: int | str) -> int | None:
    """Return how many times as long a dimension becomes; None where that is no number.

    Example:
        >>> times("height", "2*height"), times(3, 6), times("height", "height+1")
        (2, 2, None)
    """
    names = dict.fromkeys([*names_of(before), *names_of(after)], PROBE)
    ratio = size_of(after, names) // max(size_of(before, names), 1)
    return ratio if multiplied([before, ratio]) == after else None


def as_known(size: Sequence[Dim], out: Sequence[Dim]) -> tuple[list[int], list[int]]:
    """Return sizes before and after that have the weights of those given: 2 and 2·n for a dimension that changes, which
    becomes n times as long, since two elements already have everything between them that more have.

    Example:
        >>> as_known([7, "width"], [9, "3*width"])
        ([7, 2], [9, 6])
    """
    rows = [
        (n, m) if isinstance(n, int) and isinstance(m, int) else (2, 2 * (times(n or 0, m or 0) or 1))
        for n, m in zip(size, out, strict=True)
    ]
    return [n for n, _ in rows], [m for _, m in rows]


def _check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_unchanged(op, inputs, output)
    denominators = op.attrs["denominators"]
    need(all(d % 2 for d in denominators), f"denominators {denominators} must be odd")
    need(255 * math.prod(denominators) < LARGEST_SUM, f"denominators {denominators} make sums of {LARGEST_SUM} or more")


def _evaluate(call: Call) -> Array:
    t = call.attrs
    return resize_linear(call.x[0], t["size"], t["align_corners"], t["denominators"])


def _lacks_form(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    for before, after in zip(shape[2:], attrs["size"], strict=True):
        if {type(before), type(after)} != {int} and (attrs["align_corners"] or times(before or 0, after) is None):
            return f"a resize of {before} to {after}, whose ratio is not known"
    exact = exact_denominators(*as_known(shape[2:], attrs["size"]), attrs["align_corners"])
    axes = sum(d > 1 for d in exact)
    return f"{axes} axes that are interpolated" if axes > MOST_AXES else None


def _sums(op: Op, tensors: Tensors) -> Sums:
    return Sums(255 * math.prod(op.attrs["denominators"]))


def _multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    return [Multipliers(np.array([math.prod(op.attrs["denominators"])], np.int64), "resize", result=HALF_RESULT)]


def _fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    return sums.largest < FLOAT32


KINDS = (
    Kind(
        "resize_linear",
        "images of another size, y = R(Σ w·x / Πdenominators): weights of odd denominators, one per axis, see "
        "intact8.arithmetic.resize; scale and zero point unchanged",
        (1, 1),
        INTEGERS,
        _shape,
        _evaluate,
        attrs={"size": IMAGE_SIZE, "align_corners": boolean, "denominators": integers(1, LARGEST_PRODUCT)},
        check=_check,
        proof=Proof(named("resize"), _sums, _multipliers, _fits),
        since=3,
        works_along=along_all_but_first,
        lacks_form=_lacks_form,
        shares_grid=True,
    ),
)
