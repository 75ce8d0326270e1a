"""PT2E models of torchao and torch, prepared and converted, and exported programs, as descriptions."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from intact8.errors import InputError
from intact8.migration.description import Description
from intact8.migration.exported_file import damaged, read_exported
from intact8.migration.fx_graph import attribute, drop, name_of, put_behind
from intact8.migration.grids import RANGES, ActivationGrid, WeightGrid
from intact8.migration.layers import Weights
from intact8.migration.observers import activation_grid, is_dynamic, is_float, observes, refuse_wide, weight_grid
from intact8.regular_file import bytes_of

DECOMPOSED = "quantized_decomposed."
QUANTIZE = frozenset({"quantize_per_tensor", "quantize_per_channel"})
DEQUANTIZE = frozenset({"dequantize_per_tensor", "dequantize_per_channel"})
AFFINE = frozenset({"aten.div", "aten.mul", "aten.add", "aten.reshape", "aten.view"})
NORMS = frozenset({"aten.batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training"})
CONVS = ("aten.conv", "aten._convolution")


def is_pt2e(model: nn.Module) -> bool:
    """Return whether a module is a graph of ATen operators that PT2E has prepared or converted."""
    if not isinstance(model, fx.GraphModule):
        return False
    names = [name_of(n.target) for n in model.graph.nodes if n.op == "call_function"]
    aten = any(name.startswith("aten.") for name in names)
    prepared = any(observes(m) for m in model.modules())
    return aten and (prepared or any(name.startswith((DECOMPOSED, "torchao.")) for name in names))


def describe_pt2e(model: fx.GraphModule | ExportedProgram | Path, requantize: Collection[str] = ()) -> Description:
    """Return the description of a PT2E model, which is not changed, or of the file of an exported program.

    Raises:
        InputError: an operator has no counterpart, or an observer has seen nothing; names it. Or a file is damaged.
    """
    if isinstance(model, Path):
        with damaged(model):
            return _described(fx.GraphModule(*read_exported(bytes_of(model))), True, requantize)
    exported = isinstance(model, ExportedProgram)
    return _described(model.module() if isinstance(model, ExportedProgram) else model, exported, requantize)


def _described(given: nn.Module, exported: bool, requantize: Collection[str]) -> Description:
    assert isinstance(given, fx.GraphModule)
    work = fx.GraphModule(copy.deepcopy(given), copy.deepcopy(given.graph))
    stage = "prepared" if any(observes(m) for m in work.modules()) else "converted"
    described = Description(f"PT2E ({'ExportedProgram, ' if exported else ''}{stage})", work)
    _Reader(work, described, Weights(described, requantize)).read()
    if not described.marks and not described.weights:
        remedy = "quantize it with intact8.quantize"
        raise InputError("nothing in this exported program is quantized", remedy=remedy)
    return described


class _Reader:
    """Turns the graph of a PT2E model into one of floats with marks."""

    def __init__(self, model: fx.GraphModule, described: Description, weights: Weights) -> None:
        self.model, self.described, self.weights = model, described, weights
        self.marks: dict[int, Any] = {}
        self.values: dict[fx.Node, Any] = {}

    def read(self) -> None:
        """Replace everything of PT2E's."""
        graph = self.model.graph
        for node in list(graph.nodes):
            if node.op == "call_module" and not node.users and node.target == "_guards_fn":
                graph.erase_node(node)
            elif node.op == "call_function" and name_of(node.target) == "aten.add_" and not node.users:
                graph.erase_node(node)  # counts batches
        for node in list(graph.nodes):
            if node.op == "call_module" and observes(self.model.get_submodule(str(node.target))):
                self._observer(node, self.model.get_submodule(str(node.target)))
            elif node.op == "call_function" and name_of(node.target).startswith(DECOMPOSED):
                self._decomposed(node, name_of(node.target).removeprefix(DECOMPOSED))
        for node in list(graph.nodes):
            if node.op == "call_function" and name_of(node.target) in NORMS:
                self._batch_norm(node)
        graph.eliminate_dead_code()
        for name in [name for name, child in self.model._modules.items() if observes(child) or name == "_guards_fn"]:
            del self.model._modules[name]
        self.model.recompile()

    # --- observers and operators ---------------------------------------------------------------------------------
    def _observer(self, node: fx.Node, observer: Any) -> None:
        source = node.all_input_nodes[0]
        name = self._label(source, node)
        if is_dynamic(observer):
            raise _dynamic(name)
        value = self.constant(source)
        if value is None:
            refuse_wide(observer, name)
        if is_float(observer):
            drop(self.model, node)
        elif value is not None:
            if not hasattr(observer, "fake_quant_enabled"):
                observer(value)
            self._weight(node, weight_grid(value, observer, name))
        else:
            if id(observer) not in self.marks:
                self.marks[id(observer)] = self.described.marks.make(activation_grid(observer, name))
            mark = self.marks[id(observer)]
            put_behind(self.model, node, mark, f"mark_{mark.number}")
            drop(self.model, node)

    def _decomposed(self, node: fx.Node, name: str) -> None:
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if name.startswith("choose_qparams"):
            raise _dynamic(self._label(node, node))
        if source is None or name not in QUANTIZE | DEQUANTIZE:
            what, remedy = f"the operator {DECOMPOSED}{name}", "quantize the float model with intact8"
            raise InputError(what, where=node.name, why="no reader knows it", remedy=remedy)
        constant = self.constant(source)
        if name in DEQUANTIZE and constant is not None:
            self._weight(node, self._stored(node, constant))
        elif name in QUANTIZE and constant is None:
            scale, zero_point, low, high, dtype = (self._value(a) for a in node.args[1:6])
            kind = str(dtype).removeprefix("torch.")
            if name == "quantize_per_channel" or kind not in RANGES:
                what = f"an activation of {kind}, {name.removeprefix('quantize_').replace('_', ' ')}"
                raise InputError(what, where=node.name, why="activations have 8 bits and one scale here")
            grid = ActivationGrid(self._label(source, node), float(scale), int(zero_point), low, high, kind)
            mark = self.described.marks.make(grid)
            put_behind(self.model, node, mark, f"mark_{mark.number}")
            drop(self.model, node)
        elif name in DEQUANTIZE:
            drop(self.model, node)

    def _stored(self, node: fx.Node, integers: Tensor) -> WeightGrid:
        """Return the grid of stored integers that a node dequantizes."""
        arguments = [self._value(a) for a in node.args[1:]]
        scale, zero_point = (np.atleast_1d(torch.as_tensor(a).detach().double().numpy()) for a in arguments[:2])
        axis = int(arguments[2]) if "per_channel" in name_of(node.target) else 0
        q = integers.detach().numpy().astype(np.int64)
        return WeightGrid(self._label(node, node), q, scale.reshape(-1), zero_point.reshape(-1).astype(np.int64), axis)

    def _weight(self, node: fx.Node, grid: WeightGrid) -> None:
        """Put a parameter in the place of a node."""
        user = next(iter(node.users), node)
        transposed = "transpose" in name_of(user.target) or (len(user.args) > 6 and user.args[6] is True)
        path = f"{grid.name}.weight" if _has_module(self.model, grid.name) else f"weight_{node.name}"
        if path in self.described.weights:
            path = f"weight_{node.name}"
        values = self.weights.enter(path, grid, transposed)
        owner, _, leaf = path.rpartition(".")
        holder = self.model.get_submodule(owner)
        if hasattr(holder, leaf):
            delattr(holder, leaf)
        holder.register_parameter(leaf, nn.Parameter(values, requires_grad=False))
        with self.model.graph.inserting_before(node):
            made = self.model.graph.get_attr(path)
        node.replace_all_uses_with(made)
        self.values[made] = values
        self.model.graph.erase_node(node)

    def _batch_norm(self, node: fx.Node) -> None:
        """Fold a batch norm into the convolution before it, whose weight was quantized with the norm folded in.

        In training PT2E divides the convolution's result by the norm's factor again; together these multiply by 1.
        """
        if name_of(node.target) == "aten.batch_norm":
            node.args = (*node.args[:5], False, *node.args[6:])
        chain = [node]
        while not name_of(chain[-1].target).startswith(CONVS):
            before = chain[-1].args[0]
            if not isinstance(before, fx.Node) or name_of(before.target) not in (*AFFINE, *CONVOLUTIONS):
                return
            chain.append(before)
        conv = chain[-1]
        weight = self.constant(conv.args[1])
        if weight is None or len(chain) < 3 or str(getattr(conv.args[1], "target", "")) not in self.described.weights:
            return
        shape = (1, len(weight), *[1] * (weight.ndim - 2))
        zero, one = (self._through(chain, torch.full(shape, value)) for value in (0.0, 1.0))
        if not torch.allclose(one - zero, torch.ones(()), rtol=1e-3, atol=1e-4):
            return
        path = f"bias_{conv.name}"
        self.model.register_parameter(path, nn.Parameter(zero.reshape(-1), requires_grad=False))
        with self.model.graph.inserting_before(conv):
            bias = self.model.graph.get_attr(path)
        conv.args = (*conv.args[:2], bias, *conv.args[3:])
        node.replace_all_uses_with(conv)

    def _through(self, chain: list[fx.Node], x: Tensor) -> Tensor:
        """Return what the nodes behind a convolution make of its result."""
        for node in reversed(chain[:-1]):
            arguments = [x, *(self._value(a) for a in node.args[1:])]
            assert callable(node.target)
            x = node.target(*arguments, **node.kwargs)
        return x.detach()

    # --- constants -----------------------------------------------------------------------------------------------
    def constant(self, node: Any) -> Tensor | None:
        """Return the value of a node that depends on no input of the network; None for all others."""
        found = self._value(node) if isinstance(node, fx.Node) and self._is_constant(node) else None
        return found.detach() if isinstance(found, Tensor) else None

    def _is_constant(self, node: fx.Node) -> bool:
        todo, seen = [node], set()
        while todo:
            at = todo.pop()
            if at.op not in ("get_attr", "call_function") or name_of(at.target).startswith("aten.batch_norm"):
                return False
            if at not in seen:
                seen.add(at)
                todo += at.all_input_nodes
        return True

    def _value(self, argument: Any) -> Any:
        """Return an argument with constants in the place of nodes."""
        if not isinstance(argument, fx.Node):
            return argument
        if argument not in self.values:
            if argument.op == "get_attr":
                return attribute(self.model, argument)
            arguments = fx.map_arg(argument.args, self._value)
            target: Callable[..., Any] = argument.target  # type: ignore[assignment]
            self.values[argument] = target(*arguments, **argument.kwargs)
        return self.values[argument]

    def _label(self, source: fx.Node, node: fx.Node) -> str:
        """Return the path of the module that made or reads a tensor, as the export recorded it; else its name."""
        for at in (source, *node.users):
            stack = at.meta.get("nn_module_stack") or {}
            path = list(stack.values())[-1][0] if stack and at.op == "call_function" else ""
            if path and (at is not source or not name_of(at.target).startswith(DECOMPOSED)):
                return str(path).replace("L['self'].", "")
        return source.name


CONVOLUTIONS = frozenset(
    {f"aten.conv{n}d" for n in (1, 2, 3)} | {"aten.convolution", "aten.conv_transpose1d", "aten.conv_transpose2d.input"}
)


def _has_module(model: nn.Module, path: str) -> bool:
    try:
        operator.attrgetter(path)(model)
    except AttributeError:
        return False
    return True


def _dynamic(name: str) -> InputError:
    remedy = "quantize the float model with intact8.recipes.dynamic()"
    return InputError("a tensor is quantized when the network runs", where=name, why="it has no range", remedy=remedy)
