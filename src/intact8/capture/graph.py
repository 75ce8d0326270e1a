"""The graph of a captured network: canonical float operations on named tensors.

A :class:`Graph` is what capture makes, fusion simplifies and placement cuts into integer and float parts.
It holds no weights: ``params`` name the entries of the model's state dict.

Canonical operations (attrs are JSON values; shapes have ``None`` for the dynamic batch dimension, attrs that hold
shapes write ``-1`` for it; any other dimension that changes from call to call has a name, in shapes, in the ``shape``
of ``reshape`` and ``expand`` and as the ``end`` of a ``slice``):

=================== ============== ==========================================================================
op                  inputs         attrs; params
=================== ============== ==========================================================================
input               –              index (position among the flattened inputs), key (its name)
constant            –              –; value
conv                x              stride, padding, dilation, output_padding: list[int] per spatial dimension;
                                   groups: int; transposed: bool; weight, bias?
linear              x              –; weight, bias?
batch_norm          x              eps, momentum (float or None); weight?, bias?, running_mean, running_var
dropout             x              p, feature: bool
relu                x              –
clamp               x              min, max (float or None). relu6, hardtanh, clamp
leaky_relu          x              slope
prelu               x              –; weight (one value, or one per channel of dimension 1)
unary               x              fn (see FUNCTIONS), and the function's own attrs
affine_scalar       x              mul, add: x·mul + add. Scalar add, sub, mul, div, neg, rsub
add sub mul div     x, y           – (broadcasting)
max_pool            x              kernel, stride, padding, dilation: list[int]; ceil_mode
avg_pool            x              kernel, stride, padding: list[int]; ceil_mode, count_include_pad
adaptive_avg_pool   x              output_size: list[int] (never 1 everywhere: that is mean)
mean                x              dims: list[int] (non-negative), keepdim
cat                 x, …           axis
reshape             x              shape
permute             x              dims
slice               x              axis, start, end, step (non-negative, end clipped to the length)
pad                 x              pads: [[before, after], …] for every dimension, value (float). Constant mode only
expand              x, like?       shape. A constant has no batch: its -1 is the length of dimension 0 of ``like``
roll                x              shifts: list[int], dims: list[int]
upsample            x              size: list[int] (output spatial size), mode: nearest | nearest-exact |
                                   linear | bilinear | trilinear | bicubic,
                                   align_corners: bool
softmax log_softmax x, masked?     axis; softmax with a bool ``masked``: positions that count nothing (after fusion)
layer_norm          x              shape: list[int], eps; weight?, bias?
rms_norm            x              shape: list[int], eps; weight?
group_norm          x              groups, eps; weight?, bias?
matmul              x, y           –
reduce              x              fn: sum | amax | amin | argmax, dims, keepdim
embedding           indices        –; weight
lstm gru rnn        x, states?,    one layer, time first: x (T, B, I), states h0 (lstm: and c0) (D, B, H), lengths int64
                    lengths?       (B,); hidden: int, bidirectional, states, lengths: bool; nonlinearity: tanh | relu
                                   (rnn); result: all | states | steps; weight_ih, weight_hh, bias_ih?, bias_hh?, and
                                   for the second direction weight_ih.reverse …. Output (S + T, B, D·H): the last states
                                   (lstm: S = 2, else 1), then every step, zeros behind the length of a sequence; or one
                                   of the two
masked_fill         x, mask        value
compare             x              fn: eq | ne | lt | le | gt | ge, value (scalar)
cast                x              dtype: float32 | int64 | bool | uint8
=================== ============== ==========================================================================

After fusion, ``conv``, ``linear``, ``add``, ``mul``, ``mean`` and the average pools may carry
``act`` ({"kind": "clamp", "min", "max"} or {"kind": "leaky_relu", "slope"} or {"kind": "prelu"} with the
parameter ``act.weight``), ``conv`` and ``linear`` also ``bn`` ({"eps", "momentum"} with the parameters
``bn.weight?``, ``bn.bias?``, ``bn.running_mean``, ``bn.running_var``) and a second input, the residual, which is
added after batch norm and before the activation. A batch norm folded into the conv or linear behind it is ``pre``
({"eps", "momentum"} with the parameters ``pre.weight?`` …). ``scale_shift`` is a batch norm (or a constant per-channel
product) that stands alone: a depthwise 1×1 convolution whose weight is one value per channel of dimension 1.
``matmul`` may carry ``mul``, a positive factor of its result.

After placement there are also ``quantize`` and ``dequantize`` nodes (one input, no attrs) and ``requantize``
(from one quantization point to another).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intact8.arithmetic.dimensions import Dim, SizeError, has_names, measure, resolve
from intact8.errors import InputError

FUNCTIONS = (
    "sigmoid", "tanh", "silu", "gelu", "hardswish", "hardsigmoid", "elu", "selu", "celu", "mish", "softplus",
    "softsign", "logsigmoid", "hardshrink", "softshrink", "tanhshrink", "threshold", "abs", "neg", "exp", "log", "sqrt",
    "rsqrt", "square", "reciprocal", "pow", "sin", "cos", "erf", "sign", "floor", "ceil", "round", "trunc", "log1p",
    "expm1", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
)  # fmt: skip
"""Unary functions; ``gelu`` has attr ``approximate`` (none | tanh), ``elu`` and ``celu`` ``alpha``, ``softplus``
``beta`` and ``threshold``, ``hardshrink`` and ``softshrink`` ``lambd``, ``threshold`` ``threshold`` and ``value``,
``pow`` ``exponent``."""

MOVES = frozenset({"reshape", "permute", "slice", "expand", "roll", "pad", "max_pool", "dropout"})
"""Operations that move values without changing them: output and input share scale and zero point
(with ``cat``, and ``upsample`` in the nearest modes)."""


@dataclass
class Node:
    """One operation with one output tensor of the same name.

    Attributes:
        name: unique and readable: the module's path for a module's own op (``layer1.0.conv1``), the path of the
            surrounding module and the op otherwise (``layer1.0.add``), ``_1``, ``_2`` … appended where taken.
        op: the canonical operation.
        inputs: names of the producing nodes.
        attrs: JSON values.
        params: role → name in the model's state dict (or in ``Graph.constants``).
        module: path of the owning module, "" for the root.
        shape: output shape, ``None`` for the dynamic batch dimension, a name for any other that changes.
        dtype: torch dtype name without prefix, ``float32``.
        source: for fused nodes, the names of the nodes that went into it, in order.
    """

    name: str
    op: str
    inputs: list[str] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    module: str = ""
    module_type: str = ""
    shape: tuple[Dim, ...] = ()
    dtype: str = "float32"
    source: list[str] = field(default_factory=list)


@dataclass
class Graph:
    """Nodes in execution order, with the network's inputs and outputs.

    Attributes:
        nodes: name → node, topologically ordered.
        inputs: names of the input nodes, in the order of the flattened example inputs.
        outputs: names of the nodes returned, in the order of the flattened outputs (a node may occur twice).
        structure: how the outputs nest, as JSON: an int is an index into ``outputs``; {"list": […]}, {"tuple": […]},
            {"dict": {key: …}}, {"object": class name, "fields": {key: …}} for dataclasses and named tuples;
            {"none": true}; {"value": …} for numbers and strings.
        dynamic_batch: whether dimension 0 may change from call to call.
        dimensions: name of every other dimension that may → its least and its largest size; None: no limit.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    structure: Any = 0
    dynamic_batch: bool = True
    dimensions: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def sized(self, inputs: Sequence[Any]) -> list[Node]:
        """The nodes, in order, with sizes in place of the names of dimensions.

        Args:
            inputs: the tensors of a call, in the order of ``inputs``.

        Raises:
            InputError: a dimension has two sizes, or one outside its bounds.
        """
        if not self.dimensions:
            return list(self.nodes.values())
        shapes = [(n, self.nodes[n].shape, tuple(x.shape)) for n, x in zip(self.inputs, inputs, strict=True)]
        try:
            sizes = measure(shapes, self.dimensions)
        except SizeError as error:
            what, where, remedy = error.args
            raise InputError(what, where=where, remedy=remedy) from error
        return [
            replace(node, attrs=resolve(node.attrs, sizes)) if has_names(node.attrs) else node
            for node in self.nodes.values()
        ]

    def users(self) -> dict[str, list[str]]:
        """Consumers of every node by name, one entry per use; network outputs are not users."""
        out: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in node.inputs:
                out[name].append(node.name)
        return out

    def copy(self) -> Graph:
        """A copy whose nodes can be edited without touching this graph."""
        nodes = {
            k: replace(n, inputs=list(n.inputs), attrs=dict(n.attrs), params=dict(n.params), source=list(n.source))
            for k, n in self.nodes.items()
        }
        return Graph(
            nodes, list(self.inputs), list(self.outputs), self.structure, self.dynamic_batch, dict(self.dimensions)
        )
