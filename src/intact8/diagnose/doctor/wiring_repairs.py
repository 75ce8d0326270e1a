"""Repairs of how operations are joined and configured: steps taken, paddings, dilations, masks, poolings, shortcuts.

Each is what people and converters mistake one for another, so that both are possible and only the labels tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.consumers import Users
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair
from intact8.diagnose.doctor.structural_repairs import (
    FUNCTIONS,
    HIDDEN,
    UNCHANGED,
    function_of,
    kind_of,
    only_source,
    with_function,
)
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

LEAST_HIDDEN = 100.0
"""Size from which a negative number that is added to scores hides a position."""

STEPS, SHORTCUT = 4, 4
"""Steps from which one of them is another's place, and layers that a shortcut may pass by."""

Compute = Callable[[Sequence[Tensor], Mapping[str, Tensor]], Tensor]


def rewired(sim: Simulation) -> Iterator[Repair]:
    """Yield the repairs of this module but those of :func:`answers_reordered`."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    dilations = {d for n in graph if n.op == "conv" for d in n.attrs["dilation"]}
    layers = {n.name: n for n in graph if n.op in AFFINE and n.op != "scale_shift" and "weight" in n.params}
    behind = {name: _read_by(n, graph, users) for name, n in layers.items()}
    with_sums = [n for n, read in behind.items() if any(b.op == "add" and not _held(b, graph) for b in read)]
    summed = {alike for name in with_sums for alike in _likenesses(layers[name], sim.tensors)}
    groups = {n.shape[1] for n in graph if n.op == "reshape" and len(n.shape) == 5 and _shuffles(n, graph, users)}
    yield from _edges([n for n in graph if n.op == "conv" and n.name in layers], compute)
    for node in graph:
        shape = graph.nodes[node.inputs[0]].shape if node.inputs else ()
        if node.op == "slice":
            yield from _other_step(node, shape)
        elif node.op == "reshape" and len(shape) == 3 and tuple(node.shape) == (shape[0], shape[2], shape[1]):
            turned: Compute = lambda inputs, _: inputs[0].transpose(1, 2).contiguous()  # noqa: E731
            yield Repair("wrong_setting", "it transposes its input and does not reshape it", node, compute=turned)
        elif node.op == "pad":
            yield from _padded(node)
        elif node.op == "conv" and node.name in layers and not node.attrs["transposed"]:
            yield from _convolved(node, graph, dilations, compute)
        elif node.op in ("mean", "reduce", "max_pool", "avg_pool"):
            yield from _pooled(node, shape)
            yield from _one_step(node, shape, graph)
        elif node.op == "upsample":
            yield from _resized(node)
        elif node.op == "cat":
            yield from _shuffled(node, groups, compute)
        elif node.op == "softmax":
            yield from _causal(node, compute)
        elif node.op == "masked_fill":
            yield Repair("wrong_setting", "its mask is inverted", node, compute=_inverted(node, compute))
        elif node.op == "linear" and node.name in layers:
            yield from _projected(node, graph, users, sim.tensors)
        yield from _bounded(node, graph, users)
        if node.name in layers and summed.intersection(_likenesses(node, sim.tensors)):
            yield from _shortcut_to(node, graph, users, compute)
        if node.op == "constant":
            yield from _positions(node, sim)
            yield from _mask_turned(node, graph, users, sim.tensors)


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
    if node.op not in ("mean", "reduce") or len(dims) != 1 or len(shape) != 3 or dims[0] == 0:
        return
    axis, source = dims[0], graph.nodes[node.inputs[0]]
    while source.op in UNCHANGED and source.inputs:
        source = graph.nodes[source.inputs[0]]
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


def _padded(node: Node) -> Iterator[Repair]:
    """Yield padding before only, behind only, or on both sides, along all dimensions that are padded."""
    given = [tuple(pads) for pads in node.attrs["pads"]]
    ways = {
        "before only": [(a + b, 0) for a, b in given],
        "behind only": [(0, a + b) for a, b in given],
        "on both sides": [((a + b) // 2, (a + b + 1) // 2) for a, b in given],
    }
    for text, pads in ways.items():
        if pads != given and min(min(pads)) >= 0:
            changed = replace(node, attrs={**node.attrs, "pads": [list(p) for p in pads]})
            yield Repair("wrong_setting", f"it pads {text}", changed)


def _convolved(node: Node, graph: Graph, dilations: set[int], compute: FloatExecutor) -> Iterator[Repair]:
    """Yield a convolution with other dilations, or with its padding on one side, with results of the same size."""
    stride, padding, dilation = (node.attrs[key] for key in ("stride", "padding", "dilation"))
    kernel = compute.tensors[node.params["weight"]].shape[2:]
    bare = replace(node, attrs={**node.attrs, "padding": [0] * len(kernel)})

    def changed(conv: Node, pads: list[int]) -> Compute:
        return lambda inputs, _: FloatExecutor(compute.tensors)(conv, [F.pad(inputs[0], pads), *inputs[1:]])

    if len(set(padding)) == 1 and padding[0] > 0 and set(stride) in ({1}, {2}):
        sides = {"before only": [2 * padding[0], 0]} if len(kernel) == 1 else {}
        if set(stride) == {2}:  # as TensorFlow pads where sizes are even
            sides["less before"] = [padding[0] - 1, padding[0]]
        for text, pads in sides.items():
            yield Repair("wrong_setting", f"it is padded {text}", node, compute=changed(bare, pads * len(kernel)))
    others = (dilations | ({1, 2, 4, 8, 16} if len(kernel) == 1 else set())) if len(set(dilation)) == 1 else set()
    if min(kernel) < 3 or len(set(kernel)) > 1 or len(set(padding)) > 1:
        return
    source = graph.nodes[node.inputs[0]]
    while source.op in UNCHANGED and source.inputs:
        source = graph.nodes[source.inputs[0]]
    causal = source.op == "pad" and source.attrs["pads"][-1][1] == 0
    for other in others - set(dilation):
        wider = (kernel[0] - 1) * (other - dilation[0]) + 2 * padding[0]
        pads = [wider, 0] if causal else [wider // 2, wider - wider // 2]
        wide = replace(bare, attrs={**bare.attrs, "dilation": [other] * len(kernel)})
        text = f"its dilation is {other}, not {dilation[0]}"
        yield Repair("wrong_setting", text, node, compute=changed(wide, pads * len(kernel)))


def _edges(convolutions: Sequence[Node], compute: FloatExecutor) -> Iterator[Repair]:
    """Yield all convolutions that are padded with what is at the edges of images in place of zeros."""
    padded = [n for n in convolutions if any(n.attrs["padding"]) and not n.attrs["transposed"]]
    bare = {n.name: replace(n, attrs={**n.attrs, "padding": [0] * len(n.attrs["padding"])}) for n in padded}

    def otherwise(node: Node, mode: str) -> Compute:
        pads = [p for p in reversed(node.attrs["padding"]) for _ in range(2)]
        return lambda inputs, _: compute(bare[node.name], [F.pad(inputs[0], pads, mode), *inputs[1:]])

    for mode, how in (("reflect", "reflected"), ("replicate", "repeated"), ("circular", "those of the other side")):
        text = f"the edges of what convolutions read are {how}, not zeros, in {len(padded)} places"
        parts = [Repair("wrong_setting", text, node, compute=otherwise(node, mode)) for node in padded]
        if parts:
            yield replace(parts[0], also=tuple(parts[1:]))


def _resized(node: Node) -> Iterator[Repair]:
    """Yield images made larger in another way."""
    linear = {"mode": "bilinear", "align_corners": False}, {"mode": "bilinear", "align_corners": True}
    for way in ({"mode": "nearest", "align_corners": False}, *linear):
        if len(node.shape) == 4 and any(node.attrs[key] != value for key, value in way.items()):
            corners = " with aligned corners" if way["align_corners"] else ""
            changed = replace(node, attrs={**node.attrs, **way})
            yield Repair("wrong_setting", f"it resizes by {way['mode']} interpolation{corners}", changed)


def _pooled(node: Node, shape: Sequence[Any]) -> Iterator[Repair]:
    """Yield the maximum in place of the mean, or the mean in place of the maximum."""
    a = node.attrs
    if node.op in ("mean", "reduce"):
        fn, dims, keepdim = a.get("fn", "mean"), tuple(a.get("dims") or ()), a.get("keepdim", False)
        if fn not in ("mean", "amax") or not dims or 0 in dims or len(shape) < 3:
            return
        mean: Compute = lambda inputs, _: inputs[0].mean(dims, keepdim=keepdim)  # noqa: E731
        most: Compute = lambda inputs, _: inputs[0].amax(dims, keepdim=keepdim)  # noqa: E731
    elif len(a["kernel"]) in (1, 2) and set(a.get("dilation", [1])) == {1}:
        fn, given = "mean" if node.op == "avg_pool" else "amax", (a["kernel"], a["stride"], a["padding"])
        pools = (F.avg_pool1d, F.max_pool1d) if len(a["kernel"]) == 1 else (F.avg_pool2d, F.max_pool2d)
        mean = lambda inputs, _: pools[0](inputs[0], *given, a.get("ceil_mode", False))  # noqa: E731
        most = lambda inputs, _: pools[1](inputs[0], *given, 1, a.get("ceil_mode", False))  # noqa: E731
    else:
        return
    if a.get("count_include_pad") is not None and any(a["padding"]):
        other = not a["count_include_pad"]
        text = f"its padding {'counts' if other else 'does not count'} in means"
        yield Repair("wrong_setting", text, replace(node, attrs={**a, "count_include_pad": other}))
    text, way = ("maximum, not the mean", most) if fn == "mean" else ("mean, not the maximum", mean)
    yield Repair("wrong_setting", f"it takes the {text}", node, compute=way)


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


def _projected(node: Node, graph: Graph, users: Users, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield queries, keys and values of one layer in another order, or head by head."""
    behind = _read_by(node, graph, users)
    split = len(behind) == 1 and behind[0].op == "reshape"
    weight = tensors[node.params["weight"]].detach()
    shapes = [known(behind[0].shape[-count:]) for count in (2, 3)] if split and len(behind[0].shape) > 3 else []
    parts = next((shape for shape in shapes if 3 in shape[:2] and math.prod(shape) == len(weight)), [])
    if not parts:
        yield from _interleaved(node, shapes, tensors)
        return
    rows = torch.arange(len(weight)).reshape(*parts)
    first = parts[0] == 3
    orders = {f"in the order {order}": rows.index_select(0 if first else 1, torch.tensor(order)).flatten()
              for order in list(permutations(range(3)))[1:]}  # fmt: skip
    if len(parts) > 2:
        orders["head by head"] = torch.arange(len(weight)).reshape(parts[1], parts[0], -1).transpose(0, 1).flatten()
    for how, order in orders.items():
        text = f"queries, keys and values lie {how}"
        yield Repair("wrong_weights", text, node, _rows(node, order, tensors))


