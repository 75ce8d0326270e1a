"""Layers with integer weights between float activations: dynamic ones quantize their input, others decode weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.bit_packing import group_count
from intact8.arithmetic.dynamic_torch import accumulate, quantize_rows, scaled
from intact8.capture.graph import Node
from intact8.errors import StateError
from intact8.simulation.ops.affine import Affine, LiveBatchNorms
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.simulation.weights.grid import Grid, Limits, on_grid, times
from intact8.train.snapshot import Snapshot


class DynamicLinear(Affine):
    """A linear layer of mode dynamic: exact sums of integers, float32 results (``intact8.arithmetic.dynamic``).

    The weight has a scale per output channel; ``rows`` is the granularity of the input's scales.
    """

    def __init__(self, node: Node, tensors: Mapping[str, Tensor], weight_point: WeightPoint, rows: str) -> None:
        super().__init__(node, tensors, weight_point)
        self.rows = rows

    def __call__(self, inputs: list[Value], live: LiveBatchNorms | None, resolved: bool) -> Value:
        """Compute the layer; a live batch norm behind it sees float sums of the quantized input."""
        if live is not None and self._rounds_weights:
            q, s = quantize_rows(real(inputs[0]), self.rows)
            inputs = [q * s, *inputs[1:]]
        return super().__call__(inputs, live, resolved)

    def real_sum(self, x: Tensor) -> Tensor:
        """Return what the deployed operation gives for ``x``, to the bit."""
        grid, scale, bias = self._real_grid()
        q, s = quantize_rows(x, self.rows)
        return scaled(accumulate(q, grid.tensor()), scale, s, bias)


class DecodedLinear(Affine):
    """A linear layer of mode weight_only: fl(q·s) as weight of a float product, with scales (O, groups).

    ``group`` is the number of columns that share a scale, 0 for whole rows.
    """

    def __init__(self, node: Node, tensors: Mapping[str, Tensor], weight_point: WeightPoint, group: int) -> None:
        super().__init__(node, tensors, weight_point)
        self.group = group

    def __call__(self, inputs: list[Value], live: LiveBatchNorms | None, resolved: bool) -> Value:
        """Compute the layer.

        Raises:
            StateError: a batch norm folded into the layer takes its statistics from the batch.
        """
        if live is not None:
            what = "batch norm behind a weight-only layer is in training mode"
            remedy = "call sim.freeze_batch_norm(), or give the layer another mode"
            raise StateError(what, where=self.node.name, remedy=remedy)
        return super().__call__(inputs, live, resolved)

    def real_sum(self, x: Tensor) -> Tensor:
        """Return the float product with the decoded weight."""
        grid, scale, bias = self._real_grid()
        return F.linear(x, grid.tensor() * spread(scale, grid.q.shape[1], self.group), bias)

    def _grid(self, weight: Tensor, factor: Tensor | None) -> tuple[Grid, Tensor]:
        return on_group_grid(self._weights, weight, factor, self.group)


class DecodedEmbedding:
    """Rows of an embedding as integers: y = fl(q·s); ``weight_point`` has scales (rows, groups)."""

    def __init__(self, node: Node, tensors: Mapping[str, Tensor], weight_point: WeightPoint, group: int) -> None:
        self.node, self.tensors, self.weight_point, self.group = node, tensors, weight_point, group
        self._cache: tuple[Snapshot, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def __call__(self, inputs: list[Value], live: LiveBatchNorms | None, resolved: bool) -> Value:
        """Look up the rows of the first input."""
        weight, index, wp = self._weight, real(inputs[0]), self.weight_point
        if not (wp.quantizing and wp.known):
            return F.embedding(index, weight)
        if torch.is_grad_enabled() or wp.moving:
            return self._rows(F.embedding(index, weight), index)
        if self._cache is None or not self._cache[0].current([weight, wp.scale]):
            q, scale = self.codes()
            self._cache = Snapshot([weight, wp.scale]), q * spread(scale, q.shape[1], self.group)
        return F.embedding(index, self._cache[1])

    @property
    def _weight(self) -> Tensor:
        return self.tensors[self.node.params["weight"]]

    def _rows(self, rows: Tensor, index: Tensor) -> Tensor:
        """Decode some rows, with gradients: every row has scales of its own, so the others are left alone."""
        flat, wp = rows.reshape(-1, rows.shape[-1]), self.weight_point
        scale = None if wp.moving else wp.scale[index.reshape(-1)]
        grid, scale = on_group_grid(wp, flat, None, self.group, scale)
        return ((grid.tensor() + 0.0) * spread(scale, flat.shape[1], self.group)).reshape(rows.shape)

    def codes(self) -> tuple[Tensor, Tensor]:
        """Return the integers (rows, columns), and their scales (rows, groups)."""
        grid, scale = on_group_grid(self.weight_point, self._weight, None, self.group)
        return grid.q + 0.0, scale  # no −0: integers have none


def spread(scale: Tensor, columns: int, group: int) -> Tensor:
    """Return scales (rows, groups) as (rows, 1) or (rows, columns)."""
    return scale.repeat_interleave(group, 1)[:, :columns] if group else scale


def on_group_grid(
    wp: WeightPoint, weight: Tensor, factor: Tensor | None, group: int, scale: Tensor | None = None
) -> tuple[Grid, Tensor]:
    """Return the integers of ``weight·factor``, (rows, columns), and their scales (rows, groups).

    ``scale`` takes the place of the point's scales where these do not move.
    """
    numbers = times(weight, factor)
    count, columns = numbers.shape
    if wp.moving:
        scale = wp.live_scale(grouped(numbers, group)).reshape(count, -1)
    elif scale is None:
        scale = wp.scale
    return on_grid(weight, factor, spread(scale, columns, group), Limits(wp.lo, wp.hi), numbers), scale


def grouped(rows: Tensor, group: int) -> Tensor:
    """Return (rows, columns) as (rows·groups, group), with zeros behind the last columns."""
    if not group:
        return rows
    count = group_count(rows.shape[1], group)
    return F.pad(rows, (0, count * group - rows.shape[1])).reshape(-1, group)
