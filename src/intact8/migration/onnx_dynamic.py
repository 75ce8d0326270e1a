"""Products in ONNX graphs whose activations are quantized while they run: DynamicQuantizeLinear and MatMulInteger."""

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
    if role != "integers" or w not in r.known or r.known[w].ndim != 2:
        what, why = "MatMulInteger of other tensors", "a tensor of DynamicQuantizeLinear and a stored matrix are known"
        raise InputError(what, where=node.name, why=why)
    r.dynamic[node.outputs[0]] = "sums", source, (r.known[w], r.constant(node, 3) if len(rest) > 1 else None, node)


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
    elif roles:
        raise InputError("a product with integers that are quantized while it runs", where=node.name)
    else:
        r.plain(node, OPERATORS["Mul"])


def _layer(r: Reader, node: Node, product: Node, x: str, weight: Array, scale: Array, zero: Array | None) -> None:
    """Add a linear layer of a matrix (in, out) with one scale, or one per column."""
    scale = scale.astype(np.float64).reshape(-1)
    zero = np.zeros(1) if zero is None else zero.reshape(-1)
    zero = np.broadcast_to(zero, scale.shape).astype(np.int64)
    grid = transposed(WeightGrid(product.name, weight, scale, zero, 1 if scale.size > 1 else 0))
    assert grid is not None
    layer = Node(product.name, "Gemm", (), node.outputs)
    bias = bias_behind(r, node, weight.shape[1], 0)
    name = add_layer(r, layer, torch.nn.functional.linear, x, grid.values(), bias, grid)
    r.described.dynamic.add(name)


DYNAMIC: dict[str, Translate] = {
    "DynamicQuantizeLinear": _quantize,
    "MatMulInteger": _matmul,
    "Cast": _cast,
    "Mul": _mul,
}
"""Operator → what translates it."""
