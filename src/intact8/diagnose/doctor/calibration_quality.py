"""The quality of calibration data: varied, like the data to come, enough, and the same in batches of any size."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from intact8.diagnose.doctor.float_network import FloatNetwork, outputs_of
from intact8.diagnose.doctor.report import CalibrationQuality
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.tensor_statistics import Statistics, TensorStats
from intact8.diagnose.executors import unquantized
from intact8.opset.op import Array
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

GREW = 0.05
"""A range that widens by more than this in the second half of the samples has not converged."""

SINGLE = 5.0
"""How many times as far as in most tensors a sample must reach in a single one to be extreme."""

FEW_EXTREMES = 50
"""One sample in so many may be extreme; it is left out to see what the others need."""

COARSE, SURE = 4, 5.0
"""Parts of an image's height and width of which features are the means, and the standard errors that two means must be
apart so as not to be the same by chance in any of some dozens of features."""

ALIKE = 0.02, 0.1
"""Shares of the width of inputs up to which quantiles are the same, and from which two lie so far apart that a factor
would show."""

INVARIANCE = 16
"""Number of samples on which batch sizes are compared."""


def examine_calibration(
    network: FloatNetwork, sim: Simulation, calibration: Samples, data: Samples, shown: Statistics, seen: Statistics
) -> CalibrationQuality:
    """Measure calibration data against representative data.

    Args:
        network: the float network.
        sim: a simulation of it.
        calibration, data: samples of both.
        shown, seen: statistics of both in the float network.
    """
    (low, *_, high), (data_low, *_, data_high) = shown_at, data_at = _quantiles(calibration), _quantiles(data)
    order = torch.randperm(shown.samples, generator=torch.Generator().manual_seed(0)).numpy()
    sample, ratio, tensor = _extreme(shown)
    return CalibrationQuality(
        samples=len(calibration),
        distinct=_distinct(calibration),
        classes=_classes(sim, calibration),
        data_classes=_classes(sim, data.first(len(calibration))),
        input_quantiles=(low, high),
        data_quantiles=(data_low, data_high),
        input_shift=_input_shift(calibration, data),
        strange=_strange(calibration, data),
        extreme_sample=sample,
        extreme_ratio=ratio,
        extreme_tensor=tensor,
        convergence=_convergence(shown, order),
        unconverged=tuple(sorted(n for n, t in shown.made.items() if _grown(t, order) > GREW)),
        batch_dependence=_batch_dependence(network, sim.recipe, calibration),
        reach=_reach(calibration, data),
        furthest=_furthest(calibration, sim.graph.inputs),
        part=_is_part(shown_at, data_at) or _is_part([-x for x in shown_at[::-1]], [-x for x in data_at[::-1]]),
    )


def _distinct(samples: Samples) -> int:
    found = set()
    for batch in samples:
        for i in range(len(batch)):
            digest = hashlib.sha256()
            for x in (x for x in batch.inputs if x.dim() and len(x) == len(batch)):  # edges of a graph, say, are none
                digest.update(x[i].contiguous().cpu().numpy().tobytes())
            found.add(digest.digest())
    return len(found)


def _classes(sim: Simulation, samples: Samples) -> float | None:
    """Return the effective number of classes among the network's answers, where these are (N, classes)."""
    counts: Counter[int] = Counter()
    with unquantized(sim):
        for batch in samples:
            y = outputs_of(sim, batch)[0]
            if y.dim() != 2 or y.shape[1] < 2 or not y.is_floating_point():
                return None
            counts.update(y.argmax(1).tolist())
    total = sum(counts.values())
    return math.exp(-sum(n / total * math.log(n / total) for n in counts.values()))


