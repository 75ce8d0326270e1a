"""Models of torch.ao.quantization as a subject: fused, prepared or converted, eager or FX; lint never changes them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.ao.nn import quantized as nnq
from torch.ao.quantization import FakeQuantizeBase, ObserverBase

from intact8.diagnose.lint.rule import TORCH_AO, NeedsError
from intact8.diagnose.lint.subject_torch import ModuleSubject, Parameters
from intact8.diagnose.lint.torch_ao_dataflow import LAYERS, MOVE_MODULES, FlowNode, flow_of
from intact8.diagnose.lint.torch_ao_points import (
    extremes,
    is_converted,
    limits,
    of_converted,
    of_fake_quantizer,
    of_observer,
)
from intact8.diagnose.lint.views import Array, GraphView, NodeView, PointView, WeightView, numbers

PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)


class TorchAoSubject(ModuleSubject):
    """A model of torch.ao: its points, weights, graph and dataflow."""

    kind = TORCH_AO

    @cached_property
    def stage(self) -> str:
        """ "fused", "prepared" or "converted"."""
        if any(is_converted(m) for m in self.module.modules()):
            return "converted"
        prepared = any(isinstance(m, FakeQuantizeBase | ObserverBase) for m in self.module.modules())
        return "prepared" if prepared else "fused"

    @cached_property
    def calls(self) -> Counter[str]:
        """Calls of every leaf module in one evaluating forward; observers forget what they saw in it."""
        before = copy.deepcopy(self.module.state_dict()) if self.stage == "prepared" else None
        try:
            return super().calls
        finally:
            if before is not None:
                self.module.load_state_dict(before)

    @cached_property
    def fake_quantizers(self) -> list[tuple[str, Any]]:
        """Readable name and module of every fake quantizer."""
        return [(self.label(n), m) for n, m in self.module.named_modules() if isinstance(m, FakeQuantizeBase)]

    @property
    def calibrated_fake_quantizers(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, module and observer of every fake quantizer that does not learn and whose observer saw values."""
        for name, m in self.fake_quantizers:
            observer = getattr(m, "activation_post_process", None)
            if observer is not None and extremes(observer)[2] and not hasattr(m, "learning_enabled"):
                yield name, m, observer

    @cached_property
    def scale_parameters(self) -> Parameters:
        """Name and parameter of every scale and zero point of a learnable fake quantizer."""
        learned = {id(p) for _, m in self.fake_quantizers for p in m.parameters()}
        return [(name, p) for name, p in self.module.named_parameters() if id(p) in learned]

    @property
    def scales_frozen_in_training(self) -> bool:
        """Whether the model trains with fake quantizers of which none observes."""
        observing = not self.fake_quantizers or any(p.observing for p in self.points)
        return self.module.training and not observing

    @cached_property
    def _observed(self) -> dict[str, str]:
        """Path of an observer of an FX model → the module or tensor that it observes."""
        out: dict[str, str] = {}
        if isinstance(self.module, fx.GraphModule):
            for node in self.module.graph.nodes:
                if node.op == "call_module" and node.all_input_nodes:
                    first = node.all_input_nodes[0]
                    out[str(node.target)] = str(first.target if first.op == "call_module" else first.name)
        return out

    def label(self, path: str) -> str:
        """Return the name of the module or tensor that an observer or fake quantizer at ``path`` observes."""
        if path.rpartition(".")[2].startswith("activation_post_process_"):
            return self._observed.get(path, path)
        return path.removesuffix(".activation_post_process")

    @cached_property
    def points(self) -> list[PointView]:
        """The fake quantizers, observers and quantized modules that the forward uses."""
        inside = {id(c) for _, m in self.fake_quantizers for c in m.modules() if c is not m}
        out = []
        for path, m in self.module.named_modules():
            if isinstance(m, FakeQuantizeBase):
                out.append(of_fake_quantizer(self.label(path), m))
            elif isinstance(m, ObserverBase) and id(m) not in inside and hasattr(m, "min_val"):
                out.append(of_observer(self.label(path), m))
            elif is_converted(m) and hasattr(m, "scale") and hasattr(m, "zero_point"):
                out.append(of_converted(path, m.scale, m.zero_point))
        out = [p for p in out if p.seen or not self._unused(p)]
        if self.stage == "converted" and isinstance(self.module, fx.GraphModule):
            for name, scale in self.module.named_buffers(recurse=False):
                if "_scale_" in name:
                    zero_point = getattr(self.module, name.replace("_scale_", "_zero_point_"))
                    out.append(of_converted(name, scale, zero_point))
        return out

    def _unused(self, p: PointView) -> bool:
        """Return whether the forward of an eager model never calls what the point belongs to, as far as can be traced.

        Blocks that have a FloatFunctional for a residual they do not add are common, and no fault.
        """
        if not self.eager:
            return False
        try:
            called = {n.module for n in self.flow}
        except NeedsError:
            return False
        parts = p.name.split(".")
        return not any(".".join(parts[:i]) in called for i in range(1, len(parts) + 1))

    @cached_property
    def layers(self) -> list[tuple[str, Any]]:
        """Path and module of everything with a weight that is, or should be, quantized; parts of fused modules too."""
        converted = (nnq.Conv1d, nnq.Conv2d, nnq.Conv3d, nnq.Linear)
        return [(n, m) for n, m in self.module.named_modules() if isinstance(m, LAYERS + converted)]

    @cached_property
    def float_layers(self) -> list[str]:
        """Paths of layers with a weight that nothing quantizes."""
        modules = dict(self.module.named_modules(remove_duplicate=False))
        out = []
        for path, m in self.layers:
            parent = modules.get(path.rpartition(".")[0])
            fused = parent is not None and type(parent).__module__.startswith("torch.ao.nn.intrinsic")
            where, owner = (path.rpartition(".")[0], parent) if fused and parent is not None else (path, m)
            if not self.quantizes(where, owner):
                out.append(where)
        return list(dict.fromkeys(out))

    def quantizes(self, path: str, m: nn.Module) -> bool:
        """Return whether the result of a module is, or will be, integers."""
        if is_converted(m) or isinstance(m, FakeQuantizeBase | ObserverBase) or hasattr(m, "weight_fake_quant"):
            return True
        if self.stage == "fused":
            return getattr(m, "qconfig", None) is not None
        watched = getattr(m, "activation_post_process", None)
        if isinstance(watched, FakeQuantizeBase | ObserverBase):
            return True
        return path in self._observed.values() and self.stage == "prepared"

    @cached_property
    def weights(self) -> list[WeightView]:
        """The weights of converted layers, and of layers whose weight an observer or fake quantizer sees."""
        out = []
        for path, m in self.layers:
            if is_converted(m):
                weight = m.weight()
                out.append(WeightView(path, _rows(weight.dequantize()), weight.qscheme() in PER_CHANNEL))
                continue
            observer = self.weight_observer(path, m)
            if observer is not None:
                rows, per_channel = _rows(m.weight), getattr(observer, "qscheme", None) in PER_CHANNEL
                scale, _ = observer.calculate_qparams() if extremes(observer)[2] else (None, None)
                integers = None if scale is None else np.rint(rows / numbers(scale)[:, None]).clip(*limits(observer))
                out.append(WeightView(path, rows, per_channel, integers, f"{path}.weight"))
        return out

    @property
    def reach(self) -> int:
        """The largest integer of an activation. Raises NeedsError for a converted model."""
        if self.stage == "converted":
            raise NeedsError("the prepared model")  # whether activations were reduced to 7 bits is not in the converted
        return max((p.hi - p.lo for p in self.points if not p.weight), default=255)

    def weight_observer(self, path: str, m: Any) -> Any:
        """Return the observer that conversion asks for the scale of a layer's weight, after it saw the weight."""
        fake = getattr(m, "weight_fake_quant", None)
        if isinstance(fake, FakeQuantizeBase):
            return getattr(fake, "activation_post_process", None)
        qconfig = getattr(m, "qconfig", None)
        if qconfig is None or path in self.float_layers:
            return None
        made = qconfig.weight()
        observer = getattr(made, "activation_post_process", made)
        if not isinstance(observer, ObserverBase):
            return None
        observer(m.weight.detach())
        return observer

    @cached_property
    def flow(self) -> list[FlowNode]:
        """The calls of the forward. Raises NeedsError where it cannot be traced."""
        return flow_of(self.module, self.quantizes)

    @cached_property
    def calls_by_name(self) -> dict[str, FlowNode]:
        """The calls of the forward by name. Raises NeedsError where it cannot be traced."""
        return {n.name: n for n in self.flow}

    @cached_property
    def eager(self) -> bool:
        """Whether it is an eager model, not an FX model: the user wrote the stubs and functionals."""
        return not isinstance(self.module, fx.GraphModule)

    @cached_property
    def graph(self) -> GraphView:
        """The calls of the forward as a graph."""
        modules = dict(self.module.named_modules(remove_duplicate=False))
        calls = [n for n in self.flow if n.kind != "output"]
        nodes = [_node(n, modules.get(n.module), list(_sources(n, self.calls_by_name))) for n in calls]
        returned = {i for n in self.flow if n.kind == "output" for i in n.inputs}
        return GraphView(nodes, frozenset(returned))


