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
from intact8.calibration.sketch import Bins
from intact8.calibration.sketch_observer import SketchObserver
from intact8.capture.graph import Node
from intact8.capture.pytree import call_of, copied
from intact8.errors import CaptureError, InputError, IntactError
from intact8.opset import KINDS
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first
from intact8.train.scale_phase import learned_scales

from .data_statistics import DataStatistics, collect
from .rule import MODEL, SIMULATION, NeedsError
from .subject import CLAMPS, WANTED, Subject, is_heavy
from .views import GraphView, NodeView, PointView, WeightView, numbers

Parameters = list[tuple[str, nn.Parameter]]


class ModuleSubject(Subject):
    """A torch module of any kind.

    Attributes:
        module: the module.
        data: example inputs or calibration data, or None.
    """

    def __init__(self, module: nn.Module, data: Any, optimizer: Any = None, schedule: Any = None) -> None:
        super().__init__(type(module).__name__, optimizer, schedule)
        self.module, self.data = module, data

    def example(self) -> Any:
        """Return a first batch for the model's forward. Raises NeedsError without data."""
        example, self.data = first_batch(self.module, self.required("data"))
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
                args, kwargs = copied(call_of(example))
                self.module(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
            for module, flag in training.items():
                module.training = flag
        return counted

    @cached_property
    def batch_norms(self) -> list[tuple[str, Any]]:
        """Path and module of every batch norm with running statistics."""
        modules = self.module.named_modules()
        norms = [(n, m) for n, m in modules if any(cls.__name__ == "_BatchNorm" for cls in type(m).__mro__)]
        return [(name, m) for name, m in norms if m.track_running_stats]

    @property
    def scale_parameters(self) -> Parameters:
        """Name and parameter of every scale (and zero point) that can be learned."""
        return []

    @cached_property
    def weight_parameters(self) -> Parameters:
        """Name and parameter of everything else that can be trained."""
        scales = {id(p) for _, p in self.scale_parameters}
        return [(name, p) for name, p in self.module.named_parameters() if id(p) not in scales]

    @property
    def scales_frozen_in_training(self) -> bool:
        """Whether the model trains with frozen scales, and batch norm was not frozen with them."""
        return False

    @property
    def optimized(self) -> set[int]:
        """The ``id`` of every parameter of the optimizer. Raises NeedsError where none was given."""
        return {id(p) for group in self.required("optimizer").param_groups for p in group["params"]}


class ModelSubject(ModuleSubject):
    """A float model; its graph is what the default recipe would make of it."""

    kind = MODEL

    @cached_property
    def _outcome(self) -> Simulation | IntactError:
        """What prepare returned or raised: every rule asks, and an error may take a second. NeedsError without data."""
        from intact8.calibration.dynamic_dimensions import changing
        from intact8.simulation.prepare import prepare

        example = self.example()
        try:
            sizes, self.data = changing(self.module, example, self.data)
            return prepare(self.module, example, dynamic_shapes=sizes).eval()
        except IntactError as error:
            return error

    @property
    def prepared(self) -> Simulation:
        """The simulation of the default recipe. Raises NeedsError without data, or the IntactError of prepare."""
        if isinstance(self._outcome, IntactError):
            raise self._outcome
        return self._outcome

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
        """The graph of the prepared model."""
        return graph_of(self._prepared())

    @cached_property
    def data_statistics(self) -> DataStatistics:
        """Statistics of the data, collected with the prepared model."""
        return statistics_of(self._prepared(), self.data)


class SimulationSubject(ModuleSubject):
    """A prepared model, calibrated or not, in evaluation or in training."""

    kind = SIMULATION

    def __init__(self, sim: Simulation, data: Any, optimizer: Any, schedule: Any) -> None:
        super().__init__(sim, data, optimizer, schedule)
        self.sim = sim

    @property
    def calibration(self) -> Mapping[str, Any]:
        """What calibration recorded."""
        return self.sim.calibration

    @cached_property
    def points(self) -> list[PointView]:
        """The points of activations, then those of weights."""
        out = [_activation(name, self.sim) for name in self.sim.points]
        for name, p in self.sim.weight_points.items():
            grid = numbers(p.scale), np.zeros(p.scale.numel(), np.int64), p.lo, p.hi
            known = p.scale.numel() > 0
            view = PointView(name, *grid, symmetric=True, weight=True, known=known, quantizing=p.quantizing)
            out.append(view)
        return out

    @cached_property
    def weights(self) -> list[WeightView]:
        """The weights that have a point, batch norm folded in."""
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
        """The placed graph."""
        return graph_of(self.sim)

    @cached_property
    def data_statistics(self) -> DataStatistics:
        """Statistics of the data. Raises NeedsError without data."""
        return statistics_of(self.sim, self.required("data"))

    @property
    def scale_parameters(self) -> Parameters:
        """Name and parameter of every learned scale."""
        return learned_scales(self.sim)

    @property
    def scales_frozen_in_training(self) -> bool:
        """Whether the simulation trains with frozen scales, and batch norm was not frozen with them."""
        return self.sim.training and self.sim.phase == "frozen" and not self.sim.scale_phase.batch_norm_frozen


def statistics_of(sim: Simulation, data: Any) -> DataStatistics:
    """Return the statistics of data as users give them."""
    return collect(sim, batches(data, sim.input_specs, device_of(sim)))


def _activation(name: str, sim: Simulation) -> PointView:
    p = sim.points[name]
    observer = p.observer
    bins = observer.sketch.bins() if isinstance(observer, SketchObserver) and observer.count else None
    ends = flat_ends({name: p}).get(p.tensors[0])
    if bins is not None and ends is not None:
        bins = Bins(np.clip(bins.low, *ends), np.clip(bins.high, *ends), bins.count)
    return PointView(
        name,
        numbers(p.scale),
        np.array([int(p.zero_point)]),
        p.lo,
        p.hi,
        symmetric=p.scheme.symmetric,
        middle=128,
        known=p.calibrated or p.fixed,
        fixed=p.fixed,
        observer=observer.kind,
        seen=None if sim.placed.points[name].constant else observer.count > 0,
        minimum=observer.minimum,
        maximum=observer.maximum,
        bins=bins,
        observing=p.observing,
        quantizing=p.quantizing,
        trained=p.source in ("observed", "learned"),
    )


def graph_of(sim: Simulation) -> GraphView:
    """Return the placed graph as a view."""
    return GraphView([_node(node, sim) for node in sim.graph], frozenset(sim.graph.outputs))


def _node(node: Node, sim: Simulation) -> NodeView:
    placed = sim.placed
    domain = "integer" if node.name in placed.point_of or node.name in placed.dequantized else "float"
    kind = KINDS.get(node.op)
    if kind is not None and kind.domain in ("quantize", "dequantize"):
        domain = kind.domain
    elif not node.inputs:
        domain = "source"
    elif node.name in placed.coded:
        domain = "dynamic"
    chain = [step["op"] for step in node.attrs.get("chain", [])] if node.op == "table" else [node.op]
    activation = bool(chain) and all(op in CLAMPS for op in chain)
    reason, batch_norm = placed.float_nodes.get(node.name, ""), node.op == "scale_shift" and "bn" in node.attrs
    place = node.name, node.op, node.module, tuple(node.inputs), domain
    return NodeView(*place, node.moves, is_heavy(node.op), reason, reason == WANTED, batch_norm, activation)


def is_torch_ao(module: nn.Module) -> bool:
    """Return whether torch.ao.quantization changed the model. Imports nothing of it."""
    return any(type(m).__module__.startswith("torch.ao.") or hasattr(m, "qconfig") for m in module.modules())
