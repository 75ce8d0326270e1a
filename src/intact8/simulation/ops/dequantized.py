"""Layers on integers whose results are float32: their exact sums are multiplied by a scale instead of being rounded."""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.simulation.ops.affine import Affine, Integers
from intact8.simulation.ops.integer_conv import weighted_sum
from intact8.simulation.quantized_tensor import Quantized, Value
from intact8.simulation.scales.quant_points import QuantPoint


class DequantizedLayer(Affine):
    """A convolution or linear layer with the results of ``intact8.arithmetic.dynamic.dequantized``."""

    def sum_of(self, x: Value, resolved: bool) -> Tensor:
        """Return what the deployed operation gives, to the bit where ``resolved``; a float product of a float input."""
        if not isinstance(x, Quantized):
            return super().sum_of(x, resolved)
        n, scale, bias = self.deployed(x.point)
        exact = self._exact_sum(n, x.point)._replace(single=True) if resolved else None
        return weighted_sum(self.node, x.q, n.grid, scale, bias, exact, whole=x.whole)

    def deployed(self, x_point: QuantPoint) -> tuple[Integers, Tensor, Tensor | None]:
        """Return integer weights, scales (O,) of their sums with inputs of ``x_point``, and the bias, float32."""

        def make() -> tuple[Integers, Tensor, Tensor | None]:
            grid, scale, bias = self._rounded()
            none = torch.zeros_like(scale, dtype=torch.float64)
            return Integers(grid, none, scale), x_point.live_scale * scale, bias

        return self._cached("deployed", lambda: [*self._sources(), self._weights.scale, x_point.live_scale], make)
