"""How every other node of a placed graph is computed: exact where its inputs are on grids, float elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Node
from intact8.simulation.ops.affine import observe_activated, quantize_to
from intact8.simulation.ops.exact_sums import EXACT
from intact8.simulation.ops.integer_limits import integer_limits
from intact8.simulation.ops.matmul import matrix_product
from intact8.simulation.ops.pools import adaptive_counts, adaptive_sums, window_counts, window_sums
from intact8.simulation.ops.quantized_add import add_round
from intact8.simulation.ops.softmax_norms import NONLINEAR, nonlinear_integers
from intact8.simulation.quantized_tensor import Quantized, Value, real
from intact8.simulation.scales.quant_points import QuantPoint, Requantization
from intact8.simulation.weights.folding import own_params
from intact8.train.straight_through import forward_as

SUMS = frozenset({"add", "sub"})
POOLS = frozenset({"mean", "avg_pool", "adaptive_avg_pool"})
TABLES = frozenset({"table", "requantize"})
PRODUCTS = frozenset({"mul", "matmul"})


def run_node(
    node: Node,
    inputs: list[Value],
    tensors: Mapping[str, Tensor],
    point: QuantPoint | None,
    requantization: Requantization | None,
    resolved: bool,
    training: bool,
) -> Value:
    """One node that is neither an input nor affine.

    Args:
        node: the placed node.
        inputs: values of its inputs.
        tensors: parameters, buffers and constants by name.
        point: quantization point of the output, None inside a float island.
        requantization: its multipliers, where it has any.
        resolved: whether the multipliers are valid; else plain ratios of scales are used.
        training: for dropout.
    """
    if node.op == "quantize":
        return quantize_to(point, real(inputs[0]))
    if node.op == "dequantize":
        return real(inputs[0])
    params = own_params(node, tensors)
    if point is None:
        return _float(node, [real(v) for v in inputs], params, training)
    if node.op in NONLINEAR and point.active and isinstance(inputs[0], Quantized):
        return _nonlinear(node, inputs, params, point, resolved)
    on_grid = bool(inputs) and all(isinstance(v, Quantized) for v in inputs) and point.active
    if on_grid and node.op in _EXACT:
        assert requantization is not None
        values: list[Quantized] = inputs  # type: ignore[assignment]
        value: Quantized = _EXACT[node.op](node, values, params, point, requantization, resolved)
        return value
    if on_grid and all(v.point is point for v in inputs):  # type: ignore[union-attr]
        whole = all(v.whole for v in inputs) and not (node.op == "dropout" and training)  # type: ignore[union-attr]
        return Quantized(_move(node, [v.q for v in inputs], point, training), point, whole)  # type: ignore[union-attr]
    return quantize_to(point, _float(node, [real(v) for v in inputs], params, training))


def _nonlinear(node: Node, x: list[Value], params: Mapping[str, Tensor], point: QuantPoint, resolved: bool) -> Value:
    """softmax and norms: the integers forward; the gradient is the float function's, rounded straight through."""
    score = x[0]
    assert isinstance(score, Quantized)
    masked = [real(v) for v in x[1:]]
    sources = [score.q, score.point.live_scale, point.live_scale, *params.values()]
    smooth: Value | None = None
    if not resolved or point.watching or (torch.is_grad_enabled() and any(t.requires_grad for t in sources)):
        smooth = quantize_to(point, _float(node, [score.real(), *masked], params, False))
    if not resolved:
        assert smooth is not None
        return smooth
    value = nonlinear_integers(node, score, masked, params, point)
    return Quantized(forward_as(value, smooth.q) if isinstance(smooth, Quantized) else value, point)


def _float(node: Node, inputs: list[Tensor], params: Mapping[str, Tensor], training: bool) -> Tensor:
    if node.op == "constant":
        return params["value"]
    if node.op == "requantize":
        return inputs[0]
    if node.op == "dropout":
        dropout = torch.feature_dropout if node.attrs.get("feature") else torch.dropout
        return dropout(inputs[0], node.attrs["p"], training)
    y: Tensor = FLOAT_OPS[node.op](node.attrs, inputs, dict(params))
    return y


def _move(node: Node, q: list[Tensor], point: QuantPoint, training: bool) -> Tensor:
    """Operations that only move values, on integers minus zero point."""
    attrs = node.attrs
    if node.op == "pad":
        z = int(point.zero_point)
        value = round(attrs["value"] / float(point.live_scale.detach()))
        attrs = {**attrs, "value": float(min(max(value, point.lo - z), point.hi - z))}
    if node.op == "dropout":
        return _float(node, q, {}, training)
    y: Tensor = FLOAT_OPS[node.op](attrs, q, {})
    return y


