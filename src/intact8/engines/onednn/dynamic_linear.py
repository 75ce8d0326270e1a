"""dynamic_linear: rows quantized in one pass, one oneDNN product, one pass for scales and bias.

Without the compiled kernels (``intact8.engines.onednn.torch_native``), torch takes six and two for the same bits.
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
from intact8.engines.onednn import torch_native
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
    """Return the makes rows of tensors: ``intact8.arithmetic.dynamic.quantize_rows``. Where a scale is NaN, any
    integers do."""
    compiled = torch_native.load()
    if compiled is not None and granularity == "per_row":
        one_pass = compiled.quantize_rows

        def by_row(x: Tensor) -> Rows:
            x = x.contiguous()
            q, s = torch.empty(x.shape, dtype=torch.uint8), torch.empty((*x.shape[:-1], 1), dtype=torch.float32)
            sizes = (*torch_native.sizes(x, torch.float32), q.nbytes, s.nbytes)
            one_pass(x.data_ptr(), q.data_ptr(), s.data_ptr(), s.numel(), x.shape[-1], *sizes)
            return q, s

        return by_row
    reach = torch.tensor(127.0, dtype=torch.float32)

    def rows(x: Tensor) -> Rows:
        v = x.abs()
        s = scales_of(v, granularity, reach)
        torch.div(x, s, out=v)
        q = v.add_(ROUND).view(torch.int32).to(torch.uint8)
        return q.contiguous(), s

    return rows


def scaler(granularity: str) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Return the makes (y, s, bias) → fl(fl(y·s) + bias) in the memory of y (…, O), contiguous; s (…, 1), bias (O,) or
    None."""
    compiled = torch_native.load()
    if compiled is not None and granularity == "per_row":
        one_pass = compiled.scale_rows

        def by_row(y: Tensor, s: Tensor, bias: Tensor | None) -> Tensor:
            added, size = (0, 0) if bias is None else (bias.data_ptr(), bias.nbytes)
            sizes = *torch_native.sizes(y, torch.float32), *torch_native.sizes(s, torch.float32), size
            one_pass(y.data_ptr(), s.data_ptr(), added, s.numel(), y.shape[-1], *sizes)
            return y

        return by_row
    return lambda y, s, bias: y.mul_(s) if bias is None else y.mul_(s).add_(bias)


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
    finish = scaler(ctx.op.attrs["granularity"])
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
