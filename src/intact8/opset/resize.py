"""Linear, bilinear and trilinear resizing of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import known as known_sizes
from intact8.arithmetic.resize import LARGEST_PRODUCT, exact_denominators, resize_linear

from .attributes import INTEGERS, SIZES
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

MOST_AXES = 2
"""Interpolated axes: the weights of three would have denominators below 40, and differ too much from torch's."""


def _shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    size, denominators = op.attrs["size"], op.attrs["denominators"]
    need(len(size) <= 3 and len(denominators) == len(size), f"size {size} and denominators {denominators} do not fit")
    spatial(x[0], len(size))
    return (*x[0][:2], *size)


def _check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_unchanged(op, inputs, output)
    denominators = op.attrs["denominators"]
    need(all(d % 2 for d in denominators), f"denominators {denominators} must be odd")
    need(255 * math.prod(denominators) < LARGEST_SUM, f"denominators {denominators} make sums of {LARGEST_SUM} or more")


def _evaluate(call: Call) -> Array:
    t = call.attrs
    return resize_linear(call.x[0], t["size"], t["align_corners"], t["denominators"])


def _lacks_form(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    exact = exact_denominators(known_sizes(shape[2:]), attrs["size"], attrs["align_corners"])
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
        attrs={"size": SIZES, "align_corners": boolean, "denominators": integers(1, LARGEST_PRODUCT)},
        check=_check,
        proof=Proof(named("resize"), _sums, _multipliers, _fits),
        since=3,
        works_along=along_all_but_first,
        lacks_form=_lacks_form,
        shares_grid=True,
    ),
)
