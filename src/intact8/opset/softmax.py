"""Softmax of integers by a table of exponentials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intact8.arithmetic import softmax
from intact8.arithmetic.softmax import PEAK

from .attributes import AXIS, CLAMP
from .kind import Call, Kind
from .op import Array, Op, Tensor
from .proof import INT32, Proof, Sums, Tensors, named
from .shapes import Shape, axis_of, broadcast
from .types import QUANTIZED, signature
from .values import inverse_scale
from .violation import need


def shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the scores, to which a mask broadcasts."""
    axis_of(op, x[0])
    if len(x) == 2:
        need(broadcast(x) == x[0], f"a mask of shape {x[1]} does not fit scores of shape {x[0]}")
    return x[0]


def _check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    table = op.arrays["table"].astype(np.int64)
    need(table.shape == (256,), f"table has shape {table.shape}, not (256,)")
    falling = bool((np.diff(table) <= 0).all()) and table[-1] >= 0 and 1 <= table[0] <= PEAK
    need(falling, f"the table does not fall from at most {PEAK} to 0")


def _softmax(call: Call) -> Array:
    masked, axis = call.x[1] if len(call.x) == 2 else None, axis_of(call.op, call.inputs[0].shape)
    return softmax.softmax(call.x[0], call.arrays["table"], axis, call.attrs["levels"], *call.grid, masked=masked)


def _sums(op: Op, tensors: Tensors) -> Sums:
    x = tensors[op.inputs[0]].shape
    length = x[axis_of(op, x)]
    return Sums(int(op.arrays["table"][0]) * length if isinstance(length, int) else INT32)


KINDS = (
    Kind(
        "softmax",
        "y = clamp(R(fl(t·fl(levels/fl(Σ t)))) + z_y, lo, hi) along axis, t = table[max(x) − x]; where the bool mask "
        "(broadcast) is true, a position counts nothing: t = 0; levels is 1/s_y; see intact8.arithmetic.softmax",
        (1, 2),
        (signature(QUANTIZED, "bool", gives=QUANTIZED),),
        shape,
        _softmax,
        attrs={"axis": AXIS, "levels": inverse_scale, **CLAMP},
        arrays={"table": "int32"},
        check=_check,
        proof=Proof(named("softmax"), _sums),
        since=2,
        nonlinear=True,
    ),
)
