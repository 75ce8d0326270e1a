"""Repairs of weights: rows, columns and heads in another order, layers exchanged, values far beyond their like."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations

import torch
from torch import Tensor

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.channel_repairs import UNUSUAL
from intact8.diagnose.doctor.repair import Repair, kind_of, more_places, rows_reordered
from intact8.diagnose.doctor.structural_repairs import UNCHANGED, unwrapped
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.weights.layout import output_first

SCRAMBLED = "taken as stored with"
"""What is said of weights whose numbers are taken in another order: the wrong one makes noise of them."""

SIZES = 8.0
"""Times the usual size from which a whole weight is tried at it."""

SATURATES = 8.0
"""Size of a bias from which a gate stays open or closed, whatever comes in."""

TWINS = 3
"""How many layers of two parts of a network have the same weights for each that has not, where they are twins."""

FROM_ONE = 0.4
"""Mean size of gains that are how far they are from 1."""

PAIRS = 2000
"""Pairs of layers that are looked at for weights that were exchanged."""


def of_weights(node: Node, graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield the repairs of the weights of one operation."""
    yield from _saturated(node, tensors)
    yield from _reordered(node, tensors)
    yield from _less_one(node, tensors)
    yield from _gains_and_biases(node, tensors)
    yield from _long_rows(node, tensors)
    yield from _sloped(node, tensors)
    if node.op in AFFINE and "weight" in node.params:
        weight = tensors[node.params["weight"]].detach()
        before = graph.nodes[node.inputs[0]] if node.inputs else node
        yield from _clipped(node, weight)
        yield from _turned(node, weight, _flattened(graph, before))
        yield from _heads(node, weight, before, graph)
        yield from _merged(node, weight, before, graph)
        yield from _grouped(node, weight)
        yield from _by_one_channel(node, weight)
        yield from _before_pixels(node, weight, graph, tensors)
    yield from _rolled(node, graph, tensors)


