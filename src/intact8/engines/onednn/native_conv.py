"""Convolutions by the compiled kernels, see ``intact8.engines.packed_conv``."""

from __future__ import annotations

from functools import partial

import torch

from intact8.engines.onednn import torch_native
from intact8.engines.onednn.lowering import OpContext, Step, is_nhwc, to_nhwc
from intact8.engines.packed_conv import PackedConv


def lower_native_conv(ctx: OpContext) -> Step | None:
    """Lower ``conv`` in one pass; None for those that oneDNN does."""
    library, x = torch_native.load(), ctx.inputs[0]
    if library is None or x.dim() != 4 or not library.can_convolve():
        return None
    conv = PackedConv.of(ctx.op, ctx.z_x, ctx.z)
    if conv is None:
        return None

    def packed(i: int) -> torch.Tensor:
        return torch.from_numpy(conv.packed[i])

    packs = [ctx.pack((conv.kind, i), partial(packed, i)).weight for i in range(3)]
    addresses, sizes = [pack.data_ptr() for pack in packs], [pack.nbytes for pack in packs]
    n, channels, *size = x.shape
    shape = (n, *conv.output_size(size), len(ctx.op.arrays["bias"]))
    one_pass, fixed = library.convolve, (conv.kind == "Dense", False, n, *size, channels, *conv.numbers)
    fits = is_nhwc(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x if fits else to_nhwc(x)
        y = torch.empty(shape, dtype=torch.uint8)
        one_pass(x.data_ptr(), *addresses, y.data_ptr(), *fixed, *torch_native.sizes(x, torch.uint8), *sizes, y.nbytes)
        return y.permute(0, 3, 1, 2)

    return step
