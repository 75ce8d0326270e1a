"""Operations that move values as ONNX nodes: any dtype in, the same values out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper, numpy_helper

from intact8.arithmetic.dimensions import Dim, added, less, multiplied
from intact8.arithmetic.moves import nearest_index, repeats
from intact8.arithmetic.resize import (
    Phase,
    cubic_matrix,
    integer_phases,
    linear_matrix,
    phases,
    taps,
    weight_matrix,
)
from intact8.errors import EngineError
from intact8.opset.op import Op, Tensor
from intact8.opset.resize import times

from .onnx_builder import Builder, Rule, spatial_size
from .onnx_pools import along_axes, trailing_padding

LAST = (1 << 63) - 1
"""Where a slice ends that goes to the end."""


def _max_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build MaxPool with explicit padding instead of ceil mode, whose meaning changed between ONNX versions."""
    t, meta = op.attrs, inputs[0]
    if meta.dtype not in ("uint8", "float32"):
        why, remedy = "ONNX's MaxPool takes floats and bytes", "cast to float32 before it"
        raise EngineError(f"max_pool of {meta.dtype} cannot be exported", where=op.name, why=why, remedy=remedy)
    behind = trailing_padding(
        meta.shape[2:], y.shape[2:], t["kernel"], t["stride"], t["padding"], t["dilation"], t["ceil_mode"]
    )
    pads = [*t["padding"], *behind]
    if any(p >= k for p, k in zip(pads, t["kernel"] * 2, strict=True)):
        return _max_of_slices(b, op, x[0], meta, y, pads)

    def largest(value: str) -> str:
        where = {"strides": t["stride"], "pads": pads, "dilations": t["dilation"]}
        return b.node("MaxPool", [value], kernel_shape=t["kernel"], **where)

    if x[0] not in b.special:
        return largest(x[0])
    # ONNX Runtime's leaves NaN out, and gives the least finite number for windows of −∞.
    lowest = b.float(-np.inf, "lowest")
    above = b.positive(largest(b.cast(b.node("Greater", [x[0], lowest]), "float32")))
    nan = b.positive(largest(b.cast(b.node("IsNaN", [x[0]]), "float32")))
    return b.nan_where(nan, b.node("Where", [above, largest(x[0]), lowest]))


def _max_of_slices(b: Builder, op: Op, value: str, meta: Tensor, y: Tensor, pads: list[int]) -> str:
    """Return the dilated pools padded by a kernel or more, which runtimes refuse: the largest of shifted slices, axis
    by axis.

    The smallest value never wins, and wins nothing when it ties. (A Pad before a MaxPool would not do: ONNX Runtime
    merges the two and then refuses them.)
    """
    t, rank = op.attrs, len(op.attrs["kernel"])
    lowest = np.uint8(0) if meta.dtype == "uint8" else np.float32(-np.inf)
    widths = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
    value = b.node("Pad", [value, b.ints(widths, "pads"), b.constant(lowest, "lowest")])
    for axis, (k, s, d) in enumerate(zip(t["kernel"], t["stride"], t["dilation"], strict=True), start=2):
        last, where, step = multiplied([less(y.shape[axis] or 1, 1), s]), b.ints([axis], "axis"), b.ints([s], "step")
        starts = [i * d for i in range(k)]
        bounds = [(b.ints([i], "start"), b.vector([added([last, i + 1])], "end")) for i in starts]
        slices = [b.node("Slice", [value, start, end, where, step]) for start, end in bounds]
        value = slices[0] if k == 1 else b.largest(slices, meta.dtype)
    return value


