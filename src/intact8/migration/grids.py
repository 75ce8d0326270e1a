"""Grids of other tools, in neutral words: which integers a tensor or weight has there, and what they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intact8.capture.marks import mark
from intact8.errors import InputError
from intact8.recipe.scheme import Scheme

Array = npt.NDArray[Any]

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
"""Dtype of integers → its ends."""


@dataclass(frozen=True)
class ActivationGrid:
    """The scale, zero point and integers of an activation.

    Attributes:
        name: what the other tool calls the tensor.
        scale, zero_point: real number = scale·(integer − zero_point).
        qmin, qmax: the smallest and largest integer.
        dtype: "uint8" or "int8".

    Raises:
        InputError: no such grid can be had in 8 bits.

    Example:
        >>> ActivationGrid("conv1", 0.5, 64, 0, 127, "uint8").scheme().fixed
        (0.5, 64)
    """

    name: str
    scale: float
    zero_point: int
    qmin: int
    qmax: int
    dtype: str

    def __post_init__(self) -> None:
        low, high = RANGES.get(self.dtype, (0, -1))
        inside = low <= self.qmin <= self.zero_point <= self.qmax <= high and self.qmin < self.qmax
        if not (inside and math.isfinite(self.scale) and self.scale > 0):
            what = (
                f"scale {self.scale}, zero point {self.zero_point}, integers {self.qmin}..{self.qmax} of {self.dtype}"
            )
            why = "programs hold activations in 8 bits, with a positive scale and a zero point among the integers"
            raise InputError(what, where=self.name, why=why, remedy="calibrate or train it there until it is so")

    def scheme(self) -> Scheme:
        """Return the scheme that has this grid and no other."""
        fixed = (float(np.float32(self.scale)), self.zero_point)
        return Scheme(dtype=self.dtype, qmin=self.qmin, qmax=self.qmax, observer="minmax", fixed=fixed)

    @property
    def shift(self) -> int:
        """What is added to an integer to have it as the uint8 of a program."""
        return 128 if self.dtype == "int8" else 0


@dataclass(frozen=True)
class WeightGrid:
    """The integers of a weight, and what they stand for.

    Attributes:
        name: what the other tool calls the layer.
        integers: of the weight's shape.
        scale, zero_point: one per channel along ``axis``, or one in all; float64 and int64, one dimension.
        axis: the dimension of the channels.

    Example:
        >>> grid = WeightGrid("fc", np.array([[2, -4]]), np.array([0.5]), np.array([0]), 0)
        >>> grid.values().tolist(), grid.channel_scales(0, 1).tolist()
        ([[1.0, -2.0]], [0.5])
    """

    name: str
    integers: Array
    scale: Array
    zero_point: Array
    axis: int = 0

    def __post_init__(self) -> None:
        fits = self.scale.size in (1, self.integers.shape[self.axis] if self.integers.ndim else 1)
        if not (fits and self.scale.shape == self.zero_point.shape and np.isfinite(self.scale).all()):
            why = f"{self.scale.size} scales for a weight of shape {self.integers.shape} along axis {self.axis}"
            raise InputError("the scales of the weight do not fit it", where=self.name, why=why, remedy="repair them")
        if not (self.scale > 0).all():
            what = f"{int((self.scale <= 0).sum())} scales of the weight are not positive"
            raise InputError(what, where=self.name, remedy="calibrate or train it there until they are")

    def values(self) -> Array:
        """Return the numbers the integers stand for, float32, of the weight's shape."""
        shape = [1] * self.integers.ndim
        if self.scale.size > 1:
            shape[self.axis] = -1
        centered = self.integers.astype(np.float32) - self.zero_point.astype(np.float32).reshape(shape)
        result: Array = centered * self.scale.astype(np.float32).reshape(shape)
        return result

    def centered(self) -> Array:
        """Return the integers less their zero points, which stand for the same numbers with zero point 0."""
        shape = [1] * self.integers.ndim
        if self.scale.size > 1:
            shape[self.axis] = -1
        result: Array = self.integers.astype(np.int64) - self.zero_point.reshape(shape)
        return result

    def channel_scales(self, axis: int, channels: int) -> Array | None:
        """Return the scale per output channel, float32 (channels,); None where the scales are of another dimension."""
        if self.scale.size == 1:
            return np.full(channels, self.scale[0], np.float32)
        # The groups of a transposed convolution, whose channels are along dimension 1, share its scales.
        times = channels // self.scale.size if axis == 1 else 1
        fits = self.axis == axis and self.scale.size * times == channels
        return np.tile(self.scale.astype(np.float32), times) if fits else None


class Mark(nn.Module):
    """Stands where another tool quantizes a tensor, or, without a grid, where it makes floats of integers.

    Attributes:
        number: finds the tensor in the captured graph; see ``intact8.capture.marks``.
        grid: the grid there.
        rounding: whether forward rounds to the grid, as the other tool does; otherwise it is the identity.
        seen: what it rounded to since rounding began, one tensor of integers a call.
    """

    def __init__(self, number: int, grid: ActivationGrid | None) -> None:
        super().__init__()
        self.number, self.grid = number, grid
        self.rounding = False
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, or what it is on the grid."""
        if not self.rounding:
            marked: Tensor = mark(x, self.number)
            return marked
        if self.grid is None:
            return x
        g = self.grid
        q = torch.clamp(torch.round(x.double() / float(np.float32(g.scale))) + g.zero_point, g.qmin, g.qmax)
        self.seen.append((q + g.shift).to(torch.uint8))
        return ((q - g.zero_point) * float(np.float32(g.scale))).to(x.dtype)
