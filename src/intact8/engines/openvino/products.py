"""Convolutions and linear layers: int8 weights times M_c = a/b, bias times M_c, residual, one FakeQuantize.

Roundings: accumulator to float32, M_c stored, product, bias stored and added; then those of the FakeQuantize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.windows import sees_padding_only
from intact8.engines.strided_pointwise import overruns
from intact8.opset.affine import magnitudes, row_sums
from intact8.opset.op import Array, Op, Tensor

from .elementwise import scaled
from .execution_graph import SUM
from .lowering import OpContext, Port, Value, constant, ints, named, port, ratios, requantized, shaped, unscaled, whole
from .moves import cut

FLOAT32 = 1 << 24

ROWS = 3
"""Dimensions of a linear layer's input that OpenVINO leaves to the kernels of single products."""

Product = Callable[[Port, Array, Array | None], Port]
"""x, int8 weights, and one factor per output channel (None: 1, in float32) → Σ x·w·factor."""


def conv(ctx: OpContext) -> Value:
    """Return a convolution, ordinary or transposed, in one to three dimensions."""
    rank = ctx.op.arrays["weight"].ndim
    return _affine(ctx, lambda x, w, scale: _convolution(ctx, x, w, scale), [1, -1, *[1] * (rank - 2)])


def linear(ctx: OpContext) -> Value:
    """Return a product with the last dimension, in three dimensions or more.

    OpenVINO (2026.4) runs sequences of products with matrices in a kernel of its own, whose integers are wrong behind a
    softmax. It gives the result of a product with a vector a dimension too many, or cannot compile what reads it.
    """
    rank = len(ctx.inputs[0].shape)
    if rank < ROWS:
        wide = tuple(
            replace(v, port=port(ov.reshape(v.port, ints([1] * (ROWS - rank) + v.shape), False))) for v in ctx.inputs
        )
        y = linear(replace(ctx, inputs=wide))
        return replace(y, port=shaped(y.port, ctx.out.shape))

    def product(x: Port, weight: Array, scale: Array | None) -> Port:
        return _named(ctx, ov.matmul(x, _weights(weight, scale, (-1, 1)), False, True))

    return _affine(ctx, product, [*[1] * (len(ctx.inputs[0].shape) - 1), -1])


def matmul(ctx: OpContext) -> Value:
    """Return a product of two activations: sums of as many terms as float32 counts, added as integers.

    OpenVINO's int8 kernels add products of uint8 integers and take off in float32 what the zero points make of the sum.
    Where they are not to be used, the integers stand behind a Round, which nothing passes.
    """
    x, w = ctx.inputs
    a, b, terms = int(ctx.op.attrs["a"]), int(ctx.op.attrs["b"]), x.shape[-1]
    longest, factors, scale = (FLOAT32 - 1) // (255 * 255), (x.port, w.port), x.step * w.step
    if ctx.float_product:
        longest = (FLOAT32 - 1) // (max(x.zero_point, 255 - x.zero_point) * max(w.zero_point, 255 - w.zero_point))
        factors, scale = (whole(x.port, x.step), whole(w.port, w.step)), 1.0
    sums = []
    for start in range(0, terms, longest):
        end = min(start + longest, terms)
        left, right = factors
        if end - start < terms:
            left = cut(left, len(x.shape) - 1, start, end)
            right = cut(right, len(w.shape) - 2, start, end)
        sums.append(_named(ctx, ov.matmul(left, right, False, False)))
    if len(sums) > 1:
        return scaled(replace(ctx, rounded=True), _int32_sum(sums), scale, a, b)
    exact = named(whole(sums[0]), ctx.label + SUM) if ctx.float_product else sums[0]
    return scaled(ctx, exact, scale, a, b)


def _int32_sum(terms: list[Port], bias: Array | None = None) -> Port:
    """Return the sum of integers in float32, and of int32 constants, rounded to float32 once."""
    total = None if bias is None else port(ov.constant(bias))
    for term in terms:
        integer = port(ov.convert(term, np.int32))
        total = integer if total is None else port(ov.add(total, integer))
    return port(ov.convert(total, np.float32))


