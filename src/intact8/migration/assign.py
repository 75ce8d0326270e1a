"""Which node of the fused graph has which grid of the other tool, and which nodes stay float as they do there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from intact8.arithmetic.affine import choose_qparams
from intact8.arithmetic.recurrent import GATES
from intact8.capture import Captured
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import HEAVY, LAYERS
from intact8.migration.description import Description
from intact8.migration.grids import ActivationGrid
from intact8.simulation.ops import recurrent
from intact8.simulation.scales.resolve import POOLS, SOLVERS

FUNCTIONS = {
    "sigmoid": (1 / 256, 0),
    "hardsigmoid": (1 / 256, 0),
    "tanh": (2 / 256, 128),
}
"""Scale and zero point that torch gives to functions of one number between fixed ends, in quint8."""

CLAMPS = frozenset({"relu", "clamp"})

ROWS_ALONE = GATES.keys() | {"embedding"}
"""Operations whose weights are integers by themselves, whatever they read."""


@dataclass
class Assigned:
    """What is known of every node of a fused graph.

    Attributes:
        grids: node → its grid.
        marks: node → number of the mark that gave it, and which call of it, counted from 0.
        floats: nodes that are computed in floats there.
        observed: nodes that have integers here but no grid there: their ranges are to be observed on data.
        notes: sentences for the report.
    """

    grids: dict[str, ActivationGrid] = field(default_factory=dict)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)
    observed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def assign(captured: Captured, graph: Graph, described: Description) -> Assigned:
    """Return grids by node of ``graph``, the fused graph of ``captured``.

    A node without a mark has integers where all it reads has and one of these holds: it averages, clamps or moves what
    it reads; it is arithmetic with numbers; it is a layer whose weight has integers.
    """
    out, after = _own_grids(captured, graph, described)
    found = Assigned(marks=out.marks, notes=out.notes)
    for node in graph:
        grid = out.grids.get(node.name)
        reads = [name for name in node.inputs if graph.nodes[name].dtype == "float32"]
        integers = bool(reads) and all(
            (name in found.grids or name in found.observed or graph.origin(name).op == "constant") and name not in after
            for name in reads
        )
        if node.op == "input" or node.op == "constant":
            if grid is not None:
                found.grids[node.name] = grid
            continue
        if node.op in ROWS_ALONE:
            if grid is not None:
                found.grids[node.name] = grid
            if any(name not in described.weights for name in weight_names(node)):
                found.floats.add(node.name)
            continue
        if grid is None and integers:
            grid = _implied(node, found, described)
        if node.op in LAYERS and "weight" in node.params and node.params["weight"] not in described.weights:
            integers = False
        if grid is not None:
            found.grids[node.name] = grid
        elif integers and _is_observed(node, found, described):
            found.observed.append(node.name)
        if not node.moves and (not integers or (grid is None and node.name not in found.observed)):
            found.floats.add(node.name)
    return found


def weight_names(node: Node) -> list[str]:
    """Return the names of the parameters that the integers of a node's weight come from; a recurrent layer has many."""
    if node.op in GATES:
        return recurrent.weight_names(node)
    return [node.params["weight"]] if "weight" in node.params else []


def _is_observed(node: Node, found: Assigned, described: Description) -> bool:
    """Return whether a node without a grid there has integers here: layers of integers, sums and means of them.

    A sum has a rounding of its own here, because one that is fused to the layer would take other weights.
    """
    follows = SOLVERS.get(node.op) is not None and any(name in found.observed for name in node.inputs)
    return follows or (node.op in HEAVY and node.params.get("weight") in described.weights)


def _moved(graph: Graph, name: str) -> set[str]:
    """Return a node and those before it whose values it moves, back to the one that computes them."""
    found, node = {name}, graph.nodes[name]
    while node.shares_grid and node.op != "cat":
        node = graph.nodes[node.inputs[0]]
        found.add(node.name)
    return found


def _implied(node: Node, found: Assigned, described: Description) -> ActivationGrid | None:
    """Return the grid that a node without a mark has by what it reads; None where it has none."""
    before = found.grids.get(node.inputs[0])
    if node.shares_grid or node.op in POOLS:
        return before  # of a concatenation, the first part's
    if node.op != "table" or before is None:
        return None
    if all(step["op"] == "affine_scalar" for step in node.attrs["chain"]):
        return _mapped(node, before)
    steps = [(step.get("attrs", {}).get("fn", step["op"])) for step in node.attrs["chain"]]
    if all(step in CLAMPS for step in steps):
        return before
    if described.integer_functions and len(steps) == 1 and steps[0] in FUNCTIONS:
        return ActivationGrid(node.name, *FUNCTIONS[steps[0]], 0, 255, "uint8")
    return None


def _mapped(node: Node, before: ActivationGrid) -> ActivationGrid:
    """Return the grid of arithmetic with numbers: the one of what it reads, mapped by it."""
    mul, add = 1.0, 0.0
    for step in node.attrs["chain"]:
        mul, add = mul * step["attrs"]["mul"], add * step["attrs"]["mul"] + step["attrs"]["add"]
    if add == 0 and mul > 0:
        return replace(before, name=node.name, scale=before.scale * mul)
    ends = sorted((q - before.zero_point) * before.scale * mul + add for q in (before.qmin, before.qmax))
    scale, zero_point = choose_qparams(ends[0], ends[1], before.qmin, before.qmax, False)
    return replace(before, name=node.name, scale=float(scale), zero_point=int(zero_point))


def _own_grids(captured: Captured, graph: Graph, described: Description) -> tuple[Assigned, set[str]]:
    """Return what the marks say: grids by node, and the nodes whose results are floats again."""
    marks, calls = described.marks, dict.fromkeys(described.marks, 0)
    holder = {part: node.name for node in graph for part in node.parts}
    order = {part: i for node in graph for i, part in enumerate(node.parts)}
    out, after = Assigned(), set()
    at: dict[str, int] = {}
    for part, number in captured.marks:
        call, calls[number] = calls[number], calls[number] + 1
        grid, name = marks[number].grid, holder.get(part)
        if name is None:
            continue  # fusion left the tensor out: nothing reads it
        if grid is None:
            after.add(name)
            continue
        node = graph.nodes[name]
        origin = graph.origin(name)
        after -= _moved(graph, name)
        # A layer and the pooling behind it have one grid; where only the pooling has a mark, it is the layer's, too.
        if origin.name != name and origin.name not in out.grids and origin.op not in ("input", "constant"):
            name, node = origin.name, origin
        before = out.grids.get(name)
        if before is not None and (before.scale, before.zero_point) != (grid.scale, grid.zero_point):
            if order.get(part, 0) < at[name] or node.shares_grid:
                out.notes.append(f"{name}: has the grid of {before.name}; there, {grid.name} rounds it to another one")
                continue
            out.notes.append(f"{name}: rounded once, to the grid of {grid.name}; there, {before.name} was rounded too")
        out.grids[name], out.marks[name], at[name] = grid, (number, call), order.get(part, 0)
    return out, after