def _sources(node: FlowNode, nodes: dict[str, FlowNode]) -> Iterator[FlowNode]:
    """Yield the calls that made the inputs, observers and identities left out."""
    for name in node.inputs:
        found = nodes[name]
        if found.kind in ("observer", "identity"):
            yield from _sources(found, nodes)
        else:
            yield found


def _node(n: FlowNode, m: nn.Module | None, sources: list[FlowNode]) -> NodeView:
    domain = "integer" if n.integers else "float"
    if n.kind in ("quantize", "dequantize"):
        domain = n.kind
    elif n.kind == "input" or n.call == "get_attr":
        domain = "source"
    # A BatchNorm or ReLU right behind a layer could have been fused with it.
    behind = any(s.kind in ("layer", "norm") for s in sources)
    reason = "nothing quantizes it" if n.kind == "layer" and not n.integers else ""
    moves = n.kind in ("observer", "identity") or isinstance(m, MOVE_MODULES)
    kinds = {"batch_norm": n.kind == "norm" and behind, "activation": n.kind == "relu" and behind}
    return NodeView(n.name, n.call, n.module, n.inputs, domain, moves, n.kind == "layer", reason, **kinds)


def _rows(weight: Tensor) -> Array:
    """Return a weight as float64 (O, K)."""
    rows: Array = weight.detach().reshape(weight.shape[0], -1).double().cpu().numpy()
    return rows