def misread(op: Op, x: Tensor) -> bool:
    """Return whether OpenVINO's int8 kernels are known to fail for this convolution (2026.4, AVX512).

    They give wrong integers where some windows see nothing but padding, and in three dimensions where the input is
    smaller than the window. Leaky ones of several outputs per input channel cannot be compiled if there are few windows
    ("bad combination"), or end the process.
    """
    t, kernel = op.attrs, op.arrays["weight"].shape[2:]
    outputs, inputs = op.arrays["weight"].shape[:2]
    if "a_neg" in op.arrays and inputs == 1 and outputs > t["groups"] > 1 and not t["transposed"]:
        return True
    if t["transposed"]:
        return any(extra > p for extra, p in zip(t["output_padding"], t["padding"], strict=True))
    sizes = zip(known(x.shape[2:]), kernel, t["stride"], t["padding"], t["dilation"], strict=True)
    for size, k, stride, pad, dilation in sizes:
        if sees_padding_only(size or 0, k, stride, pad, dilation):
            return True
        if len(kernel) == 3 and (size or 0) < (k - 1) * dilation + 1:
            return True
    return False


def fails_in(op: Op, kernel: str) -> bool:
    """Return whether this int8 kernel is known to give wrong integers for the operation (OpenVINO 2026.4).

    In one to three dimensions, the older of two AVX512 kernels of depthwise convolutions is wrong in some places of
    every channel where the negative slopes of a leaky one are part of it and there are blocks of 16 channels. Where the
    window, the strides or the size rule out the newer one (``brgconv_avx512_dw``), it is what runs.
    """
    leaky = "a_neg" in op.arrays and op.kind == "conv" and op.arrays["weight"].shape[1] == 1
    return leaky and int(op.attrs["groups"]) > 1 and kernel.startswith("jit_avx512")


def _affine(ctx: OpContext, product: Product, along: list[int]) -> Value:
    """Build R(M_c·(Σ (x − z_x)·w + bias) + r·(res − z_r)), in steps chosen so that the residual needs no factor."""
    op, x = ctx.op, ctx.inputs[0]
    a, b = op.multipliers()
    step = 1.0
    if len(ctx.inputs) == 2:
        step = ctx.inputs[1].step * int(b[0]) / int(op.attrs["residual_a"])
    m = ratios(a, b) * step
    bias = op.arrays["bias"].astype(np.float64)
    below = None
    if "a_neg" in op.arrays:
        m_neg = ratios(op.arrays["a_neg"], op.arrays["b_neg"]) * step
        if (m > 0).all():
            below = m_neg / m
        else:
            return _two_sided(ctx, product, along, m, m_neg, step)
    stored = 255 * _heaviest(op) + int(np.abs(bias).max(initial=0))
    if ctx.float_product:
        y = times_channels(_exact_sums(ctx, product, along), m, along)
    elif op.kind == "linear" and x.zero_point and x.step == 1.0 and stored >= FLOAT32:
        y = times_channels(_split_sums(ctx, along), m, along)
        ctx = replace(ctx, rounded=True)
    else:
        y = product(x.port, op.arrays["weight"], m / x.step)
        if bias.any():
            y = port(ov.add(y, constant((bias * m).reshape(along))))
        elif len(ctx.inputs) == 1:
            # Without an Add, OpenVINO puts M_c and, of a linear layer, z_x·Σw into the ends of the FakeQuantize, where
            # large numbers cancel: a Round between keeps them out.
            ctx = replace(ctx, rounded=True)
    if below is not None:
        y = _leaky(y, below, along)
    if len(ctx.inputs) == 2:
        y = port(ov.add(y, ctx.inputs[1].port))
    return requantized(ctx, y, step)


