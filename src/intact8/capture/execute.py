"""Run a graph in float32. Everything that changes graphs is compared with this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.errors import CaptureError, InputError

from .graph import Graph


def run_float(graph: Graph, tensors: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Evaluate every node of ``graph`` in float with torch.

    Args:
        graph: a graph without ``quantize`` and ``dequantize`` nodes.
        tensors: parameters, buffers and constants by name, as in ``Captured.tensors()``.
        inputs: one tensor per graph input, in the order of ``graph.inputs``.

    Returns:
        Every node's output by name.

    Raises:
        InputError: the number of inputs is not the graph's.
        CaptureError: a node has no float form, or names a parameter that ``tensors`` lacks.

    Example:
        >>> import torch
        >>> from intact8.capture.graph import Node
        >>> x = Node("x", "input", shape=(None,))
        >>> graph = Graph({"x": x, "relu": Node("relu", "relu", ["x"])}, ["x"], ["relu"])
        >>> run_float(graph, {}, [torch.tensor([-1.0, 2.0])])["relu"]
        tensor([0., 2.])
    """
    if len(inputs) != len(graph.inputs):
        raise InputError(
            f"{len(inputs)} inputs given, {len(graph.inputs)} needed", remedy=f"give {', '.join(graph.inputs)}"
        )
    values = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.sized(inputs):
        if node.op == "input":
            continue
        if node.op not in FLOAT_OPS:
            raise CaptureError(f"operation {node.op!r} has no float form", where=node.name)
        missing = [name for name in node.params.values() if name not in tensors]
        if missing:
            raise CaptureError(f"no tensor named {missing[0]!r}", where=node.name, remedy="pass Captured.tensors()")
        params = {role: tensors[name] for role, name in node.params.items()}
        values[node.name] = FLOAT_OPS[node.op](node.attrs, [values[name] for name in node.inputs], params)
    return values
