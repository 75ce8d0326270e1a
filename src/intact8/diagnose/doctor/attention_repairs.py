"""Repairs of attention: its mask, its scale, its heads, and how queries, keys and values lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.consumers import Users
from intact8.diagnose.doctor.repair import Compute, Repair, rows_reordered
from intact8.diagnose.doctor.structural_repairs import HIDDEN, UNCHANGED
from intact8.diagnose.doctor.wiring_repairs import read_by
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

LEAST_HIDDEN = 30.0
"""Size from which a negative number that is added to scores hides a position: the exponential is less than 1e-12."""

COUNTS = 1, 2, 3, 4, 6, 8, 12, 16
"""Numbers of heads that are tried."""


def of_attention(sim: Simulation) -> Iterator[Repair]:
    """Yield the repairs of this module."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    yield from _scores(graph)
    yield from _counts(graph, users)
    for node in graph:
        if node.op == "softmax":
            yield from _causal(node, compute)
        elif node.op == "masked_fill":
            yield Repair("wrong_setting", "its mask is inverted", node, compute=_inverted(node, compute))
        elif node.op == "linear" and "weight" in node.params:
            yield from _projected(node, graph, users, sim.tensors)
        elif node.op == "constant":
            yield from _mask_turned(node, graph, users, sim.tensors)


def operation_before(graph: Graph, node: Node, op: str) -> Node | None:
    """Return the operation of a kind before another one that only shifts, scales or masks what it gives."""
    for _ in range(6):
        if not node.inputs:
            return None
        node = graph.nodes[node.inputs[0]]
        if node.op == op:
            return node
        if len(node.shape) < 3 or node.op in AFFINE:
            return None
    return None


def _scaled(graph: Graph, softmax: Node, product: Node) -> bool:
    """Return whether scores, or what they are the products of, are multiplied by a number."""
    ways = [softmax.inputs[0], *product.inputs]
    while ways:
        node = graph.nodes[ways.pop()]
        chain = node.attrs["chain"] if node.op == "table" else []
        if node.op == "mul" or any(part["op"] == "affine_scalar" for part in chain):
            return True
        if node is not product and (node.moves or node.op in UNCHANGED or node.op in ("add", "masked_fill")):
            ways += node.inputs[:1]
    return bool(product.attrs.get("mul", 1.0) != 1.0)


def _scores(graph: Graph) -> Iterator[Repair]:
    """Yield attention whose scores are divided by the root of the size of a head, in all places, or are not twice.

    And in the places where they are not divided by anything, where in others they are.
    """
    found = [(node, operation_before(graph, node, "matmul")) for node in graph if node.op == "softmax"]
    pairs = [(node, product) for node, product in found if product is not None]
    scores = list({product.name: product for _, product in pairs}.values())
    sizes = known([graph.nodes[node.inputs[0]].shape[-1] for node in scores])
    if len(sizes) < len(scores) or min(sizes, default=0) < 2:
        return
    what = f"the root of {sizes[0]}, the size of a head" if len(set(sizes)) == 1 else "the root of the size of a head"
    divided = {product.name for softmax, product in pairs if _scaled(graph, softmax, product)}
    for power, how in ((-0.5, "divided"), (0.5, "multiplied")):
        text = f"scores of attention are {how} by {what}"
        unusual = not divided and how == "divided"
        parts = [
            Repair("wrong_setting", text, node, gain=size**power, unusual=unusual)
            for node, size in zip(scores, sizes, strict=True)
        ]
        yield replace(parts[0], also=tuple(parts[1:]))
    for product, size in zip(scores, sizes, strict=True):
        if divided and product.name not in divided:
            text = f"its scores are divided by {what}, as elsewhere"
            yield Repair("wrong_setting", text, product, gain=size**-0.5, unusual=True)


def _causal(node: Node, compute: FloatExecutor) -> Iterator[Repair]:
    """Yield attention in which no position sees those behind it."""
    size = node.shape[-1]
    if node.attrs["axis"] == len(node.shape) - 1 and isinstance(size, int) and size == node.shape[-2] and size > 2:

        def masked(inputs: Sequence[Tensor], _: Mapping[str, Tensor]) -> Tensor:
            later = torch.ones(size, size, dtype=torch.bool, device=inputs[0].device).triu(1)
            return compute(node, [inputs[0].masked_fill(later, HIDDEN)])

        yield Repair("wrong_setting", "no position sees those behind it (causal)", node, compute=masked)


