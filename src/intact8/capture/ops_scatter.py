"""ATen → operations: writing at indices, and sorting."""

from __future__ import annotations

import math
from typing import Any

import torch

from intact8.arithmetic.dimensions import Dim
from intact8.capture.aten_call import Call, Value, handles, held
from intact8.capture.ops_index import beginning, counts_to, everything, places_of_each
from intact8.capture.ops_pointwise import scalar
from intact8.capture.ops_shape import batch_of, concatenated, cut, expanded, over_samples

MOST = torch.finfo(torch.float32).max
REDUCTIONS = {
    "add": "sum",
    "sum": "sum",
    "mean": "sum",
    "multiply": "prod",
    "prod": "prod",
    "amax": "amax",
    "amin": "amin",
}
"""torch's names of reductions → those of the kind; a mean is a sum divided by a count."""

NEUTRAL = {"sum": 0.0, "prod": 1.0, "amax": -MOST, "amin": MOST}


def filled(c: Call, value: float, shape: tuple[Dim, ...], dtype: str) -> Value:
    """Record a tensor that holds one number everywhere."""
    one = c.value(torch.full([1] * len(shape), value, dtype=getattr(torch, dtype)))
    return one if c.shape(one) == shape else over_samples(c, one, shape)


@handles("sort")
def sort(c: Call) -> list[Value]:
    """Record the indices that sort, and the elements there."""
    x = c.value(c["self"])
    shape, dtype, axis = c.shape(x), c.dtype(x), c.axis(c["dim"], x)
    if not shape:
        return [x, c.value(torch.zeros((), dtype=torch.int64))]
    if shape[axis] is None:
        raise c.mixes("the batch is sorted")
    places, values = ordered(c, x, axis, bool(c["descending"]))
    return [c.emit("cast", values, out=shape, out_dtype=dtype, dtype=dtype) if dtype == "uint8" else values, places]


