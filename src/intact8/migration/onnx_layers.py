"""Layers of ONNX graphs: convolutions and products with stored weights, whose integers are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from intact8.errors import InputError
from intact8.migration.grids import WeightGrid
from intact8.migration.layers import REQUANTIZE

from .onnx_graph import Array, Node
from .onnx_module import Step
from .onnx_operators import OPERATORS, Function, Operator, conv
from .onnx_reader import Reader, Translate, dequantize, tensor_of


def _weight_of(r: Reader, node: Node, name: str) -> WeightGrid | None:
    """Return the integers of a layer's weight; None where it has none.

    Raises:
        InputError: they have scales along several dimensions, and may not be quantized anew.
    """
    if name not in r.loose:
        return r.stored.get(name)
    if not r.weights.may_change(node.name):
        why = "a program has one scale per output channel"
        raise InputError("its weight has scales along several dimensions", where=node.name, why=why, remedy=REQUANTIZE)
    return r.weights.requantized(node.name, r.known[name], int(node.kind == "ConvTranspose"))


def _enter(r: Reader, module: str, grid: WeightGrid | None, where: str, transposed: bool = False) -> None:
    """Enter the integers of a layer's weight under the layer's name."""
    if grid is None:
        return
    named = WeightGrid(where, grid.integers, grid.scale, grid.zero_point, grid.axis)
    values = r.weights.enter(f"{module}.weight", named, transposed)
    step = getattr(r.network, module)
    step.weight = nn.Parameter(values.clone(), requires_grad=False)


def add_layer(
    r: Reader, node: Node, function: Function, x: str, weight: Array, bias: Array | None, grid: WeightGrid | None
) -> str:
    """Add a layer with a stored weight, and return its name in the network."""
    stored = {1: tensor_of(weight.astype(np.float32))} | (
        {} if bias is None else {2: tensor_of(bias.astype(np.float32))}
    )
    module = r.network.add(node.name, Step(function, stored), [r.name(x)], node.outputs)
    _enter(r, module, grid, node.name, node.kind == "ConvTranspose")
    return module


def conv_layer(r: Reader, node: Node) -> None:
    """Add a convolution, transposed or not, with the vector added behind it as its bias."""
    x, w, *rest = node.inputs
    if w not in r.known or (rest and rest[0] and rest[0] not in r.known):
        raise InputError("a convolution whose weight is computed", where=node.name, remedy="quantize the float network")
    weight = r.known[w]
    if weight.ndim not in (3, 4, 5):
        raise InputError(f"a convolution with a weight of shape {weight.shape}", where=node.name)
    channels = weight.shape[1] * node.attrs.get("group", 1) if node.kind == "ConvTranspose" else len(weight)
    bias = r.known[rest[0]] if rest and rest[0] else bias_behind(r, node, channels, weight.ndim - 2)
    add_layer(r, node, conv(Operator(node, {}), weight.ndim - 2), x, weight, bias, _weight_of(r, node, w))


def transposed(grid: WeightGrid | None) -> WeightGrid | None:
    """Return the integers of a matrix (in, out) as those of a linear layer."""
    if grid is None:
        return None
    return WeightGrid(grid.name, np.ascontiguousarray(grid.integers.T), grid.scale, grid.zero_point, 1 - grid.axis)


def linear_layer(r: Reader, node: Node, x: str, w: str, bias: Array | None, turned: bool) -> None:
    """Add a linear layer; ``turned``: the weight is (out, in) already."""
    weight, grid = r.known[w], _weight_of(r, node, w)
    if not turned:
        weight, grid = np.ascontiguousarray(weight.T), transposed(grid)
    add_layer(r, node, torch.nn.functional.linear, x, weight, bias, grid)


def _gemm(r: Reader, node: Node) -> None:
    x, w, *rest = node.inputs
    alpha, beta = (node.attrs.get(name, 1.0) for name in ("alpha", "beta"))
    plain = alpha > 0 and not node.attrs.get("transA", 0)
    bias = r.known.get(rest[0]) if rest and rest[0] else None
    if not plain or w not in r.known or (rest and rest[0] and (bias is None or bias.ndim != 1)):
        r.plain(node, OPERATORS["Gemm"])
        return
    if alpha != 1.0:
        w = _scaled(r, w, alpha)
    bias = bias * beta if bias is not None and beta != 1.0 else bias
    linear_layer(r, node, x, w, bias, bool(node.attrs.get("transB", 0)))


def _scaled(r: Reader, name: str, factor: float) -> str:
    """Return the name of a stored weight times a positive factor: its integers, with other scales."""
    made = f"{name} * {factor}"
    r.known[made] = (r.known[name] * np.float32(factor)).astype(np.float32)
    if name in r.stored:
        r.stored[made] = replace(r.stored[name], scale=r.stored[name].scale * factor)
    if name in r.loose:
        r.loose.add(made)
    return made


def _matmul(r: Reader, node: Node) -> None:
    """Build a product; one with a stored matrix is a linear layer, with the vector added behind it as its bias."""
    x, w = node.inputs
    turned = bool(node.attrs.get("transB", 0))
    if x in r.known or w not in r.known or r.known[w].ndim != 2:
        if turned:
            r.network.add(
                node.name, Step(lambda a, b: torch.matmul(a, b.mT), {}), [r.name(v) for v in (x, w)], node.outputs
            )
        else:
            r.plain(node, OPERATORS["MatMul"])
        return
    linear_layer(r, node, x, w, bias_behind(r, node, r.known[w].shape[0 if turned else 1], 0), turned)


def bias_behind(r: Reader, node: Node, channels: int, trailing: int) -> Array | None:
    """Return the vector that the only reader of a layer adds to its channels; that reader is done then."""
    readers = r.readers.get(node.outputs[0], [])
    if len(readers) != 1 or readers[0].kind != "Add" or node.outputs[0] in r.graph.outputs:
        return None
    other = next((name for name in readers[0].inputs if name != node.outputs[0]), "")
    value = r.known[other] if other in r.known else _early(r, other)
    if value is None or value.size != channels or value.shape[value.ndim - trailing :] != (1,) * trailing:
        return None
    if value.ndim <= trailing or value.shape[value.ndim - trailing - 1] != channels:
        return None
    r.done.add(readers[0].name)
    r.alias[readers[0].outputs[0]] = node.outputs[0]
    return value.reshape(-1)


def _early(r: Reader, name: str) -> Array | None:
    """Return a constant that a node further down dequantizes; None where it is no constant."""
    maker = next((n for n in r.graph.nodes if name in n.outputs), None)
    if maker is None or maker.kind != "DequantizeLinear" or maker.inputs[0] not in r.known or maker.name in r.done:
        return None
    dequantize(r, maker)
    r.done.add(maker.name)
    return r.known[name]


LAYERS: dict[str, Translate] = {"Conv": conv_layer, "ConvTranspose": conv_layer, "Gemm": _gemm, "MatMul": _matmul}
"""Operator → what translates it."""
