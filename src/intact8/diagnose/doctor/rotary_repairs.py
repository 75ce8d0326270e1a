"""Repairs of rotary positions: which rows of a head are turned together, and by which angles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import permutations

import torch
from torch import Tensor

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.attention_repairs import operation_before
from intact8.diagnose.doctor.repair import Repair, rows_reordered
from intact8.simulation.simulation import Simulation

BASES = 10.0, 20.0, 50.0, 100.0, 500.0, 1e3, 1e4, 1e5, 5e5, 1e6
"""Bases of the angles that are tried."""

TURNS = 1e-3
"""How far a cosine and a sine may be from those of one angle."""


def of_rotary_positions(sim: Simulation) -> Iterator[Repair]:
    """Yield the repairs of this module, of all layers together: positions are turned alike in all of them."""
    yield from _turned_together(sim.graph, sim.tensors)
    yield from _other_angles(sim.graph, sim.tensors)


def _turned_together(graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield queries and keys whose turned pairs are neighbours where they are halves of a head, and the reverse.

    Checkpoints hold either, and weights fit both.
    """
    layers: dict[str, tuple[Node, int]] = {}
    for node in graph:
        if node.op == "softmax":
            product = operation_before(graph, node, "matmul")
            if product is None:
                continue
            size = graph.nodes[product.inputs[0]].shape[-1]
            sides = [layer for name in product.inputs for layer in [_layer_before(graph, name)] if layer is not None]
            if len(sides) < 2 or not isinstance(size, int) or size < 4 or size % 2:
                continue
            for layer in sides:
                if len(tensors[layer.params["weight"]]) % size == 0:
                    layers[layer.name] = layer, size
    for halves in (True, False) if len(layers) > 1 else ():
        how = "halves of a head, not neighbours" if halves else "neighbours, not halves of a head"
        text = f"the rows of queries and keys that are turned together are {how} (rotary positions)"
        parts = []
        for layer, size in layers.values():
            rows = torch.arange(len(tensors[layer.params["weight"]]))
            pairs = (-1, size // 2, 2) if halves else (-1, 2, size // 2)
            parts.append(
                Repair("wrong_weights", text, layer, rows_reordered(layer, rows.reshape(pairs).mT.flatten(), tensors))
            )
        yield Repair("wrong_weights", text, parts[0].node, parts[0].tensors, also=tuple(parts[1:]), unusual=True)


def _layer_before(graph: Graph, name: str) -> Node | None:
    """Return the only linear layer that a value is computed of without another one; None where there are several."""
    found, pending, seen = set[str](), [name], {name}
    while pending:
        node = graph.nodes[pending.pop()]
        if node.op == "linear" and "weight" in node.params:
            found.add(node.name)
            continue
        if node.op in ("matmul", "softmax", "conv"):
            return None
        pending += [i for i in node.inputs if i not in seen]
        seen.update(node.inputs)
    return graph.nodes[found.pop()] if len(found) == 1 else None


def _other_angles(graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield tables of cosines and sines whose angles have another base."""
    tables = [n for n in graph if n.op == "constant" and n.dtype == "float32" and len(n.shape) > 1]
    for one, other in permutations(tables, 2):
        cosines, sines = (tensors[n.params["value"]].detach() for n in (one, other))
        if cosines.shape != sines.shape or float((cosines[..., :1, :] - 1).abs().max()) > TURNS:
            continue  # position 0 is not turned
        if float((cosines.square() + sines.square() - 1).abs().max()) > TURNS or cosines.shape[-2] < 2:
            continue
        turn = torch.atan2(sines[..., 1, :], cosines[..., 1, :]).double()
        places = torch.arange(cosines.shape[-2], dtype=torch.float64, device=turn.device)[:, None]
        speeds = turn.flatten().unique()  # type: ignore[no-untyped-call]
        if len(speeds) < 2 or not bool((turn > 0).all()) or abs(float(speeds.max()) - 1) > TURNS:
            continue
        if float(((places * turn[..., None, :]).cos() - cosines).abs().max()) > 10 * TURNS:
            continue
        ratio = -math.log(float(speeds.sort(descending=True).values[1]))
        base = math.exp(ratio * len(speeds))  # speeds are base ** (-i / n)
        for wanted in BASES:
            if abs(math.log(wanted) - math.log(base)) > 0.1:
                angles = places * (turn ** (math.log(wanted) / math.log(base)))[..., None, :]
                changed = {one.params["value"]: angles.cos().float(), other.params["value"]: angles.sin().float()}
                text = f"positions are turned by angles of base {wanted:.6g}, not {base:.6g}"
                yield Repair("wrong_weights", text, one, changed, others=(other,), unusual=True)
