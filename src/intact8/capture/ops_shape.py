"""ATen → operations: operations that move values, copy them, or make constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, added, divided, grows, least_of, less, limits_of, names_of
from intact8.capture.aten_call import Call, Value, handles, held

MOST_PIECES = 1024
"""Padding by a tensor's own values becomes at most this many slices, and a gather where there are more."""

WHOLE = 1 << 62
"""Slices that end here or later end where their tensor does."""


@handles("contiguous clone detach alias lift_fresh lift_fresh_copy positive requires_grad_ copy_strided")
def same(c: Call) -> Value:
    """Record nothing: copies and changes of layout leave the values alone."""
    return c.value(next(iter(c.args.values())))


@handles("to _to_copy type_as float")
def to(c: Call) -> Value:
    """Record a cast where the dtype changes."""
    x = c.value(c["self"])
    have, want = c.dtype(x), c.builder.dtype_of_meta(c.fx)
    if have == want:
        return x
    if want not in ("float32", "int64", "bool", "uint8"):
        remedy = "cast to int64 instead: x.long() holds the same numbers"
        raise c.error(f"a cast to {want}", why="programs hold float32, int64, bool and uint8", remedy=remedy)
    return c.emit("cast", x, out_dtype=want, dtype=want)


@handles("view reshape _unsafe_view view_copy flatten unflatten squeeze unsqueeze view_as reshape_as")
def reshape(c: Call) -> Value:
    """Record a reshape: of view, flatten, squeeze and the like only the output's shape matters."""
    if c.args.get("dtype") is not None and c["dtype"] != c.fx.all_input_nodes[0].meta["val"].dtype:
        what, why = f"the bits of {c.dtype(c['self'])} read as {c['dtype']}", "programs compute with numbers, not bits"
        raise c.error(what, why=why, remedy="convert the numbers by x.to(dtype), or compare them (x < 0 for the sign)")
    if c.op.startswith("squeeze") and c.shape(c["self"])[:1] == (None,):
        given = c.args.get("dim")
        dims = [0] if given is None else [given] if isinstance(given, int) else list(given)
        if any(c.axis(d, c["self"]) == 0 for d in dims):
            c.builder.notes.append(f"aten.{c.op} drops the batch dimension of a batch of one; the program keeps it")
    return c.reshape(c["self"])


@handles("permute transpose t swapaxes swapdims")
def permute(c: Call) -> Value:
    """Record a permutation of dimensions."""
    x = c.value(c["self"])
    dims = list(range(len(c.shape(x))))
    if "dims" in c.args:
        dims = [c.axis(d, x) for d in c["dims"]]
    elif c.op.removesuffix("_") != "t":
        names = ("dim0", "dim1") if "dim0" in c.args else ("axis0", "axis1")
        i, j = (c.axis(c[n], x) for n in names)
        dims[i], dims[j] = j, i
    else:
        dims.reverse()
    return permuted(c, x, dims)


def permuted(c: Call, x: Value, dims: list[int]) -> Value:
    """Record a permute, unless the order stays."""
    if dims == sorted(dims):
        return x
    shape = c.shape(x)
    return c.move("permute", x, out=[shape[d] for d in dims], dims=dims)


def spatial(value: Any, n: int) -> list[int]:
    """Return one int per spatial dimension; torch's one-element lists are for all of them."""
    items = [value] if isinstance(value, int) else list(value)
    return [int(v) for v in (items * n if len(items) == 1 else items)]


def is_whole(start: Any, end: Any, step: Any) -> bool:
    """Return whether places from ``start`` (None: 0) to before ``end`` (None: the last) are all that there are."""
    first = start is None or (isinstance(start, int) and start == 0)
    last = end is None or (isinstance(end, int) and end >= WHOLE)
    return bool(first and last and step == 1)


