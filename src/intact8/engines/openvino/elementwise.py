"""add, mul, indexed tables, dequantize, and quantize inside the network."""

from __future__ import annotations

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.integer import requantize
from intact8.opset.op import Array

from .lowering import (
    LEVELS,
    OpContext,
    Port,
    Value,
    dequantized,
    integers,
    named,
    port,
    requantized,
    scalar,
    times,
    whole,
)
from .nonfinite import replaced


def add(context: OpContext) -> Value:
    """Σ a_j·(x_j − z_j)/b, in steps in which the first term needs no factor, and with tied units no other does.

    What one tensor decides, a sum with itself included, is a table: OpenVINO moves factors of one tensor about.
    """
    terms = _terms(context)
    if len(terms) < 2:
        return _of_one(context, [x for x, _ in terms])
    b = int(context.op.attrs["b"])
    step = terms[0][0].steps * b / abs(terms[0][1])
    total: Port | None = None
    for x, numerator in terms:
        factor = numerator * step / (b * x.steps)
        if abs(abs(factor) - 1.0) < 1e-12:
            factor = float(np.sign(factor))
        if total is None:
            total = times(x.port, factor)
        elif factor < 0:
            total = port(ov.subtract(total, times(x.port, -factor)))
        else:
            total = port(ov.add(total, times(x.port, factor)))
    return _spread(context, requantized(context, named(total, context.label), step))


def mul(context: OpContext) -> Value:
    """(x − z_x)·(w − z_w)·a/b: the product of the units and the ratio are the step. A square is a table."""
    x, w = context.inputs
    a = int(context.op.attrs["a"])
    if context.op.inputs[0] == context.op.inputs[1] or a == 0:
        return _of_one(context, [x] if a else [])
    return scaled(
        context, named(port(ov.multiply(x.port, w.port)), context.label), x.steps * w.steps, a, context.op.attrs["b"]
    )


def _terms(context: OpContext) -> list[tuple[Value, int]]:
    """The tensors of a sum, each once, with what they are multiplied with, which is not 0."""
    terms: dict[str, tuple[Value, int]] = {}
    for name, x, a in zip(context.op.inputs, context.inputs, context.op.attrs["a"], strict=True):
        terms[name] = x, int(a) + (terms[name][1] if name in terms else 0)
    return [(x, a) for x, a in terms.values() if a]


def _of_one(context: OpContext, inputs: list[Value]) -> Value:
    """An ``add`` or ``mul`` of no or one tensor: the table of what the definition gives for every integer."""
    every, z, (lo, hi) = np.arange(LEVELS), context.z, context.limits
    sums = np.zeros(LEVELS, np.int64)
    if inputs:
        steps = every - inputs[0].zero
        sums = (
            steps * sum(a for _, a in _terms(context))
            if context.op.kind == "add"
            else steps * steps * int(context.op.attrs["a"])
        )
    b = np.array([int(context.op.attrs["b"])])
    entries = requantize(sums, np.array([1]), b, z, lo, hi).astype(np.uint8)
    if inputs:
        return _spread(context, indexed(context, inputs[0], entries))
    return dequantized(port(ov.constant(np.full(known(context.out.shape), entries[0]))), z, context.unit)


def _spread(context: OpContext, y: Value) -> Value:
    """y in the shape of the result, where what was left out was larger."""
    if tuple(y.shape) == tuple(context.out.shape):
        return y
    shape = ov.constant(np.array(context.out.shape, np.int64))
    return Value(port(ov.broadcast(y.port, shape, broadcast_spec="BIDIRECTIONAL")), y.unit, y.zero)


def scaled(context: OpContext, x: Port, unit: float, a: int, b: int) -> Value:
    """R(x/unit·a/b): the ratio goes into the step. Nothing but zero has the ratio 0."""
    if a == 0:
        return requantized(context, times(x, 0.0), 1.0)
    return requantized(context, x, unit * b / a)


def gathered(context: OpContext) -> Value:
    """The stored table, indexed."""
    return indexed(context, context.inputs[0], context.op.arrays["table"])


def indexed(context: OpContext, x: Value, entries: Array) -> Value:
    """entries[x]."""
    q = port(ov.convert(integers(x), np.int32))
    picked = port(ov.gather(ov.constant(np.ascontiguousarray(entries)), q, ov.constant(np.int32(0))))
    return dequantized(picked, context.z, context.unit)


def dequantize(context: OpContext) -> Value:
    """(q − z)·s.

    The Round changes nothing, and no low precision pass of OpenVINO's moves integers or their factor beyond it: what
    follows computes in float32. Some would go wrong with integers: a Clamp's ends, say, are cut to integers.
    """
    x, s = context.inputs[0], float(context.op.attrs["scale"])
    return Value(port(ov.multiply(whole(x.port, x.steps), scalar(s))))


def quantize(context: OpContext) -> Value:
    """clamp(R(x / s) + z, lo, hi) of a float island's result, where OpenVINO cannot be kept from multiplying with 1/s.

    That differs where x/s is a tie or next to one. What an island computes differs in its last bits between engines
    anyway; all other floats are divided (see ``input_quantize``), or quantized by numpy before they are handed over.
    """
    s = float(context.out.scale or 1.0)
    least = (context.limits[0] - context.z) * s
    x = context.inputs[0].port
    x = replaced(x, least) if context.special else x
    return requantized(context, port(ov.maximum(x, scalar(least))), s)
