"""Operators of ONNX as functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.errors import InputError

from .onnx_graph import Array, Node

Function = Callable[..., Any]
"""Tensors in, in the order of the operator's inputs without those that are known, a tensor or a tuple out."""

DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}
"""ONNX element type → torch dtype."""


@dataclass(frozen=True)
class Operator:
    """An operator while its function is made.

    Attributes:
        node: the operator.
        known: position of an input → its value, where that is a constant.
        ranks: rank of every input that is known.
    """

    node: Node
    known: Mapping[int, Array]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.node.attrs.get(name, default)

    def refused(self, what: str) -> InputError:
        """Return an error that names the operator."""
        return InputError(f"{self.node.kind} {what}", where=self.node.name, remedy="export it in another way")

    def value(self, i: int, name: str = "", default: Any = None) -> Any:
        """Return what is an input in newer versions of ONNX and an attribute ``name`` in older ones, as a list."""
        if i in self.known:
            return self.known[i].tolist()
        if i < len(self.node.inputs) and self.node.inputs[i]:
            raise self.refused(f"with a computed input {i}")
        return self.node.attrs.get(name, default) if name else default


Make = Callable[[Operator], Function]


def _with(function: Function) -> Make:
    return lambda op: function


def _paddings(op: Operator, rank: int) -> tuple[list[int], list[int]]:
    """Return symmetric paddings for torch, and explicit ones to put before where they are not symmetric."""
    if op.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        raise op.refused(f"with auto_pad {op.attr('auto_pad')}")
    pads = op.attr("pads") or [0] * 2 * rank
    if pads[:rank] == pads[rank:]:
        return pads[:rank], []
    return [0] * rank, [v for i in reversed(range(rank)) for v in (pads[i], pads[rank + i])]


def conv(op: Operator, rank: int) -> Function:
    """Return a convolution, transposed or not, of (input, weight, bias)."""
    transposed = op.node.kind == "ConvTranspose"
    stride, dilation = (op.attr(name) or [1] * rank for name in ("strides", "dilations"))
    padding, before = _paddings(op, rank)
    groups = op.attr("group", 1)
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    if transposed:
        if before or op.attr("output_shape"):
            raise op.refused("with an output_shape or uneven paddings")
        more = op.attr("output_padding") or [0] * rank
        return lambda x, w, b=None: function(x, w, b, stride, padding, more, groups, dilation)
    if before:
        return lambda x, w, b=None: function(F.pad(x, before), w, b, stride, 0, dilation, groups)
    return lambda x, w, b=None: function(x, w, b, stride, padding, dilation, groups)


def _pool(op: Operator) -> Function:
    kernel = op.attr("kernel_shape")
    rank = len(kernel)
    stride, padding = op.attr("strides") or [1] * rank, op.attr("pads") or [0] * 2 * rank
    ceil, (even, before) = bool(op.attr("ceil_mode", 0)), _paddings(op, rank)
    del padding
    if op.node.kind == "MaxPool":
        if len(op.node.outputs) > 1 and op.node.outputs[1]:
            raise op.refused("with indices")
        pool, dilation = getattr(F, f"max_pool{rank}d"), op.attr("dilations") or [1] * rank
        lowest = float("-inf")
        return lambda x: pool(F.pad(x, before, value=lowest) if before else x, kernel, stride, even, dilation, ceil)
    include = bool(op.attr("count_include_pad", 0))
    if before and not include:
        raise op.refused("with uneven paddings that do not count")
    mean = getattr(F, f"avg_pool{rank}d")
    return lambda x: mean(F.pad(x, before) if before else x, kernel, stride, even, ceil, include)


def _global_average(op: Operator) -> Function:
    return lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _reduce_mean(op: Operator) -> Function:
    axes, keep = op.value(1, "axes"), bool(op.attr("keepdims", 1))
    return lambda x: x.mean(tuple(axes) if axes else tuple(range(x.ndim)), keepdim=keep)