def ordered(c: Call, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """Record the indices that sort a tensor along a dimension, and its elements in that order."""
    shape, dtype = c.shape(x), c.dtype(x)
    places = c.emit("argsort", x, out=shape, out_dtype="int64", axis=axis, descending=descending)
    return places, c.emit("gather", x, places, out=shape, out_dtype=dtype, axis=axis)


@handles("topk")
def topk(c: Call) -> list[Value]:
    """Record the beginning of what is sorted."""
    x, count = c.value(c["self"]), c.builder.dim(c["k"], c.fx)
    if count is None:
        raise c.mixes("as many elements as there are samples are taken")
    axis = c.axis(c.args.get("dim", -1), x)
    length = c.shape(x)[axis]
    if isinstance(length, str) and isinstance(count, int):
        c.at_least(length, least=count)
    elif isinstance(length, str):
        c.at_least(count)
    else:
        c.static(length)
    places, values = ordered(c, x, axis, bool(c.args.get("largest", True)))
    return [cut(c, part, axis, 0, count) for part in (values, places)]


@handles("scatter scatter_add")
def scatter(c: Call) -> Value:
    """Record elements, or one number, written at indices or added there."""
    how = c.args.get("reduce")
    reduce = "sum" if c.op.startswith("scatter_add") else "none" if how is None else REDUCTIONS[how]
    return written(c, c["src"] if "src" in c.args else c["value"], reduce)


@handles("scatter_reduce")
def scatter_reduce(c: Call) -> Value:
    """Record elements reduced with what is at indices; without what was there it is overwritten first."""
    how, alone = c["reduce"], not c["include_self"]
    reduce, x = REDUCTIONS[how], c.value(c["self"])
    whole = c.dtype(x) == "int64"
    if whole and how == "mean":
        raise c.error("a mean of integers", remedy="call .float() before")
    start = int(NEUTRAL[reduce] if abs(NEUTRAL[reduce]) < MOST else math.copysign(1 << 62, NEUTRAL[reduce]))
    neutral = start if whole else NEUTRAL[reduce]
    first = written(c, neutral, "none") if alone else x
    y = written(c, c["src"], reduce, first)
    if how != "mean":
        return y
    ones = filled(c, 0.0 if alone else 1.0, c.shape(x), "float32")
    counts = written(c, 1.0, "sum", written(c, 0.0, "none", ones) if alone else ones)
    return c.emit("div", y, c.emit("clamp", counts, out=c.shape(x), min=1.0, max=None))


def written(c: Call, source: Any, reduce: str, target: Value | None = None) -> Value:
    """Record a scatter of a tensor or a number into the call's own tensor, or into ``target``."""
    x, index = c.value(c["self"]) if target is None else target, c.value(c["index"])
    shape, dtype, axis = c.shape(index), c.dtype(x), c.axis(c["dim"], x)
    if c.shape(x)[axis : axis + 1] == (None,):
        raise c.mixes("a scatter along the batch")
    number = scalar(c, source)
    src = c.value(source) if number is None else filled(c, number, shape, dtype)
    if not shape:
        x, index, src = (c.reshape(v, (1,)) for v in (x, index, src))
        return c.reshape(within(c, x, index, src, 0, reduce), ())
    for dim, (have, want) in enumerate(zip(c.shape(src), shape, strict=True)):
        if have != want:
            src = cut(c, src, dim, 0, c.static(want)[0])
    return within(c, x, index, src, axis, reduce)


def within(c: Call, x: Value, index: Value, src: Value, axis: int, reduce: str) -> Value:
    """Record a scatter; where indices are fewer than a tensor is long beside the axis, into its beginning."""
    for dim, (have, want) in enumerate(zip(c.shape(x), c.shape(index), strict=True)):
        if dim != axis and have != want:
            length, size = c.static(have, want)
            head = within(c, cut(c, x, dim, 0, size), index, src, axis, reduce)
            return concatenated(c, [head, cut(c, x, dim, size, length)], dim)
    return c.move("scatter", x, index, src, out=c.shape(x), axis=axis, reduce=reduce)


@handles("index_copy masked_scatter")
def formula(c: Call) -> Any:
    """Record a formula; the names of these operators end as if they were copies of views."""
    return c.builder.by_formula(c)


@handles("index_fill")
def index_fill(c: Call) -> Any:
    """Record x[arange(batch)] = number, which torch 2.15 exports so, as that number; other indices by a formula."""
    x, known, number = c["self"], beginning(c["index"]), scalar(c, c["value"])
    if isinstance(x, Value) and known is not None and known.full.ndim == 1 and number is not None:
        shape = c.shape(x)
        if shape and counts_to(c, known, 0, shape[c.axis(c["dim"], x)]):
            return filled(c, held(number, c.dtype(x)), shape, c.dtype(x))
    return c.builder.by_formula(c)


@handles("index_put")
def index_put(c: Call) -> Any:
    """Record x[arange(batch), i, …] = rows as a scatter in each sample, other indices by a formula."""
    x = c["self"]
    if everything(c) and not c["accumulate"]:
        shape, y = c.shape(x), c.value(c.builder.made(c["values"], c.fx))
        y = c.reshape(y, (*[1] * (len(shape) - len(c.shape(y))), *c.shape(y)))
        extra = [batch_of(c)] if None in shape and None not in c.shape(y) else []
        return y if c.shape(y) == shape else expanded(c, y, extra, shape)
    found = places_of_each(c)
    if found is None:
        return c.builder.by_formula(c)
    (rows, index, places), shape, values = found, c.shape(x), c.builder.made(c["values"], c.fx)
    written = c.shape(index)
    number = scalar(c, values)
    if number is not None:
        source = filled(c, number, written, c.dtype(x))
    else:
        source, whole = c.value(values), (*places, *written[2:])
        source = c.reshape(source, (*[1] * (len(whole) - len(c.shape(source))), *c.shape(source)))
        extra = [batch_of(c)] if None not in c.shape(source) else []
        source = c.reshape(source if c.shape(source) == whole else expanded(c, source, extra, whole), written)
    reduce = "sum" if c["accumulate"] else "none"
    return c.reshape(c.move("scatter", rows, index, source, out=c.shape(rows), axis=1, reduce=reduce), shape)
