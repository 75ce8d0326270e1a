"""Measuring candidates: a recipe becomes a program, whose metric, SQNR and time are taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intact8.calibration.data import device_of
from intact8.capture import Captured
from intact8.diagnose.between_layers import choose_between_layers
from intact8.diagnose.chunks import chunks
from intact8.diagnose.executors import unquantized
from intact8.diagnose.sensitivity.metrics import METRICS
from intact8.diagnose.shared_calibration import SharedCalibration
from intact8.engines import get_runner
from intact8.errors import InputError
from intact8.lower import draft
from intact8.opset import KINDS, Op
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.simulation.prepare import simulate_captured
from intact8.simulation.quantized_tensor import real
from intact8.simulation.simulation import Simulation
from intact8.timing import interleaved
from intact8.torch import Module
from intact8.tuning.objective import Objective
from intact8.tuning.result import SAME_TIME, Trial

PROBED = 32
"""Calibration samples, at most, of whose outputs the SQNR is computed."""

FLOAT_WORK = 4.0
"""How many times as much work a multiplication in float is taken for where nothing is timed."""

LEAST_CALLS = 7
"""Calls of both programs, at least, in each turn that they are timed for."""

TURNS = 8
"""Turns of timing, at most: the last of them has found no faster call of either program, or the machine is busy."""


class Measurement:
    """Makes and measures the programs of one network.

    Args:
        model: the float network.
        captured: its graph.
        calibration: batches to calibrate on.
        objective: the metric.
        engine: what runs programs.
        batch_size: samples of a timed call.
        seconds: seconds for timing a candidate; 0 estimates times from the number of multiplications.
    """

    def __init__(
        self,
        model: nn.Module,
        captured: Captured,
        calibration: Sequence[Any],
        objective: Objective,
        engine: str,
        batch_size: int,
        seconds: float,
    ) -> None:
        self.model, self.captured, self.objective = model, captured, objective
        self.calibration = SharedCalibration(calibration)
        self.engine, self.batch_size, self.seconds = engine, batch_size, seconds
        self.float_score = objective.measure(model)
        if not math.isfinite(self.float_score):
            what = f"{objective.name} of the float network is {self.float_score}"
            remedy = "give data and a metric that tell a number of it"
            raise InputError(what, where="tune", why="nothing can be compared with it", remedy=remedy)
        self._start: Program | None = None
        self._times: dict[tuple[object, ...], float] = {}
        self._probe: list[list[Tensor]] = []
        self._exact: list[list[Tensor]] = []

    def simulate(self, recipe: Recipe) -> Simulation:
        """Return the calibrated simulation of a recipe: what :func:`intact8.quantize` makes of it, its choices too."""
        sim = simulate_captured(self.model, self.captured, recipe)
        self.calibration.calibrate(sim)
        choose_between_layers(sim, self.calibration.data, shard="off", quiet=True)
        if not self._probe:
            parts = chunks(self.captured, device_of(sim), self.calibration.data, PROBED, elements=math.inf)
            self._probe = [part.inputs for part in parts]
            with unquantized(sim), torch.no_grad():
                values = [sim.run(list(inputs)) for inputs in self._probe]
            self._exact = [[real(v[name]).cpu() for name in sim.graph.outputs] for v in values]
        return sim

    def start(self, recipe: Recipe) -> tuple[Simulation, Program]:
        """Make the program that times are compared with, and return it with its simulation."""
        sim = self.simulate(recipe)
        self._start = draft(sim)
        self._times = {form(self._start): 1.0}
        return sim, self._start

    def trial(self, change: str, recipe: Recipe, program: Program | None = None) -> Trial:
        """Measure a recipe; ``program`` is its program where there is one already.

        Raises:
            RecipeError, CalibrationError: as :func:`intact8.quantize`.
        """
        made = draft(self.simulate(recipe)) if program is None else program
        score = self.objective.measure(Module(made, self.engine))
        drop = self.objective.drop(self.float_score, score)
        floats = sum(KINDS[op.kind].domain == "float" for op in made.ops)
        return Trial(change, recipe.to_toml(), score, drop, self._sqnr(made), self._time(made), floats)

    def _sqnr(self, program: Program) -> float:
        metric, runner = METRICS["sqnr"], get_runner(program, self.engine)
        sums = []
        for inputs, exact in zip(self._probe, self._exact, strict=True):
            outputs = [torch.from_numpy(y) for y in runner(_arrays(program, inputs))]
            sums.append(metric.sums(outputs, exact, None, None, 1))
        return metric.value([sum(parts) for parts in zip(*sums, strict=True)])

    def _time(self, program: Program) -> float:
        """Return the time of a run, or the work in it, over that of the start: programs of one form take the same."""
        key = form(program)
        if key not in self._times:
            self._times[key] = self._measured_time(program)
        return self._times[key]

    def _measured_time(self, program: Program) -> float:
        assert self._start is not None
        if self.seconds <= 0:
            return work(program) / work(self._start)
        inputs = self._probe[0]
        if self.captured.graph.dynamic_batch:
            inputs = [t[: self.batch_size] for t in inputs]
        calls = {
            name: partial(get_runner(p, self.engine), _arrays(p, inputs))
            for name, p in (("start", self._start), ("candidate", program))
        }
        fastest = fastest_calls(calls, self.seconds)
        return fastest["candidate"] / fastest["start"]


def fastest_calls(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the seconds of the fastest call of each, which a busy machine disturbs least.

    Calls take turns of half of ``seconds`` until one has found nothing faster, so two where a machine is quiet.
    """
    fastest = dict.fromkeys(calls, math.inf)
    for _ in range(TURNS):
        before, timings = fastest, interleaved(calls, seconds=seconds / 2, least=LEAST_CALLS)
        fastest = {name: min(before[name], timing.fastest) for name, timing in timings.items()}
        if all(before[name] <= (1 + SAME_TIME) * fastest[name] for name in fastest):
            break
    return fastest


def _arrays(program: Program, inputs: Sequence[Tensor]) -> Mapping[str, Any]:
    return {name: t.cpu().contiguous().numpy() for name, t in zip(program.inputs, inputs, strict=True)}


def form(program: Program) -> tuple[object, ...]:
    """Return what the time of a run depends on: operations, their inputs and sizes, not the numbers in them."""

    def sizes(op: Op) -> tuple[object, ...]:
        tensor = program.tensors[op.name]
        arrays = tuple((role, array.shape, array.dtype.name) for role, array in sorted(op.arrays.items()))
        return op.name, op.kind, op.inputs, tensor.shape, tensor.dtype, arrays

    return tuple(sizes(op) for op in program.ops)


def work(program: Program) -> float:
    """Return a number that grows with the time of a run: multiplications and results, those in float for more.

    Example:
        >>> work(Program({}, (), (), ()))
        1.0
    """
    total = 1.0
    for op in program.ops:
        size = math.prod(d for d in program.tensors[op.name].shape if isinstance(d, int))
        weight = op.arrays.get("weight")
        per_result = 1 if weight is None or not weight.ndim else max(1, weight.size // weight.shape[0])
        total += size * per_result * (FLOAT_WORK if KINDS[op.kind].domain == "float" else 1.0)
    return total
