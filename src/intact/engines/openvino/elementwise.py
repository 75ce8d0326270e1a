"""add, mul, indexed tables, dequantize, and quantize inside the network."""

from __future__ import annotations

import numpy as np
from openvino import opset14 as ov

from .values import Port, Site, Value, dequantized, port, requantized, scalar, times


def add(site: Site) -> Value:
    """Σ a_j·(x_j − z_j)/b, in steps in which the first term needs no factor, and with tied units no other does."""
    a, b = [int(v) for v in site.op.attrs["a"]], int(site.op.attrs["b"])
    step = site.inputs[0].steps * b / abs(a[0]) if a[0] else 1.0
    total: Port | None = None
    for x, numerator in zip(site.inputs, a, strict=True):
        factor = numerator * step / (b * x.steps)
        if abs(abs(factor) - 1.0) < 1e-12:
            factor = float(np.sign(factor))
        if total is None:
            total = times(x.port, factor)
        elif factor < 0:
            total = port(ov.subtract(total, times(x.port, -factor)))
        else:
            total = port(ov.add(total, times(x.port, factor)))
    return requantized(site, total, step)


def mul(site: Site) -> Value:
    """(x − z_x)·(w − z_w)·a/b: the product of the units and the ratio are the step."""
    x, w = site.inputs
    return scaled(
        site, port(ov.multiply(x.port, w.port)), x.steps * w.steps, int(site.op.attrs["a"]), site.op.attrs["b"]
    )


def scaled(site: Site, x: Port, unit: float, a: int, b: int) -> Value:
    """R(x/unit·a/b): the ratio goes into the step. Nothing but zero has the ratio 0."""
    if a == 0:
        return requantized(site, times(x, 0.0), 1.0)
    return requantized(site, x, unit * b / a)


def gathered(site: Site) -> Value:
    """The stored table, indexed."""
    x, entries = site.inputs[0], site.op.arrays["table"]
    q = port(ov.convert(port(ov.round(integers(x), "half_to_even")), np.int32))
    picked = port(ov.gather(ov.constant(np.ascontiguousarray(entries)), q, ov.constant(np.int32(0))))
    return dequantized(picked, site.z, site.unit)


def integers(x: Value) -> Port:
    """The integers q of a quantized tensor, as float32."""
    y = times(x.port, 1.0 / x.steps)
    return port(ov.add(y, scalar(x.zero))) if x.zero else y


def dequantize(site: Site) -> Value:
    """(q − z)·s."""
    x, s = site.inputs[0], float(site.op.attrs["scale"])
    return Value(port(ov.multiply(x.port, scalar(s / x.steps))))


def quantize(site: Site) -> Value:
    """clamp(R(x / s) + z, lo, hi) of a float island's result.

    OpenVINO turns every division into a multiplication with 1/s, which differs where x/s is a tie or next to one.
    What an island computes is outside the promise, and differs in its last bits between engines anyway; all other
    floats are divided (see ``division``), or quantized by numpy before they are handed over.
    """
    s = float(site.out.scale or 1.0)
    least = port(ov.maximum(site.inputs[0].port, scalar((site.limits[0] - site.z) * s)))
    return requantized(site, least, s)


__all__ = ["add", "dequantize", "gathered", "integers", "mul", "quantize", "scaled"]
