"""The float islands as ordinary OpenVINO operations: ``float.NAME`` → node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.resize import cubic_matrix, linear_matrix
from intact8.arithmetic.windows import pool_size, pool_windows

from . import moves, nonfinite
from .input_quantize import quotient
from .lowering import OpContext, Port, Value, constant, fusion_barrier, ints, port, scalar
from .pools import average
from .unary import unary

Attrs = Mapping[str, Any]


def island(ctx: OpContext) -> Value:
    """Return a float op, in the dtype its output declares."""
    return Value(FLOATS[ctx.op.kind.removeprefix("float.")](ctx))


def _arithmetic(make: Callable[..., Any]) -> Callable[[OpContext], Port]:
    """Both operands in the dtype of the result, as numpy and torch promote them."""

    def build(ctx: OpContext) -> Port:
        dtype = np.dtype(ctx.out.dtype)
        return port(make(*(cast(x.port, dtype) for x in ctx.inputs)))

    return build


def cast(x: Port, dtype: Any) -> Port:
    """Build x in another dtype."""
    dtype = np.dtype(dtype)
    return x if x.get_element_type().to_dtype() == dtype else port(ov.convert(x, dtype.type))


def _limit(value: float, dtype: Any) -> Any:
    """Return a limit in this dtype; an infinite one of integers is beyond all that OpenVINO takes."""
    if np.issubdtype(dtype, np.integer):
        value = int(max(np.iinfo(np.int32).min, min(np.iinfo(np.int32).max, value)))
    return np.asarray(value, dtype)


def _clamp(ctx: OpContext) -> Port:
    x, low, high = ctx.inputs[0].port, ctx.op.attrs["min"], ctx.op.attrs["max"]
    dtype, y = x.get_element_type().to_dtype(), x
    if low is not None:
        y = port(ov.maximum(y, ov.constant(_limit(low, dtype))))
    y = y if high is None else port(ov.minimum(y, ov.constant(_limit(high, dtype))))
    return nonfinite.keep_nan(x, y) if ctx.nonfinite else y


def _relu(ctx: OpContext) -> Port:
    x = ctx.inputs[0].port
    return nonfinite.keep_nan(x, port(ov.relu(x))) if ctx.nonfinite else port(ov.relu(x))


def _unary(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, cast(ctx.inputs[0].port, np.float32)
    return nonfinite.function(t, x, unary(t, x)) if ctx.nonfinite else unary(t, x)


def _softmax(make: Callable[..., Any]) -> Callable[[OpContext], Port]:
    def build(ctx: OpContext) -> Port:
        x, axis = ctx.inputs[0].port, int(ctx.op.attrs["axis"])
        return (
            nonfinite.softmax_rows(lambda rows: port(make(rows, axis)), x, axis)
            if ctx.nonfinite
            else port(make(x, axis))
        )

    return build


def _behind_barrier(ctx: OpContext, y: Port) -> Port:
    """Build y where no kernel before takes in what follows, nor the one that computes it where y is a Reduce."""
    return nonfinite.keep_nan(y, fusion_barrier(y)) if ctx.nonfinite else fusion_barrier(y)


def _extreme(make: Callable[..., Any]) -> Callable[[OpContext], Port]:
    """Return the rule of the larger or smaller of two numbers, which is NaN where either is NaN."""

    def build(ctx: OpContext) -> Port:
        pair = [cast(x.port, ctx.out.dtype) for x in ctx.inputs]
        y = port(make(*pair))
        for x in pair if ctx.nonfinite and ctx.out.dtype == "float32" else ():
            y = nonfinite.keep_nan(x, y)
        return y

    return build


def _integer_divide(ctx: OpContext) -> Port:
    """Build a quotient of integers, below 2²⁴: float32 knows on which side of a whole number they lie."""
    x, y = (cast(v.port, np.float32) for v in ctx.inputs)
    zero = port(ov.equal(y, scalar(0.0)))
    ratio = port(ov.divide(x, port(ov.select(zero, scalar(1.0), y))))
    whole = ov.floor(ratio)
    if ctx.op.attrs["rounding"] == "trunc":
        whole = ov.select(port(ov.less(ratio, scalar(0.0))), port(ov.ceiling(ratio)), port(whole))
    return cast(port(ov.select(zero, scalar(0.0), port(whole))), np.int64)


def _cumsum(ctx: OpContext) -> Port:
    x = cast(ctx.inputs[0].port, ctx.out.dtype)
    return port(ov.cum_sum(x, ov.constant(np.int64(ctx.op.attrs["axis"]))))


def _inside(ctx: OpContext, axis: int) -> Port:
    """Build the indices along an axis, those outside as the nearest inside."""
    first, last = ov.constant(np.int64(0)), ov.constant(np.int64(ctx.inputs[0].shape[axis] - 1))
    return port(ov.minimum(port(ov.maximum(ctx.inputs[1].port, first)), last))


def _gather(ctx: OpContext) -> Port:
    axis = int(ctx.op.attrs["axis"])
    return port(ov.gather_elements(ctx.inputs[0].port, _inside(ctx, axis), axis))


def _scatter(ctx: OpContext) -> Port:
    axis, reduce = int(ctx.op.attrs["axis"]), ctx.op.attrs["reduce"]
    x, _, source = (v.port for v in ctx.inputs)
    reduction = {"amax": "max", "amin": "min"}.get(reduce, reduce)

    def scattered(into: Port, values: Port, how: str) -> Port:
        return port(ov.scatter_elements_update(into, _inside(ctx, axis), values, ints(axis), how))

    if ctx.nonfinite and reduce in ("amax", "amin"):
        return nonfinite.scattered_extreme(x, source, partial(scattered, how=reduction), partial(scattered, how="max"))
    return scattered(x, source, reduction)


def _argsort(ctx: OpContext) -> Port:
    x, axis, descending = ctx.inputs[0], int(ctx.op.attrs["axis"]), ctx.op.attrs["descending"]
    y = cast(x.port, np.int64) if x.port.get_element_type().to_dtype() == np.uint8 else x.port
    if ctx.nonfinite:  # infinity counts as the largest number, so that NaN can be larger
        y = port(ov.minimum(nonfinite.replaced(y, 0.0), scalar(float(np.finfo(np.float32).max))))
        y = port(ov.select(nonfinite.is_nan(x.port), scalar(np.inf), y))
    count = ov.constant(np.int64(x.shape[axis]))
    mode = "max" if descending else "min"
    return ov.topk(y, count, axis, mode, "value", "i64", stable=True).output(1)


def _div(ctx: OpContext) -> Port:
    x, y = (cast(v.port, ctx.out.dtype) for v in ctx.inputs)
    return quotient(_behind_barrier(ctx, x), y)  # multiplied with reciprocals, small divisors would make infinity


def _cast(ctx: OpContext) -> Port:
    x = ctx.inputs[0].port
    of_float = x.get_element_type().to_dtype() == np.float32
    y = cast(nonfinite.int32_range(x) if of_float and ctx.out.dtype == "int64" else x, ctx.out.dtype)
    return port(ov.logical_or(y, nonfinite.is_nan(x))) if ctx.nonfinite and ctx.out.dtype == "bool" else y


def _affine_scalar(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, cast(ctx.inputs[0].port, np.float32)
    return cast(port(ov.add(port(ov.multiply(x, scalar(t["mul"]))), scalar(t["add"]))), ctx.out.dtype)


def _channelwise(ctx: OpContext) -> Port:
    """Build x·weight + bias along dimension 1."""
    x = ctx.inputs[0]
    return _scaled(x.port, ctx, [1, -1, *[1] * (len(x.shape) - 2)])


def _scaled(x: Port, ctx: OpContext, shape: list[int]) -> Port:
    arrays = ctx.op.arrays
    if "weight" in arrays:
        x = port(ov.multiply(x, constant(arrays["weight"].reshape(shape))))
    return port(ov.add(x, constant(arrays["bias"].reshape(shape)))) if "bias" in arrays else x


def _conv(ctx: OpContext) -> Port:
    t, arrays, x = ctx.op.attrs, ctx.op.arrays, ctx.inputs[0].port
    weight, groups = arrays["weight"], int(t["groups"])
    if groups > 1:
        weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    where = {"pads_begin": t["padding"], "pads_end": t["padding"], "dilations": t["dilation"]}
    if t["transposed"]:
        make = ov.convolution_backprop_data if groups == 1 else ov.group_convolution_backprop_data
        y = port(make(x, constant(weight), t["stride"], output_padding=t["output_padding"], **where))
    else:
        make = ov.convolution if groups == 1 else ov.group_convolution
        y = port(make(x, constant(weight), t["stride"], **where))
    if "bias" not in arrays:
        return y
    return port(ov.add(y, constant(arrays["bias"].reshape(1, -1, *[1] * len(t["stride"])))))


def _linear(ctx: OpContext) -> Port:
    arrays = ctx.op.arrays
    y = port(ov.matmul(ctx.inputs[0].port, constant(arrays["weight"]), False, True))
    return port(ov.add(y, constant(arrays["bias"]))) if "bias" in arrays else y


def _mean(ctx: OpContext) -> Port:
    t = ctx.op.attrs
    x = cast(ctx.inputs[0].port, np.float32)
    return _behind_barrier(ctx, port(ov.reduce_mean(x, ints(t["dims"]), bool(t["keepdim"]))))


def _avg_pool(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, ctx.inputs[0]
    k, s, p = t["kernel"], t["stride"], t["padding"]
    size = x.shape[-len(k) :]
    out = [pool_size(*row, 1, t["ceil_mode"]) for row in zip(size, k, s, p, strict=True)]
    y = average(x.port, k, s, p, out)
    if not t["count_include_pad"]:
        return y
    edges, divisors = pool_windows(size, k, s, p, t["ceil_mode"], True)
    inside = np.ones((), np.int64)
    for start, end in edges:
        inside = np.multiply.outer(inside, end - start)
    return port(ov.multiply(y, constant((inside / divisors)[None, None])))


def _adaptive(ctx: OpContext) -> Port:
    x, out = ctx.inputs[0], list(ctx.op.attrs["output_size"])
    return port(ov.adaptive_avg_pool(x.port, ints(out)))


def _normalized(ctx: OpContext, x: Port, axes: list[int]) -> Port:
    """Return (x − mean) / √(variance + eps) over ``axes``.

    Without the barrier, OpenVINO takes the scale of a dequantize out of x and leaves eps as it is: half a percent
    was lost where the standard deviation was 0.07. The first element is subtracted before, so that elements which are
    all equal become zero: the last bits of their mean, divided by √eps, are steps of what is quantized behind.
    """
    x, ones = _behind_barrier(ctx, x), [1] * len(axes)
    first = port(ov.slice(x, ints([0] * len(axes)), ints(ones), ints(ones), ints(axes)))
    moved = ov.subtract(x, first)
    return port(ov.mvn(moved, ints(axes), True, float(ctx.op.attrs["eps"]), "inside_sqrt"))


def _layer_norm(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, ctx.inputs[0]
    axes = list(range(len(x.shape) - len(t["shape"]), len(x.shape)))
    return _scaled(_normalized(ctx, x.port, axes), ctx, list(t["shape"]))


def _rms_norm(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, ctx.inputs[0]
    axes = ints(list(range(len(x.shape) - len(t["shape"]), len(x.shape))))
    mean = port(ov.reduce_mean(port(ov.multiply(x.port, x.port)), axes, True))
    root = port(ov.sqrt(port(ov.add(mean, scalar(t["eps"])))))
    return _scaled(port(ov.divide(x.port, root)), ctx, list(t["shape"]))


def _group_norm(ctx: OpContext) -> Port:
    x, groups = ctx.inputs[0], int(ctx.op.attrs["groups"])
    n, channels = x.shape[:2]
    grouped = port(ov.reshape(x.port, ints([n, groups, channels // groups, -1]), False))
    back = port(ov.reshape(_normalized(ctx, grouped, [2, 3]), ints(x.shape), False))
    return _scaled(back, ctx, [1, -1, *[1] * (len(x.shape) - 2)])


def _reduce(ctx: OpContext) -> Port:
    t, x = ctx.op.attrs, ctx.inputs[0]
    dims, keep = list(t["dims"]) or list(range(len(x.shape))), bool(t["keepdim"])
    if t["fn"] != "argmax":
        makes = {"sum": ov.reduce_sum, "prod": ov.reduce_prod, "amax": ov.reduce_max, "amin": ov.reduce_min}
        make = makes[t["fn"]]
        if t["fn"] in ("sum", "prod"):
            return _behind_barrier(ctx, port(make(cast(x.port, ctx.out.dtype), ints(dims), keep)))
        y = port(make(x.port, ints(dims), keep))
        worst = -np.inf if t["fn"] == "amax" else np.inf
        return nonfinite.extreme(x.port, y, ints(dims), keep, worst) if ctx.nonfinite else fusion_barrier(y)
    y, axis = x.port, dims[0]
    if not t["dims"]:
        y, axis = port(ov.reshape(y, ints([-1]), False)), 0
    index = nonfinite.first_largest(y, axis) if ctx.nonfinite else nonfinite.index_of_largest(y, axis)
    if not t["dims"]:
        return port(ov.reshape(index, ints([1] * len(x.shape) if keep else []), False))
    return index if keep else port(ov.squeeze(index, ints([axis])))


def _masked_fill(ctx: OpContext) -> Port:
    x, mask = ctx.inputs
    value = ov.constant(np.array(ctx.op.attrs["value"], ctx.out.dtype))
    return port(ov.select(cast(mask.port, np.bool_), value, x.port))


COMPARE = {
    "eq": ov.equal,
    "ne": ov.not_equal,
    "lt": ov.less,
    "le": ov.less_equal,
    "gt": ov.greater,
    "ge": ov.greater_equal,
}


def _compare(ctx: OpContext) -> Port:
    fn, x = ctx.op.attrs["fn"], cast(ctx.inputs[0].port, np.float32)
    y = port(COMPARE[fn](x, scalar(ctx.op.attrs["value"])))
    return nonfinite.compared(x, y, fn == "ne") if ctx.nonfinite else y


def _upsample(ctx: OpContext) -> Port:
    """Return one product per dimension with the matrix of that dimension's weights, the reference's own."""
    x, t = ctx.inputs[0], ctx.op.attrs
    if t["mode"].startswith("nearest"):
        return moves.MOVES["upsample"](ctx)
    if ctx.nonfinite:
        return nonfinite.resized(x.port, t["size"], t["mode"] == "bicubic", bool(t["align_corners"]))
    make = cubic_matrix if t["mode"] == "bicubic" else linear_matrix
    y, rank = x.port, len(x.shape)
    for axis, out in enumerate(t["size"], start=rank - len(t["size"])):
        matrix = constant(make(x.shape[axis], out, bool(t["align_corners"])))
        order = [*(i for i in range(rank) if i != axis), axis]
        last = port(ov.matmul(port(ov.transpose(y, ints(order))), matrix, False, True))
        y = port(ov.transpose(last, ints(np.argsort(order))))
    return y


def _slope(ctx: OpContext) -> Port:
    return port(ov.prelu(ctx.inputs[0].port, constant(ctx.op.arrays["weight"].reshape(-1))))


FLOATS: dict[str, Callable[[OpContext], Port]] = {
    "relu": _relu,
    "clamp": _clamp,
    "leaky_relu": lambda s: port(ov.prelu(s.inputs[0].port, constant([s.op.attrs["slope"]]))),
    "prelu": _slope,
    "unary": _unary,
    "affine_scalar": _affine_scalar,
    "add": _arithmetic(ov.add),
    "sub": _arithmetic(ov.subtract),
    "mul": _arithmetic(ov.multiply),
    "div": _div,
    "maximum": _extreme(ov.maximum),
    "minimum": _extreme(ov.minimum),
    "integer_divide": _integer_divide,
    "cumsum": _cumsum,
    "gather": _gather,
    "scatter": _scatter,
    "argsort": _argsort,
    "mean": _mean,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive,
    "conv": _conv,
    "linear": _linear,
    "scale_shift": _channelwise,
    "softmax": _softmax(ov.softmax),
    "log_softmax": _softmax(ov.log_softmax),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "matmul": lambda s: port(ov.matmul(s.inputs[0].port, s.inputs[1].port, False, False)),
    "reduce": _reduce,
    "embedding": lambda s: port(ov.gather(constant(s.op.arrays["weight"]), s.inputs[0].port, ints(0))),
    "masked_fill": _masked_fill,
    "compare": _compare,
    "cast": _cast,
    "upsample": _upsample,
}
"""NAME → node."""
