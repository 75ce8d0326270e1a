"""Linear layers whose inputs are quantized while they run."""

from __future__ import annotations

import numpy as np

from intact8.arithmetic import dynamic
from intact8.arithmetic.dynamic import GRANULARITIES, sum_bound

from .affine import linear_shape
from .attributes import FLOATS
from .kind import Call, Kind
from .op import Array, Op
from .proof import Proof, Sums, Tensors, largest_pair, named
from .shapes import Shape
from .values import one_of
from .violation import need


def _shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = linear_shape(op, x, declared)
    for role in ("scale", "bias"):
        if role in op.arrays:
            array = op.arrays[role]
            need(array.shape == shape[-1:], f"{role} has shape {array.shape}, not {shape[-1:]}")
    need(bool((op.arrays["scale"] > 0).all()), "scale holds a number that is not positive")
    return shape


def _linear(call: Call) -> Array:
    p = call.arrays
    return dynamic.linear(call.x[0], p["weight"], p["scale"], p.get("bias"), call.attrs["granularity"])


def weight_sums(op: Op, tensors: Tensors) -> Sums:
    """Return the bounds of the products of every stored weight with bytes."""
    weights = [a.reshape(-1, a.shape[-1]) for role, a in op.arrays.items() if role.startswith("weight")]
    return Sums(max(map(sum_bound, weights)), max(largest_pair(np.abs(w).view(np.uint8)) for w in weights))


KINDS = (
    Kind(
        "dynamic_linear",
        "acc = Σ q·w exactly, with q and s of x quantized row by row; y = fl(fl(fl(fl(acc)·scale)·s) + bias), see "
        "intact8.arithmetic.dynamic; weight (O, I), scale, bias (O,)",
        (1, 1),
        FLOATS,
        _shape,
        _linear,
        attrs={"granularity": one_of(*GRANULARITIES)},
        arrays={"weight": "int8", "scale": "float32"},
        optional_arrays={"bias": "float32"},
        domain="dynamic",
        proof=Proof(named("dynamic"), weight_sums),
        since=2,
        multiplies_weights=True,
    ),
)
