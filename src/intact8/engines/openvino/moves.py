"""Operations that move values: the same integers elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.moves import nearest_index
from intact8.arithmetic.resize import weight_matrix

from . import nonfinite
from .lowering import OpContext, Port, Value, dequantized, integers, ints, port, scalar, unsigned
from .pools import max_pool


def move(ctx: OpContext) -> Value:
    """Return the any kind of MOVES on any dtype."""
    y = MOVES[ctx.op.kind](ctx)
    first = ctx.inputs[0]
    return Value(y, first.scale, first.zero_point)


def constant(ctx: OpContext) -> Value:
    """Return a stored tensor."""
    value = ctx.op.arrays["value"]
    node = port(ov.constant(np.asarray(value, order="C")))
    return dequantized(node, ctx.z, ctx.scale) if ctx.out.quantized else Value(node)


def _max_pool(ctx: OpContext) -> Port:
    t = ctx.op.attrs

    def largest(x: Port) -> Port:
        return max_pool(x, t["kernel"], t["stride"], t["padding"], t["dilation"], t["ceil_mode"])

    x = ctx.inputs[0].port
    return nonfinite.max_pool(largest, x) if ctx.nonfinite else largest(x)


def _slice(ctx: OpContext) -> Port:
    t = ctx.op.attrs
    return cut(ctx.inputs[0].port, t["axis"], t["start"], t["end"], t["step"])


def cut(x: Port, axis: int, start: int, end: int, step: int = 1) -> Port:
    """Build x[start:end:step] along ``axis``."""
    return port(ov.slice(x, ints([start]), ints([end]), ints([step]), ints([axis])))


def _roll(ctx: OpContext) -> Port:
    """Two slices change places: integers pass through slices and concatenations, which they do not through Roll."""
    x = ctx.inputs[0]
    y, shape = x.port, x.shape
    for shift, axis in zip(ctx.op.attrs["shifts"], ctx.op.attrs["dims"], strict=True):
        first = shape[axis] - shift % shape[axis]
        if first < shape[axis]:
            parts = [cut(y, axis, first, shape[axis]), cut(y, axis, 0, first)]
            y = port(ov.concat(parts, axis))
    return y


def _pad(ctx: OpContext) -> Port:
    x, t = ctx.inputs[0], ctx.op.attrs
    if x.scale is None:
        return _padded(ctx, x.port, t["value"])
    if t["value"] == x.zero_point == 0:
        return _padded(ctx, x.port, 0)
    # OpenVINO (2026.4) would pad the uint8 integers with the value minus z.
    return dequantized(_padded(ctx, unsigned(x), t["value"]), x.zero_point, x.step).port


def _padded(ctx: OpContext, x: Port, value: float) -> Port:
    before, after = zip(*ctx.op.attrs["pads"], strict=True)
    fill = ov.constant(np.asarray(value, x.get_element_type().to_dtype()))
    return port(ov.pad(x, ints(before), ints(after), "constant", fill))


def _expand(ctx: OpContext) -> Port:
    return port(ov.broadcast(ctx.inputs[0].port, ints(ctx.out.shape), broadcast_spec="BIDIRECTIONAL"))


def _upsample(ctx: OpContext) -> Port:
    """Build Nearest: the source index of every position is computed here, by torch's rule, not by OpenVINO's."""
    x, size, mode = ctx.inputs[0], ctx.op.attrs["size"], ctx.op.attrs["mode"]
    y, first = x.port, len(x.shape) - len(size)
    for axis, out in enumerate(size, start=first):
        index = nearest_index(x.shape[axis], out, mode == "nearest-exact")
        y = port(ov.gather(y, ints(index), ints(axis)))
    return y


def resize_linear(ctx: OpContext) -> Value:
    """Return the products with a matrix of integer weights per axis, exact in float32, and a division that is
    corrected.

    The quotient is a product with an inverse, which may be off by one; what remains of the sum is exact, and says so.
    """
    x, t = ctx.inputs[0], ctx.op.attrs
    y, rank = integers(x), len(x.shape)
    for axis, (out, d) in enumerate(zip(t["size"], t["denominators"], strict=True), start=rank - len(t["size"])):
        matrix = weight_matrix(x.shape[axis], out, t["align_corners"], d)
        order = [*(i for i in range(rank) if i != axis), axis]
        last = port(ov.matmul(port(ov.transpose(y, ints(order))), port(ov.constant(matrix)), False, True))
        y = port(ov.transpose(last, ints(np.argsort(order))))
    total, one, nothing = math.prod(t["denominators"]), scalar(1.0), scalar(0.0)
    quotient = port(ov.round(port(ov.multiply(y, scalar(1 / total))), "half_to_even"))
    rest = port(ov.subtract(y, port(ov.multiply(quotient, scalar(total)))))
    more = port(ov.select(port(ov.greater(rest, scalar(total / 2))), one, nothing))
    less = port(ov.select(port(ov.less(rest, scalar(-total / 2))), one, nothing))
    q = port(ov.subtract(port(ov.add(quotient, more)), less))
    return dequantized(port(ov.convert(q, np.uint8)), ctx.z, ctx.scale)


MOVES: dict[str, Callable[[OpContext], Port]] = {
    "max_pool": _max_pool,
    "cat": lambda s: port(ov.concat([x.port for x in s.inputs], int(s.op.attrs["axis"]))),
    "reshape": lambda s: port(ov.reshape(s.inputs[0].port, ints(s.op.attrs["shape"]), False)),
    "permute": lambda s: port(ov.transpose(s.inputs[0].port, ints(s.op.attrs["dims"]))),
    "slice": _slice,
    "pad": _pad,
    "expand": _expand,
    "roll": _roll,
    "upsample": _upsample,
}
"""Kind → what it does to the float32 (or other) tensor."""
