"""Compare: layer by layer, the float network against its integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import show
from intact8.calibration.data import device_of, first_batch
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.graph import Graph, Node
from intact8.diagnose.chunks import Chunk, chunks
from intact8.diagnose.compare.report import CompareReport, LayerRow
from intact8.diagnose.compare.statistics import Quantizer, TensorStatistics
from intact8.diagnose.compare.weights import weight_error
from intact8.diagnose.executors import (
    SIMULATION,
    EngineStep,
    FloatStep,
    SimulationStep,
    Step,
    choose_engine,
    ops_of,
    tensors_for,
)
from intact8.errors import InputError, StateError
from intact8.lower import draft
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation
from intact8.verification import Difference


def compare(
    model: nn.Module,
    quantized: Simulation | Program,
    data: Any,
    *,
    program: Program | None = None,
    engine: str = "auto",
    samples: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> CompareReport:
    """Compare every layer of a float network with its integers, twice: by itself, and where it stands.

    *Own* error: the layer gets the float network's activations, rounded to its input's grid. *Cascade* error: it gets
    what arrives in the quantized network. A layer whose own error is small and whose cascade error is large suffers
    from those before it. Memory does not grow with the amount of data, and nothing is drawn at random.

    Args:
        model: the float network, the one that was prepared or quantized. It is not changed.
        quantized: a calibrated simulation in evaluation mode, or a program.
        data: as for :func:`intact8.calibrate`: a tensor, or an iterable of batches; labels are dropped.
        program: also compare every integer of the simulation with this program's, on ``engine``.
        engine: what computes the integers: ``simulation`` or the name of an engine. ``auto`` takes onednn where it can
            run and every operation is proved exact on it, else the simulation or, for a program, the reference engine.
            Given ``program``, the simulation computes them, and ``engine`` is what it is compared with.
        samples: stop after so many; None for all.
        progress: called with the number of samples done so far.

    Returns:
        A row per operation that makes new values; prints as a table.

    Raises:
        InputError: the model is not the one that was quantized, or data do not fit it.
        CalibrationError: data do not fit the model's inputs.
        StateError: the simulation is not calibrated, or in training mode.
        EngineError: the engine is missing.

    Example:
        >>> import intact8, torch
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 2), torch.randn(64, 4)
        >>> report = intact8.compare(model, intact8.quantize(model, x), x)
        >>> [row.name for row in report], report.samples
        (['input.quantize', 'linear'], 64)
        >>> report["linear"].own.sqnr > 30
        True
    """
    if samples is not None and samples < 1:
        raise InputError(f"samples = {samples}", where="compare", remedy="give 1 or more")
    if isinstance(quantized, Program):
        if program is not None:
            raise InputError("two programs", where="compare", remedy="compare the simulation with one of them")
        example, data = first_batch(model, data)
        sim = _skeleton(model, quantized, example)
        shipped, name = quantized, choose_engine(engine, quantized, torch.device("cpu"), "reference")
        step: Step = EngineStep(quantized, sim.graph, name)
    elif isinstance(quantized, Simulation):
        sim = quantized
        shipped = draft(sim)
        name = SIMULATION if program else choose_engine(engine, shipped, device_of(sim), SIMULATION)
        step = SimulationStep(sim) if name == SIMULATION else EngineStep(shipped, sim.graph, name)
    else:
        raise StateError(
            f"compare takes a simulation or a program, not {type(quantized).__name__}",
            remedy="call intact8.prepare and intact8.calibrate, or intact8.quantize, first",
        )
    other = None
    if program is not None:
        other = EngineStep(program, sim.graph, choose_engine(engine, program, torch.device("cpu"), "reference"))
    run = _Run(sim, shipped, FloatStep(tensors_for(model, sim)), step, other)
    with torch.no_grad():
        for chunk in chunks(sim, data, samples):
            run.add(chunk)
            if progress is not None:
                progress(run.samples)
    return CompareReport(run.rows(), run.samples, name)


def _skeleton(model: nn.Module, program: Program, example: Any) -> Simulation:
    """The uncalibrated simulation a program was made from: for its graph, names and schemes."""
    from intact8.simulation.prepare import prepare

    named = {
        key: {axis: name for axis, name in enumerate(program.tensors[key].shape) if isinstance(name, str)}
        for key in program.inputs
    }
    dynamic = Dynamic({key: dims for key, dims in named.items() if dims}, program.dimensions)
    sim = prepare(model, example, Recipe.from_toml(program.recipe), dynamic_shapes=dynamic).eval()
    ops_of(program, sim.graph)
    for (key, _, shape), name in zip(sim.input_specs, program.inputs, strict=True):
        if program.tensors[name].shape != shape:
            raise InputError(
                f"the program takes {show(program.tensors[name].shape)}, the model and these data {show(shape)}",
                where=key,
                remedy="give batches of the size the program was made for",
            )
    factors = program.provenance.get("equalized", {})
    for place in sim.equalized:
        own = sim.tensors[place.factor]
        given = factors.get(place.name) if isinstance(factors, dict) else None
        if given is None:  # no channel of it was scaled
            continue
        if not isinstance(given, list) or len(given) != len(own):
            raise InputError(
                f"the program has no {len(own)} equalization factors", where=place.name,
                remedy="compare with the simulation it was converted from",
            )  # fmt: skip
        own.copy_(torch.tensor(given, dtype=torch.float32))
    return sim


@dataclass
class _Run:
    """One pass over the data: three networks side by side, a value kept until its last reader has had it."""

    sim: Simulation
    program: Program
    real: Step
    step: Step
    other: EngineStep | None
    samples: int = 0
    statistics: dict[str, TensorStatistics] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.sim.graph
        axes = channel_axes(graph)
        self.grids = {name: self._grid(name) for name in self.sim.placed.point_of}
        for node in graph:
            if _makes_values(node):
                self.statistics[node.name] = TensorStatistics(axes[node.name], self.grids.get(node.name))
        last = {name: node.name for node in graph for name in node.inputs}
        self.done: dict[str, list[str]] = {}
        for name, reader in last.items():
            self.done.setdefault(reader, []).append(name)

    def _grid(self, name: str) -> Quantizer:
        point, tensor = self.sim.point(name), self.program.tensors.get(self._alias(name))
        assert point is not None and tensor is not None
        assert tensor.scale is not None and tensor.zero_point is not None
        return Quantizer(tensor.scale, tensor.zero_point, point.lo, point.hi)

    def _alias(self, name: str) -> str:
        node = self.sim.graph.nodes[name]
        return self._alias(node.inputs[0]) if node.op == "dropout" else name

    def add(self, chunk: Chunk) -> None:
        graph = self.sim.graph
        reals: dict[str, Tensor] = dict(zip(graph.inputs, chunk.inputs, strict=True))
        cascade, shipped = dict(reals), dict(reals)
        rounded: dict[str, Tensor] = {}

        def on_grid(name: str) -> Tensor:
            """The float tensor on its grid; real numbers where it has none."""
            if name not in self.grids:
                return reals[name]
            if name not in rounded:
                grid = self.grids[name]
                rounded[name] = grid.round(grid.steps(reals[name]))
            return rounded[name]

        for node in graph.sized(chunk.inputs):
            name = node.name
            if node.op == "input":
                continue
            reals[name] = self.real(node, [reals[i] for i in node.inputs])
            cascade[name] = self.step(node, [cascade[i] for i in node.inputs])
            if self.other is not None:
                self._compare(node, [shipped[i] for i in node.inputs], cascade, shipped)
            if name in self.statistics:
                own = self.step(node, [on_grid(i) for i in node.inputs]) if name in self.grids else None
                met = on_grid(name) if name in self.grids else None
                self.statistics[name].add(reals[name], cascade[name], own, met)
            for used in self.done.get(name, []):
                for values in (reals, cascade, shipped, rounded):
                    values.pop(used, None)
        self.samples += chunk.samples

    def _compare(
        self, node: Node, inputs: list[Tensor], cascade: dict[str, Tensor], shipped: dict[str, Tensor]
    ) -> None:
        """Run the program's operation. Behind float operations it goes on from the simulation's values, so that one
        float's noise is not counted again in every integer after it."""
        assert self.other is not None
        name, expected = node.name, cascade[node.name].cpu()
        if name not in self.grids:
            shipped[name] = expected
            return
        shipped[name] = got = self.other(node, [x.cpu() for x in inputs])
        if name in self.differences or torch.equal(got, expected):
            return
        index = [int(i) for i in torch.nonzero(got != expected)[0]]
        want, have = int(expected[tuple(index)]), int(got[tuple(index)])
        if node.shape[:1] == (None,):
            index[0] += self.samples
        self.differences[name] = Difference("program", name, tuple(index), want, have)

    def rows(self) -> tuple[LayerRow, ...]:
        ops = ops_of(self.program, self.sim.graph)
        tensors = self.real.tensors if isinstance(self.real, FloatStep) else {}
        out = []
        for name, statistics in self.statistics.items():
            node, op, grid = self.sim.graph.nodes[name], ops[name][-1], self.grids.get(name)
            point = self.sim.weight_points.get(name)
            out.append(
                LayerRow(
                    name=name, kind=op.kind, module=op.module, source=op.source, inputs=tuple(node.inputs),
                    shape=node.shape, quantized=grid is not None,
                    scale=None if grid is None else grid.scale,
                    zero_point=None if grid is None else grid.zero_point,
                    lo=None if grid is None else op.attrs.get("lo", grid.lo),
                    hi=None if grid is None else op.attrs.get("hi", grid.hi),
                    grid=0 if grid is None else grid.hi - grid.lo + 1,
                    weight=None if point is None or grid is None else weight_error(
                        node, op, self.program, tensors, point
                    ),
                    first_difference=self.differences.get(name), note=op.note, **statistics.fields(),
                )
            )  # fmt: skip
        return tuple(out)


def _makes_values(node: Node) -> bool:
    """Whether a node's real numbers are new, not moved from elsewhere."""
    passed_on = node.op in ("input", "constant", "dequantize") or (node.moves and node.op != "cat")
    return not passed_on and node.dtype == "float32"


def channel_axes(graph: Graph) -> dict[str, int | None]:
    """The dimension of channels of every node's output: 1 behind a convolution, the last one behind ``linear``; other
    operations keep their input's where the number of dimensions stays. None for tensors of fewer than two."""
    axes: dict[str, int | None] = {}
    for node in graph:
        rank = len(node.shape)
        kept = [axes[i] for i in node.inputs if len(graph.nodes[i].shape) == rank and graph.nodes[i].op != "constant"]
        if rank < 2:
            axes[node.name] = None
        elif node.op == "linear":
            axes[node.name] = rank - 1
        elif node.op == "permute" and kept and kept[0] is not None:
            axes[node.name] = node.attrs["dims"].index(kept[0])
        elif node.op in ("conv", "scale_shift", "reshape") or not kept:
            axes[node.name] = 1
        else:
            axes[node.name] = kept[0]
        if axes[node.name] == 0 or not isinstance(node.shape[axes[node.name] or 0], int):
            axes[node.name] = None
    return axes
