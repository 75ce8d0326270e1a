"""Kinds that move values of any dtype and leave scale and zero point as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from intact8.arithmetic import moves
from intact8.arithmetic.dimensions import Dim, added, divided, less, names_of, size_of
from intact8.arithmetic.resize import resize
from intact8.errors import InputError

from .attributes import AXES, AXIS, IMAGE_SIZE, NUMBERS
from .kind import Call, Interval, Kind, Semantics, Span, along_all_but_first, along_none
from .op import INTERPOLATING, Array, Op, Tensor
from .shapes import Shape, ShapeRule, axis_of, elements, known, spatial
from .types import QUANTIZED, signature
from .values import LARGEST_SIZE, Validator, boolean, integer, integers, limit, one_of, paddings
from .violation import need

SHAPE = integers(-1, LARGEST_SIZE, empty=True, names=True)
POSITION = integer(0, LARGEST_SIZE, name=True)
END = integer(1, LARGEST_SIZE, name=True)

MOVED = (signature(f"{NUMBERS} {QUANTIZED}", gives=""),)
CONSTANT = tuple(signature(gives=result) for result in (QUANTIZED, *NUMBERS.split()))


def check_unchanged(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    """Demand that inputs and output have one dtype, scale and zero point."""
    for t in inputs:
        unchanged = (t.dtype, t.scale, t.zero_point) == (output.dtype, output.scale, output.zero_point)
        need(unchanged, f"{t.name} and the output differ in dtype, scale or zero point")


def _check_constant(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    value = op.arrays["value"].dtype
    need(output.dtype == value, f"the value is {value}, declared is {output.dtype}")


def _check_upsample(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_unchanged(op, inputs, output)
    nearest = op.attrs["mode"].startswith("nearest")
    need(nearest or not output.quantized, f"mode {op.attrs['mode']} is no integer operation")
    need(output.quantized or output.dtype == "float32" or nearest, "resizes float32")


def _check_pad(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_unchanged(op, inputs, output)
    if output.dtype != "float32":
        value, most = op.attrs["value"], 1 if output.dtype == "bool" else 255
        need(float(value).is_integer() and 0 <= value <= most, f"value {value} is no integer within 0..{most}")


def _cat_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    axis = axis_of(op, x[0])
    for s in x[1:]:
        fits = len(s) == len(x[0]) and all(a == b for i, (a, b) in enumerate(zip(s, x[0], strict=True)) if i != axis)
        need(fits, f"shapes {x[0]} and {s} differ outside axis {axis}")
    sizes = [d for s in x if (d := s[axis]) is not None]
    need(len(sizes) == len(x), "the axis of a cat depends on the batch size")
    return (*x[0][:axis], added(sizes), *x[0][axis + 1 :])


def _reshape_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = op.attrs["shape"]
    need(shape.count(-1) <= 1, f"shape {shape} has more than one -1")
    fixed = math.prod(d for d in shape if isinstance(d, int) and d != -1)
    if None in x[0]:
        # A dimension may be a multiple of the batch size (windows of images), so sizes are compared when running.
        need(-1 in shape, f"shape {shape} leaves no room for the batch dimension of {x[0]}")
        need(fixed > 0, f"shape {shape} has no elements")
        return tuple(None if d == -1 else d for d in shape)
    named = [sorted(d for d in s if isinstance(d, str)) for s in (x[0], shape)]
    if named[0] != named[1]:
        same = -1 not in shape and all(_at(x[0], probe) == _at(shape, probe) for probe in PROBES)
        need(same, f"{x[0]} cannot become {shape}: sizes that are not known differ")
        return tuple(shape)
    total = elements(x[0])
    need(total % max(fixed, 1) == 0 and (-1 in shape or fixed == total), f"{x[0]} cannot become {shape}")
    return tuple(total // max(fixed, 1) if d == -1 else d for d in shape)


PROBES = (1009, 2003)
"""Sizes that are tried where a reshape turns ``sequence`` into a sum of names."""


def _at(shape: Sequence[Dim], probe: int) -> int:
    """Return the number of elements where every name has a size of its own, from ``probe`` on."""
    names = sorted({name for dim in shape for name in names_of(dim)})
    sizes = {name: probe + i for i, name in enumerate(names)}
    return math.prod(size_of(dim, sizes) for dim in shape if dim is not None)


def _permute_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    dims = op.attrs["dims"]
    need(sorted(dims) == list(range(len(x[0]))), f"dims {dims} are no permutation of rank {len(x[0])}")
    return tuple(x[0][d] for d in dims)


def _slice_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    axis, start, end = axis_of(op, x[0]), op.attrs["start"], op.attrs["end"]
    if isinstance(end, str) or isinstance(start, str):  # whether it is within the dimension, the checker knows
        need(x[0][axis] is not None, "a sliced dimension depends on the batch size")
        step = op.attrs["step"]
        return (*x[0][:axis], divided(added([less(end, start), step - 1]), step), *x[0][axis + 1 :])
    if isinstance(x[0][axis], str):  # how long it is at least, the checker knows
        need(start < end, f"{start}:{end} is empty")
        return (*x[0][:axis], len(range(start, end, op.attrs["step"])), *x[0][axis + 1 :])
    size = known(x[0][axis], "a sliced dimension")
    need(start < end <= size, f"{start}:{end} is empty or beyond {size}")
    return (*x[0][:axis], len(range(start, end, op.attrs["step"])), *x[0][axis + 1 :])


def _pad_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    pads = op.attrs["pads"]
    need(len(pads) == len(x[0]), f"pads {pads} do not have one entry per dimension of {x[0]}")
    for d, row in zip(x[0], pads, strict=True):
        need(d is not None or not any(row), "a padded dimension depends on the batch size")
    out = tuple(d if d is None else added([d, *row]) for d, row in zip(x[0], pads, strict=True))
    need(all(not isinstance(d, int) or d >= 1 for d in out), f"pads {pads} leave nothing of {x[0]}")
    return out


def _expand_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = op.attrs["shape"]
    need(len(shape) >= len(x[0]) and len(shape) == len(declared), f"{x[0]} cannot expand to {shape}")
    padded = (1,) * (len(shape) - len(x[0])) + x[0]
    out: list[Dim] = []
    for wanted, dim, stated in zip(shape, padded, declared, strict=True):
        # −1 is the batch dimension; a static program writes it for "as it is", too.
        result = (stated if dim == 1 and stated is None else dim) if wanted == -1 else wanted
        need(dim in (1, result), f"{x[0]} cannot expand to {shape}")
        out.append(result)
    return tuple(out)


def _roll_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    dims = op.attrs["dims"]
    need(len(dims) == len(op.attrs["shifts"]) and max(dims) < len(x[0]), f"dims {dims} do not fit {x[0]}")
    for d in dims:
        known(x[0][d], "a rolled dimension")
    return x[0]


def _upsample_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    size, mode = op.attrs["size"], op.attrs["mode"]
    ranks = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
    need(len(size) <= 3 and ranks.get(mode, len(size)) == len(size), f"mode {mode} does not take size {size}")
    spatial(x[0], len(size))
    return (*x[0][:2], *size)


def _constant_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return tuple(op.arrays["value"].shape)


def _cat(call: Call) -> Array:
    return np.concatenate(call.x, axis=call.attrs["axis"])


def _reshape(call: Call) -> Array:
    try:
        return moves.reshape(call.x[0], call.attrs["shape"])
    except ValueError as error:
        raise InputError(
            "this batch size does not work out", where=call.op.name, why=str(error), remedy="change the batch size"
        ) from error


def _permute(call: Call) -> Array:
    return moves.permute(call.x[0], call.attrs["dims"])


def _slice(call: Call) -> Array:
    t = call.attrs
    return moves.cut(call.x[0], t["axis"], t["start"], t["end"], t["step"])


def _pad(call: Call) -> Array:
    return moves.pad(call.x[0], call.attrs["pads"], call.attrs["value"])


def _expand(call: Call) -> Array:
    x = call.x[0]
    return moves.expand(x, moves.expanded_shape(call.attrs["shape"], x.shape, call.output.shape, call.batch))


def _roll(call: Call) -> Array:
    return moves.roll(call.x[0], call.attrs["shifts"], call.attrs["dims"])


def _upsample(call: Call) -> Array:
    t, mode = call.attrs, call.attrs["mode"]
    if mode.startswith("nearest"):
        return moves.upsample_nearest(call.x[0], t["size"], mode == "nearest-exact")
    with np.errstate(all="ignore"):
        return resize(call.x[0], t["size"], mode == "bicubic", bool(t["align_corners"])).astype(
            call.output.dtype, copy=False
        )


def _constant(call: Call) -> Array:
    return call.arrays["value"]


def union(intervals: list[Interval]) -> Interval | None:
    """From the least to the largest of some intervals; None without any."""
    return (min(low for low, _ in intervals), max(high for _, high in intervals)) if intervals else None


def moved(op: Op, intervals: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    """Return the interval of the inputs, whose integers the result holds."""
    return union(intervals)


def moved_floats(op: Op, spans: list[Span], inputs: Sequence[Tensor]) -> Span | None:
    """Return the span of the only input, whose floats the result holds."""
    return spans[0]


def _padded(op: Op, intervals: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    value = int(op.attrs["value"])
    return union([*intervals, (value, value)])


def _stored(op: Op, intervals: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    return int(op.arrays["value"].min()), int(op.arrays["value"].max())


def infinite_value(op: Op) -> bool:
    """Return whether the attribute ``value`` is infinite."""
    return isinstance(op.attrs["value"], float) and math.isinf(op.attrs["value"])


def _pads_along(op: Op, t: Tensor, dim: int) -> bool:
    return any(op.attrs["pads"][dim])


def _move(name: str, formula: str, shape: ShapeRule, evaluate: Semantics, **more: Any) -> Kind:
    """Return a kind that moves the values of its only input; ``more`` is what differs from what holds for most of
    them."""
    usual = {"domain": "any", "check": check_unchanged, "interval": moved, "inputs": (1, 1), "types": MOVED}
    return Kind(name, formula, shape=shape, evaluate=evaluate, **{**usual, **more})


SLICE: dict[str, Validator] = {"axis": AXIS, "start": POSITION, "end": END, "step": integer(1, LARGEST_SIZE)}
UPSAMPLE: dict[str, Validator] = {
    "size": IMAGE_SIZE,
    "mode": one_of("nearest", "nearest-exact", *INTERPOLATING),
    "align_corners": boolean,
}
SHIFTS: dict[str, Validator] = {"shifts": integers(-LARGEST_SIZE, LARGEST_SIZE), "dims": AXES}
PADS: dict[str, Validator] = {"pads": paddings, "value": limit}
REORDERED: dict[str, Any] = {
    "span": moved_floats,
    "works_along": along_none,
    "aligned": False,
    "keeps_elements": True,
}

KINDS = (
    _move(
        "cat",
        "the inputs one behind the other along axis",
        _cat_shape,
        _cat,
        inputs=(1, 4096),
        attrs={"axis": AXIS},
        keeps_elements=True,
    ),
    _move(
        "reshape", "shape; −1 for the batch dimension", _reshape_shape, _reshape, attrs={"shape": SHAPE}, **REORDERED
    ),
    _move(
        "permute",
        "dimension i of the result is dimension dims[i]",
        _permute_shape,
        _permute,
        attrs={"dims": AXES},
        **REORDERED,
    ),
    _move(
        "slice",
        "elements start, start + step, … before end of one axis",
        _slice_shape,
        _slice,
        attrs=SLICE,
        span=moved_floats,
    ),
    _move(
        "pad",
        "[before, after] elements of a value (an integer, or a float) per dimension; negative numbers crop",
        _pad_shape,
        _pad,
        attrs=PADS,
        check=_check_pad,
        interval=_padded,
        works_along=_pads_along,
        creates_special=infinite_value,
    ),
    _move(
        "expand",
        "repeats dimensions of size 1 up to shape",
        _expand_shape,
        _expand,
        attrs={"shape": SHAPE},
        span=moved_floats,
        keeps_elements=True,
    ),
    _move(
        "roll",
        "moves elements along dims by shifts, those beyond the end to the front",
        _roll_shape,
        _roll,
        attrs=SHIFTS,
        span=moved_floats,
        keeps_elements=True,
    ),
    _move(
        "upsample",
        "images of another size; integers in the nearest modes only, the other modes are float islands",
        _upsample_shape,
        _upsample,
        attrs=UPSAMPLE,
        check=_check_upsample,
        works_along=along_all_but_first,
    ),
    _move(
        "constant",
        "the stored value",
        _constant_shape,
        _constant,
        inputs=(0, 0),
        types=CONSTANT,
        arrays={"value": ""},
        infinite=frozenset({"value"}),
        check=_check_constant,
        interval=_stored,
    ),
)
