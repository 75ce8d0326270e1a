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


def add(ctx: OpContext) -> Value:
    """Build Σ a_j·(x_j − z_j)/b, in steps in which the first term needs no factor, and with tied scales no other does.

    What one tensor decides, a sum with itself included, is a table: OpenVINO moves factors of one tensor about.
    """
    terms = _terms(ctx)
    if len(terms) < 2:
        return _of_one(ctx, [x for x, _ in terms])
    b = int(ctx.op.attrs["b"])
    step = terms[0][0].step * b / abs(terms[0][1])
    total: Port | None = None
    for x, numerator in terms:
        factor = numerator * step / (b * x.step)
        if abs(abs(factor) - 1.0) < 1e-12:
            factor = float(np.sign(factor))
        if total is None:
            total = times(x.port, factor)
        elif factor < 0:
            total = port(ov.subtract(total, times(x.port, -factor)))
        else:
            total = port(ov.add(total, times(x.port, factor)))
    return _spread(ctx, requantized(ctx, named(total, ctx.label), step))


def mul(ctx: OpContext) -> Value:
    """Build (x − z_x)·(w − z_w)·a/b: the product of the scales and the ratio are the step. A square is a table."""
    x, w = ctx.inputs
    a = int(ctx.op.attrs["a"])
    if ctx.op.inputs[0] == ctx.op.inputs[1] or a == 0:
        return _of_one(ctx, [x] if a else [])
    return scaled(ctx, named(port(ov.multiply(x.port, w.port)), ctx.label), x.step * w.step, a, ctx.op.attrs["b"])


def _terms(ctx: OpContext) -> list[tuple[Value, int]]:
    """Return the tensors of a sum, each once, with what they are multiplied with, which is not 0."""
    terms: dict[str, tuple[Value, int]] = {}
    for name, x, a in zip(ctx.op.inputs, ctx.inputs, ctx.op.attrs["a"], strict=True):
        terms[name] = x, int(a) + (terms[name][1] if name in terms else 0)
    return [(x, a) for x, a in terms.values() if a]


def _of_one(ctx: OpContext, inputs: list[Value]) -> Value:
    """Return an ``add`` or ``mul`` of no or one tensor: the table of what the definition gives for every integer."""
    every, z, (lo, hi) = np.arange(LEVELS), ctx.z, ctx.limits
    sums = np.zeros(LEVELS, np.int64)
    if inputs:
        steps = every - inputs[0].zero_point
        sums = (
            steps * sum(a for _, a in _terms(ctx)) if ctx.op.kind == "add" else steps * steps * int(ctx.op.attrs["a"])
        )
    b = np.array([int(ctx.op.attrs["b"])])
    entries = requantize(sums, np.array([1]), b, z, lo, hi).astype(np.uint8)
    if inputs:
        return _spread(ctx, indexed(ctx, inputs[0], entries))
    return dequantized(port(ov.constant(np.full(known(ctx.out.shape), entries[0]))), z, ctx.scale)


def _spread(ctx: OpContext, y: Value) -> Value:
    """Build y in the shape of the result, where what was left out was larger."""
    if tuple(y.shape) == tuple(ctx.out.shape):
        return y
    shape = ov.constant(np.array(ctx.out.shape, np.int64))
    return Value(port(ov.broadcast(y.port, shape, broadcast_spec="BIDIRECTIONAL")), y.scale, y.zero_point)


def scaled(ctx: OpContext, x: Port, scale: float, a: int, b: int) -> Value:
    """Build R(x/scale·a/b): the ratio goes into the step. Nothing but zero has the ratio 0."""
    if a == 0:
        return requantized(ctx, times(x, 0.0), 1.0)
    return requantized(ctx, x, scale * b / a)


def indexed(ctx: OpContext, x: Value, entries: Array) -> Value:
    """Build entries[x]."""
    q = port(ov.convert(integers(x), np.int32))
    picked = port(ov.gather(ov.constant(np.ascontiguousarray(entries)), q, ov.constant(np.int32(0))))
    return dequantized(picked, ctx.z, ctx.scale)


def table(ctx: OpContext) -> Value:
    """Build table[x] by indexing: nothing that OpenVINO evaluates as a function is trusted with its entries."""
    return indexed(ctx, ctx.inputs[0], ctx.op.arrays["table"])


def dequantize(ctx: OpContext) -> Value:
    """Build (q − z)·s.

    The Round changes nothing, and no low precision pass of OpenVINO's moves integers or their factor beyond it: what
    follows computes in float32. Some would go wrong with integers: a Clamp's ends, say, are cut to integers.
    """
    x, s = ctx.inputs[0], float(ctx.op.attrs["scale"])
    return Value(port(ov.multiply(whole(x.port, x.step), scalar(s))))


def quantize(ctx: OpContext) -> Value:
    """Build clamp(R(x / s) + z, lo, hi) of a float island's result, where OpenVINO cannot be kept from multiplying with
    1/s.

    That differs where x/s is a tie or next to one. What an island computes differs in its last bits between engines
    anyway; all other floats are divided (see ``input_quantize``), or quantized by numpy before they are handed over.
    """
    s = float(ctx.out.scale or 1.0)
    least = (ctx.limits[0] - ctx.z) * s
    x = ctx.inputs[0].port
    x = replaced(x, least) if ctx.nonfinite else x
    return requantized(ctx, port(ov.maximum(x, scalar(least))), s)
