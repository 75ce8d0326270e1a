"""Convolutions, linear maps and products per channel with integer weights, and their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import HALF, accumulate, convolve, half_product, per_channel
from intact8.simulation.weights.grid import Grid, grid_gradients, row_gradients
from intact8.simulation.weights.layout import output_channels, output_first, per_output, transposed
from intact8.train import fused
from intact8.train.straight_through import differentiable


class Exact(NamedTuple):
    """How a sum is computed exactly: its int32 bias (float64), what ``chunk_edges`` decided, and whether the sum is
    rounded to float32 before it is multiplied, and a float32 bias added behind that."""

    bias: Tensor
    edges: list[int] | None
    wide: bool
    single: bool = False

    @property
    def plain(self) -> bool:
        """Whether float32 holds the sums, with the bias and without, and no inputs are cut."""
        return self.edges is not None and len(self.edges) == 2 and not self.wide


def weighted_sum(
    node: Node,
    x: Tensor,
    grid: Grid,
    m: Tensor,
    bias: Tensor | None,
    exact: Exact | None = None,
    *,
    whole: bool = False,
) -> Tensor:
    """Return ``m·Σ x·q + bias``, the sum of ``node`` with integer weights q, differentiable; m is (O,) or ().

    ``whole`` says that x holds integers within ±255, whose products GPUs have a faster way to add.

    With ``exact`` it is m·(Σ x·q + exact.bias) for x that holds integers minus zero point: the sum is exact, float64
    where float32 does not hold it, and ``bias``, (O,) in units of the result, gets its gradient. Where ``exact.single``
    it is fl(fl(fl(Σ x·q)·m) + bias), float32.
    """
    if m.numel() == 1:
        m = m.expand(output_channels(node, grid.weight))
    if differentiable(x, *grid.sources, m, bias):
        y: Tensor = _Sum.apply(x, *grid.sources, m, bias, node, grid, exact, whole)  # type: ignore[no-untyped-call]
        return y
    return _value(node, x, grid.q, m, bias, exact, whole)


def float_type(x: Tensor, exact: Exact | None) -> torch.dtype:
    """Return the dtype of the sum: that of autocast in an autocast region, but never where the sum is exact."""
    device = x.device.type
    autocast = exact is None and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else torch.float32


def _value(
    node: Node,
    x: Tensor,
    q: Tensor,
    m: Tensor,
    bias: Tensor | None,
    exact: Exact | None,
    whole: bool,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the sum; ``weight`` is m·q where it is known already, and the sum not exact."""
    dtype = float_type(x, exact)
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(dtype)
        if exact is None and whole and dtype == torch.float32 and node.op == "linear" and x.is_cuda and HALF:
            total, rows = half_product(x, q.mT), m.to(dtype)
            return total.mul_(rows) if bias is None else torch.addcmul(bias.to(dtype), total, rows)
        if exact is None:
            weight = (q * per_output(m, q, node) if weight is None else weight).to(dtype)
            return convolve(node, x, weight, None if bias is None else bias.to(dtype)).float()
        total = accumulate(node, x, q, exact.edges, exact.bias.float() if exact.plain else None, whole=whole)
        if not exact.plain:
            total = _plus_bias(total, per_channel(exact.bias, node, total.dim()))
        if exact.single:
            total = total.float().mul_(per_channel(m, node, total.dim()))
            return total if bias is None else total.add_(per_channel(bias, node, total.dim()))
        return total.mul_(per_channel(m, node, total.dim()).to(total.dtype))


def _plus_bias(total: Tensor, bias: Tensor) -> Tensor:
    """Return an exact sum with its int32 bias (float64): exact in float64, or rounded once to float32.

    A sum of :func:`exact_product`'s in float32 lies 256 below 2^24, so that it stays exact with the last eight bits of
    the bias; the rest of them is a float32, and adding it rounds once. That is the fl(acc) of the contract.
    """
    if not total.is_cuda or total.dtype == torch.float64:
        return torch.add(total, bias)
    most = torch.round(bias / 256) * 256
    return total.add_((bias - most).float()).add_(most.float())


def _by_rows(node: Node, q: Tensor, m: Tensor) -> bool:
    """Return whether fused passes multiply the rows of the weight; ``q`` is int8."""
    return not transposed(node) and q.numel() > 0 and q.is_contiguous() and fused.usable(m)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        x, *sources, m, bias, node, grid, exact, whole = args
        product = grid.times(m) if exact is None and not transposed(node) else None
        q = grid.q if product is None else product[1]
        weight, compact = product or (None, q.to(torch.int8))
        ctx.save_for_backward(x, compact, m, *sources)
        ctx.node, ctx.limits, ctx.bias = node, grid.limits, None if bias is None else bias.dtype
        ctx.dtype = float_type(x, exact)
        return _value(node, x, q, m, bias, exact, whole, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        x, q, m, *sources = ctx.saved_tensors
        node: Node = ctx.node
        wants = ctx.needs_input_grad
        m_rows = m.float().contiguous()
        by_rows = _by_rows(node, q, m_rows)
        per_weight = per_output(m_rows, q, node)
        # m goes into the weights, which are fewer than the results.
        weight = fused.expand_rows(q, m_rows) if by_rows else q * per_weight
        grad, x_used, w_used = (t.to(ctx.dtype) for t in (grads[0], x, weight))
        wanted = wants[0], any(wants[1:5]), wants[5]
        grad_x, grad_w, grad_bias = convolve_backward(node, grad, x_used, w_used, wanted)
        grad_m: Tensor | None = None
        grad_sources: tuple[Tensor | None, ...] = (None, None, None)
        if grad_w is not None:
            grad_w = grad_w.float().contiguous() if by_rows else grad_w.float()
            found = row_gradients(grad_w, q, m_rows, (*sources,), ctx.limits) if by_rows else None
            if found is not None:
                grad_m, grad_sources = found
                grad_m = grad_m.to(m.dtype)
            if found is None and wants[4]:
                rows = [output_first(v, node).reshape(len(m), -1) for v in (grad_w, q.float())]
                grad_m = torch.linalg.vecdot(*rows).to(m.dtype)
            if found is None and any(wants[1:4]):
                grad_sources = grid_gradients(grad_w, per_weight, tuple(sources), ctx.limits, wants[1:4])
        grad_x = None if grad_x is None else grad_x.to(x.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(ctx.bias)
        return grad_x, *grad_sources, grad_m, grad_bias, None, None, None, None


def convolve_backward(
    node: Node, grad: Tensor, x: Tensor, weight: Tensor, wants: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return gradients of ``convolve(node, x, weight, bias)`` with respect to x, weight and bias, where wanted."""
    if node.op == "conv":
        a: dict[str, Any] = node.attrs
        channels, geometry = (
            [output_channels(node, weight)],
            (a["stride"], a["padding"], a["dilation"], a["transposed"]),
        )
        output_padding = a["output_padding"] if a["transposed"] else [0] * len(a["stride"])
        found: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.convolution_backward(
            grad, x, weight, channels, *geometry, output_padding, a["groups"], list(wants)
        )
        return found
    if node.op == "linear":
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        return (
            grad @ weight if wants[0] else None,
            rows.mT @ inputs if wants[1] else None,
            rows.sum(0) if wants[2] else None,
        )
    others = [d for d in range(grad.dim()) if d != 1]
    return (
        grad * weight.reshape(-1, *[1] * (grad.dim() - 2)) if wants[0] else None,
        (grad * x).sum(others) if wants[1] else None,
        grad.sum(others) if wants[2] else None,
    )
