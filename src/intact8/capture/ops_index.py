"""ATen → operations: indexing with tensors, as slices and concatenations; windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import sympy
import torch
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, multiplied
from intact8.capture.aten_call import Call, Prefix, Shape, Value, finite, handles
from intact8.capture.ops_shape import (
    WHOLE,
    batch_of,
    concatenated,
    cut,
    expanded,
    gathered,
    grown,
    joined,
    spatial,
    taken,
)
from intact8.capture.symbolic_constants import as_tensor, number_of, of_size
from intact8.errors import CaptureError

MAX_PIECES = 64
"""A gather by constant indices, and windows, become at most this many slices."""


def gather(c: Call, x: Value, axis: int, index: Tensor, most: int = MAX_PIECES) -> Value:
    """Record constant indices as at most so many slices; as a gather where there are more runs of neighbours."""
    (length,) = c.static(c.shape(x)[axis])
    flat = [int(i) % length for i in index.flatten().tolist()]
    cuts = [0, *[i for i, (a, b) in enumerate(pairwise(flat), 1) if b != a + 1], len(flat)]
    before, after = c.shape(x)[:axis], c.shape(x)[axis + 1 :]
    if len(cuts) - 1 <= most:
        y = joined(c, x, axis, [(flat[a], flat[b - 1] + 1) for a, b in pairwise(cuts)])
    else:
        y = gathered(c, x, axis, flat)
    return c.reshape(y, [*before, *index.shape, *after])


@handles("im2col")
def im2col(c: Call) -> Value:
    """Record F.unfold: a strided slice of the padded image for every place of the kernel."""
    x = c.value(c["self"])
    if len(c.shape(x)) != 4:
        raise c.error("an unfold of an image without a batch", remedy="add the batch dimension: x[None]")
    return c.reshape(windows(c, x, 0.0))


def windows(c: Call, x: Value, border: float, extra: tuple[int, int] = (0, 0)) -> Value:
    """Record the windows of images: (B, C, places of the kernel, windows).

    ``extra`` rows and columns stand behind the padding.
    """
    (kh, kw), (dh, dw) = (spatial(c[name], 2) for name in ("kernel_size", "dilation"))
    (ph, pw), (sh, sw) = (spatial(c[name], 2) for name in ("padding", "stride"))
    if kh * kw > MAX_PIECES:
        raise c.error(f"windows of {kh * kw} places", why=f"they would become more than {MAX_PIECES} slices")
    batch, channels, height, width = c.shape(x)
    if height is None or width is None:
        c.static(height, width)
    pads = [[0, 0], [0, 0], [ph, ph + extra[0]], [pw, pw + extra[1]]]
    if any(map(any, pads)):
        x = c.move("pad", x, out=grown(c, x, pads), pads=pads, value=border)
    parts = []
    for i in range(kh):
        lines = cut(c, x, 2, i * dh, i * dh - dh * (kh - 1) or WHOLE, sh)
        for j in range(kw):
            part = cut(c, lines, 3, j * dw, j * dw - dw * (kw - 1) or WHOLE, sw)
            found = [n for n in c.shape(part)[2:] if n is not None]
            parts.append(c.reshape(part, [batch, channels, 1, multiplied(found)]))
    shape = [batch, channels, kh * kw, multiplied(found)]
    joint = parts[0] if len(parts) == 1 else c.emit("cat", *parts, out=shape, out_dtype=c.dtype(x), axis=2)
    return joint


def places_of_largest(c: Call, x: Value) -> Value:
    """Record where in the image the largest element of every window lies, counted along its rows."""
    (kh, kw), (dh, dw) = (spatial(c[name], 2) for name in ("kernel_size", "dilation"))
    (ph, pw), (sh, sw) = (spatial(c[name], 2) for name in ("padding", "stride"))
    height, width, rows, columns = c.static(*c.shape(x)[2:], *c.out_shape[2:])
    extra = (  # that the last windows need where ceil_mode says that they stand out
        max(dh * (kh - 1) + 1 + (rows - 1) * sh - height - 2 * ph, 0),
        max(dw * (kw - 1) + 1 + (columns - 1) * sw - width - 2 * pw, 0),
    )
    joint = windows(c, x, finite(-math.inf), extra)
    shape = (*c.shape(joint)[:2], rows * columns)
    of_kernel = c.emit("reduce", joint, out=shape, out_dtype="int64", fn="argmax", dims=[2], keepdim=False)
    line = c.emit("affine_scalar", of_kernel, out=shape, out_dtype="float32", mul=1 / kw, add=0.5 / kw)
    line = c.emit("unary", line, out=shape, out_dtype="float32", fn="floor")
    line = c.emit("cast", line, out=shape, out_dtype="int64", dtype="int64")
    line = c.emit("affine_scalar", line, out=shape, out_dtype="int64", mul=dh * width - kw * dw, add=0)
    column = c.emit("affine_scalar", of_kernel, out=shape, out_dtype="int64", mul=dw, add=0)
    origin = (torch.arange(rows)[:, None] * sh - ph) * width + torch.arange(columns) * sw - pw
    inside = c.emit("add", line, column, out=shape, out_dtype="int64")
    found = c.emit("add", inside, origin.reshape(1, 1, -1), out=shape, out_dtype="int64")
    return c.reshape(found, c.out_shape)


@handles("unfold")
def unfold(c: Call) -> Value:
    """Record windows along one dimension: a strided slice for every place in a window."""
    x, size, step = c.value(c["self"]), c["size"], c["step"]
    axis = c.axis(c["dimension"], x)
    if size > MAX_PIECES:
        raise c.error(f"windows of {size} elements", why=f"they would become more than {MAX_PIECES} slices")
    parts = [cut(c, x, axis, i, i + 1 - size or WHOLE, step) for i in range(size)]
    thin = [*c.shape(parts[0]), 1]
    parts = [c.reshape(part, thin) for part in parts]
    return parts[0] if size == 1 else c.emit("cat", *parts, out_dtype=c.dtype(x), axis=len(thin) - 1)


@handles("index_select")
def index_select(c: Call) -> Value:
    """Record index_select with known indices."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    if isinstance(c["index"], Tensor):
        return gather(c, x, axis, c["index"])
    shape = list(c.out_shape)
    thin = c.reshape(c["index"], [n if d == axis else 1 for d, n in enumerate(shape)])
    wide = expanded(c, thin, [batch_of(c)] if None in shape and None not in c.shape(thin) else [])
    return c.emit("gather", x, wide, axis=axis)


