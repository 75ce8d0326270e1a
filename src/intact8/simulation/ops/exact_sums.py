"""Sums of products of integers, exact in floating point."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.capture.graph import Node

EXACT = 2.0**24
"""Integers up to here are exact in float32; so is any sum whose partial sums all stay below."""

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def convolve(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute the convolution, linear map or product per channel of ``node`` on real tensors."""
    a: dict[str, Any] = node.attrs
    if node.op == "linear":
        return F.linear(x, weight, bias)
    if node.op == "scale_shift":
        shape = (1, -1, *[1] * (x.dim() - 2))
        y = x * weight.reshape(shape)
        return y if bias is None else y + bias.reshape(shape)
    rank = len(a["stride"])
    if a["transposed"]:
        return _CONV_TRANSPOSE[rank](
            x, weight, bias, a["stride"], a["padding"], a["output_padding"], a["groups"], a["dilation"]
        )
    return _CONV[rank](x, weight, bias, a["stride"], a["padding"], a["dilation"], a["groups"])


def chunk_edges(node: Node, weight: Tensor, bound: float) -> list[int] | None:
    """Return where to cut the input channels so that the sums of every part stay exact in float32.

    [0, C] means that no cut is needed, None that the sums need float64.
    """
    if weight.is_cuda:
        return None  # cuDNN may take Winograd or TF32 for float32, but not for float64
    channels = 1 if node.op == "scale_shift" else int(weight.shape[1])
    if bound < EXACT:
        return [0, channels]
    if node.op == "scale_shift" or (node.op == "conv" and (node.attrs["groups"] > 1 or node.attrs["transposed"])):
        return None
    magnitude = weight.detach().abs().flatten(2).sum(2) if weight.dim() > 2 else weight.detach().abs()
    cumulative = torch.nn.functional.pad(magnitude.double().cumsum(1), (1, 0)) * 255.0
    edges = [0]
    while edges[-1] < channels:
        reach = (cumulative - cumulative[:, edges[-1] : edges[-1] + 1]).max(0).values
        end = int(torch.searchsorted(reach, EXACT)) - 1
        if end <= edges[-1]:
            return None
        edges.append(min(end, channels))
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
    total: Tensor | None = None
    for start, end in itertools.pairwise(edges):
        part = convolve(node, x.narrow(axis, start, end - start), weight[:, start:end]).double()
        total = part if total is None else total + part
    assert total is not None
    return total


def per_channel(values: Tensor, node: Node, rank: int) -> Tensor:
    """Return (O,) in a shape that broadcasts along the channels of the node's output."""
    return values if node.op == "linear" else values.reshape(-1, *[1] * (rank - 2))
