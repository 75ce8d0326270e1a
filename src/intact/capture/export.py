"""Capture: from an unmodified model to a graph and the tensors it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from . import ops_layers, ops_pointwise, ops_reduce, ops_shape
from .call import Value
from .canonical import Builder, live
from .graph import Graph
from .names import rename
from .structure import InputLayout, Slot, call_of, describe
from .torch_export import Exported, check_model, evaluating, export

HANDLERS = {**ops_layers.HANDLERS, **ops_pointwise.HANDLERS, **ops_shape.HANDLERS, **ops_reduce.HANDLERS}
"""ATen operator name (without overload and trailing underscore) → what makes canonical nodes of it."""


@dataclass(frozen=True)
class Captured:
    """A captured model.

    Attributes:
        graph: canonical nodes.
        parameters: the model's own parameters (not copies) by state-dict name; tied ones under their first name.
        buffers: the model's own persistent buffers by state-dict name.
        constants: everything else the graph names, prefixed ``constants.``.
        aliases: further state-dict name of a tied tensor → first name.
        layout: how calls flatten into the graph's inputs.
        out_spec: torch pytree spec of the outputs.
        out_leaves: per leaf of ``out_spec``: a Slot (position in ``graph.outputs``) or a plain value.
        notes: what capture decided and the user may want to know.
    """

    graph: Graph
    parameters: dict[str, nn.Parameter | Tensor]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]
    aliases: dict[str, str]
    layout: InputLayout
    out_spec: pytree.TreeSpec
    out_leaves: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that nodes may name."""
        return {**self.parameters, **self.buffers, **self.constants}

    def without_tensors(self) -> Captured:
        """The same without parameters, buffers and constants: for holders that keep their own copies."""
        return replace(self, parameters={}, buffers={}, constants={})

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Names of the tensor inputs, in the order of ``graph.inputs``."""
        return self.layout.tensor_keys()

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Tensors of a call of the model, in the order of ``graph.inputs``. Raises InputError on a mismatch."""
        return self.layout.flatten(args, kwargs or {})

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The model's own output structure around ``outputs`` (one per ``graph.outputs``)."""
        leaves = [outputs[leaf.index] if isinstance(leaf, Slot) else leaf for leaf in self.out_leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)


def capture(model: nn.Module, example_inputs: Any, *, dynamic_batch: bool = True) -> Captured:
    """Capture ``model`` as a graph of canonical operations.

    The model is exported in eval mode; it is not changed, and its training flags are as before.

    Args:
        model: any module torch.export can follow, float32, on one device.
        example_inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        dynamic_batch: let dimension 0 of the inputs change from call to call. Where the model does not allow it,
            ``graph.dynamic_batch`` is False and ``notes`` has the reason.

    Raises:
        InputError: ``model`` is no module, or the example inputs hold no tensor.
        CaptureError: torch.export or intact cannot follow the model; names the module.

    Example:
        >>> captured = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.zeros(1, 4))
        >>> [(n.name, n.op, n.shape) for n in captured.graph]
        [('input', 'input', (None, 4)), ('0', 'linear', (None, 2)), ('1', 'relu', (None, 2))]
    """
    args, kwargs = call_of(example_inputs)
    check_model(model, args, kwargs)
    with evaluating(model):
        exported = export(model, args, kwargs, dynamic_batch)
    return _build(model, exported, InputLayout.of(model, args, kwargs))


def _build(model: nn.Module, exported: Exported, layout: InputLayout) -> Captured:
    program = exported.program
    parameters, buffers, constants, aliases = _state(model)
    named = {id(t): name for name, t in [*constants.items(), *buffers.items(), *parameters.items()]}
    protected = {t.untyped_storage().data_ptr(): n for n, t in [*parameters.items(), *buffers.items()] if t.numel()}
    builder = Builder(model, named, protected, HANDLERS, constants=constants)
    builder.notes += exported.notes
    feed, inputs = _placeholders(model, builder, program, layout)
    result = builder.run(program.graph_module, feed)
    node = next(n for n in program.graph.nodes if n.op == "output")
    outputs: list[str] = []
    leaves: list[Any] = []
    for item in result:
        if isinstance(item, Tensor):
            item = builder.constant(item, node)
        if isinstance(item, Value):
            leaves.append(Slot(len(outputs)))
            outputs.append(item.name)
        else:
            leaves.append(item)
    out_spec = program.call_spec.out_spec
    assert out_spec is not None  # an exported program always has one
    structure = describe(pytree.tree_unflatten(leaves, out_spec))
    dynamic = exported.dynamic_batch and bool(builder.batch_symbols)
    graph = live(Graph(builder.nodes, inputs, outputs, structure, dynamic))
    # Parametrized layers have a child that computes their weight, and are leaves all the same.
    leaves_of_tree = frozenset(
        name
        for name, m in model.named_modules()
        if name and all(n == "parametrizations" for n, _ in m.named_children())
    )
    graph = rename(graph, builder.labels, builder.calls, leaves_of_tree)
    used = {name for n in graph for name in n.params.values()}
    constants = {name: t for name, t in builder.constants.items() if name in used}
    return Captured(
        graph, parameters, buffers, constants, aliases, layout, out_spec, tuple(leaves), tuple(builder.notes)
    )


def _state(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter | Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Parameters, persistent buffers, other buffers, and aliases of tied tensors."""
    parameters: dict[str, nn.Parameter | Tensor] = {}
    buffers: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    persistent = set(model.state_dict(keep_vars=True))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) == name:
            parameters[name] = parameter
        else:
            aliases[name] = first[id(parameter)]
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name not in persistent:
            constants["constants." + name.replace(".", "_")] = buffer
        elif first.setdefault(id(buffer), name) == name:
            buffers[name] = buffer
        else:
            aliases[name] = first[id(buffer)]
    return parameters, buffers, constants, aliases


def _placeholders(
    model: nn.Module, builder: Builder, program: ExportedProgram, layout: InputLayout
) -> tuple[list[Any], list[str]]:
    """Values for the exported graph's placeholders, and the names of the input nodes."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    specs = {getattr(s.arg, "name", ""): s for s in program.graph_signature.input_specs}
    feed: list[Any] = []
    inputs: list[str] = []
    leaf = 0
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            feed.append(tensors[str(spec.target)])
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            value: Any = program.constants[str(spec.target)]
            feed.append(value.clone())
        elif spec.kind is InputKind.USER_INPUT:
            key, at, leaf = layout.keys[leaf], leaf, leaf + 1
            val = node.meta.get("val")
            if not isinstance(val, Tensor):
                feed.append(layout.fixed.get(at))
                continue
            symbolic = bool(val.ndim) and isinstance(val.shape[0], torch.SymInt)
            if symbolic:
                builder.batch_symbols |= set(val.shape[0].node.expr.free_symbols)  # type: ignore[attr-defined]
            shape = builder.shape_of_meta(val, node)
            dtype = builder.dtype_of_meta(node)
            made = builder.add_node("input", [], {"index": len(inputs), "key": key}, {}, shape, dtype, node, key)
            if builder.batch_input is None and symbolic:
                builder.batch_input = made
            inputs.append(made.name)
            feed.append(made)
        else:
            feed.append(None)  # tokens and custom objects: an operation that needs one is refused where it is used
    return feed, inputs
