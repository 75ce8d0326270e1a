"""Layers of other tools as float layers of torch, whose weights are what the integers stand for."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.calibration.weights import weight_scales
from intact8.errors import InputError
from intact8.migration.description import Description
from intact8.migration.grids import Array, WeightGrid

REQUANTIZE = "name the layer in requantize=[…] to have its weight quantized anew"
"""What to do about a weight whose integers cannot be kept."""


class Weights:
    """Enters weights into a description.

    Args:
        described: where they are entered.
        requantize: names or globs of layers whose weights may be quantized anew.
    """

    def __init__(self, described: Description, requantize: Collection[str]) -> None:
        self.described, self.requantize = described, requantize

    def enter(self, parameter: str, grid: WeightGrid, transposed: bool = False) -> Tensor:
        """Enter the integers of a parameter, and return the numbers they stand for.

        Raises:
            InputError: they are not symmetric int8 with one scale, or one per output channel.
        """
        axis = 1 if transposed else 0
        centered = grid.centered()
        fits = centered.min(initial=0) >= -128 and centered.max(initial=0) <= 127
        along = grid.scale.size == 1 or grid.axis == axis
        if fits and along:
            grid = replace(grid, integers=centered, zero_point=np.zeros_like(grid.zero_point))
        elif self.may_change(grid.name):
            grid = self.requantized(grid.name, grid.values(), axis)
        else:
            what = (
                f"its weight has integers from {centered.min()} to {centered.max()} less their zero points"
                if along
                else f"its weight has {grid.scale.size} scales along dimension {grid.axis}"
            )
            why = "a program holds weights in -128..127 with zero point 0, and one scale per output channel"
            raise InputError(what, where=grid.name, why=why, remedy=REQUANTIZE)
        self.described.weights[parameter] = grid
        return torch.from_numpy(grid.values())

    def may_change(self, name: str) -> bool:
        """Return whether the weight of a layer may be quantized anew."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.requantize)

    def requantized(self, name: str, values: Array, axis: int) -> WeightGrid:
        """Return integers of these numbers with a scale per channel along ``axis`` and zero point 0, and say so."""
        rows = np.moveaxis(values, axis, 0)
        scale = weight_scales(rows, -127, 127, portable=False)
        integers = np.rint(rows / scale.reshape(-1, *[1] * (rows.ndim - 1)))
        q = np.moveaxis(integers, 0, axis).astype(np.int64)
        self.described.requantized.append(name)
        return WeightGrid(name, q, scale.astype(np.float64), np.zeros(len(scale), np.int64), axis)


def float_layer(module: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a convolution or linear layer of torch with the sizes of another tool's layer and the given weight."""
    made: nn.Module
    if hasattr(module, "kernel_size"):
        size = len(tuple(module.kernel_size))
        transposed = bool(getattr(module, "transposed", False))
        kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{size}d")
        sizes = {name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
        if transposed:
            sizes["output_padding"] = module.output_padding
        mode = getattr(module, "padding_mode", "zeros")
        made = kind(module.in_channels, module.out_channels, bias=bias is not None, padding_mode=mode, **sizes)
    else:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        made.weight.copy_(weight)  # type: ignore[operator]
        if bias is not None:
            made.bias.copy_(bias.detach())  # type: ignore[operator]
    return made.eval()


def folded(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a trained layer with its batch norm, where it has one, folded into them."""
    weight, bias, norm = module.weight.detach(), module.bias, getattr(module, "bn", None)
    bias = None if bias is None else bias.detach()
    if norm is None:
        return weight, bias
    factor = torch.rsqrt(norm.running_var + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight.detach()
    shape = [1] * weight.ndim
    shape[1 if getattr(module, "transposed", False) else 0] = -1
    moved = -norm.running_mean if bias is None else bias - norm.running_mean
    shift = moved * factor if norm.bias is None else moved * factor + norm.bias.detach()
    return weight * factor.reshape(shape), shift.detach()
