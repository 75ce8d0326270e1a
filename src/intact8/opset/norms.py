"""Layer norm, group norm and RMS norm of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from intact8.arithmetic import norms
from intact8.arithmetic.norms import LONGEST_ROW, MIDDLE

from .attributes import CLAMP, INTEGERS, SIZES, SMALL
from .kind import Call, Kind, along_all_but_first, along_none
from .op import Array, Op, Tensor
from .proof import INT32, Proof, Sums, Tensors, named, reach
from .shapes import Shape, fits_channels, known
from .values import Validator, epsilon, integer
from .violation import need


def last_dimensions(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the input, which ends in the attribute ``shape``, as do the arrays."""
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


def grouped(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the images, whose channels the groups divide and the arrays have one number of."""
    fits_channels(op, x[0])
    need(known(x[0][1], "the channel dimension") % op.attrs["groups"] == 0, "groups do not divide the channels")
    return x[0]


def _group(shape: Shape, groups: int) -> int | None:
    """Return the elements of a group; None where that depends on the input."""
    sizes = [d for d in shape[1:] if isinstance(d, int)]
    return math.prod(sizes) // groups if len(sizes) == len(shape) - 1 else None


def _check_groups(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    elements = _group(inputs[0].shape, op.attrs["groups"])
    need(elements is not None and elements <= LONGEST_ROW, f"a group of {elements} elements, not 1 to {LONGEST_ROW}")


def _group_norm(call: Call) -> Array:
    t, p = call.attrs, call.arrays
    return norms.group_norm(call.x[0], t["groups"], p["gain"], p["offset"], t["eps"], t["lo"], t["hi"])


def _group_squares(op: Op, tensors: Tensors) -> Sums:
    elements = _group(tensors[op.inputs[0]].shape, op.attrs["groups"])
    return Sums(INT32 if elements is None else elements * MIDDLE * MIDDLE)


def _lacks_groups(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    elements = _group(shape, attrs["groups"])
    if elements is None:
        return "groups of a size that changes from call to call"
    return lacks_form(attrs, shape) if elements < LONGEST_ROW else f"groups of {elements} elements"


def _squares(op: Op, tensors: Tensors) -> Sums:
    largest = MIDDLE if op.kind == "layer_norm" else reach(tensors[op.inputs[0]])
    return Sums(int(math.prod(op.attrs["shape"])) * largest * largest)


SMALLEST_EPS = 1e-30
"""Below this a norm's ε may vanish in steps, and a row of equal integers would be divided by 0."""


def lacks_form(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    """Return why a norm has no integer form: its ε would vanish in steps of the input."""
    return None if attrs["eps"] >= SMALLEST_EPS else f"eps {attrs['eps']}"


ATTRS: dict[str, Validator] = {"shape": SIZES, "eps": epsilon, **CLAMP}
ARRAYS = {"gain": "float32", "offset": "float32"}
PROOF = Proof(named("norm"), _squares)

LAYER_NORM = Kind(
    "layer_norm",
    "over the last dimensions, exact sums and a fixed sequence of IEEE operations, see intact8.arithmetic.norms; "
    "eps in squared steps; gain, offset of the shape that is normalised",
    (1, 1),
    INTEGERS,
    last_dimensions,
    _layer_norm,
    attrs=ATTRS,
    arrays=ARRAYS,
    check=_check,
    proof=PROOF,
    since=2,
    works_along=along_none,
    nonlinear=True,
    lacks_form=lacks_form,
)

KINDS = (
    LAYER_NORM,
    replace(LAYER_NORM, name="rms_norm", formula="the same without the mean", evaluate=_rms_norm),
    Kind(
        "group_norm",
        "layer norm of every group of neighbouring channels with all their places; groups = C is instance norm; gain, "
        "offset (C,)",
        (1, 1),
        INTEGERS,
        grouped,
        _group_norm,
        attrs={"groups": integer(1, SMALL), "eps": epsilon, **CLAMP},
        arrays=ARRAYS,
        check=_check_groups,
        proof=Proof(named("norm"), _group_squares),
        since=3,
        works_along=along_all_but_first,
        nonlinear=True,
        lacks_form=_lacks_groups,
    ),
)
