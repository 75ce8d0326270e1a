"""add, mul, indexed tables, dequantize, and quantize inside the network."""

from __future__ import annotations

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.integer import requantize
from intact8.opset.op import Array

from .nonfinite import replaced
from .values import LEVELS, Port, Site, Value, dequantized, integers, named, port, requantized, scalar, times


def add(site: Site) -> Value:
    """Σ a_j·(x_j − z_j)/b, in steps in which the first term needs no factor, and with tied units no other does.

    What one tensor decides, a sum with itself included, is a table: OpenVINO moves factors of one tensor about.
    """
    terms = _terms(site)
    if len(terms) < 2:
        return _of_one(site, [x for x, _ in terms])
    b = int(site.op.attrs["b"])
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
    return _spread(site, requantized(site, named(total, site.label), step))


def mul(site: Site) -> Value:
    """(x − z_x)·(w − z_w)·a/b: the product of the units and the ratio are the step. A square is a table."""
    x, w = site.inputs
    a = int(site.op.attrs["a"])
    if site.op.inputs[0] == site.op.inputs[1] or a == 0:
        return _of_one(site, [x] if a else [])
    return scaled(site, named(port(ov.multiply(x.port, w.port)), site.label), x.steps * w.steps, a, site.op.attrs["b"])


def _terms(site: Site) -> list[tuple[Value, int]]:
    """The tensors of a sum, each once, with what they are multiplied with, which is not 0."""
    terms: dict[str, tuple[Value, int]] = {}
    for name, x, a in zip(site.op.inputs, site.inputs, site.op.attrs["a"], strict=True):
        terms[name] = x, int(a) + (terms[name][1] if name in terms else 0)
    return [(x, a) for x, a in terms.values() if a]


def _of_one(site: Site, inputs: list[Value]) -> Value:
    """An ``add`` or ``mul`` of no or one tensor: the table of what the definition gives for every integer."""
    every, z, (lo, hi) = np.arange(LEVELS), site.z, site.limits
    sums = np.zeros(LEVELS, np.int64)
    if inputs:
        steps = every - inputs[0].zero
        sums = (
            steps * sum(a for _, a in _terms(site))
            if site.op.kind == "add"
            else steps * steps * int(site.op.attrs["a"])
        )
    b = np.array([int(site.op.attrs["b"])])
    entries = requantize(sums, np.array([1]), b, z, lo, hi).astype(np.uint8)
    if inputs:
        return _spread(site, indexed(site, inputs[0], entries))
    return dequantized(port(ov.constant(np.full(known(site.out.shape), entries[0]))), z, site.unit)


def _spread(site: Site, y: Value) -> Value:
    """y in the shape of the result, where what was left out was larger."""
    if tuple(y.shape) == tuple(site.out.shape):
        return y
    shape = ov.constant(np.array(site.out.shape, np.int64))
    return Value(port(ov.broadcast(y.port, shape, broadcast_spec="BIDIRECTIONAL")), y.unit, y.zero)


def scaled(site: Site, x: Port, unit: float, a: int, b: int) -> Value:
    """R(x/unit·a/b): the ratio goes into the step. Nothing but zero has the ratio 0."""
    if a == 0:
        return requantized(site, times(x, 0.0), 1.0)
    return requantized(site, x, unit * b / a)


def gathered(site: Site) -> Value:
    """The stored table, indexed."""
    return indexed(site, site.inputs[0], site.op.arrays["table"])


def indexed(site: Site, x: Value, entries: Array) -> Value:
    """entries[x]."""
    q = port(ov.convert(integers(x), np.int32))
    picked = port(ov.gather(ov.constant(np.ascontiguousarray(entries)), q, ov.constant(np.int32(0))))
    return dequantized(picked, site.z, site.unit)


def dequantize(site: Site) -> Value:
    """(q − z)·s.

    The Round changes nothing, and no low precision pass of OpenVINO's moves integers or their factor beyond it: what
    follows computes in float32. Some would go wrong with integers: a Clamp's ends, say, are cut to integers.
    """
    x, s = site.inputs[0], float(site.op.attrs["scale"])
    steps = port(ov.round(times(x.port, 1.0 / x.steps), "half_to_even"))
    return Value(port(ov.multiply(steps, scalar(s))))


def quantize(site: Site) -> Value:
    """clamp(R(x / s) + z, lo, hi) of a float island's result, where OpenVINO cannot be kept from multiplying with 1/s.

    That differs where x/s is a tie or next to one. What an island computes differs in its last bits between engines
    anyway; all other floats are divided (see ``division``), or quantized by numpy before they are handed over.
    """
    s = float(site.out.scale or 1.0)
    least = (site.limits[0] - site.z) * s
    x = site.inputs[0].port
    x = replaced(x, least) if site.special else x
    return requantized(site, port(ov.maximum(x, scalar(least))), s)
