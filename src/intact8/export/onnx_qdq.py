"""A program as ONNX in QDQ form: float operators between DequantizeLinear and QuantizeLinear, in real scales.

Runtimes with int8 kernels of their own (ONNX Runtime, OpenVINO, TensorRT) replace each such group by one of them.
Scales are real, so multipliers are computed by the runtime from three scales and not stored as a/b: the certificates'
bounds count these roundings, too (``intact8.arithmetic.tie_free.FORMS``), but not what a runtime does to float
operators that it leaves float, nor what it merges. See docs/export.md for what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import checker

from intact8.arithmetic.affine import dequantize
from intact8.arithmetic.unary_functions import UNARY, unary64
from intact8.errors import EngineError
from intact8.opset import KINDS
from intact8.opset.op import Array, Op, Tensor
from intact8.opset.shapes import axis_of
from intact8.program.inputs import check_layout, images, sole_quantizers
from intact8.program.program import Program
from intact8.regular_file import path_of

from .onnx import assemble, base_rules, builder, write_model
from .onnx_builder import Builder, Rule, spatial_size
from .onnx_floats import RULES as FLOATS
from .onnx_pools import RULES as INTEGER_POOLS
from .onnx_pools import trailing_padding
from .onnx_unary import FUNCTIONS

SIGNED = 128
"""What int8 activations lie below the program's uint8."""

Real = Callable[[Builder, Op, list[str], list[Tensor], Tensor], str]
"""Adds the float nodes of one operation: (builder, operation, names of its inputs, descriptions, output) → name."""


def export_qdq(
    program: Program, path: str | Path, *, uint8_input: bool = False, layout: str = "NCHW", signed: bool = False
) -> Any:
    """Write the program as ONNX in QDQ form.

    Args:
        program: checked (converted or loaded).
        path: file to write, all at once or not at all.
        uint8_input: take the integers of quantized inputs instead of floats.
        layout: "NHWC" to take inputs of four dimensions as (N, H, W, C).
        signed: int8 activations and zero points of 0, and float biases, as TensorRT asks for.

    Returns:
        onnx.ModelProto, checked by onnx.checker.

    Raises:
        EngineError: onnx is not installed, an operation has no such form, or a zero point is not 128 where ``signed``.
    """
    check_layout(program, layout)
    integers = frozenset(sole_quantizers(program) if uint8_input else ())
    model = build_qdq(program, integers, images(program) if layout == "NHWC" else [], signed)
    checker.check_model(model)
    write_model(model, path_of(path, kind=EngineError))
    return model


def build_qdq(
    program: Program, integers: Collection[str] = (), nhwc: Collection[str] = (), signed: bool = False
) -> Any:
    """Build the model without checking it: ``integers`` are inputs taken as such, ``nhwc`` those with channels last."""
    tensors = {name: _signed(t) if signed else t for name, t in program.tensors.items()}
    tensors |= {name: replace(tensors[name], dtype="int8" if signed else "uint8") for name in integers}
    b = builder(program, tensors)
    rules = base_rules(program) | RULES
    for op in program.ops:
        if signed and op.kind not in RULES and not op.is_float:
            raise EngineError(f"{op.kind} has no form in TensorRT's QDQ", where=op.name, remedy="export to onnx-qdq")
        b.begin(op)
        b.finish(op, rules[op.kind](b, op, list(op.inputs), [tensors[n] for n in op.inputs], tensors[op.name]))
    return assemble(b, program, nhwc)


def _signed(t: Tensor) -> Tensor:
    if not t.quantized:
        return t
    if t.zero_point != SIGNED:
        why = f"its zero point is {t.zero_point}, and TensorRT knows int8 activations around 0 only"
        remedy = (
            'quantize with symmetric activations: Recipe(activation=Scheme(dtype="int8", symmetric=True, qmin=-128))'
        )
        raise EngineError("the tensor has no form in TensorRT", where=t.name, why=why, remedy=remedy)
    return replace(t, dtype="int8", zero_point=0)


def _grid(b: Builder, t: Tensor, scale: Any) -> list[str]:
    return [b.float(scale, "scale"), b.constant(np.array(t.zero_point, t.dtype), "zero_point")]


