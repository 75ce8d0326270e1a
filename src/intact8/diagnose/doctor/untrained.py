"""Weights that are no result of training: as initialized, copied, or empty."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import TRANSITIONS
from intact8.diagnose.doctor.exploded import norms, weight_finding
from intact8.diagnose.doctor.float_causes import LEAST, TRAIN_ON
from intact8.diagnose.doctor.repair import kind_of
from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.structural_repairs import last_part, owner_of
from intact8.diagnose.doctor.weight_repairs import TWINS
from intact8.simulation.simulation import Simulation

OVERSHOT, MANY = 8.0, 512
"""Mean gaps of uniform numbers that their largest one may stay below their bound (half as many where there are fewer
weights than the second number: one untrained layer in fifty stays further below), and weights from which bounds are
tried that PyTorch's own layers do not begin with."""


POSITIONS = 0.02
"""The deviation of normal numbers that embeddings of positions usually begin with."""

FACTOR = 1e-3
"""The largest number that factors of layers are initialized with, so that a network begins without these."""

ALMOST = 1e-5
"""By how much the lengths of normalized rows may differ from 1."""

SPARSE, EMPTY = 0.3, 0.1
"""Share of zeros among the weights of one layer from which it was emptied, where other layers have hardly any; and the
same where all weights of some inputs are 0."""


ZEROS = "nothing but zeros"
"""What a lost layer holds."""


def untrained(sim: Simulation) -> list[Finding]:
    """Return findings of layers whose weights are no result of training: warnings, as answers may be right anyway.

    Uniform numbers that reach exactly as far as initialization goes lie as they were initialized: training moves them
    beyond. Nor does it make rows that are copies of each other.
    """
    found, layers = [], 0
    for node in sim.graph:
        weights = [name for role, name in node.params.items() if role.startswith("weight") and node.op != "batch_norm"]
        weights = [name for name in weights if sim.tensors[name].dim() > 1 and sim.tensors[name].numel() >= LEAST]
        layers += bool(weights)
        begun = [_as_initialized(sim.tensors[name].detach(), *_beside(node, name, sim.tensors)) for name in weights]
        bound, how = max(begun, default=(0.0, ""))
        part = next((text for name in weights if not bound and (text := _half(sim.tensors[name].detach()))), "")
        copies = [_copies(sim.tensors[name].detach()) for name in weights]
        blank = next((text for name in weights if (text := _numbers(sim.tensors[name].detach()))), "")
        if blank:
            found.append(weight_finding("wrong_weights", node.name, f"{weights[0]} holds {blank}", numbers=blank))
        elif bound:
            message = f"{weights[0]} is {how}{bound:.3g}, as it is initialized, and was never trained"
            few = {"few": True} if all(sim.tensors[name].numel() < MANY for name in weights) else {}
            found.append(weight_finding("wrong_weights", node.name, message, bound=bound, **few))
        elif part and node.op in ("conv", "linear", "conv_transpose"):
            found.append(weight_finding("wrong_weights", node.name, f"{weights[0]} is {part}", half=True))
        elif any(_is_many(same, sim.tensors[name]) for same, name in zip(copies, weights, strict=True)):
            message = f"{max(copies)} rows of its weight are copies of others"
            found.append(weight_finding("wrong_weights", node.name, message, copies=max(copies)))
    if 2 * len(found) > layers > 1:
        message = f"the weights of {len(found)} of {layers} layers are no result of training: they are as initialized"
        found = [weight_finding("float_network_wrong", NETWORK, message, layers=[f.place for f in found])]
    found = [_unlike_trained(sim, f, {other.place for other in found}) for f in found]
    found += [
        *_empty_tables(sim),
        *_added_as_begun(sim),
        *_copied_layers(sim, {f.place for f in found}),
        *_copied_tables(sim),
        *_of_length_one(sim),
        *_lost_slopes(sim),
    ]
    found += _emptied(sim, {f.place for f in found})
    found = [replace(f, severity="warning") for f in found] + [
        replace(f, severity="note") for f in (*_untouched(sim), *_tables_as_begun(sim), *_pruned(sim))
    ]
    return [replace(f, remedy=f"load the trained weights; {TRAIN_ON}") for f in found]