@handles("linspace")
def linspace(c: Call) -> Any:
    """Record a fixed count of evenly spaced numbers between ends that follow a length, as places of frames are."""
    ends, steps = [c.builder.expression(c[name]) for name in ("start", "end")], c["steps"]
    dtype = c.fx.meta["val"].dtype
    fixed = not isinstance(steps, torch.SymInt)
    row = of_size(c, ends, lambda a, b: torch.linspace(float(a), float(b), steps, dtype=dtype)) if fixed else None
    return c.builder.decomposed(c, c.fx.target) if row is None else c.reshape(row)


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


def beginning(index: Any) -> Prefix | None:
    """Return known indices as the beginning of a constant, which a tensor is of itself; None for others."""
    if isinstance(index, Tensor):
        return Prefix(index, tuple(index.shape))
    return index if isinstance(index, Prefix) else None


def counts_to(c: Call, known: Prefix, axis: int, length: Dim, *, repeated: bool = False) -> bool:
    """Return whether indices count 0, 1, 2 … along ``axis`` up to a length, and nothing else."""
    size = known.counts(axis, repeated=repeated)
    return size is not None and c.builder.size_of(size) == length


def from_front(c: Call, index: Value, size: int | str) -> Value:
    """Record indices of which negative ones count from the end, as ones that count from the front."""
    node = c.builder.nodes[index.name]
    while node.op in ("reshape", "slice", "expand", "permute"):
        node = c.builder.nodes[node.inputs[0]]
    if node.op == "argsort" or node.attrs.get("fn") in ("argmax", "argmin"):
        return index
    shape = c.shape(index)
    negative = c.emit("compare", index, out=shape, out_dtype="bool", fn="lt", value=0)
    if isinstance(size, str):
        whole = c.emit("cast", negative, out=shape, out_dtype="int64", dtype="int64")
        turns = c.emit("mul", whole, number_of(c, size), out=shape, out_dtype="int64")
    else:
        turns = c.emit("affine_scalar", negative, out=shape, out_dtype="int64", mul=size, add=0)
    return c.emit("add", index, turns, out=shape, out_dtype="int64")


