"""Float islands as ordinary ONNX float operators."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from intact8.arithmetic.windows import Edges, adaptive_windows, pool_windows, window_matrix
from intact8.errors import EngineError
from intact8.opset.op import Array, Op, Tensor

from .onnx_builder import Builder, Rule, spatial_size
from .onnx_pools import along_axes
from .onnx_recurrent import float_layer
from .onnx_unary import FUNCTIONS

UP: dict[str, Any] = {"detect_negative": 0}
DOWN: dict[str, Any] = {"detect_positive": 0}
"""Attributes of IsInf that choose one infinity."""


def _as_float(b: Builder, name: str, meta: Tensor) -> str:
    return name if meta.dtype == "float32" else b.cast(name, "float32")


MOST_FACTORS = 64
"""Integers that a product takes one by one."""


def _working(inputs: list[Tensor], y: Tensor) -> str:
    """Return the dtype of the arithmetic: int64 where every input and the output are integers."""
    return "int64" if y.dtype == "int64" and all(t.dtype != "float32" for t in inputs) else "float32"


def _common(b: Builder, x: list[str], inputs: list[Tensor], dtype: str) -> list[str]:
    return [n if t.dtype == dtype else b.cast(n, dtype) for n, t in zip(x, inputs, strict=True)]


def _binary(kind: str) -> Rule:
    def rule(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
        dtype = "float32" if kind == "Div" else _working(inputs, y)
        value = b.node(kind, _common(b, x, inputs, dtype))
        return value if dtype == y.dtype else b.cast(value, y.dtype)

    return rule


def _integer_divide(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the quotient of integers: Div rounds towards 0, and may divide neither by 0 nor the least number by −1."""
    zero, one, minus = (b.constant(np.int64(n), "number") for n in (0, 1, -1))
    by_zero, by_minus = (b.node("Equal", [x[1], n]) for n in (zero, minus))
    divisor = b.node("Where", [b.node("Or", [by_zero, by_minus]), one, x[1]])
    quotient = b.node("Div", [x[0], divisor])
    if op.attrs["rounding"] == "floor":
        left = b.node("Sub", [x[0], b.node("Mul", [quotient, divisor])])
        other_sign = b.node("Xor", [b.node("Less", [left, zero]), b.node("Less", [divisor, zero])])
        down = b.node("And", [b.node("Not", [b.node("Equal", [left, zero])]), other_sign])
        quotient = b.node("Where", [down, b.node("Sub", [quotient, one]), quotient])
    quotient = b.node("Where", [by_minus, b.node("Sub", [zero, x[0]]), quotient])
    return b.node("Where", [by_zero, zero, quotient])


FLOAT64_INTEGERS = 1 << 53
"""Integers below it are exact in float64, in which integers are compared with smaller numbers, whole or not."""


def _one(kind: str) -> Rule:
    return lambda b, op, x, inputs, y: b.node(kind, [_as_float(b, x[0], inputs[0])])