def _lost_slopes(sim: Simulation) -> list[Finding]:
    """Return findings of PReLUs whose slopes are all 0, as of ReLUs: they begin with 0.25, and training moves each."""
    found = []
    for node in sim.graph:
        name = node.params.get("act.weight") or (node.params.get("weight") if node.op == "prelu" else None)
        if name is not None and not bool(sim.tensors[name].detach().any()):
            place = (last_part(sim, node) or node).name
            found.append(weight_finding("wrong_weights", place, f"{name} {LOST_SLOPES}", numbers=LOST_SLOPES))
    return found


LOST_SLOPES = "holds slopes of 0 only, which makes a ReLU of it"
"""What is said of a PReLU without slopes."""


def _of_length_one(sim: Simulation) -> list[Finding]:
    """Return findings of layers of which every row has the length 1, where other layers have rows of any length."""
    kinds = ("conv", "linear", "embedding")
    layers = {n.name: n.params["weight"] for n in sim.graph if n.op in kinds and "weight" in n.params}
    found = []
    for name, weight in layers.items():
        rows = sim.tensors[weight].detach().double().flatten(1)
        if _reads_unit_vectors(sim.graph, name):  # its results are cosines by design
            continue
        lengths = rows.norm(dim=1)
        if int((lengths == 0).sum()) <= 1:  # the row of padding
            lengths = lengths[lengths > 0]
        if len(lengths) >= LEAST // 8 and rows.shape[1] > 1 and bool(((lengths - 1).abs() < ALMOST).all()):
            message = f"every row of {weight} has the length 1, as where weight normalization's lengths are lost"
            found.append(weight_finding("wrong_weights", name, message, lengths=1.0))
    return found if 2 * len(found) < len(layers) else []


def _reads_unit_vectors(graph: Graph, name: str) -> bool:
    """Return whether a layer reads vectors that are divided by their own lengths."""

    def behind(node: Node, through: Collection[str]) -> Node:
        while node.inputs and (node.moves or node.op in through):
            node = graph.nodes[node.inputs[0]]
        return node

    node = behind(graph.nodes[graph.nodes[name].inputs[0]], TRANSITIONS | {"dropout"})
    if node.op != "div" or len(node.inputs) != 2:
        return False
    length = behind(graph.nodes[node.inputs[1]], TRANSITIONS | {"clamp", "table", "unary", "affine_scalar", "maximum"})
    return length.op == "reduce"


MOSTLY_ZERO, HARDLY_ZERO = 0.7, 0.1
"""Shares of zeros among weights from which a layer was pruned, and up to which one was not."""


def _pruned(sim: Simulation) -> list[Finding]:
    """Return notes of layers most of whose weights are 0, where most layers have none: they were pruned."""
    layers = {n.name: n.params["weight"] for n in sim.graph if n.op in ("conv", "linear") and "weight" in n.params}
    shares = {name: float((sim.tensors[weight] == 0).double().mean()) for name, weight in layers.items()}
    if 2 * sum(share <= HARDLY_ZERO for share in shares.values()) <= len(shares):
        return []
    return [
        weight_finding("wrong_weights", name, f"{share:.0%} of its weights are 0, as after pruning", zeros=share)
        for name, share in shares.items()
        if MOSTLY_ZERO <= share < 1 and sim.tensors[layers[name]].numel() >= LEAST
    ]


def _unlike_trained(sim: Simulation, finding: Finding, untrained: Collection[str]) -> Finding:
    """Add to the finding of a layer that lies as initialized how many layers like it were trained, where all were.

    Nobody leaves one of several equal layers at random by design, which a network that answers well may have done with
    a layer of its own kind.
    """
    if "bound" not in finding.evidence or "few" in finding.evidence:
        return finding
    kind, node = kind_of(finding.place), sim.graph.nodes[finding.place]
    layers = (n for n in sim.graph if n is not node and n.op == node.op and kind_of(n.name) == kind)
    others = [n.name for n in layers if _weight_shape(sim, n) == _weight_shape(sim, node)]
    if "#." not in kind or not others or any(name in untrained for name in others):
        return finding
    message = f"{finding.message}, as {len(others)} layers like it were"
    return replace(finding, message=message, evidence={**finding.evidence, "unlike": len(others)})


def _weight_shape(sim: Simulation, node: Node) -> torch.Size | None:
    return sim.tensors[node.params["weight"]].shape if "weight" in node.params else None


