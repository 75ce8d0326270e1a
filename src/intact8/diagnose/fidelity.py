"""What conversion checks at its end: are the outputs still those of the float network, and does int8 do the work?

A few samples of the calibration data go through the simulation and through its own float operations, with the weights
it has now. Where an output is far off, the same samples tell what weights and layer inputs in 8 bits alone would leave
(plain W8A8): if that is much more, something between the layers loses the rest, and the first operation that does is
named.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.data import device_of
from intact8.capture.graph import Node
from intact8.diagnose.executors import FloatExecutor
from intact8.errors import AccuracyWarning
from intact8.simulation.quantized_tensor import real
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import output_first, per_output, transposed

SUSPICIOUS = 20.0
"""Outputs of at least this signal-to-noise ratio (dB) are not looked at further."""

BEHIND = 6.0
"""An output this far (dB) below what plain W8A8 leaves is told."""

NOISE = 3.0
"""An output below this ratio (dB) is told in any case."""

CLEAN = 60.0
"""A tensor counts as no better than this (dB), so that the first rounding is not taken for a loss."""

MOSTLY_FLOAT = 0.5
"""Share of multiplications in float that is told, unless the recipe asks for it."""


def check_outputs(sim: Simulation) -> dict[str, Any]:
    """Compare every output with the float network's on the samples calibration kept; warn of what is lost.

    Args:
        sim: resolved and in evaluation mode.

    Returns:
        For the provenance of a program, JSON values: ``samples``, ``outputs`` (name, signal-to-noise ratio in dB of
        the simulation and, where it was computed, of plain W8A8), ``lost`` (where an output is bad: the operation),
        ``float_share`` of the multiplications. Empty where there are no samples.

    Warns:
        AccuracyWarning: an output is far from float's, or most multiplications are float and nobody asked for that.
    """
    inputs = [t.to(device_of(sim)) for t in sim.samples]
    if not inputs or not sim.graph.outputs:
        return {}
    with torch.no_grad():
        wanted, work = _float(sim, inputs)
        got = {name: real(value) for name, value in sim.run(list(inputs)).items()}
        outputs = [_row(name, wanted[name], got[name]) for name in dict.fromkeys(sim.graph.outputs)]
        found: dict[str, Any] = {"samples": int(inputs[0].shape[0]) if inputs[0].dim() else 1}
        bad = [row for row in outputs if row["sqnr"] is not None and row["sqnr"] < SUSPICIOUS]
        if bad:
            plain = _plain(sim, inputs)
            for row in bad:
                row["plain"] = _ratio(wanted[row["name"]], plain[row["name"]])
            bad = [r for r in bad if r["sqnr"] < NOISE or (r["plain"] or 0.0) - r["sqnr"] > BEHIND]
        found["outputs"] = outputs
        if bad:
            found["lost"] = _first_loss(sim, inputs, [row["name"] for row in bad])
            warnings.warn(AccuracyWarning(_sentence(sim, bad, found["lost"])), stacklevel=4)
    found.update(_shares(sim, work))
    if found.get("float_reason"):
        warnings.warn(
            AccuracyWarning(
                f"{found['float_share']:.0%} of the multiplications stay float: {found['float_reason']}. "
                "What to do: lint rule IQ606 (intact8 lint)"
            ),
            stacklevel=4,
        )
    return found


def _row(name: str, wanted: Tensor, got: Tensor) -> dict[str, Any]:
    return {"name": name, "sqnr": _ratio(wanted, got) if wanted.dtype == torch.float32 else None}


def _ratio(wanted: Tensor, got: Tensor) -> float | None:
    """Signal-to-noise ratio in dB, at most CLEAN; None where there is no signal."""
    finite = torch.isfinite(wanted)
    w, g = wanted[finite].double(), got[finite].double()
    signal = float(w.square().sum())
    if signal == 0:
        return None
    noise = float((w - g).square().sum())
    if not math.isfinite(noise):
        return -CLEAN
    return round(max(-CLEAN, min(CLEAN, 10 * math.log10(signal / noise))), 2) if noise > 0 else CLEAN


def _float(sim: Simulation, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Every output in float, and how many multiplications each operation takes."""
    step, work = FloatExecutor(sim.tensors), dict[str, int]()

    def compute(node: Node, taken: list[Tensor]) -> Tensor:
        y = step(node, taken)
        if node.op in ("conv", "linear"):
            weight = sim.tensors[node.params["weight"]]
            size = taken[0].numel() if node.op == "conv" and transposed(node) else y.numel()
            work[node.name] = size * (weight.numel() // weight.shape[0])
        elif node.op == "matmul":
            work[node.name] = y.numel() * taken[0].shape[-1]
        return y

    return _walk(sim, inputs, compute), work


def _plain(sim: Simulation, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Every output where weights and inputs of integer layers are rounded, and nothing else."""

    def rounded(node: Node, weight: Tensor) -> Tensor:
        point = sim.weight_points.get(node.name)
        if point is None:
            return weight
        rows = output_first(weight.detach(), node)
        largest = rows.reshape(len(rows), -1).abs().amax(1)
        scale = per_output(largest / point.hi, weight, node).clamp_min(1e-30)
        return torch.round(weight / scale).clamp(point.lo, point.hi) * scale

    step, grids = FloatExecutor(sim.tensors, rounded), dict[str, Tensor]()

    def compute(node: Node, taken: list[Tensor]) -> Tensor:
        if node.name in sim.weight_points and node.op in ("conv", "linear"):
            name = node.inputs[0]
            if name not in grids:
                point = sim.point(name)
                grids[name] = _rounded(taken[0], 256 if point is None else point.hi - point.lo + 1)
            taken = [grids[name], *taken[1:]]
        return step(node, taken)

    return _walk(sim, inputs, compute)


def _rounded(x: Tensor, levels: int) -> Tensor:
    """On the affine grid of its own range."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / (levels - 1)
    return torch.round(x / scale) * scale if scale > 0 and math.isfinite(scale) else x


def _walk(sim: Simulation, inputs: Sequence[Tensor], compute: Any) -> dict[str, Tensor]:
    """Values of the outputs, others only as long as somebody reads them."""
    graph, values = sim.graph, dict(zip(sim.graph.inputs, inputs, strict=True))
    for position, node in enumerate(graph.sized(inputs)):
        if node.op == "input":
            continue
        values[node.name] = compute(node, [values[name] for name in node.inputs])
        for name in sim.last_uses[position]:
            values.pop(name, None)
    return values


def _first_loss(sim: Simulation, inputs: Sequence[Tensor], outputs: Sequence[str]) -> dict[str, Any]:
    """The first operation behind which these outputs are bad: it is, and what it reads is much better."""
    ratios: dict[str, float] = {}
    got, step = sim.run(list(inputs), keep=True), FloatExecutor(sim.tensors)
    wanted = dict(zip(sim.graph.inputs, inputs, strict=True))
    ancestors = _ancestors(sim, outputs)
    drops: list[tuple[str, float, float]] = []
    flat = flat_ends(sim.points)
    for node in sim.graph.sized(inputs):
        if node.op != "input":
            wanted[node.name] = step(node, [wanted[name] for name in node.inputs])
        if wanted[node.name].dtype != torch.float32:
            continue
        y = wanted[node.name].clamp(*flat[node.name]) if node.name in flat else wanted[node.name]
        ratio = _ratio(y, real(got[node.name]))
        ratios[node.name] = CLEAN if ratio is None else ratio
        read = [ratios[name] for name in node.inputs if name in ratios]
        if node.name in ancestors and read:
            drops.append((node.name, min(*read, 2 * SUSPICIOUS), ratios[node.name]))
    steep = [d for d in drops if d[2] < SUSPICIOUS and d[1] - d[2] > BEHIND]
    name, before, after = (steep or [max(drops, key=lambda d: d[1] - d[2])])[0]
    node = sim.graph.nodes[name]
    if node.op in ("quantize", "dequantize", "requantize"):
        node = sim.graph.nodes[node.inputs[0]]
    return {"node": node.name, "op": node.op, "module": node.module, "before": before, "after": after}


def _ancestors(sim: Simulation, outputs: Sequence[str]) -> set[str]:
    found, todo = set[str](), list(outputs)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += sim.graph.nodes[name].inputs
    return found


def _sentence(sim: Simulation, bad: Sequence[Mapping[str, Any]], lost: Mapping[str, Any]) -> str:
    worst = min(bad, key=lambda row: float(row["sqnr"]))
    plain = "" if worst["plain"] is None else f" (8-bit weights and layer inputs alone: {worst['plain']:.1f} dB)"
    steep = lost["after"] < SUSPICIOUS and lost["before"] - lost["after"] > BEHIND
    where = f"{lost['node']} ({lost['op']}): {lost['before']:.1f} dB before, {lost['after']:.1f} dB behind"
    return (
        f"{len(bad)} of {len(set(sim.graph.outputs))} outputs are far from the float network's on calibration samples: "
        f"{worst['name']} has {worst['sqnr']:.1f} dB{plain}. "
        + (
            f'It is first lost at {where}. Remedy: keep it float (overrides={{"{lost["node"]}": None}})'
            if steep
            else f"It is lost little by little, most at {where}. Remedy: calibrate on more data, or with "
            "intact8.recipes.accurate()"
        )
        + "; lint rule IQ605 has more"
    )


def _shares(sim: Simulation, work: Mapping[str, int]) -> dict[str, Any]:
    """The share of multiplications in float, and why where it is most of them and the recipe does not ask for it."""
    total, reasons = sum(work.values()), sim.placed.float_nodes
    asked = {n for n in work if n in reasons and reasons[n].startswith(("the recipe", "dynamic", "weight-only"))}
    floats = {n: w for n, w in work.items() if n not in sim.placed.point_of and n not in sim.placed.coded}
    if not total:
        return {}
    found: dict[str, Any] = {"float_share": round(sum(floats.values()) / total, 4)}
    unasked = {n: w for n, w in floats.items() if n not in asked}
    if sum(unasked.values()) > MOSTLY_FLOAT * total and sim.recipe.mode == "static":
        counts: Counter[str] = Counter()
        for name, size in unasked.items():
            counts[reasons.get(name, "unknown reason")] += size
        first = max(unasked, key=lambda n: unasked[n])
        found["float_reason"] = f"{counts.most_common(1)[0][0]} ({first}, {sim.graph.nodes[first].op}, for one)"
    return found
