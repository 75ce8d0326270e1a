"""dynamic_linear: rows are quantized, then one oneDNN product, then scales and bias.

Operations that read the same tensor share its quantized rows (``intact8.engines.onednn.plan``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.bit_packing import decode
from intact8.arithmetic.dynamic import ZERO
from intact8.arithmetic.dynamic_torch import scales_of
from intact8.engines.onednn.conv_linear import LINEAR, LINEAR_PACK
from intact8.engines.onednn.lowering import OpContext, Packed, Rule, Step
from intact8.opset.op import Array

Rows = tuple[Tensor, Tensor]
"""uint8 (…, K), contiguous, and float32 scales (…, 1)."""

PLAIN: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
"""What the operator takes behind scales and zero points: no bias, and float32 results as they are."""

ROUND = 1.5 * 2.0**23 + ZERO
"""Adding this to |v| ≤ 127 rounds half to even: the lowest byte of the sum's bits is R(v) + 128."""


def quantizer(granularity: str) -> Callable[[Tensor], Rows]:
    """Return what makes rows of tensors: ``intact8.arithmetic.dynamic.quantize_rows``. Where a scale is NaN, any
    integers do."""
    reach = torch.tensor(127.0, dtype=torch.float32)

    def rows(x: Tensor) -> Rows:
        v = x.abs()
        s = scales_of(v, granularity, reach)
        torch.div(x, s, out=v)
        q = v.add_(ROUND).view(torch.int32).to(torch.uint8)
        return q.contiguous(), s

    return rows


def finish(y: Tensor, s: Tensor, bias: Tensor | None) -> Tensor:
    """Return fl(fl(y·s) + bias) in the memory of y (…, O), contiguous; s (…, 1), bias (O,) or None."""
    return y.mul_(s) if bias is None else y.mul_(s).add_(bias)


@dataclass(frozen=True)
class Product:
    """Rows of integers times a packed weight."""

    pack: Packed
    scale: Tensor
    zeros: Tensor

    @staticmethod
    def of(ctx: OpContext, key: tuple[Any, ...], rows: int, weight: Array, scale: Array) -> Product:
        """Return the product by ``weight`` int8 (O, K) and ``scale`` float32 (O,), packed for so many ``rows``."""
        shape = [max(1, rows), weight.shape[1]]
        pack = ctx.pack((*key, shape[1]), lambda: LINEAR_PACK(torch.from_numpy(np.array(weight)), shape))
        return Product(pack, torch.from_numpy(np.array(scale)), torch.zeros(len(scale), dtype=torch.int32))

    def __call__(self, u: Tensor) -> Tensor:
        """Return fl(fl(acc)·scale), u (…, K) uint8 of integers + 128."""
        y: Tensor = LINEAR(u, 1.0, ZERO, self.pack.weight, self.scale, self.zeros, *PLAIN)
        return y


def lower_dynamic_linear(ctx: OpContext) -> Callable[[Rows], Tensor]:
    """Return the product of quantized rows with the weight."""
    p, width = ctx.op.arrays, ctx.inputs[0].shape[-1]
    multiply = Product.of(ctx, ("dynamic",), ctx.inputs[0].numel() // width, p["weight"], p["scale"])
    bias = torch.from_numpy(np.array(p["bias"])) if "bias" in p else None
    return lambda rows: finish(multiply(rows[0]), rows[1], bias)


def _decoded_embedding(ctx: OpContext) -> Step:
    table = _decoded(ctx)
    return lambda index: torch.embedding(table, index)


def _decoded_linear(ctx: OpContext) -> Step:
    weight, bias = _decoded(ctx), ctx.op.arrays.get("bias")
    offset = None if bias is None else torch.from_numpy(np.array(bias))
    return lambda x: torch.nn.functional.linear(x, weight, offset)


def _decoded(ctx: OpContext) -> Tensor:
    """Return the weight, which is decoded once."""
    p = ctx.op.arrays
    return ctx.pack(("decoded",), lambda: torch.from_numpy(decode(p["weight"], p["scale"], **ctx.op.attrs))).weight


RULES: dict[str, Rule] = {"decoded_embedding": _decoded_embedding, "float.decoded_linear": _decoded_linear}
"""Kind → rule; the plan treats ``dynamic_linear`` itself."""
