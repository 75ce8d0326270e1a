"""The quantized operators of torch (torch.ao's back ends): x86, onednn, fbgemm, qnnpack."""

from __future__ import annotations

import warnings
from typing import Any

from intact8_conformance.case import Array, Case, Grid
from intact8_conformance.engines.base import Engine, Unsupported


class Torch(Engine):
    """One of torch's quantized engines."""

    packages = ("torch",)

    def __init__(self, name: str, engine: str) -> None:
        super().__init__(name)
        self.engine = engine

    def missing(self) -> str:
        """Return why the engine cannot run here, "" where it can."""
        if reason := super().missing():
            return reason
        import torch

        known = torch.backends.quantized.supported_engines
        return "" if self.engine in known else f"this torch has no {self.engine}"

    def run(self, case: Case) -> Array:
        """Return the result of a case."""
        import torch

        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = self.engine
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = _result(torch, case)
        except (RuntimeError, NotImplementedError) as error:
            raise Unsupported(str(error).splitlines()[0]) from error
        finally:
            torch.backends.quantized.engine = before
        array: Array = result.numpy()
        return array


def _result(torch: Any, case: Case) -> Any:
    if case.operation == "quantize" and case.output is not None:
        return _quantize(torch, torch.from_numpy(case.inputs[0]), case.output).int_repr()
    x = [_tensor(torch, value, grid) for value, grid in zip(case.inputs, case.grids, strict=True)]
    if case.output is None:
        return x[0].dequantize()
    y = case.output
    if case.operation == "requantize":
        return _quantize(torch, x[0].dequantize(), y).int_repr()
    ops, grid = torch.ops.quantized, (y.scale, y.zero_point)
    if case.operation in ("add", "mul"):
        return getattr(ops, case.operation)(*x, *grid).int_repr()
    if case.operation == "sigmoid":
        return ops.sigmoid(x[0], *grid).int_repr()
    if case.operation == "softmax":
        return ops.softmax(x[0], -1, *grid).int_repr()
    if case.weight is None:
        raise Unsupported(f"no quantized {case.operation} with an output scale of its own")
    weight, bias = _weight(torch, case)
    if case.operation == "linear":
        return ops.linear(x[0], ops.linear_prepack(weight, bias), *grid).int_repr()
    a = case.attributes
    packed = ops.conv2d_prepack(weight, bias, [a["stride"]] * 2, [a["padding"]] * 2, [1, 1], a["groups"])
    return ops.conv2d(x[0], packed, *grid).int_repr()


def _tensor(torch: Any, value: Array, grid: Grid) -> Any:
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(value), grid.scale, grid.zero_point)


def _quantize(torch: Any, value: Any, grid: Grid) -> Any:
    return torch.quantize_per_tensor(value, grid.scale, grid.zero_point, torch.quint8)


def _weight(torch: Any, case: Case) -> tuple[Any, Any]:
    """Return the weight per channel and the bias as real numbers, as torch takes them."""
    assert case.weight is not None and case.weight_scale is not None and case.bias is not None
    scale = torch.from_numpy(case.weight_scale).double()
    zero = torch.zeros(len(scale), dtype=torch.int64)
    weight = torch._make_per_channel_quantized_tensor(torch.from_numpy(case.weight), scale, zero, 0)
    return weight, (torch.from_numpy(case.bias).double() * scale * case.grids[0].scale).float()
