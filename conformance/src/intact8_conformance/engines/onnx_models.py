"""Cases as ONNX models of one operation, of quantized operators or of QuantizeLinear and DequantizeLinear (QDQ)."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8_conformance.case import Array, Case, Grid
from intact8_conformance.engines.base import Unsupported

CONTRIB = "com.microsoft"
FLOAT = {
    "conv2d": "Conv",
    "depthwise_conv2d": "Conv",
    "linear": "Gemm",
    "add": "Add",
    "mul": "Mul",
    "average_pool2d": "AveragePool",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softmax": "Softmax",
}
"""Operation → ONNX operator between DequantizeLinear and QuantizeLinear."""

QUANTIZED = {
    "conv2d": "QLinearConv",
    "depthwise_conv2d": "QLinearConv",
    "linear": "QGemm",
    "add": "QLinearAdd",
    "mul": "QLinearMul",
    "average_pool2d": "QLinearAveragePool",
    "sigmoid": "QLinearSigmoid",
    "softmax": "QLinearSoftmax",
}
"""Operation → quantized ONNX operator; all but QLinearConv are ONNX Runtime's own."""


class Graph:
    """Nodes and constants of a model in the making."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Array | np.generic) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def grid(self, grid: Grid) -> list[str]:
        return [self.constant(np.float32(grid.scale)), self.constant(np.uint8(grid.zero_point))]

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        from onnx import helper

        name = f"n{len(self.nodes)}"
        domain = CONTRIB if kind.startswith("Q") and kind not in ("QLinearConv", "QuantizeLinear") else ""
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name


def model(case: Case, qdq: bool) -> bytes:
    """Return the model; its inputs are x0, x1 …, its output y.

    Raises:
        Unsupported: there is no quantized operator for the operation.
    """
    from onnx import TensorProto, helper

    graph = Graph()
    names = [f"x{i}" for i in range(len(case.inputs))]
    last = _body(graph, case, names, qdq)
    graph.nodes[-1].output[0] = "y"
    assert graph.nodes[-1].name == "" and last
    kinds = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.float32): TensorProto.FLOAT}
    inputs = [
        helper.make_tensor_value_info(n, kinds[x.dtype], x.shape) for n, x in zip(names, case.inputs, strict=True)
    ]
    output = helper.make_tensor_value_info("y", kinds[case.expected.dtype], case.expected.shape)
    made = helper.make_graph(graph.nodes, "case", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString())


def _body(graph: Graph, case: Case, names: list[str], qdq: bool) -> str:
    if case.operation == "quantize":
        assert case.output is not None
        return graph.node("QuantizeLinear", [names[0], *graph.grid(case.output)])
    floats = case.operation in ("requantize", "dequantize")
    if not qdq and not floats:
        return _quantized(graph, case, names)
    reals = [
        graph.node("DequantizeLinear", [name, *graph.grid(grid)]) for name, grid in zip(names, case.grids, strict=True)
    ]
    if not floats:
        reals = [graph.node(FLOAT[case.operation], [*reals, *_real_weights(graph, case)], **_attributes(case, True))]
    if case.output is None:
        return reals[0]
    return graph.node("QuantizeLinear", [reals[0], *graph.grid(case.output)])


def _real_weights(graph: Graph, case: Case) -> list[str]:
    """Return the weight and the bias behind DequantizeLinear, per output channel."""
    if case.weight is None or case.weight_scale is None or case.bias is None:
        return []
    scale = case.weight_scale
    weight = [graph.constant(case.weight), graph.constant(scale), graph.constant(np.zeros(len(scale), np.int8))]
    steps = (scale * np.float32(case.grids[0].scale)).astype(np.float32)
    bias = [graph.constant(case.bias), graph.constant(steps), graph.constant(np.zeros(len(scale), np.int32))]
    return [graph.node("DequantizeLinear", weight, axis=0), graph.node("DequantizeLinear", bias, axis=0)]


def _quantized(graph: Graph, case: Case, names: list[str]) -> str:
    if case.operation not in QUANTIZED or case.output is None:
        raise Unsupported(f"no quantized operator for {case.operation}")
    kind, operands = QUANTIZED[case.operation], []
    for name, grid in zip(names, case.grids, strict=True):
        operands += [name, *graph.grid(grid)]
    out = graph.grid(case.output)
    if case.weight is not None and case.weight_scale is not None and case.bias is not None:
        operands += [graph.constant(case.weight), graph.constant(case.weight_scale)]
        operands += [graph.constant(np.zeros(len(case.weight), np.int8))]
        bias = graph.constant(case.bias)
        operands += [bias, *out] if kind == "QGemm" else [*out, bias]
    else:
        operands += out
    return graph.node(kind, operands, **_attributes(case, False))


def _attributes(case: Case, qdq: bool) -> dict[str, Any]:
    a = case.attributes
    if "conv2d" in case.operation and case.weight is not None:
        kernel = list(case.weight.shape[2:])
        return {"kernel_shape": kernel, "strides": [a["stride"]] * 2, "pads": [a["padding"]] * 4, "group": a["groups"]}
    if case.operation == "average_pool2d":
        return {"kernel_shape": [a["kernel"]] * 2, "strides": [a["kernel"]] * 2}
    if case.operation == "linear":
        return {"transB": 1}
    if case.operation == "softmax":
        return {"axis": -1} if qdq else {"axis": -1, "opset": 13}
    return {}
