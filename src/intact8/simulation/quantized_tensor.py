"""Values that flow between the nodes of a simulation: real tensors, and tensors on a grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intact8.simulation.scales.quant_points import QuantPoint


@dataclass(frozen=True)
class Quantized:
    """A tensor on a grid.

    Attributes:
        q: ``integers − zero_point`` as a float tensor; differentiable.
        point: the quantization point it belongs to.
        whole: whether ``q`` holds integers; dropout in training scales them.
    """

    q: Tensor
    point: QuantPoint
    whole: bool = True

    @property
    def zero_point(self) -> int:
        """Zero point in the uint8 domain."""
        return self.point.zero_point_value

    def real(self) -> Tensor:
        """Return q·scale, float32."""
        return self.q * self.point.live_scale

    def integers(self) -> Tensor:
        """Return the uint8 integers."""
        return (self.q + self.point.zero_point).to(torch.uint8)


Value = Tensor | Quantized


def real(value: Value) -> Tensor:
    """Return the value as real numbers."""
    return value.real() if isinstance(value, Quantized) else value
