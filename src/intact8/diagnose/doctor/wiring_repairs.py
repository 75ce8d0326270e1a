"""Repairs of how operations are joined: steps taken, channels shuffled, activations left out, shortcuts, positions.

Each is what people and converters mistake one for another, so that both are possible and only the labels tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.consumers import Users
from intact8.diagnose.doctor.repair import SCALED, Compute, Repair, kind_of, more_places, rows_reordered
from intact8.diagnose.doctor.structural_repairs import (
    FUNCTIONS,
    UNCHANGED,
    function_of,
    only_source,
    source_of,
    unwrapped,
    with_function,
)
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

STEPS, SHORTCUT, MOST_LAYERS = 4, 4, 24
"""Steps from which one of them is another's place, layers that a shortcut may pass by, and layers up to which one is
tried for all that have the shape of those with shortcuts."""


MOST_REVERSED = 64
"""Numbers along a dimension up to which they may come in reverse order."""

MOST_TOKENS = 5
"""Tokens before the patches of a picture: of the class, of a teacher, and registers."""

PARTS = 3, 4
"""Numbers of parts of a result that are taken alone: queries, keys and values, or gates."""

PARTS_ADDED = 0.1, 0.2, 0.3, 0.5
"""Factors of residual blocks that are tried."""


IDLE = [{"op": "affine_scalar", "attrs": {"mul": 1.0, "add": 0}}]
"""The chain of a multiplication by 1."""


def rewired(sim: Simulation) -> Iterator[Repair]:
    """Yield the repairs of this module but those of :func:`shortcuts`."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    layers = {n.name: n for n in graph if n.op in AFFINE and n.op != "scale_shift" and "weight" in n.params}
    behind = {name: read_by(n, graph, users) for name, n in layers.items()}
    with_sums = [n for n, read in behind.items() if any(b.op == "add" and not _held(b, graph) for b in read)]
    few = len(layers) <= MOST_LAYERS  # of which those with sums may have other names
    summed = {alike for name in with_sums for alike in _likenesses(layers[name], sim.tensors)[: 1 + few]}
    groups = {n.shape[1] for n in graph if n.op == "reshape" and len(n.shape) == 5 and _shuffles(n, graph, users)}
    for node in graph:
        shape = graph.nodes[node.inputs[0]].shape if node.inputs else ()
        if node.op == "slice":
            yield from _other_step(node, shape)
        elif node.op == "reshape" and len(shape) == 3 and tuple(node.shape) == (shape[0], shape[2], shape[1]):
            turned: Compute = lambda inputs, _: inputs[0].transpose(1, 2).contiguous()  # noqa: E731
            yield Repair("wrong_setting", "it transposes its input and does not reshape it", node, compute=turned)
        elif node.op == "reshape" and len(shape) == 2 and len(node.shape) == 3 and node.shape[0] == shape[0]:
            yield from _filled_by_columns(node)
        elif node.op in ("mean", "reduce"):
            yield from _one_step(node, shape, graph)
        elif node.op == "cat":
            yield from _shuffled(node, groups, compute)
        elif node.op in ("add", "mul") and not _held(node, graph) and not function_of(node):
            yield from _combined(node, graph)
        yield from _halves(node, graph, users, compute)
        yield from _parts_in_order(node, layers, graph, users, sim.tensors)
        yield from _bounded(node, graph, users)
        if node.name in layers and summed.intersection(_likenesses(node, sim.tensors)):
            yield from _shortcut_to(node, graph, users, compute)
        if node.op == "constant":
            yield from _positions(node, sim)
            yield from _reversed(node, sim.tensors)
        elif node.op == "avg_pool" and tuple(node.shape) == tuple(shape):
            yield Repair("wrong_setting", "its input is taken off its means", node, compute=_less_input(node, compute))
    yield from _parts_added(graph)
    yield from _given_back(graph, compute)


def _filled_by_columns(node: Node) -> Iterator[Repair]:
    """Yield numbers that are taken for rows and columns, as made for columns before rows."""
    rows, columns = node.shape[1:]
    if isinstance(rows, int) and isinstance(columns, int) and 1 not in (rows, columns):
        by_columns: Compute = lambda inputs, _: inputs[0].reshape(-1, columns, rows).transpose(1, 2)  # noqa: E731
        text = f"its numbers are those of {columns} × {rows}, column by column"
        yield Repair("wrong_setting", text, node, compute=by_columns)


