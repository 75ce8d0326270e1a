"""Sensitivity: what it costs to quantize a layer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from intact8.arithmetic.dimensions import known
from intact8.capture.graph import Node
from intact8.diagnose.chunks import Chunk, chunks, samples_in
from intact8.diagnose.distributed import gathered, rank_and_size
from intact8.diagnose.sensitivity.checkpoint import Progress, Sums
from intact8.diagnose.sensitivity.metrics import Metric, UserMetric, make_metric
from intact8.diagnose.sensitivity.partial_network import PartialNetwork, Selection
from intact8.diagnose.sensitivity.report import (
    MODES,
    PARTS,
    GreedyStep,
    Mode,
    Part,
    Score,
    SensitivityReport,
    SensitivityRow,
)
from intact8.errors import InputError, StateError
from intact8.program.file import digest
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

FLOAT, QUANTIZED = "float", "quantized"
NOTHING = Selection()


def sensitivity(
    model: nn.Module | Simulation,
    data: Any,
    *,
    metric: str | UserMetric = "sqnr",
    higher_is_better: bool = True,
    modes: Iterable[Mode] = ("alone",),
    parts: Iterable[Part] = ("both",),
    greedy: int = 0,
    calibration: Any = None,
    recipe: Recipe | None = None,
    samples: int | None = None,
    memory: int = 1 << 30,
    state: str | Path | None = None,
    progress: Callable[[int, int | None], object] | None = None,
) -> SensitivityReport:
    """Measure what quantizing each layer costs.

    Activations are kept, and a network in which one layer is quantized is computed from that layer on only; what is
    integers all the way runs on an engine. Where a process group of ``torch.distributed`` is initialized, every rank
    measures its share of the layers on all the data (give each rank the same) and returns the whole report. Nothing is
    drawn at random.

    Args:
        model: a calibrated simulation in evaluation mode; or a float network, which is then prepared with ``recipe``
            and calibrated on ``calibration`` (on ``data`` where that is None).
        data: as for :func:`intact8.calibrate`; a metric of your own gets each batch as it is here, labels included.
        metric: ``sqnr`` (dB, at most 150), ``kl`` (nats), ``cosine`` or ``top1`` (agreement with the float network), or
            a callable: see :data:`intact8.diagnose.sensitivity.metrics.UserMetric`.
        higher_is_better: of a callable; built-in metrics know.
        modes: which layers are quantized: ``alone``, ``without`` (all but this one), ``cumulative`` (up to this one).
        parts: what of a layer: ``both``, its ``weight``, its ``activation`` (the output; with ``without``, what is left
            in float).
        greedy: from everything quantized, put so many layers back to float, each time the one that gains most. Reads
            the data once for every step, so an iterator will not do.
        calibration, recipe: for a float network.
        samples: stop after so many; None for all.
        memory: bytes that kept activations may take. At least one sample is run at once.
        state: a file results are kept in after every chunk of data; a call that was interrupted continues from it. Each
            rank has its own, with ``.rank0of2`` appended.
        progress: called after every run with (samples run, samples to run or None where that is unknown); a sample
            counts once for every network it is run through.

    Raises:
        InputError: unknown metric, mode or part, nothing to measure, or a state file of another run.
        CalibrationError: data do not fit the model's inputs.
        StateError: the simulation is not calibrated, or in training mode.

    Example:
        >>> import intact8, torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> report = intact8.sensitivity(model, torch.randn(64, 4), metric="cosine")
        >>> [row.name for row in report], report.float_score
        (['input.quantize', '0', '2'], 1.0)
        >>> 0.99 < report["2"].score("alone") < 1
        True
    """
    chosen_modes, chosen_parts = _chosen("mode", modes, MODES), _chosen("part", parts, PARTS)
    if memory < 1 or greedy < 0 or (samples is not None and samples < 1):
        raise InputError(
            f"memory = {memory}, greedy = {greedy}, samples = {samples}", where="sensitivity",
            remedy="give memory and samples of 1 or more, and greedy of 0 or more",
        )  # fmt: skip
    if greedy and iter_once(data):
        raise InputError(
            "greedy reads the data more than once", where="data", remedy="give a tensor, list or DataLoader"
        )
    sim = _simulation(model, data if calibration is None else calibration, data, recipe, calibration is None)
    network = PartialNetwork(sim)
    measured = make_metric(metric, higher_is_better)
    layers = network.layers()
    selections = {node.name: _selection(network, node) for node in layers}
    runs = _runs(network, layers, chosen_modes, chosen_parts)
    greedy = min(greedy, len(layers))
    work = _Work(
        network, measured, data, samples, memory, state, progress, _greedy_runs(len(layers), greedy) + len(runs)
    )
    found = work.measure("layers", runs)
    steps = _greedy(work, selections, greedy)
    rows = tuple(_row(network, node, found) for node in layers)
    return SensitivityReport(
        measured.name, measured.higher_is_better, found[FLOAT], found[QUANTIZED], rows, steps, work.samples
    )


def _chosen(what: str, given: Iterable[Any], known: Sequence[Any]) -> list[Any]:
    wanted = [given] if isinstance(given, str) else list(given)
    unknown = [value for value in wanted if value not in known]
    if unknown:
        raise InputError(
            f"there is no {what} {unknown[0]!r}", where="sensitivity", remedy=f"choose from {', '.join(known)}"
        )
    return [value for value in known if value in wanted]


def iter_once(data: Any) -> bool:
    """Whether data can be read only once."""
    return isinstance(data, Iterator)


def _simulation(
    model: nn.Module | Simulation, calibration: Any, data: Any, recipe: Recipe | None, shared: bool
) -> Simulation:
    """The calibrated simulation to measure."""
    if isinstance(model, Simulation):
        if recipe is not None:
            raise InputError("a recipe for a simulation", why="it was prepared with one", remedy="leave recipe out")
        model.require_deployable()
        model.ready()
        return model
    if not isinstance(model, nn.Module):
        raise StateError(f"sensitivity takes a simulation or a module, not {type(model).__name__}")
    if shared and iter_once(data):
        raise InputError(
            "an iterator is read only once, and calibration comes first", where="data",
            remedy="give a tensor, list or DataLoader, or calibration data of their own",
        )  # fmt: skip
    from intact8.calibration.data import first_batch
    from intact8.calibration.dynamic_dimensions import changing
    from intact8.calibration.run import calibrate
    from intact8.simulation.prepare import prepare

    example, calibration = first_batch(model, calibration)
    found, calibration = changing(model, example, calibration)
    sim = prepare(model, example, recipe, dynamic_shapes=found).eval()
    calibrate(sim, calibration)
    return sim


@dataclass(frozen=True)
class _Run:
    """One network to measure: what is quantized in it, and the network whose activations it shares."""

    key: str
    chosen: Selection
    base: str


def _selection(network: PartialNetwork, node: Node, part: Part = "both") -> Selection:
    points = frozenset() if part == "weight" else frozenset({network.point_of[node.name]})
    weighted = part != "activation" and node.name in network.sim.weight_points
    return Selection(points, frozenset({node.name}) if weighted else frozenset())


def _runs(network: PartialNetwork, layers: list[Node], modes: list[Mode], parts: list[Part]) -> list[_Run]:
    """All runs, in the order of ``layers`` per mode and part, so that cumulative ones grow."""
    everything = network.everything
    runs = [_Run(FLOAT, NOTHING, FLOAT), _Run(QUANTIZED, everything, QUANTIZED)]
    for mode in modes:
        for part in parts:
            so_far = NOTHING
            for node in layers:
                chosen = _selection(network, node, part)
                if chosen == NOTHING:
                    continue
                key = f"{mode} {part} {node.name}"
                if mode == "alone":
                    runs.append(_Run(key, chosen, FLOAT))
                elif mode == "without":
                    runs.append(_Run(key, everything - chosen, QUANTIZED))
                else:
                    so_far = so_far | chosen
                    runs.append(_Run(key, so_far, f"{mode} {part}"))
    return runs


def _greedy_runs(layers: int, steps: int) -> int:
    return sum(layers - step for step in range(steps))


def _greedy(work: _Work, selections: Mapping[str, Selection], steps: int) -> tuple[GreedyStep, ...]:
    """Put the layer back to float that gains most, ``steps`` times."""
    done: list[GreedyStep] = []
    present, left = work.network.everything, dict(selections)
    for number in range(steps):
        runs = [_Run(name, present - selection, QUANTIZED) for name, selection in left.items()]
        found = work.measure(f"greedy {number + 1}", runs, present)
        pick = max if work.metric.higher_is_better else min
        best = pick(found, key=lambda name: found[name])
        done.append(GreedyStep(best, found[best]))
        present = present - left.pop(best)
    return tuple(done)


class _Work:
    """Runs measured over the data, chunk by chunk, this rank's share of them."""

    def __init__(
        self, network: PartialNetwork, metric: Metric, data: Any, samples: int | None, memory: int,
        state: str | Path | None, progress: Callable[[int, int | None], object] | None, runs: int,
    ) -> None:  # fmt: skip
        self.network, self.metric, self.data, self.limit = network, metric, data, samples
        self.samples, self._told, self._progress = 0, 0, progress
        self.rank, self.size = rank_and_size()
        total = samples_in(data, samples)
        self._total = None if total is None else total * math.ceil(runs / self.size)
        self._bytes = self._per_sample()
        self.chunk = max(1, memory // self._bytes)
        self._state: Progress | None = None
        self._path = None if state is None else Path(state)
        if self._path is not None and self.size > 1:
            self._path = self._path.with_name(f"{self._path.name}.rank{self.rank}of{self.size}")

    def _per_sample(self) -> int:
        """Bytes of all activations of one sample: of the float network, the quantized one and one in between."""
        shapes = [node.shape for node in self.network.graph]
        return max(1, sum(4 * math.prod(known(shape)) for shape in shapes) * 9 // 4)

    def measure(self, name: str, runs: list[_Run], quantized: Selection | None = None) -> dict[str, float]:
        """The metric of every run, by key.

        Args:
            name: of the pass over the data.
            runs: what to measure.
            quantized: what the base ``quantized`` stands for; everything by default.
        """
        bases = {FLOAT: NOTHING, QUANTIZED: quantized or self.network.everything}
        mine = runs[self.rank :: self.size]
        sums: Sums = {}
        begun = seen = 0
        with torch.no_grad():
            for number, chunk in enumerate(chunks(self.network.sim, self.data, self.limit, self.chunk)):
                if self._state is None:
                    self._state = Progress(self._path, self._fingerprint(runs, chunk) if self._path else {})
                if number == 0:
                    begun, seen, sums = self._state.of(name)
                if number < begun:
                    self._tell(chunk.samples * len(mine))
                    continue
                self._measure_chunk(chunk, mine, bases, sums)
                seen += chunk.samples
                self._state.put(name, number + 1, seen, sums)
        self.samples = seen
        merged = gathered(sums)
        return {run.key: self.metric.value(merged[run.key]) for run in runs}

    def _measure_chunk(self, chunk: Chunk, runs: list[_Run], bases: Mapping[str, Selection], sums: Sums) -> None:
        network = self.network
        real = network.run(chunk.inputs, NOTHING)
        reference = [real[name] for name in network.graph.outputs]
        kept = {FLOAT: real}
        chosen = dict(bases)
        needed = {run.base for run in runs} - {FLOAT}
        for base in sorted(needed):
            if base in bases:
                kept[base] = network.run(chunk.inputs, bases[base])
            else:  # cumulative: grows from the float network
                kept[base], chosen[base] = dict(real), NOTHING
        for run in runs:
            step = network.resume if run.base in bases else network.advance
            outputs = step(kept[run.base], chosen[run.base], run.chosen)
            if run.base not in bases:
                chosen[run.base] = run.chosen
            rebuilt = network.sim.captured.rebuild(outputs)
            added = self.metric.sums(outputs, reference, rebuilt, chunk.batch, chunk.samples)
            before = sums.get(run.key, [0.0] * len(added))
            sums[run.key] = [a + b for a, b in zip(before, added, strict=True)]
            self._tell(chunk.samples)

    def _tell(self, samples: int) -> None:
        self._told += samples
        if self._progress is not None:
            self._progress(self._told, self._total)

    def _fingerprint(self, runs: list[_Run], first: Chunk) -> dict[str, Any]:
        """What must be the same for sums to be continued."""
        crc = 0
        for x in first.inputs:
            crc = zlib.crc32(np.ascontiguousarray(x.detach().cpu().numpy()).tobytes(), crc)
        return {
            "program": digest(self.network.program), "metric": self.metric.name, "data": crc, "samples": self.limit,
            "chunk": self.chunk, "runs": [run.key for run in runs], "rank": [self.rank, self.size],
        }  # fmt: skip


def _row(network: PartialNetwork, node: Node, found: Mapping[str, float]) -> SensitivityRow:
    scores = [
        Score(mode, part, found[key])
        for mode in MODES
        for part in PARTS
        if (key := f"{mode} {part} {node.name}") in found
    ]
    return SensitivityRow(
        node.name, node.op, node.module, tuple(node.source or [node.name]), network.point_of[node.name],
        node.name in network.sim.weight_points, tuple(scores),
    )  # fmt: skip