def _clamp(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    dtype = _working(inputs, y)
    (value,) = _common(b, x, inputs, dtype)
    for bounded, limit in ((b.largest, op.attrs["min"]), (b.smallest, op.attrs["max"])):
        if limit is not None and not (dtype == "int64" and not np.isfinite(limit)):
            value = bounded([value, b.constant(np.array(limit, dtype), "limit")], dtype)
    return value


def _leaky_relu(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("LeakyRelu", x, alpha=float(op.attrs["slope"]))


def _prelu(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("PRelu", [x[0], _channels(b, op.arrays["weight"], len(y.shape))])


def _channels(b: Builder, values: Array, rank: int) -> str:
    """Return a constant of (C,) values, or of one, that broadcasts along dimension 1."""
    shape = [-1, *[1] * (rank - 2)] if values.size > 1 else [1] * max(rank, 1)
    return b.constant(np.asarray(values, np.float32).reshape(shape), "channels")


def _unary(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    value = FUNCTIONS[op.attrs["fn"]](b, op.attrs, _as_float(b, x[0], inputs[0]))
    if op.attrs["fn"] in ("softshrink", "hardshrink", "threshold", "sign") and x[0] in b.special:
        # The first three lose NaN; Sign keeps it, and torch's does not.
        other = b.float(0.0, "nothing") if op.attrs["fn"] == "sign" else x[0]
        value = b.node("Where", [b.node("IsNaN", [x[0]]), other, value])
    return value


def _affine_scalar(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    mul, add = op.attrs["mul"], op.attrs["add"]
    whole = float(mul).is_integer() and float(add).is_integer()
    dtype = _working(inputs, y) if whole else "float32" if y.dtype == "float32" else "float64"
    (value,) = _common(b, x, inputs, dtype)
    value = b.node("Mul", [value, b.constant(np.array(mul, dtype), "mul")])
    value = b.node("Add", [value, b.constant(np.array(add, dtype), "add")])
    return value if dtype == y.dtype else b.cast(value, y.dtype)


def _mean(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    value = _as_float(b, x[0], inputs[0])
    return b.node("ReduceMean", [value], axes=op.attrs["dims"], keepdims=int(op.attrs["keepdim"]))


def _averages(b: Builder, x: str, meta: Tensor, edges: Edges, divisors: Array) -> str:
    """Return the means by matrices of ones and zeros; NaN and infinity, which 0 does not remove, are counted
    separately."""
    size = spatial_size(meta)
    matrices = [window_matrix(start, end, n) for (start, end), n in zip(edges, size, strict=True)]

    def sums(value: str) -> str:
        return along_axes(b, value, matrices, len(meta.shape))

    if x not in b.special:
        return b.node("Div", [sums(x), b.float(divisors, "divisors")])
    nan, infinity = b.node("IsNaN", [x]), b.float(np.inf, "infinity")
    wild = b.node("Or", [nan, b.node("IsInf", [x])])
    y = b.node("Div", [sums(b.node("Where", [wild, b.float(0.0, "nothing"), x])), b.float(divisors, "divisors")])
    up, down = (b.positive(sums(b.cast(b.node("IsInf", [x], **side), "float32"))) for side in (UP, DOWN))
    y = b.node("Where", [up, infinity, b.node("Where", [down, b.node("Neg", [infinity]), y])])
    lost = b.node("Or", [b.positive(sums(b.cast(nan, "float32"))), b.node("And", [up, down])])
    return b.nan_where(lost, y)


def _avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t, meta = op.attrs, inputs[0]
    if not t["ceil_mode"]:
        where = {"kernel_shape": t["kernel"], "strides": t["stride"], "pads": t["padding"] * 2}
        return b.node("AveragePool", x, count_include_pad=int(t["count_include_pad"]), **where)
    size = spatial_size(meta)
    windows = pool_windows(size, t["kernel"], t["stride"], t["padding"], True, t["count_include_pad"])
    return _averages(b, x[0], meta, *windows)


def _adaptive_avg_pool(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    size = spatial_size(inputs[0])
    return _averages(b, x[0], inputs[0], *adaptive_windows(size, op.attrs["output_size"]))


def _conv(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t, p = op.attrs, op.arrays
    args = [x[0], *(b.constant(p[role], role) for role in ("weight", "bias") if role in p)]
    attrs: dict[str, Any] = {"strides": t["stride"], "dilations": t["dilation"], "group": t["groups"]}
    attrs |= {"pads": t["padding"] * 2, "kernel_shape": list(p["weight"].shape[2:])}
    if not t["transposed"]:
        return b.node("Conv", args, **attrs)
    return b.node("ConvTranspose", args, output_padding=t["output_padding"], **attrs)


def _linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    value = b.node("MatMul", [x[0], b.constant(np.ascontiguousarray(op.arrays["weight"].T), "weight")])
    return b.add_bias(op, value)


def _scale_shift(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    value, rank = x[0], len(y.shape)
    for kind, role in (("Mul", "weight"), ("Add", "bias")):
        if role in op.arrays:
            value = b.node(kind, [value, _channels(b, op.arrays[role], rank)])
    return value


def _softmax(kind: str) -> Rule:
    return lambda b, op, x, inputs, y: b.node(kind, x, axis=op.attrs["axis"])


def _layer_norm(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    shape, p = op.attrs["shape"], op.arrays
    weight = b.constant(p.get("weight", np.ones(shape, np.float32)), "weight")
    bias = b.constant(p.get("bias", np.zeros(shape, np.float32)), "bias")
    return b.node("LayerNormalization", [x[0], weight, bias], axis=-len(shape), epsilon=float(op.attrs["eps"]))


def _rms_norm(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    rank, shape = len(y.shape), op.attrs["shape"]
    axes = list(range(rank - len(shape), rank))
    mean = b.node("ReduceMean", [b.node("Mul", [x[0], x[0]])], axes=axes, keepdims=1)
    root = b.node("Sqrt", [b.node("Add", [mean, b.float(op.attrs["eps"], "eps")])])
    value = b.node("Div", [x[0], root])
    return b.node("Mul", [value, b.constant(op.arrays["weight"], "weight")]) if "weight" in op.arrays else value


def _group_norm(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Normalise by InstanceNormalization, without the first element of every group.

    So elements that are all equal become zero: the last bits of their mean, divided by √eps, are steps of what is
    quantized behind.
    """
    groups = op.attrs["groups"]
    grouped = b.node("Reshape", [x[0], b.ints([0, groups, -1], "groups")])
    grouped = b.node("Sub", [grouped, b.node("Gather", [grouped, b.ints([0], "first")], axis=2)])
    one, zero = b.constant(np.ones(groups, np.float32), "one"), b.constant(np.zeros(groups, np.float32), "zero")
    normal = b.node("InstanceNormalization", [grouped, one, zero], epsilon=float(op.attrs["eps"]))
    return _scale_shift(b, op, [b.shaped(normal, y.shape)], inputs, y)


def _matmul(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("MatMul", _common(b, x, inputs, "float32"))


def _argmax(b: Builder, guarded: bool, x: str, axis: int, keep: int) -> str:
    """Return the index of the first largest element, or of the first NaN, which ONNX Runtime's ArgMax ignores."""
    y = b.node("ArgMax", [x], axis=axis, keepdims=keep)
    if not guarded:
        return y
    nan = b.cast(b.node("IsNaN", [x]), "float32")
    found = b.positive(b.node("ReduceMax", [nan], axes=[axis], keepdims=keep))
    return b.node("Where", [found, b.node("ArgMax", [nan], axis=axis, keepdims=keep), y])


def _reduce_exactly(b: Builder, op: Op, value: str, meta: Tensor, dims: list[int]) -> str:
    """Return the reduction of int64 in integers.

    ONNX Runtime (1.31) adds and multiplies them in float64, and its largest of numbers from 2³¹ on may not be that.
    """
    fn = op.attrs["fn"]
    for axis in dims:
        if fn == "sum":  # the last of the partial sums
            partial = b.node("CumSum", [value, b.constant(np.int64(axis), "axis")])
            value = b.node("Gather", [partial, b.ints([-1], "last")], axis=axis)
        elif fn == "prod":
            size = meta.shape[axis]
            if not isinstance(size, int) or size > MOST_FACTORS:
                what, why = "a product of many int64 has no form", "ONNX Runtime multiplies them in float64"
                raise EngineError(what, where=op.name, why=why, remedy="use engine='native'")
            each = [b.node("Gather", [value, b.ints([i], "place")], axis=axis) for i in range(size)]
            value = reduce(lambda u, v: b.node("Mul", [u, v]), each)
        else:
            place = b.node("ArgMax" if fn == "amax" else "ArgMin", [value], axis=axis, keepdims=1)
            value = b.node("GatherElements", [value, place], axis=axis)
    return value if op.attrs["keepdim"] else b.node("Squeeze", [value, b.ints(dims, "dims")])


def _reduce(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t, meta = op.attrs, inputs[0]
    rank, keep = len(meta.shape), int(t["keepdim"])
    dims = t["dims"] or list(range(rank))
    if t["fn"] == "argmax":
        value = _as_float(b, x[0], meta) if meta.dtype == "bool" else x[0]
        if t["dims"]:
            return _argmax(b, x[0] in b.special, value, dims[0], keep)
        flat = b.node("Reshape", [value, b.ints([-1], "flat")])
        return b.shaped(_argmax(b, x[0] in b.special, flat, 0, 0), y.shape)
    dtype = _working(inputs, y)
    (value,) = _common(b, x, inputs, dtype)
    if dtype == "int64" and not (b.is_small(x[0]) and b.is_small(op.name)):
        return _reduce_exactly(b, op, value, meta, dims)
    if t["fn"] == "sum":
        value = b.node("ReduceSum", [value, b.ints(dims, "dims")], keepdims=keep)
    elif t["fn"] == "prod":
        value = b.node("ReduceProd", [value], axes=dims, keepdims=keep)
    else:
        extreme = b.node({"amax": "ReduceMax", "amin": "ReduceMin"}[t["fn"]], [value], axes=dims, keepdims=keep)
        if x[0] in b.special:
            nan = b.node("ReduceMax", [b.cast(b.node("IsNaN", [value]), "float32")], axes=dims, keepdims=keep)
            extreme = b.nan_where(b.positive(nan), extreme)
        value = extreme
    return value if dtype == y.dtype else b.cast(value, y.dtype)


def _extreme(kind: str) -> Rule:
    """Return the rule of the larger or smaller of two numbers, which is NaN where either is NaN."""

    def rule(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
        dtype = _working(inputs, y)
        pair = _common(b, x, inputs, dtype)
        value = (b.largest if kind == "maximum" else b.smallest)(pair, dtype)
        for name, given in zip(x, pair, strict=True):
            value = b.nan_where(b.node("IsNaN", [given]), value) if name in b.special else value
        return value

    return rule


def _cumsum(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    axis = b.constant(np.int64(op.attrs["axis"]), "axis")
    return b.node("CumSum", [*_common(b, x, inputs, y.dtype), axis])


def _length(b: Builder, x: str, meta: Tensor, axis: int) -> str:
    """Return the size of a dimension, as a constant where it is known."""
    size = meta.shape[axis]
    if isinstance(size, int):
        return b.constant(np.int64(size), "length")
    return b.node("Gather", [b.node("Shape", [x]), b.constant(np.int64(axis), "axis")], axis=0)


def _inside(b: Builder, op: Op, x: list[str], inputs: list[Tensor]) -> str:
    """Return the indices, those outside as the nearest inside."""
    last = b.node("Sub", [_length(b, x[0], inputs[0], op.attrs["axis"]), b.constant(np.int64(1), "one")])
    return b.smallest([b.largest([x[1], b.constant(np.int64(0), "zero")], "int64"), last], "int64")


def _gather(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("GatherElements", [x[0], _inside(b, op, x, inputs)], axis=op.attrs["axis"])


def _scatter(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    reduction = {"none": "none", "sum": "add", "prod": "mul"}.get(op.attrs["reduce"])
    if reduction is None:
        why = "ONNX has it from opset 18 on, and files are written in opset 17"
        raise EngineError("a scatter of extremes has no form", where=op.name, why=why, remedy="use engine='onednn'")
    return b.node(
        "ScatterElements", [x[0], _inside(b, op, x, inputs), x[2]], axis=op.attrs["axis"], reduction=reduction
    )


def _argsort(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the second output of TopK, which takes the element of the lower index first among equal ones."""
    axis, descending, value = op.attrs["axis"], op.attrs["descending"], x[0]
    if inputs[0].dtype == "uint8":
        value = b.cast(value, "int64")
    if x[0] in b.special:  # infinity counts as the largest number, so that NaN can be larger
        infinity, most = b.float(np.inf, "infinity"), b.float(float(np.finfo(np.float32).max), "most")
        value = b.node("Where", [b.node("Equal", [value, infinity]), most, value])
        value = b.node("Where", [b.node("IsNaN", [x[0]]), infinity, value])
    count = b.node("Reshape", [_length(b, x[0], inputs[0], axis), b.ints([1], "one")])
    return b.second("TopK", [value, count], axis=axis, largest=int(descending), sorted=1)


def _embedding(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Gather", [b.constant(op.arrays["weight"], "weight"), b.index(op, x[0])], axis=0)


def _masked_fill(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Where", [x[1], b.constant(np.array(op.attrs["value"], y.dtype), "value"), x[0]])


def _compare(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    kinds = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
    dtype, number = "float32" if inputs[0].dtype == "float32" else "float64", op.attrs["value"]
    if dtype == "float64" and isinstance(number, int) and FLOAT64_INTEGERS <= abs(number) < 1 << 63:
        dtype = "int64"
    (value,) = _common(b, x, inputs, dtype)
    result = b.node(kinds[op.attrs["fn"]], [value, b.constant(np.array(number, dtype), "value")])
    return b.node("Not", [result]) if op.attrs["fn"] == "ne" else result


def _cast(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.cast(x[0], y.dtype)


RULES: dict[str, Rule] = {
    "relu": _one("Relu"),
    "clamp": _clamp,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "unary": _unary,
    "affine_scalar": _affine_scalar,
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "mul": _binary("Mul"),
    "div": _binary("Div"),
    "integer_divide": _integer_divide,
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
    "cumsum": _cumsum,
    "gather": _gather,
    "scatter": _scatter,
    "argsort": _argsort,
    "mean": _mean,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "conv": _conv,
    "linear": _linear,
    "scale_shift": _scale_shift,
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "matmul": _matmul,
    "reduce": _reduce,
    "embedding": _embedding,
    **dict.fromkeys(("lstm", "gru", "rnn"), float_layer),
    "masked_fill": _masked_fill,
    "compare": _compare,
    "cast": _cast,
}
"""NAME of ``float.NAME`` → nodes."""