def _parts_added(graph: Graph) -> Iterator[Repair]:
    """Yield residual blocks that are alike of which a part is added, as in deep networks of many: where it was lost."""
    alike: dict[str, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op == "add" and len(node.inputs) == 2:
            for way, passed in (node.inputs, node.inputs[::-1]):
                made = graph.nodes[way]
                while made.inputs and (made.moves or made.op in UNCHANGED):
                    made = graph.nodes[made.inputs[0]]
                if made.op in (*AFFINE, "table", "mul") and _comes_from(graph, way, passed):
                    alike[kind_of(made.name)].append(made)
    for layers in alike.values():
        for part in PARTS_ADDED if len(layers) > 1 else ():
            text = f"{part:.3g} times its results are added, and so in {more_places(len(layers) - 1)}"
            # A factor that does nothing was something else once; where there is none, another scale makes up for much.
            idle = all(function_of(layer) == IDLE for layer in layers)
            parts = [Repair("wrong_scale", text, layer, gain=part) for layer in layers]
            yield replace(parts[0], also=tuple(parts[1:]), unusual=idle, least=0.0 if idle else SCALED)


def _comes_from(graph: Graph, name: str, source: str) -> bool:
    """Return whether a value is computed of another one within a residual block."""
    pending, seen = [name], {name}
    while pending and len(seen) < MOST_LAYERS:
        found = [i for i in graph.nodes[pending.pop()].inputs if i not in seen]
        pending += found
        seen.update(found)
    return source in seen


def _other_step(node: Node, shape: Sequence[Any]) -> Iterator[Repair]:
    """Yield the first step, the last one, or the mean of all, in place of the one that is taken."""
    axis, start, end = (node.attrs[key] for key in ("axis", "start", "end"))
    size = shape[axis] if axis > 0 and len(shape) > 2 else 0
    if isinstance(size, int) and size >= STEPS and end == start + 1:
        for other in {0, size - 1} - {start}:
            changed = replace(node, attrs={**node.attrs, "start": other, "end": other + 1})
            yield Repair("wrong_setting", f"it takes step {other} of {size}, not step {start}", changed)
    if isinstance(size, int) and size > 1 and end == start + 1 and node.dtype == "float32":
        mean: Compute = lambda inputs, _: inputs[0].mean(axis, keepdim=True)  # noqa: E731
        yield Repair("wrong_setting", f"it takes the mean of all {size} steps, not step {start}", node, compute=mean)


def _one_step(node: Node, shape: Sequence[Any], graph: Graph) -> Iterator[Repair]:
    """Yield the first step, or the last one, in place of the mean or the maximum of all, or of all but the first."""
    dims, keepdim = tuple(node.attrs.get("dims") or ()), node.attrs.get("keepdim", False)
    if len(dims) != 1 or len(shape) != 3 or dims[0] == 0:
        return
    axis, source = dims[0], unwrapped(graph, graph.nodes[node.inputs[0]])
    part = source.op == "slice" and source.attrs["axis"] == axis  # as the patches behind a token
    whole = graph.nodes[source.inputs[0]] if part else source

    size = whole.shape[axis]

    def taken(at: int) -> Compute:
        def value(_: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
            step = given[whole.name].narrow(axis, at, 1)
            return step if keepdim else step.squeeze(axis)

        return value

    if isinstance(size, int) and size >= STEPS:
        for at in (0, size - 1):
            text = f"it takes step {at} of {size}, not all of them"
            yield Repair("wrong_setting", text, node, compute=taken(at))


def _combined(node: Node, graph: Graph) -> Iterator[Repair]:
    """Yield the product of two tensors in place of their sum, or the sum in place of the product."""
    a, b = (graph.nodes[name] for name in node.inputs) if len(node.inputs) == 2 else (node, node)
    if a.name != b.name and tuple(a.shape) == tuple(b.shape):
        product: Compute = lambda inputs, _: inputs[0] * inputs[1]  # noqa: E731
        total: Compute = lambda inputs, _: inputs[0] + inputs[1]  # noqa: E731
        text, way = (
            ("multiplies, and does not add", product) if node.op == "add" else ("adds, and does not multiply", total)
        )
        yield Repair("wrong_setting", f"it {text}", node, compute=way)


def _less_input(node: Node, compute: FloatExecutor) -> Compute:
    return lambda inputs, _: compute(node, inputs) - inputs[0]


def _reversed(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield numbers that are no parameters of a layer, as slopes of heads, in reverse order along a dimension."""
    held = tensors[node.params["value"]].detach()
    for axis in range(held.dim()) if held.is_floating_point() else ():
        turned = held.flip(axis)
        if 1 < held.shape[axis] <= MOST_REVERSED and not torch.equal(turned, held):
            text = f"its numbers come in reverse order along dimension {axis}"
            yield Repair("wrong_setting", text, node, {node.params["value"]: turned})


def _given_back(graph: Graph, compute: FloatExecutor) -> Iterator[Repair]:
    """Yield answers to which the mean, or the deviation, that was taken off what they are computed of is given back."""
    for taken in (n for n in graph if n.op == "sub" and len(n.inputs) == 2):
        what, mean = taken.inputs
        made = graph.nodes[mean]
        if not _reduced(graph, mean, what) or len(made.shape) != len(taken.shape):
            continue
        widths = [n.inputs[1] for n in graph if n.op == "div" and n.inputs[0] == taken.name]
        for out in (graph.nodes[name] for name in dict.fromkeys(graph.outputs)):
            for width in ("", *widths) if out.dtype == "float32" else ():
                for back in (mean, "") if width else (mean,):
                    parts = [f"the mean of {what}"] * bool(back) + ["its deviation"] * bool(width)

                    def given_back(
                        inputs: Sequence[Tensor],
                        given: Mapping[str, Tensor],
                        out: Node = out,
                        back: str = back,
                        width: str = width,
                    ) -> Tensor:
                        y = compute(out, inputs)
                        y = y * _as_wide(given[width], y) if width else y
                        return y + _as_wide(given[back], y) if back else y

                    text = f"{' and '.join(parts)}, which was taken off, is given back to its results"
                    yield Repair("wrong_setting", text, out, compute=given_back)


def _reduced(graph: Graph, name: str, source: str) -> bool:
    """Return whether something is a mean of a tensor, moved or not."""
    node = graph.nodes[source_of(graph, name)]
    return node.op in ("mean", "reduce") and node.inputs[0] == source


def _as_wide(x: Tensor, like: Tensor) -> Tensor:
    """Return one number for each sample or column in the dimensions of answers, of which steps may be the last."""
    if x.dim() > like.dim():
        x = x.squeeze(next((d for d in range(1, x.dim()) if x.shape[d] == 1), x.dim() - 1))
    fits = all(size in (1, wide) for size, wide in zip(x.shape, like.shape, strict=True))
    return x if fits or x.dim() != 3 else x.transpose(1, 2)


def _halves(node: Node, graph: Graph, users: Users, compute: FloatExecutor) -> Iterator[Repair]:
    """Yield a result with its two halves exchanged, where each is taken alone, as values and their gates."""
    readers = [graph.nodes[name] for name in users[node.name]]
    while len(readers) == 1 and readers[0].op in UNCHANGED:
        readers = [graph.nodes[name] for name in users[readers[0].name]]
    if node.op == "input" or len(readers) != 2 or any(r.op != "slice" or r.attrs["step"] != 1 for r in readers):
        return
    axis, size = readers[0].attrs["axis"], node.shape[readers[0].attrs["axis"]]
    if not isinstance(size, int) or readers[1].attrs["axis"] != axis or axis == 0:
        return
    half = size // 2
    if sorted((r.attrs["start"], r.attrs["end"]) for r in readers) != [(0, half), (half, size)]:
        return
    scale = _scale_of(node, compute)

    def exchanged(inputs: Sequence[Tensor], _: Mapping[str, Tensor]) -> Tensor:
        return (compute(node, inputs) * scale).roll(half, axis) / scale

    text = "its two halves, each of which is taken alone, are exchanged"
    yield Repair("wrong_setting", text, node, compute=exchanged)


def _parts_in_order(
    node: Node, layers: Mapping[str, Node], graph: Graph, users: Users, tensors: Mapping[str, Tensor]
) -> Iterator[Repair]:
    """Yield layers of whose results, or of whose sum, parts are taken, as gates, in another order; of two that are as
    long see :func:`_halves`."""
    of = [node.name] if node.name in layers else node.inputs if node.op == "add" and len(node.inputs) == 2 else []
    made = [layers[name] for name in of if name in layers and layers[name].op in ("conv", "linear")]
    if not made or len(made) < len(of):
        return
    behind = _slices(node, made[0].op == "conv", graph, users)
    parts = _parts(len(tensors[made[0].params["weight"]]), behind)
    if not (len(parts) in PARTS or (len(parts) == 2 and len(parts[0]) != len(parts[1]))):
        return
    multiplied = any(n.op == "matmul" for part in behind for n in _moved_to(part, graph, users))
    what = "queries, keys and values" if multiplied and len(parts) == 3 else "its parts, each of which is taken alone,"
    for order in list(permutations(range(len(parts))))[1:]:
        moved = torch.cat([parts[order.index(place)] for place in range(len(parts))]).argsort()
        text, first, others = f"{what} lie in the order {order}", made[0], tuple(made[1:])
        changed = {name: held for one in made for name, held in rows_reordered(one, moved, tensors).items()}
        yield Repair("wrong_weights", text, first, changed, others=others)


def _slices(node: Node, of_images: bool, graph: Graph, users: Users) -> list[Node]:
    """Return what takes channels of a result, or of ``y[:, None]``; nothing where something else reads it."""
    behind = read_by(node, graph, users)
    if not of_images:
        whole = [n for n in behind if n.op == "reshape" and n.shape[-1:] == node.shape[-1:]]
        behind = [n for n in behind if n not in whole] + [reader for n in whole for reader in read_by(n, graph, users)]
    taken = [n for n in behind if n.op == "slice" and n.attrs["axis"] == (1 if of_images else len(n.shape) - 1)]
    return taken if len(taken) == len(behind) else []


def _parts(count: int, slices: Sequence[Node]) -> list[Tensor]:
    """Return the numbers of the channels that are taken together, and of those in between, which may be unread; nothing
    where some are taken twice."""
    taken = {(n.attrs["start"], n.attrs["end"]) for n in slices}
    if not all(isinstance(end, int) for ends in taken for end in ends):
        return []
    if any(end > start for (_, end), (start, _) in pairwise(sorted(taken))):
        return []
    channels = torch.arange(count)
    return [
        channels[start:end] for start, end in pairwise(sorted({0, count, *(end for ends in taken for end in ends)}))
    ]


def _moved_to(node: Node, graph: Graph, users: Users) -> Iterator[Node]:
    """Yield the operations that read a result as it is, moved or not."""
    for user in (graph.nodes[name] for name in users[node.name]):
        if user.moves or user.op in UNCHANGED:
            yield from _moved_to(user, graph, users)
        else:
            yield user


def _scale_of(node: Node, compute: FloatExecutor) -> Tensor:
    """Return the factors by which the channels of a layer's results were divided to equalize them."""
    scale = compute.tensors[node.params["equalize.out"]] if "equalize.out" in node.params else torch.ones(1)
    return scale.reshape(-1, *[1] * (len(node.shape) - 2)) if node.op == "conv" else scale


def _shuffles(node: Node, graph: Graph, users: Users) -> bool:
    """Return whether what reads groups of channels, (N, groups, channels, H, W), exchanges both dimensions."""
    behind = [graph.nodes[name] for name in users[node.name]]
    return len(behind) == 1 and behind[0].op == "permute" and list(behind[0].attrs["dims"]) == [0, 2, 1, 3, 4]


def _shuffled(node: Node, groups: Collection[Any], compute: FloatExecutor) -> Iterator[Repair]:
    """Yield what is joined with its channels shuffled, as they are elsewhere in the network."""
    count = node.shape[1] if len(node.shape) == 4 and node.attrs["axis"] == 1 else None
    for parts in (g for g in groups if isinstance(g, int) and isinstance(count, int) and count % g == 0):

        def shuffled(inputs: Sequence[Tensor], _: Mapping[str, Tensor], parts: int = parts) -> Tensor:
            return (
                compute(node, inputs)
                .reshape(len(inputs[0]), parts, -1, *known(node.shape[2:]))
                .transpose(1, 2)
                .flatten(1, 2)
            )

        text = f"the channels that it joins are shuffled in {parts} groups, as elsewhere in the network"
        yield Repair("wrong_setting", text, node, compute=shuffled)


def _bounded(node: Node, graph: Graph, users: Users) -> Iterator[Repair]:
    """Yield a sigmoid, or tanh, behind a layer whose results are answers or factors, and sigmoids for a softmax."""
    last = [node.name]
    while last and last[-1] not in graph.outputs and len(users[last[-1]]) == 1:
        behind = graph.nodes[users[last[-1]][0]]
        if behind.op not in (*UNCHANGED, "mul", "reshape", "permute") and not _scalar(behind):
            break
        last.append(behind.name)
    answers = bool(last) and last[-1] in graph.outputs
    factor = any(graph.nodes[name].op == "mul" and not _held(graph.nodes[name], graph) for name in last)
    if node.op == "softmax" and answers:
        yield with_function(replace(node, op="table"), FUNCTIONS["sigmoid"], "it computes sigmoid, not softmax")
    elif node.op in AFFINE and node.op != "scale_shift" and not function_of(node):
        recurrent = any(graph.nodes[name].op in GATES for name in users[last[-1]]) if last else False
        for word in ("sigmoid", "tanh") if answers or factor else ("tanh", "relu") if recurrent else ():
            yield with_function(node, FUNCTIONS[word], f"{word} follows", inserted=True)


def _scalar(node: Node) -> bool:
    """Return whether a node only multiplies and shifts by fixed numbers."""
    return node.op == "table" and all(part["op"] == "affine_scalar" for part in node.attrs["chain"])


def _held(node: Node, graph: Graph) -> bool:
    """Return whether one of two inputs is a constant."""
    return any(graph.nodes[name].op == "constant" for name in node.inputs)


def read_by(node: Node, graph: Graph, users: Users) -> list[Node]:
    """Return the operations that read a result, or what is the same in another type, or times a constant."""
    behind = [graph.nodes[user] for user in users[node.name]]
    while len(behind) == 1 and (behind[0].op in UNCHANGED or (behind[0].op == "mul" and _held(behind[0], graph))):
        behind = [graph.nodes[user] for user in users[behind[0].name]]
    return behind


def _likenesses(node: Node, tensors: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    """Return by what a layer is like others: its name without numbers, and the shape of its weight."""
    return [(kind_of(node.name),), (node.op, *tensors[node.params["weight"]].shape)]


def shortcuts(sim: Simulation, names: Collection[str]) -> Iterator[Repair]:
    """Yield layers, and what multiplies their results, with a shortcut, whether or not layers like them have one."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    for node in (graph.nodes[name] for name in names):
        if (node.op in AFFINE and "weight" in node.params) or node.op == "mul":
            yield from _shortcut_to(node, graph, users, compute)


def _shortcut_to(node: Node, graph: Graph, users: Users, compute: FloatExecutor) -> Iterator[Repair]:
    """Yield a layer to whose results what a few layers before it read is added, as to those of layers like it."""
    behind = read_by(node, graph, users)
    added_up = len(behind) == 1 and behind[0].op == "add"  # of several, a sum may be that of the next shortcut
    if added_up or (len(node.inputs) > 1 and node.op != "mul"):
        return
    scale = _scale_of(node, compute)
    bare = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "act"})
    table = replace(node, op="table", attrs={"chain": function_of(node)}, params={}, inputs=[node.name])
    before, passed = node, 0
    while before.inputs and passed < SHORTCUT:
        passed += before.op in AFFINE
        before = graph.nodes[before.inputs[0]]
        if (
            passed
            and before.op not in UNCHANGED
            and tuple(before.shape) == tuple(node.shape)
            and before.dtype == "float32"
        ):

            def added(inputs: Sequence[Tensor], given: Mapping[str, Tensor], name: str = before.name) -> Tensor:
                y = compute(bare, inputs) + given[name] / scale
                return compute(table, [y]) if table.attrs["chain"] else y

            yield Repair("wrong_setting", f"{before.name} is added to its results, a shortcut", node, compute=added)


def _positions(node: Node, sim: Simulation) -> Iterator[Repair]:
    """Yield a table of positions that begins at another row, or whose rows are those of columns of a square."""
    name = node.params["value"]
    held = sim.tensors[name].detach()
    source = only_source(sim, name)
    if source is not None and held.dim() > 1:
        table = sim.tensors[source].detach()
        rows = held.shape[-2]
        fits = table.dim() == 2 and table.shape[1] == held.shape[-1] and len(table) >= rows
        for first in range(len(table) - rows + 1) if fits and len(table) - rows <= STEPS else ():
            other = table[first : first + rows].reshape(held.shape)
            if not torch.equal(other, held):
                yield Repair("wrong_weights", f"it begins at row {first} of {source}", node, {name: other})
    rows = held.shape[-2] if held.dim() in (2, 3) and held.numel() == held.shape[-2] * held.shape[-1] else 0
    rows = 0 if rows == held.shape[-1] and torch.equal(held, held.mT) else rows  # which neighbours are seen, say
    for tokens in range(MOST_TOKENS + 1):
        side = round(max(rows - tokens, 0) ** 0.5)
        if side > 2 and side * side + tokens == rows:
            order = torch.cat([torch.arange(tokens), torch.arange(side**2).reshape(side, side).T.flatten() + tokens])
            turned = held.index_select(held.dim() - 2, order)
            yield Repair("wrong_weights", f"its {side} × {side} rows are transposed", node, {name: turned})
