"""FX graphs of torch.ao: observers, quantized operators and their scales become marks and operators of torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from intact8.errors import InputError
from intact8.migration.grids import RANGES, ActivationGrid
from intact8.migration.observers import is_float, observes, weight_grid
from intact8.migration.torch_ao_modules import REFERENCE, Reader, packed_layer


def read_graph(model: fx.GraphModule, reader: Reader) -> None:
    """Replace what is torch.ao's in the graph; modules it calls stay for :meth:`Reader.replaced`.

    Raises:
        InputError: an operator has no counterpart; names the node.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = [n for n in model.graph.nodes if n.op == "call_module"]
    observed = {n for n in calls if observes(modules[str(n.target)])}
    reader.prepared = {str(n.target) for n in calls if observed.intersection(n.all_input_nodes)}
    reader.reference = any(REFERENCE in type(m).__module__ for m in modules.values())
    for node in list(model.graph.nodes):
        if node.op == "call_module":
            called = modules[str(node.target)]
            if observes(called):
                _observer(model, node, called, reader)
        elif node.op == "call_function":
            _function(model, node, reader)
        elif node.op == "call_method" and node.target == "dequantize":
            _dequantize(model, node, reader)
    model.graph.eliminate_dead_code()
    model.delete_all_unused_submodules()
    for name in [name for name, child in model._modules.items() if observes(child)]:
        del model._modules[name]  # shared ones have several names, of which only the first is deleted above
    model.recompile()


def attribute(model: nn.Module, node: Any) -> Any:
    """Return the value of a node that reads an attribute; other values as they are."""
    return operator.attrgetter(str(node.target))(model) if isinstance(node, fx.Node) and node.op == "get_attr" else node


def put_behind(model: fx.GraphModule, node: fx.Node, module: nn.Module, wish: str) -> fx.Node:
    """Insert a call of a module behind a node; whoever read the node reads the call."""
    name = wish.replace(".", "_")
    while hasattr(model, name):
        name += "_"
    model.add_submodule(name, module)
    with model.graph.inserting_after(node):
        call = model.graph.call_module(name, (node,))
    node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
    return call


def drop(model: fx.GraphModule, node: fx.Node) -> None:
    """Remove a node; whoever read it reads what it read first."""
    node.replace_all_uses_with(node.all_input_nodes[0])
    model.graph.erase_node(node)


def _observer(model: fx.GraphModule, node: fx.Node, observer: Any, reader: Reader) -> None:
    source = node.all_input_nodes[0]
    name = str(source.target) if source.op in ("call_module", "get_attr") else source.name
    if source.op == "get_attr" and isinstance(value := attribute(model, source), nn.Parameter) and value.ndim > 1:
        if not is_float(observer):
            observer(value.detach())
            _set_parameter(model, name, reader.weights.enter(name, weight_grid(value, observer, name)))
        drop(model, node)
        return
    mark = reader.mark(observer, name)
    if mark is not None:
        put_behind(model, node, mark, f"mark_{mark.number}")
    drop(model, node)


def _set_parameter(model: nn.Module, path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))


def _dequantize(model: fx.GraphModule, node: fx.Node, reader: Reader) -> None:
    source = node.all_input_nodes[0]
    if len(source.users) == 1 and not reader.reference:
        put_behind(model, node, reader.described.marks.make(None), f"real_{node.name}")
    drop(model, node)


