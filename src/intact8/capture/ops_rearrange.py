"""ATen → operations: cyclic shifts and shuffles, and rearrangements of elements by any rule, as one gather.

What an operator moves where is found, for the last, by applying it to tensors that hold the places of their elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from sympy import sympify
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, divided, less, multiplied
from intact8.capture.aten_call import Call, Shape, Value, handles
from intact8.capture.constants import mapped
from intact8.capture.ops_index import MAX_PIECES, gather
from intact8.capture.ops_shape import WHOLE, concatenated, cut, is_whole, permuted


@handles("roll")
def roll(c: Call) -> Value:
    """Record a cyclic shift along dimensions."""
    x = c.value(c["self"])
    dims = [c.axis(d, x) for d in c["dims"]]
    if not dims:
        raise c.error("roll of the flattened tensor", remedy="pass dims=")
    shifts = [int(s) for s in c["shifts"]]
    for d, shift in zip(dims, shifts, strict=True):
        if isinstance(length := c.shape(x)[d], str) and shift:
            c.at_least(length, least=abs(shift) + 1)
            x = concatenated(c, [cut(c, x, d, -shift, WHOLE), cut(c, x, d, 0, -shift)], d)
    kept = [(d, shift) for d, shift in zip(dims, shifts, strict=True) if not isinstance(c.shape(x)[d], str)]
    c.static(*(c.shape(x)[d] for d, _ in kept))
    if not kept:
        return x
    return c.move("roll", x, out=c.shape(x), shifts=[shift for _, shift in kept], dims=[d for d, _ in kept])


@handles("pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle")
def shuffle(c: Call) -> Value:
    """Record a shuffle of pixels or channels as reshape, permute, reshape."""
    x = c.value(c["self"])
    n, ch, h, w = c.shape(x)
    (ch,) = c.static(ch)
    shape: list[Dim]
    if c.op == "channel_shuffle":
        g = c["groups"]
        shape, dims = [n, g, ch // g, h, w], [0, 2, 1, 3, 4]
    elif c.op == "pixel_shuffle":
        r = c["upscale_factor"]
        shape, dims = [n, ch // r**2, r, r, h, w], [0, 1, 4, 2, 5, 3]
    else:
        r = c["downscale_factor"]
        rows, columns = (size if isinstance(size, str) else c.static(size)[0] for size in (h, w))
        if any(isinstance(size, str) and multiplied([divided(size, r), r]) != size for size in (rows, columns)):
            c.static(rows, columns)
        shape, dims = [n, ch, divided(rows, r), r, divided(columns, r), r], [0, 1, 3, 5, 2, 4]
    return c.reshape(permuted(c, c.reshape(x, shape), dims))


@handles("diagonal diagonal_copy diagonal_scatter slice_scatter select_scatter")
@handles("as_strided as_strided_copy as_strided_scatter")
def rearrange(c: Call) -> Value:
    """Record the gather that an operator is; where it keeps to samples, of every sample."""
    given: list[Any] = []
    mapped(list(c.args.values()), lambda arg: given.append(arg) if isinstance(arg, (Value, Tensor)) else None)
    most = _most_pieces(given)
    given = [c.value(x) for x in given]
    shapes = [c.shape(x) for x in given]
    if all(_fixed(shape) for shape in shapes):
        sizes = [c.static(*shape) for shape in shapes]
        flat = [c.reshape(x, (math.prod(size),)) for x, size in zip(given, sizes, strict=True)]
        found = gather(c, concatenated(c, flat, 0), 0, places(c, sizes, 0), most)
        return c.reshape(found)
    fixed = all(shape[:1] == (None,) and _fixed(shape[1:]) for shape in (*shapes, c.out_shape))
    beside = None if fixed else put_between(c, most)
    if beside is not None:
        return beside
    if None not in [n for shape in shapes for n in shape]:
        c.static(*[n for shape in shapes for n in shape])
    if any(shape[:1] != (None,) for shape in (*shapes, c.out_shape)):
        raise c.mixes("elements are moved between samples")
    sizes = [c.static(*shape[1:]) for shape in shapes]
    taken = of_each_sample(c, sizes)
    rows: list[Shape] = [(None, math.prod(size)) for size in sizes]
    flat = [c.reshape(x, row) for x, row in zip(given, rows, strict=True)]
    return c.reshape(gather(c, concatenated(c, flat, 1), 1, taken.reshape(-1), most))


def places(c: Call, sizes: list[list[int]], batch: int) -> Tensor:
    """Return the operator's result where tensors of these sizes count their elements, one behind the other.

    Of a ``batch`` of samples the elements of a sample stand together, and ``sizes`` are those of a sample.
    """
    count, begin, tensors = sum(math.prod(size) for size in sizes), 0, []
    for size in sizes:
        own = torch.arange(begin, begin + math.prod(size))
        rows = own if not batch else torch.arange(batch)[:, None] * count + own
        tensors.append(rows.reshape([*([batch] if batch else []), *size]))
        begin += math.prod(size)
    symbols = dict.fromkeys(c.builder.batch_symbols, batch)
    feed = iter(tensors)

    def argument(arg: Any) -> Any:
        if isinstance(arg, (Value, Tensor)):
            return next(feed)
        return int(sympify(c.builder.expression(arg)).subs(symbols)) if isinstance(arg, torch.SymInt) else arg

    values: dict[str, Any] = mapped(dict(c.args), argument)
    target: Any = c.fx.target
    found: Tensor = target(**values)
    return found


def _fixed(shape: Sequence[Dim]) -> bool:
    """Return whether all of these sizes are known."""
    return all(isinstance(n, int) for n in shape)


def _most_pieces(given: Sequence[Any]) -> int:
    """Return how many slices may be taken instead of a gather.

    Of constants none are: OpenVINO computes other integers from slices of quantized constants.
    """
    return 0 if any(isinstance(x, Tensor) for x in given) else MAX_PIECES


def put_between(c: Call, most: int) -> Value | None:
    """Record a part that is put into all of a dimension, or into one that is not the batch, where others may change;
    None for other operators."""
    if c.op.removesuffix("_copy") not in ("select_scatter", "slice_scatter"):
        return None
    x, part = c.value(c["self"]), c.value(c["src"])
    shape, axis = c.shape(x), c.axis(c["dim"], x)
    if c.op.startswith("slice") and is_whole(c["start"], c["end"], c["step"]):
        return part  # as along the batch
    if isinstance(shape[axis], str):
        return _put_into_changing(c, x, part, axis)
    (length,) = c.static(shape[axis])
    if c.op == "select_scatter":
        start = c["index"] % length
        end, step = start + 1, 1
    else:
        start, end, step = slice(c["start"], c["end"], c.args.get("step", 1)).indices(length)
    taken = range(start, end, step)
    part = c.reshape(part, [len(taken) if a == axis else n for a, n in enumerate(shape)])
    if step > 1:
        index = torch.arange(length)
        index[start:end:step] = length + torch.arange(len(taken))
        return gather(c, concatenated(c, [x, part], axis), axis, index, most)
    parts = [cut(c, x, axis, 0, start)] if start else []
    parts += [part, *([cut(c, x, axis, end, length)] if end < length else [])]
    return part if len(parts) == 1 else concatenated(c, parts, axis)


def _put_into_changing(c: Call, x: Value, part: Value, axis: int) -> Value:
    """Record a part that is put into a dimension that changes, between places that are counted from its ends."""
    shape, length = c.shape(x), c.shape(x)[axis]
    assert isinstance(length, str)
    if c.op.startswith("select"):
        ends: list[Any] = [c["index"], c["index"] + 1 or WHOLE]
        part = c.reshape(part, [1 if a == axis else n for a, n in enumerate(shape)])
    else:
        ends = [c["start"] or 0, WHOLE if c["end"] is None else c["end"]]
    if not all(isinstance(n, int) for n in ends) or c.args.get("step", 1) != 1:
        c.static(length)
    start, end = (less(length, -n) if n < 0 else length if n >= WHOLE else n for n in ends)
    before = [] if start == 0 else [cut(c, x, axis, 0, start)]
    behind = [] if end == length else [cut(c, x, axis, end, WHOLE)]
    return part if not before and not behind else concatenated(c, [*before, part, *behind], axis)


def of_each_sample(c: Call, sizes: list[list[int]]) -> Tensor:
    """Return the places that a sample of the result comes from, in the sample.

    Raises:
        BatchError: elements move between samples.
    """
    count, found = sum(math.prod(size) for size in sizes), []
    for batch in (2, 3):
        result = places(c, sizes, batch)
        if result.shape[:1] != (batch,):
            raise c.mixes("elements are moved between samples")
        rows = result.reshape(batch, -1) - torch.arange(batch)[:, None] * count
        if not torch.equal(rows, rows[:1].expand_as(rows)) or not 0 <= int(rows.min()) <= int(rows.max()) < count:
            raise c.mixes("elements are moved between samples")
        found.append(rows[0])
    if not torch.equal(*found):
        raise c.mixes("elements are moved between samples")
    return found[0]