def _cat(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Concat", x, axis=op.attrs["axis"])


def _reshape(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Reshape", [x[0], b.vector(op.attrs["shape"], "shape")])


def _permute(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Transpose", x, perm=op.attrs["dims"])


def _slice(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t = op.attrs
    bounds = [b.vector([t[key]], key) for key in ("start", "end", "axis", "step")]
    return b.node("Slice", [x[0], *bounds])


def _pad(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Pad, and a Slice where negative widths crop."""
    rows, value, meta = op.attrs["pads"], x[0], inputs[0]
    cropped = [i for i, row in enumerate(rows) if min(row) < 0]
    if cropped:
        starts = [max(0, -rows[i][0]) for i in cropped]
        ends = [less(meta.shape[i] or 0, max(0, -rows[i][1])) for i in cropped]
        value = b.node("Slice", [value, b.ints(starts, "starts"), b.vector(ends, "ends"), b.ints(cropped, "axes")])
    widths = [max(0, row[side]) for side in (0, 1) for row in rows]
    if not any(widths):
        return value
    fill = np.array(op.attrs["value"], meta.dtype)
    return b.node("Pad", [value, b.ints(widths, "pads"), b.constant(fill, "value")])


def _expand(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Expand keeps a dimension where the wanted size is 1; only a new batch dimension has to be asked for."""
    wanted, own = op.attrs["shape"], inputs[0].shape
    padded = (1,) * (len(wanted) - len(own)) + own
    dims = enumerate(zip(wanted, padded, y.shape, strict=True))
    ask = [i for i, (w, d, stated) in dims if w == -1 and d == 1 and stated is None]
    sizes: list[Dim] = [None if i in ask else 1 if w == -1 else w for i, w in enumerate(wanted)]
    return b.node("Expand", [x[0], b.vector(sizes, "shape")])


def _roll(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a Concat of both halves of each axis in exchanged order."""
    value = x[0]
    for shift, axis in zip(op.attrs["shifts"], op.attrs["dims"], strict=True):
        size = int(inputs[0].shape[axis] or 0)
        cut_at = (size - shift) % size
        if cut_at == 0:
            continue
        axes = b.ints([axis], "axis")
        tail = b.node("Slice", [value, b.ints([cut_at], "start"), b.ints([size], "end"), axes])
        head = b.node("Slice", [value, b.ints([0], "start"), b.ints([cut_at], "end"), axes])
        value = b.node("Concat", [tail, head], axis=axis)
    return value


def _by_taps(b: Builder, x: str, size: list[int], out: list[int], cubic: bool, align_corners: bool) -> str:
    """Return the sums of weighted rows: a product with a matrix would carry NaN and infinity to where its weight is
    0."""
    for axis, (n, o) in enumerate(zip(size, out, strict=True), start=2):
        shape, total = [o] + [1] * (len(size) + 1 - axis), ""
        for at, weight in taps(n, o, cubic, align_corners):
            row = b.node("Gather", [x, b.constant(at.astype(np.int64), "index")], axis=axis)
            part = b.node("Mul", [row, b.float(weight.reshape(shape), "weight")])
            total = b.node("Add", [total, part]) if total else part
        x = total
    return x


def _by_phases(b: Builder, x: str, size: Sequence[Dim], axes: Sequence[list[Phase]], y: Tensor) -> str:
    """Return linear resizing to so many times the size, whatever that is: every phase of the outputs between two
    elements is a weighted sum of two slices, and they are put side by side."""
    shape = [*y.shape[:2], *size]
    for axis, rows in enumerate(axes, start=2):
        shape[axis] = y.shape[axis]
        if len(rows) == 1:
            continue
        at = b.ints([axis], "axis")
        first, last = (b.node("Slice", [x, *b.span(*ends), at]) for ends in ((0, 1), (-1, LAST)))
        wide, parts = b.node("Concat", [first, x, last], axis=axis), []
        for left, weight, other in rows:
            start = 1 + left
            ends = ((start, start - 2), (start + 1, start - 1 or LAST))
            taps = [b.node("Slice", [wide, *b.span(*row), at]) for row in ends]
            terms = zip(taps, (weight, other), strict=True)
            total = b.node("Add", [b.node("Mul", [tap, b.float(w, "weight")]) for tap, w in terms])
            parts.append(b.node("Unsqueeze", [total, b.ints([axis + 1], "phase")]))
        x = b.shaped(b.node("Concat", parts, axis=axis + 1), shape)
    return x


def _by_places(b: Builder, x: str, meta: Tensor, y: Tensor, mode: str, align_corners: bool) -> str:
    """Return a resize of images whose sizes the model reads from its inputs: the places of the elements that an output
    is made of, and their weights, are computed as torch does, in float32."""
    one, half, nothing = b.constant(np.int64(1), "one"), b.float(0.5, "half"), b.float(0.0, "nothing")
    for axis, (n, m) in enumerate(zip(meta.shape[2:], y.shape[2:], strict=True), start=2):
        if n == m:
            continue
        size, out = (b.node("Squeeze", [b.vector([dim], role)]) for dim, role in ((n, "size"), (m, "out")))
        last = b.node("Sub", [size, one])
        places = b.cast(b.node("Range", [b.constant(np.int64(0), "from"), out, one]), "float32")
        if align_corners:
            steps = b.largest([b.node("Sub", [out, one]), one], "int64")
            ratio = b.node("Div", [b.cast(last, "float32"), b.cast(steps, "float32")])
        else:
            ratio = b.node("Div", [b.cast(size, "float32"), b.cast(out, "float32")])
        if mode != "nearest" and not align_corners:
            places = b.node("Add", [places, half])
        places = b.node("Mul", [places, ratio])
        if not mode.startswith("nearest") and not align_corners:
            places = b.node("Max", [b.node("Sub", [places, half]), nothing])
        floor = b.node("Floor", [places])
        left = b.smallest([b.cast(floor, "int64"), last], "int64")
        first = b.node("Gather", [x, left], axis=axis)
        if mode.startswith("nearest"):
            x = first
            continue
        behind = b.node("Gather", [x, b.smallest([b.node("Add", [left, one]), last], "int64")], axis=axis)
        weight = b.node("Sub", [places, floor])
        if axis + 1 < len(meta.shape):
            weight = b.node("Unsqueeze", [weight, b.ints([*range(1, len(meta.shape) - axis)], "axes")])
        kept = b.node("Mul", [first, b.node("Sub", [b.float(1.0, "whole"), weight])])
        x = b.node("Add", [kept, b.node("Mul", [behind, weight])])
    return x


def _upsample(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the nearest by index; linear and cubic by the matrices that define them (ONNX's Resize leaves rounding
    open)."""
    t, meta = op.attrs, inputs[0]
    before, out, mode = meta.shape[2:], t["size"], t["mode"]
    ratios = [times(n or 0, m) for n, m in zip(before, out, strict=True)]
    whole = [n for n in ratios if n is not None]
    named, linear = any(isinstance(n, str) for n in (*before, *out)), mode in ("linear", "bilinear", "trilinear")
    if named and linear and not t["align_corners"] and len(whole) == len(ratios):
        return _by_phases(b, x[0], before, [phases(n) for n in whole], y)
    copies = mode.startswith("nearest") and len(whole) == len(ratios) and all(map(repeats, whole))
    if copies and meta.dtype in ("uint8", "float32"):  # ⌊i/k⌋ whatever the formula
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        scales = np.array([1, 1, *whole], np.float32)
        return b.node("Resize", [x[0], "", b.constant(scales, "scales")], mode="nearest", **how)
    if named and mode != "bicubic":
        return _by_places(b, x[0], meta, y, mode, bool(t["align_corners"]))
    size = spatial_size(meta)
    if named:
        spatial_size(y)
    if not mode.startswith("nearest"):
        if x[0] in b.special:
            return _by_taps(b, x[0], size, out, mode == "bicubic", bool(t["align_corners"]))
        make = cubic_matrix if mode == "bicubic" else linear_matrix
        matrices = [make(n, o, bool(t["align_corners"])).T for n, o in zip(size, out, strict=True)]
        return along_axes(b, x[0], matrices, len(meta.shape))
    value = x[0]
    for axis, (n, o) in enumerate(zip(size, out, strict=True), start=2):
        index = nearest_index(n, o, mode == "nearest-exact")
        value = b.node("Gather", [value, b.constant(index.astype(np.int64), "index")], axis=axis)
    return value


def _resize_linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the products with a matrix of integer weights per axis, which are exact in float32, and one rounded
    division."""
    t, meta = op.attrs, inputs[0]
    if any(isinstance(d, str) for d in meta.shape[2:]):
        ratios = [times(n or 0, m) or 1 for n, m in zip(meta.shape[2:], t["size"], strict=True)]
        axes = [integer_phases(n, d) for n, d in zip(ratios, t["denominators"], strict=True)]
        total = _by_phases(b, b.cast(x[0], "float32"), meta.shape[2:], axes, y)
        return b.quantized(total, 0, 0, 255, math.prod(t["denominators"]))
    rows = zip(meta.shape[2:], t["size"], t["denominators"], strict=True)
    matrices = [weight_matrix(int(n or 0), o, t["align_corners"], d).T for n, o, d in rows]
    total = along_axes(b, b.cast(x[0], "float32"), matrices, len(meta.shape))
    return b.quantized(total, 0, 0, 255, math.prod(t["denominators"]))


def _constant(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return a Constant node, so that the value can also be an output."""
    value = np.ascontiguousarray(op.arrays["value"]).reshape(op.arrays["value"].shape)
    b.nodes.append(helper.make_node("Constant", [], [op.name], name=op.name, value=numpy_helper.from_array(value)))
    return op.name


RULES: dict[str, Rule] = {
    "max_pool": _max_pool,
    "cat": _cat,
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "expand": _expand,
    "roll": _roll,
    "upsample": _upsample,
    "resize_linear": _resize_linear,
    "constant": _constant,
}
"""Kind → rule."""
