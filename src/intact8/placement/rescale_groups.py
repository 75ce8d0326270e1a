"""Channels that may be rescaled: integer tensors with one factor per channel, which their readers take out again.

Dividing channel j of a tensor by s_j costs nothing where the layer before it has a weight scale per output channel, a
layer norm has a weight, or a constant is all there is; multiplying by s_j again costs nothing in the weights that read
it, and one float product where a float operation does. In between it passes through everything that keeps channels
apart: sums, moves, means over other dimensions. Channels whose ranges differ by orders of magnitude, as those of
transformers do (Bondarenko et al. 2021), can so share one scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intact8.arithmetic.dimensions import Dim
from intact8.capture.graph import Graph, Node, unique
from intact8.capture.operations import FLOAT_KINDS, HEAVY
from intact8.opset.op import Op, Tensor
from intact8.recipe.scheme import Scheme


@dataclass
class RescaleGroup:
    """Tensors with one factor per channel.

    Attributes:
        name: their first node, which the factor is named after.
        size: how many channels.
        axes: node → dimension of the channels.
        divided: nodes whose own numbers take the factor: layers, constants, layer norms.
        layers: linear maps whose weights give it back.
        constants: float constants that hold it, for products and quotients.
        observed: nodes whose values tell the ranges.
    """

    name: str
    size: int
    axes: dict[str, int] = field(default_factory=dict)
    divided: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)


def homogeneous(act: Mapping[str, Any] | None) -> bool:
    """Return whether an activation commutes with positive factors: none, ReLU, leaky ReLU, PReLU."""
    if act is None or act["kind"] in ("leaky_relu", "prelu"):
        return True
    return bool(act["kind"] == "clamp" and act.get("min") in (None, 0.0) and act.get("max") is None)


def bounded(act: Mapping[str, Any] | None) -> bool:
    """Return whether an activation is a ReLU with an upper limit: ReLU6."""
    return act is not None and act["kind"] == "clamp" and act.get("min") == 0.0 and act.get("max") is not None


def reads_all(node: Node) -> bool:
    """Return whether a convolution has a weight for every pair of input and output channels."""
    return node.attrs["groups"] == 1 and not node.attrs["transposed"]


def find_rescale_groups(
    graph: Graph, schemes: Mapping[str, Scheme], weights: Mapping[str, Scheme], *, smooth: bool, equalize: bool
) -> list[RescaleGroup]:
    """Find the tensors of a placed graph that may have factors, and add the float nodes that undo them.

    Args:
        graph: placed; changed.
        schemes: node → scheme of its activation, for every node on integers.
        weights: node → scheme of its weight.
        smooth: where linear maps read them (SmoothQuant).
        equalize: where only float operations do.
    """
    users, seen, found = graph.users(), set[str](), list[RescaleGroup]()
    for node in list(graph):
        axis = _seed(node, users, graph, weights)
        if axis is None or node.name in seen or node.name not in schemes:
            continue
        search = _Search(graph, users, schemes, weights)
        whole = search.grow(node, axis)
        seen |= set(search.axes)
        layers = list(dict.fromkeys(search.layers))
        makes = any(graph.nodes[n].op in HEAVY for n in search.makers)
        if whole and (smooth if layers else equalize and makes):
            order = [n for n in graph.nodes if n in search.axes]
            size = node.shape[axis]
            assert isinstance(size, int)
            channels = RescaleGroup(order[0], size, search.axes, layers=layers)
            channels.observed = [n for n in order if n in search.makers or graph.nodes[n].op in ("add", "sub")]
            found.append(channels)
            _rewire(graph, users, channels, search)
    if found:
        _sort(graph)
    return found


def _seed(node: Node, users: Mapping[str, list[str]], graph: Graph, weights: Mapping[str, Scheme]) -> int | None:
    """Return the dimension of a maker's channels."""
    if node.op in HEAVY and node.name in weights:
        return len(node.shape) - 1 if node.op == "linear" else 1
    reads = any(graph.nodes[u].op == "linear" for u in users[node.name])
    return len(node.shape) - 1 if node.op == "quantize" and reads else None


