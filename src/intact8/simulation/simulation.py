"""The simulation is an nn.Module that computes, in floating point, the integers that will be deployed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intact8 import late_binding
from intact8.calibration.data import device_of, merged
from intact8.capture import Captured
from intact8.capture.graph import Graph, Node
from intact8.capture.torch_export import hides_scores
from intact8.display import Shown
from intact8.errors import CaptureError, CaptureWarning, IntactError, InternalError, StateError, not_for_export, warn
from intact8.fusion.fuse import Fused
from intact8.opset.values import LARGEST_A
from intact8.placement.place import Placed
from intact8.program.inputs import holds_nan, outside, refuse_other_layouts
from intact8.program.names import part_name
from intact8.recipe.recipe import CHOSEN_BETWEEN_LAYERS, LEARNED_ROUNDINGS, Recipe
from intact8.simulation.channel_statistics import attach_mean_inputs, attach_rounding, collect
from intact8.simulation.equalization import Equalized, attach_factors
from intact8.simulation.layers import Layer, make_layers
from intact8.simulation.numbers import number_of
from intact8.simulation.ops.affine import LiveBatchNorms
from intact8.simulation.ops.dequantized import DequantizedLayer
from intact8.simulation.ops.dispatch import run_node
from intact8.simulation.ops.recurrent import run_layer
from intact8.simulation.ops.weight_only import DecodedEmbedding, DynamicLinear
from intact8.simulation.overview import overview
from intact8.simulation.parameters import Namespace, copy_parameters
from intact8.simulation.quantized_graph import QuantizedGraph
from intact8.simulation.quantized_tensor import Quantized, Value, real
from intact8.simulation.scales.learners import attach_learners
from intact8.simulation.scales.quant_points import SMALLER_RATE, QuantPoint, Requantization
from intact8.simulation.scales.resolve import follow_slopes, resolve
from intact8.simulation.tensors import Tensors
from intact8.torch_defaults import require_defaults
from intact8.train import fused
from intact8.train.distributed import connected, in_backward, watching
from intact8.train.extra_state import unpack
from intact8.train.learned_range import LearnedRange
from intact8.train.learned_scale import LearnedScale, computed_once
from intact8.train.optimizer import expect_step
from intact8.train.scale_phase import (
    CALIBRATED,
    INITIAL,
    check_learning,
    enter,
    follow,
    follow_offsets,
    learn,
    learned_scales,
)
from intact8.train.snapshot import Snapshot, Sums
from intact8.train.straight_through import first_order
from intact8.train.trainable import Trainable

Call = tuple[tuple[Any, ...], dict[str, Any]]
Visitor = Callable[[Node, list[Value], Value], None]

FAULTS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""Exceptions that a mistake in this library raises; others steer torch, as the end of a recomputation does."""

BATCH_NORM = nn.modules.batchnorm._BatchNorm

KEPT, KEPT_FOR_MOMENTS, KEPT_FOR_RANGES = 256, 32, 128
"""Samples kept for reconstruction unless the recipe says how many: where it learns, where moments are enough, and where
ranges are chosen by outputs: three quarters of them judge the choice. A quarter of that number knew too little of what
is clipped in others: an LSTM lost 8 dB by it, EEGNet 4."""

CHECKED = 16
"""Samples kept for the check at the end of conversion, at most."""


OWN_MODULES = frozenset({"constants", "quantizers"})
"""Names of the modules that a simulation adds to those of the model."""


