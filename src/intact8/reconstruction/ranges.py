"""Ranges of activations by the error of the network's outputs.

The range of least squared error of a tensor counts all its values alike. Outputs do not: what a ReLU6 cuts off, or
weights near zero multiply, may be clipped for nothing. To first order, errors e of a tensor move the outputs y by J·e,
and for a random vector v of independent normal numbers E (vᵀJe)² = ‖Je‖². With g = Jᵀv, one backward pass of the float
network per sample, the error of a range is that of its rounding, whose errors are independent of each other, Σ g²e²,
and that of what it clips, whose errors have one sign and add up, (Σ g·e)².
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.affine import choose_qparams
from intact8.calibration.output_error import OutputObserver
from intact8.capture.graph import Node
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.simulation import Simulation

ENOUGH = 8
"""Samples that gradients are wanted of: of fewer, what is clipped in others is unknown."""

SAMPLES = 32
"""Samples that gradients are computed of, at most."""

SHARES = (0.0, 0.5, 1.0)
"""How far ranges are moved from those of ``mse`` to those of least error to first order."""

WORTHWHILE = 0.9
"""Ranges of ``mse`` stay unless errors become less than so many times what they were: few samples have the values that
are clipped in others."""

CHUNK = 4
"""Samples whose activations are held for a backward pass."""

KEPT = 1 << 16
"""Values of a tensor, drawn at random, that rounding is evaluated on."""

ENDS = np.geomspace(0.08, 1.0, 24)
"""Ends that are tried, as shares of the extremes that calibration saw."""

REACH = 2
"""How many ends on each side are tried from the best one so far."""


@dataclass
class _Evidence:
    """Values and gradients of a tensor.

    Attributes:
        values, weights: values drawn at random, and squared gradients times what each stands for.
        clipped: for the lower and the upper end, Σ g·(x − end) of what lies beyond each of ENDS, (samples, ENDS).
    """

    values: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    clipped: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))

    def add(self, x: Tensor, gradient: Tensor, ends: tuple[float, float], draws: int, random: torch.Generator) -> None:
        """Take in a tensor of some samples, (N, values), and its gradient."""
        chosen = torch.randint(x.numel(), (min(draws, x.numel()),), generator=random).to(x.device)
        self.values.append(x.reshape(-1)[chosen].cpu())
        self.weights.append((gradient.reshape(-1)[chosen].square() * (x.numel() / len(chosen))).cpu())
        for sums, end in zip(self.clipped, ends, strict=True):
            sums.append(_clipped_sums(x, gradient, end).cpu())


def _clipped_sums(x: Tensor, gradient: Tensor, extreme: float) -> Tensor:
    """Return Σ g·(x − end) per sample over what lies beyond each of ENDS times the extreme: float64 (N, ENDS)."""
    count = len(ENDS)
    if extreme == 0:
        return x.new_zeros(len(x), count, dtype=torch.float64)
    ends = torch.from_numpy(ENDS).to(x.device, x.dtype) * abs(extreme)
    sample, value = torch.nonzero(x * (1 if extreme > 0 else -1) > ends[0], as_tuple=True)
    far, g = x[sample, value].abs(), gradient[sample, value].double()
    place = sample * (count + 1) + torch.bucketize(far, ends, right=True)
    flat = x.new_zeros(2, len(x) * (count + 1), dtype=torch.float64)
    flat[0].index_add_(0, place, g * far)
    flat[1].index_add_(0, place, g)
    beyond = flat.reshape(2, len(x), count + 1)[:, :, 1:].flip(2).cumsum(2).flip(2)
    sums: Tensor = (beyond[0] - ends * beyond[1]) * (1 if extreme > 0 else -1)
    return sums


def choose_ranges(sim: Simulation, batches: list[list[Tensor]]) -> bool:
    """Choose the ranges of all points with the observer ``output``, and return whether there was anything to choose.

    The first SAMPLES give gradients. What they know nothing of, values that only others have and what is not linear,
    decides how far to follow them: as far as makes the measured error of the outputs least, on the other samples.

    Args:
        sim: calibrated, quantizing, in evaluation mode; its multipliers are to be solved again afterwards.
        batches: flat inputs of some samples.
    """
    points = {name: p for name, p in sim.points.items() if isinstance(p.observer, OutputObserver) and not p.fixed}
    batched = sim.quantized_graph.batched
    if batched:
        batches = [[t[k : k + CHUNK] for t in inputs] for inputs in batches for k in range(0, len(inputs[0]), CHUNK)]
    sizes = [len(inputs[0]) if batched else 1 for inputs in batches]
    if not points or sum(sizes) < ENOUGH:
        return False
    first = sum(1 for total in itertools.accumulate(sizes) if total <= SAMPLES)
    chosen = _least_errors(sim, points, batches[:first], sizes[:first])
    others = batches[first:] or batches
    wanted = [_outputs(sim, inputs, rounded=False) for inputs in others]
    errors = {}
    for share in SHARES:
        _follow(points, chosen, share)
        sim._solve(from_observers=True, freezing=False)
        found = [_outputs(sim, inputs, rounded=True) for inputs in others]
        errors[share] = _distance(found, wanted)
    best = min(SHARES, key=errors.__getitem__)
    _follow(points, chosen, best if errors[best] < WORTHWHILE * errors[0.0] else 0.0)
    return True


def _follow(points: dict[str, QuantPoint], chosen: dict[str, tuple[float, float]], share: float) -> None:
    """Give points ranges between those of ``mse`` and the chosen ones."""
    for name, ends in chosen.items():
        point, observer = points[name], points[name].observer
        assert isinstance(observer, OutputObserver)
        observer.chosen = None
        if share > 0:
            before = observer.range(point.lo, point.hi, point.scheme.symmetric)
            lo, hi = (abs(a) ** (1 - share) * abs(b) ** share for a, b in zip(before, ends, strict=True))
            observer.chosen = -lo, hi


def _outputs(sim: Simulation, inputs: list[Tensor], *, rounded: bool) -> list[Tensor]:
    """Return the outputs that are numbers, of the integers or of the float network."""
    sim.fake_quantize(rounded)
    values = sim.run(inputs)
    sim.fake_quantize(True)
    return [y for y in (real(values[name]).detach() for name in sim.graph.outputs) if y.is_floating_point()]


def _distance(found: list[list[Tensor]], wanted: list[list[Tensor]]) -> float:
    """Return the mean squared errors of all outputs, each relative to its mean square, together."""
    total = 0.0
    for ours, theirs in zip(zip(*found, strict=True), zip(*wanted, strict=True), strict=True):
        error = sum(float((a - b).square().sum(dtype=torch.float64)) for a, b in zip(ours, theirs, strict=True))
        total += error / max(sum(float(b.square().sum(dtype=torch.float64)) for b in theirs), 1e-30)
    return total


def _least_errors(
    sim: Simulation, points: dict[str, QuantPoint], batches: list[list[Tensor]], sizes: list[int]
) -> dict[str, tuple[float, float]]:
    """Return the ranges of least error to first order, of those points that outputs feel."""
    watched = {node: name for name in points for node in sim.placed.points[name].observed}
    evidence: dict[str, dict[str, _Evidence]] = {name: {} for name in points}
    random = torch.Generator().manual_seed(0)
    for inputs, count in zip(batches, sizes, strict=True):
        kept, gradients = _gradients(sim, inputs, set(watched), random)
        for node, x in kept.items():
            point = points[watched[node]]
            ends = min(point.observer.minimum, 0.0), max(point.observer.maximum, 0.0)
            part = evidence[point.name].setdefault(node, _Evidence())
            draws = max(1, KEPT * count // sum(sizes))
            rows = count if x.ndim and x.shape[0] % count == 0 else 1  # a constant is the same for all samples
            part.add(x.reshape(rows, -1), gradients[node].reshape(rows, -1), ends, draws, random)
    found = {name: _best(points[name], list(parts.values())) for name, parts in evidence.items() if parts}
    return {name: ends for name, ends in found.items() if ends is not None}


def _gradients(
    sim: Simulation, inputs: list[Tensor], watched: set[str], random: torch.Generator
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the values of nodes in the float network, and their gradients of vᵀy for one random v."""
    kept: dict[str, Tensor] = {}

    def visit(node: Node, inputs: list[Value], output: Value) -> None:
        if node.name in watched:
            kept[node.name] = value = real(output)
            if not value.requires_grad:
                value.requires_grad_(True)

    sim.fake_quantize(False)
    try:
        with torch.enable_grad():
            values = sim.run(inputs, visit=visit)
            outputs = [real(values[name]) for name in sim.graph.outputs]
            outputs = [y for y in outputs if y.is_floating_point() and y.requires_grad and y.numel()]
            # Every output counts alike, whatever its unit; what is zero everywhere has none.
            sizes = [y.detach().square().mean().sqrt() for y in outputs]
            total = [
                (y * torch.randn(y.shape, generator=random).to(y.device)).sum() / size
                for y, size in zip(outputs, sizes, strict=True)
                if size > 0
            ]
            names = list(kept) if total else []
            if not names:
                return {}, {}
            grads = torch.autograd.grad(torch.stack(total).sum(), [kept[n] for n in names], allow_unused=True)
    finally:
        sim.fake_quantize(True)
    pairs = zip(names, grads, strict=True)
    gradients = {name: g for name, g in pairs if g is not None and bool(torch.isfinite(g).all())}
    return {name: kept[name].detach() for name in gradients}, gradients


