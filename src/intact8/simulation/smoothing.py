"""The strength of smoothing, place by place: how much of the ranges of activations goes into the weights.

For several strengths the noise is estimated that rounding leaves in the results of the layers that read a tensor. A
weight W_oj·s_j in −q … q has a step of max_j |W_oj·s_j|/q and errors of a twelfth of its square, which x_j/s_j
multiplies; an activation x_j/s_j has a step of the range of all channels, and its errors are multiplied by W_oj·s_j.
Both count relative to the power of the results, values of channels taken for independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.weights.folding import folded

USUAL = 0.5
"""The strength of Xiao et al. (2023)."""

STRENGTHS = (0.3, 0.4, USUAL, 0.6, 0.7, 0.8, 0.9)
"""What is tried."""

WORTHWHILE = 0.25
"""Another strength than the usual one is taken where it leaves at most this share of the noise: where channels lie
orders of magnitude apart. Less is within what this estimate does not see: errors of weights are the same at all
positions and in all samples, so that a mean does not lessen them, as it does those of activations."""


@dataclass
class Spread:
    """Of every channel: the least value, or 0, the largest, or 0, the sum of squares, all (C,), and how many."""

    low: Tensor
    high: Tensor
    squares: Tensor
    count: int

    @classmethod
    def of(cls, x: Tensor, axis: int) -> Spread:
        """Return that of a tensor with these channels."""
        count = x.numel() // max(1, x.shape[axis])
        x, others = with_others(x, axis)
        return cls(x.amin(others).clamp(max=0), x.amax(others).clamp(min=0), x.double().square().sum(others), count)

    def with_more(self, other: Spread) -> Spread:
        """Return that of the values of both."""
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return Spread(low, high, self.squares + other.squares, self.count + other.count)


def with_others(x: Tensor, axis: int) -> tuple[Tensor, list[int]]:
    """Return a tensor and its dimensions beside that of channels: of one without others, as an unbatched sample of
    features is, with one more."""
    return (x, [d for d in range(x.dim()) if d != axis]) if x.dim() > 1 else (x[None], [0])


def choose_strength(
    q: QuantizedGraph,
    readers: tuple[Node, ...],
    spreads: Mapping[str, Spread],
    factor: Callable[[float], Tensor | None],
) -> float:
    """Return the strength for a place that these layers read.

    Args:
        q: with its factors at 1.
        readers: linear maps and convolutions whose weights are multiplied by the factor.
        spreads: node → of the values of its tensor.
        factor: strength → what the channels are divided by, (C,); None where nothing is.
    """
    own = [(folded(node, q.tensors)[0].detach(), q.all_weight_points[node.name].hi) for node in readers]
    weights = [(w.reshape(*w.shape[:2], -1), hi) for w, hi in own]
    points = {name: q.points[q.placed.point_of[name]] for name in spreads}
    levels = {name: point.hi - point.lo for name, point in points.items()}
    noise = {}
    for strength in STRENGTHS:
        s = factor(strength)
        if s is None:
            return USUAL
        noise[strength] = sum(_noise(spread, levels[name], weights, s) for name, spread in spreads.items())
    best = min(STRENGTHS, key=noise.__getitem__)
    return best if noise[best] <= WORTHWHILE * noise[USUAL] else USUAL


def _noise(x: Spread, levels: int, weights: list[tuple[Tensor, int]], s: Tensor) -> float:
    """Return the noise of the layers' results relative to their power, of rounded weights and rounded values.

    Args:
        x: of the values.
        levels: steps of their grid.
        weights: of the layers, (O, C, positions of the kernel), and the largest integer of each.
        s: what channels are divided by, (C,).
    """
    power = (x.squares / x.count).to(s.dtype)
    step = float((x.high / s).max() - (x.low / s).min()) / levels
    # What is less than a step is lost, and no more than that.
    of_values, total = torch.minimum(power, (step * s).square() / 12), 0.0
    for w, largest in weights:
        squares = w.square().sum(2)
        results = float((squares @ power).sum()) or 1.0
        steps = (w * s[:, None]).abs().flatten(1).amax(1) / largest
        of_weights = float(steps.square().sum()) / 12 * w.shape[2] * float((power / s.square()).sum())
        total += (of_weights + float((squares @ of_values).sum())) / results
    return total
