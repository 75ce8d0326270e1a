"""Why an activation's quantizer is worse than it could be, in decibels per reason.

The error of the quantizer in use is compared with that of quantizers which differ in one thing more each time:

    in use → best for the calibration data → best for the data → 8 bits → asymmetric → one per tensor → one per channel

The steps add up to the whole, so the largest one names the reason. In the last two, noise counts as it arrives behind
the weights that read the tensor: what is divided there does less harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.diagnose.doctor.consumers import Users, importance, sum_of
from intact8.diagnose.doctor.float_network import FloatOutputs
from intact8.diagnose.doctor.quantization_error import (
    best_quantizer,
    best_zero_point,
    channel_widths,
    clip_error,
    clipped_share,
    decibels,
    error,
    merged,
    rounding_noise,
)
from intact8.diagnose.doctor.tensor_statistics import Statistics, TensorStats
from intact8.diagnose.quantizer import Quantizer
from intact8.opset.op import Array
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation

MOVED = 0.05
"""Tie-free multipliers move a scale by less than this share; a scale that differs by more has another origin."""

MOST_ROWS, UNEVEN = 512, 4.0
"""Rows of an input up to which each is examined, and times the usual width of the widest in most samples."""


@dataclass
class Evidence:
    """What was measured at one site.

    Attributes:
        gains: reason → decibels by which the error falls without it.
        facts: numbers that a finding states.
        origin: where an activation's scale comes from: observer, fixed (by the recipe), set (by hand), foreign (it is
            not what its observer saw) or stale (the observer saw another network).
    """

    gains: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    origin: str = ""

    def worst(self) -> tuple[str, float]:
        """Return the reason with the largest gain."""
        return max(self.gains.items(), key=lambda item: item[1], default=("", 0.0))


def examine_activation(
    sim: Simulation, name: str, data: Statistics, calibration: Statistics, units: Tensor | None, users: Users
) -> Evidence | None:
    """Examine one quantization point.

    Args:
        sim: a calibrated simulation.
        name: name of the point.
        data, calibration: statistics of the float network on representative data and on the calibration data.
        units: weights of the columns of the network's output, where they have units of their own.
        users: what reads every node of the simulation's graph.

    Returns:
        Its evidence; None where nothing but constants is quantized.
    """
    point, placed = sim.points[name], sim.placed.points[name]
    nodes = [n for n in placed.observed if n in data.made]
    if not nodes:
        return None
    seen = [data.made[n] for n in nodes]
    shown = [calibration.made[n] for n in nodes]
    grid = Quantizer(float(point.scale), int(point.zero_point), point.lo, point.hi)
    symmetric = point.scheme.symmetric
    found = Evidence(origin=_origin(point, shown))
    actual = error(seen, grid)
    best = best_quantizer(seen, grid.lo, grid.hi, symmetric)
    known = best if found.origin not in ("observer",) else best_quantizer(shown, grid.lo, grid.hi, symmetric)
    lo, hi = (grid.lo, grid.hi) if grid.hi - grid.lo >= 254 else (0, 255)
    chain = [
        ("range", actual),
        ("data", error(seen, known)),
        ("bits", error(seen, best)),
        ("symmetric", error(seen, best_quantizer(seen, lo, hi, symmetric))),
        ("", error(seen, best_quantizer(seen, lo, hi, False))),
    ]
    for (reason, worse), (_, better) in pairwise(chain):
        found.gains[reason] = decibels(worse, better)
    found.facts |= _facts(seen, shown, grid, best, point)
    layers = sim.weight_points
    graph, tensors = sim.graph, sim.tensors
    weights = [importance(graph, tensors, layers, n, len(data.made[n].low), users) for n in nodes]
    if all(bool((w == 1).all()) for w in weights):  # no layer reads them: in an output each part counts by its size
        weights = [w / max(float(data.made[n].moment.mean()), 1e-30) for n, w in zip(nodes, weights, strict=True)]
        if units is not None and len(nodes) == 1 and len(weights[0]) == len(units):
            weights = [units.cpu().numpy() ** 2]
    _examine_channels(found, seen, np.concatenate(weights))
    found.facts["widest_tensor"] = max(zip(nodes, seen, strict=True), key=lambda pair: pair[1].width)[0]
    if len(nodes) == 1 and {"bias", "bn.bias"} & graph.nodes[nodes[0]].params.keys():
        _examine_offset(found, seen[0], best)
    _examine_sum(found, sum_of(graph, nodes[0], users), nodes[0], data)
    return found


def _examine_channels(found: Evidence, seen: list[TensorStats], weight: Array) -> None:
    """Measure what one quantizer for all tensors, and for all channels, costs."""
    widths = channel_widths(seen)
    own = np.concatenate([np.full(len(t.low), t.width) for t in seen])
    few = max(1, len(widths) // 20)
    rest = np.sort(widths)[: len(widths) - few].max(initial=0.0)
    common = np.full(len(widths), best_quantizer(seen, 0, 255, False).width)

    def noise(ranges: Array) -> float:
        return rounding_noise(seen, np.minimum(common, ranges) / 255, weight)

    found.gains["shared"] = decibels(noise(common), noise(own)) if len(seen) > 1 else 0.0
    start = noise(own) if len(seen) > 1 else noise(common)
    found.gains["channels"] = decibels(start, noise(widths))
    found.facts |= {
        "channels": len(widths),
        "outlier_channels": few,
        "outlier_channel_gain_db": decibels(start, noise(np.where(widths > rest, widths, rest))),
        "channel_gain_db": found.gains["channels"],
        "widest_channel_over_median": float(widths.max() / max(np.quantile(widths, 0.5, method="lower"), 1e-30)),
        "widest_channel": int(np.argmax(widths)),
        "tensor_widths": [t.width for t in seen],
    }


def examine_rows(sim: Simulation, exact: FloatOutputs, name: str, noise: float, found: Evidence) -> None:
    """Measure what one quantizer costs for rows of an input other than channels, as electrodes or sensors beside time,
    of which some are far wider: by the outputs, since layers behind make up for what was done to them.

    Args:
        sim: a calibrated simulation.
        exact: the samples, and what the float network gives.
        name: the input.
        noise: noise over signal of the outputs with this input quantized alone.
        found: what is known of the input, and gets what is found.
    """
    at, shape = sim.graph.inputs.index(name), sim.graph.nodes[name].shape
    for axis, size in ((d, size) for d, size in enumerate(shape) if d > 1 and isinstance(size, int)):
        if not 1 < size <= MOST_ROWS:
            continue
        rows = [batch.inputs[at].movedim(axis, 1).flatten(2) for batch in exact.samples]
        of_samples = torch.cat([part.amax(2).clamp(min=0) - part.amin(2).clamp(max=0) for part in rows])
        usual, widths = of_samples.median(0).values, of_samples.amax(0)
        if float(usual.max()) < UNEVEN * float(usual.median()):  # rows of a few samples are, and no scale mends these
            continue
        few = max(1, size // 20)
        rest = widths.sort().values[-few - 1]

        def gain(widths: Tensor, axis: int = axis, dims: int = len(shape)) -> float:
            step = (widths / 255).clamp(min=1e-30).reshape([-1 if d == axis else 1 for d in range(dims)])
            return decibels(noise, exact.noise_of_input(sim, at, lambda x: (x / step).round() * step))

        own = gain(widths)
        if own > found.gains.get("channels", 0.0):
            found.gains["channels"] = own
            found.facts |= {
                "channels": size,
                "dimension": axis,
                "outlier_channels": few,
                "outlier_channel_gain_db": gain(torch.where(widths > rest, widths, rest)),
                "channel_gain_db": own,
                "widest_channel_over_median": float(widths.max() / widths.median().clamp(min=1e-30)),
                "widest_channel": int(widths.argmax()),
            }


def _examine_offset(found: Evidence, seen: TensorStats, best: Quantizer) -> None:
    """Measure what a range costs that reaches to zero where biases keep many channels, or all, away from it."""
    low, high = seen.observer.minimum, seen.observer.maximum
    away = (seen.low > 0) | (seen.high < 0)
    count = int(away.sum())
    if low > 0 or high < 0:
        left = high - low
    elif count > max(1, len(away) // 20):  # fewer are outliers
        both = np.maximum(seen.high, 0) - np.minimum(seen.low, 0)
        left = float(np.where(away, seen.high - seen.low, both).max())
    else:
        return
    found.gains["offset"] = max(0.0, decibels(best.width**2, max(left, 1e-30) ** 2))
    found.facts["offset_range"] = [float(seen.low[away].min()), float(seen.high[away].max())]
    found.facts["offset_channels"] = f"{count} of {len(away)}" if count < len(away) else "all"


def _examine_sum(found: Evidence, total: str | None, node: str, data: Statistics) -> None:
    """Measure what is lost because the tensor goes into a sum that is much smaller than its terms."""
    if total is None or total not in data.made:
        return
    terms, result = data.made[node], data.made[total]
    power = float(terms.square.sum()) / max(terms.count, 1) / max(len(terms.low), 1)
    left = float(result.square.sum()) / max(result.count, 1) / max(len(result.low), 1)
    found.gains["cancellation"] = max(0.0, decibels(power, left))
    found.facts |= {"sum": total, "term_rms": math.sqrt(power), "sum_rms": math.sqrt(left)}


def _origin(point: QuantPoint, shown: list[TensorStats]) -> str:
    if point.scheme.fixed is not None or point.scheme.observer == "fixed":
        return "fixed"
    if point.fixed:
        return "set"
    if not point.observer.count:
        return "foreign"
    now = merged(shown).extremes
    least, most = flat_ends({point.name: point}).get(point.tensors[0], (-math.inf, math.inf))
    then = max(min(point.observer.minimum, 0.0), least), min(max(point.observer.maximum, 0.0), most)
    width = max(now[1] - now[0], then[1] - then[0], 1e-30)
    if max(abs(now[0] - then[0]), abs(now[1] - then[1])) > MOVED * width:
        return "stale"
    scale, zero_point = point.observed_qparams()
    same = abs(float(point.scale) / scale - 1) <= MOVED and abs(int(point.zero_point) - zero_point) <= 1
    return "observer" if same else "foreign"


def _facts(
    seen: list[TensorStats], shown: list[TensorStats], grid: Quantizer, best: Quantizer, point: QuantPoint
) -> dict[str, Any]:
    low, high = merged(seen).extremes
    c_low, c_high = merged(shown).extremes
    ratio = best.scale * (best.hi - best.lo) / grid.width
    actual, least = error(seen, grid), error(seen, best)
    # Only where there is something to explain: it takes some tens of evaluations.
    shifted = best_zero_point(seen, grid) if actual > 2 * least else grid
    moved = error(seen, shifted)
    return {
        "scale": grid.scale,
        "zero_point": grid.zero_point,
        "represents": list(grid.ends),
        "data_range": [low, high],
        "calibration_range": [c_low, c_high],
        "best_represents": list(best.ends),
        "samples_beyond": _beyond(seen, c_low, c_high),
        "samples": [len(seen[0].sample_low), len(shown[0].sample_low)],
        "best_over_used_width": ratio,
        "clipped": clipped_share(seen, grid),
        "clip_share_of_error": clip_error(seen, grid) / max(actual, 1e-300),
        "better_zero_point": shifted.zero_point,
        "zero_point_gain_db": decibels(actual, moved),
        "range_gain_db": decibels(actual, least),
        "bits": math.log2(grid.hi - grid.lo + 1),
        "observer": point.scheme.observer,
    }


def _beyond(seen: list[TensorStats], low: float, high: float) -> int:
    """Return how many samples of some tensors reach beyond the end of a range that most of them pass."""
    below = [sum(x < low for x in t.sample_low) for t in seen]
    above = [sum(x > high for x in t.sample_high) for t in seen]
    return max(*below, *above)