def _clip(op: Operator) -> Function:
    low, high = op.value(1, "min"), op.value(2, "max")
    if low is None and high is None:
        return lambda x: x
    return lambda x: torch.clamp(x, low, high)


def _reshape(op: Operator) -> Function:
    shape, zero = op.value(1, "shape"), op.attr("allowzero", 0)
    return lambda x: x.reshape([x.shape[i] if n == 0 and not zero else n for i, n in enumerate(shape)])


def _flatten(op: Operator) -> Function:
    axis = op.attr("axis", 1)
    if axis == 1:
        return lambda x: torch.flatten(x, 1)
    if axis == 0:
        return lambda x: x.reshape(1, -1)
    raise op.refused(f"at axis {axis}")


def _squeeze(op: Operator) -> Function:
    axes = op.value(1, "axes")
    return lambda x: x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(op: Operator) -> Function:
    axes = op.value(1, "axes")

    def function(x: Tensor) -> Tensor:
        rank = x.ndim + len(axes)
        for axis in sorted(a % rank for a in axes):
            x = x.unsqueeze(axis)
        return x

    return function


def _slice(op: Operator) -> Function:
    starts, ends = op.value(1, "starts"), op.value(2, "ends")
    axes, steps = op.value(3, "axes"), op.value(4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if any(s < 1 for s in steps):
        raise op.refused("with steps backwards")

    def function(x: Tensor) -> Tensor:
        index = [slice(None)] * x.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            index[axis] = slice(start, None if end >= 1 << 31 else end, step)
        return x[tuple(index)]

    return function


def _split(op: Operator) -> Function:
    axis, sizes, count = op.attr("axis", 0), op.value(1, "split"), len(op.node.outputs)
    if sizes is not None:
        return lambda x: tuple(torch.split(x, sizes, axis))
    return lambda x: tuple(torch.chunk(x, count, axis))


def _gather(op: Operator) -> Function:
    axis = op.attr("axis", 0)
    if 1 in op.known:
        index = op.known[1]
        if index.ndim == 0:
            return lambda x: x.select(axis, int(index))
        if index.ndim == 1:
            return lambda x: x.index_select(axis, torch.from_numpy(index.astype(np.int64)))
        raise op.refused("with indices of several dimensions")
    if 0 in op.known and axis == 0 and op.known[0].ndim == 2:
        return lambda weight, index: F.embedding(index.to(torch.int64), weight)
    raise op.refused("with computed indices")


def _pad(op: Operator) -> Function:
    pads, mode = op.value(1, "pads"), op.attr("mode", "constant")
    value = op.value(2, "value", 0.0) or 0.0
    if mode not in ("constant", "reflect", "edge") or op.value(3) is not None:
        raise op.refused(f"of mode {mode}")
    rank = len(pads) // 2
    flat = [v for i in reversed(range(rank)) for v in (pads[i], pads[rank + i])]
    while len(flat) > 2 and not any(flat[-2:]):
        flat = flat[:-2]
    if mode == "constant":
        return lambda x: F.pad(x, flat, value=value)
    name = {"reflect": "reflect", "edge": "replicate"}[mode]
    return lambda x: F.pad(x, flat, mode=name)


def _resize(op: Operator) -> Function:
    mode, how = op.attr("mode", "nearest"), op.attr("coordinate_transformation_mode", "half_pixel")
    scales, sizes = op.value(2), op.value(3)
    if op.node.kind == "Upsample":
        scales, how = op.value(1, "scales"), "asymmetric"
    nearest = mode == "nearest" and how == "asymmetric" and op.attr("nearest_mode", "floor") == "floor"
    linear = mode in ("linear", "bilinear") and how in ("half_pixel", "pytorch_half_pixel", "align_corners")
    if not (nearest or linear):
        raise op.refused(f"of mode {mode}, {how}")

    def function(x: Tensor) -> Tensor:
        rank = x.ndim - 2
        size = sizes[2:] if sizes else [int(n * s) for n, s in zip(x.shape[2:], scales[2:], strict=True)]
        if nearest:
            return F.interpolate(x, size=size, mode="nearest")
        name = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
        return F.interpolate(x, size=size, mode=name, align_corners=how == "align_corners")

    return function


def _layer_norm(op: Operator) -> Function:
    axis, eps = op.attr("axis", -1), op.attr("epsilon", 1e-5)

    def function(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, x.shape[axis:] if axis < 0 else x.shape[axis - x.ndim :], weight, bias, eps)

    return function


def _batch_norm(op: Operator) -> Function:
    eps = op.attr("epsilon", 1e-5)
    return lambda x, weight, bias, mean, variance: F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)


