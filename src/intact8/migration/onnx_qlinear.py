"""Operators of ONNX on integers (QLinear…): each is an operator of numbers, and a mark behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.errors import InputError

from .onnx_graph import Node
from .onnx_layers import conv_layer, linear_layer
from .onnx_module import Step
from .onnx_operators import OPERATORS, Operator
from .onnx_reader import Grid, Reader, Translate, store, tensor_of


def _qlinear_conv(r: Reader, node: Node) -> None:
    """Translate x, s, z, w, s, z, s, z, bias: a convolution of numbers, and a mark."""
    weight = r.grid(node, 4, 5, "int8")
    _qlinear_layer(
        r,
        node,
        weight,
        3,
        8,
        lambda inner, w, b: conv_layer(r, Node(node.name, "Conv", inner, (f"{node.outputs[0]}.real",), node.attrs)),
    )


def _qlinear_layer(r: Reader, node: Node, weight: Grid, at: int, bias: int, build: Any) -> None:
    grid = r.grid(node, 1, 2, "uint8")
    w, b = f"{node.name}.weight", ""
    axis = Grid(weight.scale, weight.zero_point, weight.dtype, 0)
    store(r, w, node.inputs[at], axis)
    if bias < len(node.inputs) and node.inputs[bias]:
        b = f"{node.name}.bias"
        r.known[b] = (r.known[node.inputs[bias]] * grid.scale * weight.scale).astype(np.float32)
    build((_expect(r, node, 0, grid), w, *([b] if b else [])), w, b)
    _finish(r, node, f"{node.outputs[0]}.real", 6)


def _expect(r: Reader, node: Node, i: int, grid: Grid) -> str:
    """Return the numbers of an operand that is read with a grid: those of its own, or rescaled."""
    name = r.name(node.inputs[i])
    before = r.grids.get(name)
    if before is None:
        raise InputError("integers without a scale are read", where=node.name, remedy="repair the graph")
    if before.same(grid):
        return name
    result = f"{node.outputs[0]}.operand{i}"
    if not np.array_equal(before.zero_point, grid.zero_point):
        raise InputError("integers are read with another zero point than they have", where=node.name)
    factor = float(grid.scale.item() / before.scale.item())
    r.network.add(f"{node.name}_rescaled", Step(lambda x: x * factor, {}), [name], [result])
    return result


def _qlinear_matmul(r: Reader, node: Node) -> None:
    """Translate a, s, z, b, s, z, s, z; where b is stored, to a linear layer."""
    real = f"{node.outputs[0]}.real"
    if node.inputs[3] in r.known and r.known[node.inputs[3]].ndim == 2:
        w = f"{node.name}.weight"
        grid = r.grid(node, 4, 5, "int8")
        store(r, w, node.inputs[3], Grid(grid.scale, grid.zero_point, grid.dtype, 1))
        x = _expect(r, node, 0, r.grid(node, 1, 2, "uint8"))
        linear_layer(r, Node(node.name, "MatMul", (x, w), (real,)), x, w, None, False)
    else:
        pair = [_expect(r, node, i, r.grid(node, i + 1, i + 2, "uint8")) for i in (0, 3)]
        r.network.add(node.name, Step(torch.matmul, {}), pair, [real])
    _finish(r, node, real, 6)


def _finish(r: Reader, node: Node, real: str, at: int) -> None:
    """Quantize the numbers ``real`` of a result to the grid of inputs ``at`` and the next."""
    r.mark(real, node.outputs[0], r.grid(node, at, at + 1, "uint8"), node.outputs[0])


def _qgemm(r: Reader, node: Node) -> None:
    """Translate a, s, z, b, s, z, bias, s, z of ONNX Runtime."""
    if node.inputs[3] not in r.known or node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0:
        raise InputError("QGemm of two activations", where=node.name, remedy="export it as QLinearMatMul")
    x, weight = r.grid(node, 1, 2, "uint8"), r.grid(node, 4, 5, "int8")
    w, turned, real = f"{node.name}.weight", bool(node.attrs.get("transB", 0)), f"{node.outputs[0]}.real"
    store(r, w, node.inputs[3], Grid(weight.scale, weight.zero_point, weight.dtype, 0 if turned else 1))
    bias = r.known[node.inputs[6]] * x.scale * weight.scale if len(node.inputs) > 6 and node.inputs[6] else None
    linear_layer(r, Node(node.name, "Gemm", (), (real,)), _expect(r, node, 0, x), w, bias, turned)
    _finish(r, node, real, 7)


def _qlinear(function: Callable[..., Any] | None, operands: int, r: Reader, node: Node) -> None:
    """Translate one or two operands with their grids, one of which may be stored, and the grid of the result."""
    real = f"{node.outputs[0]}.real"
    names: list[str] = []
    stored: dict[int, Tensor] = {}
    for i in range(operands):
        source = node.inputs[3 * i]
        grid = r.grid(node, 3 * i + 1, 3 * i + 2, "uint8")
        if source in r.known:
            numbers = (r.known[source].astype(np.float64) - grid.zero_point) * grid.scale
            stored[i] = tensor_of(numbers.astype(np.float32))
        else:
            names.append(_expect(r, node, 3 * i, grid))
    if not names:
        raise InputError(f"{node.kind} of constants", where=node.name, remedy="simplify the graph")
    plain = Node(node.name, node.kind.removeprefix("QLinear"), tuple(names), (real,), node.attrs)
    step = function or OPERATORS[plain.kind](Operator(plain, {}))
    r.network.add(node.name, Step(step, stored), names, [real])
    _finish(r, node, real, 3 * operands)


def _qlinear_concat(r: Reader, node: Node) -> None:
    """Translate s, z, then operands with their grids."""
    names = [_expect(r, node, i, r.grid(node, i + 1, i + 2, "uint8")) for i in range(2, len(node.inputs), 3)]
    axis, real = node.attrs.get("axis", 0), f"{node.outputs[0]}.real"
    r.network.add(node.name, Step(lambda *x: torch.cat(x, axis), {}), names, [real])
    _finish(r, node, real, 0)


QLINEAR: dict[str, Translate] = {
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QGemm": _qgemm,
    "QLinearAdd": partial(_qlinear, torch.add, 2),
    "QLinearMul": partial(_qlinear, torch.mul, 2),
    **{
        f"QLinear{kind}": partial(_qlinear, None, 1)
        for kind in ("Sigmoid", "LeakyRelu", "Softmax", "GlobalAveragePool", "AveragePool")
    },
    "QLinearConcat": _qlinear_concat,
}
"""Operator → what translates it."""
