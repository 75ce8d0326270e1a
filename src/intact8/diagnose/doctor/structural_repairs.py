"""Repairs of what several operations do alike: activations, attention, normalization, the way along recurrent layers.

What converts or writes a network again makes the same mistake everywhere, and one layer put right alone shows nothing.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import TRANSITIONS
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Repair, block_kind_of, kind_of, more_places
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

UNCHANGED = TRANSITIONS | {"input"}

RELU = {"kind": "clamp", "min": 0.0, "max": None}

SOFTPLUS: dict[str, Any] = {"op": "unary", "attrs": {"fn": "softplus", "beta": 1.0, "threshold": 20.0}}

FUNCTIONS: dict[str, list[Any]] = {
    "relu": [{"op": "relu", "attrs": {}}],
    "leaky_relu of slope 0.1": [{"op": "leaky_relu", "attrs": {"slope": 0.1}}],
    "leaky_relu of slope 0.2": [{"op": "leaky_relu", "attrs": {"slope": 0.2}}],
    "clamp to 0 … 6": [{"op": "clamp", "attrs": {"min": 0.0, "max": 6.0}}],
    "gelu": [{"op": "unary", "attrs": {"fn": "gelu", "approximate": "none"}}],
    "silu": [{"op": "unary", "attrs": {"fn": "silu"}}],
    "hardswish": [{"op": "unary", "attrs": {"fn": "hardswish"}}],
    "elu": [{"op": "unary", "attrs": {"fn": "elu", "alpha": 1.0}}],
    "tanh": [{"op": "unary", "attrs": {"fn": "tanh"}}],
    "sigmoid": [{"op": "unary", "attrs": {"fn": "sigmoid"}}],
    "softplus": [SOFTPLUS],
    "softplus less the logarithm of 2": [SOFTPLUS, {"op": "affine_scalar", "attrs": {"mul": 1.0, "add": -math.log(2)}}],
}
"""Activations that are tried in place of another one wherever that is: chains of tables."""

NEARLY_ALL = 0.8
"""Share of the loss that a layer must take away without what its batch norm holds: old statistics look like it."""

PADDED = 0.2
"""Share of rows that end in one index, twice at least, from which it may be what fills them up."""

MOST_COLUMNS = 64

MOST_KINDS = 8
"""Kinds of layers up to which any two and three of them are put right together."""

Groups = Mapping[tuple[str, ...], list[Repair]]
"""Repairs that do the same: by cause and text, and by these and the kind of layer or shape of input."""

RENEWED = "its batch norm gets the statistics of its inputs"
"""A repair that makes up for too much where it is made everywhere."""

SQUARED = "the variances of its batch norm are squared, as they are deviations"
"""A repair that makes up for nothing else."""

HIDDEN = -1e9
"""Score of what attention may not see."""


def otherwise(sim: Simulation, samples: Samples, nodes: Sequence[Node]) -> Iterator[Repair]:
    """Yield the repairs of this module but those of :func:`together`.

    Args:
        sim: a simulation of the network.
        samples: the samples.
        nodes: the operations that are put right one at a time.
    """
    yield from _normalized_once(sim)
    yield from _functions(sim, nodes)
    yield from _folded_once(sim)
    yield from _masked(sim, samples)
    yield from _along_steps(sim)
    yield from _offsets(sim, samples)
    yield from _rows_of_padding(sim, samples)


def together(groups: Groups, graph: Graph) -> list[Repair]:
    """Return repairs of one kind put together: of layers whose names differ in numbers only, of all layers, and of all
    inputs of one shape."""
    return _each_once(groups.items(), graph)


def of_several_kinds(groups: Groups, graph: Graph) -> list[Repair]:
    """Return repairs of weights put together of two or three kinds of layers, as queries and values, of few.

    Tools that convert weights know layers by their names, and forget some of these.
    """
    several = []
    for (cause, text, *kind), members in groups.items():
        for naming in (kind_of, block_kind_of) if cause == "wrong_weights" and not kind else ():
            parts: dict[str, list[Repair]] = defaultdict(list)
            for repair in members:
                parts[naming(repair.node.name)].append(repair)
            counts = [count for count in (2, 3) if count < len(parts) <= MOST_KINDS]
            chosen = [some for count in counts for some in combinations(parts.values(), count)]
            several += [((cause, text), [repair for part in some for repair in part]) for some in chosen]
    return _each_once(several, graph)


def of_one_block(repairs: Sequence[Repair], graph: Graph) -> list[Repair]:
    """Return repairs of one kind put together of layers whose names differ in one number of several, as those of one
    block, and of all calls of what has no name of its own."""
    groups: dict[tuple[str, ...], list[Repair]] = defaultdict(list)
    for repair in repairs:
        if _alone(repair) and repair.cause in ("wrong_weights", "wrong_setting"):
            numbers = list(re.finditer(r"\d+", repair.node.name))
            for found in numbers if len(numbers) > 1 else ():
                kind = f"{repair.node.name[: found.start()]}#{repair.node.name[found.end() :]}"
                groups[repair.cause, repair.text, kind].append(repair)
            groups[repair.cause, repair.text, re.sub(r"_\d+$", "", repair.node.name)].append(repair)
    return _each_once(groups.items(), graph)


def _alone(repair: Repair, *, as_others: bool = False) -> bool:
    """Return whether one operation is put right, and not, or also, as others are."""
    return not repair.others and not repair.also and (as_others or "elsewhere" not in repair.text)


def grouped(repairs: Sequence[Repair]) -> Groups:
    """Return repairs that do the same, for :func:`together` and :func:`of_several_kinds`."""
    groups: dict[tuple[str, ...], list[Repair]] = defaultdict(list)
    for repair in repairs:
        alone = _alone(repair)
        if alone and repair.cause in ("wrong_weights", "wrong_setting", "stale_batch_norm"):
            groups[repair.cause, repair.text].append(repair)
        lost = repair.inserted and _alone(repair, as_others=True)  # in all blocks, with others elsewhere
        if (alone and repair.cause in ("wrong_weights", "wrong_setting", "stale_batch_norm")) or lost:
            for kind in dict.fromkeys(naming(repair.node.name) for naming in (kind_of, block_kind_of)):
                groups[repair.cause, repair.text, kind].append(repair)
        if alone and repair.cause == INPUTS_ARE_WRONG and repair.change is not None and not repair.source:
            what = repair.text.removesuffix(f" as {repair.node.name}")
            groups[repair.cause, what, str(repair.node.shape)].append(repair)
    return groups


def _each_once(groups: Iterable[tuple[tuple[str, ...], list[Repair]]], graph: Graph) -> list[Repair]:
    """Return groups of repairs, by cause and text, as one repair each; those of the same operations once."""
    order = {name: i for i, name in enumerate(graph.nodes)}
    found: dict[tuple[str, ...], Repair] = {}
    for (cause, text, *_), members in groups:
        members = sorted({r.node.name: r for r in members}.values(), key=lambda r: order[r.node.name])
        if len(members) < 2 or text == RENEWED:
            continue  # new statistics everywhere make up for too much
        more = f"{text}, and so in {more_places(len(members) - 1)}"
        found[(cause, text, *(r.node.name for r in members))] = replace(members[0], text=more, also=tuple(members[1:]))
    return list(found.values())


ARITHMETIC = {"affine_scalar": "times and plus a number"}


def word_of(chain: list[Any]) -> str:
    """Return the name of an activation."""
    words = [str(part["attrs"].get("fn", part["op"])) for part in chain]
    return ", ".join(ARITHMETIC.get(word, word) for word in words)


def function_of(node: Node) -> list[Any]:
    """Return the activation of a node as the chain of a table; [] where it has none, or one with parameters."""
    if node.op == "table":
        return [] if node.params else list(node.attrs["chain"])
    act = node.attrs.get("act") or {"kind": "prelu"}
    if act == RELU:
        return [{"op": "relu", "attrs": {}}]
    return (
        [] if act["kind"] == "prelu" else [{"op": act["kind"], "attrs": {k: v for k, v in act.items() if k != "kind"}}]
    )


def with_function(node: Node, chain: list[Any], text: str, **rest: Any) -> Repair:
    """Return the repair of an operation that gets another activation."""
    if node.op == "table":
        return Repair("wrong_setting", text, replace(node, attrs={"chain": chain}), **rest)
    plain = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "act"})
    behind = replace(node, op="table", attrs={"chain": chain}, params={}, inputs=[node.name])
    return Repair("wrong_setting", text, plain, behind=behind, **rest)


def filling(ids: Tensor) -> int | None:
    """Return the index that fills the ends of rows, if one does."""
    fills = int(ids[:, -1].mode().values)
    twice = (ids[:, -2:] == fills).all(1)
    return fills if int(twice.sum()) >= PADDED * len(ids) else None


def unwrapped(graph: Graph, node: Node) -> Node:
    """Return the operation of whose result a node is a copy, in another type or behind dropout; else itself."""
    while (node.op in UNCHANGED or node.op == "dropout") and node.inputs:
        node = graph.nodes[node.inputs[0]]
    return node


def source_of(graph: Graph, name: str) -> str:
    """Return the name of what a tensor is a copy of, in another form or type."""
    node = graph.nodes[name]
    while (node.moves or node.op == "cast" or node.op in UNCHANGED) and len(node.inputs) == 1:
        node = graph.nodes[node.inputs[0]]
    return node.name


def tables_of(graph: Graph, name: str) -> list[Node]:
    """Return the tables that an input's indices are looked up in."""
    return [n for n in graph if n.op == "embedding" and source_of(graph, n.inputs[0]) == name]


