"""Sums of products of integers, exact in floating point."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Node
from intact8.capture.operations import FUSED

EXACT = 2.0**24
"""Integers up to here are exact in float32; so is any sum whose partial sums all stay below."""


def convolve(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute the convolution, linear map or product per channel of ``node`` alone on real tensors."""
    attrs = {name: value for name, value in node.attrs.items() if name not in FUSED}
    params = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    y: Tensor = FLOAT_OPS[node.op](attrs, [x], params)
    return y


COLUMNS = 1024
"""Input channels that are looked at together, which bounds the memory this takes."""


def chunk_edges(node: Node, weight: Tensor, bound: float) -> list[int] | None:
    """Return where to cut the input channels so that the sums of every part stay exact in float32.

    [0, C] means that no cut is needed, None that the sums need float64.
    """
    channels = 1 if node.op == "scale_shift" else int(weight.shape[1])
    if bound < EXACT:
        return [0, channels]
    if node.op == "scale_shift" or (node.op == "conv" and (node.attrs["groups"] > 1 or node.attrs["transposed"])):
        return None
    edges, at, total = [0], 0, torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
    while at < channels:
        part = weight.detach()[:, at : at + COLUMNS].abs()
        part = (part.flatten(2).sum(2) if part.dim() > 2 else part).double().cumsum(1).mul_(255.0).add_(total[:, None])
        fit = int(torch.searchsorted(part.max(0).values, EXACT))
        if fit == part.shape[1]:
            at, total = at + fit, part[:, -1]
        elif at + fit == edges[-1]:
            return None
        else:
            at = at + fit
            edges.append(at)
            total = torch.zeros_like(total)
    edges.append(channels)
    return edges


def accumulate(node: Node, x: Tensor, weight: Tensor, edges: list[int] | None, bias: Tensor | None = None) -> Tensor:
    """Return the exact Σ x·w + b of float32 tensors of integers: float32 where the sums fit it, else float64.

    ``edges`` come from :func:`chunk_edges`; there is a ``bias`` only where nothing is cut and the sums with it stay
    below EXACT.
    """
    if edges is None:
        return convolve(node, x.double(), weight.double())
    if len(edges) == 2:
        return convolve(node, x, weight, bias)
    axis = -1 if node.op == "linear" else 1
    cuts = itertools.pairwise(edges)
    parts = (convolve(node, x.narrow(axis, i, j - i), weight[:, i:j]).double() for i, j in cuts)
    return functools.reduce(torch.add, parts)


def per_channel(values: Tensor, node: Node, rank: int) -> Tensor:
    """Return (O,) in a shape that broadcasts along the channels of the node's output."""
    return values if node.op == "linear" else values.reshape(-1, *[1] * (rank - 2))