def cut(c: Call, x: Value, axis: int, start: int | str, end: int | str, step: int = 1) -> Value:
    """Record a slice with bounds inside the length; the whole length needs no operation."""
    length = c.shape(x)[axis]
    if length is None:
        raise c.mixes("the batch dimension is cut")
    if isinstance(length, int) and isinstance(start, int) and isinstance(end, int):
        start, end = (min(max(n + length if n < 0 else n, 0), length) for n in (start, end))
        if (start, end, step) == (0, length, 1):
            return x
        shape = resized(c, x, axis, len(range(start, end, step)))
        return c.move("slice", x, out=shape, axis=axis, start=start, end=max(end, start), step=step)
    first, last = (less(length, -n) if isinstance(n, int) and n < 0 else n for n in (start, end))
    last = length if isinstance(last, int) and last >= WHOLE else last
    rest, least = less(length, last), limits_of(length, c.builder.bounds)[0]
    if isinstance(rest, int) or isinstance(last, str):
        shortest = least_of(rest, c.builder.bounds)
        inside = shortest is not None and shortest >= 0
        most = limits_of(last, c.builder.bounds)[1] if isinstance(length, int) else None
        inside = inside or (isinstance(length, int) and most is not None and most <= length)
    else:
        if last == 2 and least == 1:  # the export takes it that sizes are 2 or more, and asks nothing
            c.at_least(length, least=2)
        inside = last <= max(least, 2)
    size = divided(added([less(last, first), step - 1]), step)
    if not inside or not grows(size) or not grows(first) or (isinstance(size, int) and size < 1):
        cuts = [str(start or ""), "" if isinstance(end, int) and end >= WHOLE else str(end)]
        why = f"all that is known of its length is {least} or more"
        what = f"{length} is cut at {':'.join([*cuts, *([str(step)] if step != 1 else [])])}"
        names = dict.fromkeys(name for dim in (length, first, last) for name in names_of(dim))
        raise c.error(what, why=why, remedy=f"leave {' and '.join(names)} out of dynamic_shapes")
    c.at_least(first, least=0)
    c.at_least(size)
    if (first, last, step) == (0, length, 1):
        return x
    return c.move("slice", x, out=resized(c, x, axis, size), axis=axis, start=first, end=last, step=step)


def resized(c: Call, x: Value, axis: int, size: Dim) -> list[Dim]:
    """Return the shape of ``x`` with another size of one dimension."""
    shape = list(c.shape(x))
    shape[axis] = size
    return shape


@handles("select")
def select(c: Call) -> Value:
    """Record one index of a dimension, which disappears."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    index = c["index"]
    length = c.shape(x)[axis]
    if isinstance(index, torch.SymInt):
        c.static(c.builder.dim(index, c.fx))
    if isinstance(length, int):
        index %= length
    piece = cut(c, x, axis, index, index + 1 if index != -1 else WHOLE) if length != 1 else x
    return c.reshape(piece, [*c.shape(x)[:axis], *c.shape(x)[axis + 1 :]])


@handles("chunk split split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split unsafe_chunk")
def split(c: Call) -> list[Value]:
    """Record consecutive slices, as long as the export says; one alone is the tensor, whatever its size."""
    x = c.value(c["self"])
    if len(c.fx.meta["val"]) == 1:
        return [x]
    axis = c.axis(c["dim"], x)
    sizes = [c.builder.dim(v.shape[axis], c.fx) for v in c.fx.meta["val"]]
    pieces, at = list[Value](), cast(int | str, 0)
    for size in sizes:
        end = added([at, size if size is not None else c.static(size)[0]])
        pieces.append(cut(c, x, axis, at, end))
        at = end
    return pieces


@handles("unbind")
def unbind(c: Call) -> list[Value]:
    """Record one tensor per index of a dimension."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    shape = list(c.shape(x))
    (length,) = c.static(shape.pop(axis))
    return [c.reshape(cut(c, x, axis, i, i + 1), shape) for i in range(length)]


@handles("cat concat concatenate")
def cat(c: Call) -> Value:
    """Record a concatenation; empty one-dimensional tensors are skipped, as torch does."""
    parts = [c.value(v) for v in c["tensors"]]
    parts = [v for v in parts if c.shape(v) != (0,)]
    axis = c["dim"] % max(len(c.out_shape), 1)
    parts = [v for v in parts if c.shape(v)[axis] != 0]
    if len(parts) > 1 and any(c.shape(v)[axis] is None for v in parts):
        c.static(None)
    dtype = c.builder.dtype_of_meta(c.fx)
    parts = [v if c.dtype(v) == dtype else c.emit("cast", v, out=c.shape(v), dtype=dtype) for v in parts]
    return c.emit("cat", *parts, axis=axis) if len(parts) != 1 else parts[0]


@handles("stack")
def stack(c: Call) -> Value:
    """Record a new dimension of length 1 for each tensor, then a concatenation."""
    shape, axis = list(c.out_shape), c["dim"] % len(c.out_shape)
    shape[axis] = 1
    return c.emit("cat", *[c.reshape(v, shape) for v in c["tensors"]], axis=axis)


