"""Layer norm and RMS norm of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from intact.arithmetic import norms
from intact.arithmetic.norms import LONGEST_ROW, MIDDLE

from .attributes import CLAMP, INTEGERS, SIZES
from .kind import Call, Kind, along_none
from .op import Array, Op, Tensor
from .proof import Proof, Sums, Tensors, named, reach
from .shapes import Shape
from .values import Validator, epsilon
from .violation import need


def last_dimensions(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """The shape of the input, which ends in the attribute ``shape``, as do the arrays."""
    shape = tuple(op.attrs["shape"])
    need(len(shape) <= len(x[0]) and x[0][-len(shape) :] == shape, f"input of shape {x[0]} does not end in {shape}")
    for role, array in op.arrays.items():
        need(array.shape == shape, f"{role} has shape {array.shape}, not {shape}")
    return x[0]


def _check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    need(math.prod(op.attrs["shape"]) <= LONGEST_ROW, f"a row of more than {LONGEST_ROW} elements")


def _layer_norm(call: Call) -> Array:
    t, p = call.attrs, call.arrays
    return norms.layer_norm(call.x[0], p["gain"], p["offset"], t["eps"], t["lo"], t["hi"])


def _rms_norm(call: Call) -> Array:
    t, p = call.attrs, call.arrays
    return norms.rms_norm(call.x[0], call.zero_points[0], p["gain"], p["offset"], t["eps"], t["lo"], t["hi"])


def _squares(op: Op, tensors: Tensors) -> Sums:
    largest = MIDDLE if op.kind == "layer_norm" else reach(tensors[op.inputs[0]])
    return Sums(int(math.prod(op.attrs["shape"])) * largest * largest)


SMALLEST_EPS = 1e-30
"""Below this a norm's ε may vanish in steps, and a row of equal integers would be divided by 0."""


def lacks_form(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    """ε has to be there in steps of the input."""
    return None if attrs["eps"] >= SMALLEST_EPS else f"a norm with eps {attrs['eps']}"


ATTRS: dict[str, Validator] = {"shape": SIZES, "eps": epsilon, **CLAMP}
ARRAYS = {"gain": "float32", "offset": "float32"}
PROOF = Proof(named("norm"), _squares)

KINDS = (
    Kind(
        "layer_norm",
        "over the last dimensions, exact sums and a fixed sequence of IEEE operations, see intact.arithmetic.norms; "
        "eps in squared steps; gain, offset of the shape that is normalised",
        (1, 1), INTEGERS, last_dimensions, _layer_norm, attrs=ATTRS, arrays=ARRAYS, check=_check, proof=PROOF, since=2,
        works_along=along_none, nonlinear=True, lacks_form=lacks_form,
    ),
    Kind(
        "rms_norm", "the same without the mean", (1, 1), INTEGERS, last_dimensions, _rms_norm, attrs=ATTRS,
        arrays=ARRAYS, check=_check, proof=PROOF, since=2, works_along=along_none,
        nonlinear=True, lacks_form=lacks_form,
    ),
)  # fmt: skip