class _Search:
    """What is connected to one tensor by operations that keep channels apart."""

    def __init__(
        self,
        graph: Graph,
        users: Mapping[str, list[str]],
        schemes: Mapping[str, Scheme],
        weights: Mapping[str, Scheme],
    ) -> None:
        self.graph, self.users, self.schemes, self.weights = graph, users, schemes, weights
        self.axes: dict[str, int] = {}
        self.makers: list[str] = []
        self.layers: list[str] = []
        self.exits: list[str] = []

    def grow(self, node: Node, axis: int) -> bool:
        """Return whether everything connected can take a factor."""
        size = node.shape[axis]
        whole, todo = isinstance(size, int) and size > 1, [(node, axis)]
        while todo:
            node, axis = todo.pop()
            if node.name in self.axes:
                whole &= self.axes[node.name] == axis
                continue
            self.axes[node.name] = axis
            scheme = self.schemes.get(node.name)
            whole &= scheme is not None and scheme.fixed is None and node.shape[axis] == size
            whole &= homogeneous(node.attrs.get("act")) and node.name not in self.graph.outputs
            if not whole:
                continue
            before, after = self._before(node, axis), self._after(node, axis)
            if before is None or after is None:
                whole = False
                continue
            todo += [*before, *after]
        return whole

    def _before(self, node: Node, axis: int) -> list[tuple[Node, int]] | None:
        """Return what feeds ``node``, where it makes nothing itself."""
        makes = node.op in ("quantize", "constant")
        if node.op in HEAVY and node.name in self.weights:
            makes = not node.attrs.get("transposed") and self.weights[node.name].granularity == "per_channel"
            if not makes:
                return None
            self.makers.append(node.name)
            return [(self.graph.nodes[name], axis) for name in node.inputs[1:]]  # a fused residual
        if makes:
            if node.op == "quantize" and axis != len(node.shape) - 1:
                return None
            self.makers.append(node.name)
            return []
        found = []
        for name in node.inputs[:1] if node.op == "expand" else node.inputs:
            x = self.graph.nodes[name]
            at = next((a for a in range(len(x.shape)) if carried(node, x, a) == axis), None)
            if at is None:
                return None
            found.append((x, at))
        return found

    def _after(self, node: Node, axis: int) -> list[tuple[Node, int]] | None:
        """Return what reads ``node`` and keeps its channels."""
        found = []
        for name in self.users[node.name]:
            user = self.graph.nodes[name]
            if user.op == "expand" and user.inputs[0] != node.name:
                continue  # it only asks for the size of the batch
            if user.op == "dequantize":
                if name in self.graph.outputs or axis != len(node.shape) - 1:
                    return None
                self.exits.append(name)
            elif user.op in HEAVY and user.inputs[0] != node.name:
                found.append((user, axis))
            elif user.op == "linear" and user.name in self.weights:
                if axis != len(node.shape) - 1 or node.name in user.inputs[1:]:
                    return None
                self.layers.append(name)
            elif user.op == "conv" and user.name in self.weights and axis == 1 and reads_all(user):
                self.layers.append(name)
            else:
                at = carried(user, node, axis)
                if at is None:
                    return None
                found.append((user, at))
        return found


def carried(node: Node, x: Node, axis: int) -> int | None:
    """Return the dimension of ``node`` that holds dimension ``axis`` of its input ``x``; None where it is not kept
    whole."""
    at = _position(node, x, axis)
    return at if at is not None and 0 <= at < len(node.shape) and node.shape[at] == x.shape[axis] else None