def _exact_sums(ctx: OpContext, product: Product, along: list[int]) -> Port:
    """Build Σ (x − z_x)·w + bias, rounded to float32 once: as many products as make each of them exact, below 2²⁴, and
    their sum in int32."""
    op, x = ctx.op, ctx.inputs[0]
    weight, bias = op.arrays["weight"], op.arrays["bias"].astype(np.int64)
    reach = max(x.zero_point, 255 - x.zero_point)
    centered = unscaled(x)
    if _heaviest(op) * reach + int(np.abs(bias).max(initial=0)) < FLOAT32:
        y = product(centered, weight, None)
        y = port(ov.add(y, constant(bias.reshape(along)))) if bias.any() else y
        return named(whole(y), ctx.label + SUM)
    shares = _split(op, reach)
    if shares is None:
        sums = [product(centered, w, None) for w in _dealt(op, reach)]
    else:
        axis = len(x.shape) - 1 if op.kind == "linear" else 1
        sums = [product(part, w, None) for part, w in _parts(centered, axis, shares, _inputs_axis(op))]
    return _int32_sum(sums, bias.reshape(along).astype(np.int32))


def _inputs_axis(op: Op) -> int:
    """Return the dimension of the weight that runs over input channels."""
    return 0 if op.attrs.get("transposed") else 1


def _split(op: Op, reach: int) -> list[Array] | None:
    """Return the weight in parts of as many input channels as keep every sum of ``reach`` times them below 2²⁴.

    None where groups have inputs of their own, or a single channel is too heavy.
    """
    weight, axis = op.arrays["weight"], _inputs_axis(op)
    if op.attrs.get("groups", 1) != 1:
        return None
    parts = 1 + _heaviest(op) * reach // FLOAT32
    while parts <= weight.shape[axis]:
        shares = np.array_split(weight, parts, axis)
        if _exact(op, shares, reach):
            return shares
        parts += 1 + parts // 8
    return None


def _parts(x: Port, axis: int, shares: list[Array], along: int) -> Iterator[tuple[Port, Array]]:
    """Yield the parts of an input that meet the parts of a weight, and these."""
    start = 0
    for w in shares:
        end = start + w.shape[along]
        yield cut(x, axis, start, end) if len(shares) > 1 else x, w
        start = end


def _dealt(op: Op, reach: int) -> list[Array]:
    """Return weights with zeros in place of most elements, which are dealt in turn: the sums of each stay below 2²⁴."""
    parts = 1 + _heaviest(op) * reach // FLOAT32
    while True:
        dealt = [_every(op.arrays["weight"], parts, i) for i in range(parts)]
        if _exact(op, dealt, reach):
            return dealt
        parts += 1


def _exact(op: Op, weights: list[Array], reach: int) -> bool:
    """Return whether float32 holds every sum of ``reach`` times each of these weights."""
    return max(_heaviest(replace(op, arrays={**op.arrays, "weight": w})) for w in weights) * reach < FLOAT32


def _heaviest(op: Op) -> int:
    """Return the largest Σ|w| of an output."""
    return int(row_sums(magnitudes(op)).max())


def _every(weight: Array, parts: int, i: int) -> Array:
    """Return the elements i, i + parts, i + 2·parts … of a weight, with zeros in place of the others."""
    dealt = np.zeros_like(weight)
    dealt.flat[i::parts] = weight.flat[i::parts]
    return dealt


def _split_sums(ctx: OpContext, along: list[int]) -> Port:
    """Build Σ (x − z_x)·w + bias of a linear layer, rounded to float32 once, in int8 kernels for a part of the inputs
    each.

    They add products of uint8 integers, and take off in float32 what the zero point makes of the sum: in every part
    both stay below 2²⁴.
    """
    x = ctx.inputs[0]
    shares = _split(ctx.op, 255)
    assert shares is not None  # a weight times an integer is far below 2²⁴
    sums = [
        _named(ctx, ov.matmul(part, _weights(w, np.ones(len(w)), (-1, 1)), False, True))
        for part, w in _parts(x.port, len(x.shape) - 1, shares, 1)
    ]
    return _int32_sum(sums, ctx.op.arrays["bias"].reshape(along).astype(np.int32))