def _interleaved(node: Node, shapes: Sequence[Sequence[int]], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield queries, keys or values of a layer of their own with the rows of all heads between each other, or not."""
    weight = tensors[node.params["weight"]].detach()
    heads, size = shapes[0] if shapes and len(shapes[0]) == 2 else (1, 1)
    if heads < 2 or size < 2 or heads * size != len(weight):
        return
    for a, b, how in ((size, heads, "come head by head, not between each other"),
                      (heads, size, "come between each other, not head by head")):  # fmt: skip
        order = torch.arange(len(weight)).reshape(a, b).T.flatten()
        yield Repair("wrong_weights", f"its rows for {heads} heads {how}", node, _rows(node, order, tensors))


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
            yield with_function(node, FUNCTIONS[word], f"{word} follows")


def _scalar(node: Node) -> bool:
    """Return whether a node only multiplies and shifts by fixed numbers."""
    return node.op == "table" and all(part["op"] == "affine_scalar" for part in node.attrs["chain"])


def _held(node: Node, graph: Graph) -> bool:
    """Return whether one of two inputs is a constant."""
    return any(graph.nodes[name].op == "constant" for name in node.inputs)


def _read_by(node: Node, graph: Graph, users: Users) -> list[Node]:
    """Return the operations that read a result, or what is the same in another type, or times a constant."""
    behind = [graph.nodes[user] for user in users[node.name]]
    while len(behind) == 1 and (behind[0].op in UNCHANGED or (behind[0].op == "mul" and _held(behind[0], graph))):
        behind = [graph.nodes[user] for user in users[behind[0].name]]
    return behind


def _likenesses(node: Node, tensors: Mapping[str, Tensor]) -> set[tuple[Any, ...]]:
    """Return by what a layer is like others: its name without numbers, and the shape of its weight."""
    return {(kind_of(node.name),), (node.op, *tensors[node.params["weight"]].shape)}


def shortcuts(sim: Simulation, names: Collection[str]) -> Iterator[Repair]:
    """Yield layers, and what multiplies their results, with a shortcut, whether or not layers like them have one."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    for node in (graph.nodes[name] for name in names):
        if (node.op in AFFINE and "weight" in node.params) or node.op == "mul":
            yield from _shortcut_to(node, graph, users, compute)


def _shortcut_to(node: Node, graph: Graph, users: Users, compute: FloatExecutor) -> Iterator[Repair]:
    """Yield a layer to whose results what a few layers before it read is added, as to those of layers like it."""
    behind = _read_by(node, graph, users)
    added_up = len(behind) == 1 and behind[0].op == "add"  # of several, a sum may be that of the next shortcut
    if added_up or (len(node.inputs) > 1 and node.op != "mul"):
        return
    scale = compute.tensors[node.params["equalize.out"]] if "equalize.out" in node.params else torch.ones(1)
    scale = scale.reshape(-1, *[1] * (len(node.shape) - 2)) if node.op == "conv" else scale
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
    for extra in (0, 1):
        side = round(max(rows - extra, 0) ** 0.5)
        if side > 2 and side * side + extra == rows:
            order = torch.cat([torch.arange(extra), torch.arange(side**2).reshape(side, side).T.flatten() + extra])
            turned = held.index_select(held.dim() - 2, order)
            yield Repair("wrong_weights", f"its {side} × {side} rows are transposed", node, {name: turned})


def answers_reordered(sim: Simulation, output: Tensor, targets: Targets) -> Iterator[Repair]:
    """Yield the last layer with its results in the order that suits the labels best."""
    order, graph = targets.order(output), sim.graph
    node = graph.nodes[graph.outputs[0]]
    while node.inputs and (node.op not in AFFINE or "weight" not in node.params) and len(node.inputs) == 1:
        node = graph.nodes[node.inputs[0]]
    count = (
        len(sim.tensors[node.params["weight"]])
        if node.op in ("linear", "conv") and not node.attrs.get("transposed")
        else 0
    )
    if order is None or count != len(order) or "bn" in node.attrs:
        return
    if targets.classes and not targets.yes:  # it is the labels as likely as the layer
        text = f"it has its classes numbered otherwise, {order.tolist()[:16]}"
        yield Repair(INPUTS_ARE_WRONG, text, node, _rows(node, order, sim.tensors))
        return
    text = f"its outputs come in the order {', '.join(map(str, order.tolist()[:16]))}"
    yield Repair("wrong_weights", text, node, _rows(node, order, sim.tensors))


def answers_moved(sim: Simulation, output: Tensor, targets: Targets) -> Iterator[Repair]:
    """Yield answers about a sequence that belong to the place before, or behind: labels may be moved against inputs."""
    places = targets.values.shape[1:]
    if not targets.classes or targets.yes or len(places) != 1 or places[0] < STEPS:
        return
    node, compute = sim.graph.nodes[sim.graph.outputs[0]], FloatExecutor(sim.tensors)
    axis = 2 if output.shape[2:] == places else 1

    def moved(by: int) -> Compute:
        return lambda inputs, _: compute(node, inputs).roll(by, axis)

    for by, where in ((1, "behind"), (-1, "before")):
        yield Repair(INPUTS_ARE_WRONG, f"its answers belong to the place {where} theirs", node, compute=moved(by))


def _rows(node: Node, order: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weight and bias of a layer with their rows in another order."""
    names = [node.params[role] for role in ("weight", "bias") if role in node.params]
    return {name: tensors[name].detach()[order] for name in names}