def _position(node: Node, x: Node, axis: int) -> int | None:
    if node.op in ("dropout", "requantize"):
        return axis
    if node.op == "reshape":
        return _reshaped(node, x, axis)
    if node.op == "permute":
        return int(node.attrs["dims"].index(axis))
    kind, attrs = FLOAT_KINDS.get(node.op), node.attrs
    pads_numbers = node.op == "pad" and attrs["value"] != 0 and any(map(any, attrs["pads"]))
    if kind is None or not (kind.moves or kind.homogeneous) or pads_numbers or attrs.get("dims") == []:
        return None
    op, tensor = Op(node.name, kind.name, (), attrs), Tensor(x.name, x.dtype, x.shape)
    if kind.works_along(op, tensor, axis):
        return None
    if not attrs.get("keepdim", True):
        return axis - len([d for d in attrs["dims"] if d < axis])
    return len(node.shape) - len(x.shape) + axis


def _reshaped(node: Node, x: Node, axis: int) -> int | None:
    behind = x.shape[axis + 1 :]
    for at in reversed(range(len(node.shape))):
        here = node.shape[at + 1 :]
        same = behind == here or _product(behind) == _product(here) != 0
        if node.shape[at] == x.shape[axis] and same:
            return at
    return None


def _product(sizes: tuple[Dim, ...]) -> int:
    """Return the product of sizes, 0 where one is not known."""
    return math.prod(n if isinstance(n, int) else 0 for n in sizes)


def _rewire(graph: Graph, users: Mapping[str, list[str]], channels: RescaleGroup, search: _Search) -> None:
    """Put factors where values are made, and their inverse where float operations read them."""
    for name in search.makers:
        node = graph.nodes[name]
        if node.op != "quantize":
            channels.divided.append(name)
            continue
        norm = _norm_before(graph, users, node)
        if norm is not None:
            channels.divided.append(norm)
            continue
        x = graph.nodes[node.inputs[0]]
        made = _combine(graph, channels, f"{name}.divide", "div", x)
        node.inputs = [made]
    for name in search.exits:
        node, readers = graph.nodes[name], [graph.nodes[u] for u in users[name]]
        made = _combine(graph, channels, f"{name}.multiply", "mul", node)
        for reader in readers:
            reader.inputs = [made if i == name else i for i in reader.inputs]


def _norm_before(graph: Graph, users: Mapping[str, list[str]], quantize: Node) -> str | None:
    """Return the layer norm over the last dimension whose result nobody but ``quantize`` reads."""
    node = quantize
    while True:
        node = graph.nodes[node.inputs[0]]
        if len(users[node.name]) > 1 or node.name in graph.outputs:
            return None
        if node.op == "layer_norm":
            return node.name if len(node.attrs["shape"]) == 1 else None
        if node.op != "dropout":
            return None


def _combine(graph: Graph, channels: RescaleGroup, name: str, op: str, x: Node) -> str:
    """Add ``op`` of ``x`` and the factor."""
    constant = _node(graph, f"{name}.factor", "constant", [], x)
    graph.nodes[constant].shape = (channels.size,)
    channels.constants.append(constant)
    return _node(graph, name, op, [x.name, constant], x)


def _node(graph: Graph, name: str, op: str, inputs: list[str], like: Node) -> str:
    name = unique(name, graph.nodes)
    graph.nodes[name] = Node(name, op, inputs, {}, {}, like.module, like.module_type, like.shape, like.dtype)
    return name


def _sort(graph: Graph) -> None:
    """Put every node behind its inputs, otherwise as it was, new ones where they are first needed."""
    ordered: dict[str, Node] = {}

    def put(name: str) -> None:
        stack = [name]
        while stack:
            top = stack[-1]
            waiting = [i for i in graph.nodes[top].inputs if i not in ordered]
            if waiting and top not in ordered:
                stack += waiting
            else:
                ordered.setdefault(top, graph.nodes[top])
                stack.pop()

    for name in graph.nodes:
        put(name)
    graph.nodes = ordered
