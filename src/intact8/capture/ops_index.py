"""ATen → operations: indexing with tensors, as slices and concatenations."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from intact8.capture.aten_call import Call, Prefix, Value, handles
from intact8.capture.ops_shape import cut, joined

MAX_PIECES = 64
"""A gather by constant indices becomes at most this many slices."""


def gather(c: Call, x: Value, axis: int, index: Tensor) -> Value:
    """Record constant indices as runs of consecutive slices."""
    (length,) = c.static(c.shape(x)[axis])
    flat = [int(i) % length for i in index.flatten().tolist()]
    cuts = [0, *[i for i, (a, b) in enumerate(pairwise(flat), 1) if b != a + 1], len(flat)]
    if len(cuts) - 1 > MAX_PIECES:
        what = f"a gather of {len(cuts) - 1} separate runs"
        why = f"it would become more than {MAX_PIECES} slices"
        raise c.error(what, why=why, remedy="order the channels once in the weights, or use reshape and permute")
    y = joined(c, x, axis, [(flat[a], flat[b - 1] + 1) for a, b in pairwise(cuts)])
    shape = [*c.shape(x)[:axis], *index.shape, *c.shape(x)[axis + 1 :]]
    return c.reshape(y, shape)


@handles("index_select")
def index_select(c: Call) -> Value:
    """Record index_select with known indices."""
    if not isinstance(c["index"], Tensor):
        raise c.error("a gather with indices computed from the input")
    x = c.value(c["self"])
    return gather(c, x, c.axis(c["dim"], x), c["index"])


@handles("gather take_along_dim")
def gather_along(c: Call) -> Value:
    """Record computed indices along one dimension."""
    x, index = c.value(c["self"]), c.value(c["indices" if "indices" in c.args else "index"])
    shape = c.shape(index)
    if len(shape) != len(c.shape(x)) or c.args.get("dim", 0) is None:
        raise c.error("a gather of another rank", remedy="give indices of the rank of what they are indices of")
    axis = c.axis(c["dim"], index)
    if c.shape(x)[axis] is None:
        raise c.mixes("a gather along the batch")
    for dim, (have, want) in enumerate(zip(c.shape(x), shape, strict=True)):
        if dim != axis and have != want:
            c.static(have, want)
            x = cut(c, x, dim, 0, int(want or 0))
    return c.emit("gather", x, index, axis=axis)


def row_of_each(c: Call) -> Value | None:
    """Record x[arange(batch), i], one row of each sample; None where it is another way of indexing."""
    x, indices = c["self"], c["indices"]
    if not isinstance(x, Value) or len(indices) != 2 or not isinstance(indices[1], Value):
        return None
    shape, counted = c.shape(x), indices[0]
    if isinstance(counted, Tensor):
        counted = Prefix(counted, tuple(counted.shape))
    if not isinstance(counted, Prefix) or c.shape(indices[1]) != shape[:1] or len(counted.dims) != 1:
        return None
    size = counted.counts(0)
    if size is None or (size if isinstance(size, int) else c.builder.symbols[size]) != shape[0]:
        return None
    c.static(*shape[1:])
    thin, wide = (shape[0], *[1] * (len(shape) - 1)), (shape[0], 1, *shape[2:])
    index = c.reshape(indices[1], thin)
    if wide != thin:
        index = c.move("expand", index, out=wide, shape=[-1, 1, *shape[2:]])
    return c.reshape(c.emit("gather", x, index, out=wide, axis=1))


def everything(c: Call) -> bool:
    """Return whether the indices are 0, 1, 2 … of every dimension, in order: nothing is left out and nothing moved."""
    x, indices = c["self"], c["indices"]
    if not isinstance(x, Value) or len(indices) != len(c.shape(x)):
        return False
    rank, last = len(c.out_shape), -1
    for length, i in zip(c.shape(x), indices, strict=True):
        if not isinstance(i, (Prefix, Tensor)):
            return False
        known = i if isinstance(i, Prefix) else Prefix(i, tuple(i.shape))
        axis = next((a for a, n in enumerate(known.dims) if n != 1), known.full.ndim - 1)
        size = known.counts(axis) if known.full.ndim else None
        if size is None or (size if isinstance(size, int) else c.builder.symbols[size]) != length:
            return False
        place = rank - known.full.ndim + axis
        if place <= last:
            return False
        last = place
    return True


@handles("index")
def index(c: Call) -> Value:
    """Record x[..., indices] in one dimension; a table indexed by the input is an embedding."""
    if everything(c):
        return c.reshape(c["self"])
    row = row_of_each(c)
    if row is not None:
        return row
    c.args = {k: c.builder.made(v, c.fx) for k, v in c.args.items()}
    given = [(axis, i) for axis, i in enumerate(c["indices"]) if i is not None]
    x = c["self"]
    if len(given) == 1 and given[0][0] == 0 and isinstance(x, Tensor) and x.ndim == 2:
        return c.emit("embedding", given[0][1], params=c.params(weight=x))
    if len(given) != 1 or not isinstance(given[0][1], Tensor) or given[0][1].dtype == torch.bool:
        raise c.error("indexing with tensors", why="only one dimension with known integer indices can be indexed")
    return gather(c, c.value(x), given[0][0], given[0][1])


@handles("flip")
def flip(c: Call) -> Value:
    """Record a reversal as single slices."""
    x = c.value(c["self"])
    for dim in c["dims"]:
        axis = c.axis(dim, x)
        (length,) = c.static(c.shape(x)[axis])
        x = gather(c, x, axis, torch.arange(length - 1, -1, -1))
    return x
