"""Executors run a network one operation at a time: in float, in the simulation, or on an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Graph, Node
from intact8.engines import available_engines, get_engine, guard_of
from intact8.engines.base import Runner
from intact8.errors import InputError
from intact8.opset.op import Op
from intact8.program.certify import uncertified
from intact8.program.dimensions import sizes_of
from intact8.program.parts import NEEDS_BATCH, alone
from intact8.program.program import Program
from intact8.simulation.ops.dispatch import run_node
from intact8.simulation.ops.exact_sums import convolve
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.quantized_tensor import Quantized, Value
from intact8.simulation.scales.quant_points import QuantPoint, WeightPoint
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import activate, folded

Executor = Callable[[Node, Sequence[Tensor]], Tensor]
"""Computes the output of a node from its inputs: uint8 where a tensor is quantized, real numbers elsewhere."""

AUTO, SIMULATION = "auto", "simulation"


class FloatExecutor:
    """Computes the float network, with batch norms folded into weights.

    Weights are folded once and stored in the layout that convolutions of channels-last images take; activations are
    applied in place.

    Args:
        tensors: parameters, buffers and constants by name.
        rounded: takes a layer and its folded weight, and returns the weight to use instead.
    """

    def __init__(self, tensors: Mapping[str, Tensor], rounded: Callable[[Node, Tensor], Tensor] | None = None) -> None:
        self.tensors, self._rounded = tensors, rounded
        self._weights: dict[str, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, node: Node, inputs: Sequence[Tensor]) -> Tensor:
        if node.op in AFFINE:
            return self._affine(node, inputs)
        value = run_node(node, list(inputs), self.tensors, None, None, False, False)
        assert isinstance(value, Tensor)
        return value

    def _affine(self, node: Node, inputs: Sequence[Tensor]) -> Tensor:
        if node.name not in self._weights:
            self._weights[node.name] = self._prepare(node)
        y = convolve(node, inputs[0], *self._weights[node.name])
        if len(inputs) > 1:
            y.add_(inputs[1])
        act = node.attrs.get("act")
        if act is not None and act["kind"] == "clamp" and "equalize.out" not in node.params:
            return y.clamp_(act["min"], act["max"])
        return activate(node, self.tensors, y)

    def _prepare(self, node: Node) -> tuple[Tensor, Tensor | None]:
        weight, bias = folded(node, self.tensors)
        if self._rounded is not None:
            weight = self._rounded(node, weight)
        weight = weight.detach()
        if weight.dim() == 4:
            weight = weight.contiguous(memory_format=torch.channels_last)
        return weight, None if bias is None else bias.detach()


class SimulationExecutor:
    """Computes what the simulation computes."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self._resolved = sim, sim.ready()

    def __call__(self, node: Node, inputs: Sequence[Tensor]) -> Tensor:
        taken: list[Value] = []
        for name, x in zip(node.inputs, inputs, strict=True):
            point = self.sim.point(name)
            taken.append(x if point is None else Quantized(x.to(torch.float32) - point.zero_point, point))
        value = self.sim.compute(node, taken, self._resolved)
        return value.integers() if isinstance(value, Quantized) else value