def _limits(node: Node, point: QuantPoint) -> tuple[int, int]:
    """Least and largest integer."""
    z = int(point.zero_point)
    return integer_limits(node.attrs.get("act"), float(point.live_scale.detach()), z, point.lo, point.hi)


def _finish(node: Node, v: Tensor, point: QuantPoint) -> Quantized:
    """Observe, round once, clamp: ``v`` in steps of the output."""
    if point.watching:
        observe_activated(node, point, v)
    return Quantized(point.rounded(v, *_limits(node, point)), point)


def _sum(
    node: Node, x: list[Quantized], params: Mapping[str, Tensor], point: QuantPoint, m: Requantization, resolved: bool
) -> Quantized:
    sign = -1 if node.op == "sub" else 1
    ratios = [v.point.live_scale / point.live_scale * (sign if i else 1) for i, v in enumerate(x)]
    if resolved:
        ratios = [forward_as(exact, nominal) for exact, nominal in zip(m.ratio(), ratios, strict=True)]
    if point.learns_range:
        terms = [v.q * ratio for v, ratio in zip(x, ratios, strict=True)]
        return _finish(node, functools.reduce(torch.add, terms), point)
    watch, z = functools.partial(observe_activated, node, point) if point.watching else None, int(point.zero_point)
    lo, hi = _limits(node, point)
    return Quantized(add_round(x, ratios, lo - z, hi - z, watch), point)


def _product(
    node: Node, x: list[Quantized], params: Mapping[str, Tensor], point: QuantPoint, m: Requantization, resolved: bool
) -> Quantized:
    ratio = x[0].point.live_scale * x[1].point.live_scale / point.live_scale
    if resolved:
        ratio = forward_as(m.ratio()[0], ratio)
    return _finish(node, (x[0].q * x[1].q) * ratio, point)


def _matrix_product(
    node: Node, x: list[Quantized], params: Mapping[str, Tensor], point: QuantPoint, m: Requantization, resolved: bool
) -> Quantized:
    ratio = x[0].point.live_scale * x[1].point.live_scale / point.live_scale * node.attrs.get("mul", 1.0)
    if resolved:
        ratio = forward_as(m.ratio()[0], ratio)
    return _finish(node, matrix_product(x[0], x[1], ratio), point)


def _pool(
    node: Node, x: list[Quantized], params: Mapping[str, Tensor], point: QuantPoint, m: Requantization, resolved: bool
) -> Quantized:
    q, attrs = x[0].q, node.attrs
    counts: Tensor
    if node.op == "mean":
        count = math.prod(q.shape[d] for d in attrs["dims"])
        total, counts = _total(q, count, attrs["dims"], attrs["keepdim"]), torch.tensor(count).to(q.device)
    elif node.op == "avg_pool":
        total, counts = window_sums(attrs, q), window_counts(attrs, q.shape[2:], q.device)
    else:
        counts = adaptive_counts(attrs["output_size"], q.shape[2:], q.device)
        total = adaptive_sums(attrs, q, counts)
    ratio = x[0].point.live_scale / (counts * point.live_scale)
    if resolved:
        which = torch.searchsorted(m.n, counts.to(m.n.dtype)) if m.n.numel() > 1 else torch.zeros_like(counts)
        ratio = forward_as(m.ratio()[which], ratio)
    return _finish(node, total * ratio.to(total.dtype), point)


def _total(q: Tensor, count: int, dims: list[int], keepdim: bool) -> Tensor:
    """Exact sums of ``count`` integers of 8 bits, float64; so many that they may pass 2^24 are added in it, too."""
    return q.sum(dims, keepdim=keepdim, dtype=torch.float32 if 255 * count < EXACT else torch.float64).double()


def _table(
    node: Node, x: list[Quantized], params: Mapping[str, Tensor], point: QuantPoint, m: Requantization, resolved: bool
) -> Quantized:
    sources = [x[0].q, x[0].point.live_scale, point.live_scale, *params.values()]
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in sources)
    smooth = None
    if needs_gradient or not resolved or point.watching:
        y = FLOAT_OPS[node.op](node.attrs, [x[0].real()], dict(params))
        smooth = quantize_to(point, y)
    if not resolved:
        assert isinstance(smooth, Quantized)
        return smooth
    index = (x[0].q.detach() + x[0].point.zero_point).long()
    value = (m.table[index].to(torch.int32) - point.zero_point).to(x[0].q.dtype)
    return Quantized(forward_as(value, smooth.q) if isinstance(smooth, Quantized) else value, point)


_EXACT: dict[str, Any] = {
    **dict.fromkeys(SUMS, _sum),
    "mul": _product,
    "matmul": _matrix_product,
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(TABLES, _table),
}