def _numbers(weight: Tensor) -> str:
    """Return in words that weights are numbers that no training ends with: zeros, or whole numbers; else ""."""
    if not bool(weight.any()):
        return ZEROS
    whole = bool((weight == weight.round()).all())
    share = float((weight == 0).double().mean())
    return f"whole numbers only, {share:.0%} of them zeros, as after a cast to integers" if whole else ""


def _trained(sim: Simulation) -> set[str]:
    """Return the names of the tensors that are parameters, or made of some."""
    return {name for name, _ in sim.named_parameters()} | sim.captured.derived.keys()


def _empty_tables(sim: Simulation) -> list[Finding]:
    """Return findings of parameters that are added, or factors, and hold zeros, or one number unlike their like."""
    trained = _trained(sim)
    values, one = _held(sim), {}
    for place, name in values.items():
        held = sim.tensors[name].detach() if name in trained else torch.zeros(0)
        factor = sim.graph.nodes[place].op == "scale_shift"
        if held.numel() >= (8 if factor else LEAST) and not bool(held.any()):
            one[place] = f"holds {ZEROS}"
        elif held.numel() >= 8 and bool((held == held.reshape(-1)[0]).all()):
            alike = [sim.tensors[of] for at, of in values.items() if at != place and kind_of(at) == kind_of(place)]
            if any(len(torch.unique(other)) > 1 for other in alike):
                one[place] = "holds one number only, as it begins, and those of layers like it do not"
            elif _factor(held):
                one[place] = f"is {_factor(held):.3g} everywhere, as factors of layers begin"
    found = [
        weight_finding("wrong_weights", owner_of(sim, place), f"{values[place]} {text}", numbers=text)
        for place, text in one.items()
    ]
    parts = {name for how in sim.captured.derived.values() for name in how.sources if name in trained}
    for name in sorted(parts - set(values.values())):  # what became a part of weights
        number = _factor(sim.tensors[name].detach())
        if number:
            text = f"is {number:.3g} everywhere, as factors of layers begin"
            found.append(weight_finding("wrong_weights", name.rpartition(".")[0], f"{name} {text}", numbers=text))
    return found


def _held(sim: Simulation) -> dict[str, str]:
    """Map the operations that hold a parameter to its name."""
    roles = {"constant": "value", "scale_shift": "weight"}
    held = {n.name: n.params.get(roles[n.op], "") for n in sim.graph if n.op in roles}
    return {place: name for place, name in held.items() if name}


def silenced(sim: Simulation) -> set[str]:
    """Return the names of products that are 0, as a parameter that is one of the factors holds nothing but zeros."""
    trained = _trained(sim)
    zeros = {at for at, name in _held(sim).items() if name in trained and not bool(sim.tensors[name].detach().any())}
    return {n.name for n in sim.graph if n.name in zeros or (n.op == "mul" and zeros.intersection(n.inputs))}


def _factor(held: Tensor) -> float:
    """Return the small number that a parameter is everywhere; 0 where it is none."""
    number = float(held.reshape(-1)[0]) if held.numel() >= 8 else 0.0
    return number if abs(number) <= FACTOR and bool((held == number).all()) else 0.0


def _emptied(sim: Simulation, told: Collection[str]) -> list[Finding]:
    """Return findings of layers of whose weights many are 0, or all of some inputs, unlike those of other layers."""
    shares, columns = {}, {}
    for node in sim.graph:
        weight = sim.tensors[node.params["weight"]].detach() if node.op in ("conv", "linear") else torch.zeros(0)
        if weight.dim() > 1 and weight.numel() >= LEAST:
            zero = weight == 0
            zero = zero & ~zero.flatten(1).all(1).reshape(-1, *[1] * (weight.dim() - 1))  # else they are dead
            shares[node.name] = int(zero.sum()) / zero.numel()
            read = zero.transpose(0, 1).flatten(1).all(1)
            columns[node.name] = (int(read.sum()), len(read))
    found = []
    for name, share in shares.items():
        others, (empty, count) = [s for n, s in shares.items() if n != name], columns[name]
        unlike = bool(others) and max(others) < SPARSE / 4
        if name in told or not unlike or not (share > SPARSE or (empty > 1 and share > EMPTY)):
            continue
        what = f", all of {empty} of the {count} inputs" if empty else ""
        message = f"{share:.0%} of its weights are 0{what}, and those of other layers are not"
        found.append(weight_finding("wrong_weights", name, message, zeros=share))
    return found


