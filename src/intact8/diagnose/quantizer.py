"""The grid on which a tensor is quantized."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quantizer:
    """The real numbers ``scale · (q − zero_point)`` for the integers q from ``lo`` to ``hi``.

    Attributes:
        scale, zero_point: scale and zero point of the tensor.
        lo, hi: smallest and largest integer.

    Example:
        >>> quantizer = Quantizer(0.5, 10, 0, 255)
        >>> q = quantizer.round(quantizer.steps(torch.tensor([1.0, -9.0])))
        >>> q.tolist(), quantizer.dequantize(q).tolist(), quantizer.ends
        ([12, 0], [1.0, -5.0], (-5.0, 122.5))
    """

    scale: float
    zero_point: int
    lo: int
    hi: int

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest real number."""
        return (self.lo - self.zero_point) * self.scale, (self.hi - self.zero_point) * self.scale

    @property
    def width(self) -> float:
        """The distance between the smallest and the largest real number."""
        return (self.hi - self.lo) * self.scale

    def steps(self, x: Tensor) -> Tensor:
        """Return real numbers in units of the scale, by IEEE division as in ``quantize``."""
        return x / self.scale

    def round(self, steps: Tensor) -> Tensor:
        """Return the uint8 integers of numbers in units of the scale."""
        z = self.zero_point
        rounded = torch.round(steps).clamp_(self.lo - z, self.hi - z)  # clamping to integers commutes with rounding
        return rounded.to(torch.int16).add_(z).to(torch.uint8)

    def dequantize(self, q: Tensor) -> Tensor:
        """Return the real numbers, float32, of uint8 integers."""
        return q.to(torch.float32).sub_(self.zero_point).mul_(self.scale)
