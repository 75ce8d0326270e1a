"""The repair with which a batch norm sees what it saw in training."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.channel_repairs import without_norm
from intact8.diagnose.doctor.network_checks import STALE, distance, off_by
from intact8.diagnose.doctor.repair import Repair
from intact8.diagnose.doctor.repairs import repairs, usual_function
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import word_of
from intact8.diagnose.doctor.trials import DISCRETE, SCREENED, answers_with
from intact8.diagnose.doctor.wiring_repairs import shortcuts
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation


def fitting(sim: Simulation, samples: Samples, place: str) -> tuple[Repair, float, float] | None:
    """Return the repair with which a batch norm's inputs are those of training again, how far off they were and are.

    Statistics of a batch norm are a print of what came before it in training, labels or not. Only what lies between it
    and the batch norms before it is put right, and no scale, as other statistics would do the same.

    Args:
        sim: a simulation of the network.
        samples: the samples.
        place: the layer with the batch norm.

    Returns:
        None where no repair fits.
    """
    node = sim.graph.nodes.get(place)
    if node is None or node.op not in AFFINE or "bn" not in node.attrs:
        return None
    before_norm = without_norm(node) if without_norm(node).params else sim.graph.nodes[node.inputs[0]]
    near = _since_batch_norm(sim.graph, node)
    found = [r for r in repairs(sim, samples) if r.cause in DISCRETE and near & r.names()]
    found = [r for r in found if r.node.name != place or r.cause == "wrong_weights"]
    found += shortcuts(sim, [name for name in sim.graph.nodes if name in near and name != place])
    seen_mean, seen = (sim.tensors[node.params[f"bn.running_{s}"]].detach().double() for s in ("mean", "var"))

    def off(x: Tensor) -> float:
        rows = x.double().movedim(1, 0).flatten(1)
        mean, variance = rows.mean(1), rows.var(1, correction=0)
        return off_by(*distance(mean, variance, seen_mean, seen, float(node.attrs["bn"]["eps"])))

    before, answers = answers_with(sim, samples.first(SCREENED), found, last=before_norm)
    found, given = (
        [r for r, y in zip(found, answers, strict=True) if y is not None],
        [y for y in answers if y is not None],
    )
    usual = usual_function(sim.graph)
    if usual:
        table = replace(before_norm, op="table", attrs={"chain": usual}, params={}, inputs=[place])
        found.append(Repair("wrong_setting", f"{word_of(usual)} comes before its batch norm", node))
        given.append(FloatExecutor(sim.tensors)(table, [before]))
    now, (best, which) = off(before), min(((off(x), i) for i, x in enumerate(given)), default=(math.inf, 0))
    return (found[which], now, best) if best < STALE and best < now / 3 else None


def _since_batch_norm(graph: Graph, node: Node) -> set[str]:
    """Return the names of a layer and of what it is computed from, to the batch norms before it and with them."""
    found, pending = {node.name}, list(node.inputs)
    while pending:
        before = graph.nodes[pending.pop()]
        if before.name not in found:
            found.add(before.name)
            pending += [] if "bn" in before.attrs else before.inputs
    return found