def _quantiles(samples: Samples) -> list[float]:
    """Return quantiles of all float inputs (1, 25, 75, 99 %), medians over the batches so that no sample decides."""
    found = []
    for batch in samples:
        values = torch.cat([x.float().flatten() for x in batch.inputs if x.is_floating_point()] or [torch.zeros(1)])
        thin = values[:: max(1, len(values) // 100_000)]
        found.append(torch.quantile(thin, torch.tensor([0.01, 0.25, 0.75, 0.99], device=thin.device)).tolist())
    return [float(q) for q in np.median(np.asarray(found), axis=0)]


def _is_part(shown: Sequence[float], data: Sequence[float]) -> bool:
    """Return whether inputs lack the upper part of the data's alone: below they are as these, which no other unit nor
    normalization leaves."""
    same, apart = (share * (data[3] - data[0]) for share in ALIKE)
    alike = max(abs(shown[0] - data[0]), abs(shown[1] - data[1])) <= same
    return alike and data[1] - data[0] >= apart and shown[3] < data[3]


def _features(samples: Samples, index: int) -> Tensor | None:
    """Return coarse features of one input, float64 (samples, features).

    Of numbers the means of parts, the spread, and how much neighbours differ along every dimension of space, which
    shows other layouts, sizes and sharpness; of indices the shares of different ones and of the most frequent one.
    """
    rows = []
    for batch in samples:
        x = batch.inputs[index]
        if x.dim() < 2 or x.dtype == torch.bool:
            return None
        if not x.is_floating_point():
            counts = [torch.unique(row, return_counts=True)[1] for row in x.flatten(1).cpu()]
            pairs = [(len(count) / x[0].numel(), int(count.max()) / x[0].numel()) for count in counts]
            rows.append(torch.tensor(pairs, dtype=torch.float64))
            continue
        x = x.detach().double().cpu().reshape(len(x), -1 if x.dim() == 2 else x.shape[1], *x.shape[2:])
        parts = (
            nn.functional.adaptive_avg_pool2d(x, COARSE) if x.dim() == 4 else x.flatten(2).mean(2) if x.dim() > 2 else x
        )
        rough = [x.diff(dim=d).abs().flatten(1).mean(1, keepdim=True) for d in range(2, x.dim()) if x.shape[d] > 1]
        rows.append(torch.cat([parts.flatten(1), x.flatten(1).std(1, keepdim=True), *rough], 1))
    return torch.cat(rows) if len({row.shape[1] for row in rows}) == 1 else None


def _input_shift(calibration: Samples, data: Samples) -> float:
    """Return by how many standard deviations means of features of the inputs differ; 0 where that may be chance."""
    shift = 0.0
    for index in range(len(data.batches[0].inputs)):
        one, other = _features(calibration, index), _features(data, index)
        if one is None or other is None or one.shape[1] != other.shape[1] or min(len(one), len(other)) < 8:
            continue
        apart = (one.mean(0) - other.mean(0)).abs()
        deviation = ((one.var(0) + other.var(0)) / 2).sqrt()
        deviation = torch.maximum(deviation, 1e-3 * other.std().clamp(min=1e-30))
        sure = apart > SURE * (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
        shift = max(shift, float(torch.where(sure, apart / deviation, 0.0).max()))
    return shift


def _strange(calibration: Samples, data: Samples) -> float:
    """Return the share of samples whose features lie further from all of the data's than those from each other."""
    share = 0.0
    for index in range(len(data.batches[0].inputs)):
        one, other = _features(calibration, index), _features(data, index)
        if one is None or other is None or one.shape[1] != other.shape[1] or len(other) < 8:
            continue
        deviation = torch.maximum(other.std(0), 1e-3 * other.std().clamp(min=1e-30))
        near = torch.cdist(one / deviation, other / deviation).amin(1)
        apart = torch.cdist(other / deviation, other / deviation).fill_diagonal_(math.inf).amin(1)
        share = max(share, float((near > torch.quantile(apart, 0.95)).double().mean()))
    return share


def _reach(calibration: Samples, data: Samples) -> float:
    """Return how many times as far as in the data the inputs reach in calibration data."""
    both = [[x for batch in part for x in batch.inputs if x.is_floating_point()] for part in (calibration, data)]
    one, other = (max((float(x.abs().max()) for x in part), default=0.0) for part in both)
    return one / max(other, 1e-30)


def _furthest(calibration: Samples, names: Sequence[str]) -> str:
    """Return in words which input, and which column of rows of features, reaches furthest, and in which sample."""
    reach, where, first = -1.0, "", 0
    for batch in calibration:
        for name, x in zip(names, batch.inputs, strict=False):
            if x.is_floating_point() and x.numel():
                size = x.abs().nan_to_num(-1.0)
                if float(size.max()) > reach:
                    place = [int(i) for i in np.unravel_index(int(size.argmax()), size.shape)]
                    of = f"column {place[1]} of {name}" if len(place) == 2 else name
                    reach, where = float(size.max()), f"{of} in sample {first + sum(place[:1])}"
        first += len(batch)
    return where


def _extreme(shown: Statistics) -> tuple[int, float, str]:
    """Return the sample that reaches furthest beyond the others by the median over all tensors, how far, and where.

    Where norms take the excess back, few tensors show it: a ratio that is SINGLE times as large counts in one of them.
    A few of the others are left out, because one extreme sample may have company.
    """
    if shown.samples < 8 or not shown.made:
        return 0, 1.0, ""
    names = list(shown.made)
    reach = np.array([np.maximum(np.abs(t.sample_low), np.abs(t.sample_high)) for t in shown.made.values()])
    left_out = max(1, shown.samples // FEW_EXTREMES)
    rest = np.sort(reach, axis=1)[:, -left_out - 1 : -left_out]
    ratios = np.where(rest > 0, reach / np.where(rest > 0, rest, 1.0), 1.0)
    beyond = np.maximum(np.median(ratios, axis=0), ratios.max(axis=0) / SINGLE)
    sample = int(np.argmax(beyond))
    return sample, float(beyond[sample]), names[int(np.argmax(ratios[:, sample]))]


def _width(t: TensorStats, chosen: Array) -> float:
    low, high = np.asarray(t.sample_low)[chosen].min(), np.asarray(t.sample_high)[chosen].max()
    return float(max(high, 0) - min(low, 0))


def _grown(t: TensorStats, order: Array) -> float:
    half = _width(t, order[: max(1, len(order) // 2)])
    return _width(t, order) / half - 1 if half > 0 else 0.0


def _convergence(shown: Statistics, order: Array) -> tuple[tuple[int, float], ...]:
    sizes = sorted({max(1, len(order) * part // 16) for part in (1, 2, 4, 8, 12, 16)})
    tensors = [t for t in shown.made.values() if t.width > 0]
    return tuple((n, float(np.median([_width(t, order[:n]) / t.width for t in tensors]))) for n in sizes if tensors)


def _batch_dependence(network: FloatNetwork, recipe: Recipe, calibration: Samples) -> float | None:
    if network.whole:
        return None
    inputs = [x[:INVARIANCE] for x in calibration.batches[0].inputs]
    scales = []
    for size in (1, 8):
        sim = network.prepare(recipe)
        for point in sim.points.values():
            point.observing = True
        with unquantized(sim), torch.no_grad():
            for start in range(0, len(inputs[0]), size):
                sim.run([x[start : start + size] for x in inputs])
        scales.append({n: p.observed_qparams()[0] for n, p in sim.points.items() if p.observer.count and not p.fixed})
    one, eight = scales
    return max((abs(eight[n] / one[n] - 1) for n in one), default=0.0)