class EngineExecutor:
    """Computes what an engine computes; the engine runs every operation as a program of its own.

    Args:
        program: a checked program.
        graph: the placed graph from which the program was lowered.
        engine: name of the engine.

    Raises:
        EngineError: the engine is missing.
        InputError: the program was not lowered from that graph.
    """

    def __init__(self, program: Program, graph: Graph, engine: str) -> None:
        self.program, self._name, self._guard = program, engine, guard_of(program)
        self._engine = get_engine(engine) if self._guard is None else None
        self.ops = ops_of(program, graph)
        self._alias = aliases(graph)
        self._sizes: dict[str, int] = {}
        self._runners: dict[tuple[str, tuple[int, ...]], Runner] = {}

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Take the sizes of named dimensions from the inputs of the network in a call.

        Raises:
            EngineError: the engine did not survive these sizes where the program's guard tried them.
        """
        named = dict(zip(self.program.inputs, inputs, strict=True))
        sizes = sizes_of(self.program, named)
        self._sizes = {name: sizes[name] for name in self.program.dimensions}
        if self._guard is not None:
            self._guard.parts(self._name, {name: x.numpy(force=True) for name, x in named.items()})
        self._engine = self._engine or get_engine(self._name)

    def __call__(self, node: Node, inputs: Sequence[Tensor]) -> Tensor:
        if node.op == "dropout":
            return inputs[0]
        if node.op in NEEDS_BATCH:
            return FLOAT_OPS[node.op](node.attrs, inputs, {}).contiguous()
        values = {self._alias.get(name, name): x for name, x in zip(node.inputs, inputs, strict=True)}
        for op in self.ops[node.name]:
            values[op.name] = self._run(op, values)
        return values[node.name]

    def _run(self, op: Op, values: Mapping[str, Tensor]) -> Tensor:
        if op.kind == "constant":
            return torch.from_numpy(np.array(op.arrays["value"]))
        key = op.name, tuple(self._sizes.values())
        if key not in self._runners:
            assert self._engine is not None  # since the call began
            self._runners[key] = self._engine.prepare(alone(self.program, op, self._sizes))
        (output,) = self._runners[key]({name: values[name].numpy() for name in op.inputs})
        return torch.from_numpy(np.require(output, requirements="W"))


def aliases(graph: Graph) -> dict[str, str]:
    """Map every dropout to the node whose output it passes on; a program has no operation for it."""
    found: dict[str, str] = {}
    for node in graph:
        if node.op == "dropout":
            found[node.name] = found.get(node.inputs[0], node.inputs[0])
    return found


def ops_of(program: Program, graph: Graph) -> dict[str, list[Op]]:
    """Map every node to the operations to which it was lowered, of which the last one has the node's name.

    Raises:
        InputError: the program has other operations than the graph has nodes.
    """
    found: dict[str, list[Op]] = {}
    ops = iter(program.ops)
    for node in graph:
        if node.op in ("input", "dropout"):
            continue
        part = found[node.name] = list[Op]()
        while not part or part[-1].name != node.name:
            op = next(ops, None)
            if op is None or (part and part[-1].name.rpartition(".part")[0] != node.name):
                raise InputError(
                    "the program was not made from this model",
                    where=node.name,
                    why="their operations differ",
                    remedy="give the model and the recipe it was quantized with",
                )
            part.append(op)
    return found


def choose_engine(engine: str, program: Program, device: torch.device, fallback: str) -> str:
    """Return the engine ``auto`` stands for: onednn where it runs and is proved exact, else ``fallback``."""
    if engine != AUTO:
        return engine
    usable = device.type == "cpu" and "onednn" in available_engines(program)
    return "onednn" if usable and not uncertified(program) else fallback


def tensors_for(model: nn.Module, graph: Graph, prepared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a graph names, with the model's own parameters and buffers.

    Args:
        model: the float network.
        graph: a graph captured from it.
        prepared: tensors of the simulation by name.

    Raises:
        InputError: the model is not the one that was prepared.
    """
    own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    own.update(model.named_buffers(remove_duplicate=False))
    found: dict[str, Tensor] = {}
    for name in (name for node in graph for name in node.params.values()):
        here = prepared[name]
        if name.startswith(("constants.", "quantizers.")):
            found[name] = here
            continue
        given = own.get(name)
        if given is None or given.shape != here.shape:
            shapes = "" if given is None else f"its shape is {tuple(given.shape)}, not {tuple(here.shape)}"
            raise InputError(
                "the model is not the one that was prepared",
                where=name,
                why=shapes or "it has no such tensor",
                remedy="give the float model itself",
            )
        found[name] = given.detach().to(here.device)
    return found


@contextmanager
def unquantized(sim: Simulation) -> Iterator[None]:
    """Let every point of a simulation compute in float; its switches are as before afterwards."""
    points: list[QuantPoint | WeightPoint] = [*sim.points.values(), *sim.all_weight_points.values()]
    before = [point.quantizing for point in points]
    for point in points:
        point.quantizing = False
    try:
        yield
    finally:
        for point, on in zip(points, before, strict=True):
            point.quantizing = on
