"""Sums of products of integers, exact in floating point."""

from __future__ import annotations

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.arithmetic.windows import pool_size
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


def accumulate(
    node: Node, x: Tensor, weight: Tensor, edges: list[int] | None, bias: Tensor | None = None, *, whole: bool = True
) -> Tensor:
    """Return the exact Σ x·w + b of float32 tensors of integers: float32 where the sums fit it, else float64.

    Where x is not ``whole``, dropout has scaled integers, and sums are as near as floating point has them. ``edges``
    come from :func:`chunk_edges`; there is a ``bias`` only where nothing is cut and the sums with it stay below EXACT.
    """
    if edges is None:
        if whole and x.is_cuda and _is_product(node):
            return _product_of_layer(node, x, weight)
        return convolve(node, x.double(), weight.double())
    if len(edges) == 2:
        return convolve(node, x, weight, bias)
    axis = -1 if node.op == "linear" else 1
    cuts = itertools.pairwise(edges)
    parts = (convolve(node, x.narrow(axis, i, j - i), weight[:, i:j]).double() for i, j in cuts)
    return functools.reduce(torch.add, parts)


LONGEST = int((EXACT - 1) // (255 * 128))
"""Terms, each of an activation minus its zero point and an 8-bit weight, whose sum stays 256 below EXACT."""


def exact_product(x: Tensor, w: Tensor, longest: int, *, whole: bool = True) -> Tensor:
    """Return x·w of integers within ±255, (…, I, K) and (…, K, J), in parts of at most ``longest`` terms.

    Sums of ``longest`` terms stay below EXACT: they are exact in float32, whatever the order, and with the inputs of
    TF32, which hold 11 bits. On NVIDIA's GPUs they are products of float16, which tensor cores add in float32, but
    where dropout has scaled integers (not ``whole``). The result is float32 where one part is enough, else float64.
    """
    multiply = half_product if whole and x.is_cuda and HALF else torch.matmul
    if x.shape[-1] <= longest:
        return multiply(x, w)
    pairs = zip(torch.split(x, longest, -1), torch.split(w, longest, -2), strict=True)
    return functools.reduce(torch.add, (multiply(a, b).double() for a, b in pairs))


HALF = hasattr(torch.ops.aten.bmm, "dtype") and torch.version.hip is None
"""Whether this torch multiplies float16 into float32 on a GPU."""


def half_product(x: Tensor, w: Tensor) -> Tensor:
    """Return x·w of integers within ±255 on a GPU (see ``HALF``), float32, of matrices or batches that broadcast.

    It is exact while sums stay below EXACT.
    """
    x, w = x.half(), w.half()
    if w.dim() == 2:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return torch.mm(rows, w, out_dtype=torch.float32).view(*x.shape[:-1], w.shape[-1])
    batch = torch.broadcast_shapes(x.shape[:-2], w.shape[:-2])  # type: ignore[no-untyped-call]
    a, b = (t.expand(*batch, *t.shape[-2:]).reshape(math.prod(batch), *t.shape[-2:]) for t in (x, w))
    return torch.bmm(a, b, out_dtype=torch.float32).view(*batch, x.shape[-2], w.shape[-1])


def _is_product(node: Node) -> bool:
    """Return whether a layer is a matrix product of its weight and the columns of its input."""
    if node.op == "conv":
        return not node.attrs["transposed"] and node.attrs["groups"] == 1 and len(node.attrs["stride"]) <= 2
    return node.op == "linear"


UNFOLDED = 1 << 27
"""Elements of unfolded inputs that are multiplied together: 256 MiB of float16."""


def _product_of_layer(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    """Return the exact Σ x·w of a linear map or a dense convolution as a matrix product.

    cuDNN chooses how it convolves, and Winograd's way, which rounds, is among the choices; products leave none.
    """
    if node.op == "linear":
        return exact_product(x, weight.mT, LONGEST)
    stride, padding, dilation = (node.attrs[name] for name in ("stride", "padding", "dilation"))
    flat = len(stride) == 2
    if not flat:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    kernel, rows = weight.shape[2:], weight.flatten(1)
    size = list(map(pool_size, x.shape[2:], kernel, stride, padding, dilation))
    # Integers within ±255 are the same in float16, which halves what is moved.
    x = F.pad(x.half() if HALF else x, [padding[1], padding[1], padding[0], padding[0]]).contiguous()
    samples = max(1, UNFOLDED // max(1, rows.shape[1] * math.prod(size)))
    sums = []
    for part in torch.split(x, samples):
        sample, channel, row, column = part.stride()
        strides = [sample, channel, row * dilation[0], column * dilation[1], row * stride[0], column * stride[1]]
        windows = part.as_strided([len(part), part.shape[1], *kernel, *size], strides, part.storage_offset())
        sums.append(exact_product(rows[None], windows.reshape(len(part), rows.shape[1], math.prod(size)), LONGEST))
    y = (sums[0] if len(sums) == 1 else torch.cat(sums)).view(len(x), len(weight), *size)
    return y if flat else y.squeeze(2)


def per_channel(values: Tensor, node: Node, rank: int) -> Tensor:
    """Return (O,) in a shape that broadcasts along the channels of the node's output."""
    return values if node.op == "linear" else values.reshape(-1, *[1] * (rank - 2))