def among_weights(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield the repairs that the weights of several operations together suggest."""
    yield from _sized(nodes, tensors)
    layers = [node for node in nodes if node.op in AFFINE and "weight" in node.params]
    pairs = list(_exchanged(layers, tensors))
    yield from pairs
    yield from _exchanged_alike(pairs)
    yield from _exchanged_recurrent([node for node in nodes if "weight_hh" in node.params], tensors)
    yield from _exchanged_parts(nodes, tensors)
    yield from _exchanged_norms(nodes, tensors)
    yield from _unlike_twins(layers, tensors)


def _unlike_twins(layers: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield layers with the weights of their like in another part of the network that else has the same weights."""
    parts: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in layers:
        before, _, behind = node.name.partition(".")
        if behind:
            parts[before][behind] = node
    for one, other in permutations(parts, 2):
        pairs = [(parts[one][name], parts[other][name]) for name in parts[one] if name in parts[other]]
        both = [[role for role in ("weight", "bias") if role in a.params and role in b.params] for a, b in pairs]
        roles = [[(a.params[r], b.params[r]) for r in held] for (a, b), held in zip(pairs, both, strict=True)]
        alike = [all(torch.equal(tensors[a], tensors[b]) for a, b in names) for names in roles]
        apart = [i for i, same in enumerate(alike) if not same]
        if not apart or sum(alike) < TWINS * len(apart):
            continue
        for i in apart:
            if all(tensors[a].shape == tensors[b].shape for a, b in roles[i]):
                text = f"it has the weights of {pairs[i][1].name}, as the other layers of {one} have those of {other}"
                of_the_other = {a: tensors[b].detach() for a, b in roles[i]}
                yield Repair("wrong_weights", text, pairs[i][0], of_the_other, unusual=True)


def _rolled(node: Node, graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a table of positions that begins some rows later, or earlier, as where a token comes last, not first."""
    role = {"constant": "value", "embedding": "weight"}.get(node.op)
    if role is None or any(name in graph.inputs for name in node.inputs):
        return
    table = tensors[node.params[role]].detach()
    if table.dim() > 1 and table.shape[-2] > 2:
        for rows in (sign * offset for offset in (1, 2, 4, 8, 16) for sign in (1, -1)):
            if 2 * abs(rows) >= max(table.shape[-2], 3):
                continue
            count = "one" if abs(rows) == 1 else str(abs(rows))
            text = f"its rows come {count} {'later' if rows > 0 else 'earlier'}"
            yield Repair("wrong_weights", text, node, {node.params[role]: table.roll(rows, -2)})


def _sized(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield layers of which a weight is far larger or smaller than usual, by what it makes of unit inputs, as usual."""
    weights = {}
    for node in nodes:
        if node.op in AFFINE and node.op != "scale_shift" and "weight" in node.params:
            weights[node.params["weight"]] = node, output_first(tensors[node.params["weight"]].detach(), node)
        elif "weight_hh" in node.params:
            names = [name for role, name in node.params.items() if role.startswith("weight_")]
            weights |= {name: (node, tensors[name].detach()) for name in names}
    gains = {name: float(w.flatten(1).square().sum(1).mean().sqrt()) for name, (_, w) in weights.items()}
    usual = sorted(gains.values())[len(gains) // 2] if gains else 0.0
    for name, (node, _) in weights.items():
        gain = gains[name]
        if usual > 0 and gain > 0 and not 1 / SIZES < gain / usual < SIZES:
            text = f"{name}, {gain / usual:.3g} times as large as the weights of other layers, is as large"
            yield Repair("wrong_scale", text, node, {name: tensors[name].detach() * (usual / gain)})
    biases = {n.params["bias"]: n for n in nodes if n.op in AFFINE and "bias" in n.params and "bn" not in n.attrs}
    sizes = {name: float(tensors[name].detach().square().mean().sqrt()) for name in biases}
    usual = sorted(sizes.values())[(len(sizes) - 1) // 2] if sizes else 0.0
    for name, node in biases.items():
        if sizes[name] > SIZES * usual > 0:
            text = f"{name}, {sizes[name] / usual:.3g} times as large as the biases of other layers, is as large"
            yield Repair("wrong_scale", text, node, {name: tensors[name].detach() * (usual / sizes[name])})


def _flattened(graph: Graph, node: Node) -> list[int]:
    """Return the sizes (C, …) of what is flattened before a layer; [] where nothing is."""
    node = unwrapped(graph, node)
    shape = graph.nodes[node.inputs[0]].shape if node.op == "reshape" and len(node.shape) == 2 else ()
    return known(shape[1:]) if len(shape) > 2 else []


def _turned(node: Node, weight: Tensor, places: list[int]) -> Iterator[Repair]:
    """Yield the layer with its weight the other way round, as in converting from another layout."""
    turned = {"negated": -weight}
    if weight.dim() > 1 and weight.shape[0] == weight.shape[1] > 1:
        turned["transposed"] = weight.transpose(0, 1)
    if weight.dim() > 2 and weight[0, 0].numel() > 1:
        turned["reversed in space"] = weight.flip([*range(2, weight.dim())])
    if weight.dim() == 4 and weight.shape[2] == weight.shape[3] > 1:
        turned["transposed in space"] = weight.transpose(2, 3)
    for how, changed in _laid_out(weight).items():
        turned[f"{SCRAMBLED} {how}"] = changed
    if weight.dim() == 2 and weight.shape[1] > 1:
        turned["made for its inputs in reverse order"] = weight.flip(1)
    if places and weight.dim() == 2 and math.prod(places) == weight.shape[1]:
        last = weight.reshape(len(weight), *places[1:], places[0])
        turned["taken as made for channels last"] = last.movedim(-1, 1).flatten(1)
    for text, changed in turned.items():
        yield Repair("wrong_weights", f"its weight is {text}", node, {node.params["weight"]: changed.contiguous()})


def _laid_out(weight: Tensor) -> dict[str, Tensor]:
    """Return a weight's numbers as they would lie if they had been stored in another order of dimensions."""
    one, other, *space = weight.shape if weight.dim() > 1 else (1, 1)
    found = {}
    if one != other and min(one, other) > 1:  # else it is transposed
        found["its first two dimensions exchanged"] = weight.reshape(other, one, *space).transpose(0, 1)
    if math.prod(space) > 1:
        if other > 1:
            found["channels last"] = weight.reshape(one, *space, other).movedim(-1, 1)
        if one > 1:
            found["space first"] = weight.reshape(*space, other, one).movedim((-1, -2), (0, 1))
    return found


def _by_one_channel(node: Node, weight: Tensor) -> Iterator[Repair]:
    """Yield the kernels of single channels read one place further, or earlier."""
    if node.attrs.get("groups", 1) == len(weight) > 2:
        for step, how in ((-1, "further"), (1, "earlier")):
            tensors = {node.params["weight"]: weight.roll(step, 0)}
            yield Repair("wrong_weights", f"its kernels are those one channel {how}", node, tensors)


def _grouped(node: Node, weight: Tensor) -> Iterator[Repair]:
    """Yield a convolution in groups whose filters lie group by group, or between each other, as elsewhere."""
    groups = node.attrs.get("groups", 1) if node.op == "conv" and not node.attrs["transposed"] else 1
    if 1 < groups < len(weight):
        for rows, how in ((groups, "between each other"), (len(weight) // groups, "group by group")):
            changed = weight.reshape(rows, -1, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)
            yield Repair("wrong_weights", f"its filters lie {how}", node, {node.params["weight"]: changed.contiguous()})


def _before_pixels(node: Node, weight: Tensor, graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a layer whose channels become pixels (PixelShuffle), as made for colours innermost."""
    behind = [n for n in graph if node.name in n.inputs]
    if len(behind) == 1 and behind[0].op == "add":  # to what is another picture's channels
        behind = [n for n in graph if behind[0].name in n.inputs]
    shape = behind[0].shape if len(behind) == 1 and behind[0].op == "reshape" else ()
    colours, *factors = known(shape[1:4]) if len(shape) == 6 and len(node.shape) == 4 else (0, 0)
    if colours * math.prod(factors) != len(weight) or math.prod(factors) < 2 or len(factors) != 2:
        return
    rows = torch.arange(len(weight))
    orders = {
        "lie pixel by pixel, colours innermost": rows.reshape(-1, colours).T,
        "fill columns before rows": rows.reshape(colours, *factors).mT,
    }
    for text, order in orders.items():
        if not torch.equal(order.flatten(), rows):
            changed = rows_reordered(node, order.flatten(), tensors)
            yield Repair("wrong_weights", f"its channels {text}", node, changed)


def _merged(node: Node, weight: Tensor, before: Node, graph: Graph) -> Iterator[Repair]:
    """Yield the layer that reads two dimensions as one with these in the other order, behind a norm or not.

    What merges neighbours reads the places of several, as one dimension or two, and their channels.
    """
    before = unwrapped(graph, before)
    while before.op.endswith("_norm") or (before.op == "reshape" and _keeps_last(graph, before)):
        before = unwrapped(graph, graph.nodes[before.inputs[0]])
    merges = before.op in ("reshape", "cat") and len(before.shape) > 2 and weight.dim() == 2
    shape = graph.nodes[before.inputs[0]].shape if merges else ()
    if before.op == "cat":
        shape = (*shape[:-1], len(before.inputs), *shape[-1:])
    for places in (1, 2):
        sizes = known(shape[-1 - places :])
        rows, columns = (math.prod(sizes[:-1]), sizes[-1]) if len(sizes) == 1 + places else (1, 1)
        if 1 not in (rows, columns) and weight.shape[1] == rows * columns == before.shape[-1]:
            text = f"its weight is taken as made for {columns} × {rows} numbers, not {rows} × {columns}"
            changed = weight.reshape(len(weight), columns, rows).transpose(1, 2).flatten(1)
            yield Repair("wrong_weights", text, node, {node.params["weight"]: changed.contiguous()})
            break


def _keeps_last(graph: Graph, node: Node) -> bool:
    """Return whether the last dimension of what is reshaped stays what it is."""
    return graph.nodes[node.inputs[0]].shape[-1:] == node.shape[-1:]


def _heads(node: Node, weight: Tensor, before: Node, graph: Graph) -> Iterator[Repair]:
    """Yield the layer behind an attention with the heads that it reads in another order."""
    while before.inputs and (before.op in UNCHANGED or before.moves):
        before = graph.nodes[before.inputs[0]]
    shape = known(before.shape[1:]) if before.op == "matmul" and len(before.shape) == 4 else []
    if weight.dim() != 2 or len(shape) < 2 or shape[0] < 2 or weight.shape[1] != shape[0] * shape[-1]:
        return
    parts = weight.reshape(len(weight), shape[0], -1)
    orders = {"rolled by one": parts.roll(1, 1), "rolled back by one": parts.roll(-1, 1), "reversed": parts.flip(1)}
    orders["between each other"] = weight.reshape(len(weight), -1, shape[0]).transpose(1, 2)
    for text, changed in orders.items():
        tensors = {node.params["weight"]: changed.flatten(1).contiguous()}
        yield Repair("wrong_weights", f"the heads that it reads are {text}", node, tensors)


def _exchanged(layers: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of layers of one shape and about one size with each other's weights, and biases."""
    pairs = [(a, b) for i, a in enumerate(layers) for b in layers[i + 1 :] if a.params["weight"] != b.params["weight"]]
    for a, b in pairs[:PAIRS]:
        both = [role for role in ("weight", "bias") if role in a.params and role in b.params]
        if any(tensors[a.params[role]].shape != tensors[b.params[role]].shape for role in both):
            continue
        one, other = (float(tensors[n.params["weight"]].detach().square().mean().sqrt()) for n in (a, b))
        if max(one, other) > SIZES * min(one, other):  # what was trained together is of one size
            continue
        for count in range(1, len(both) + 1):
            names = [(a.params[role], b.params[role]) for role in both[:count]]
            text = f"it and {b.name} exchange their {' and '.join(both[:count])}"
            yield Repair("wrong_weights", text, a, _swapped(names, tensors), others=(b,))


def _exchanged_alike(pairs: Sequence[Repair]) -> Iterator[Repair]:
    """Yield the same exchange of two layers in all blocks at once, as where a converter takes one name for another."""
    alike: dict[tuple[str, ...], list[Repair]] = defaultdict(list)
    for pair in pairs:
        one, other = pair.node.name, pair.others[0].name
        if one.rpartition(".")[0] == other.rpartition(".")[0] != "":
            what = pair.text.rpartition(" exchange their ")[2]
            alike[kind_of(one), kind_of(other), what].append(pair)
    for (_, _, what), members in alike.items():
        if len(members) > 1:
            first, other = members[0], members[0].others[0].name
            text = f"it and {other} exchange their {what}, and so do their like in {more_places(len(members) - 1)}"
            yield replace(first, text=text, also=tuple(members[1:]))


def _exchanged_recurrent(layers: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of recurrent layers of one size with each other's weights: the recurrent ones, or all."""
    for a, b in combinations(layers, 2):
        alike = [
            (role, (name, b.params[role]))
            for role, name in a.params.items()
            if role.startswith(("weight_", "bias_"))
            and role in b.params
            and name != b.params[role]
            and tensors[name].shape == tensors[b.params[role]].shape
        ]
        for part, text in (("weight_hh", "recurrent weights"), ("weight_ih", "weights of the inputs"), ("", "weights")):
            names = [pair for role, pair in alike if role.startswith(part)]
            if names and (part or len(names) > 1):
                yield Repair(
                    "wrong_weights", f"it and {b.name} exchange their {text}", a, _swapped(names, tensors), others=(b,)
                )


def _exchanged_parts(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of blocks, or of parts of them, with each other's weights: names that differ in one number."""
    parts: dict[tuple[str, str], dict[str, list[Node]]] = defaultdict(dict)
    for node in (n for n in nodes if any(role.startswith("weight") for role in n.params)):
        for found in re.finditer(r"(?<=\.)\d+(?=\.)", node.name):
            before, behind = node.name[: found.start()], node.name[found.end() :]
            for rest in {"", behind.split(".")[1]}:
                parts[before, rest].setdefault(found.group(), []).append(node)
    for (before, rest), blocks in parts.items():
        for one, other in islice(combinations(blocks, 2), PAIRS):
            pairs = list(zip(blocks[one], blocks[other], strict=False))
            names = [
                (a.params[r], b.params.get(r, ""))
                for a, b in pairs
                for r in a.params
                if r.startswith(("weight", "bias", "bn."))
            ]
            fits = all(b in tensors and tensors[a].shape == tensors[b].shape for a, b in names)
            if len(pairs) > 1 and fits and len(blocks[one]) == len(blocks[other]):
                text = f"{before}{one} and {before}{other} exchange the weights of {rest or 'all their layers'}"
                others = [node for pair in pairs for node in pair if node is not pairs[0][0]]
                yield Repair("wrong_weights", text, pairs[0][0], _swapped(names, tensors), others=tuple(others))


def _exchanged_norms(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield pairs of batch norms of one width, which layers in front of them or behind them took in, exchanged."""
    norms: list[tuple[Node, dict[str, str]]] = []
    for node in nodes:
        for prefix in ("bn.", "pre."):
            own = {role.removeprefix(prefix): name for role, name in node.params.items() if role.startswith(prefix)}
            if "running_var" in own and all(own != other for _, other in norms):  # else another call of the same
                norms.append((node, own))
    for (a, one), (b, other) in islice(combinations(norms, 2), PAIRS):
        alike = one.keys() == other.keys() and all(tensors[one[k]].shape == tensors[other[k]].shape for k in one)
        if alike and one["running_var"] != other["running_var"]:
            names = [(one[key], other[key]) for key in one]
            text = f"its batch norm and that of {b.name} are exchanged"
            yield Repair("wrong_weights", text, a, _swapped(names, tensors), others=(b,) if b is not a else ())


def _swapped(names: Sequence[tuple[str, str]], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of both names of every pair, each under the other's name."""
    return {a: tensors[b].detach() for pair in names for a, b in (pair, pair[::-1])}


def _sloped(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a PReLU with the slope that it begins with, or with positive ones, where its slopes are negative."""
    slopes = tensors[node.params["act.weight"]].detach() if "act.weight" in node.params else torch.zeros(0)
    if bool((slopes < 0).any()):
        for text, changed in (("0.25, as they begin", torch.full_like(slopes, 0.25)), ("positive", slopes.abs())):
            yield Repair("wrong_weights", f"its slopes are {text}", node, {node.params["act.weight"]: changed})


def _less_one(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a norm whose gains are near 0 with 1 added to them: checkpoints may hold how far they are from 1."""
    if node.op.endswith("_norm") and "weight" in node.params:
        gains = tensors[node.params["weight"]].detach()
        if float(gains.abs().mean()) < FROM_ONE:
            yield Repair(
                "wrong_weights", "1 is added to its gains", node, {node.params["weight"]: gains + 1}, unusual=True
            )


def _gains_and_biases(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a norm with its gains for its biases, and the other way round."""
    for prefix in ("", "bn.", "pre."):
        own = [node.params.get(f"{prefix}{role}", "") for role in ("weight", "bias")]
        if all(own) and (prefix or node.op.endswith("_norm")):
            gains, biases = own
            if tensors[gains].shape == tensors[biases].shape:
                changed = _swapped([(gains, biases)], tensors)
                yield Repair("wrong_weights", "its gains and its biases are exchanged", node, changed)


def _long_rows(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a table of which a few rows are far longer than usual with these as long as the usual one."""
    table = tensors[node.params["weight"]].detach() if node.op == "embedding" else torch.zeros(0, 1)
    lengths = table.norm(dim=1)
    usual = lengths[lengths > 0].median() if bool((lengths > 0).any()) else lengths.new_zeros(())
    long = lengths > SIZES * usual
    if 0 < 2 * int(long.sum()) < len(table):
        ratio = float(lengths.max() / usual)
        text = f"{int(long.sum())} rows, up to {ratio:.3g} times as long as the median one, are as long"
        changed = table * torch.where(long, usual / lengths.clamp(min=1e-30), 1.0)[:, None]
        yield Repair("exploded_weight", text, node, {node.params["weight"]: changed}, unusual=True)


def _saturated(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield the repair of biases of a recurrent layer that close or open gates for good: they become 0."""
    names = [name for role, name in node.params.items() if role.startswith("bias_")]
    large = {name: tensors[name].detach().abs() > SATURATES for name in names}
    if any(bool(mask.any()) for mask in large.values()):
        smaller = {name: tensors[name].detach().masked_fill(mask, 0.0) for name, mask in large.items()}
        text = (
            f"{sum(int(mask.sum()) for mask in large.values())} biases beyond {SATURATES:.0f}, which hold gates, are 0"
        )
        yield Repair("exploded_weight", text, node, smaller)


def _reordered(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Repair]:
    """Yield a recurrent layer with its gates, or its directions, in another order, as other frameworks have them."""
    given = {role: name for role, name in node.params.items() if role.startswith(("weight_", "bias_"))}
    if "weight_hh" not in given:
        return
    count = len(tensors[given["weight_hh"]]) // tensors[given["weight_hh"]].shape[1]
    for order in list(permutations(range(count)))[1:] if 1 < count < 5 else []:
        parts = {name: tensors[name].detach().chunk(count) for name in given.values()}
        text = f"its gates are in the order {order}"
        yield Repair("wrong_weights", text, node, {name: torch.cat([p[i] for i in order]) for name, p in parts.items()})
    squares = {name: tensors[name].detach() for role, name in given.items() if role.startswith("weight_hh")}
    turned = {name: torch.cat([part.T for part in torch.split(held, held.shape[1])]) for name, held in squares.items()}
    yield Repair("wrong_weights", "its recurrent weights are transposed, gate by gate", node, turned)
    if "weight_hh.reverse" in given:
        pairs = [(name, given[f"{role}.reverse"]) for role, name in given.items() if f"{role}.reverse" in given]
        turned = {a: tensors[b].detach() for one, other in pairs for a, b in ((one, other), (other, one))}
        yield Repair("wrong_weights", "its directions exchange their weights", node, turned)


def _clipped(node: Node, weight: Tensor) -> Iterator[Repair]:
    """Yield the repair of the largest weights: they get the size of the largest of the others."""
    size = output_first(weight.detach(), node).abs().reshape(-1)
    few = max(1, len(size) // 1000)
    if len(size) < 64:
        return
    largest = size.topk(few + 1).values
    if float(largest[0]) > UNUSUAL * float(largest[-1]):
        clipped = weight.detach().clamp(-largest[-1], largest[-1])
        text = f"weights up to {float(largest[0] / largest[-1]):.3g} times as large as all others are made as large"
        yield Repair("exploded_weight", text, node, {node.params["weight"]: clipped})
