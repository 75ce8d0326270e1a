"""Plain W8A8 of a float network, as a yardstick: what 8 bits alone cost where nothing else is done to it.

Inputs of the network, and weights, inputs and results of its linear layers, convolutions and products are rounded to
8 bits in the ranges they have in this very call. Everything else is computed in float.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LAYERS = frozenset({
    F.linear, torch.conv1d, torch.conv2d, torch.conv3d, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d,
    F.conv_transpose2d, F.conv_transpose3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
})  # fmt: skip
"""Their second argument is a weight."""


def rounded(x: Any) -> Any:
    """A float tensor on a grid of 256 values over its range, which includes 0. Anything else as it is."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
        return x
    finite = x[torch.isfinite(x)]
    if not finite.numel():
        return x
    low, high = finite.min().clamp(max=0), finite.max().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.where(torch.isfinite(x), ((x - low) / scale).round() * scale + low, x)


def rounded_weight(w: Tensor) -> Tensor:
    """Symmetric, 8 bits, a scale per first dimension."""
    flat = w.reshape(w.shape[0], -1) if w.ndim > 1 else w.reshape(1, -1)
    scale = (flat.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(w.dtype).tiny)
    return ((flat / scale).round() * scale).reshape(w.shape)


class Plain(TorchFunctionMode):
    """Rounds around every layer that is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in LAYERS or len(args) < 2:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return rounded(func(rounded(args[0]), rounded_weight(args[1]), *args[2:], **kwargs))


def plain(model: nn.Module, call: tuple[Any, ...]) -> Any:
    """The network's outputs in plain W8A8."""
    call = pytree.tree_map(rounded, copy.deepcopy(call))
    with torch.no_grad(), Plain():
        return pytree.tree_map(rounded, model(*call))
