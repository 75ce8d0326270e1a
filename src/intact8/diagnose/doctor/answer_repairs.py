"""Repairs of answers: in another order or form, or of another place than that which the labels count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, Compute, Repair, rows_reordered
from intact8.diagnose.doctor.samples import UNKNOWN, Samples, padded
from intact8.diagnose.doctor.targets import Targets
from intact8.diagnose.doctor.wiring_repairs import STEPS
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.simulation import Simulation

BOXES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "corners, and labels middle and size": lambda a, b: ((a + b) / 2, b - a),
    "middle and size, and labels corners": lambda a, b: (a - b / 2, a + b / 2),
    "a corner and size, and labels both corners": lambda a, b: (a, a + b),
    "both corners, and labels a corner and size": lambda a, b: (a, b - a),
    "a corner and size, and labels middle and size": lambda a, b: (a + b / 2, b),
    "middle and size, and labels a corner and size": lambda a, b: (a - b / 2, b),
    "x before y, and labels y before x": lambda a, b: (a.flip(-1), b.flip(-1)),
}
"""Forms of boxes that are taken for each other, (…, 2) and (…, 2), and what makes one of the other."""


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
        yield Repair(INPUTS_ARE_WRONG, text, node, rows_reordered(node, order, sim.tensors))
        return
    text = f"its outputs come in the order {', '.join(map(str, order.tolist()[:16]))}"
    yield Repair("wrong_weights", text, node, rows_reordered(node, order, sim.tensors))


def _are_next(samples: Samples, targets: Targets) -> bool:
    """Return whether labels are the next of an input."""
    for at, x in enumerate(samples.batches[0].inputs):
        if x.dim() == 2 and not x.is_floating_point() and x.dtype != torch.bool:
            given = padded([batch.inputs[at] for batch in samples], UNKNOWN).cpu().long()
            if given.shape == targets.values.shape and torch.equal(given[:, 1:], targets.values[:, :-1]):
                return True
    return False


def boxes_otherwise(sim: Simulation, targets: Targets) -> Iterator[Repair]:
    """Yield outputs of four numbers each as boxes of another form, as data sets write them in several."""
    compute = FloatExecutor(sim.tensors)

    def turned(node: Node, form: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Compute:
        return lambda inputs, _: torch.cat(form(*torch.split(compute(node, inputs), 2, -1)), -1)

    for node in (sim.graph.nodes[name] for name in dict.fromkeys(sim.graph.outputs)):
        if not targets.classes and len(node.shape) > 1 and node.shape[-1] == 4 and node.dtype == "float32":
            for text, form in BOXES.items():
                yield Repair(INPUTS_ARE_WRONG, f"its boxes are {text}", node, compute=turned(node, form))


def answers_moved(sim: Simulation, samples: Samples, output: Tensor, targets: Targets) -> Iterator[Repair]:
    """Yield answers about a sequence that belong to the place before, or behind: labels may be moved against inputs.

    Where labels are the next inputs, those before would be the inputs themselves.
    """
    places = targets.values.shape[1:]
    if not targets.classes or targets.yes or len(places) != 1 or places[0] < STEPS or _are_next(samples, targets):
        return
    node, compute = sim.graph.nodes[sim.graph.outputs[0]], FloatExecutor(sim.tensors)
    axis = 2 if output.shape[2:] == places else 1

    def moved(by: int) -> Compute:
        return lambda inputs, _: compute(node, inputs).roll(by, axis)

    for by, where in ((1, "behind"), (-1, "before")):
        yield Repair(INPUTS_ARE_WRONG, f"its answers belong to the place {where} theirs", node, compute=moved(by))