def real(b: Builder, name: str, t: Tensor, scale: float | None = None) -> str:
    """Return the real numbers of a quantized tensor, dequantized once for all that read them.

    ``scale`` is that of the tensor where it is not given; that of a term is such that its ratio to the output's scale
    is the program's.
    """
    value = np.float32(t.scale if scale is None else scale)
    return b.once(("real", name, value), lambda: b.node("DequantizeLinear", [name, *_grid(b, t, value)]))


def _rounded(b: Builder, op: Op, value: str, y: Tensor) -> str:
    """Build the clamp of the operation in real numbers, and the quantization."""
    limits, z, s = np.iinfo(np.dtype(y.dtype)), int(y.zero_point or 0), float(y.scale or 1.0)
    shift = SIGNED if y.dtype == "int8" else 0
    lo, hi = (int(op.attrs.get(key, end + shift)) - shift for key, end in (("lo", limits.min), ("hi", limits.max)))
    if lo == z > limits.min and hi == limits.max:
        value = b.node("Relu", [value])
    elif (lo, hi) != (limits.min, limits.max):
        value = b.node("Clip", [value, b.float((lo - z) * s, "least"), b.float((hi - z) * s, "most")])
    return b.node("QuantizeLinear", [value, *_grid(b, y, s)])


def _between(rule: Real) -> Rule:
    """Return the rule between DequantizeLinear and QuantizeLinear."""

    def build(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
        return _rounded(b, op, rule(b, op, x, inputs, y), y)

    return build


def _reals(b: Builder, x: list[str], inputs: list[Tensor]) -> list[str]:
    return [real(b, name, t) if t.quantized else name for name, t in zip(x, inputs, strict=True)]


def _quantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return x[0] if inputs[0].dtype == y.dtype else _rounded(b, op, x[0], y)


def _dequantize(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return real(b, x[0], inputs[0])


def _scales(op: Op, x: Tensor, y: Tensor) -> Array:
    """Return the weight scales: such that s_x·s_w/s_y is the program's a/b, as closely as float32 comes."""
    a, b = op.multipliers()
    return np.asarray(a / b * float(y.scale or 1.0) / float(x.scale or 1.0), np.float32)


def _weights(b: Builder, op: Op, x: Tensor, y: Tensor, axis: int, weight: Array) -> tuple[str, str]:
    """Return dequantized weights, one scale per channel, and the bias; channels with the multiplier 0 give 0."""
    scales, bias = _scales(op, x, y), op.arrays["bias"]
    dead = scales == 0
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    weight, bias = np.where(dead.reshape(shape), 0, weight).astype(np.int8), np.where(dead, 0, bias).astype(np.int32)
    scales = np.where(dead, np.float32(1.0), scales)
    given = [
        b.constant(weight, "weight"),
        b.float(scales, "scale"),
        b.constant(np.zeros(len(scales), np.int8), "zeros"),
    ]
    steps = np.asarray(np.float32(x.scale or 1.0) * scales, np.float32)
    if y.dtype == "int8":  # TensorRT dequantizes 8 bits only
        offset = b.float(bias * steps.astype(np.float64), "bias")
    else:
        zeros = b.constant(np.zeros(len(scales), np.int32), "zeros")
        bias_args = [b.constant(bias, "bias"), b.float(steps, "scale"), zeros]
        offset = b.node("DequantizeLinear", bias_args, axis=0)
    return b.node("DequantizeLinear", given, axis=axis), offset


def _activated(b: Builder, op: Op, value: str, x: list[str], inputs: list[Tensor], y: Tensor, trailing: int) -> str:
    """Build what follows a product in the same rounding: a residual, or other multipliers of negative sums."""
    if len(x) == 2:
        ratio = op.attrs["residual_a"] / int(op.arrays["b"][0])
        return b.node("Add", [value, real(b, x[1], inputs[1], ratio * float(y.scale or 1.0))])
    if "a_neg" not in op.arrays:
        return value
    a, denominators = op.multipliers()
    if not a.all():
        what, why = "the layer has no form in QDQ", "a channel is 0 for positive sums and not for negative ones"
        raise EngineError(what, where=op.name, why=why, remedy="export to onnx")
    slope = op.arrays["a_neg"].astype(np.float64) / op.arrays["b_neg"] / (a / denominators)
    return b.node("PRelu", [value, b.float(slope.reshape(-1, *[1] * trailing), "slope")])


def _conv(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t, weight, rank = op.attrs, op.arrays["weight"], op.arrays["weight"].ndim - 2
    how: dict[str, Any] = {"strides": t["stride"], "dilations": t["dilation"], "group": t["groups"]}
    how |= {"pads": t["padding"] * 2, "kernel_shape": list(weight.shape[2:])}
    if t["transposed"] and t["groups"] > 1:
        why = "ONNX has one scale per output channel of a group there, not of all groups"
        raise EngineError(
            "a grouped transposed convolution has no form in QDQ", where=op.name, why=why, remedy="export to onnx"
        )
    kernel, bias = _weights(b, op, inputs[0], y, int(t["transposed"]), weight)
    kind = "ConvTranspose" if t["transposed"] else "Conv"
    more = {"output_padding": t["output_padding"]} if t["transposed"] else {}
    value = b.node(kind, [real(b, x[0], inputs[0]), kernel, bias], **how, **more)
    return _activated(b, op, value, x, inputs, y, rank)


def _linear(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    weight, first = op.arrays["weight"], real(b, x[0], inputs[0])
    if len(inputs[0].shape) == 2:
        value = b.node("Gemm", [first, *_weights(b, op, inputs[0], y, 0, weight)], transB=1)
    else:
        kernel, bias = _weights(b, op, inputs[0], y, 1, np.ascontiguousarray(weight.T))
        value = b.node("Add", [b.node("MatMul", [first, kernel]), bias])
    return _activated(b, op, value, x, inputs, y, 0)


def _pair(kind: str) -> Real:
    """Return a product of two tensors; the first one's scale takes what a/b is off the quotient of scales."""

    def build(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
        scale = op.attrs["a"] / op.attrs["b"] * float(y.scale or 1.0) / float(inputs[1].scale or 1.0)
        return b.node(kind, [real(b, x[0], inputs[0], scale), real(b, x[1], inputs[1])])

    return build


def _add(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    step = float(y.scale or 1.0) / op.attrs["b"]
    total = ""
    # The first term is positive where there is one, so that the rest is added or subtracted.
    for a, name, t in sorted(zip(op.attrs["a"], x, inputs, strict=True), key=lambda term: term[0] < 0):
        term = real(b, name, t, abs(a) * step)
        if total:
            total = b.node("Add" if a >= 0 else "Sub", [total, term])
        else:
            total = term if a >= 0 else b.node("Neg", [term])
    return total


def _mean(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    t, shape = op.attrs, inputs[0].shape
    count = math.prod(int(shape[d] or 0) for d in t["dims"])
    value = real(b, x[0], inputs[0], t["a"] / t["b"] * count * float(y.scale or 1.0))
    if sorted(t["dims"]) == list(range(2, len(shape))) and len(shape) == 4 and t["keepdim"]:
        return b.node("GlobalAveragePool", [value])
    return b.node("ReduceMean", [value], axes=t["dims"], keepdims=int(t["keepdim"]))


def _average(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build an average pool of one kind of windows; others are written as exact sums, as in the integer dialect."""
    t, size = op.attrs, inputs[0].shape[2:]
    if op.kind == "adaptive_avg_pool":
        kernel = [n // o for n, o in zip(spatial_size(inputs[0]), t["output_size"], strict=True)]
        stride, padding = kernel, [0] * len(size)
    else:
        kernel, stride, padding = t["kernel"], t["stride"], t["padding"]
    if [row[0] for row in t["multipliers"]] != [math.prod(kernel)]:
        return INTEGER_POOLS[op.kind](b, op, x, inputs, y)
    behind = trailing_padding(size, y.shape[2:], kernel, stride, padding, [1] * len(size))
    [[count, numerator, denominator]] = t["multipliers"]
    value = real(b, x[0], inputs[0], numerator / denominator * count * float(y.scale or 1.0))
    where: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": stride,
        "pads": [*padding, *behind],
        "count_include_pad": 1,
    }
    return _rounded(b, op, b.node("AveragePool", [value], **where), y)


def _table(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build the function that the table stands for, where its 256 results are the table's; otherwise a lookup."""
    table, grid = op.arrays["table"], (float(y.scale or 1.0), int(y.zero_point or 0))
    shift = SIGNED if y.dtype == "int8" else 0
    values = (np.arange(256) - shift - int(inputs[0].zero_point or 0)) * float(inputs[0].scale or 1.0)

    def entries(v: Array) -> Array:
        return np.asarray(np.clip(np.rint(np.nan_to_num(v / grid[0], nan=-1e9)) + grid[1] + shift, 0, 255))

    same = entries(values)
    least, most = int(table.min()), int(table.max())
    if np.array_equal(np.clip(same, least, most), table):
        clamped = replace(op, attrs={"lo": least, "hi": most})
        return _rounded(b, clamped, b.node("Mul", [real(b, x[0], inputs[0]), b.float(1.0, "one")]), y)
    fn = op.attrs["fn"]
    plain = fn in UNARY and None not in UNARY[fn].attrs.values()
    if plain and np.array_equal(entries(unary64(fn, {}, values)), table):
        return _rounded(b, replace(op, attrs={}), FUNCTIONS[fn](b, {}, real(b, x[0], inputs[0])), y)
    if shift:
        raise EngineError(f"a table of {fn} has no form in TensorRT", where=op.name, remedy="export to onnx-qdq")
    flat = b.cast(b.node("Reshape", [x[0], b.ints([-1], "flat")]), "int32")
    return b.shaped(b.node("GatherElements", [b.constant(table, "table"), flat], axis=0), y.shape)


def _softmax(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    value, axis = real(b, x[0], inputs[0]), axis_of(op, inputs[0].shape)
    if len(x) == 2:
        value = b.node("Where", [x[1], b.float(np.finfo(np.float32).min, "lowest"), value])
    return b.node("Softmax", [value], axis=axis)


def _norm(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Build the float norm with the gain, the offset and ε of the integer one in real numbers."""
    t, (sx, sy), z = op.attrs, (float(inputs[0].scale or 1.0), float(y.scale or 1.0)), int(y.zero_point or 0)
    z += SIGNED if y.dtype == "int8" else 0  # the stored offset holds that of uint8
    count = (
        math.prod(t["shape"])
        if "shape" in t
        else int(inputs[0].shape[1] or 0) * math.prod(spatial_size(inputs[0])) // t["groups"]
    )
    weight = np.asarray(op.arrays["gain"].astype(np.float64) * sy, np.float32)
    bias = np.asarray((op.arrays["offset"].astype(np.float64) - z) * sy, np.float32)
    attrs = {key: v for key, v in t.items() if key in ("shape", "groups")} | {"eps": t["eps"] * sx**2 / count**2}
    real_op = replace(op, attrs=attrs, arrays={"weight": weight, "bias": bias})
    value = FLOATS[op.kind](b, real_op, [real(b, x[0], inputs[0])], inputs, y)
    return b.node("Add", [value, b.constant(bias, "bias")]) if op.kind == "rms_norm" else value


def _moved(kind: str) -> Rule:
    """Return a move of real numbers between the two, where integers are moved."""

    def build(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
        rule = base(kind)
        if not y.quantized or kind == "constant":
            return rule(b, op, x, inputs, y)
        floats = [replace(t, dtype="float32", scale=None, zero_point=None) for t in (*inputs, y)]
        attrs = dict(op.attrs)
        if "value" in attrs:
            attrs["value"] = float(dequantize(np.array(attrs["value"]), np.float32(y.scale or 1.0), _unsigned_zero(y)))
        value = rule(b, replace(op, attrs=attrs), _reals(b, x, inputs), floats[:-1], floats[-1])
        return _rounded(b, replace(op, attrs={}), value, y)

    return build


def _unsigned_zero(t: Tensor) -> int:
    return int(t.zero_point or 0) + (SIGNED if t.dtype == "int8" else 0)


def base(kind: str) -> Rule:
    """Return the rule of the integer dialect for a kind that moves values."""
    from .onnx_moves import RULES as MOVES

    return MOVES[kind]


RULES: dict[str, Rule] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv": _between(_conv),
    "linear": _between(_linear),
    "matmul": _between(_pair("MatMul")),
    "mul": _between(_pair("Mul")),
    "add": _between(_add),
    "mean": _between(_mean),
    "avg_pool": _average,
    "adaptive_avg_pool": _average,
    "table": _table,
    "softmax": _between(_softmax),
    **{kind: _between(_norm) for kind in ("layer_norm", "rms_norm", "group_norm")},
    **{kind: _moved(kind) for kind, declared in KINDS.items() if declared.moves},
}
"""Kind → rule; other kinds are written as in the integer dialect."""