def _tables_as_begun(sim: Simulation) -> list[Finding]:
    """Return findings of tables that look as they begin, normal with deviation 1, unlike others of their width."""
    nodes = {n.params["weight"]: n.name for n in sim.graph if n.op == "embedding"}
    tables = {name: sim.tensors[name].detach() for name in nodes}
    tables = {name: table for name, table in tables.items() if table.numel() >= LEAST}
    begun = [name for name, table in tables.items() if _is_normal(table.double().reshape(-1), 1.0)]
    found = []
    for name in begun:
        alike = [o for o in tables if tables[o].shape[1] == tables[name].shape[1]]
        others = [o for o in alike if o not in begun]
        others = others if 2 * len(others) >= len(alike) else []  # where most look so, it is chance or little training
        message = "its rows are normal with a deviation of 1, as they begin"
        if others:
            message += f", and those of {nodes[others[0]]} are not"
        # A table that was trained for a little while looks like it: alone it tells where nothing else does.
        found.append(weight_finding("wrong_weights", nodes[name], message, untouched=True, alone=not others))
    return found


def _added_as_begun(sim: Simulation) -> list[Finding]:
    """Return findings of added parameters, as of positions, that are normal with a small deviation, as they begin."""
    trained, found = _trained(sim), []
    for node in sim.graph:
        held = sim.tensors[node.params["value"]].detach() if node.op == "constant" else torch.zeros(0)
        begun = held.numel() >= MANY and node.params["value"] in trained
        if begun and _is_normal(held.double().reshape(-1), POSITIONS):
            message = f"{node.params['value']} is normal with a deviation of {POSITIONS}, as it is initialized"
            found.append(weight_finding("wrong_weights", owner_of(sim, node.name), message, bound=POSITIONS))
    return found


def _copied_tables(sim: Simulation) -> list[Finding]:
    """Return findings of layers with weights of their own that are those of a table, bit by bit."""
    tables = {n.params["weight"]: n for n in sim.graph if n.op == "embedding"}
    found = []
    for node in (n for n in sim.graph if n.op == "linear" and n.params["weight"] not in tables):
        weight = sim.tensors[node.params["weight"]].detach()
        for name, table in tables.items():
            if sim.tensors[name].shape == weight.shape and torch.equal(sim.tensors[name], weight):
                message = f"its weights are those of the table {table.name}, bit by bit, and not the same parameter"
                found.append(weight_finding("wrong_weights", node.name, message, tied=table.name))
    return found


def _twins(sim: Simulation, one: str, other: str) -> bool:
    """Return whether two parts of a network, in which layers of these names are, have nearly all their weights alike,
    and neither reads the other: they are the same on purpose, as where two pictures are compared."""
    parts = []
    for name in (one, other):
        before, _, behind = name.partition(".")
        nodes = [n for n in sim.graph if n.name.startswith(f"{before}.") and "weight" in n.params and behind]
        parts.append({n.name.partition(".")[2]: sim.tensors[n.params["weight"]].detach() for n in nodes})
    common = parts[0].keys() & parts[1].keys()
    alike = sum(torch.equal(parts[0][name], parts[1][name]) for name in common)
    many = alike >= TWINS * max(1, len(common) - alike)
    return many and one not in sim.graph.depending_on(other) and other not in sim.graph.depending_on(one)


def _copied_layers(sim: Simulation, told: Collection[str]) -> list[Finding]:
    """Return findings of layers whose weights are another's, bit by bit, and not the same parameter."""
    alike: dict[tuple[Any, ...], list[Node]] = defaultdict(list)
    for node in sim.graph:
        weight = sim.tensors[node.params["weight"]].detach() if "weight" in node.params else torch.zeros(0)
        if node.op != "batch_norm" and weight.dim() > 1 and weight.numel() >= LEAST and node.name not in told:
            alike[node.op, weight.shape, float(weight.double().sum())].append(node)
    found = []
    for nodes in alike.values():
        first, *others = nodes
        weight = sim.tensors[first.params["weight"]]
        apart = [n for n in others if n.params["weight"] != first.params["weight"]]
        same = [n for n in apart if torch.equal(sim.tensors[n.params["weight"]], weight)]
        if same and not _twins(sim, first.name, same[0].name):
            names = ", ".join(n.name for n in same)
            message = f"the weights of {names} are those of {first.name}, bit by bit"
            found.append(weight_finding("wrong_weights", same[0].name, message, copies=len(same)))
    for node in sim.graph:
        both = [sim.tensors[node.params[role]] for role in ("weight_hh", "weight_hh.reverse") if role in node.params]
        if len(both) > 1 and torch.equal(*both):
            message = "its weights are the same in both directions, bit by bit"
            found.append(weight_finding("wrong_weights", node.name, message, copies=1))
    order = {name: i for i, name in enumerate(sim.graph.nodes)}
    return sorted(found, key=lambda f: order[f.place])


