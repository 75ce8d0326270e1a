"""How every node but layers with weights is computed: exactly where its inputs are on grids, in float elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from intact8.arithmetic.resize import denominators
from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.arithmetic.torch_resize import resize_linear
from intact8.capture.graph import Node
from intact8.simulation.ops.integer_op import IntegerOp, drops, float_result, quantize_to
from intact8.simulation.ops.matmul import matmul, multiply
from intact8.simulation.ops.pools import average
from intact8.simulation.ops.quantized_add import add
from intact8.simulation.ops.softmax_norms import norm_integers, softmax_integers
from intact8.simulation.ops.table import TABLES, look_up
from intact8.simulation.quantized_tensor import Quantized, Value, real
from intact8.simulation.scales.quant_points import QuantPoint, Requantization
from intact8.simulation.weights.folding import own_params
from intact8.train import fused_max_pool
from intact8.train.straight_through import differentiable, forward_as

EXACT: dict[str, Callable[[IntegerOp, list[Quantized]], Quantized]] = {
    "add": add,
    "sub": add,
    "mul": multiply,
    "matmul": matmul,
    "mean": average,
    "avg_pool": average,
    "adaptive_avg_pool": average,
}
"""Kind → its exact result, rounded once; the gradient is that of the multiplication by ratios of scales."""

FLOAT_GRADIENT: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(TABLES, look_up),
    "softmax": softmax_integers,
    "layer_norm": norm_integers,
    "rms_norm": norm_integers,
    "group_norm": norm_integers,
}
"""Kind → its integers minus zero point; the gradient is that of the float function, rounded straight through."""


def run_node(
    node: Node,
    inputs: list[Value],
    tensors: Mapping[str, Tensor],
    point: QuantPoint | None = None,
    requantization: Requantization | None = None,
    resolved: bool = False,
    training: bool = False,
) -> Value:
    """Compute one node that is neither an input nor a layer with weights; ``training`` is for dropout.

    ``point`` is None inside a float island. Without valid multipliers (``resolved``) plain ratios of scales are used.
    """
    if node.op == "quantize":
        return quantize_to(point, real(inputs[0]))
    if node.op == "dequantize":
        return real(inputs[0])
    params = own_params(node, tensors)
    if point is not None and point.active:
        op = IntegerOp(node, params, point, requantization, resolved)
        if node.op in FLOAT_GRADIENT and isinstance(inputs[0], Quantized):  # the mask of a softmax is on no grid
            return _with_float_gradient(op, inputs[0], [real(v) for v in inputs[1:]])
        quantized = [v for v in inputs if isinstance(v, Quantized)]
        if quantized and len(quantized) == len(inputs):
            if node.op in EXACT:
                return EXACT[node.op](op, quantized)
            if all(v.point is point for v in quantized):
                whole = all(v.whole for v in quantized) and not drops(node, training)
                return Quantized(_move(node, [v.q for v in quantized], point, training), point, whole)
    return quantize_to(point, float_result(node, [real(v) for v in inputs], params, training))


def _with_float_gradient(op: IntegerOp, x: Quantized, others: list[Tensor]) -> Value:
    """Compute integers forward; the float function is computed where its gradient, or an observer, asks for it."""
    sources = [x.q, x.point.live_scale, op.point.live_scale, *op.params.values()]
    smooth: Value | None = None
    if not op.resolved or op.point.watching or differentiable(*sources):
        smooth = quantize_to(op.point, float_result(op.node, [x.real(), *others], op.params))
    if not op.resolved:
        assert smooth is not None
        return smooth
    value = FLOAT_GRADIENT[op.node.op](op, x, *others)
    return Quantized(forward_as(value, smooth.q) if isinstance(smooth, Quantized) else value, op.point)


def _move(node: Node, q: list[Tensor], point: QuantPoint, training: bool) -> Tensor:
    """Move integers minus zero point, or resize them; padding takes the integer nearest to its value."""
    if node.op == "upsample" and not node.moves:
        return _resize(node, q[0])
    if node.op == "max_pool" and differentiable(q[0]) and fused_max_pool.can_fuse(node.attrs, q[0]):
        return fused_max_pool.max_pool(node.attrs, q[0])
    if node.op != "pad":
        return float_result(node, q, {}, training)
    z = point.zero_point_value
    value = round(node.attrs["value"] / point.live_scale_value) if node.attrs["value"] else 0
    return FLOAT_OPS["pad"]({**node.attrs, "value": float(min(max(value, point.lo - z), point.hi - z))}, q, {})


def _resize(node: Node, q: Tensor) -> Tensor:
    """Compute the integers of ``resize_linear``, with the gradient of the float function."""
    size, corners = node.attrs["size"], node.attrs["align_corners"]
    named = [isinstance(d, str) for d in node.shape[2:]]  # then it becomes so many times as long, see as_known
    before = [2 if free else n for n, free in zip(q.shape[2:], named, strict=True)]
    after = [2 * (m // n) if free else m for n, m, free in zip(q.shape[2:], size, named, strict=True)]
    value = resize_linear(q.detach(), size, corners, denominators(before, after, corners))
    return forward_as(value, FLOAT_OPS[node.op](node.attrs, [q], {})) if differentiable(q) else value
