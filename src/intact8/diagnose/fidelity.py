"""The check at the end of conversion: are the outputs still those of the float network, and does int8 do the work?

A few samples of the calibration data go through the simulation and through its own float operations, with the weights
it has now. Where an output is far off, the same samples tell what weights and layer inputs in 8 bits alone would leave
(plain W8A8): if that is much more, something between the layers loses the rest, and the first operation that does is
named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.data import device_of
from intact8.capture.graph import Graph, Node
from intact8.diagnose.executors import Executor, FloatExecutor
from intact8.errors import AccuracyWarning, warn
from intact8.machine import trim_behind
from intact8.simulation.quantized_tensor import real
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import output_first, per_output, transposed

_Results = Mapping[str, Tensor]

FEW, SMALL = 4, 1 << 19
"""Samples that are looked at first, and at once; more are first while they have no more than SMALL numbers: errors are
rare and large where a function jumps. Where an output is suspicious, all that calibration kept are looked at."""

PIECE = 1 << 16
"""Numbers that are compared in float64 at once."""

SUSPICIOUS = 20.0
"""Outputs of at least this signal-to-noise ratio (dB) are not looked at further."""

BEHIND = 6.0
"""Decibels: an output this far below what plain W8A8 leaves is told."""

APART = 0.01
"""An output whose cosine to float's is less than plain W8A8's by more than this is told as well."""

NOISE = 3.0
"""An output below this ratio (dB) is told in any case."""

OUTGROWN = 0.2
"""Share of what calibration saw: values of its samples further beyond it show that weights have changed."""

CLEAN = 60.0
"""A tensor counts as no better than this (dB), so that the first rounding is not taken for a loss."""

MOSTLY_FLOAT = 0.5
"""Share of multiplications in float that is told, unless the recipe asks for it."""


@dataclass(frozen=True)
class Measured:
    """Outputs of a simulation beside the float network's, on the samples that calibration kept.

    Attributes:
        inputs: the first few of these samples; empty where there are none.
        samples: how many were compared.
        outputs: name, signal-to-noise ratio in dB, and where that is suspicious ``plain``, the ratio of plain W8A8, and
            ``apart``, how much nearer its cosine is to float's.
        work: operation → number of its multiplications.
    """

    inputs: list[Tensor]
    samples: int
    outputs: list[dict[str, Any]]
    work: dict[str, int]

    @property
    def behind(self) -> list[dict[str, Any]]:
        """Outputs that are worse than plain W8A8 leaves them."""
        return [r for r in self.outputs if "plain" in r and _is_behind(r)]


def _is_behind(row: Mapping[str, Any]) -> bool:
    return bool((row["plain"] or 0.0) - row["sqnr"] > BEHIND or row["apart"] > APART)


def measure_outputs(sim: Simulation) -> Measured:
    """Compare every output of a resolved simulation in evaluation mode with the float network's."""
    inputs = [t.to(device_of(sim)) for t in sim.samples]
    if not inputs or not sim.graph.outputs:
        return Measured([], 0, [], {})
    if not sim.quantized_graph.batched:
        return _measured(sim, [inputs], [inputs])
    parts = _pieces(sim, [inputs])
    count = max(1, SMALL // max(1, sum(t.numel() for t in parts[0])))
    measured = _measured(sim, parts[:count], parts[:count])
    if len(parts) > count and any("plain" in row for row in measured.outputs):
        measured = _measured(sim, parts, parts)
    return replace(measured, inputs=[t[: count * FEW] for t in inputs])


def measure_unseen(sim: Simulation, unseen: Sequence[Sequence[Tensor]], seen: Sequence[Sequence[Tensor]]) -> Measured:
    """Compare outputs for samples that a simulation was not calibrated on; plain W8A8 takes its ranges from ``seen``.

    Args:
        sim: calibrated on ``seen``.
        unseen, seen: flat inputs, batch by batch.
    """
    return _measured(sim, _pieces(sim, unseen), _pieces(sim, seen))


def _pieces(sim: Simulation, calls: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Return calls of FEW samples each, as results of one call are in memory together."""
    if not sim.quantized_graph.batched:
        return [list(inputs) for inputs in calls]
    return [[t[k : k + FEW] for t in inputs] for inputs in calls for k in range(0, max(1, len(inputs[0])), FEW)]


def _measured(sim: Simulation, calls: Sequence[Sequence[Tensor]], seen: Sequence[Sequence[Tensor]]) -> Measured:
    """Compare outputs call by call: of one call only are results in memory."""
    work: dict[str, int] = {}
    largest = max((t.nbytes for t in sim.tensors.values()), default=0)

    def beside(got: Callable[[Sequence[Tensor]], Mapping[str, Tensor]]) -> Iterator[tuple[_Results, _Results]]:
        for inputs in calls:
            wanted, products = _float(sim, inputs)
            work.update(products if not work else {})
            trim_behind(largest)  # float kernels pack weights
            yield wanted, got(inputs)
            del wanted

    with torch.no_grad():
        found = _compared(beside(lambda inputs: {n: real(v) for n, v in sim.run(list(inputs)).items()}))
        outputs: list[dict[str, Any]] = [
            {"name": n, "sqnr": found[n].sqnr if found[n].dtype == torch.float32 else None}
            for n in dict.fromkeys(sim.graph.outputs)
        ]
        suspicious = [row for row in outputs if row["sqnr"] is not None and row["sqnr"] < SUSPICIOUS]
        if suspicious:
            ranges = _layer_input_ranges(sim, seen)
            plain = _compared(beside(lambda inputs: _plain(sim, inputs, ranges)))
        for row in suspicious:
            row["plain"] = plain[row["name"]].sqnr
            row["apart"] = round(plain[row["name"]].cosine - found[row["name"]].cosine, 4)
    count = sum(int(inputs[0].shape[0]) if inputs[0].dim() else 1 for inputs in calls)
    return Measured(list(calls[0]), count, outputs, work)


def _compared(calls: Iterable[tuple[_Results, _Results]]) -> dict[str, _Compared]:
    """Compare every output over all calls: what is wanted, and what stands for it."""
    found: dict[str, _Compared] = {}
    for results in calls:
        for name in results[1]:
            wanted, got = (values[name] for values in results)
            found.setdefault(name, _Compared(dtype=wanted.dtype)).add(wanted, got)
            del wanted, got
        del results  # before those of the next call are computed
    return found


def check_outputs(sim: Simulation, measured: Measured | None = None) -> dict[str, Any]:
    """Compare every output with the float network's on the samples that calibration kept; warn of what is lost.

    Args:
        sim: a simulation, resolved and in evaluation mode.
        measured: what :func:`measure_outputs` returns, where it is known.

    Returns:
        JSON values for the provenance of a program: ``samples``, ``outputs`` (name, signal-to-noise ratio in dB of
        the simulation and, where it was computed, of plain W8A8, and by how much its cosine to float is larger),
        ``lost`` (the operation that makes an output bad), ``float_share`` of the multiplications. Empty where there are
        no samples.

    Warns:
        AccuracyWarning: an output is far from float's, or most multiplications are float and nobody asked for that.
    """
    measured = measure_outputs(sim) if measured is None else measured
    inputs = measured.inputs
    if not inputs:
        return {}
    found: dict[str, Any] = {"samples": measured.samples, "outputs": measured.outputs}
    # Scales that were trained clip and round as the loss wants it: less than float's range is no loss there.
    trained = sim.recipe.learns and sim.scale_phase.stepped
    bad = [r for r in measured.outputs if "plain" in r and (r["sqnr"] < NOISE or (_is_behind(r) and not trained))]
    if bad:
        with torch.no_grad():
            found["lost"] = first_loss(sim, inputs, [row["name"] for row in bad])
        warn(AccuracyWarning(_loss_message(sim, bad, found["lost"], trained)))
    found.update(_shares(sim, measured.work))
    if found.get("float_reason"):
        share = f"{found['float_share']:.0%} of the multiplications stay float: {found['float_reason']}"
        warn(AccuracyWarning(f"{share}. What to do: lint rule IQ606 (intact8 lint)"))
    return found


@dataclass
class _Compared:
    """Sums over the elements of tensors that are compared, piece by piece; ``dtype`` is that of what is wanted."""

    signal: float = 0.0
    noise: float = 0.0
    products: float = 0.0
    squares: float = 0.0
    own: float = 0.0
    dtype: torch.dtype | None = None

    def add(self, wanted: Tensor, got: Tensor) -> None:
        """Take in a tensor and what stands for it."""
        wanted, got = wanted.flatten(), got.flatten()
        for start in range(0, len(wanted), PIECE):
            w, g = (t[start : start + PIECE].double() for t in (wanted, got))
            self.products, self.squares, self.own = (
                self.products + float(w @ g),
                self.squares + float(w @ w),
                self.own + float(g @ g),
            )
            finite = torch.isfinite(w)
            w, g = w[finite], g[finite]
            self.signal += float(w.square().sum())
            self.noise += float((w - g).square().sum())

    @property
    def sqnr(self) -> float | None:
        """Return the signal-to-noise ratio in dB, at most CLEAN; None where there is no signal."""
        if self.signal == 0:
            return None
        if not math.isfinite(self.noise):
            return -CLEAN
        ratio = 10 * math.log10(self.signal / self.noise) if self.noise > 0 else CLEAN
        return round(max(-CLEAN, min(CLEAN, ratio)), 2)

    @property
    def cosine(self) -> float:
        """Return the cosine of the angle between the tensors; 0 where one has no direction."""
        found = self.products / (math.sqrt(self.squares) * math.sqrt(self.own) or math.inf)
        return found if math.isfinite(found) else 0.0


def _sqnr(wanted: Tensor, got: Tensor) -> float | None:
    found = _Compared()
    found.add(wanted, got)
    return found.sqnr


def _float(sim: Simulation, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return every output in float, and the number of multiplications of each operation."""
    executor, work = FloatExecutor(sim.tensors), dict[str, int]()

    def compute(node: Node, taken: Sequence[Tensor]) -> Tensor:
        y = executor(node, taken)
        if node.op in ("conv", "linear"):
            weight = sim.tensors[node.params["weight"]]
            size = taken[0].numel() if node.op == "conv" and transposed(node) else y.numel()
            work[node.name] = size * (weight.numel() // weight.shape[0])
        elif node.op == "matmul":
            work[node.name] = y.numel() * taken[0].shape[-1]
        return y

    return _outputs(sim, inputs, compute), work


def _layer_input_ranges(sim: Simulation, calls: Iterable[Sequence[Tensor]]) -> dict[str, tuple[float, float]]:
    """Return the least and largest value, or 0, of every input of integer layers."""
    executor, found = FloatExecutor(_as_in_the_model(sim)), dict[str, tuple[float, float]]()

    def compute(node: Node, taken: Sequence[Tensor]) -> Tensor:
        if node.name in sim.weight_points and node.op in ("conv", "linear"):
            (low, high), name = _extremes(taken[0]), node.inputs[0]
            before = found.get(name, (0.0, 0.0))
            found[name] = min(low, before[0]), max(high, before[1])
        return executor(node, taken)

    for inputs in calls:
        _outputs(sim, inputs, compute)
    return found


def _as_in_the_model(sim: Simulation) -> dict[str, Tensor]:
    """Return the tensors with channels that are not rescaled: plain W8A8 knows nothing of that, and may be the better
    for it."""
    return {**sim.tensors, **{place.factor: torch.ones_like(sim.tensors[place.factor]) for place in sim.equalized}}


def _plain(sim: Simulation, inputs: Sequence[Tensor], ranges: Mapping[str, tuple[float, float]]) -> dict[str, Tensor]:
    """Return every output where weights and inputs of integer layers are rounded, and nothing else.

    Inputs of layers that ``ranges`` does not know are rounded in the range that they have here.
    """

    def rounded(node: Node, weight: Tensor) -> Tensor:
        point = sim.weight_points.get(node.name)
        if point is None:
            return weight
        rows = output_first(weight.detach(), node)
        largest = rows.reshape(len(rows), -1).abs().amax(1)
        scale = per_output(largest / point.hi, weight, node).clamp_min(1e-30)
        return torch.round(weight / scale).clamp(point.lo, point.hi) * scale

    executor, read = FloatExecutor(_as_in_the_model(sim), rounded), dict[str, Tensor]()

    def compute(node: Node, taken: Sequence[Tensor]) -> Tensor:
        if node.name in sim.weight_points and node.op in ("conv", "linear"):
            name = node.inputs[0]
            if name not in read:
                point = sim.point(name)
                levels = 256 if point is None else point.hi - point.lo + 1
                read[name] = _rounded(taken[0], levels, *ranges.get(name, _extremes(taken[0])))
            taken = [read[name], *taken[1:]]
        return executor(node, taken)

    return _outputs(sim, inputs, compute)


def _extremes(x: Tensor) -> tuple[float, float]:
    low, high = x.aminmax()
    return min(float(low), 0.0), max(float(high), 0.0)


def _rounded(x: Tensor, levels: int, low: float, high: float) -> Tensor:
    """Round a tensor on the affine grid of a range."""
    scale = (high - low) / (levels - 1)
    if not (scale > 0 and math.isfinite(scale)):
        return x
    zero = round(-low / scale)
    return (torch.round(x / scale) + zero).clamp(0, levels - 1).sub(zero) * scale


def _outputs(sim: Simulation, inputs: Sequence[Tensor], compute: Executor) -> dict[str, Tensor]:
    """Compute the outputs; other values live only as long as an operation reads them."""
    values = dict(zip(sim.graph.inputs, inputs, strict=True))
    for node, done in zip(sim.graph.sized(inputs), sim.last_uses, strict=True):
        if node.op != "input":
            values[node.name] = compute(node, [values[name] for name in node.inputs])
            for name in done:
                values.pop(name, None)
    return values


def first_loss(sim: Simulation, inputs: Sequence[Tensor], outputs: Sequence[str]) -> dict[str, Any]:
    """Return the first operation that makes these outputs bad: what it reads is much better than what it gives."""
    sqnr: dict[str, float] = {}
    got, executor = sim.run(list(inputs), keep=True), FloatExecutor(sim.tensors)
    wanted = dict(zip(sim.graph.inputs, inputs, strict=True))
    ancestors = _ancestors(sim.graph, outputs)
    drops: list[tuple[str, float, float]] = []
    flat = flat_ends(sim.points)
    for node in sim.graph.sized(inputs):
        if node.op != "input":
            wanted[node.name] = executor(node, [wanted[name] for name in node.inputs])
        if wanted[node.name].dtype != torch.float32:
            continue
        y = wanted[node.name].clamp(*flat[node.name]) if node.name in flat else wanted[node.name]
        found = _sqnr(y, real(got[node.name]))
        sqnr[node.name] = CLEAN if found is None else found
        read = [sqnr[name] for name in node.inputs if name in sqnr]
        if node.name in ancestors and read:
            drops.append((node.name, min(*read, 2 * SUSPICIOUS), sqnr[node.name]))
    steep = [d for d in drops if _steep(d[1], d[2])]
    name, before, after = (steep or [max(drops, key=lambda d: d[1] - d[2])])[0]
    node = sim.graph.nodes[name]
    if node.op in ("quantize", "dequantize", "requantize"):
        node = sim.graph.nodes[node.inputs[0]]
    lost = {"node": node.name, "op": node.op, "module": node.module, "before": before, "after": after}
    return lost if sim.scale_phase.stepped else {**lost, **_outgrown(sim, wanted)}


def _outgrown(sim: Simulation, wanted: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a sentence of the point whose values, of calibration samples, are furthest beyond what calibration saw."""
    worst, found = OUTGROWN, {}
    for name, point in sim.points.items():
        values = [wanted[n] for n in sim.placed.points[name].observed if n in wanted and wanted[n].numel()]
        if not point.observer.count or point.fixed or not values:
            continue
        low, high = point.observer.minimum, point.observer.maximum
        now = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        room = max(high, 0.0) - min(low, 0.0)
        beyond = max(now[1] - high, low - now[0]) / room if room > 0 else 0.0
        if beyond > worst:
            ranges = f"calibration saw {low:.3g} to {high:.3g} at {name}, now it is {now[0]:.3g} to {now[1]:.3g}"
            worst, found = beyond, {"outgrown": f"weights have changed since calibration: {ranges}"}
    return found


def _steep(before: float, after: float) -> bool:
    return after < SUSPICIOUS and before - after > BEHIND


def _ancestors(graph: Graph, outputs: Sequence[str]) -> set[str]:
    found = set(outputs)
    for node in reversed(list(graph)):
        if node.name in found:
            found.update(node.inputs)
    return found


def _kept_float(graph: Graph, name: str) -> str:
    """Return the advice to keep a node float, or what reads it where it is an input, which others round."""
    if graph.nodes[name].op != "input":
        return f'keep it float (overrides={{"{name}": None}})'
    users = graph.users()
    readers = [user for user in users[name] if graph.nodes[user].op != "quantize"]
    readers += [reader for user in users[name] if graph.nodes[user].op == "quantize" for reader in users[user]]
    overrides = ", ".join(f'"{reader}": None' for reader in dict.fromkeys(readers))
    return f"keep float what reads it (overrides={{{overrides}}})"


def _loss_message(sim: Simulation, bad: Sequence[Mapping[str, Any]], lost: Mapping[str, Any], trained: bool) -> str:
    worst = min(bad, key=lambda row: float(row["sqnr"]))
    plain = "" if worst["plain"] is None else f" (rounded weights and layer inputs alone: {worst['plain']:.1f} dB)"
    where = f"{lost['node']} ({lost['op']}): {lost['before']:.1f} dB before, {lost['after']:.1f} dB behind"
    if trained:
        remedy = "look at its accuracy (intact8.evaluate); where that is poor, give learned scales a lower rate"
        lost_at = f"Training has moved the scales; most is lost at {where}. Remedy: {remedy}"
    elif "outgrown" in lost:
        remedy = "calibrate again (intact8.calibrate(sim, data, reset=True))"
        lost_at = f"Most is lost at {where}; {lost['outgrown']}. Remedy: {remedy}"
    elif _steep(lost["before"], lost["after"]):
        lost_at = f"It is first lost at {where}. Remedy: {_kept_float(sim.placed.graph, lost['node'])}"
    else:
        remedy = "calibrate on more data, or with intact8.recipes.accurate()"
        lost_at = f"It is lost little by little, most at {where}. Remedy: {remedy}"
    may_round_less = sim.recipe.rounds_between_layers != "float" and any(map(_is_behind, bad))
    if not trained and "outgrown" not in lost and may_round_less:
        lost_at += ', or round less between layers (Recipe(between_layers="float_residual"), or "float")'
    return (
        f"{len(bad)} of {len(set(sim.graph.outputs))} outputs are far from the float network's on calibration samples: "
        f"{worst['name']} has {worst['sqnr']:.1f} dB{plain}. {lost_at}; lint rule IQ605 has more"
    )


def _shares(sim: Simulation, work: Mapping[str, int]) -> dict[str, Any]:
    """Return the share of multiplications in float, and why where most are and the recipe does not ask for it."""
    total, reasons = sum(work.values()), sim.placed.float_nodes
    if not total:
        return {}
    floats = {n: w for n, w in work.items() if n not in sim.placed.point_of and n not in sim.all_weight_points}
    found: dict[str, Any] = {"float_share": round(sum(floats.values()) / total, 4)}
    asked = ("the recipe", "dynamic", "weight-only")
    unasked = {n: w for n, w in floats.items() if not reasons.get(n, "unknown reason").startswith(asked)}
    if sum(unasked.values()) > MOSTLY_FLOAT * total and sim.recipe.mode == "static":
        counts: Counter[str] = Counter()
        for name, size in unasked.items():
            counts[reasons.get(name, "unknown reason")] += size
        first = max(unasked, key=lambda n: unasked[n])
        found["float_reason"] = f"{counts.most_common(1)[0][0]} ({first}, {sim.graph.nodes[first].op}, for one)"
    return found
