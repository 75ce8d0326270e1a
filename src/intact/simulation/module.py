"""The simulation: an nn.Module that computes, in floating point, the integers that will be deployed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intact.capture import Captured
from intact.capture.fuse import Fused
from intact.capture.graph import Graph, Node
from intact.errors import InputError, StateError
from intact.recipe.place import Placed
from intact.recipe.recipe import Recipe

from .affine import Affine, LiveBatchNorms
from .motion import CALIBRATED, INITIAL, Motion, attach_learners, check_learning, enter, follow, learn
from .nodes import POOLS, SUMS, TABLES, run_node
from .points import ChannelValues, QuantPoint, Requantization, WeightPoint, matching
from .statistics import channel_axis, collect, equalizable
from .tree import Namespace, plant, tensors_of
from .values import Quantized, Value, real
from .versions import Snapshot

Call = tuple[tuple[Any, ...], dict[str, Any]]
Visitor = Callable[[Node, list[Value], Value], None]

AFFINE = frozenset({"conv", "linear", "scale_shift"})


class Tensors(Mapping[str, Tensor]):
    """Live view of a module's parameters, buffers and constants by name."""

    def __init__(self, root: nn.Module, constants: Mapping[str, tuple[nn.Module, str]]) -> None:
        self._owners: dict[str, tuple[nn.Module, str]] = dict(constants)
        for name in tensors_of(root):
            path, _, leaf = name.rpartition(".")
            self._owners[name] = (root.get_submodule(path), leaf)

    def __getitem__(self, name: str) -> Tensor:
        module, leaf = self._owners[name]
        tensor: Tensor | None = module._parameters.get(leaf)
        if tensor is None:
            tensor = module._buffers[leaf]
        assert tensor is not None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)