def name_of(target: Any) -> str:
    """Return the name of an operator, as ``quantized.add_relu`` or ``quantize_per_tensor``."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.replace("::", ".")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target)
    return str(getattr(target, "__name__", target))


def _function(model: fx.GraphModule, node: fx.Node, reader: Reader) -> None:
    name = name_of(node.target)
    if name == "quantize_per_tensor":
        scale, zero_point, dtype = (*node.args, *node.kwargs.values())[1:4]
        _mark(model, node, reader, scale, zero_point, dtype)
        drop(model, node)
    elif name == "dequantize":
        _dequantize(model, node, reader)
    elif name.startswith("quantized."):
        _quantized(model, node, reader, name.removeprefix("quantized."))


def _mark(model: fx.GraphModule, node: fx.Node, reader: Reader, scale: Any, zero_point: Any, dtype: Any) -> None:
    kind = str(dtype).removeprefix("torch.q").removeprefix("torch.")
    if kind not in RANGES:
        raise InputError(f"an activation of {kind}", where=node.name, why="programs hold activations in 8 bits")
    source = node.all_input_nodes[0]
    label = str(source.target) if source.op == "call_module" else node.name
    _grid_behind(model, node, reader, label, scale, zero_point, kind)


def _grid_behind(
    model: fx.GraphModule, node: fx.Node, reader: Reader, name: str, scale: Any, zero_point: Any, dtype: str = "uint8"
) -> None:
    """Put a mark with a grid behind a node."""
    scale, zero_point = attribute(model, scale), attribute(model, zero_point)
    grid = ActivationGrid(name, float(scale), int(zero_point), *RANGES[dtype], dtype)
    put_behind(model, node, reader.described.marks.make(grid), f"mark_{len(reader.described.marks)}")


def _relu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def composed(*args: Any) -> Tensor:
        return torch.relu(function(*args))

    composed.__name__ = f"{function.__name__}_relu"
    return composed


def _cat(tensors: list[Tensor], dim: int) -> Tensor:
    return torch.cat(tensors, dim)


def _leaky_relu(x: Tensor, slope: float, inplace: bool) -> Tensor:
    return F.leaky_relu(x, slope)


def _layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, shape, weight, bias, eps)


def _elu(x: Tensor, scale: float, zero_point: int, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "add": (torch.add, 2),
    "add_relu": (_relu(torch.add), 2),
    "mul": (torch.mul, 2),
    "mul_relu": (_relu(torch.mul), 2),
    "matmul": (torch.matmul, 2),
    "cat": (_cat, 2),
    "hardswish": (F.hardswish, 1),
    "leaky_relu": (_leaky_relu, 3),
    "sigmoid": (torch.sigmoid, 1),
    "layer_norm": (_layer_norm, 5),
    "softmax": (torch.softmax, 2),
}
"""Operator → the function of torch, and how many arguments come before scale and zero point."""


def _quantized(model: fx.GraphModule, node: fx.Node, reader: Reader, name: str) -> None:
    args = list(node.args) + [node.kwargs[k] for k in node.kwargs if k not in ("scale", "zero_point")]
    scales = [node.kwargs[k] for k in ("scale", "zero_point") if k in node.kwargs]
    if name.removesuffix("_dynamic").removesuffix("_relu") in ("linear", "conv1d", "conv2d", "conv3d"):
        _packed(model, node, reader, name, args, scales)
        return
    if name not in FUNCTIONS:
        what, why = f"the operator quantized.{name}", "no reader knows it"
        raise InputError(what, where=node.name, why=why, remedy="migrate the prepared model, or quantize the float one")
    function, count = FUNCTIONS[name]
    scales = scales or args[count : count + 2]
    with model.graph.inserting_before(node):
        made = model.graph.call_function(function, tuple(args[:count]))
    made.name = node.name
    node.replace_all_uses_with(made)
    model.graph.erase_node(node)
    if len(scales) == 2:
        _grid_behind(model, made, reader, node.name, scales[0], scales[1])


def _packed(
    model: fx.GraphModule, node: fx.Node, reader: Reader, name: str, args: list[Any], scales: list[Any]
) -> None:
    """Replace a layer with packed parameters by a module."""
    path = node.name
    packed = attribute(model, args[1])
    module = packed_layer(path, packed, reader.weights)
    model.add_submodule(path, module)
    with model.graph.inserting_before(node):
        made = call = model.graph.call_module(path, (args[0],))
        if "relu" in name:
            made = model.graph.call_function(torch.relu, (call,))
    scales = scales or args[2:4]
    node.replace_all_uses_with(made)
    model.graph.erase_node(node)
    if "dynamic" in name:
        reader.described.dynamic.add(path)
    else:
        _grid_behind(model, made, reader, path, scales[0], scales[1])


__all__ = ["attribute", "drop", "name_of", "put_behind", "read_graph"]