class Simulation(Shown, Trainable):
    """A captured model with quantization points: what :func:`intact8.prepare` returns.

    It keeps the original parameter names, so a float32 checkpoint loads into it and its weights load back. What it adds
    to the model stays as it is then: calibrate again where other weights make other ranges. Before calibration it
    computes the float model; afterwards, in evaluation, exactly the integers of the deployed program.

    Attributes:
        points, weight_points, coded_points, recurrent_points, requantizations, placed, recipe: see
            :class:`~intact8.simulation.quantized_graph.QuantizedGraph`.
        layer_ops: how layers with weights are computed, by node name.
        constant_channels: layer → (channels that never changed in the first samples of calibration, channels).
        samples: flat inputs of the first few samples of calibration, for what ``convert`` checks at its end.
        kept: flat inputs of the first batches of calibration, where the recipe wants layers reconstructed.
        last_uses: for every node in order, the values no later node needs.
        captured_names: names of the parameters, buffers and constants of the captured model.
        number: by which torch.compile finds it, see :mod:`intact8.simulation.numbers`.
        deployed: the converted program that ``torch.compile(sim, backend="intact8")`` runs, as a module; None before.
        step: what trains it where ``torch.compile(sim, mode="reduce-overhead")`` asks for CUDA graphs; None before.

    Example:
        >>> import torch, intact8
        >>> sim = intact8.prepare(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(2, 4))
        >>> sorted(sim.points)
        ['0', 'input']
        >>> "0.weight" in sim.state_dict()
        True
    """

    tensors: Tensors
    requantizations: dict[str, Requantization]
    quantized_graph: QuantizedGraph
    fusion_log: Any
    equalized: list[Equalized]
    last_uses: list[list[str]]
    layer_ops: dict[str, Layer]
    samples: list[Tensor]
    kept: list[list[Tensor]]
    deployed: Any
    step: Any
    number: int
    captured_names: tuple[tuple[str, ...], ...]
    calibration: dict[str, Any]
    constant_channels: dict[str, tuple[int, int]]
    _left: tuple[str, ...] = ()
    _solved_scales: Snapshot | None
    _solved_weights: Snapshot | None
    _sums: Sums | None

    def __init__(self, model: nn.Module, captured: Captured, fused: Fused, placed: Placed, recipe: Recipe) -> None:
        super().__init__()
        copy_parameters(self, model, leave_out=OWN_MODULES if isinstance(model, Simulation) else frozenset())
        for name in sorted(OWN_MODULES & (self._modules.keys() | self._parameters.keys() | self._buffers.keys())):
            why = "a simulation keeps what it adds to the model under that name, in state dicts too"
            remedy = "rename it in the model"
            raise CaptureError("this name is reserved", where=name, why=why, remedy=remedy)
        self.captured = captured.without_tensors()
        self.number = number_of(self)
        self.build(captured, fused, placed, recipe)
        self.to(device_of(model))  # what was attached above was made on the CPU
        self.register_load_state_dict_pre_hook(_become_what_was_chosen)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_tell_float_checkpoint)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def build(self, captured: Captured, fused: Fused, placed: Placed, recipe: Recipe) -> None:
        """Add what quantizes the model, not calibrated, in place of what there is; parameters stay."""
        for name in OWN_MODULES:
            self._modules.pop(name, None)
        self.placed, self.recipe, self.fusion_log = placed, recipe, fused.log
        self.captured_names = tuple(captured.parameters), tuple(captured.buffers), tuple(captured.constants)
        constants = Namespace()
        owners: dict[str, tuple[nn.Module, str]] = {}
        for i, (name, tensor) in enumerate({**captured.constants, **fused.constants}.items()):
            if name not in captured.derived:
                constants.register_buffer(f"c{i}", tensor.detach().clone(), persistent=False)
                owners[name] = (constants, f"c{i}")
        self.quantized_graph = q = QuantizedGraph(placed, recipe)
        self._modules["constants"], self._modules["quantizers"] = constants, q.module
        self.points, self.requantizations = q.points, q.requantizations
        self.weight_points, self.coded_points = q.weight_points, q.coded_points
        self.recurrent_points = q.recurrent_points
        self.equalized = attach_factors(q)
        attach_mean_inputs(q)
        attach_rounding(q, captured.tensors())
        self.last_uses = _last_uses(placed.graph)
        self.samples, self.kept = [], []
        self._solved_scales = self._solved_weights = self._sums = None
        self.deployed = self.step = None
        self.calibration, self.constant_channels = {}, {}
        self.tensors = q.tensors = Tensors(self, owners, captured.derived)
        if recipe.learns:
            attach_learners(q)
            self.tensors = q.tensors = Tensors(self, owners, captured.derived)
        self.layer_ops = make_layers(q)
        enter(self, INITIAL[recipe.scales])

    def captured_again(self) -> Captured:
        """Return what was captured, with the tensors that the simulation has now."""
        with torch.no_grad():
            found = [{name: self.tensors[name] for name in names} for names in self.captured_names]
        parameters, buffers, constants = found
        return replace(self.captured, parameters={**parameters}, buffers=buffers, constants=constants)

    def take(self, other: Simulation) -> None:
        """Take the calibration of another simulation of the same weights and recipe."""
        self.load_state_dict(other.state_dict())
        self.samples, self.kept = other.samples, other.kept
        self.calibration, self.constant_channels = other.calibration, other.constant_channels
        if not self.training:
            self.ready()

    def __rich__(self) -> Any:
        return overview(self).__rich__()

    def __setattr__(self, name: str, value: Any) -> None:
        # The model's modules and tensors may have the names of attributes of this class: both are kept.
        if name in _ATTRIBUTES:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """Return a module of the model by its path, also where it has the name of an attribute of this class."""
        first, _, rest = target.partition(".")
        module = self._modules.get(first) if first else self
        if module is None:
            raise AttributeError(f"{type(self).__name__} has no module {first!r}")
        return module.get_submodule(rest) if rest else module

    def point(self, node: str) -> QuantPoint | None:
        """Return the quantization point of a node's output; None inside a float island."""
        return self.quantized_graph.point(node)

    @property
    def calibrated(self) -> bool:
        """Whether every point knows its scale and zero point."""
        return all(p.calibrated for p in self.points.values())

    @property
    def resolved(self) -> bool:
        """Whether multipliers are tie-free and belong to the present scales of activations."""
        return self._solved_scales is not None and self._solved_scales.current(self._scales())

    @property
    def solution(self) -> tuple[Snapshot | None, Snapshot | None]:
        """What multipliers and weights were solved for last; another where they were solved again."""
        return self._solved_scales, self._solved_weights

    @property
    def current(self) -> bool:
        """Whether the simulation is resolved and no weight has changed since: what a deployable one is.

        In evaluation, writes through ``weight.data`` are noticed as well, which torch does not count.
        """
        if not self.training:
            tensors = [*self._weights(), *self._scales()]
            if self._sums is None or self._sums.counted(tensors):
                self._sums = Sums(tensors)
        return self.resolved and self._solved_weights is not None and self._solved_weights.current(self._weights())

    def _scales(self) -> Iterator[Tensor]:
        return (t for p in self.points.values() for t in (p.scale, p.zero_point))

    def _weights(self) -> Iterator[Tensor]:
        return itertools.chain(self.tensors.stored(), (p.scale for p in self.all_weight_points.values()))

    def __getstate__(self) -> dict[str, Any]:
        # A copy has other tensors; solving again for it changes no integer.
        forgotten = dict.fromkeys(("_solved_scales", "_solved_weights", "_sums", "deployed", "step"))
        return {**self.__dict__, **forgotten, "kept": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.number = number_of(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Simulation:
        """Do to all tensors what ``to``, ``cuda``, ``half`` and others ask for, unless it makes float32 another."""
        probe = fn(torch.zeros(1, dtype=torch.float32))
        dtype = probe.dtype
        if probe.is_meta:
            what, why = "a simulation cannot be on device meta", "ranges and what follows from them are values"
            remedy = "keep it on a device that has values, and save its state_dict() for later"
            raise StateError(what, where="Simulation", why=why, remedy=remedy)
        if dtype.is_floating_point and dtype != torch.float32:
            what, why = f"a simulation cannot be of dtype {str(dtype)[6:]}", "integers are exact in nothing but float32"
            remedy = "leave it float32; around it, autocast and modules of other floats may be used"
            raise StateError(what, where="Simulation", why=why, remedy=remedy)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def train(self, mode: bool = True) -> Simulation:
        """Set the mode; training warns of parameters that it cannot move, evaluation frees the memory it has kept."""
        untrained = self.captured.untrained if mode and not self.training else ()
        names = ", ".join(name for name in untrained if self.get_parameter(name).requires_grad)
        if names:
            reason = "numbers are computed from them, or tensors written into, which was done once, at capture"
            remedy = (
                "compute with numbers as tensors, not by float() or .item(), and write nothing in place into what is "
                "computed from parameters"
            )
            warn(CaptureWarning(f"not trained: {names}. Reason: {reason}. Remedy: {remedy}"))
        super().train(mode)
        if not mode:
            fused.release_memory()
        return self

    @property
    def ranges_by_outputs(self) -> bool:
        """Whether ranges of activations are chosen by the error of the outputs."""
        return any(point.scheme.observer == "output" and not point.fixed for point in self.points.values())

    @property
    def reconstructs(self) -> bool:
        """Whether calibration ends with samples going through the network: for roundings, or ranges by its outputs."""
        return self.recipe.reconstruction != "none" or self.ranges_by_outputs

    def collect_statistics(self, calls: list[Call]) -> None:
        """Collect statistics of a few batches, (args, kwargs): for equalization, bias correction and dead channels."""
        observing = {name: point.observing for name, point in self.points.items()}
        self.observe(False)
        try:
            with torch.no_grad():
                inputs = [self.flatten(*call) for call in calls]
                self.kept = []
                self.constant_channels = collect(self.quantized_graph, self.equalized, inputs, self.run)
                batched = self.quantized_graph.batched
                kept = merged(inputs, batched, CHECKED if batched else 1)
                self.samples = [t.detach().clone() for t in kept[0]] if kept else []
        finally:
            for name, on in observing.items():
                self.points[name].observing = on

    def keep(self, inputs: list[Tensor]) -> None:
        """Keep the flat inputs of a call of calibration, where its end needs them and more are needed."""
        if self.reconstructs:
            usual = KEPT if self.recipe.reconstruction in LEARNED_ROUNDINGS else KEPT_FOR_MOMENTS
            usual = max(usual, KEPT_FOR_RANGES) if self.ranges_by_outputs else usual
            left = self.recipe.reconstruction_args.get("samples", usual) - sum(len(inputs[0]) for inputs in self.kept)
            if left > 0:
                batched = self.quantized_graph.batched
                self.kept.append([(t[:left] if batched else t).clone() for t in inputs])

    def resolve(self, *, from_observers: bool = True) -> None:
        """Make all multipliers tie-free; see ``intact8.simulation.scales.resolve``.

        Args:
            from_observers: start from what the observers saw, as calibration does, and let the recipe's training of
                scales begin; otherwise from the present scales.

        Raises:
            CalibrationError: a point has seen no data and has no fixed scale.
        """
        self._solve(from_observers=from_observers, freezing=from_observers and self.recipe.scales == "fixed")
        if from_observers and self.recipe.learns:
            learn(self)
            self._solved_weights = Snapshot(self._weights())
        elif from_observers:
            enter(self, CALIBRATED[self.recipe.scales])
        deferred = self.recipe.reconstruction_args.get("deferred", False)
        if from_observers and self.reconstructs and self.kept and not deferred:
            late_binding.call("reconstruct", self)

    def _solve(self, *, from_observers: bool, freezing: bool) -> None:
        freezing = freezing or self.phase == "frozen"
        if not from_observers:  # calibration says itself what it cannot quantize
            self.require_finite()
        resolve(self.quantized_graph, from_observers=from_observers, freezing=freezing)
        self._solved_scales = Snapshot(self._scales(), values=True)
        self._solved_weights = Snapshot(self._weights())
        self._sums = None if self.training else Sums([*self._weights(), *self._scales()])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs, with the signature and output structure of the original model.

        Under autocast everything is computed in float32 all the same: integers are exact in nothing less.

        Raises:
            InputError: as :meth:`run`.
            StateError: torch traces or exports it.
        """
        if torch.compiler.is_compiling():
            from intact8.simulation.torch_compile import call_compiled

            return call_compiled(self, args, kwargs)
        if torch._C._is_tracing():
            raise not_for_export()
        return self.call(args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute what :meth:`forward` does, from a tuple and a dict."""
        return self.captured.rebuild(self.outputs_of(self.flatten(args, kwargs)))

    def outputs_of(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the outputs of the graph, in its order, for flat inputs."""
        values = self.run(inputs)
        outputs = first_order([real(values[name]) for name in self.graph.outputs], inputs)
        return connected(self, outputs, lambda: [p for _, p in learned_scales(self)])

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors of a call in the order of the graph's inputs.

        Raises:
            InputError: arguments nest differently from the example inputs, or one is sparse, nested or on meta.
        """
        given = self.captured.flatten(args, kwargs)
        for name, x in zip(self.graph.inputs, given, strict=True):
            refuse_other_layouts(name, x)
        return given

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

        Raises:
            InputError: in evaluation, an input that is quantized holds NaN; an index lies outside its table; or torch
                makes tensors of another dtype than float32, or without values, by default.
        """
        require_defaults()
        resolved, current = self._brought_up()
        fused.keep_memory(self.training)
        with self._verified() if current else nullcontext():
            return self._run(inputs, keep, feed, visit, resolved)

    def _run(
        self,
        inputs: list[Tensor],
        keep: bool,
        feed: Mapping[str, Tensor] | None,
        visit: Visitor | None,
        resolved: bool,
    ) -> dict[str, Value]:
        values: dict[str, Value] = dict(zip(self.graph.inputs, inputs, strict=True))
        if not self.training:
            self._refuse_nan(values)
        device = next((t.device.type for t in inputs), "cpu")
        with torch.autocast(device, enabled=False), watching(self), computed_once(self._learners()):
            for position, node in enumerate(self.graph.sized(inputs)):
                if node.op == "input":
                    continue
                if feed is not None and node.name in feed:
                    values[node.name] = feed[node.name]
                    continue
                taken = [values[name] for name in node.inputs]
                try:
                    values[node.name] = value = self.compute(node, taken, resolved)
                except (IntactError, MemoryError, torch.OutOfMemoryError):
                    raise
                except IndexError as error:
                    if node.op != "embedding":
                        raise InternalError(f"simulating {node.op} failed", _place(node), error) from error
                    index, rows = real(taken[0]), len(self.tensors[node.params["weight"]])
                    seen = f"indices from {int(index.min())} to {int(index.max())}, of {rows} rows"
                    raise outside(node.name, seen) from error
                except FAULTS as error:
                    raise InternalError(f"simulating {node.op} failed", _place(node), error) from error
                if visit is not None:
                    visit(node, taken, value)
                if not keep:
                    for name in self.last_uses[position]:
                        del values[name]
        if self.training and self.phase == "observe" and not in_backward():
            follow(self, missing_only=True)
        return values

    def _refuse_nan(self, inputs: Mapping[str, Value]) -> None:
        """Raise an InputError where an input that is quantized holds NaN, as every engine does."""
        for node in self.graph:
            x = inputs.get(node.inputs[0]) if node.op == "quantize" else None
            point = self.point(node.name)
            if x is not None and point is not None and point.active and bool(real(x).isnan().any()):
                raise holds_nan(node.inputs[0])

    def compute(self, node: Node, inputs: list[Value], resolved: bool) -> Value:
        """Return the output of a node that is not an input; ``resolved`` says whether to use tie-free multipliers."""
        recurrent = self.recurrent_points.get(node.name)
        if recurrent is not None and recurrent.quantizing and (recurrent.scale.numel() or self.calibrated):
            return run_layer(node, [real(v) for v in inputs], self.tensors, recurrent)
        layer = self.layer_ops.get(node.name)
        if layer is not None:
            return layer(inputs, self._live_batch_norms(node), resolved)
        point, multipliers = self.point(node.name), self.requantizations.get(node.name)
        return run_node(node, inputs, self.tensors, point, multipliers, resolved, self._training(node.module))

    @contextmanager
    def _verified(self) -> Iterator[None]:
        """Tell layers of a simulation that is :attr:`current`, while this lasts, in which state all tensors are."""
        verified = self.quantized_graph.verified
        assert self._solved_scales is not None and self._solved_weights is not None
        verified.state = self._solved_scales, self._solved_weights  # of all tensors, those of the quantizers, too
        try:
            yield
        finally:
            verified.state = None

    def ready(self) -> bool:
        """Bring scales up to date before a forward, and return whether it uses tie-free multipliers."""
        return self._brought_up()[0]

    def _brought_up(self) -> tuple[bool, bool]:
        """Do what :meth:`ready` does; return, too, whether everything is known to be :attr:`current`, in evaluation."""
        if not self.training:
            if not all(p.active for p in self.points.values()):
                return self.resolved, False
            if self.current:
                return True, True
            self.resolve(from_observers=False)
            return self.resolved, False
        if torch.is_grad_enabled():
            expect_step(self)
        if in_backward():
            pass  # this forward is run again with the scales it had
        elif self.phase == "observe":
            follow(self, missing_only=False)
        elif self.phase == "learn":
            if torch.is_grad_enabled():
                check_learning(self)
            follow_offsets(self)
        elif self.phase == "frozen":
            if self._solved_scales is None:  # a loaded state or a copy was saved as solved
                self._solved_scales = Snapshot(self._scales(), values=True)
            follow_slopes(self.quantized_graph)
        return self.phase in ("calibrated", "frozen") and self.resolved, False

    def integer_tensors(
        self, inputs: list[Tensor], feed: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return every quantized tensor by name as uint8, and every float32 one that is exact, to compare with engines.

        Raises:
            StateError: the simulation is not calibrated, in training mode, or fake quantization is off somewhere.
        """
        self.require_deployable()
        device = next((t.device for t in self.tensors.values()), torch.device("cpu"))
        fed = None if feed is None else {k: torch.from_numpy(np.asarray(v)).to(device) for k, v in feed.items()}
        with torch.no_grad():
            values = self.run([t.to(device) for t in inputs], keep=True, feed=fed)
            exact = {name: v.integers() for name, v in values.items() if isinstance(v, Quantized)}
            exact |= {name: real(values[name]) for name in self.recurrent_points}
            for name in (*self.coded_points, *self.placed.dequantized):
                layer, node = self.layer_ops[name], self.graph.nodes[name]
                if isinstance(layer, DecodedEmbedding):
                    exact[name] = real(values[name])
                elif isinstance(layer, (DynamicLinear, DequantizedLayer)):
                    alone = len(node.inputs) == 1 and "act" not in node.attrs
                    part = name if alone else part_name(name, 0, self.graph.nodes)
                    exact[part] = layer.sum_of(values[node.inputs[0]], self.resolved)
        return {name: t.cpu().numpy() for name, t in exact.items()}

    def require_deployable(self) -> None:
        """Raise StateError unless this simulation computes what would be deployed now."""
        missing = [n for n, p in self.points.items() if not p.calibrated]
        if missing:
            what = f"{len(missing)} of {len(self.points)} quantization points have no scale yet"
            why, remedy = "the simulation was not calibrated", "call intact8.calibrate(sim, data) first"
            raise StateError(what, where=missing[0], why=why, remedy=remedy)
        if self.training:
            raise StateError("the simulation is in training mode", remedy="call sim.eval() first")
        off = [n for n, p in (*self.points.items(), *self.all_weight_points.items()) if not p.quantizing]
        if off:
            what = f"fake quantization is off at {len(off)} points"
            raise StateError(what, where=off[0], remedy="call sim.fake_quantize(True)")

    def require_finite(self) -> None:
        """Raise StateError where a parameter or statistic that is used holds NaN or infinity: no integer stands for it.

        Learned scales are used while points take theirs from them: they are NaN before that.
        """
        points = (*self.points.values(), *self.all_weight_points.values())
        learned = [p.learner for p in points if p.learner is not None and p.source == "learned"]
        used = {id(parameter) for learner in learned for parameter in learner.parameters()}
        unused = {name for name, parameter in learned_scales(self) if id(parameter) not in used}
        norms = ((name, module) for name, module in self.named_modules() if isinstance(module, BATCH_NORM))
        statistics = ((f"{path}.{name}", t) for path, norm in norms for name, t in norm.named_buffers(recurse=False))
        for name, values in itertools.chain(self.named_parameters(), statistics):
            if name in unused:
                continue
            count = int((~torch.isfinite(values.detach())).sum())
            if count and not hides_scores(values):
                what = f"{count} of {values.numel()} values are NaN or infinite"
                raise StateError(
                    what, where=name, why="training diverged, or the state is damaged", remedy=SMALLER_RATE
                )

    def require_multipliers(self) -> None:
        """Raise StateError where a layer's multiplier is larger than any of a program may be."""
        for name, req in self.requantizations.items():
            if name not in self.weight_points:
                continue
            numerators = torch.cat([req.a, req.a_neg.abs()])
            if numerators.numel() and not 0 <= int(numerators.min()) <= int(numerators.max()) <= LARGEST_A:
                what = "its weights are far too large for the scale of its results, or that scale is far too small"
                why = "training diverged, or a scale was given that is far from what calibration finds"
                raise StateError(what, where=name, why=why, remedy=SMALLER_RATE)

    def _learners(self) -> Iterator[LearnedScale]:
        """Iterate over the learned scales and ranges of activations that a forward uses now."""
        for point in self.points.values() if self.training else ():
            if point.learner is not None and point.source == "learned":
                yield point.learner
                if isinstance(point.learner, LearnedRange) and point.learner.below is not None:
                    yield point.learner.below

    def _training(self, path: str) -> bool:
        try:
            return self.get_submodule(path).training
        except AttributeError:
            return self.training

    def _live_batch_norms(self, node: Node) -> LiveBatchNorms | None:
        """Return the batch norms folded into a layer that take their statistics from the batch now."""
        if self.scale_phase.batch_norm_frozen:
            return None
        names = node.params.get("pre.running_mean"), node.params.get("bn.running_mean")
        if names == (None, None):
            return None
        pre, bn = (self.tensors.owner(name) for name in names)
        before = pre if isinstance(pre, BATCH_NORM) and pre.training else None
        after = bn if isinstance(bn, BATCH_NORM) and bn.training else None
        return None if before is after is None else LiveBatchNorms(before, after)


_ATTRIBUTES = frozenset(name for kind in (Simulation, Trainable) for name in kind.__annotations__)


def _become_what_was_chosen(sim: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Rebuild a simulation whose recipe leaves open what its calibration chose before the state was saved."""
    assert isinstance(sim, Simulation)
    packed = state.get(f"{prefix}quantizers.motion._extra_state")
    chosen = unpack(packed).get("chosen", "") if isinstance(packed, Tensor) else ""
    if chosen and sim.recipe.between_layers in CHOSEN_BETWEEN_LAYERS:
        late_binding.call("rebuild", sim, Recipe.from_toml(chosen))


def _tell_float_checkpoint(sim: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Note of a state that has nothing of what the simulation adds, a checkpoint of the model, that this stays.

    Raises:
        StateError: it has other values for what was used at capture, once.
    """
    assert isinstance(sim, Simulation)
    own = tuple(f"{prefix}{name}." for name in sorted(OWN_MODULES))
    sim._left = () if any(key.startswith(own) for key in state) else own
    for fixed in sim.captured.fixed:
        present = {name: sim.tensors[name].detach() for name in fixed.sources}
        given = {name: state.get(prefix + name, t).to(t.device, t.dtype) for name, t in present.items()}
        same = [torch.equal(given[name], t) for name, t in present.items()]
        if all(same) or fixed.holds(given):
            continue
        what = "the state has other values, which would not be used"
        why = "numbers, indices or constants were computed from it once, at capture"
        remedy = "load it into the model, before intact8.prepare"
        raise StateError(what, where=fixed.sources[same.index(False)], why=why, remedy=remedy)


def _forget(sim: nn.Module, incompatible: Any) -> None:
    """Note after another state was loaded that it has not been solved for; what stayed is not missing."""
    assert isinstance(sim, Simulation)
    if sim._left:
        incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if not key.startswith(sim._left)]
        sim._left = ()
    sim._solved_scales = sim._solved_weights = sim._sums = None


def _place(node: Node) -> str:
    return f"{node.name} (module {node.module})" if node.module and node.module != node.name else node.name


def _last_uses(graph: Graph) -> list[list[str]]:
    """Return for every node the values that no later node needs."""
    last = {name: position for position, node in enumerate(graph) for name in node.inputs}
    uses: list[list[str]] = [[] for _ in graph]
    for name, position in last.items():
        if name not in graph.outputs:
            uses[position].append(name)
    return uses
