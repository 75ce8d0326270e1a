"""From a description to a simulation: the network captured here, with the grids it has there, made tie-free."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from intact8.arithmetic.recurrent import GATES
from intact8.calibration.run import compute_scales
from intact8.capture import Captured, capture
from intact8.capture.graph import Graph, Node
from intact8.errors import InputError
from intact8.fusion.fuse import fuse
from intact8.migration.assign import Assigned, assign, weight_names
from intact8.migration.description import Description
from intact8.migration.grids import WeightGrid
from intact8.migration.layers import REQUANTIZE
from intact8.placement.assign_schemes import CODED
from intact8.placement.place import Placed, place
from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.layout import output_channels
from intact8.train.scale_phase import enter

MOST_WEIGHTS = -127
"""The least integer of a weight, unless the other tool's has −128."""


class Simulated(NamedTuple):
    """A simulation and how its nodes correspond to the other tool's tensors.

    Attributes:
        simulation: with the scales of the other tool, made tie-free.
        assigned: grids and marks by node of the fused graph.
        marks: see ``Captured.marks``.
    """

    simulation: Simulation
    assigned: Assigned
    captured: Captured


def simulate(described: Description, example_inputs: Any, data: Any, recipe: Recipe) -> Simulated:
    """Return the simulation of a described network.

    Args:
        described: the network, which must not be changed afterwards.
        example_inputs: as for ``intact8.prepare``.
        data: calibration data; needed only where the other tool has no range for a tensor that is integers here.
        recipe: what the grids do not say.

    Raises:
        CaptureError: the network cannot be captured.
        InputError: ranges are missing and there is no data.
    """
    with torch.inference_mode(False):
        captured = capture(described.model, example_inputs)
        rounded = {part for part, number in captured.marks if described.marks[number].grid is not None}
        fused = fuse(captured.graph, captured.tensors(), residual=False, leaky=recipe.leaky == "fused", rounded=rounded)
        assigned = assign(captured, fused.graph, described)
        recipe, placed = _placed(fused.graph, assigned, described, recipe)
        sim = Simulation(described.model, captured, fused, placed, recipe).eval()
        _take_grids(sim, described, data)
    return Simulated(sim, assigned, captured)


def _placed(graph: Graph, assigned: Assigned, described: Description, recipe: Recipe) -> tuple[Recipe, Placed]:
    """Return the placed graph and the recipe of it, in which every node has the grid of the other tool."""
    changes: dict[str, dict[str, Any]] = {}
    for node in graph:
        if node.op in ("input", "constant") or node.moves:
            continue
        changes[node.name] = {"quantize": node.name not in assigned.floats}
        if node.module in described.dynamic and node.op in CODED["dynamic"] - GATES.keys():
            changes[node.name] = {"mode": "dynamic"}
        if node.module in described.weight_only and node.op in CODED["weight_only"]:
            changes[node.name] = {"mode": "weight_only"}
    first = place(graph, _with_overrides(recipe, changes))
    quantized = {_owner(first.graph, graph, name) for name in (*first.point_of, *first.dequantized)}
    for name, grid in assigned.grids.items():
        node = graph.nodes[name]
        if name in quantized and (node.op == "cat" or not node.shares_grid):
            changes.setdefault(name, {})["activation"] = grid.scheme()
    for name in first.weights:
        weight = described.weights.get(graph.nodes[name].params.get("weight", ""))
        if weight is not None and weight.centered().min() < MOST_WEIGHTS:
            changes[name]["weight"] = {"qmin": -128}
    recipe = _with_overrides(recipe, changes)
    return recipe, place(graph, recipe)


def _with_overrides(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    # What is inside a module is meant by its path, too: the longer name has the last word.
    overrides = tuple(Override(name, **changes[name]) for name in sorted(changes, key=len))
    return replace(recipe, overrides=overrides)


def _owner(placed: Graph, graph: Graph, name: str) -> str:
    """Return the node of the fused graph whose scheme a node of the placed graph has."""
    if name in graph.nodes:
        return name
    node = placed.nodes[name]
    return node.source[0] if node.op == "constant" else node.inputs[0]


def _take_grids(sim: Simulation, described: Description, data: Any) -> None:
    """Give weights the scales of the other tool, observe what it has no range for, and make all scales tie-free."""
    for point in sim.points.values():
        if not point.calibrated and sim.placed.points[point.name].constant:
            for name in point.tensors:
                point.observer.observe(sim.tensors[sim.graph.nodes[name].params["value"]].detach())
            point.assign(*point.observed_qparams())
    missing = [name for name, point in sim.points.items() if not point.calibrated]
    if missing and data is None:
        what = f"{len(missing)} tensors are integers here and have no range there: {', '.join(missing[:6])}"
        why = f"{described.tool} leaves them float"
        raise InputError(what, where=missing[0], why=why, remedy="give data=…, a few batches of real inputs")
    if missing:
        compute_scales(sim, data)
        enter(sim, "calibrated")
    inputs = set(sim.graph.inputs)
    for name, point in sim.points.items():
        if name not in inputs:  # what images and sensors give keeps its grid to the last bit
            point.fixed = False
    for requantization in sim.requantizations.values():
        requantization.put()
    for name, weight_point in sim.all_weight_points.items():
        node = sim.graph.nodes[name]
        grids = {parameter: described.weights.get(parameter) for parameter in weight_names(node)}
        if grids and all(grid is not None for grid in grids.values()):
            weight_point.source = "held"
            scales = [
                _channel_scales(grid, sim, node, parameter, described.weight_only)
                for parameter, grid in grids.items()
                if grid
            ]
            weight_point.scale, weight_point.free = torch.from_numpy(np.concatenate(scales)), False
    sim.resolve(from_observers=False)
    enter(sim, "frozen")


def _channel_scales(
    grid: WeightGrid, sim: Simulation, node: Node, parameter: str, weight_only: Collection[str]
) -> np.ndarray[Any, Any]:
    """Return the weight's scale per output channel; of a layer in mode dynamic without multiplier, (channels, 1)."""
    channels = output_channels(node, sim.tensors[parameter])
    axis = 1 if node.attrs.get("transposed") else 0
    scales = grid.channel_scales(axis, channels)
    if scales is None:
        what = f"{grid.scale.size} scales along axis {grid.axis} of the weight"
        why = f"a program has one scale for each of the {channels} output channels"
        raise InputError(what, where=grid.name, why=why, remedy=REQUANTIZE)
    # Layers that multiply integers as floats, and rows of tables, may have several scales per channel: here, one.
    return scales.reshape(-1, 1) if node.op == "embedding" or node.module in weight_only else scales


def used_weights(graph: Graph, described: Description) -> Iterable[tuple[Node, list[WeightGrid]]]:
    """Yield the nodes of a graph whose weights have integers there, with these."""
    for node in graph:
        grids = [described.weights[name] for name in weight_names(node) if name in described.weights]
        if grids:
            yield node, grids