def owner_of(sim: Simulation, name: str) -> str:
    """Return the module whose parameter alone a constant is computed from, as rows of a table; else the name."""
    source = only_source(sim, sim.graph.nodes[name].params.get("value", ""))
    return name if source is None else source.rpartition(".")[0] or source


def last_part(sim: Simulation, node: Node) -> Node | None:
    """Return the captured operation that became the last part of a node, as its activation; None where it is alone."""
    parts = [part for part in node.source if part in sim.captured.graph.nodes]
    return sim.captured.graph.nodes[parts[-1]] if len(parts) > 1 else None


def only_source(sim: Simulation, value: str) -> str | None:
    """Return the parameter from which alone a tensor of the graph is computed; None where it is none, or several."""
    derived = sim.captured.derived.get(value)
    if derived is None:
        return None
    parameters = {n for n, _ in sim.named_parameters()}
    sources = [n for n in derived.sources if n in parameters]
    return sources[0] if len(sources) == 1 else None


def along_samples(shape: Sequence[Any]) -> bool:
    """Return whether dimension 0 of what a recurrent layer reads, along which it runs, are the samples."""
    return len(shape) == 3 and shape[0] is None


def _normalized_once(sim: Simulation) -> Iterator[Repair]:
    """Yield the network without what it does first to an input, which may have been done to the data already."""
    users, trained = sim.graph.users(), dict(sim.named_parameters())
    for name in sim.graph.inputs:
        found, at = [], name
        while len(users[at]) == 1:
            node = sim.graph.nodes[users[at][0]]
            scalar = all(part["op"] == "affine_scalar" for part in node.attrs.get("chain", [{"op": node.op}]))
            fixed = node.op == "scale_shift" and "bn" not in node.attrs and not trained.keys() & node.params.values()
            if scalar or fixed:
                found.append(Repair(INPUTS_ARE_WRONG, "", replace(node, op="dropout", attrs={}, params={})))
            elif node.op not in UNCHANGED:
                break
            at = node.name
        if found:
            names = " and ".join(repair.node.name for repair in found)
            text = f"inputs are not shifted and scaled by {names}, as they have been prepared already"
            yield replace(found[0], text=text, also=tuple(found[1:]))
            text = "what it shifts and scales by gives columns with mean 0 and standard deviation 1"
            whole = [replace(repair, cause="wrong_weights") for repair in found[1:]]
            yield replace(found[0], cause="wrong_weights", text=text, compute=_standardized, also=tuple(whole))