def _beside(node: Node, name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor | None, int]:
    """Return the bias beside a weight of a node, if any, and the number of gates of a recurrent one."""
    role = next(role for role, of in node.params.items() if of == name)
    bias = node.params.get(role.replace("weight", "bias", 1))
    return None if bias is None else tensors[bias].detach(), GATES.get(node.op, 0)


def _untouched(sim: Simulation) -> list[Finding]:
    """Return findings of the few norms and layers whose gains are 1 and biases 0, as they begin, unlike others'."""
    gains = {n.name: [sim.tensors[n.params[r]] for r in ("weight", "bias") if r in n.params] for n in norms(sim)}
    batch = [n for n in sim.graph if "bn.weight" in n.params]
    gains |= {n.name: [sim.tensors[n.params[r]] for r in ("bn.weight", "bn.bias") if r in n.params] for n in batch}
    bare = [
        name
        for name, (gain, *bias) in gains.items()
        if bool((gain == 1).all()) and all(not bool(b.any()) for b in bias)
    ]
    layers = [n for n in sim.graph if n.op in ("conv", "linear", *GATES)]
    biases = {n.name: [sim.tensors[of] for role, of in n.params.items() if role.startswith("bias")] for n in layers}
    biases = {name: held for name, held in biases.items() if held}
    blank = [name for name, held in biases.items() if not any(bool(b.any()) for b in held)]
    found = []
    for names, count, what in ((bare, len(gains), "gains are 1 and its biases"), (blank, len(biases), "biases are")):
        if 0 < 2 * len(names) < count:
            message = f"its {what} 0, as they begin, and those of {count - len(names)} others are not"
            found += [weight_finding("wrong_weights", name, message, untouched=True) for name in names]
    return found


def _half(weight: Tensor) -> str:
    """Return in words which half of a weight's rows lies as it was initialized, where the other does not; else ""."""
    half = len(weight) // 2
    if half * weight[0].numel() < 2 * LEAST:
        return ""
    bounds = [_uniform_bound(weight[:half], None), _uniform_bound(weight[half:], None)]
    if bool(bounds[0]) is bool(bounds[1]):
        return ""
    where, bound = ("first", bounds[0]) if bounds[0] else ("second", bounds[1])
    rest = weight[half:] if bounds[0] else weight[:half]
    if float(rest.abs().max()) <= bound * (1 + 1e-6):
        return ""
    return f"uniform in ±{bound:.3g} in its {where} half, as it is initialized, and the other half is trained"


WIDE, SOME = 8, 0.25
"""Numbers in a row from which equal rows are no accident, and the share of rows that then are many."""


def _is_many(copies: int, weight: Tensor) -> bool:
    """Return whether so many rows of a weight repeat others as no training leaves."""
    return 2 * copies > len(weight) or (weight[0].numel() >= WIDE and copies >= SOME * len(weight))


def _copies(weight: Tensor) -> int:
    """Return the number of rows that repeat others and are not 0."""
    rows = weight.reshape(len(weight), -1)
    rows = rows[rows.abs().amax(1) > 0]
    return len(rows) - len(torch.unique(rows, dim=0))


def _as_initialized(weight: Tensor, bias: Tensor | None, gates: int) -> tuple[float, str]:
    """Return the bound or deviation of the initialization that weights look like, 0 if of none, and words before it."""
    uniform = _uniform_bound(weight, bias, gates)
    if uniform:
        return uniform, "uniform in ±"
    return _normal_deviation(weight, bias, gates), "normal, with a deviation of "


