"""Layers whose weights are integers between float activations: quantized when they run, or decoded and multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.bit_packing import group_count
from intact8.arithmetic.dynamic_torch import accumulate, quantize_rows, scaled
from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Node
from intact8.errors import StateError
from intact8.simulation.ops.affine import Affine, LiveBatchNorms
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.simulation.weights.grid import Grid, Limits, on_grid, times
from intact8.train.snapshot import Snapshot

if TYPE_CHECKING:
    pass


class DynamicLinear(Affine):
    """A linear layer of mode dynamic: exact sums of integers, float32 results (``intact8.arithmetic.dynamic``).

    Args:
        node: linear.
        weight_point: of its weight, one scale per output channel.
        rows: granularity of the input's scales.
    """

    def __init__(self, node: Node, weight_point: WeightPoint, rows: str) -> None:
        super().__init__(node, None, weight_point, None)
        self.rows = rows

    def __call__(
        self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms | None, resolved: bool
    ) -> Value:
        """As of :class:`Affine`. A live batch norm behind it sees float sums of the quantized input."""
        if live is not None and self._rounds_weights:
            q, s = quantize_rows(real(inputs[0]), self.rows)
            inputs = [q * s, *inputs[1:]]
        return super().__call__(inputs, tensors, live, resolved)

    def sums(self, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """What the deployed operation gives for ``x``, to the bit: before a residual or an activation."""
        grid, scale, bias = self._real_grid(tensors)
        q, s = quantize_rows(x, self.rows)
        return scaled(accumulate(q, grid.tensor()), scale, s, bias)

    def _float(self, inputs: list[Value], tensors: Mapping[str, Tensor]) -> Tensor:
        if not self._rounds_weights:
            return super()._float(inputs, tensors)
        y = self.sums(real(inputs[0]), tensors)
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)


class DecodedLinear(Affine):
    """A linear layer of mode weight_only: fl(q·s) as weight of a float product.

    Args:
        node: linear.
        weight_point: of its weight, (O, groups) scales.
        group: columns that share a scale, 0 for whole rows.
    """

    def __init__(self, node: Node, weight_point: WeightPoint, group: int) -> None:
        super().__init__(node, None, weight_point, None)
        self.group = group

    def __call__(
        self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms | None, resolved: bool
    ) -> Value:
        """As of :class:`Affine`.

        Raises:
            StateError: a batch norm folded into the layer takes its statistics from the batch.
        """
        if live is not None:
            raise StateError(
                "batch norm behind a weight-only layer is in training mode", where=self.node.name,
                remedy="call sim.freeze_batch_norm(), or give the layer another mode",
            )  # fmt: skip
        return super().__call__(inputs, tensors, live, resolved)

    def _float(self, inputs: list[Value], tensors: Mapping[str, Tensor]) -> Tensor:
        if not self._rounds_weights:
            return super()._float(inputs, tensors)
        grid, scale, bias = self._real_grid(tensors)
        y = F.linear(real(inputs[0]), grid.tensor() * spread(scale, grid.q.shape[1], self.group), bias)
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)

    def _grid(self, weight: Tensor, factor: Tensor | None) -> tuple[Grid, Tensor]:
        assert self.weight_point is not None
        return coded(self.weight_point, weight, factor, self.group)


class DecodedEmbedding:
    """Rows of an embedding as integers: y = fl(q·s).

    Its scales are never learned, they follow each row: a row that no sample holds gives its scale no gradient, while
    weight decay and momentum move the row all the same.

    Args:
        node: embedding.
        weight_point: (rows, groups) scales.
        group: columns that share a scale, 0 for whole rows.
    """

    def __init__(self, node: Node, weight_point: WeightPoint, group: int) -> None:
        self.node, self.weight_point, self.group = node, weight_point, group
        self._cache: tuple[Snapshot, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def __call__(
        self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms | None, resolved: bool
    ) -> Value:
        """One forward; nothing but the first input and the weight counts."""
        weight, index, wp = tensors[self.node.params["weight"]], real(inputs[0]), self.weight_point
        if not (wp.quantizing and wp.known):
            y: Tensor = FLOAT_OPS["embedding"](self.node.attrs, [index], {"weight": weight})
            return y
        if torch.is_grad_enabled() or wp.moving:
            return self._rows(F.embedding(index, weight), index)
        if self._cache is None or not self._cache[0].current([weight, wp.scale]):
            q, scale = self.codes(tensors)
            self._cache = Snapshot([weight, wp.scale]), q * spread(scale, q.shape[1], self.group)
        return F.embedding(index, self._cache[1])

    def _rows(self, rows: Tensor, index: Tensor) -> Tensor:
        """Rows as they are decoded, with gradients: every row has scales of its own, so the others are left alone."""
        flat = rows.reshape(-1, rows.shape[-1])
        wp = self.weight_point
        kept = None if wp.moving else wp.scale[index.reshape(-1)]
        grid, scale = coded(wp, flat, None, self.group, kept)
        return ((grid.tensor() + 0.0) * spread(scale, flat.shape[1], self.group)).reshape(rows.shape)

    def codes(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The integers (rows, columns), and their scales (rows, groups)."""
        grid, scale = coded(self.weight_point, tensors[self.node.params["weight"]], None, self.group)
        return grid.q + 0.0, scale  # no −0: integers have none


def spread(scale: Tensor, columns: int, group: int) -> Tensor:
    """Scales (rows, groups) as (rows, 1) or (rows, columns)."""
    return scale.repeat_interleave(group, 1)[:, :columns] if group else scale


def coded(
    wp: WeightPoint, weight: Tensor, factor: Tensor | None, group: int, kept: Tensor | None = None
) -> tuple[Grid, Tensor]:
    """A matrix on its grid, and the scales (rows, groups) of that.

    Args:
        wp: its point.
        weight, factor: as for ``grid.on_grid``; (rows, columns).
        group: columns that share a scale.
        kept: scales (rows, groups) in place of the point's.
    """
    numbers = times(weight, factor)
    count, columns = numbers.shape
    scale = wp.scale if kept is None else kept
    if wp.moving:
        scale = wp.live_scale(grouped(numbers, group)).reshape(count, -1)
    return on_grid(weight, factor, spread(scale, columns, group), Limits(wp.lo, wp.hi), numbers), scale


def grouped(rows: Tensor, group: int) -> Tensor:
    """(rows, columns) as (rows·groups, group), zeros behind the last columns."""
    if not group:
        return rows
    count = group_count(rows.shape[1], group)
    return F.pad(rows, (0, count * group - rows.shape[1])).reshape(-1, group)