def _two_sided(ctx: OpContext, product: Product, along: list[int], m: Array, m_neg: Array, step: float) -> Value:
    """Return the leaky where a positive multiplier is 0, so that no slope leads from it to the negative one."""
    acc = _exact_sums(ctx, product, along)
    zero = constant(0.0)
    above = times_channels(port(ov.maximum(acc, zero)), m, along)
    below = times_channels(port(ov.minimum(acc, zero)), m_neg, along)
    return requantized(ctx, port(ov.add(above, below)), step)


def _leaky(y: Port, slope: Array, along: list[int]) -> Port:
    if len(along) > 1 and along[1] == -1:
        return port(ov.prelu(y, constant(slope)))
    # OpenVINO's PRelu runs along dimension 1; elsewhere the sides are separated.
    zero = constant(0.0)
    below = times_channels(port(ov.minimum(y, zero)), slope, along)
    return port(ov.add(port(ov.maximum(y, zero)), below))


def times_channels(x: Port, factors: Array, along: list[int]) -> Port:
    """Build x times one factor per output channel."""
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
    # Not copied: the compiled model holds on to the constants it packed its weights from.
    shared = ov.constant(np.ascontiguousarray(weight), shared_memory=True)
    integers = port(ov.convert(shared, np.float32))
    return port(ov.multiply(integers, constant(scale.reshape(along))))


def _convolution(ctx: OpContext, x: Port, weight: Array, scale: Array | None) -> Port:
    t = ctx.op.attrs
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
    strides, pads, dilations = list(t["stride"]), list(t["padding"]), list(t["dilation"])
    if t["transposed"]:
        make = ov.convolution_backprop_data if groups == 1 else ov.group_convolution_backprop_data
        extra = list(t["output_padding"])
        node = make(x, w, strides, pads_begin=pads, pads_end=pads, dilations=dilations, output_padding=extra)
        return _named(ctx, node)
    sizes = zip(x.get_shape()[2:], kernel, strides, pads, dilations, strict=True)
    if any(sees_padding_only(int(n), k, s, p, d) for n, k, s, p, d in sizes):
        # OpenVINO (2026.4) loses the stride of such a pointwise convolution, and would fuse a Pad into it.
        x, pads = _surrounded(x, pads), [0] * spatial
    if overruns(kernel, strides, weight.shape[1]) and not any(pads):
        axes = range(2, 2 + spatial)
        x = port(ov.slice(x, ints([0] * spatial), ints(list(x.get_shape())[2:]), ints(strides), ints(list(axes))))
        strides = ones
    after = list(pads)
    if ctx.out.shape[-1] == 1 and strides[-1] > 1:
        # OpenVINO's kernels of one column (2026.4, AVX512) go wrong in rows after the first if they also stride along
        # it. The stride does not matter, once nothing lies behind the only window.
        x, after[-1] = _one_window(x, (kernel[-1] - 1) * dilations[-1] + 1 - pads[-1])
        strides[-1] = 1
    if groups > 1:
        return _named(ctx, ov.group_convolution(x, w, strides, pads, after, dilations))
    return _named(ctx, ov.convolution(x, w, strides, pads, after, dilations))


def _surrounded(x: Port, pads: list[int]) -> Port:
    """Build x with zeros (which stand for z_x) around its spatial dimensions."""
    for axis, pad in enumerate(pads, start=2):
        if pad:
            shape = [int(d) for d in x.get_shape()]
            shape[axis] = pad
            zeros = constant(np.zeros(shape))
            x = port(ov.concat([zeros, x, zeros], axis))
    return x


def _one_window(x: Port, end: int) -> tuple[Port, int]:
    """Build x cut behind column ``end``, and the padding missing up to it."""
    axis, width = len(x.get_shape()) - 1, int(x.get_shape()[-1])
    if end >= width:
        return x, end - width
    return cut(x, axis, 0, end), 0


def _named(ctx: OpContext, node: object) -> Port:
    """Return the runtime graph tells by these names which kernels run."""
    node.set_friendly_name(ctx.label)  # type: ignore[attr-defined]
    return port(node)