def places_of_each(c: Call) -> tuple[Value, Value, Shape] | None:
    """Record the places x[arange(batch), i, j, …] in each sample, as if the indexed dimensions were one.

    The sample numbers (batch, 1, …) broadcast with i (batch, …), of which some may be known.

    Returns:
        x as (batch, rows, …); the places of the rows, (batch, places, …), for a gather or a scatter along dimension 1;
        and the shape of the indices. None where it is another way of indexing.
    """
    x, (first, *others) = c["self"], c["indices"]
    known = beginning(first)
    computed = [i for i in others if isinstance(i, Value)]
    if not isinstance(x, Value) or known is None or not computed:
        return None
    shape, places = c.shape(x), c.shape(computed[0])
    if any(c.shape(i) != places or c.dtype(i) != "int64" for i in computed):
        return None
    given = [i for i in others if not isinstance(i, Value)]
    if any(not isinstance(i, Tensor) or i.dtype != torch.int64 or i.ndim > len(places) for i in given):
        return None
    if places[:1] != shape[:1] or len(known.dims) != len(places):
        return None
    if not counts_to(c, known, 0, shape[0], repeated=True):
        return None
    first_size, *later = shape[1 : len(others) + 1]
    sizes = [first_size if isinstance(first_size, str) else c.static(first_size)[0], *c.static(*later)]
    total: Value | None = None
    added = torch.zeros((), dtype=torch.int64)
    for at, (size, i) in enumerate(zip(sizes, others, strict=True)):
        step = math.prod(later[at:])  # type: ignore[arg-type]
        if isinstance(i, Tensor):
            added = added + i % c.static(size)[0] * step
            continue
        i = from_front(c, i, size)
        i = i if step == 1 else c.emit("affine_scalar", i, out=places, out_dtype="int64", mul=step, add=0)
        total = i if total is None else c.emit("add", total, i, out=places, out_dtype="int64")
    if bool(added.any()):
        total = c.emit("add", total, added, out=places, out_dtype="int64")
    assert total is not None
    rest = shape[len(sizes) + 1 :]
    wide = (shape[0], product(c, places[1:]), *rest)
    index = c.reshape(total, (*wide[:2], *[1] * len(rest)))
    index = index if c.shape(index) == wide else expanded(c, index, [], wide)
    return c.reshape(x, (shape[0], product(c, sizes), *rest)), index, places


def product(c: Call, sizes: Sequence[Dim]) -> int | str:
    """Return a product of sizes, none of which is the batch."""
    c.static(*(size for size in sizes if size is None))
    return multiplied([size for size in sizes if size is not None])


def rows_of_each(c: Call) -> Value | None:
    """Record x[arange(batch), i], rows of each sample that are computed; None where it is another way of indexing."""
    found = places_of_each(c)
    if found is None:
        return None
    rows, index, _ = found
    return c.reshape(c.emit("gather", rows, index, out=c.shape(index), axis=1))


