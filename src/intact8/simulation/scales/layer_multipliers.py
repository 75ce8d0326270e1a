"""The folded weight and bias of a layer, and the multipliers per channel that its certificate allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intact8.arithmetic.tie_free import (
    LARGEST_NEGATIVE,
    largest_denominator,
    nearest_ratios,
    negative_steps,
    ratios_above,
)
from intact8.calibration.weights import pairs_can_saturate, weight_scales
from intact8.capture.graph import Node
from intact8.errors import CalibrationError
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.scales.frozen_multipliers import ROOM, ROOM_STEPS
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first
from intact8.simulation.weights.quantize import corrected_bias

Array = npt.NDArray[Any]

ROUNDING_ERROR = 12**-0.5
"""Root mean square of a rounding error, in steps."""


class Layer:
    """A layer's folded weight, bias and the weight scales it would have without tie-free multipliers.

    ``held`` says whether multipliers found before stay with present scales: these were frozen, or learning has yet to
    move them. ``least`` are scales that learned ones may not fall below, for pair sums; None where they may.
    """

    def __init__(self, node: Node, q: QuantizedGraph, fresh: bool) -> None:
        self.node, self.tensors, self.point = node, q.tensors, q.all_weight_points[node.name]
        self.weight, self.bias = folded(node, q.tensors)
        rows: Array = output_first(self.weight, node).detach().float().cpu().numpy()
        p = self.point
        stays = not fresh and p.source in ("learned", "held")
        try:
            base = weight_scales(rows, p.lo, p.hi, "minmax" if stays else p.scheme.observer, p.portable)
        except CalibrationError as error:
            where = node.params.get("weight", node.name)
            raise CalibrationError(error.what, where=where, why=error.why, remedy=error.remedy) from error
        self.base = base.astype(np.float64)
        if p.scheme.granularity == "per_tensor":
            self.base = np.full_like(self.base, self.base.max())
        self.held, self.least = not fresh and (p.source == "held" or p.unmoved), None
        if stays:
            assert p.source == "held" or p.learner is not None
            present = p.scale if p.source == "held" or p.learner is None else p.learner().detach()
            own = np.broadcast_to(present.double().cpu().numpy(), self.base.shape)
            # Only room for pair sums still depends on the weights.
            saturates = pairs_can_saturate(p.lo, p.hi, p.portable)
            self.least = base.astype(np.float64) if saturates and p.source == "learned" else None
            self.base = np.maximum(own, self.base) if saturates else own.copy()

    def bias_steps(self, scale: Array, s_y: float) -> Array:
        """Return |bias| in output steps for these weight scales, corrected where the recipe wants it."""
        s = torch.from_numpy(scale.astype(np.float32)).to(self.weight.device)
        bias = corrected_bias(self.node, self.tensors, self.weight, self.bias, s, self.point.lo, self.point.hi)
        return np.zeros(len(scale)) if bias is None else np.abs(bias.double().cpu().numpy()) / s_y


def integers_of(t: torch.Tensor) -> Array:
    """Return a tensor as int64 numbers."""
    return t.cpu().numpy().astype(np.int64)


def channel_ratios(
    layer: Layer,
    target: Array,
    s_x: float,
    s_y: float,
    slopes: Array | None,
    y: QuantPoint,
    freezing: bool,
    kept: tuple[Array, Array, Array] | None,
) -> dict[str, Any]:
    """Return a/b ≥ target per channel; ``kept`` says which channels keep their a and b, and what these are.

    The bias decides how large b may be, and b how the weights, and so the corrected bias, are rounded: the bias is
    computed again on the grid that was found until it is no larger than assumed.
    """
    form = "affine" if slopes is None else "leaky"
    steps = layer.bias_steps(layer.base, s_y) + 1
    if freezing:
        steps = steps * ROOM + ROOM_STEPS
    for _ in range(100):
        a, b = ratios_above(target, largest_denominator(form, steps))
        # Rounding the bias to its grid moves it by half of a multiplier.
        counted = layer.bias_steps(a / b * s_y / s_x, s_y) + 0.5 * a / b
        if (counted <= steps).all():
            break
        steps = np.maximum(steps, counted * 1.01)
    if kept is not None:
        a, b = np.where(kept[0], kept[1], a), np.where(kept[0], kept[2], b)
    if slopes is None:
        return {"a": a, "b": b}
    slope = np.broadcast_to(slopes, a.shape)
    limits = _negative_limits(slope, steps * np.abs(slope), y)
    # A slope times a small multiplier may be less than 1/b. Then the multiplier grows as long as the coarser weights,
    # whose rounding errors are 0.29 steps each, cost less than negative results would that became zero.
    reach = 1.001 / (limits * np.maximum(np.abs(slope), 1e-12))
    rows = output_first(layer.weight, layer.node).detach()
    size = rows.reshape(len(rows), -1).square().mean(1).sqrt().double().cpu().numpy() / layer.base
    growth = np.maximum(2, np.abs(slope) * size / ROUNDING_ERROR)
    wanted = np.where((reach > target) & (reach < growth * target), reach, target)
    a, b = ratios_above(wanted, b)
    if kept is not None:
        a, b = np.where(kept[0], kept[1], a), np.where(kept[0], kept[2], b)
    while True:
        a_neg, b_neg = nearest_ratios(slope * a / b, limits)
        counted = _negative_limits(slope, (steps + 1) * b / a * np.abs(a_neg) / b_neg, y)
        if (b_neg <= counted).all():
            return {"a": a, "b": b, "a_neg": a_neg, "b_neg": b_neg}
        limits = np.minimum(limits, counted)


def _negative_limits(slope: Array, bias_steps: Array, y: QuantPoint) -> Array:
    """Return the largest denominators for negative sums.

    Negative results end a few steps below the zero point, so denominators may be larger than for positive sums, unless
    a negative slope makes results of any size.
    """
    below = negative_steps(y.zero_point_value)
    limits = largest_denominator("leaky", bias_steps, result_steps=below, cap=LARGEST_NEGATIVE)
    return np.where(slope < 0, largest_denominator("leaky", bias_steps), limits)


def slopes_of(node: Node, q: QuantizedGraph) -> Array:
    """Return the slopes of a leaky node, one or one per channel."""
    act = node.attrs["act"]
    if act["kind"] == "leaky_relu":
        return np.asarray([act["slope"]], np.float64)
    values: Array = q.tensors[node.params["act.weight"]].double().cpu().numpy().reshape(-1)
    return values