@handles("reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d")
@handles("pad constant_pad_nd")
def pad(c: Call) -> Value:
    """Record padding: constant as such, reflect, replicate and circular as slices and concatenations."""
    x = c.value(c["self"])
    mode = c.args.get("mode", "constant")
    if c.op.startswith(("reflection", "replication")):
        mode = "reflect" if c.op.startswith("reflection") else "replicate"
    flat = c.args["pad"] if "pad" in c.args else c["padding"]
    rank = len(c.shape(x))
    pads, ends = [[0, 0] for _ in range(rank)], {}
    for i in range(len(flat) // 2):
        axis, (before, after) = rank - 1 - i, (width(c, n) for n in flat[2 * i : 2 * i + 2])
        pads[axis], end = widest(c, c.shape(x)[axis], before, after)
        if end is not None:
            ends[axis] = end
    y = padded(c, x, pads, mode)
    for axis, end in ends.items():
        y = cut(c, y, axis, 0, end)
    return y


def width(c: Call, n: Any) -> int | str:
    """Return how much is padded: a number, or a difference of sizes."""
    found = c.builder.difference_of(c.builder.expression(n))
    return c.static(c.builder.dim(n, c.fx))[0] if found is None else found


def widest(c: Call, length: Dim, before: int | str, after: int | str) -> tuple[list[int], Dim]:
    """Return widths of padding that are known, and where what is padded ends: None where it is known, too.

    What is padded up to a multiple gets the most that it may need, and is cut.
    """
    if isinstance(before, int) and isinstance(after, int):
        return [before, after], None
    bounds = c.builder.bounds
    fewest, most = least_of(after, bounds), least_of(less(0, after), bounds)
    if not isinstance(before, int) or before < 0 or fewest is None or fewest < 0 or most is None or length is None:
        for n in c.args.get("pad", c.args.get("padding", ())):
            c.static(c.builder.dim(n, c.fx))
        raise c.error("a dimension is padded by as much as its size says", remedy="leave it out of dynamic_shapes")
    end = added([length, before, after])
    return [before, -most], end if most else None


def padded(c: Call, x: Value, pads: list[list[int]], mode: str) -> Value:
    """Record padding by known widths."""
    # Negative padding crops; cropping first leaves the same values.
    for axis, pair in enumerate(pads):
        if min(pair) < 0:
            x = cut(c, x, axis, max(-pair[0], 0), pair[1] if pair[1] < 0 else WHOLE)
            pads[axis] = [max(n, 0) for n in pair]
    if not any(map(any, pads)):
        return x
    if mode != "constant":
        for axis, (before, after) in enumerate(pads):
            if before or after:
                x = extend(c, x, axis, before, after, mode)
        return x
    value, out, dtype = held(c.args.get("value") or 0.0, c.dtype(x)), grown(c, x, pads), c.dtype(x)
    if dtype != "int64" or value in range(256):
        return c.move("pad", x, out=out, pads=pads, value=float(value))
    # Programs put bytes around integers, so that others are the zeros around what is less by as much.
    less_by = c.move("affine_scalar", x, out=c.shape(x), mul=1, add=-value)
    return c.move("affine_scalar", c.move("pad", less_by, out=out, pads=pads, value=0.0), out=out, mul=1, add=value)


def grown(c: Call, x: Value, pads: Sequence[Sequence[int]]) -> list[Dim]:
    """Return the shape of a padded tensor."""
    rows = list(zip(c.shape(x), pads, strict=True))
    if any(n is None and any(pair) for n, pair in rows):
        c.static(None)
    return [n if n is None else added([n, *pair]) for n, pair in rows]


def extend(c: Call, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Pad one dimension with the tensor's own values."""
    n = c.shape(x)[axis]
    if not isinstance(n, int):
        c.at_least(n, least=max(before, after) + (mode == "reflect"))
    whole = (0, WHOLE)
    if mode == "circular":
        pieces = [(-before, WHOLE) if before else (0, 0), whole, (0, after)]
    elif mode == "replicate":
        pieces = [(0, 1)] * before + [whole] + [(-1, WHOLE)] * after
    else:
        left = [(i, i + 1) for i in range(before, 0, -1)]
        pieces = left + [whole] + [(-i - 1, -i) for i in range(1, after + 1)]
    if len(pieces) > MOST_PIECES:
        places = range(c.static(n)[0])
        return gathered(c, x, axis, [i for a, b in pieces for i in places[a:b]])
    return joined(c, x, axis, pieces)


def gathered(c: Call, x: Value, axis: int, places: list[int]) -> Value:
    """Record a gather at known places along one dimension."""
    before, after = c.shape(x)[:axis], c.shape(x)[axis + 1 :]
    thin = c.value(torch.tensor(places).reshape([1] * axis + [-1] + [1] * len(after)))
    wide = [*before, len(places), *after]
    like = [x if c.shape(x)[0] is None else batch_of(c)] if None in wide else []  # it may be windows of samples
    return c.emit("gather", x, expanded(c, thin, like, wide), out=wide, out_dtype=c.dtype(x), axis=axis)


def taken(c: Call, x: Value, axis: int, places: Value) -> Value:
    """Record a gather at places that are computed, (count,), along one dimension."""
    shape = resized(c, x, axis, c.shape(places)[0])
    thin = c.reshape(places, [n if d == axis else 1 for d, n in enumerate(shape)])
    like = [x if c.shape(x)[0] is None else batch_of(c, [])] if None in shape else []
    return c.move("gather", x, expanded(c, thin, like, shape), out=shape, axis=axis)


def joined(c: Call, x: Value, axis: int, pieces: list[tuple[int, int]]) -> Value:
    """Record a concatenation of slices of one tensor."""
    return concatenated(c, [cut(c, x, axis, a, b) for a, b in pieces if b > a], axis)


def concatenated(c: Call, parts: Sequence[Value], axis: int) -> Value:
    """Record a concatenation along a dimension that is not the batch."""
    if len(parts) == 1:
        return parts[0]
    sizes = [c.shape(part)[axis] for part in parts]
    total = added([n if n is not None else c.static(n)[0] for n in sizes])
    return c.move("cat", *parts, out=resized(c, parts[0], axis, total), axis=axis)


@handles("expand expand_as broadcast_to")
def expand(c: Call) -> Value:
    """Broadcast views; a constant takes the batch size from the network's input."""
    x = c.value(c["self"])
    before, after = c.shape(x), c.out_shape
    if before == after:
        return x
    aligned = (1,) * (len(after) - len(before)) + before
    return over_samples(c, c.reshape(x, aligned), after)


def expanded(c: Call, x: Value, extra: list[Value], out: Sequence[Dim] | None = None) -> Value:
    """Record an expand to a shape, that of the call's output where none is given."""
    shape = c.out_shape if out is None else out
    return c.move("expand", x, *extra, out=shape, shape=[-1 if n is None else n for n in shape])


def batch_of(c: Call, sizes: Sequence[Any] | None = None) -> Value:
    """Return the input whose dimension 0 is the batch; the output's dynamic dimension must be exactly that."""
    if sizes is None:
        shape = c.fx.meta["val"].shape
        sizes = [n for d in shape if not isinstance(n := c.builder.expression(d), int)]
    if c.builder.batch_input is None or any(s not in c.builder.symbols for s in sizes):
        raise c.mixes("a constant is expanded to a multiple of the batch size")
    return c.builder.batch_input


def over_samples(c: Call, x: Value, shape: Sequence[Dim], sizes: Sequence[Any] | None = None) -> Value:
    """Record an expand of what does not depend on the input, where the shape has it over samples: once for each, or
    several times, as often as samples are divided (into windows, heads, or steps of any number).

    ``sizes`` are those of torch, with symbols; the output's where none are given.
    """
    sizes = c.fx.meta["val"].shape if sizes is None else sizes
    axes = [i for i, (n, m) in enumerate(zip(shape, c.shape(x), strict=True)) if n is None and m is not None]
    if not axes:
        return expanded(c, x, [], shape)
    axis, known = axes[0], c.builder.batch_input
    size = c.builder.expression(sizes[axis])
    found = (c.builder.size_of(size / symbol) for symbol in c.builder.batch_symbols)
    times = next((n for n in found if n is not None), None)
    if known is None or times is None or len(axes) > 1:
        raise c.mixes("a constant is expanded to a size computed from the batch size")
    if times == 1:
        return expanded(c, x, [known], shape)
    before, after = c.shape(x)[:axis], c.shape(x)[axis + 1 :]
    thin = c.reshape(x, [*before, 1, 1, *after])
    wide = expanded(c, thin, [known], [*shape[:axis], None, times, *shape[axis + 1 :]])
    return c.reshape(wide, shape)


@handles("repeat")
def repeat(c: Call) -> Value:
    """Record copies side by side; a constant tiled over the batch is expanded."""
    x = c.value(c["self"])
    times = list(c["repeats"])
    shape = (1,) * (len(times) - len(c.shape(x))) + c.shape(x)
    x = c.reshape(x, shape)
    for axis, count in enumerate(times):
        if isinstance(count, int):
            if count > 1:
                x = concatenated(c, [x] * count, axis)
        elif shape[axis] != 1:
            x = once_each(c, x, axis, count)
    return x if c.shape(x) == c.out_shape else over_samples(c, x, c.out_shape)


def once_each(c: Call, x: Value, axis: int, count: torch.SymInt) -> Value:
    """Record a tensor repeated along a dimension of known size as often as there are samples: one more dimension."""
    c.static(c.shape(x)[axis])
    before, after = c.shape(x)[:axis], c.shape(x)[axis:]
    shape = [*before, c.builder.dim(count, c.fx), *after]
    x = over_samples(c, c.reshape(x, [*before, 1, *after]), shape, [*before, count, *after])
    return c.reshape(x, [*before, c.out_shape[axis], *after[1:]])


@handles("repeat_interleave")
def repeat_interleave(c: Call) -> Value:
    """Record every value ``repeats`` times: a new dimension, copied and merged."""
    x = c.value(c["self"])
    count, dim = c["repeats"], c["dim"]
    if dim is None:
        x, dim = c.reshape(x, (math.prod(c.static(*c.shape(x))),)), 0
    axis = c.axis(dim, x)
    if isinstance(count, Tensor):
        return concatenated(
            c, [cut(c, x, axis, i, i + 1) for i, n in enumerate(count.tolist()) for _ in range(n)], axis
        )
    if not isinstance(count, int):
        remedy = "give one number or a tensor that is known, or keep its module in torch: intact8.split(model, data)"
        raise c.error("repeats that the network computes", remedy=remedy)
    thin = c.reshape(x, [*c.shape(x)[: axis + 1], 1, *c.shape(x)[axis + 1 :]])
    return c.reshape(concatenated(c, [thin] * count, axis + 1))


EMPTY = "empty empty_like new_empty empty_permuted empty_strided new_empty_strided"


@handles(f"zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like {EMPTY}")
def factory(c: Call) -> Value | Tensor:
    """Record a filled tensor: a constant, expanded to the batch where the shape has it. Empty ones hold zeros."""
    value = c["fill_value"] if "fill_value" in c.args else int("ones" in c.op)
    dtype, shape = c.fx.meta["val"].dtype, c.out_shape
    if isinstance(value, Value):  # a size that changes
        return over_samples(c, c.reshape(c.cast(value, c.builder.dtype_of_meta(c.fx)), (1,) * len(shape)), shape)
    if not isinstance(value, (int, float)):
        raise c.mixes("a tensor filled with the number of samples")
    if all(isinstance(n, int) for n in shape):
        return torch.full(c.static(*shape), value, dtype=dtype)
    one = c.value(torch.full([n if isinstance(n, int) else 1 for n in shape], value, dtype=dtype))
    return over_samples(c, one, shape)


@handles("scalar_tensor")
def scalar_tensor(c: Call) -> Value:
    """Record a size that changes as a tensor without dimensions."""
    if not isinstance(c["s"], Value):
        raise c.mixes("a tensor that holds the number of samples")
    return c.reshape(c.cast(c["s"], c.builder.dtype_of_meta(c.fx)), ())


@handles("copy fill zero")
def copy_(c: Call) -> Value:
    """Record that a whole tensor is overwritten: its name now means the source."""
    src = c.args.get("src", c.args.get("value", 0))
    target, dtype = c.shape(c["self"]), c.builder.dtype_of_meta(c.fx)
    v = c.value(src if isinstance(src, (Value, Tensor)) else torch.tensor(src, dtype=getattr(torch, dtype)))
    if c.dtype(v) != dtype:
        v = c.emit("cast", v, out=c.shape(v), out_dtype=dtype, dtype=dtype)
    if c.shape(v) == target:
        return v
    extra = [batch_of(c)] if None in target and None not in c.shape(v) else []
    return expanded(c, c.reshape(v, (1,) * (len(target) - len(c.shape(v))) + c.shape(v)), extra)
