"""LiteRT (once TensorFlow Lite), with XNNPACK or with its own kernels; models are written with its own schema.

Its activations are int8, images (N, H, W, C): integers and zero points of the cases are moved by 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8_conformance.case import Array, Case, Grid
from intact8_conformance.engines.base import Engine, Unsupported

SHIFT = 128


class LiteRT(Engine):
    """One interpreter of one thread per case."""

    packages = ("ai-edge-litert", "flatbuffers")

    def __init__(self, name: str, *, xnnpack: bool) -> None:
        super().__init__(name)
        self.xnnpack = xnnpack

    def run(self, case: Case) -> Array:
        """Return the result of a case."""
        from ai_edge_litert import interpreter as lite

        if case.operation == "average_pool2d":
            raise Unsupported("an average has the quantization parameters of its input here")
        kinds = lite.OpResolverType
        chosen = kinds.BUILTIN if self.xnnpack else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        model = bytes(_Model(case).packed())
        try:
            made = lite.Interpreter(model_content=model, num_threads=1, experimental_op_resolver_type=chosen)
            made.allocate_tensors()
            for detail, value in zip(made.get_input_details(), case.inputs, strict=True):
                made.set_tensor(detail["index"], _to_engine(value))
            made.invoke()
        except (RuntimeError, ValueError) as error:
            raise Unsupported(str(error).splitlines()[0]) from error
        return _from_engine(made.get_tensor(made.get_output_details()[0]["index"]))


def _to_engine(value: Array) -> Array:
    moved = (value.astype(np.int16) - SHIFT).astype(np.int8) if value.dtype == np.uint8 else value
    return np.ascontiguousarray(np.moveaxis(moved, 1, -1) if value.ndim == 4 else moved)


def _from_engine(value: Array) -> Array:
    moved = (value.astype(np.int16) + SHIFT).astype(np.uint8) if value.dtype == np.int8 else value
    return np.ascontiguousarray(np.moveaxis(moved, -1, 1) if value.ndim == 4 else moved)


class _Model:
    """A model of one operation in the making."""

    def __init__(self, case: Case) -> None:
        from ai_edge_litert import schema_py_generated

        self.schema: Any = schema_py_generated
        self.case = case
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [self.schema.BufferT()]

    def packed(self) -> bytearray:
        import flatbuffers

        s, case = self.schema, self.case
        grids = case.grids or (None,) * len(case.inputs)
        inputs = [self.tensor(_to_engine(x), grid) for x, grid in zip(case.inputs, grids, strict=True)]
        operands = inputs + self.weights()
        output = self.tensor(_to_engine(case.expected), case.output)
        operator, code = s.OperatorT(), s.OperatorCodeT()
        code.builtinCode, options, operator.builtinOptions = self.operation()
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 3
        operator.builtinOptionsType = getattr(s.BuiltinOptions, options) if options else 0
        operator.inputs, operator.outputs = operands, [output]
        graph, model = s.SubGraphT(), s.ModelT()
        graph.tensors, graph.operators, graph.inputs, graph.outputs = self.tensors, [operator], inputs, [output]
        model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], self.buffers
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytearray(builder.Output())

    def tensor(self, like: Array, grid: Grid | None) -> int:
        """Add a tensor whose values are given or computed when the model runs."""
        zero = None if grid is None else [grid.zero_point - SHIFT]
        return self.add(like, None if grid is None else [grid.scale], zero)

    def add(self, like: Array, scale: Any, zero: Any, axis: int = 0, constant: bool = False) -> int:
        """Add a tensor and return its position."""
        s = self.schema
        made, buffer = s.TensorT(), s.BufferT()
        kinds = {"int8": s.TensorType.INT8, "int32": s.TensorType.INT32, "float32": s.TensorType.FLOAT32}
        made.shape, made.type, made.name = list(like.shape), kinds[str(like.dtype)], f"t{len(self.tensors)}".encode()
        if scale is not None:
            made.quantization = s.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = list(scale), list(zero)
            made.quantization.quantizedDimension = axis
        if constant:
            buffer.data = np.frombuffer(np.ascontiguousarray(like).tobytes(), np.uint8)
            self.buffers.append(buffer)
            made.buffer = len(self.buffers) - 1
        self.tensors.append(made)
        return len(self.tensors) - 1

    def weights(self) -> list[int]:
        case = self.case
        if case.weight is None or case.weight_scale is None or case.bias is None:
            return []
        depthwise = case.operation == "depthwise_conv2d"
        order = {2: (0, 1), 4: (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)}[case.weight.ndim]
        zeros = [0] * len(case.weight)
        steps = (case.weight_scale * np.float32(case.grids[0].scale)).astype(np.float32)
        weight = self.add(case.weight.transpose(order), case.weight_scale, zeros, 3 if depthwise else 0, constant=True)
        return [weight, self.add(case.bias, steps, zeros, constant=True)]

    def operation(self) -> tuple[int, str, Any]:
        """Return the code, the name of the options' type, and the options."""
        s, case, a = self.schema, self.case, self.case.attributes
        codes, name = s.BuiltinOperator, case.operation
        if name in ("requantize", "quantize"):
            return codes.QUANTIZE, "QuantizeOptions", s.QuantizeOptionsT()
        plain = {"dequantize": "DEQUANTIZE", "sigmoid": "LOGISTIC", "tanh": "TANH"}
        if name in plain:
            return getattr(codes, plain[name]), "", None
        kind = {
            "conv2d": ("CONV_2D", "Conv2DOptions"),
            "depthwise_conv2d": ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"),
            "linear": ("FULLY_CONNECTED", "FullyConnectedOptions"),
            "add": ("ADD", "AddOptions"),
            "mul": ("MUL", "MulOptions"),
            "softmax": ("SOFTMAX", "SoftmaxOptions"),
        }[name]
        options = getattr(s, f"{kind[1]}T")()
        if "conv2d" in name:
            options.padding = s.Padding.SAME
            options.strideH = options.strideW = a["stride"]
            options.dilationHFactor = options.dilationWFactor = 1
            if name == "depthwise_conv2d":
                options.depthMultiplier = 1
        if name == "softmax":
            options.beta = 1.0
        return getattr(codes, kind[0]), kind[1], options
