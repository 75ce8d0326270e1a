"""Compare: layer by layer, the float network against its integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import is_name, limits_of, show, told_by
from intact8.calibration.data import device_of, first_batch
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.graph import Graph, Node
from intact8.capture.torch_export import require_module
from intact8.diagnose.chunks import Chunk, chunks
from intact8.diagnose.compare.report import CompareReport, LayerRow
from intact8.diagnose.compare.statistics import TensorStatistics
from intact8.diagnose.compare.weights import weight_error
from intact8.diagnose.executors import (
    SIMULATION,
    EngineExecutor,
    Executor,
    FloatExecutor,
    SimulationExecutor,
    aliases,
    choose_engine,
    ops_of,
    tensors_for,
)
from intact8.diagnose.quantizer import Quantizer
from intact8.errors import InputError, StateError, require_number
from intact8.lower import draft
from intact8.opset.op import Op
from intact8.program.inputs import holds_nan
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.simulation.prepare import warn_of_training_mode
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation
from intact8.verification import Difference

CPU = torch.device("cpu")


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
        InputError: the model is not the one that was quantized, or data do not fit it or hold NaN.
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
    if samples is not None:
        require_number("samples", samples, 1, "compare")
    require_module(model)
    warn_of_training_mode(model)
    if isinstance(quantized, Program):
        if program is not None:
            raise InputError("two programs", where="compare", remedy="compare the simulation with one of them")
        example, data = first_batch(model, data, len(quantized.inputs))
        sim, shipped = _uncalibrated(model, quantized, example), quantized
        name = choose_engine(engine, quantized, CPU, "reference")
    elif isinstance(quantized, Simulation):
        sim, shipped = quantized, draft(quantized)
        name = SIMULATION if program else choose_engine(engine, shipped, device_of(sim), SIMULATION)
    else:
        raise StateError(
            f"compare takes a simulation or a program, not {type(quantized).__name__}",
            remedy="call intact8.prepare and intact8.calibrate, or intact8.quantize, first",
        )
    simulated = name == SIMULATION and isinstance(quantized, Simulation)
    integers = SimulationExecutor(sim) if simulated else EngineExecutor(shipped, sim.graph, name)
    other = None
    if program is not None:
        other = EngineExecutor(program, sim.graph, choose_engine(engine, program, CPU, "reference"))
    comparison = _Comparison(sim, shipped, tensors_for(model, sim.graph, sim.tensors), integers, other)
    with torch.no_grad():
        for chunk in chunks(sim.captured, device_of(sim), data, samples):
            comparison.add(chunk)
            if progress is not None:
                progress(comparison.samples)
    return CompareReport(comparison.rows(), comparison.samples, name)


def _dynamic(program: Program) -> Dynamic:
    """Return the dimensions of a program's inputs that change; counted as the model counts them."""
    shapes = {key: program.tensors[key].shape for key in program.inputs}
    plain = {d for shape in shapes.values() for d in shape if is_name(d)}
    names: dict[str, dict[int, str]] = {}
    bounds = dict(program.dimensions)
    for key, shape in shapes.items():
        for axis, dim in enumerate(shape):
            told = told_by(dim)
            if told is not None and told[0] not in plain:
                names.setdefault(key, {})[axis] = told[0]
                bounds[told[0]] = limits_of(str(dim), program.dimensions)
            elif isinstance(dim, str):
                names.setdefault(key, {})[axis] = dim
    return Dynamic(names, bounds)


def _uncalibrated(model: nn.Module, program: Program, example: Any) -> Simulation:
    """Return the uncalibrated simulation from which a program was made, for its graph, names and schemes."""
    from intact8.simulation.prepare import prepare

    dynamic = _dynamic(program)
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
        if given is None:  # none of its channels was scaled
            continue
        if not isinstance(given, list) or len(given) != len(own):
            raise InputError(
                f"the program has no {len(own)} equalization factors",
                where=place.name,
                remedy="compare with the simulation it was converted from",
            )
        own.copy_(torch.tensor(given, dtype=torch.float32))
    return sim


