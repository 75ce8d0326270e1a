"""Integer weights and biases of layers. Training and deployment share this code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import EXACT
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.train.straight_through import round_ste
from intact8.train.weight_scales import largest_magnitudes

from .grid import Limits, on_grid
from .layout import output_first, per_input, per_output


def corrected_bias(
    node: Node, tensors: Mapping[str, Tensor], weight: Tensor, bias: Tensor | None, scale: Tensor, lo: int, hi: int
) -> Tensor | None:
    """Return the bias without the mean error of the rounded weight: b − E[(ŵ − w)·x] (Nagel et al. 2019, section 4.2).

    ``weight`` and ``bias`` are folded, ``scale`` is (O,). A node without ``correct.mean`` keeps its bias.
    ``correct.bias`` is added to it: what distillation has learned, (O,).
    """
    if "correct.mean" not in node.params:
        return bias
    mean = tensors[node.params["correct.mean"]]
    with torch.no_grad():
        error = integer_weight(node, shifted(node, tensors, weight, scale), scale, lo, hi)
        error = (error * per_output(scale, weight, node)).sub_(weight).mul_(per_input(mean, weight, node))
        shift = error.flatten(1).sum(1)
        if "correct.bias" in node.params:
            shift = shift - tensors[node.params["correct.bias"]]
    return -shift if bias is None else bias - shift


def shifted(node: Node, tensors: Mapping[str, Tensor], weight: Tensor, scale: Tensor) -> Tensor:
    """Return the folded weight plus what reconstruction adds to it before it is rounded; without gradient.

    ``correct.rounding`` holds that in steps of the grid, in the weight's layout; ``scale`` is (O,).
    """
    if "correct.rounding" not in node.params:
        return weight
    steps = tensors[node.params["correct.rounding"]].to(weight.dtype)
    return weight.detach() + steps.reshape(weight.shape) * per_output(scale.detach(), weight, node)


def integer_weight(node: Node, weight: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """Return ``clamp(round(w / s), lo, hi)`` as float32 integers without gradient, for a folded weight and s (O,)."""
    return on_grid(weight, None, per_output(scale, weight, node), Limits(lo, hi)).q


LARGEST_PAIR = 128.0
"""Two integers of a channel may add up to this on CPUs without VNNI: 128·255 ≤ 32767."""


def pair_limits(
    node: Node, weight: Tensor, scale: Tensor, lo: int, hi: int, factor: Tensor | None = None
) -> Limits | None:
    """Return limits of integers on a frozen grid, so that no pair of a channel can saturate; None where none could.

    The two largest integers of every channel then add up to LARGEST_PAIR at most: all weights of a channel share the
    largest bound that ensures it. A scale_shift multiplies by one weight only, so it has no pairs.
    """
    rows = output_first(weight.detach(), node)
    rows = rows.reshape(len(rows), -1)
    if rows.shape[1] < 2:
        return Limits(lo, hi)
    first, second = (largest_magnitudes(rows, factor) / scale.detach()[:, None]).round_().unbind(1)
    bound = torch.clamp(LARGEST_PAIR - second, min=LARGEST_PAIR / 2, max=min(-lo, hi))
    if weight.device.type == "cpu" and not (first > bound).any():  # elsewhere looking would wait for the device
        return None
    return Limits(lo, hi, per_output(bound, weight, node))


def weight_limits(
    node: Node, weight: Tensor, scale: Tensor, point: WeightPoint, factor: Tensor | None = None
) -> Limits | None:
    """Return what integers of a weight, folded or to be multiplied by ``factor`` (O,), are clipped to.

    None where the scales (O,) are made for all weights.
    """
    reconstructed = "correct.rounding" in node.params
    if point.clips_pairs or (reconstructed and point.can_saturate):
        return pair_limits(node, weight, scale, point.lo, point.hi, factor)
    return None if point.holds_all and not reconstructed else Limits(point.lo, point.hi)


def integer_bias(bias: Tensor | None, grid: Tensor) -> Tensor:
    """Return ``round(b / (s_x·s_w))`` as float64 integers within int32, with a straight-through gradient."""
    if bias is None:
        return torch.zeros_like(grid, dtype=torch.float64)
    return torch.clamp(round_ste(bias.double() / grid), -(2.0**31) + 1, 2.0**31 - 1)


def partial_sum_bound(node: Node, weight: Tensor, zero_point: int, lo: int, hi: int) -> Tensor:
    """Return the largest magnitude of any partial sum of Σ (x − z)·w, per output channel, float64.

    For x in lo..hi the terms of one sign add up to at most Σ w⁺·(hi − z) + Σ w⁻·(z − lo), or the mirror of it.
    """
    w = output_first(weight.detach(), node)
    w = w.reshape(len(w), -1)
    if w.shape[1] * 128 >= EXACT:
        w = w.double()
    total, magnitude = w.sum(1).double(), w.abs().sum(1).double()
    up, down = (magnitude + total) / 2, (magnitude - total) / 2
    above, below = float(hi - zero_point), float(zero_point - lo)
    return torch.maximum(up * above + down * below, down * above + up * below)
