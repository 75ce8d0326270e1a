"""Products of integers in ONNX graphs whose results are float: MatMulInteger of a stored matrix and of what
DynamicQuantizeLinear gave, or of a tensor with a grid."""

from __future__ import annotations

import numpy as np
import torch

from intact8.errors import InputError
from intact8.migration.grids import WeightGrid

from .onnx_graph import Array, Node
from .onnx_layers import add_layer, bias_behind, transposed
from .onnx_operators import OPERATORS
from .onnx_reader import Reader, Translate


def _quantize(r: Reader, node: Node) -> None:
    """Remember the integers, the scale and the zero point of a tensor."""
    for role, name in zip(("integers", "scale", "zero"), node.outputs, strict=True):
        r.dynamic[name] = role, node.inputs[0], None


def _matmul(r: Reader, node: Node) -> None:
    """Remember the sums of integers and a stored matrix, and the matrix."""
    x, w, *rest = node.inputs
    role, source, _ = r.dynamic.get(x, ("", "", None))
    stored = w in r.known and r.known[w].ndim == 2
    if stored and r.name(x) in r.grids and _is_scaled(r, node):
        grid = r.grids[r.name(x)]
        given = r.constant(node, 2)
        zero = np.zeros(1) if given is None else given.reshape(-1)
        if grid.scale.size == 1 and np.array_equal(zero.astype(np.int64), grid.zero_point):
            columns = r.constant(node, 3) if len(rest) > 1 else None
            r.dynamic[node.outputs[0]] = "sums on a grid", r.name(x), (r.known[w], columns, node)
            return
    if role != "integers" or not stored:
        what, why = (
            "MatMulInteger of other tensors",
            "a quantized tensor times a stored matrix is known, where the sums are scaled at once",
        )
        raise InputError(what, where=node.name, why=why)
    r.dynamic[node.outputs[0]] = "sums", source, (r.known[w], r.constant(node, 3) if len(rest) > 1 else None, node)


def _is_scaled(r: Reader, product: Node) -> bool:
    """Return whether sums of integers are made floats and multiplied by stored scales at once."""
    casts = r.readers.get(product.outputs[0], [])
    if len(casts) != 1 or casts[0].kind != "Cast":
        return False
    readers = r.readers.get(casts[0].outputs[0], [])
    return len(readers) == 1 and readers[0].kind == "Mul" and any(name in r.known for name in readers[0].inputs)


def _cast(r: Reader, node: Node) -> None:
    if node.inputs[0] in r.dynamic:
        r.dynamic[node.outputs[0]] = r.dynamic[node.inputs[0]]
    else:
        r.plain(node, OPERATORS["Cast"])


def _mul(r: Reader, node: Node) -> None:
    """Multiply scales with each other, and sums by them: that is where the layer ends."""
    roles = {r.dynamic[name][0]: name for name in node.inputs if name in r.dynamic}
    known = [name for name in node.inputs if name in r.known]
    if "scale" in roles and known:
        r.dynamic[node.outputs[0]] = "scales", r.dynamic[roles["scale"]][1], r.known[known[0]]
    elif roles.keys() == {"sums", "scales"}:
        _, source, (weight, zero, product) = r.dynamic[roles["sums"]]
        _layer(r, node, product, source, weight, np.asarray(r.dynamic[roles["scales"]][2]), zero)
    elif "sums on a grid" in roles and known:
        _, source, (weight, zero, product) = r.dynamic[roles["sums on a grid"]]
        scale = r.known[known[0]].astype(np.float64) / r.grids[source].scale
        _layer(r, node, product, source, weight, scale, zero, dynamic=False)
    elif roles:
        raise InputError("a product with integers that are quantized while it runs", where=node.name)
    else:
        r.plain(node, OPERATORS["Mul"])


def _layer(
    r: Reader, node: Node, product: Node, x: str, weight: Array, scale: Array, zero: Array | None, dynamic: bool = True
) -> None:
    """Add a linear layer of a matrix (in, out) with one scale, or one per column."""
    scale = scale.astype(np.float64).reshape(-1)
    zero = np.zeros(1) if zero is None else zero.reshape(-1)
    zero = np.broadcast_to(zero, scale.shape).astype(np.int64)
    grid = transposed(WeightGrid(product.name, weight, scale, zero, 1 if scale.size > 1 else 0))
    assert grid is not None
    layer = Node(product.name, "Gemm", (), node.outputs)
    bias = bias_behind(r, node, weight.shape[1], 0)
    name = add_layer(r, layer, torch.nn.functional.linear, x, grid.values(), bias, grid)
    if dynamic:
        r.described.dynamic.add(name)


DYNAMIC: dict[str, Translate] = {
    "DynamicQuantizeLinear": _quantize,
    "MatMulInteger": _matmul,
    "Cast": _cast,
    "Mul": _mul,
}
"""Operator → what translates it."""
