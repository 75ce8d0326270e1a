"""Why a weight's integers are worse than they could be, in decibels per reason.

The error counts as it reaches the layer's output: Σ Δw²·Var[x] for its random part, (Σ Δw·E[x])² for the shift of its
mean, which a corrected bias takes back. As for activations, the steps add up to the whole:

    in use → room for the bias → one scale per channel → 8 bits → without outliers;   and the mean apart
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.weights import weight_scales
from intact8.capture.graph import Node
from intact8.diagnose.doctor.quantization_error import decibels
from intact8.diagnose.doctor.tensor_statistics import Statistics
from intact8.opset.op import Array
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import groups_of, output_first, per_input, per_output, transposed
from intact8.simulation.weights.quantize import integer_weight

from .activations import Evidence

SMALL = 16
"""Weights per row below which there is no tail that an outlier could stand out of."""

INT32 = 2.0**31 - 1


def examine_weight(sim: Simulation, name: str, data: Statistics) -> Evidence:
    """Examine the weight and the bias of one layer.

    Args:
        sim: a calibrated simulation.
        name: name of the layer.
        data: statistics of the float network on representative data.
    """
    node, point = sim.graph.nodes[name], sim.weight_points[name]
    with torch.no_grad():
        weight, bias = folded(node, sim.tensors)
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    rows = output_first(weight, node).double().cpu().numpy()
    rows = rows.reshape(len(rows), -1)
    measure = _Measure(node, weight, sim, data)
    lo, hi, observer = point.lo, point.hi, point.scheme.observer
    fresh = weight_scales(rows, lo, hi, observer, point.portable)
    tensor = np.full_like(fresh, fresh.max()) if point.scheme.granularity == "per_tensor" else fresh
    eight = (lo, hi) if hi >= 127 else (-127, 127)
    fine = weight_scales(rows, *eight, observer, point.portable)
    used = point.scale.double().cpu().numpy()
    chain = [
        ("tie_free", measure(used, lo, hi)),
        ("granularity", measure(tensor, lo, hi)),
        ("bits", measure(fresh, lo, hi)),
        ("outlier_weight", measure(fine, *eight)),
        ("columns", measure(_scales_without_outliers(rows, *eight, point.portable), *eight, free=_outliers(rows))),
        ("", measure.balanced(rows, *eight, point.portable)),
    ]
    found = Evidence()
    for (reason, (worse, _)), (_, (better, _)) in pairwise(chain):
        found.gains[reason] = decibels(worse, better)
    if point.source in ("held", "learned") or bias is None:
        found.gains["stale"] = found.gains.pop("tie_free")
    random, shift = chain[0][1]
    corrected = "correct.mean" in node.params
    found.gains["mean_shift"] = 0.0 if corrected else decibels(random + shift, random)
    found.facts |= _facts(sim, node, rows, used, bias, (lo, hi))
    found.facts |= {"mean_share_of_error": shift / max(random + shift, 1e-300), "bias_corrected": corrected}
    return found


class _Measure:
    """Measures the error at a layer's output for a weight rounded with some scales: (random part, mean part)."""

    def __init__(self, node: Node, weight: Tensor, sim: Simulation, data: Statistics) -> None:
        self.node, self.weight = node, weight.double()
        stats = data.read.get(node.name)
        if stats is None or transposed(node):
            self.mean, self.variance = torch.zeros(()), torch.ones(())
            return
        mean = torch.from_numpy(stats.mean).to(weight.device)
        moment = torch.from_numpy(stats.moment).to(weight.device)
        self.mean = per_input(mean, weight, node)
        self.variance = per_input((moment - mean**2).clamp(min=0), weight, node)

    def __call__(self, scale: Array, lo: int, hi: int, *, free: Array | None = None) -> tuple[float, float]:
        s = torch.from_numpy(np.asarray(scale)).to(self.weight.device)
        node, weight = self.node, self.weight
        grid = per_output(s, weight, node)
        difference = integer_weight(node, weight, s, lo, hi) * grid - weight
        if free is not None and not transposed(node):
            exact = torch.from_numpy(free).to(weight.device).reshape(weight.shape)
            difference = torch.where(exact, torch.zeros_like(difference), difference)
        random = float((difference.pow(2) * self.variance).sum())
        shift = float((difference * self.mean).reshape(len(difference), -1).sum(1).pow(2).sum())
        return random, shift

    def balanced(self, rows: Array, lo: int, hi: int, portable: bool) -> tuple[float, float]:
        """Return the error with inputs rescaled so that the weights of each have the same largest magnitude."""
        node, weight = self.node, self.weight
        if node.op == "scale_shift" or transposed(node) or weight.shape[1] < 2 or groups_of(node) > 1:
            return self(_scales_without_outliers(rows, lo, hi, portable), lo, hi, free=_outliers(rows))
        size = weight.abs().amax([d for d in range(weight.dim()) if d != 1])
        size = torch.where(size > 0, size, torch.ones_like(size)).reshape(1, -1, *[1] * (weight.dim() - 2))
        even = (weight / size).reshape(len(rows), -1).cpu().numpy()
        scale = torch.from_numpy(_scales_without_outliers(even, lo, hi, portable)).double()
        step = per_output(scale.to(weight.device), weight, node) * size
        free = torch.from_numpy(_outliers(even)).to(weight.device).reshape(weight.shape)
        noise = torch.where(free, torch.zeros_like(weight), torch.minimum(step**2 / 12, weight**2))
        return float((noise * self.variance).sum()), 0.0


def _outliers(rows: Array) -> Array:
    """Mark the largest weights of every channel, 1 in 32 and one at least; none where channels are small."""
    if rows.shape[1] < SMALL:
        return np.zeros(rows.shape, bool)
    count = max(1, rows.shape[1] // 32)
    edge = np.partition(np.abs(rows), -count, axis=1)[:, -count]
    return np.asarray(np.abs(rows) >= edge[:, None])


def _scales_without_outliers(rows: Array, lo: int, hi: int, portable: bool) -> Array:
    """Return scales for the weights that are not outliers."""
    return weight_scales(np.where(_outliers(rows), 0.0, rows), lo, hi, "minmax", portable)


def _facts(
    sim: Simulation, node: Node, rows: Array, used: Array, bias: Tensor | None, limits: tuple[int, int]
) -> dict[str, Any]:
    size = np.abs(rows).max(axis=1)
    alive = size[size > 1e-6 * size.max()] if size.max() > 0 else size
    typical = np.median(np.abs(rows), axis=1)
    point = sim.point(node.inputs[0])
    facts: dict[str, Any] = {
        "channels": len(rows),
        "channel_imbalance": float(alive.max() / alive.min()) if len(alive) and alive.min() > 0 else 1.0,
        "largest_over_median": float(np.median(size / np.maximum(typical, 1e-30))),
        "granularity": sim.weight_points[node.name].scheme.granularity,
        "range": list(limits),
    }
    if bias is not None and point is not None:
        steps = np.abs(bias.double().cpu().numpy()) / (float(point.scale) * used)
        facts["largest_bias"] = float(steps.max())
        facts["overflowing_biases"] = int((steps > INT32).sum())
    return facts
