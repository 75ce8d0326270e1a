"""Convolutions and linear layers: int8 weights times M_c = a/b, bias times M_c, residual, one FakeQuantize.

Roundings: accumulator to float32, M_c stored, product, bias stored and added; then those of the FakeQuantize.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from openvino import opset14 as ov

from intact.errors import EngineError
from intact.program.certify import by_output
from intact.program.ops import Array

from .values import Port, Site, Value, constant, port, ratios, requantized, times

FLOAT32 = 1 << 24

Product = Callable[[Port, Array | None], Port]
"""x and one factor per output channel (None: 1, in float32) → Σ x·w·factor."""


def conv(site: Site) -> Value:
    """A convolution, ordinary or transposed, in one to three dimensions."""
    weight = site.op.arrays["weight"]
    return _affine(site, lambda x, scale: _convolution(site, x, scale), [1, -1, *[1] * (weight.ndim - 2)])


def linear(site: Site) -> Value:
    """A product with the last dimension."""
    weight = site.op.arrays["weight"]

    def product(x: Port, scale: Array | None) -> Port:
        return _named(site, ov.matmul(x, _weights(weight, scale, (-1, 1)), False, True))

    return _affine(site, product, [*[1] * (len(site.inputs[0].shape) - 1), -1])


def _affine(site: Site, product: Product, along: list[int]) -> Value:
    """R(M_c·(Σ (x − z_x)·w + bias) + r·(res − z_r)), in steps chosen so that the residual needs no factor."""
    op, x = site.op, site.inputs[0]
    a, b = op.multipliers()
    step = 1.0
    if len(site.inputs) == 2:
        step = site.inputs[1].steps * int(b[0]) / int(op.attrs["residual_a"])
    m = ratios(a, b) * step
    bias = op.arrays["bias"].astype(np.float64)
    below = None
    if "a_neg" in op.arrays:
        m_neg = ratios(op.arrays["a_neg"], op.arrays["b_neg"]) * step
        if (m > 0).all():
            below = m_neg / m
        else:
            return _two_sided(site, product, along, m, m_neg, step)
    if site.plain_integers:
        y = times_channels(_exact_sums(site, product, along), m, along)
    else:
        y = product(x.port, m / x.steps)
        if bias.any():
            y = port(ov.add(y, constant((bias * m).reshape(along))))
    if below is not None:
        y = _leaky(y, below, along)
    if len(site.inputs) == 2:
        y = port(ov.add(y, site.inputs[1].port))
    return requantized(site, y, step)


def _exact_sums(site: Site, product: Product, along: list[int]) -> Port:
    """Σ (x − z_x)·w + bias as float32 integers, exact below 2²⁴."""
    op, x = site.op, site.inputs[0]
    reach = max(x.zero, 255 - x.zero)
    bias = op.arrays["bias"].astype(np.int64)
    largest = int((np.abs(by_output(op)).sum(axis=1) * reach + np.abs(bias)).max())
    if largest >= FLOAT32:
        raise EngineError(
            f"OpenVINO has no int8 kernel for this {op.kind}", where=op.name,
            why=f"and in float32 its sums of up to {largest} would not be exact",
            remedy="run with another engine, or keep the layer float in the recipe",
        )  # fmt: skip
    y = product(times(x.port, 1.0 / x.steps), None)
    return port(ov.add(y, constant(bias.reshape(along)))) if bias.any() else y


def _two_sided(site: Site, product: Product, along: list[int], m: Array, m_neg: Array, step: float) -> Value:
    """Leaky where a positive multiplier is 0, so that no slope leads from it to the negative one."""
    acc = _exact_sums(site, product, along)
    zero = constant(0.0)
    above = times_channels(port(ov.maximum(acc, zero)), m, along)
    below = times_channels(port(ov.minimum(acc, zero)), m_neg, along)
    return requantized(site, port(ov.add(above, below)), step)


def _leaky(y: Port, slope: Array, along: list[int]) -> Port:
    if len(along) > 1 and along[1] == -1:
        return port(ov.prelu(y, constant(slope)))
    # OpenVINO's PRelu runs along dimension 1; elsewhere the sides are separated.
    zero = constant(0.0)
    below = times_channels(port(ov.minimum(y, zero)), slope, along)
    return port(ov.add(port(ov.maximum(y, zero)), below))


def times_channels(x: Port, factors: Array, along: list[int]) -> Port:
    """x times one factor per output channel."""
    return port(ov.multiply(x, constant(factors.reshape(along))))


def _weights(weight: Array, scale: Array | None, along: tuple[int, ...]) -> Port:
    """int8 weights times a factor per channel, in the form int8 kernels are chosen for; or plain float32 integers."""
    if scale is None:
        return constant(weight)
    # A channel that only gives zero keeps an ordinary scale: none of OpenVINO's rewrites then divides by zero.
    dead = (scale == 0).reshape(along)
    if dead.any():
        weight = np.where(dead, np.int8(0), weight)
        scale = np.where(scale == 0, 1.0, scale)
    integers = port(ov.convert(ov.constant(np.ascontiguousarray(weight)), np.float32))
    return port(ov.multiply(integers, constant(scale.reshape(along))))


def _convolution(site: Site, x: Port, scale: Array | None) -> Port:
    op = site.op
    t, weight = op.attrs, op.arrays["weight"]
    groups, spatial = int(t["groups"]), weight.ndim - 2
    ones = [1] * spatial
    kernel = weight.shape[2:]
    # (G, O/G, I/G, …) or transposed (G, I/G, O/G, …); the leading G only where there are groups.
    if t["transposed"]:
        grouped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel)
        along = (groups, 1, -1, *ones)
    else:
        grouped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel)
        along = (groups, -1, 1, *ones)
    if groups == 1:
        grouped, along = grouped[0], along[1:]
    w = _weights(grouped, scale, along)
    where = (t["stride"], t["padding"], t["padding"], t["dilation"])
    if t["transposed"]:
        make = ov.convolution_backprop_data if groups == 1 else ov.group_convolution_backprop_data
        strides, begin, end, dilations = where
        node = make(
            x, w, strides, pads_begin=begin, pads_end=end, dilations=dilations, output_padding=t["output_padding"]
        )
        return _named(site, node)
    return _named(site, (ov.convolution if groups == 1 else ov.group_convolution)(x, w, *where))


def _named(site: Site, node: object) -> Port:
    """The runtime graph calls the kernel by the op's name: ``engine`` looks there which precision it runs in."""
    node.set_friendly_name(site.op.name)  # type: ignore[attr-defined]
    return port(node)