def _best(point: QuantPoint, tensors: list[_Evidence]) -> tuple[float, float] | None:
    """Return the range of least error; None where no error was found in any, or gradients are too large for float32."""
    lowest, highest = min(point.observer.minimum, 0.0), max(point.observer.maximum, 0.0)
    parts = [(torch.cat(t.values), torch.cat(t.weights), *(torch.cat(sums) for sums in t.clipped)) for t in tensors]
    memory: dict[tuple[int, int], float] = {}

    def error(place: tuple[int, int]) -> float:
        if place not in memory:
            lo, hi = lowest * ENDS[place[0]], highest * ENDS[place[1]]
            step, zero_point = choose_qparams(lo, hi, point.lo, point.hi, point.scheme.symmetric)
            s, ends = float(step), [(end - zero_point) * float(step) for end in (point.lo, point.hi)]
            total = 0.0
            for x, weight, below, above in parts:
                inside = x.clamp(*ends)
                rounded = (inside / s).round_().mul_(s).sub_(inside).square_()
                alone = (x - inside).square_()
                sums = _at(below, lowest, ends[0]) + _at(above, highest, ends[1])
                scattered = float((alone.mul_(weight)).sum(dtype=torch.float64))
                total += float((rounded.mul_(weight)).sum(dtype=torch.float64))
                total += max(scattered, float(sums.square().sum()))
            memory[place] = total if math.isfinite(total) else math.inf
        return memory[place]

    last = len(ENDS) - 1
    best = min(((k, k) for k in range(last, 0, -4)), key=error)
    while True:
        around = [
            (i, j)
            for i in range(max(0, best[0] - REACH), min(last, best[0] + REACH) + 1)
            for j in range(max(0, best[1] - REACH), min(last, best[1] + REACH) + 1)
        ]
        nearest = min(around, key=error)
        if error(nearest) >= error(best):
            return (lowest * ENDS[best[0]], highest * ENDS[best[1]]) if 0 < error(best) < math.inf else None
        best = nearest


def _at(sums: Tensor, extreme: float, end: float) -> Tensor:
    """Return the sums of what lies beyond an end, between the two of ENDS next to it: (samples,)."""
    if extreme == 0:
        return sums[:, -1]
    share = min(max(end / extreme, float(ENDS[0])), 1.0)
    k = min(max(int(np.searchsorted(ENDS, share)), 1), len(ENDS) - 1)
    way = (share - float(ENDS[k - 1])) / float(ENDS[k] - ENDS[k - 1])
    return sums[:, k - 1] * (1 - way) + sums[:, k] * way
