"""Subjects that are torch modules: float models and simulations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from intact8.calibration.data import batches, device_of, first_batch
from intact8.calibration.sketch_observer import SketchObserver
from intact8.capture.graph import Node
from intact8.diagnose.lint.data_statistics import Seen, look
from intact8.errors import CaptureError, InputError, IntactError
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first

from .rule import MODEL, SIMULATION, NeedsError
from .subject import HEAVY, WANTED, Subject
from .views import GraphView, NodeView, PointView, WeightView

CLAMPS = frozenset({"relu", "clamp"})


class ModuleSubject(Subject):
    """A torch module of any kind.

    Attributes:
        module: it.
        data: example inputs or calibration data, or None.
    """

    def __init__(self, module: nn.Module, data: Any, optimizer: Any = None, schedule: Any = None) -> None:
        super().__init__(type(module).__name__, optimizer, schedule)
        self.module, self.data = module, data

    def example(self) -> Any:
        """A first batch for the model's forward. Raises NeedsError without data."""
        if self.data is None:
            raise NeedsError("data")
        example, self.data = first_batch(self.module, self.data)
        return example

    @cached_property
    def calls(self) -> Counter[str]:
        """Calls of every leaf module in one evaluating forward, by its first name. Raises NeedsError without data."""
        example, counted = self.example(), Counter[str]()
        leaves = {m: n for n, m in self.module.named_modules() if not any(True for _ in m.children())}
        training = {m: m.training for m in self.module.modules()}
        hooks = [
            m.register_forward_pre_hook(lambda _m, _x, name=name: counted.update([name])) for m, name in leaves.items()
        ]
        try:
            self.module.eval()
            with torch.no_grad():
                if isinstance(example, dict):
                    self.module(**example)
                else:
                    self.module(*(example if isinstance(example, tuple) else (example,)))
        finally:
            for hook in hooks:
                hook.remove()
            for module, flag in training.items():
                module.training = flag
        return counted


class ModelSubject(ModuleSubject):
    """A float model; its graph is what the default recipe would make of it."""

    kind = MODEL

    @cached_property
    def prepared(self) -> Simulation:
        """The simulation of the default recipe. Raises NeedsError without data, or the IntactError of prepare."""
        from intact8.simulation.prepare import prepare

        example = self.example()
        return prepare(self.module, example).eval()

    def _prepared(self) -> Simulation:
        try:
            return self.prepared
        except (CaptureError, InputError) as error:
            raise NeedsError("a model that can be captured") from error

    @cached_property
    def capture_error(self) -> IntactError | None:
        """Why the model cannot be captured. Raises NeedsError without data."""
        try:
            _ = self.prepared
        except CaptureError as error:
            return error
        return None

    @cached_property
    def graph(self) -> GraphView:
        """See :class:`Subject`."""
        return graph_of(self._prepared())

    @cached_property
    def seen(self) -> Seen:
        """See :class:`Subject`."""
        sim = self._prepared()
        return look(sim, batches(self.data, sim.input_specs, device_of(sim)))


class SimulationSubject(ModuleSubject):
    """A prepared model, calibrated or not, in evaluation or in training."""

    kind = SIMULATION

    def __init__(self, sim: Simulation, data: Any, optimizer: Any, schedule: Any) -> None:
        super().__init__(sim, data, optimizer, schedule)
        self.sim = sim

    @property
    def calibration(self) -> Mapping[str, Any]:
        """See :class:`Subject`."""
        return self.sim.calibration

    @cached_property
    def points(self) -> list[PointView]:
        """See :class:`Subject`."""
        return [_activation(name, self.sim) for name in self.sim.points] + [
            PointView(
                name, p.scale.detach().double().cpu().numpy(), np.zeros(p.scale.numel(), np.int64), p.lo, p.hi,
                symmetric=True, weight=True, known=p.scale.numel() > 0, quantizing=p.quantizing,
            )
            for name, p in self.sim.weight_points.items()
        ]  # fmt: skip

    @cached_property
    def weights(self) -> list[WeightView]:
        """See :class:`Subject`."""
        out = []
        for name, point in self.sim.weight_points.items():
            node = self.sim.graph.nodes[name]
            with torch.no_grad():
                weight = output_first(folded(node, self.sim.tensors)[0], node)
            rows = weight.detach().reshape(weight.shape[0], -1).double().cpu().numpy()
            per_channel = point.scheme.granularity == "per_channel"
            out.append(WeightView(name, rows, per_channel, tensor=node.params.get("weight", "")))
        return out

    @cached_property
    def graph(self) -> GraphView:
        """See :class:`Subject`."""
        return graph_of(self.sim)

    @cached_property
    def seen(self) -> Seen:
        """See :class:`Subject`."""
        if self.data is None:
            raise NeedsError("data")
        return look(self.sim, batches(self.data, self.sim.input_specs, device_of(self.sim)))


def _activation(name: str, sim: Simulation) -> PointView:
    p = sim.points[name]
    observer = p.observer
    bins = observer.sketch.bins() if isinstance(observer, SketchObserver) and observer.count else None
    constant = sim.placed.points[name].constant
    return PointView(
        name, np.array([float(p.scale)], np.float64), np.array([int(p.zero_point)]), p.lo, p.hi,
        symmetric=p.scheme.symmetric, middle=128, known=p.calibrated or p.fixed, fixed=p.fixed, observer=observer.kind,
        seen=None if constant else observer.count > 0, minimum=observer.minimum, maximum=observer.maximum, bins=bins,
        observing=p.observing, quantizing=p.quantizing, trained=p.source in ("observed", "learned"),
    )  # fmt: skip


def graph_of(sim: Simulation) -> GraphView:
    """The placed graph as a view."""
    return GraphView([_node(node, sim) for node in sim.graph], frozenset(sim.graph.outputs))


def _node(node: Node, sim: Simulation) -> NodeView:
    if node.op in ("input", "constant"):
        domain = "source"
    elif node.op in ("quantize", "dequantize"):
        domain = "transition"
    else:
        domain = "integer" if node.name in sim.placed.point_of else "float"
        domain = "coded" if node.name in sim.placed.coded else domain
    reason = sim.placed.float_nodes.get(node.name, "")
    chain = [step["op"] for step in node.attrs.get("chain", [])] if node.op == "table" else [node.op]
    return NodeView(
        node.name, node.op, node.module, tuple(node.inputs), domain, node.moves, node.op in HEAVY, reason,
        reason == WANTED, batch_norm=node.op == "scale_shift" and "bn" in node.attrs,
        activation=bool(chain) and all(op in CLAMPS for op in chain),
    )  # fmt: skip


def is_torch_ao(module: nn.Module) -> bool:
    """Whether torch.ao.quantization had its hands on the model. Imports nothing of it."""
    return any(type(m).__module__.startswith("torch.ao.") or hasattr(m, "qconfig") for m in module.modules())