def _standardized(inputs: Sequence[Tensor], _: Mapping[str, Tensor]) -> Tensor:
    x = inputs[0]
    others = [d for d in range(x.dim()) if d != 1]
    deviation, mean = torch.std_mean(x, others, keepdim=True)
    return (x - mean) / deviation.clamp(min=1e-12)


def _functions(sim: Simulation, nodes: Sequence[Node]) -> Iterator[Repair]:
    """Yield another activation in all places of one."""
    alike: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        chain = function_of(node)
        foldable = node.op in AFFINE or node.op in ("add", "table") or node.op.endswith("_norm")
        if foldable and any(part["op"] != "affine_scalar" for part in chain):
            alike[repr(chain)].append(node)
    # Channels that were rescaled across an activation are of use with others only as they were.
    rescaled = [n for n in sim.graph if any(role.startswith("equalize.") for role in n.params)]
    factors = {name for n in rescaled for role, name in n.params.items() if role.startswith("equalize.")}
    plain = {name: torch.ones_like(sim.tensors[name]) for name in factors}
    for members in alike.values():
        now = function_of(members[0])
        for word, chain in FUNCTIONS.items():
            if chain != now:
                text = f"it computes {word}, not {_described(now)}"
                text += f", and so in {more_places(len(members) - 1)}" if len(members) > 1 else ""
                parts = [with_function(node, chain, text, tensors=plain) for node in members]
                others = tuple(n for n in rescaled if n.name not in {m.name for m in members})
                yield replace(parts[0], also=tuple(parts[1:]), others=others)