def the_same(index: Any) -> Any:
    """Return indices as long as the batch that are all the same, as ``torch.zeros(batch).long()``, as one of them."""
    full = index.full if isinstance(index, Prefix) else torch.zeros(0)
    alike = full.numel() > 0 and bool((full == full.flatten()[0]).all())
    return full.flatten()[:1].reshape([1] * full.ndim) if alike else index


def same_of_each(c: Call) -> list[Tensor | None] | None:
    """Return the indices of x[:, i, …], which is x[arange(batch), i, …] where i is known; None for other indices."""
    x, (first, *others) = c["self"], map(the_same, c["indices"])
    known = beginning(first)
    if not isinstance(x, Value) or known is None or not others:
        return None
    if not all(isinstance(i, Tensor) and i.dtype != torch.bool for i in others):
        return None
    rank = max(i.ndim for i in (known.full, *others))
    if known.full.ndim != rank or not counts_to(c, known, 0, c.shape(x)[0]):
        return None
    if any(i.ndim == rank and len(i) != 1 for i in others):
        return None
    return [None, *(i[0] if i.ndim == rank else i for i in others)]


def everything(c: Call) -> bool:
    """Return whether the indices are 0, 1, 2 … of their dimensions, in order: nothing is left out and nothing moved."""
    x, indices = c["self"], c["indices"]
    if not isinstance(x, Value) or not all(map(beginning, indices)):
        return False
    rank, last = len(c.out_shape) - len(c.shape(x)) + len(indices), -1
    for length, i in zip(c.shape(x), indices, strict=False):
        known = beginning(i)
        assert known is not None
        axis = next((a for a, n in enumerate(known.dims) if n != 1), known.full.ndim - 1)
        if not known.full.ndim or not counts_to(c, known, axis, length):
            return False
        place = rank - known.full.ndim + axis
        if place <= last:
            return False
        last = place
    return True


def chosen(c: Call) -> CaptureError:
    """Return the error for tensors as long as the data say."""
    why = "how many elements a mask chooses is only known when the model runs, and programs have tensors of known sizes"
    remedy = "keep all elements and a mask (torch.where, masked_fill, sums of x * mask), or choose behind the model"
    if "torch_geometric" in str(c.fx.meta.get("nn_module_stack")):
        remedy = (
            "where the layer adds loops, set its add_self_loops = False and add them to the edges, which gives the "
            "same: torch_geometric.utils.add_remaining_self_loops"
        )
    return c.error("the size of a tensor depends on the data", why=why, remedy=remedy)


@handles("masked_select nonzero _to_sparse")
def masked_select(c: Call) -> Value:
    """Refuse what gives as many elements as a mask has that are true."""
    raise chosen(c)


@handles("bincount _unique2 unique_dim unique_consecutive")
def unique(c: Call) -> Value:
    """Refuse what gives as many elements as there are values in the data."""
    why = "how many values there are is only known when the model runs, and programs have tensors of known sizes"
    remedy = "count known values, F.one_hot(x, n).sum(0), or keep its module in torch: intact8.split(model, data)"
    raise c.error("the size of a tensor depends on the data", why=why, remedy=remedy)


def without_masks(c: Call) -> list[Any]:
    """Return indices with places in the stead of constant masks, whose numbers of elements become known sizes."""
    out: list[Any] = []
    for i in c["indices"]:
        if isinstance(i, Tensor) and i.dtype == torch.bool:
            out += i.nonzero(as_tuple=True)
            meta: Any = c.fx.meta["val"]
            unknown = [n for n in meta.shape if isinstance(n, torch.SymInt) and n.node.expr not in c.builder.symbols]
            if len(unknown) == 1:
                c.builder.counted[unknown[0].node.expr] = sympy.Integer(len(out[-1]))
        else:
            out.append(i)
    return out