def _inverted(node: Node, compute: FloatExecutor) -> Compute:
    return lambda inputs, _: compute(node, [inputs[0], ~inputs[1].bool()])


def _mask_turned(node: Node, graph: Graph, users: Users, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a mask of attention, added to scores or not, that hides other positions: transposed, or inverted."""
    name = node.params["value"]
    held, readers = tensors[name].detach(), {graph.nodes[user].op for user in users[node.name]}
    square = held.dim() > 1 and held.shape[-1] == held.shape[-2] > 2
    added = held.is_floating_point() and float(held.max()) == 0 and float(held.min()) < -LEAST_HIDDEN
    if not square or not readers <= {"add", "masked_fill", "where"} or not (added or held.dtype == torch.bool):
        return
    hidden = held < 0 if added else held
    for text, other in (("transposed", hidden.transpose(-1, -2)), ("inverted", ~hidden)):
        if not torch.equal(other, hidden):
            changed = torch.zeros_like(held).masked_fill(other, float(held.min())) if added else other.contiguous()
            yield Repair("wrong_setting", f"its mask is {text}", node, {name: changed})
    own = torch.eye(held.shape[-1], dtype=torch.bool, device=held.device)
    ordered = not bool((hidden & hidden.mT & ~own).any())  # it hides what comes later, or before
    if ordered and bool((hidden | ~own).all()) and bool((hidden & ~own).any()):
        seen = held.masked_fill(own, 0.0) if added else hidden & ~own
        yield Repair("wrong_weights", "every position sees itself as well", node, {name: seen}, unusual=True)


def _projected(node: Node, graph: Graph, users: Users, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield queries, keys and values of one layer in another order, or head by head."""
    behind = read_by(node, graph, users)
    split = len(behind) == 1 and behind[0].op == "reshape"
    weight = tensors[node.params["weight"]].detach()
    shapes = [known(behind[0].shape[-count:]) for count in (2, 3)] if split and len(behind[0].shape) > 3 else []
    whole = [shape for shape in shapes if math.prod(shape) == len(weight)]
    parts, count = next((shape for shape in whole if 3 in shape[:2]), []), 3
    if not parts:  # queries may have a layer of their own
        parts, count = next((shape for shape in whole if len(shape) > 2 and 2 in shape[:2]), []), 2
    if not parts:
        yield from _interleaved(node, shapes, tensors)
        yield from _packed_by_head(node, behind, graph, users, tensors)
        return
    rows = torch.arange(len(weight)).reshape(*parts)
    first, what = parts[0] == count, "queries, keys and values" if count == 3 else "keys and values"
    orders = {f"in the order {order}": rows.index_select(0 if first else 1, torch.tensor(order)).flatten()
              for order in list(permutations(range(count)))[1:]}  # fmt: skip
    if len(parts) > 2:
        orders["head by head"] = torch.arange(len(weight)).reshape(parts[1], parts[0], -1).transpose(0, 1).flatten()
    for how, order in orders.items():
        yield Repair("wrong_weights", f"{what} lie {how}", node, rows_reordered(node, order, tensors))


def _packed_by_head(
    node: Node, behind: Sequence[Node], graph: Graph, users: Users, tensors: Mapping[str, Tensor]
) -> Iterator[Repair]:
    """Yield a layer of which thirds are taken as packed head by head."""
    thirds = len(behind) == 3 and all(n.op == "slice" and n.attrs["axis"] == len(node.shape) - 1 for n in behind)
    heads = {n.shape[-2] for third in behind if thirds for n in read_by(third, graph, users) if n.op == "reshape"}
    rows = len(tensors[node.params["weight"]])
    count = heads.pop() if len(heads) == 1 else 0
    if isinstance(count, int) and count > 1 and rows % (3 * count) == 0:
        order = torch.arange(rows).reshape(count, 3, -1).transpose(0, 1).flatten()
        text = f"queries, keys and values of its {count} heads lie head by head"
        yield Repair("wrong_weights", text, node, rows_reordered(node, order, tensors))


def _interleaved(node: Node, shapes: Sequence[Sequence[int]], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield queries, keys or values of a layer of their own with the rows of all heads between each other, or not."""
    weight = tensors[node.params["weight"]].detach()
    heads, size = shapes[0] if shapes and len(shapes[0]) == 2 else (1, 1)
    if heads < 2 or size < 2 or heads * size != len(weight):
        return
    for a, b, how in ((size, heads, "come head by head, not between each other"),
                      (heads, size, "come between each other, not head by head")):  # fmt: skip
        order = torch.arange(len(weight)).reshape(a, b).T.flatten()
        yield Repair("wrong_weights", f"its rows for {heads} heads {how}", node, rows_reordered(node, order, tensors))


def _counts(graph: Graph, users: Users) -> Iterator[Repair]:
    """Yield all attention without masks with another number of heads, which no shape of a weight tells."""
    found = [one for node in graph if node.op == "softmax" for one in [_parts(graph, node, users)] if one is not None]
    softmaxes = sum(node.op == "softmax" for node in graph)
    if not found or len(found) < softmaxes or len({(heads, width) for *_, heads, width in found}) > 1:
        return
    heads, width = found[0][-2:]
    for count in COUNTS:
        if count != heads and width % count == 0:
            text = f"attention has {count} heads, not {heads}, in {len(found)} places"
            parts = [Repair("wrong_setting", text, out, compute=_with_heads(given, count)) for out, given, *_ in found]
            yield replace(parts[0], also=tuple(parts[1:]))


def _parts(graph: Graph, softmax: Node, users: Users) -> tuple[Node, list[tuple[str, int]], int, int] | None:
    """Return what joins the heads of attention, its queries, keys and values, and the numbers of heads and of both.

    Queries, keys and values are results of layers, (N, steps, width), or one third of a layer's, by names and places.
    """
    product = operation_before(graph, softmax, "matmul")
    behind = [graph.nodes[name] for name in users[softmax.name]]
    while len(behind) == 1 and behind[0].op in UNCHANGED:
        behind = [graph.nodes[name] for name in users[behind[0].name]]
    if product is None or len(behind) != 1 or behind[0].op != "matmul" or len(product.shape) != 4:
        return None
    between = graph.nodes[softmax.inputs[0]]
    while between is not product:  # what is between hides positions, or multiplies
        if between.op not in (*UNCHANGED, "mul", "table"):
            return None
        between = graph.nodes[between.inputs[0]]
    joined = behind[0]
    while joined.op != "reshape" or len(joined.shape) != 3:
        after = [graph.nodes[name] for name in users[joined.name]]
        if len(after) != 1 or not (after[0].moves or after[0].op in UNCHANGED):
            return None
        joined = after[0]
    given = [_source(graph, name) for name in (*product.inputs, behind[0].inputs[1])]
    width, heads = joined.shape[2], product.shape[1]
    if any(one is None for one in given) or not isinstance(width, int) or not isinstance(heads, int):
        return None
    sources = [one for one in given if one is not None]
    sizes = {graph.nodes[name].shape[-1] for name, _ in sources}
    thirds = len({name for name, _ in sources}) == 1
    fits = sizes == {3 * width} and sorted(at for _, at in sources) == [0, 1, 2] if thirds else sizes == {width}
    return (joined, sources, heads, width) if fits else None


def _source(graph: Graph, name: str) -> tuple[str, int] | None:
    """Return the layer of which queries, keys or values are the result, and which third of it they are."""
    node, at = graph.nodes[name], 0
    while node.moves or node.op in UNCHANGED or node.op in ("slice", "mul", "table"):
        if node.op == "slice":
            at = node.attrs["start"]
        node = graph.nodes[node.inputs[0]]
    if node.op != "linear" or len(node.shape) != 3:
        return None
    width = node.shape[-1]
    return node.name, (at // (width // 3) if isinstance(width, int) and at >= 3 else at)


def _with_heads(sources: Sequence[tuple[str, int]], count: int) -> Compute:
    thirds = len({name for name, _ in sources}) == 1

    def value(_: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
        parts = [given[name].chunk(3, -1)[at] if thirds else given[name] for name, at in sources]
        q, k, v = (x.reshape(*x.shape[:2], count, -1).transpose(1, 2) for x in parts)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        joined: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return joined

    return value