class Simulation(nn.Module):
    """A captured model with quantization points: what :func:`intact.prepare` returns.

    It keeps the original parameter names, so a float32 checkpoint loads into it and its weights load back. Before
    calibration it computes the float model; afterwards, in evaluation, exactly the integers of the deployed program.

    Attributes:
        points: quantization points of activations by the name of the module or op they belong to.
        weight_points: per-channel scales of weights by node name.
        placed: the graph with integer and float parts decided.
        recipe: what was asked for.
        constant_channels: layer → (channels that never changed in the first samples of calibration, channels).

    Example:
        >>> import torch, intact
        >>> sim = intact.prepare(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(2, 4))
        >>> sorted(sim.points)
        ['0', 'input']
        >>> "0.weight" in sim.state_dict()
        True
    """

    def __init__(self, model: nn.Module, captured: Captured, fused: Fused, placed: Placed, recipe: Recipe) -> None:
        super().__init__()
        self.captured = captured.without_tensors()
        self.placed, self.recipe, self.fusion_log = placed, recipe, fused.log
        plant(self, model)
        constants = Namespace()
        owners: dict[str, tuple[nn.Module, str]] = {}
        for i, (name, tensor) in enumerate({**captured.constants, **fused.constants}.items()):
            constants.register_buffer(f"c{i}", tensor.detach().clone(), persistent=False)
            owners[name] = (constants, f"c{i}")
        self._modules["constants"] = constants
        quantizers = Namespace()
        self._modules["quantizers"] = quantizers
        quantizers._modules["motion"] = Motion(INITIAL[recipe.scales])
        self.points: dict[str, QuantPoint] = {}
        self.weight_points: dict[str, WeightPoint] = {}
        self.requantizations: dict[str, Requantization] = {}
        for name, p in placed.points.items():
            self.points[name] = QuantPoint(name, p.scheme, p.tensors)
            _attach(quantizers, name, "activation_point", self.points[name])
        for name, scheme in placed.weights.items():
            self.weight_points[name] = WeightPoint(name, scheme, recipe.portable)
            _attach(quantizers, name, "weight_point", self.weight_points[name])
        for node in placed.graph:
            if node.name in placed.point_of and node.op in AFFINE | SUMS | POOLS | TABLES | {"mul"}:
                self.requantizations[node.name] = Requantization()
                _attach(quantizers, node.name, "requantization", self.requantizations[node.name])
        self.equalized = equalizable(placed.graph, set(self.weight_points)) if recipe.equalize else []
        for node, reader in self.equalized:
            name = self._channel_values(node, "equalization", node.shape[1], 1.0)
            node.params["equalize.out"] = reader.params["equalize.in"] = name
        if recipe.bias_correction:
            for node in placed.graph:
                if (
                    node.name in self.weight_points
                    and node.op in ("conv", "linear")
                    and not node.attrs.get("transposed")
                ):
                    shape = placed.graph.nodes[node.inputs[0]].shape
                    name = self._channel_values(node, "mean_input", shape[channel_axis(node)], 0.0)
                    node.params["correct.mean"] = name
        self._affine = {
            node.name: Affine(
                node, self.point(node.name), self.weight_points.get(node.name), self.requantizations.get(node.name)
            )
            for node in placed.graph
            if node.op in AFFINE
        }
        self._last_use = _last_uses(placed.graph)
        self._solved_scales: Snapshot | None = None
        self._solved_weights: Snapshot | None = None
        self.calibration: dict[str, Any] = {}
        self.constant_channels: dict[str, tuple[int, int]] = {}
        self.tensors = Tensors(self, owners)
        if recipe.scales == "learned":
            attach_learners(self)
            self.tensors = Tensors(self, owners)
        enter(self, INITIAL[recipe.scales])

    # -- reading ----------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The placed graph."""
        return self.placed.graph

    def point(self, node: str) -> QuantPoint | None:
        """The quantization point of a node's output; None inside a float island."""
        name = self.placed.point_of.get(node)
        return None if name is None else self.points[name]

    @property
    def calibrated(self) -> bool:
        """Whether every point knows its scale and zero point."""
        return all(p.calibrated for p in self.points.values())

    @property
    def resolved(self) -> bool:
        """Whether multipliers are tie-free and belong to the present scales of activations."""
        return self._solved_scales is not None and self._solved_scales.current(self._scales())

    @property
    def current(self) -> bool:
        """Whether the simulation is resolved and no weight has changed since: what a deployable one is."""
        return self.resolved and self._solved_weights is not None and self._solved_weights.current(self._weights())

    def _scales(self) -> Iterator[Tensor]:
        return (t for p in self.points.values() for t in (p.scale, p.zero_point))

    def _weights(self) -> Iterator[Tensor]:
        return itertools.chain(self.tensors.values(), (p.scale for p in self.weight_points.values()))

    def __getstate__(self) -> dict[str, Any]:
        # A copy's tensors are others. Solving again for the copy changes no integer.
        return {**self.__dict__, "_solved_scales": None, "_solved_weights": None}

    @property
    def input_specs(self) -> list[tuple[str, str, tuple[int | None, ...]]]:
        """Name, dtype and shape of every input, in order."""
        return [(n.attrs["key"], n.dtype, n.shape) for n in (self.graph.nodes[i] for i in self.graph.inputs)]

    def _channel_values(self, node: Node, leaf: str, channels: int | None, fill: float) -> str:
        """Attach one number per channel to a node; the name of the buffer."""
        assert channels is not None
        quantizers = self._modules["quantizers"]
        assert quantizers is not None
        _attach(quantizers, node.name, leaf, ChannelValues(channels, fill))
        return f"quantizers.{node.name}.{leaf}.value"

    def collect_statistics(self, calls: list[Call]) -> None:
        """Look at a few samples before ranges are observed: for equalization, bias correction and dead channels.

        Args:
            calls: (args, kwargs) of the model, one per batch.
        """
        observing = {name: point.observing for name, point in self.points.items()}
        self.observe(False)
        try:
            with torch.no_grad():
                collect(self, [self.flatten(*call) for call in calls])
        finally:
            for name, on in observing.items():
                self.points[name].observing = on

    # -- switching --------------------------------------------------------------------------------------------

    def observe(self, on: bool = True, match: str = "*") -> None:
        """Switch observing on or off at every activation point whose name equals or globs ``match``."""
        for name in matching(list(self.points), match):
            self.points[name].observing = on

    def fake_quantize(self, on: bool = True, match: str = "*") -> None:
        """Switch rounding on or off at every point (activations and weights) whose name equals or globs ``match``."""
        names = list(dict.fromkeys([*self.points, *self.weight_points]))
        for name in matching(names, match):
            if name in self.points:
                self.points[name].quantizing = on
            if name in self.weight_points:
                self.weight_points[name].quantizing = on

    @property
    def scale_motion(self) -> Motion:
        """What scales do in training; see ``intact.simulation.motion``."""
        motion = self.get_submodule("quantizers.motion")
        assert isinstance(motion, Motion)
        return motion

    @property
    def phase(self) -> str:
        """calibrated, observe, learn, hold or frozen; see ``intact.simulation.motion``."""
        return self.scale_motion.phase

    def observe_in_training(self) -> None:
        """Scales follow the observers in training from now on, and the weights.

        Raises:
            StateError: they are frozen.
        """
        self._require_moving("observe")
        enter(self, "observe")

    def stop_observing(self) -> None:
        """End the phase observe: scales are learned from now on where the recipe wants that, else held.

        Raises:
            CalibrationError: a point has seen nothing.
        """
        if self.phase != "observe":
            return
        self.resolve(from_observers=False)
        if self.recipe.scales == "learned":
            learn(self)
        else:
            enter(self, "hold")

    def freeze_scales(self) -> None:
        """Make all scales tie-free and keep them: training goes on with the integers that ship.

        Batch norm whose statistics are still live is not what ships: freeze it first.

        Raises:
            CalibrationError: a point has no scale.
        """
        if self.phase != "frozen":
            self._solve(from_observers=False, freezing=True)
            enter(self, "frozen")

    def freeze_batch_norm(self, on: bool = True) -> None:
        """Use running statistics in training, too, whatever ``.train()`` sets."""
        self.scale_motion.batch_norm_frozen = on

    def _require_moving(self, verb: str) -> None:
        if self.phase == "frozen":
            raise StateError(
                f"cannot {verb}: the scales are frozen", why="training computes the integers that ship already",
                remedy="call intact.calibrate to begin again",
            )  # fmt: skip

    def resolve(self, *, from_observers: bool = True) -> None:
        """Make all multipliers tie-free; see ``intact.simulation.resolve``.

        Args:
            from_observers: start from what the observers saw, as calibration does, and let the recipe's training of
                scales begin; otherwise from the present scales.

        Raises:
            CalibrationError: a point has seen nothing and has no fixed scale.
        """
        self._solve(from_observers=from_observers, freezing=from_observers and self.recipe.scales == "fixed")
        if from_observers and self.recipe.scales == "learned":
            learn(self)
            self._solved_weights = Snapshot(self._weights())
        elif from_observers:
            enter(self, CALIBRATED[self.recipe.scales])

    def _solve(self, *, from_observers: bool, freezing: bool) -> None:
        from .resolve import resolve

        resolve(self, from_observers=from_observers, freezing=freezing)
        self._solved_scales, self._solved_weights = Snapshot(self._scales()), Snapshot(self._weights())

    # -- running ----------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original model's signature and output structure."""
        values = self.run(self.flatten(args, kwargs))
        return self.captured.rebuild([real(values[name]) for name in self.graph.outputs])

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """A call's tensors in the order of the graph's inputs.

        Raises:
            InputError: arguments nest differently from the example inputs.
        """
        return self.captured.flatten(args, kwargs)

    def run(
        self,
        inputs: list[Tensor],
        *,
        keep: bool = False,
        feed: Mapping[str, Tensor] | None = None,
        visit: Visitor | None = None,
    ) -> dict[str, Value]:
        """Compute the graph.

        Args:
            inputs: flat input tensors.
            keep: keep every intermediate value, not only the outputs.
            feed: values of float nodes to use instead of computing them.
            visit: called with every node, its inputs and its output.
        """
        resolved = self._ready()
        values: dict[str, Value] = {}
        for name, tensor in zip(self.graph.inputs, inputs, strict=True):
            values[name] = tensor
        for position, node in enumerate(self.graph):
            if node.op == "input":
                continue
            if feed is not None and node.name in feed:
                values[node.name] = feed[node.name]
                continue
            taken = [values[name] for name in node.inputs]
            if node.op in AFFINE:
                value = self._affine[node.name](taken, self.tensors, self._live_batch_norms(node), resolved)
            else:
                value = run_node(
                    node,
                    taken,
                    self.tensors,
                    self.point(node.name),
                    self.requantizations.get(node.name),
                    resolved,
                    self._training(node.module),
                )
            values[node.name] = value
            if visit is not None:
                visit(node, taken, value)
            if not keep:
                for name in self._last_use[position]:
                    del values[name]
        if self.training and self.phase == "observe":
            follow(self, missing_only=True)
        return values

    def _ready(self) -> bool:
        """Bring scales up to date before a forward; whether it uses tie-free multipliers."""
        if not self.training:
            if all(p.active for p in self.points.values()) and not self.current:
                self.resolve(from_observers=False)
            return self.resolved
        if self.phase == "observe":
            follow(self)
        elif self.phase == "learn" and torch.is_grad_enabled():
            check_learning(self)
        elif self.phase == "frozen":
            if self._solved_scales is None:  # a loaded state, or a copy: saved as solved
                self._solved_scales = Snapshot(self._scales())
            from .resolve import follow_slopes

            follow_slopes(self)
        return self.phase in ("calibrated", "frozen") and self.resolved

    def integer_tensors(
        self, inputs: list[Tensor], feed: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Every quantized tensor by name as uint8, for comparison with engines.

        Raises:
            StateError: the simulation is not calibrated, in training mode, or fake quantization is off somewhere.
        """
        self.require_deployable()
        device = next((t.device for t in self.tensors.values()), torch.device("cpu"))
        fed = None if feed is None else {k: torch.from_numpy(np.asarray(v)).to(device) for k, v in feed.items()}
        with torch.no_grad():
            values = self.run([t.to(device) for t in inputs], keep=True, feed=fed)
        return {name: v.integers().cpu().numpy() for name, v in values.items() if isinstance(v, Quantized)}

    def require_deployable(self) -> None:
        """Raise StateError unless this simulation computes what would be deployed now."""
        missing = [n for n, p in self.points.items() if not p.calibrated]
        if missing:
            raise StateError(
                f"{len(missing)} of {len(self.points)} quantization points have no scale yet", where=missing[0],
                why="the simulation was not calibrated", remedy="call intact.calibrate(sim, data) first",
            )  # fmt: skip
        if self.training:
            raise StateError("the simulation is in training mode", remedy="call sim.eval() first")
        off = [n for n, p in (*self.points.items(), *self.weight_points.items()) if not p.quantizing]
        if off:
            raise StateError(
                f"fake quantization is off at {len(off)} points", where=off[0], remedy="call sim.fake_quantize(True)"
            )

    def _training(self, path: str) -> bool:
        try:
            return self.get_submodule(path).training
        except AttributeError:
            return self.training

    def _live_batch_norms(self, node: Node) -> LiveBatchNorms | None:
        found = LiveBatchNorms(
            *(self._training_batch_norm(node.params.get(f"{r}.running_mean")) for r in ("pre", "bn"))
        )
        return None if found == (None, None) else found

    def _training_batch_norm(self, name: str | None) -> nn.Module | None:
        if name is None:
            return None
        module = self.tensors._owners[name][0]
        live = module.training and not self.scale_motion.batch_norm_frozen
        return module if live and isinstance(module, nn.modules.batchnorm._BatchNorm) else None


def _attach(root: nn.Module, path: str, leaf: str, module: nn.Module) -> None:
    for part in path.split("."):
        if part not in root._modules:
            root._modules[part] = Namespace()
        child = root._modules[part]
        assert child is not None
        root = child
    root._modules[leaf] = module


def _last_uses(graph: Graph) -> list[list[str]]:
    """For every node, the values no later node needs."""
    last = {name: position for position, node in enumerate(graph) for name in node.inputs}
    uses: list[list[str]] = [[] for _ in graph]
    for name, position in last.items():
        if name not in graph.outputs:
            uses[position].append(name)
    return uses


__all__ = ["InputError", "Simulation", "Tensors"]
