"""What the rows of a layer's weight are multiplied by, and the covariance of that."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.weights.layout import groups_of

ROWS = 8192
"""Rows of a batch of samples that moments are computed from, about; of an image positions are chosen evenly."""


INDEPENDENT = 4
"""As so many independent rows the rows of one sample count: neighbors in an image are alike."""


def rows_of(node: Node, x: Tensor, weight: Tensor, rows: int = ROWS) -> Tensor:
    """Return what the rows of the weight are multiplied by: (G, M, K), K in the order of the weight's own dimensions.

    Args:
        node: a linear map, or a convolution that is not transposed.
        x: its input.
        weight: its weight in the module's layout.
        rows: how many are enough.
    """
    if node.op == "linear":
        flat = x.reshape(-1, x.shape[-1])
        return flat[:: max(1, len(flat) // rows)].unsqueeze(0)
    attrs, kernel, groups = node.attrs, weight.shape[2:], groups_of(node)
    x = F.pad(x, [p for side in reversed(attrs["padding"]) for p in (side, side)])
    geometry = list(zip(x.shape[2:], kernel, attrs["stride"], attrs["dilation"], strict=True))
    sizes = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in geometry]
    steps = x.stride()[2:]
    strides = [step * s for step, (_, _, s, _) in zip(steps, geometry, strict=True)]
    strides += [step * d for step, (_, _, _, d) in zip(steps, geometry, strict=True)]
    windows = x.as_strided([*x.shape[:2], *sizes, *kernel], [*x.stride()[:2], *strides])
    places = torch.Size(sizes).numel()
    count = min(places, max(1, -(-rows // len(x))))
    chosen = torch.arange(count, device=x.device) * places // count
    index: tuple[Any, ...] = (slice(None), slice(None), *torch.unravel_index(chosen, sizes))
    found = windows[index]
    samples, channels = x.shape[:2]
    found = found.reshape(samples, groups, channels // groups, count, -1).permute(1, 0, 3, 2, 4)
    return found.reshape(groups, samples * count, -1)


class Moments:
    """Means and second moments of what a layer reads, over all batches, about the first row that was seen.

    About zero they would be large where means are, and their difference would have less bits than the variance.

    Attributes:
        count: rows seen.
        samples: samples seen.
    """

    def __init__(self) -> None:
        self.count, self.samples = 0, 0
        self.origin: Tensor | None = None
        self.sums: tuple[Tensor, Tensor] | None = None

    def add(self, rows: Tensor, samples: int) -> None:
        """Take in rows, (G, M, K)."""
        self.origin = rows[:, :1].clone() if self.origin is None else self.origin
        rows = rows - self.origin
        first, square = rows.sum(1).double(), (rows.transpose(1, 2) @ rows).double()
        self.sums = (first, square) if self.sums is None else (self.sums[0] + first, self.sums[1] + square)
        self.count += rows.shape[1]
        self.samples += samples

    def covariance(self) -> Tensor:
        """Return the covariance of the inputs, float32 (G, K, K); what lies off the diagonal is shrunk.

        From few samples directions seem to be without variance that are not. A bias corrects what means would do.
        """
        assert self.sums is not None
        first, square = (total / self.count for total in self.sums)
        covariance = square - first[:, :, None] * first[:, None, :]
        size = covariance.shape[1]
        trust = INDEPENDENT * self.samples / (size + INDEPENDENT * self.samples)
        variance = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
        return (trust * covariance + (1 - trust) * variance).float()