class _Comparison:
    """One pass over the data through the float network, the quantized one and, where given, another program.

    Args:
        sim: the simulation, for its graph, points and schemes.
        program: the program of the quantized network.
        tensors: tensors of the float network by name.
        integers: computes the quantized network.
        other: runs the program with whose integers those of the quantized network are compared.
    """

    def __init__(
        self,
        sim: Simulation,
        program: Program,
        tensors: Mapping[str, Tensor],
        integers: Executor,
        other: EngineExecutor | None,
    ) -> None:
        self.graph, self.program, self.tensors = sim.graph, program, tensors
        self.weight_points, self.last_uses = sim.weight_points, sim.last_uses
        self.float, self.integers, self.other, self.samples = FloatExecutor(tensors), integers, other, 0
        self.quantizers: dict[str, Quantizer] = {}
        alias = aliases(sim.graph)
        for name, point in sim.placed.point_of.items():
            tensor, limits = program.tensors[alias.get(name, name)], sim.points[point]
            assert tensor.scale is not None and tensor.zero_point is not None
            self.quantizers[name] = Quantizer(tensor.scale, tensor.zero_point, limits.lo, limits.hi)
        flat = flat_ends(sim.points)
        axes = channel_axes(sim.graph)
        self.statistics = {
            node.name: TensorStatistics(axes[node.name], self.quantizers.get(node.name), flat.get(node.name))
            for node in sim.graph
            if _makes_values(node)
        }
        self.differences: dict[str, Difference] = {}

    def add(self, chunk: Chunk) -> None:
        """Run one chunk; a value is dropped when its last reader has run."""
        for name, x in zip(self.graph.inputs, chunk.inputs, strict=True):
            if bool(x.isnan().any()):
                raise holds_nan(name)
        reals: dict[str, Tensor] = dict(zip(self.graph.inputs, chunk.inputs, strict=True))
        cascade, shipped = dict(reals), dict(reals)
        rounded: dict[str, Tensor] = {}

        def on_grid(name: str) -> Tensor:
            if name not in self.quantizers:
                return reals[name]
            if name not in rounded:
                quantizer = self.quantizers[name]
                rounded[name] = quantizer.round(quantizer.steps(reals[name]))
            return rounded[name]

        for executor in (self.integers, self.other):
            if isinstance(executor, EngineExecutor):
                executor.begin(chunk.inputs)
        for node, done in zip(self.graph.sized(chunk.inputs), self.last_uses, strict=True):
            name = node.name
            if node.op == "input":
                continue
            reals[name] = self.float(node, [reals[i] for i in node.inputs])
            cascade[name] = self.integers(node, [cascade[i] for i in node.inputs])
            if self.other is not None:
                shipped[name] = self._run_other(self.other, node, shipped, cascade[name].cpu())
            if name in self.statistics:
                quantized = name in self.quantizers
                own = self.integers(node, [on_grid(i) for i in node.inputs]) if quantized else None
                self.statistics[name].add(reals[name], cascade[name], own, on_grid(name) if quantized else None)
            for used in done:
                for values in (reals, cascade, shipped, rounded):
                    values.pop(used, None)
        self.samples += chunk.samples

    def _run_other(self, other: EngineExecutor, node: Node, shipped: Mapping[str, Tensor], expected: Tensor) -> Tensor:
        """Run the other program's operation and note the first integer that differs.

        Behind float operations it goes on from the quantized network's values, so that one float's noise is not
        counted again in every integer after it.
        """
        name = node.name
        if name not in self.quantizers:
            return expected
        got = other(node, [shipped[i].cpu() for i in node.inputs])
        if name not in self.differences and not torch.equal(got, expected):
            index = [int(i) for i in torch.nonzero(got != expected)[0]]
            want, have = int(expected[tuple(index)]), int(got[tuple(index)])
            if node.shape[:1] == (None,):
                index[0] += self.samples
            self.differences[name] = Difference("program", name, tuple(index), want, have)
        return got

    def rows(self) -> tuple[LayerRow, ...]:
        """Return the rows of the report."""
        ops = ops_of(self.program, self.graph)
        return tuple(self._row(name, ops[name], self.quantizers.get(name)) for name in self.statistics)

    def _row(self, name: str, ops: Sequence[Op], quantizer: Quantizer | None) -> LayerRow:
        op = ops[-1]
        node, point, fields = self.graph.nodes[name], self.weight_points.get(name), self.statistics[name].fields()
        fields |= {"first_difference": self.differences.get(name), "note": op.note}
        if quantizer is not None:
            fields |= {"lo": op.attrs.get("lo", quantizer.lo), "hi": op.attrs.get("hi", quantizer.hi)}
        if point is not None:
            fields["weight"] = weight_error(node, ops[0], self.program, self.tensors, point)
        return LayerRow(name, op.kind, op.module, op.source, tuple(node.inputs), node.shape, **fields)


def _makes_values(node: Node) -> bool:
    """Return whether a node's real numbers are new, and not those of another node."""
    passed_on = node.op in ("input", "constant", "dequantize") or (node.moves and node.op != "cat")
    return not passed_on and node.dtype == "float32"


def channel_axes(graph: Graph) -> dict[str, int | None]:
    """Map every node to the dimension of its output's channels.

    That is 1 behind a convolution and the last one behind ``linear``. Other operations have their input's where the
    number of dimensions stays. It is None for tensors of fewer than two dimensions.
    """
    axes: dict[str, int | None] = {}
    for node in graph:
        rank = len(node.shape)
        read = [axes[i] for i in node.inputs if len(graph.nodes[i].shape) == rank and graph.nodes[i].op != "constant"]
        axis: int | None = 1
        if node.op == "linear":
            axis = rank - 1
        elif node.op == "permute" and read and read[0] is not None:
            axis = node.attrs["dims"].index(read[0])
        elif node.op not in ("conv", "scale_shift", "reshape") and read:
            axis = read[0]
        known = rank > 1 and axis and isinstance(node.shape[axis], int)
        axes[node.name] = axis if known else None
    return axes
