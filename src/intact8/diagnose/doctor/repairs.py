"""Everything that is tried on a float network: one thing put right at a time, in one operation or several.

A repair changes what an operation computes; what gives the answers back was wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.attention_repairs import of_attention
from intact8.diagnose.doctor.channel_repairs import of_channels, statistics_of
from intact8.diagnose.doctor.input_repairs import of_inputs
from intact8.diagnose.doctor.repair import SCALED, Repair, formed, kind_of, swapped
from intact8.diagnose.doctor.rotary_repairs import of_rotary_positions
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import (
    FUNCTIONS,
    RENEWED,
    SQUARED,
    UNCHANGED,
    function_of,
    only_source,
    otherwise,
    source_of,
    with_function,
    word_of,
)
from intact8.diagnose.doctor.weight_repairs import among_weights, of_weights
from intact8.diagnose.doctor.window_repairs import of_windows
from intact8.diagnose.doctor.wiring_repairs import rewired
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

MOST_JOINED = 8
"""Parts of a join up to which any two are exchanged."""

GAINS = (1 / 64, 1 / 8, 8.0, 64.0)
"""Factors tried on what every operation gives, and then their neighbours at the best places."""

GROUPS = 1, 2, 3, 4, 6, 8, 12, 16, 32
"""Numbers of groups that are tried."""

USUAL_EPS, LARGE_EPS = 1e-5, 1e-3
"""The number that most networks add to variances, and the largest one that frameworks add by default."""


def with_gain(node: Node, factor: float) -> Repair:
    """Return the repair that multiplies what an operation gives."""
    return Repair("wrong_scale", f"its results are multiplied by {factor:.3g}", node, gain=factor, least=SCALED)


def repairs(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield the repairs to try on a network."""
    given, trained = sim.captured.graph.nodes, dict(sim.named_parameters())
    nodes = [n for n in sim.graph if n.name in given and n.dtype == "float32" and not n.moves and n.op not in UNCHANGED]
    nodes = [
        n for n in nodes if n.op != "constant" or n.params["value"] in trained or only_source(sim, n.params["value"])
    ]
    statistics, sizes = statistics_of(sim, samples)
    usual, users = usual_function(sim.graph), sim.graph.users()
    given_as_numbers = {n.name for n in nodes if n.op == "cast" and source_of(sim.graph, n.name) in sim.graph.inputs}
    yield from formed(of_inputs(sim, samples))
    for node in nodes:
        for factor in GAINS if node.name not in given_as_numbers else ():  # these are inputs of another scale
            yield with_gain(node, factor)
        silent = all(sim.graph.nodes[u].op != "table" for u in users[node.name])
        yield from formed(_configured(sim.graph, node, usual, silent, nodes))
        if node.name in statistics:
            mean, variance = statistics[node.name]
            renewed = {node.params["bn.running_mean"]: mean, node.params["bn.running_var"]: variance}
            yield Repair("stale_batch_norm", RENEWED, node, renewed)
            name = node.params["bn.running_var"]
            squared = {name: sim.tensors[name].detach().square()}
            yield Repair("stale_batch_norm", SQUARED, node, squared)
        if node.name in sizes:
            yield from formed(of_channels(node, sizes[node.name]))
        yield from formed(of_weights(node, sim.graph, sim.tensors))
    yield from formed(_joined_otherwise(sim.graph))
    yield from formed(otherwise(sim, samples, nodes))
    yield from formed(of_attention(sim))
    yield from formed(of_rotary_positions(sim))
    yield from formed(of_windows(sim))
    yield from formed(rewired(sim))
    yield from formed(among_weights(nodes, sim.tensors))


def calls_of_modules(graph: Graph) -> dict[str, list[Node]]:
    """Return the other operations with the parameters of one, by its name: calls of a module called several times."""
    alike: dict[tuple[Any, ...], list[Node]] = defaultdict(list)
    for node in graph:
        own = [(role, name) for role, name in node.params.items() if not role.startswith(("correct.", "equalize."))]
        if own:
            alike[(node.op, *sorted(own))].append(node)
    return {n.name: [o for o in nodes if o is not n] for nodes in alike.values() if len(nodes) > 1 for n in nodes}


def in_all_calls(repair: Repair, graph: Graph, calls: Mapping[str, Sequence[Node]]) -> Repair:
    """Return a repair of an operation of a module that is called several times for all of these calls."""
    node, changed = graph.nodes.get(repair.node.name), repair.node
    whole = repair.also or repair.change is not None or repair.compute is not None or repair.order
    if node is None or whole or repair.cause not in ("wrong_weights", "wrong_setting"):
        return repair
    own, others = calls.get(node.name, []), [call for other in repair.others for call in calls.get(other.name, [])]
    if not own and not others:
        return repair
    same = changed.params == node.params
    also = []
    for call in own:
        params = call.params if same else changed.params
        there = replace(changed, name=call.name, inputs=call.inputs, shape=call.shape, params=params)
        also.append(replace(repair, node=there, others=()))
    return replace(repair, others=(*repair.others, *others), also=tuple(also))