@handles("index")
def index(c: Call) -> Any:
    """Record x[..., indices] in one dimension; a table indexed by the input is an embedding."""
    c.args["indices"] = without_masks(c)
    if everything(c):
        return c.reshape(c["self"])
    rows = rows_of_each(c)
    if rows is not None:
        return rows
    c.args["indices"] = same_of_each(c) or c["indices"]
    c.args = {k: c.builder.made(v, c.fx) for k, v in c.args.items()}
    given = [(axis, i) for axis, i in enumerate(c["indices"]) if i is not None]
    x = c["self"]
    if len(given) == 1 and given[0][0] == 0 and isinstance(x, Tensor) and x.ndim == 2:
        return c.emit("embedding", given[0][1], params=c.params(weight=x))
    known = [i for _, i in given if isinstance(i, Tensor) and i.dtype != torch.bool]
    first, count = given[0][0], len(given)
    neighbours = [axis for axis, _ in given] == list(range(first, first + count))
    if any(c.dtype(c.value(i)) == "bool" for _, i in given):
        raise chosen(c)
    if len(known) < count or not neighbours:
        return c.builder.by_formula(c)
    x = c.value(x)
    if count == 1 and isinstance(c.shape(x)[first], str) and known[0].numel() <= MAX_PIECES:  # x[:, [-1]]
        pieces = [cut(c, x, first, i, i + 1 or WHOLE) for i in known[0].flatten().tolist()]
        y = pieces[0] if len(pieces) == 1 else concatenated(c, pieces, first)
        return c.reshape(y, [*c.shape(x)[:first], *known[0].shape, *c.shape(x)[first + 1 :]])
    sizes = c.static(*c.shape(x)[first : first + count])
    merged = c.reshape(x, [*c.shape(x)[:first], math.prod(sizes), *c.shape(x)[first + count :]])
    flat = torch.zeros((), dtype=torch.int64)
    for size, i in zip(sizes, known, strict=True):
        flat = flat * size + i.long() % size
    return gather(c, merged, first, flat)


@handles("arange")
def arange(c: Call) -> Any:
    """Count in steps other than 1, or in floats, by arithmetic on 0, 1, 2 …; refuse other ranges with a symbolic end.

    Constant ranges, and those that are the beginning or a window of one, are folded.
    """
    length, start, step = c.out_shape[0], c.args.get("start", 0), c.args.get("step", 1)
    sized = isinstance(start, (torch.SymInt, torch.SymFloat))
    if isinstance(length, str) and float(step).is_integer() and (sized or float(start).is_integer()):
        most = c.most_of(length, f"{length} counts places", why="they are computed up to a largest size")
        counted = Prefix(int(step) * torch.arange(most), (c.builder.symbolic(length),))
        first = as_tensor(c, start) if sized else torch.tensor([int(start)])
        if first is not None:
            return c.emit("add", c.builder.materialize(counted, c.fx), first)
    c.static(*(n for n in c.out_shape if n is not None))
    raise c.mixes("a range as long as the batch", why="the number of samples is only known when the program runs")


@handles("flip")
def flip(c: Call) -> Value:
    """Record a reversal as single slices, or as a gather of places counted from the end where a size changes."""
    x = c.value(c["self"])
    for dim in c["dims"]:
        axis = c.axis(dim, x)
        length = c.shape(x)[axis]
        if isinstance(length, str):
            x = reversed_along(c, x, axis, length)
        else:
            x = gather(c, x, axis, torch.arange(c.static(length)[0] - 1, -1, -1))
    return x


def reversed_along(c: Call, x: Value, axis: int, length: str) -> Value:
    """Record the reversal of a dimension that changes."""
    most = c.most_of(length, f"{length} counts places", why="they are computed up to a largest size")
    size = c.builder.symbolic(length)
    last = c.builder.materialize(Prefix(torch.arange(most + 1) - 1, (1,), (size,)), c.fx)
    places = c.emit("sub", last, Prefix(torch.arange(most), (size,)), out=(length,), out_dtype="int64")
    return taken(c, x, axis, places)
