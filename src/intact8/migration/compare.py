"""The simulation here against the other tool's: integers that differ, and decibels, per tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from intact8.arithmetic.bit_packing import unpack
from intact8.arithmetic.recurrent import GATES
from intact8.calibration.data import batches
from intact8.capture.pytree import copied
from intact8.migration.assign import weight_names
from intact8.migration.description import Description, rounding
from intact8.migration.report import LayerChange, MigrationReport
from intact8.migration.simulate import Simulated, used_weights
from intact8.opset.op import Op
from intact8.program.names import part_name
from intact8.program.program import Program
from intact8.simulation.ops import recurrent
from intact8.simulation.weights.layout import per_output

Array = npt.NDArray[Any]


class _Sums:
    """Integers that differ, and the power of signal and error."""

    def __init__(self) -> None:
        self.values = self.differ = self.largest = 0
        self.signal = self.noise = 0.0

    def add(self, there: Array, here: Array, scale_there: float, scale: float, zero_point: int) -> None:
        apart = np.abs(there.astype(np.int32) - here.astype(np.int32))
        self.values += apart.size
        self.differ += int((apart > 0).sum())
        self.largest = max(self.largest, int(apart.max(initial=0)))
        x = (there.astype(np.float64) - zero_point) * scale_there
        self.add_power(x, (here.astype(np.float64) - zero_point) * scale)

    def add_power(self, there: Array, here: Array) -> None:
        self.signal += float((there**2).sum())
        self.noise += float(((there - here) ** 2).sum())

    @property
    def sqnr(self) -> float | None:
        if not self.signal:
            return None
        return math.inf if self.noise == 0 else 10 * math.log10(self.signal / self.noise)


def report_on(described: Description, made: Simulated, program: Program, data: Any, most: int) -> MigrationReport:
    """Return what changed; activations and outputs are compared on the first ``most`` samples of ``data``."""
    limits = {op.name: (op.attrs["lo"], op.attrs["hi"]) for op in program.ops if "lo" in op.attrs}
    sums, outputs = _compared(described, made, limits, data, most) if data is not None else ({}, None)
    sim, assigned = made.simulation, made.assigned
    weights = _weight_changes(described, made, program)
    layers = []
    for node in sim.graph:
        point, grid = sim.point(node.name), assigned.grids.get(node.name)
        if (point is None or grid is None) and node.name not in weights:
            continue
        told: dict[str, Any] = dict(weights.get(node.name, {}))
        if point is not None and grid is not None:
            told |= {"there": grid.name, "scale_there": grid.scale, "scale": float(point.scale)}
            told["zero_point"] = int(point.zero_point)
        found = sums.get(node.name)
        if found is not None:
            told |= {"values": found.values, "differ": found.differ, "largest": found.largest, "sqnr": found.sqnr}
        layers.append(LayerChange(node.name, **told))
    floats = [n for n in assigned.floats if n not in sim.all_weight_points and weight_names(sim.graph.nodes[n])]
    return MigrationReport(
        tool=described.tool,
        layers=tuple(layers),
        floats=tuple(name for name in sim.graph.nodes if name in floats),
        observed=tuple(assigned.observed),
        requantized=tuple(described.requantized),
        notes=tuple(dict.fromkeys([*described.notes, *assigned.notes])),
        outputs_sqnr=outputs,
    )


def _weight_changes(described: Description, made: Simulated, program: Program) -> dict[str, dict[str, Any]]:
    ops, sim = {op.name: op for op in program.ops}, made.simulation
    found = {}
    for node, grids in used_weights(sim.graph, described):
        name, roles = node.name, recurrent.WEIGHTS if node.op in GATES else ("weight",)
        op = ops.get(name)
        if op is None or roles[0] not in op.arrays:
            op = ops.get(part_name(name, 0, sim.graph.nodes))  # an activation behind it is another operation then
        if op is None or roles[0] not in op.arrays or name not in sim.all_weight_points:
            continue
        integers = [_integers(op, role) for role in roles]
        here = integers if len(roles) == 1 else [a[d] for d in range(len(integers[0])) for a in integers]
        scale = sim.all_weight_points[name].scale.double().cpu().numpy().reshape(-1)
        axis = 1 if node.attrs.get("transposed") else 0
        channels = [scale.size] if len(grids) == 1 else [len(grid.integers) for grid in grids]
        before = [grid.channel_scales(axis, n) for grid, n in zip(grids, channels, strict=True)]
        moved = np.concatenate([np.zeros(0), *(b for b in before if b is not None)])
        change, power = np.zeros(0), _Sums()
        if moved.size == scale.size:
            change = scale / moved - 1
            for grid, q, own in zip(grids, here, np.split(scale, np.cumsum(channels)[:-1]), strict=True):
                values = torch.from_numpy(grid.values())
                power.add_power(values.numpy(), q * per_output(torch.from_numpy(own), values, node).numpy())
        found[name] = {
            "there": grids[0].name,
            "weights": sum(grid.integers.size for grid in grids),
            "weights_changed": sum(_differ(grid.centered(), q) for grid, q in zip(grids, here, strict=True)),
            "weight_scale_change": float(np.abs(change).max(initial=0.0)),
            "channels": scale.size,
            "raised": int((change > 0.01).sum()),
            "weights_sqnr": power.sqnr,
        }
    return found


def _integers(op: Op, role: str) -> Array:
    """Return the integers of a weight, which are stored as codes where the operation decodes them."""
    stored = op.arrays[role]
    return unpack(stored, op.attrs["bits"], op.attrs["columns"]) if "bits" in op.attrs else stored.astype(np.int64)


def _differ(there: Array, here: Array) -> int:
    return int((there != here).sum()) if there.shape == here.shape else there.size


def _compared(
    described: Description, made: Simulated, limits: Mapping[str, tuple[int, int]], data: Any, most: int
) -> tuple[dict[str, _Sums], float | None]:
    sim, total = made.simulation, _Sums()
    sums: dict[str, _Sums] = {}
    seen = 0
    for args, kwargs in batches(data, sim.input_specs, torch.device("cpu")):
        if seen >= most:
            break
        marks = described.marks
        with rounding(marks), torch.no_grad():
            there = described.model(*copied(args), **copied(kwargs))
            flat = sim.flatten(args, kwargs)
            integers = sim.integer_tensors(flat)
            here = sim(*args, **kwargs)
            for node, (number, call) in made.assigned.marks.items():
                grid, point = marks[number].grid, sim.point(_tensor_of(sim, node))
                if grid is None or point is None or len(marks[number].seen) <= call:
                    continue
                q = integers[_tensor_of(sim, node)]
                zero_point = int(point.zero_point)
                # A mark may stand before an activation that is part of the operation here.
                before = marks[number].seen[call].cpu().numpy().clip(*limits.get(node, (0, 255)))
                if before.shape == q.shape and zero_point == grid.zero_point + grid.shift:
                    sums.setdefault(node, _Sums()).add(before, q, grid.scale, float(point.scale), zero_point)
        for a, b in zip(_floats(there), _floats(here), strict=True):
            total.add_power(a, b)
        seen += len(flat[0]) if flat[0].ndim else 1
    return sums, total.sqnr


def _tensor_of(sim: Any, node: str) -> str:
    """Return the tensor of integers of a node: its own, or what quantizes its floats."""
    return node if sim.point(node) is not None else f"{node}.quantize"


def _floats(outputs: Any) -> Iterable[Array]:
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return (leaf.detach().double().cpu().numpy() for leaf in leaves)


__all__ = ["report_on"]
