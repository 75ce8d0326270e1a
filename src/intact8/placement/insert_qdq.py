"""Put quantize and dequantize nodes where integers and floats meet: one per tensor, shared by all its readers."""

from __future__ import annotations

from dataclasses import replace

from intact8.capture.graph import Graph, Node, unique
from intact8.placement.partition import Partition


def insert_qdq(graph: Graph, integer: Partition) -> tuple[Graph, set[str]]:
    """Return the graph with transitions, and the names of all nodes whose output is integers.

    New nodes are called ``<tensor>.quantize`` and ``<tensor>.dequantize``; ``dtype`` keeps naming the real numbers
    a tensor stands for.
    """
    builder = _Builder(graph, set(integer.integer - integer.dequantized))
    for node in graph:
        wanted = node.name in integer.integer
        # Indices and masks are not real numbers: they go into integer operations as they are.
        numbers = [wanted and graph.nodes[i].dtype == "float32" for i in node.inputs]
        if node.name in integer.dequantized:  # a fused residual is added to the float32 result
            numbers[1:] = [False] * len(numbers[1:])
        inputs = [builder.quantized(i) if q else builder.real(i) for i, q in zip(node.inputs, numbers, strict=True)]
        builder.add(
            replace(node, inputs=inputs, attrs=dict(node.attrs), params=dict(node.params), source=list(node.source))
        )
    outputs = [builder.real(name) for name in graph.outputs]
    return replace(graph, nodes=builder.nodes, inputs=list(graph.inputs), outputs=outputs), builder.integer


class _Builder:
    def __init__(self, graph: Graph, integer: set[str]) -> None:
        self.taken, self.integer = set(graph.nodes), integer
        self.nodes: dict[str, Node] = {}
        self._quantized: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def add(self, node: Node) -> str:
        self.nodes[node.name] = node
        return node.name

    def quantized(self, name: str) -> str:
        """Return the tensor ``name`` as integers."""
        if name in self.integer:
            return name
        if name not in self._quantized:
            origin = self.nodes[name]
            made = self._node(f"{name}.quantize", "quantize", origin)
            if origin.op == "constant":
                # Others read it as float; its integers are a second constant rather than work for every run.
                made = replace(made, op="constant", inputs=[], params=dict(origin.params), source=[origin.name])
            self.integer.add(self.add(made))
            self._quantized[name] = made.name
        return self._quantized[name]

    def real(self, name: str) -> str:
        """Return the tensor ``name`` as real numbers."""
        if name not in self.integer:
            return name
        if name not in self._real:
            self._real[name] = self.add(self._node(f"{name}.dequantize", "dequantize", self.nodes[name]))
        return self._real[name]

    def _node(self, name: str, op: str, origin: Node) -> Node:
        name = unique(name, self.taken)
        self.taken.add(name)
        return Node(name, op, [origin.name], {}, {}, origin.module, origin.module_type, origin.shape, origin.dtype)