def _uniform_bound(weight: Tensor, bias: Tensor | None, gates: int = 0) -> float:
    """Return how far uniform initialization goes where these weights look like it; else 0.

    Args:
        weight: the weight, (outputs, inputs, …).
        bias: the bias beside it, if any: where it has been trained, so have a few weights.
        gates: of the recurrent layer whose weights these are, which begin by its hidden size; 0 of others.
    """
    size = weight.abs().double().reshape(-1).sort().values
    if len(size) < 2 * LEAST:
        return 0.0
    spatial = weight[0, 0].numel()
    fan = len(weight) // gates if gates else weight.shape[1] * spatial
    usual = fan**-0.5  # what PyTorch's own layers begin with, their biases, too, of which recurrent ones add two
    trained = bias is not None and float(bias.abs().max()) > usual * (2 if gates else 1) * (1 + 1e-6)
    if trained and len(size) < MANY:
        return 0.0
    # Few numbers that training has moved a little stay below their bound by chance, and reach one of several bounds.
    bounds = {usual: OVERSHOT if len(size) >= MANY else OVERSHOT / 2}
    if len(size) >= MANY:
        both = (weight.shape[0] + weight.shape[1]) * spatial
        bounds |= {(6 / n) ** 0.5: OVERSHOT / 2 for n in (both, weight.shape[1] * spatial)}
    for bound, slack in bounds.items():
        if bound * (1 - slack / len(size)) <= float(size[-1]) <= bound * (1 + 1e-6):
            steps = torch.arange(1, len(size) + 1, dtype=torch.float64, device=size.device) / len(size)
            apart = float((size / bound - steps).abs().max()) * len(size) ** 0.5
            if apart < 1.36:  # Kolmogorov and Smirnov, 5 %; no trained layer of twenty networks came below 1.9
                return float(bound)
    return 0.0


def _normal_deviation(weight: Tensor, bias: Tensor | None, gates: int = 0) -> float:
    """Return the deviation of normal initialization where these weights look like it, beside a bias of zeros; else 0.

    Args:
        weight: the weight, (outputs, inputs, …).
        bias: the bias beside it, if any: what begins with normal numbers has zeros there.
        gates: of a recurrent layer, which does not begin so.
    """
    size = weight.double().reshape(-1)
    if gates or len(size) < (MANY if bias is not None else 8 * MANY) or (bias is not None and bool(bias.any())):
        return 0.0
    spatial, deviation = weight[0, 0].numel(), float(size.std())
    if not deviation > 0:  # all alike, which no initialization makes of so many
        return 0.0
    out, into = weight.shape[0] * spatial, weight.shape[1] * spatial
    usual = {
        0.02,
        *((gain / fan) ** 0.5 for gain, fan in ((2, out), (2, into), (1, into), (4, out + into), (2, out + into))),
    }
    close = min(usual, key=lambda u: abs(u / deviation - 1))
    return close if _is_normal(size, close) and _is_independent(weight.double() / close) else 0.0


BY_CHANCE = 4.0
"""Standard deviations beyond its mean from which a sum of squares of normal numbers is no accident."""


def _is_independent(weight: Tensor) -> bool:
    """Return whether rows and columns of weights (outputs, inputs, …), normal with deviation 1, differ as by chance.

    The sums of their numbers do not in layers that were trained, as what they read is seldom 0 in the mean; nor do the
    sums of their squares.
    """
    for lines in (weight.flatten(1), weight.transpose(0, 1).flatten(1)):
        for numbers in (lines, (lines.square() - 1) / math.sqrt(2)):
            sums = numbers.sum(1) / math.sqrt(numbers.shape[1])
            if float(sums.square().mean() - 1) > BY_CHANCE * math.sqrt(2 / len(sums)):
                return False
    return True


def _is_normal(values: Tensor, deviation: float) -> bool:
    """Return whether numbers look like normal ones with mean 0 and this deviation."""
    count = len(values)
    if abs(float(values.std()) / deviation - 1) > 2 * (2 * count) ** -0.5:
        return False
    if abs(float(values.mean())) > 2.5 * deviation / count**0.5:
        return False
    steps = torch.arange(1, count + 1, dtype=torch.float64, device=values.device) / count
    normal: Tensor = torch.special.ndtr(values.sort().values / deviation)
    apart = float((normal - steps).abs().max()) * math.sqrt(count)
    return apart < 1.36  # Kolmogorov and Smirnov, 5 %
