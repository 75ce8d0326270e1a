"""ExecuTorch, with XNNPACK as its delegate or with its own kernels; models are exported programs with PT2E's operators.

Its activations are int8: integers and zero points of the cases are moved by 128. Tensors go in and out as the float32
numbers that integers stand for, as in the models that its quantizers make.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np

from intact8_conformance.case import Array, Case, Grid
from intact8_conformance.engines.base import Engine, Unsupported

SHIFT = 128


class ExecuTorch(Engine):
    """A program per case, made and run in this process."""

    packages = ("executorch", "torch", "torchao")

    def __init__(self, name: str, *, xnnpack: bool) -> None:
        super().__init__(name)
        self.xnnpack = xnnpack

    def run(self, case: Case) -> Array:
        """Return the result of a case."""
        import torch

        inputs = [torch.from_numpy(x) for x in case.inputs]
        if case.operation == "dequantize":
            inputs = [(x.int() - SHIFT).to(torch.int8) for x in inputs]
        elif case.operation != "quantize":
            inputs = [(x.float() - g.zero_point) * g.scale for x, g in zip(inputs, case.grids, strict=True)]
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            y = self._run(_module(torch, case), tuple(inputs))
        if case.output is None:
            found: Array = y.numpy()
            return found
        if case.operation == "quantize":
            return (y.numpy().astype(np.int16) + SHIFT).astype(np.uint8)
        return np.rint(y.numpy() / np.float64(case.output.scale) + case.output.zero_point).astype(np.uint8)

    def _run(self, module: Any, inputs: tuple[Any, ...]) -> Any:
        import executorch.kernels.quantized  # noqa: F401 - defines the operators of PT2E
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower
        from executorch.runtime import Runtime

        try:
            program = torch.export.export(module, inputs)
            edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()] if self.xnnpack else [])
            graph = edge.exported_program().graph
            if self.xnnpack and not any("call_delegate" in str(node.target) for node in graph.nodes):
                raise Unsupported("XNNPACK's partitioner leaves it to ExecuTorch's own kernels")
            buffer = edge.to_executorch().buffer
            return Runtime.get().load_program(buffer).load_method("forward").execute(inputs)[0].clone()
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise Unsupported(str(error).splitlines()[0][:120] if str(error) else type(error).__name__) from error


def _module(torch: Any, case: Case) -> Any:
    """Return the network of one operation between two roundings."""
    a, name, functional = case.attributes, case.operation, torch.nn.functional
    ops = torch.ops.quantized_decomposed

    def ends(grid: Grid) -> tuple[Any, ...]:
        return grid.scale, grid.zero_point - SHIFT, -SHIFT, SHIFT - 1, torch.int8

    def rounded(x: Any, grid: Grid) -> Any:
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *ends(grid)), *ends(grid))

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            if case.weight is not None and case.weight_scale is not None and case.bias is not None:
                scale = torch.from_numpy(case.weight_scale)
                self.register_buffer("weight", torch.from_numpy(case.weight))
                self.register_buffer("scale", scale)
                self.register_buffer("zero", torch.zeros(len(scale), dtype=torch.int64))
                steps = scale.double() * case.grids[0].scale
                self.bias = torch.nn.Parameter((torch.from_numpy(case.bias).double() * steps).float())

        def forward(self, *given: Any) -> Any:
            y = case.output
            if y is None:
                return ops.dequantize_per_tensor(given[0], *ends(case.grids[0]))
            if name == "quantize":
                return ops.quantize_per_tensor(given[0], *ends(y))
            x = [rounded(value, grid) for value, grid in zip(given, case.grids, strict=True)]
            return rounded(self.computed(x), y)

        def computed(self, x: list[Any]) -> Any:
            if name in ("add", "mul"):
                return getattr(torch, name)(*x)
            if name in ("sigmoid", "tanh"):
                return getattr(torch, name)(x[0])
            if name == "softmax":
                return torch.softmax(x[0], -1)
            if name == "requantize":
                return x[0]
            if name == "average_pool2d":
                return functional.avg_pool2d(x[0], a["kernel"])
            w = ops.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -SHIFT, SHIFT - 1, torch.int8)
            if name == "linear":
                return functional.linear(x[0], w, self.bias)
            return functional.conv2d(x[0], w, self.bias, a["stride"], a["padding"], 1, a["groups"])

    return Network().eval()
