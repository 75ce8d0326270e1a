"""The dataflow of floats and integers in a torch.ao model: its FX graph, or one traced from an eager model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.ao.nn import quantized as nnq
from torch.ao.quantization import DeQuantStub, FakeQuantizeBase, ObserverBase, QuantStub

from intact8.diagnose.lint.rule import NeedsError

FUNCTIONALS = (nnq.FloatFunctional, nnq.FXFloatFunctional, nnq.QFunctional)
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
RELUS = (nn.ReLU, nn.ReLU6)
SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
ARITHMETIC: dict[Any, str] = {
    operator.matmul: "@",
    **{getattr(operator, name): symbol for name, symbol in SYMBOLS.items()},
    **{getattr(operator, f"i{name}"): f"{symbol}=" for name, symbol in SYMBOLS.items()},
    **{getattr(torch, name): f"torch.{name}" for name in ("add", "sub", "mul", "div", "cat", "matmul", "stack")},
}
METHODS = frozenset({"add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "matmul"})
MOVE_MODULES = (nn.Flatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.Dropout, nn.Dropout2d, nn.Identity)
UNTRACEABLE = (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)
"""What a forward raises when proxies cannot stand for its tensors."""


@dataclass(frozen=True)
class FlowNode:
    """One call of the traced forward.

    Attributes:
        name: unique.
        kind: input, output, quantize, dequantize, layer, functional, arithmetic, identity, observer, relu, norm or
            other.
        module: path of the module called, "" where it is none.
        call: the call as the model writes it: a type's name, ``+``, ``FloatFunctional.add``.
        inputs: names of the calls whose tensors it takes.
        integers: whether its result carries integers, once converted.
        fused: whether the module is fused (convolution + ReLU …).
        with_relu: whether one of its parts is a ReLU.
    """

    name: str
    kind: str
    module: str
    call: str
    inputs: tuple[str, ...]
    integers: bool
    fused: bool = False
    with_relu: bool = False


@dataclass(frozen=True)
class FunctionalCall:
    """A call of a method of FloatFunctional in the trace."""

    path: str
    method: str

    @property
    def __name__(self) -> str:
        return self.method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a trace is read, never run")


class _Functional:
    """Replaces a FloatFunctional in the trace: every method is one call."""

    def __init__(self, tracer: fx.Tracer, path: str) -> None:
        self._tracer, self._path = tracer, path

    def __getattr__(self, method: str) -> Callable[..., Any]:
        target = FunctionalCall(self._path, method)
        return lambda *args, **kwargs: self._tracer.create_proxy("call_function", target, args, kwargs)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).__module__.startswith("torch.ao.") or super().is_leaf_module(m, module_qualified_name)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, FUNCTIONALS):
            return _Functional(self, self.path_of_module(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def graph_of(model: nn.Module) -> fx.Graph:
    """Return the model's own FX graph, or a traced one. Raises NeedsError where tracing fails."""
    if isinstance(model, fx.GraphModule):
        return model.graph
    try:
        return _Tracer().trace(model)
    except UNTRACEABLE as error:
        raise NeedsError(f"a model that torch.fx can trace ({type(error).__name__})") from error


def flow_of(model: nn.Module, quantizes: Callable[[str, nn.Module], bool]) -> list[FlowNode]:
    """Return the calls of the model in order.

    Args:
        model: eager or FX.
        quantizes: whether the result of a module, given with its path, becomes integers.
    """
    # An observer that several tensors share has several names.
    graph, modules = graph_of(model), dict(model.named_modules(remove_duplicate=False))
    integers: dict[str, bool] = {}
    out: list[FlowNode] = []
    for node in graph.nodes:
        inputs = tuple(n.name for n in node.all_input_nodes)
        carried = any(integers[i] for i in inputs)
        kind, module, call, result, m = _describe(node, modules, quantizes, carried)
        integers[node.name] = result
        fused = m is not None and type(m).__module__.startswith("torch.ao.nn.intrinsic")
        out.append(FlowNode(node.name, kind, module, call, inputs, result, fused, fused and "ReLU" in type(m).__name__))
    return out


def _describe(
    node: fx.Node, modules: dict[str, nn.Module], quantizes: Callable[[str, nn.Module], bool], carried: bool
) -> tuple[str, str, str, bool, nn.Module | None]:
    """Return kind, module path, call, whether the result carries integers, and the module."""
    target = node.target
    if node.op in ("placeholder", "get_attr", "output"):
        return ({"placeholder": "input"}.get(node.op, node.op), "", node.op, node.op == "output" and carried, None)
    if node.op == "call_module":
        path = str(target)
        m = modules[path]
        kind, result = _module_kind(path, m, quantizes, carried)
        return kind, path, type(m).__name__, result, m
    if isinstance(target, FunctionalCall):
        path, m = target.path, modules[target.path]
        return "functional", path, f"{type(m).__name__}.{target.method}", quantizes(path, m) or carried, m
    if node.op == "call_method":
        method = str(target)
        if method == "dequantize":
            return "dequantize", "", method, False, None
        return ("arithmetic" if method in METHODS else "other"), "", f".{method}", carried, None
    name = getattr(target, "__name__", str(target))
    if name.startswith("quantize_per_"):
        return "quantize", "", name, True, None
    if "quantized" in getattr(target, "__module__", "") or str(target).startswith("quantized."):
        return "functional", "", str(target), True, None
    if target in ARITHMETIC:
        return "arithmetic", "", ARITHMETIC[target], carried, None
    relu = target in (torch.relu, nn.functional.relu, nn.functional.relu6)
    return ("relu" if relu else "other"), "", name, carried, None


def _module_kind(
    path: str, m: nn.Module, quantizes: Callable[[str, nn.Module], bool], carried: bool
) -> tuple[str, bool]:
    if isinstance(m, QuantStub | nnq.Quantize):
        return "quantize", quantizes(path, m)
    if isinstance(m, DeQuantStub | nnq.DeQuantize):
        return "dequantize", False
    if isinstance(m, ObserverBase | FakeQuantizeBase):
        return "observer", carried or quantizes(path, m)
    own = type(m).__module__
    if isinstance(m, LAYERS) or own.startswith(("torch.ao.nn.intrinsic", "torch.ao.nn.q")):
        return "layer", quantizes(path, m)
    for kind, types in (("identity", (nn.Identity,)), ("relu", RELUS), ("norm", NORMS)):
        if isinstance(m, types):
            return kind, carried
    return "other", carried