def _gelu(op: Operator) -> Function:
    approximate = op.attr("approximate", "none")
    return lambda x: F.gelu(x, approximate=approximate)


def _cast(op: Operator) -> Function:
    if op.attr("to") not in DTYPES:
        raise op.refused(f"to type {op.attr('to')}")
    dtype = getattr(torch, DTYPES[op.attr("to")])
    return lambda x: x.to(dtype)


def _hard_sigmoid(op: Operator) -> Function:
    alpha, beta = op.attr("alpha", 0.2), op.attr("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


def _concat(op: Operator) -> Function:
    axis = op.attr("axis", 0)
    return lambda *x: torch.cat([v if v.ndim else v.reshape(1) for v in x], axis)


def _softmax(op: Operator) -> Function:
    axis = op.attr("axis", -1)
    return lambda x: torch.softmax(x, axis)


def _transpose(op: Operator) -> Function:
    perm = op.attr("perm")
    return lambda x: x.permute(perm or tuple(reversed(range(x.ndim))))


def _leaky(op: Operator) -> Function:
    alpha = op.attr("alpha", 0.01)
    return lambda x: F.leaky_relu(x, alpha)


def _prelu(op: Operator) -> Function:
    return lambda x, slope: F.prelu(x, slope.reshape(-1))


def _expand(op: Operator) -> Function:
    shape = op.value(1)
    return lambda x: x * torch.ones(shape, dtype=x.dtype)


def _gemm(op: Operator) -> Function:
    alpha, beta, ta, tb = (op.attr(n, d) for n, d in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0)))

    def function(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        y = torch.matmul(x.t() if ta else x, w.t() if tb else w)
        y = y if alpha == 1.0 else y * alpha
        return y if b is None else y + (b if beta == 1.0 else b * beta)

    return function


UNARY: dict[str, Function] = {
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "HardSwish": F.hardswish, "Erf": torch.erf,
    "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Neg": torch.neg, "Abs": torch.abs,
    "Reciprocal": torch.reciprocal, "Softplus": F.softplus, "Mish": F.mish, "Floor": torch.floor, "Ceil": torch.ceil,
    "Identity": lambda x: x, "Dropout": lambda x, *more: x, "QuickGelu": lambda x: x * torch.sigmoid(1.702 * x),
    "Swish": F.silu,
}  # fmt: skip
"""Operator without attributes → function of one tensor."""

BINARY: dict[str, Function] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "MatMul": torch.matmul, "Pow": torch.pow,
    "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip

OPERATORS: dict[str, Make] = {
    **{kind: _with(function) for kind, function in {**UNARY, **BINARY}.items()},
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    "GlobalAveragePool": _global_average,
    "ReduceMean": _reduce_mean,
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Pad": _pad,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Cast": _cast,
    "Expand": _expand,
    "Gemm": _gemm,
    **{kind: partial(conv, rank=2) for kind in ("Conv", "ConvTranspose")},
}
"""Operator → what makes its function. Inputs that ``Operator.value`` reads are constants, and not given to it."""

SETTINGS: dict[str, Sequence[int]] = {
    "Clip": (1, 2),
    "ReduceMean": (1,),
    "Reshape": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Expand": (1,),
    "Dropout": (1, 2),
}
"""Operator → inputs that say how it computes, and are no operands."""
