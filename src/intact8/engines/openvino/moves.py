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


def move(context: OpContext) -> Value:
    """Any kind of MOVES on any dtype."""
    y = MOVES[context.op.kind](context)
    first = context.inputs[0]
    return Value(y, first.unit, first.zero)


def constant(context: OpContext) -> Value:
    """A stored tensor."""
    value = context.op.arrays["value"]
    node = port(ov.constant(np.asarray(value, order="C")))
    return dequantized(node, context.z, context.unit) if context.out.quantized else Value(node)


def _max_pool(context: OpContext) -> Port:
    t = context.op.attrs

    def largest(x: Port) -> Port:
        return max_pool(x, t["kernel"], t["stride"], t["padding"], t["dilation"], t["ceil_mode"])

    x = context.inputs[0].port
    return nonfinite.largest(largest, x) if context.special else largest(x)


def _slice(context: OpContext) -> Port:
    t = context.op.attrs
    return cut(context.inputs[0].port, t["axis"], t["start"], t["end"], t["step"])


def cut(x: Port, axis: int, start: int, end: int, step: int = 1) -> Port:
    """x[start:end:step] along ``axis``."""
    return port(ov.slice(x, ints([start]), ints([end]), ints([step]), ints([axis])))


def _roll(context: OpContext) -> Port:
    """Two slices change places: integers pass through slices and concatenations, which they do not through Roll."""
    x = context.inputs[0]
    y, shape = x.port, x.shape
    for shift, axis in zip(context.op.attrs["shifts"], context.op.attrs["dims"], strict=True):
        first = shape[axis] - shift % shape[axis]
        if first < shape[axis]:
            parts = [cut(y, axis, first, shape[axis]), cut(y, axis, 0, first)]
            y = port(ov.concat(parts, axis))
    return y


def _pad(context: OpContext) -> Port:
    x, t = context.inputs[0], context.op.attrs
    if x.unit is None:
        return _padded(context, x.port, t["value"])
    if t["value"] == x.zero == 0:
        return _padded(context, x.port, 0)
    # OpenVINO (2026.4) would pad the uint8 integers with the value minus z.
    return dequantized(_padded(context, unsigned(x), t["value"]), x.zero, x.steps).port


def _padded(context: OpContext, x: Port, value: float) -> Port:
    before, after = zip(*context.op.attrs["pads"], strict=True)
    fill = ov.constant(np.asarray(value, x.get_element_type().to_dtype()))
    return port(ov.pad(x, ints(before), ints(after), "constant", fill))


def _expand(context: OpContext) -> Port:
    return port(ov.broadcast(context.inputs[0].port, ints(context.out.shape), broadcast_spec="BIDIRECTIONAL"))


def _upsample(context: OpContext) -> Port:
    """Nearest: the source index of every position is computed here, by torch's rule, not by OpenVINO's."""
    x, size, mode = context.inputs[0], context.op.attrs["size"], context.op.attrs["mode"]
    y, first = x.port, len(x.shape) - len(size)
    for axis, out in enumerate(size, start=first):
        index = nearest_index(x.shape[axis], out, mode == "nearest-exact")
        y = port(ov.gather(y, ints(index), ints(axis)))
    return y


def resize_linear(context: OpContext) -> Value:
    """Products with a matrix of integer weights per axis, exact in float32, and a division that is corrected.

    The quotient is a product with an inverse, which may be off by one; what remains of the sum is exact, and says so.
    """
    x, t = context.inputs[0], context.op.attrs
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
    return dequantized(port(ov.convert(q, np.uint8)), context.z, context.unit)


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
