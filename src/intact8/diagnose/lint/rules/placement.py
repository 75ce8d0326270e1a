"""IQ2xx: which part computes on integers, which in float, and what lies between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import MODEL, PROGRAM, SIMULATION, TORCH_AO, Hit, first_of, rule
from intact8.diagnose.lint.views import GraphView, NodeView


@rule("IQ201", "warning")
def left_float(subject: Any) -> Iterator[Hit]:
    """A layer that does most of the arithmetic stays float, and nobody asked for it.

    Convolutions, linear maps and products of two activations are what int8 is for. In intact8 they stay float where
    they have no integer form yet; in torch.ao where a submodule has no ``qconfig``, or has been given none by mistake.
    What a recipe leaves float on purpose is not reported.

    Remedy: rewrite it with operations that have an integer form, or say that float is meant: overrides={'…': None}
    """
    if subject.kind == TORCH_AO:
        remedy = "give it a qconfig before prepare; if float is meant, ignore the rule"
        for path in subject.float_layers if subject.stage != "fused" else ():
            yield Hit("nothing quantizes this layer", module=path, remedy=remedy)
        return
    for node in subject.graph.nodes:
        if node.heavy and node.domain == "float" and not node.wanted:
            yield Hit(f"{node.op} stays float: {node.reason or 'unknown reason'}", module=node.module, node=node.name)


@rule("IQ202", "warning")
def float_island(subject: Any) -> Iterator[Hit]:
    """Float operations lie between integer layers, in the hot path.

    Data goes from integers to floats and back; both conversions touch every element, break fusion, and the float
    operations run at float speed. Float operations at the very beginning or end (a softmax behind the last layer) are
    not reported.

    Remedy: look for an operation with an integer form, or move it behind the last quantized layer
    """
    graph = subject.graph
    after, before = _below_integers(graph), _above_integers(graph)
    for island in _islands(graph):
        computing = [n for n in island if not n.moves]
        if computing and any(n.name in after for n in island) and any(n.name in before for n in island):
            operations = f"{len(computing)} float operation{'s' * (len(computing) > 1)}"
            reason = next((f"; {n.reason}" for n in computing if n.reason), "")
            listed = first_of([f"{n.name} ({n.op})" for n in computing], most=4)
            message = f"{operations} between integer layers: {listed}{reason}"
            yield Hit(message, computing[0].module, computing[0].name, data={"nodes": [n.name for n in island]})


@rule("IQ203", "warning")
def needless_transition(subject: Any) -> Iterator[Hit]:
    """Integers are dequantized and quantized again, and nothing in between computes.

    Reshaping, transposing and max pooling only move values; they give the same integers without the round trip, which
    costs two passes over the tensor and, where the two grids differ, accuracy.

    Remedy: let what lies between stay on integers: remove the override (or the stubs) around it
    """
    graph = subject.graph
    users = graph.users()
    for node in graph.nodes:
        if node.domain != "dequantize" or node.name in graph.outputs:
            continue
        between, ends = _through_moves(node, users, graph.outputs)
        if ends and all(end.domain == "quantize" for end in ends):
            names = ", ".join(n.name for n in between) or "nothing"
            data = {"between": [n.name for n in between], "quantize": [end.name for end in ends]}
            yield Hit(f"dequantized and quantized again with {names} in between", node.module, node.name, data=data)


@rule("IQ204", "warning")
def activation_not_fused(subject: Any) -> Iterator[Hit]:
    """A ReLU (or ReLU6, clamp) has a rounding of its own instead of being part of the layer before it.

    Before a ReLU half of the range is negative and thrown away, so the layer's result is rounded with half of the
    levels; and the tensor is read and written once more. intact8 fuses by the graph, and cannot where another operation
    reads the value before the activation. torch.ao's eager mode fuses by name, and silently does not where a module
    was renamed or forgotten.

    Remedy: read the layer's result only through the activation; in torch.ao add the pair to the list of fuse_modules
    """
    for node in subject.graph.nodes:
        if node.activation and node.domain in ("integer", "float"):
            unfusable = subject.kind == TORCH_AO and node.op == "ReLU6"
            remedy = "torch.ao fuses no ReLU6: use ReLU, or quantize with intact8" if unfusable else ""
            yield Hit(f"{node.op} is not fused into the layer before it", node.module, node.name, remedy=remedy)


@rule("IQ205", "note", MODEL, SIMULATION, TORCH_AO)
def batch_norm_not_folded(subject: Any) -> Iterator[Hit]:
    """A batch norm costs a pass of its own, because it is folded into no convolution or linear layer.

    A batch norm behind (or, without padding, before) a layer is folded into its weights at no cost. One that stands
    alone becomes a multiplication per channel with one more rounding; in torch.ao it runs as a quantized batch norm, or
    in float.

    Remedy: put the batch norm right behind a convolution that nobody else reads; in torch.ao add it to fuse_modules
    """
    for node in subject.graph.nodes:
        if node.batch_norm:
            yield Hit("batch norm is not folded into a layer", node.module, node.name)


@rule("IQ206", "error", SIMULATION, PROGRAM)
def nothing_quantized(subject: Any) -> Iterator[Hit]:
    """No operation computes on integers: the result is the float model with a larger wrapping.

    Usually an override whose pattern matches more than was meant.

    Remedy: take the override back that keeps everything float, or leave the model as it is
    """
    computing = [n for n in subject.graph.nodes if n.domain in ("integer", "float", "dynamic") and not n.moves]
    if computing and all(n.domain == "float" for n in computing):
        yield Hit(f"all {len(computing)} operations compute in float", node=computing[0].name)


def _through_moves(
    start: NodeView, users: dict[str, list[NodeView]], outputs: frozenset[str]
) -> tuple[list[NodeView], list[NodeView]]:
    """Return the moves behind ``start`` and the readers of their results (``start`` for an output of the network)."""
    between, ends, todo = [], [], list(users[start.name])
    while todo:
        node = todo.pop()
        if not node.moves or node.domain not in ("float", "integer"):
            ends.append(node)
            continue
        between.append(node)
        if node.name in outputs:
            ends.append(start)
        todo += users[node.name]
    return between, ends


def _islands(graph: GraphView) -> list[list[NodeView]]:
    """Return the groups of connected float operations, each in execution order."""
    groups: list[list[NodeView]] = []
    for node in graph.nodes:
        if node.domain != "float":
            continue
        touching = [g for g in groups if any(n.name in node.inputs for n in g)]
        groups = [g for g in groups if g not in touching]
        groups.append([n for g in touching for n in g] + [node])
    return groups


def _below_integers(graph: GraphView) -> set[str]:
    """Return the names of float operations that depend on an integer layer with weights."""
    out: set[str] = set()
    for node in graph.nodes:
        if (node.heavy and node.domain == "integer") or any(i in out for i in node.inputs):
            out.add(node.name)
    return {n.name for n in graph.nodes if n.name in out and n.domain == "float"}


def _above_integers(graph: GraphView) -> set[str]:
    """Return the names of operations that an integer layer with weights depends on."""
    users, out = graph.users(), set()
    for node in reversed(list(graph.nodes)):
        if any((u.heavy and u.domain == "integer") or u.name in out for u in users[node.name]):
            out.add(node.name)
    return out