def _described(chain: list[Any]) -> str:
    part = chain[-1]
    numbers = [f"{key} {value:g}" for key, value in part["attrs"].items() if isinstance(value, float)]
    return " ".join([word_of(chain), *numbers])


def _folded_once(sim: Simulation) -> Iterator[Repair]:
    """Yield layers whose weights hold the batch norm behind them already, without it."""
    for node in sim.graph:
        grouped = node.attrs.get("transposed", False) and node.attrs.get("groups", 1) > 1
        if node.op not in AFFINE or node.op == "scale_shift" or "bn" not in node.attrs or grouped:
            continue
        mean, variance = (sim.tensors[node.params[f"bn.running_{s}"]].detach() for s in ("mean", "var"))
        weight = sim.tensors[node.params["weight"]].detach()
        gain, shift = (
            sim.tensors[node.params[f"bn.{s}"]].detach() if f"bn.{s}" in node.params else None
            for s in ("weight", "bias")
        )
        factor = (variance + node.attrs["bn"]["eps"]).rsqrt() * (1.0 if gain is None else gain)
        if bool((factor.abs() < 1e-6).any()):
            continue
        axis = 1 if node.attrs.get("transposed", False) else 0
        changed = {
            node.params["weight"]: weight / factor.reshape([-1 if d == axis else 1 for d in range(weight.dim())])
        }
        if "bias" in node.params:
            bias = sim.tensors[node.params["bias"]].detach()
            changed[node.params["bias"]] = (bias - (0.0 if shift is None else shift)) / factor + mean
        text = "its weight does not hold its batch norm already"
        yield Repair("wrong_weights", text, node, changed, least=NEARLY_ALL)