def _joined_otherwise(graph: Graph) -> Iterator[Repair]:
    """Yield differences the other way, and what is joined in another order: any of few parts, two of more exchanged."""
    for node in graph:
        if node.op == "sub" and node.dtype == "float32" and len(set(node.inputs)) == 2:
            yield Repair("wrong_setting", "it takes the difference the other way", node, order=(1, 0))
        joins = node.op == "cat" and node.dtype == "float32" and len(set(node.inputs)) == len(node.inputs)
        count = len(node.inputs) if joins else 0
        every = list(permutations(range(count)))[1:] if count < (6 if len(node.shape) == 2 else 4) else []
        swaps = combinations(range(count), 2) if not every and count <= MOST_JOINED else ()
        for order in [*every, *(swapped(a, b, count) for a, b in swaps)]:
            yield Repair("wrong_setting", f"it joins its inputs in the order {order}", node, order=order)


def _elsewhere(node: Node, alike: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Yield the settings of operations like this one, where these have other numbers of groups, say."""
    same = [n for n in alike if n.op == node.op and n.shape == node.shape and n.name != node.name]
    one = node.op.endswith("_norm") and len({repr(n.attrs) for n in same}) == 1
    if one and node.attrs != same[0].attrs:
        yield dict(same[0].attrs)


def _configured(graph: Graph, node: Node, usual: list[Any], silent: bool, alike: Sequence[Node]) -> Iterator[Repair]:
    """Yield the operation with the settings that operations like it have, or an activation where others have one."""
    for role, attrs in (("", node.attrs), *((r, node.attrs[r]) for r in ("bn", "pre") if r in node.attrs)):
        eps = attrs.get("eps", 0.0)
        if eps > LARGE_EPS:
            plain = {**attrs, "eps": USUAL_EPS}
            changed = replace(node, attrs={**node.attrs, role: plain} if role else plain)
            yield Repair("wrong_setting", f"its eps is not {eps:.3g}", changed, unusual=True)
    if node.op == "softmax":
        for axis in range(1, len(node.shape)):
            if axis != node.attrs["axis"]:
                changed = replace(node, attrs={**node.attrs, "axis": axis})
                yield Repair("wrong_setting", f"it runs along axis {axis}, not {node.attrs['axis']}", changed)
        each = replace(node, op="unary", attrs={"fn": "sigmoid"})
        yield Repair("wrong_setting", "it computes sigmoid of each number, not softmax", each)
        if graph.nodes[node.inputs[0]].op == "softmax":
            yield Repair("wrong_setting", "it is left out, as what it reads is a softmax", replace(node, op="dropout"))
    if node.op == "group_norm":
        for groups in GROUPS:
            if groups != node.attrs["groups"] and int(node.shape[1] or 1) % groups == 0:
                changed = replace(node, attrs={**node.attrs, "groups": groups})
                single = node.attrs["groups"] == node.shape[1]
                now = "one for each channel" if single else node.attrs["groups"]
                norms = [n for n in alike if n.op == node.op]
                unusual = single and any(n.attrs["groups"] != n.shape[1] for n in norms)
                text = f"it has {groups} group{'s' * (groups != 1)}, not {now}"
                yield Repair("wrong_setting", text, changed, unusual=unusual)
    for attrs in _elsewhere(node, alike):
        text = ", ".join(f"{key} {value}" for key, value in attrs.items() if node.attrs.get(key) != value)
        yield Repair("wrong_setting", f"it has {text}, as elsewhere in the network", replace(node, attrs=attrs))
    yield from _divided(node)
    function, foldable = function_of(node), node.op in AFFINE or node.op == "add" or node.op.endswith("_norm")
    bare = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "act"})
    if usual and function != usual and node.op == "table" and not node.params:
        like = [n for n in graph if kind_of(n.name) == kind_of(node.name) and n.name != node.name]
        unusual = bool(like) and all(function_of(n) == usual for n in like)
        text = f"it computes {word_of(usual)}, as elsewhere in the network"
        yield with_function(node, usual, text, unusual=unusual)
    elif usual and function != usual and foldable and silent and "act.weight" not in node.params:
        yield with_function(node, usual, f"{word_of(usual)} follows, as elsewhere in the network", inserted=True)
    elif not usual and node.op in AFFINE and silent:  # somebody may have lost them all
        for word in ("relu", "gelu", "silu"):
            yield with_function(node, FUNCTIONS[word], f"{word} follows", inserted=True)
    if function and foldable:
        yield Repair("wrong_setting", f"no {word_of(function)} follows", bare)


def _divided(node: Node) -> Iterator[Repair]:
    """Yield what multiplies by a number dividing by it."""
    chain = node.attrs["chain"] if node.op == "table" else []
    factor = chain[0]["attrs"]["mul"] if len(chain) == 1 and chain[0]["op"] == "affine_scalar" else 0.0
    if factor != 0 and abs(factor) != 1 and not chain[0]["attrs"]["add"]:
        inverse = [{"op": "affine_scalar", "attrs": {"mul": 1 / factor, "add": 0}}]
        yield with_function(node, inverse, f"it divides by {factor:.3g} and does not multiply")


def usual_function(graph: Graph) -> list[Any]:
    """Return the activation that the network has most, as the chain of a table; [] where it has none."""
    found = Counter(repr(function_of(node)) for node in graph if function_of(node))
    return (
        next((function_of(n) for n in graph if repr(function_of(n)) == found.most_common(1)[0][0]), []) if found else []
    )


def followed_by(graph: Graph, name: str, users: Mapping[str, Sequence[str]]) -> str:
    """Return the name of the activation of an operation, or of one that reads it; "" where there is none."""
    chains = [function_of(graph.nodes[n]) for n in (name, *users[name])]
    return next((word_of(chain) for chain in chains if chain), "")
