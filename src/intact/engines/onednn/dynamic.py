"""dynamic_linear: rows quantized in six passes of torch, one oneDNN product, two passes for scales and bias.

Operations that read the same tensor share its quantized rows (``intact.engines.onednn.plan``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact.arithmetic.codes import decode
from intact.arithmetic.dynamic import ZERO
from intact.arithmetic.dynamic_torch import scales_of

from .products import LINEAR, LINEAR_PACK
from .site import Site, Step

Rows = tuple[Tensor, Tensor]
"""uint8 (…, K), contiguous, and float32 scales (…, 1)."""

ROUND = 1.5 * 2.0**23 + ZERO
"""Added to |v| ≤ 127, the sum is rounded to an integer, half to even, whose lowest byte is R(v) + 128."""


def quantizer(granularity: str) -> Callable[[Tensor], Rows]:
    """Rows of tensors, see ``intact.arithmetic.dynamic.quantize_rows``.

    Where the scale is NaN, integers are of no consequence.
    """
    reach = torch.tensor(127.0)

    def rows(x: Tensor) -> Rows:
        v = x.abs()
        s = scales_of(v, granularity, reach)
        torch.div(x, s, out=v)
        q = v.add_(ROUND).view(torch.int32).to(torch.uint8)
        return q.contiguous(), s

    return rows


def lower_dynamic_linear(site: Site) -> Callable[[Rows], Tensor]:
    """The product of quantized rows with the weight."""
    p, width = site.op.arrays, site.inputs[0].shape[-1]
    count = max(1, site.inputs[0].numel() // width)
    weight = torch.from_numpy(np.array(p["weight"]))
    pack = site.pack(("dynamic", width), lambda: LINEAR_PACK(weight, [count, width]))
    scale, zeros = torch.from_numpy(np.array(p["scale"])), torch.zeros(len(p["scale"]), dtype=torch.int32)
    head: tuple[Any, ...] = (1.0, ZERO, pack.weight, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    if "bias" not in p:
        return lambda rows: LINEAR(rows[0], *head).mul_(rows[1])
    bias = torch.from_numpy(np.array(p["bias"]))
    return lambda rows: LINEAR(rows[0], *head).mul_(rows[1]).add_(bias)


def lower_decoded_embedding(site: Site) -> Step:
    """Rows of the decoded table, decoded once."""
    table = _decoded(site)
    return lambda index: torch.embedding(table, index)


def lower_decoded_linear(site: Site) -> Step:
    """A float product with a weight that is decoded once."""
    weight, bias = _decoded(site), site.op.arrays.get("bias")
    offset = None if bias is None else torch.from_numpy(np.array(bias))
    return lambda x: torch.nn.functional.linear(x, weight, offset)


def _decoded(site: Site) -> Tensor:
    p = site.op.arrays
    return site.pack(("decoded",), lambda: torch.from_numpy(decode(p["weight"], p["scale"], **site.op.attrs))).weight