def _masked(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield attention, means and maxima over words that leave out what only fills up sentences."""
    graph = sim.graph
    for name, ids in zip(graph.inputs, samples.batches[0].inputs, strict=True):
        whole = ids.dim() == 2 and ids.shape[1] > 2 and not ids.is_floating_point() and ids.dtype != torch.bool
        fills = filling(ids) if whole else None
        if fills is None:
            continue
        words = ids.shape[1]
        text = f"padding, which is index {fills}, takes no part in it"
        seen = [n for n in graph if n.op == "softmax" and n.shape[-1] == words and n.attrs["axis"] == len(n.shape) - 1]
        # Where words fill up sentences, attention that sees these is unusual.
        attention = [replace(_with_mask(sim, node, name, fills, text), unusual=True) for node in seen]
        pools = [n for n in graph if n.op in ("mean", "reduce") and _over_words(graph, n, words)]
        pooled = [_with_mask(sim, node, name, fills, text) for node in pools]
        for node in (n for n in graph if n.op == "slice" and _one_of(graph, n, words)):
            mean = f"it takes the mean of all but padding, which is index {fills}, not step {node.attrs['start']}"
            yield _with_mask(sim, node, name, fills, mean)
            last = f"it takes the last step that is no padding, which is index {fills}, not step {node.attrs['start']}"
            yield Repair("wrong_setting", last, node, compute=_last_word(name, fills))
        for parts in (attention, pooled, [*attention, *pooled] if attention and pooled else []):
            if parts:
                yield replace(parts[0], also=tuple(parts[1:]))


def _over_words(graph: Graph, node: Node, words: int) -> bool:
    shape = graph.nodes[node.inputs[0]].shape
    taken = node.op == "mean" or node.attrs.get("fn") in ("amax", "sum")
    return taken and len(shape) == 3 and shape[1] == words and list(node.attrs.get("dims", ())) == [1]


def _one_of(graph: Graph, node: Node, words: int) -> bool:
    """Return whether one of the words is taken."""
    shape = graph.nodes[node.inputs[0]].shape
    return len(shape) == 3 and shape[1] == words and node.attrs["axis"] == 1 and node.shape[1] == 1


def _last_word(name: str, fills: int) -> Callable[[Sequence[Tensor], Mapping[str, Tensor]], Tensor]:
    def taken(inputs: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
        x, words = inputs[0], (given[name] != fills).sum(1)
        return x[torch.arange(len(x), device=x.device), (words - 1).clamp(min=0)][:, None]

    return taken


def _with_mask(sim: Simulation, node: Node, name: str, fills: int, text: str) -> Repair:
    compute = FloatExecutor(sim.tensors)

    def masked(inputs: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
        x, empty = inputs[0], given[name] == fills
        if node.op == "softmax":
            return compute(node, [x.masked_fill(empty.reshape(len(x), *[1] * (x.dim() - 2), -1), HIDDEN)])
        if node.attrs.get("fn") == "amax":
            return compute(node, [x.masked_fill(empty[..., None], HIDDEN)])
        if node.op == "slice":
            words = (~empty).sum(1).clamp(min=1)
            return x.masked_fill(empty[..., None], 0.0).sum(1, keepdim=True) / words[:, None, None]
        y = compute(node, [x.masked_fill(empty[..., None], 0.0)])
        share = (~empty).sum(1).clamp(min=1) / (empty.shape[1] if node.op == "mean" else 1)
        return y / share.reshape(-1, *[1] * (y.dim() - 1)) if node.op == "mean" else y

    return Repair("wrong_setting", text, node, compute=masked)


def _along_steps(sim: Simulation) -> Iterator[Repair]:
    """Yield recurrent layers that run along the second dimension where they run along the samples."""
    graph, users, compute = sim.graph, sim.graph.users(), FloatExecutor(sim.tensors)
    parts: list[Repair] = []
    text = "it runs along the steps, dimension 1, not along the samples (batch_first=True)"

    def turned(node: Node, first: bool, last: bool) -> Callable[[Sequence[Tensor], Mapping[str, Tensor]], Tensor]:
        def value(inputs: Sequence[Tensor], _: Mapping[str, Tensor]) -> Tensor:
            x = inputs[0].transpose(0, 1).contiguous() if first else inputs[0]
            y = x[node.attrs["start"] :] if node.op == "slice" else compute(node, [x, *inputs[1:]])
            return y.transpose(0, 1).contiguous() if last else y

        return value

    for node in graph:
        shape = graph.nodes[node.inputs[0]].shape if node.op in GATES else ()
        if not along_samples(shape) or node.name in {part.node.name for part in parts}:
            continue
        chain = [node]
        while len(users[chain[-1].name]) == 1:
            behind = graph.nodes[users[chain[-1].name][0]]
            if behind.op not in GATES and not (behind.op == "slice" and behind.attrs["axis"] == 0):
                break
            chain.append(behind)
        whole = chain[-1].op == "slice" or chain[-1].attrs.get("result") == "steps"
        if whole:
            ends = [(n is chain[0], n is chain[-1]) for n in chain]
            new = [
                Repair("wrong_setting", text, n, compute=turned(n, *end)) for n, end in zip(chain, ends, strict=True)
            ]
            parts += new
    if parts:
        yield replace(parts[0], also=tuple(parts[1:]))


def _offsets(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield a table that several columns of indices read, each of them in its own rows."""
    graph = sim.graph
    for node in graph:
        if node.op != "embedding":
            continue
        of = graph.nodes[node.inputs[0]]
        held = [n for n in map(graph.nodes.get, of.inputs) if n is not None and n.op == "constant"]
        zeros = of.op == "add" and len(held) == 1 and not bool(sim.tensors[held[0].params["value"]].any())
        name = next((n for n in of.inputs if n != held[0].name), "") if zeros else of.name
        ids = [dict(zip(graph.inputs, b.inputs, strict=True)).get(source_of(graph, name)) for b in samples]
        given = [x for x in ids if x is not None]
        sizes_given = {tuple(x.shape[1:]) for x in given}
        columns = given[0].shape[1] if len(sizes_given) == 1 and given[0].dim() == 2 else 0
        if not 1 < columns <= MOST_COLUMNS:
            continue
        sizes, rows = torch.cat(given).amax(0) + 1, len(sim.tensors[node.params["weight"]])
        if (int(sizes.max()) == int(sizes.min()) and not zeros) or int(sizes.sum()) > rows:
            continue
        place = of if zeros else node
        left, right = sizes.cumsum(0) - sizes, rows - sizes.flip(0).cumsum(0).flip(0)
        right[0] = 0
        for offset in {tuple(left.tolist()), tuple(right.tolist())}:
            text = f"its columns of indices begin at rows {', '.join(map(str, offset[:8]))} of the table"
            yield Repair("wrong_weights", text, place, compute=_moved(sim, place, offset))


def _rows_of_padding(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield a table with zeros as what fills the ends of rows, as where it came with other numbers for padding."""
    for given, ids in zip(sim.graph.inputs, samples.batches[0].inputs, strict=True):
        tables = tables_of(sim.graph, given) if ids.dim() == 2 and ids.shape[1] > 1 else []
        fills = filling(ids) if tables else None
        for node in tables:
            name = node.params["weight"]
            table = sim.tensors[name].detach()
            if fills is not None and 0 <= fills < len(table) and bool(table[fills].any()):
                without = table.clone()
                without[fills] = 0.0
                yield Repair("wrong_weights", f"its row {fills}, that of padding, holds zeros", node, {name: without})


def _moved(
    sim: Simulation, node: Node, offset: Sequence[int]
) -> Callable[[Sequence[Tensor], Mapping[str, Tensor]], Tensor]:
    compute = FloatExecutor(sim.tensors)

    def value(inputs: Sequence[Tensor], _: Mapping[str, Tensor]) -> Tensor:
        by = torch.tensor(offset, device=inputs[0].device)
        return compute(node, [inputs[0] + by, *inputs[1:]])

    return value
