"""Float islands that move or order elements by indices that the network computes: gather, scatter, argsort, cumsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .attributes import AXIS, FLOAT, INT
from .floats import axis_shape, elementwise, ends, island
from .kind import UNKNOWN, Call, Interval
from .moves import union
from .op import Array, Op, Tensor
from .shapes import Shape, axis_of
from .types import signature
from .values import Validator, boolean, one_of
from .violation import need

ACCUMULATED = (signature(FLOAT, gives=FLOAT), signature("int64 bool uint8", gives=INT))
GATHERED = tuple(signature(dtype, INT, gives=dtype) for dtype in (FLOAT, INT, "bool"))
SORTED = (signature("float32 int64 uint8", gives=INT),)

REDUCTIONS = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
"""What a scatter does with several elements of one place, beside "none": there the last one stays."""

SCATTERED = (
    *(signature(dtype, INT, dtype, gives=dtype) for dtype in (FLOAT, INT)),
    signature("bool", INT, "bool", gives="bool", reduce=one_of("none")),
)
SCATTER: dict[str, Validator] = {"axis": AXIS, "reduce": one_of("none", *REDUCTIONS)}


def _accumulated(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    size = inputs[0].shape[axis_of(op, inputs[0].shape)]
    return ends([v * n for v in x[0] for n in (1, size)]) if isinstance(size, int) and UNKNOWN not in x else None


def _indexed(op: Op, x: Shape, index: Shape) -> None:
    """Demand that indices have the shape of what they are indices of, but for the axis."""
    axis = axis_of(op, x)
    fits = len(index) == len(x) and all(a == b for d, (a, b) in enumerate(zip(x, index, strict=True)) if d != axis)
    need(fits, f"indices of shape {index} do not fit {x} beside axis {axis}")


def _gather_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    _indexed(op, *x)
    return x[1]


def _gather(call: Call) -> Array:
    (x, index), axis = call.x, call.attrs["axis"]
    return np.take_along_axis(x, index.clip(0, x.shape[axis] - 1), axis)


def _scatter_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    _indexed(op, *x[:2])
    need(x[2] == x[1], f"elements of shape {x[2]} do not fit indices of shape {x[1]}")
    return x[0]


def _scatter(call: Call) -> Array:
    (x, index, source), axis = call.x, call.attrs["axis"]
    y = x.copy()
    places: list[Array] = [*np.indices(index.shape, sparse=True)]
    places[axis] = index.clip(0, x.shape[axis] - 1)
    if call.attrs["reduce"] == "none":
        y[tuple(places)] = source
    else:
        REDUCTIONS[call.attrs["reduce"]].at(y, tuple(places), source)
    return y


def _placed(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    if op.attrs["reduce"] in ("none", "amax", "amin"):
        return union([x[0], x[2]])
    count = inputs[1].shape[axis_of(op, inputs[1].shape)]
    if op.attrs["reduce"] == "prod" or not isinstance(count, int) or UNKNOWN in x:
        return None
    return x[0][0] + count * min(x[2][0], 0), x[0][1] + count * max(x[2][1], 0)


def _argsort(call: Call) -> Array:
    x, axis = call.x[0], call.attrs["axis"]
    if not call.attrs["descending"]:
        return np.argsort(x, axis, kind="stable")
    # Backwards and back again, equal elements stay in their order, and NaN, which numpy puts last, comes first.
    return np.asarray(x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis))


def _positions(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    size = inputs[0].shape[axis_of(op, inputs[0].shape)]
    return (0, size - 1) if isinstance(size, int) else None


def _first_interval(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    return x[0]


ALONG: dict[str, Any] = {"axis": AXIS}

KINDS = (
    elementwise(
        "float.cumsum",
        "sums of all elements up to each one along axis",
        ACCUMULATED,
        lambda t, x: np.cumsum(x[0], axis=t["axis"]),
        shape=axis_shape,
        attrs=ALONG,
        interval=_accumulated,
    ),
    island(
        "float.gather",
        "x[…, i[…, j, …], …] at j along axis; an index outside counts as the nearest inside",
        GATHERED,
        _gather_shape,
        _gather,
        inputs=2,
        attrs=ALONG,
        interval=_first_interval,
    ),
    island(
        "float.scatter",
        "(x, i, s): x, and at i[…, j, …] along axis the element s[…, j, …], alone (the last of several) or reduced "
        "with what is there; an index outside counts as the nearest inside",
        SCATTERED,
        _scatter_shape,
        _scatter,
        inputs=3,
        attrs=SCATTER,
        interval=_placed,
        since=3,
    ),
    island(
        "float.argsort",
        "indices that sort along axis; equal elements stay in their order, NaN is the largest",
        SORTED,
        axis_shape,
        _argsort,
        attrs={**ALONG, "descending": boolean},
        interval=_positions,
        since=3,
    ),
)
