"""Sensitivity: what it costs to quantize a layer."""

from __future__ import annotations

import math
import numbers
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from intact8.arithmetic.dimensions import known
from intact8.calibration.distributed import ranks_for
from intact8.capture.graph import Node
from intact8.diagnose.chunks import Chunk, chunks, count_samples
from intact8.diagnose.evaluation_scores import identity
from intact8.diagnose.sensitivity.checkpoint import Checkpoint, Sums
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
    worth,
)
from intact8.errors import InputError, StateError, require_number
from intact8.program.file import digest
from intact8.recipe.recipe import Recipe
from intact8.regular_file import path_of
from intact8.simulation.simulation import Simulation

FIRST = 4
"""Samples that are run at once, at most, where time is limited."""

FLOAT, QUANTIZED = "float", "quantized"
NOTHING = Selection()
Progress = Callable[[int, int | None], object]


def sensitivity(
    model: nn.Module | Simulation,
    data: Any,
    *,
    metric: str | Metric | UserMetric = "sqnr",
    higher_is_better: bool = True,
    modes: Iterable[Mode] = ("alone",),
    parts: Iterable[Part] = ("both",),
    greedy: int = 0,
    calibration: Any = None,
    recipe: Recipe | str | Path | None = None,
    samples: int | None = None,
    memory: int = 1 << 30,
    seconds: float | None = None,
    state: str | Path | None = None,
    progress: Progress | None = None,
) -> SensitivityReport:
    """Measure what quantizing each layer costs.

    Activations are kept, and a network in which one layer is quantized is computed from that layer on only; what is
    integers all the way runs on an engine. Where a process group of ``torch.distributed`` is initialized, every rank
    measures its share of the layers on all the data (give each rank the same) and returns the whole report. Nothing is
    drawn at random.

    Args:
        model: a calibrated simulation in evaluation mode; or a float network, which is then prepared with ``recipe``
            and calibrated on ``calibration`` (on ``data`` where that is None), as :func:`intact8.quantize` does it.
        data: as for :func:`intact8.calibrate`; a metric of your own gets each batch as it is here, labels included.
        metric: ``sqnr`` (dB, at most 150), ``kl`` (nats), ``cosine`` or ``top1`` (agreement with the float network), or
            a callable: see :data:`intact8.diagnose.sensitivity.metrics.UserMetric`.
        higher_is_better: how to read a callable's numbers; of built-in metrics it is known.
        modes: which layers are quantized: ``alone``, ``without`` (all but this one), ``cumulative`` (up to this one).
        parts: what of a layer is quantized: ``both``, its ``weight``, or its ``activation``, which is the output; with
            ``without``, what is left in float.
        greedy: from everything quantized, put so many layers back to float, each time the one that gains most. Reads
            the data once for every step, so an iterator will not do.
        calibration, recipe: how a float network is calibrated and quantized.
        samples: stop after so many; None for all.
        memory: bytes that kept activations may take. At least one sample is run at once.
        seconds: stop after about so many, of which the search that ``greedy`` asks for gets what is left; None for no
            limit. Layers are then measured on a few samples first, those whose output loses most where everything is
            quantized before the others; rows of those that were not reached have no scores. Called with the same
            ``state`` again, it goes on. Not for several ranks, which would each stop elsewhere.
        state: a file results are kept in after every chunk of data; a call that was interrupted continues from it. Each
            rank has its own, with ``.rank0of2`` appended.
        progress: called after every run with (samples run, samples to run or None where that is unknown); a sample
            counts once for every network it is run through.

    Raises:
        InputError: unknown metric, mode or part, a metric that gives no number, nothing to measure, a state file of
            another run, or a limit of time on several ranks.
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
    require_number("memory", memory, 1, "sensitivity", numbers.Real, finite=False)
    require_number("greedy", greedy, 0, "sensitivity")
    if samples is not None:
        require_number("samples", samples, 1, "sensitivity")
    if seconds is not None:
        require_number("seconds", seconds, 0, "sensitivity", numbers.Real, finite=False)
        if not seconds:
            raise InputError("seconds is 0", where="sensitivity", remedy="give more, or None for as long as it takes")
    if greedy and isinstance(data, Iterator):
        raise InputError(
            "greedy reads the data more than once", where="data", remedy="give a tensor, list or DataLoader"
        )
    network = PartialNetwork(_simulation(model, data, calibration, recipe))
    measured, layers = make_metric(metric, higher_is_better), network.layers()
    runs = _runs(network, layers, chosen_modes, chosen_parts)
    greedy = min(greedy, len(layers))
    count = len(runs) + sum(len(layers) - step for step in range(greedy))
    measurement = _Measurement(network, measured, data, samples, memory, seconds, state, progress, count)
    found = measurement.run("layers", runs)
    _require_scores(measured.name, found[FLOAT], found[QUANTIZED])
    steps = _greedy(measurement, {node.name: network.select(node) for node in layers}, greedy)
    rows = tuple(_row(network, node, found) for node in layers)
    return SensitivityReport(
        measured.name, measured.higher_is_better, found[FLOAT], found[QUANTIZED], rows, steps, measurement.samples
    )


def _require_scores(name: str, exact: float, quantized: float) -> None:
    """Raise InputError where nothing can be ranked: the float network has no score, or the quantized one is NaN."""
    for network, score, refused in (
        ("float", exact, not math.isfinite(exact)),
        ("quantized", quantized, math.isnan(quantized)),
    ):
        if refused:
            what = f"{name} of the {network} network is {score}"
            remedy = "give data and a metric that tell a number of it"
            raise InputError(what, where="sensitivity", why="nothing can be compared with it", remedy=remedy)


def _chosen(what: str, given: Iterable[Any], known: Sequence[Any]) -> list[Any]:
    wanted = [given] if isinstance(given, str) else list(given)
    unknown = [value for value in wanted if value not in known]
    if unknown:
        raise InputError(
            f"there is no {what} {unknown[0]!r}", where="sensitivity", remedy=f"choose from {', '.join(known)}"
        )
    return [value for value in known if value in wanted]


def _simulation(
    model: nn.Module | Simulation, data: Any, calibration: Any, recipe: Recipe | str | Path | None
) -> Simulation:
    """Return the calibrated simulation to measure."""
    if isinstance(model, Simulation):
        if recipe is not None:
            raise InputError("a recipe for a simulation", why="it was prepared with one", remedy="leave recipe out")
        model.require_deployable()
        model.ready()
        return model
    if not isinstance(model, nn.Module):
        raise StateError(f"sensitivity takes a simulation or a module, not {type(model).__name__}")
    if calibration is None and isinstance(data, Iterator):
        raise InputError(
            "an iterator is read only once, and calibration comes first",
            where="data",
            remedy="give a tensor, list or DataLoader, or calibration data of their own",
        )
    from intact8.calibration.data import first_batch
    from intact8.calibration.dynamic_dimensions import changing
    from intact8.calibration.run import compute_scales
    from intact8.diagnose.between_layers import choose_between_layers
    from intact8.simulation.prepare import prepare, warn_of_training_mode

    warn_of_training_mode(model)
    example, calibration = first_batch(model, data if calibration is None else calibration)
    found, calibration = changing(model, example, calibration)
    sim = prepare(model, example, recipe, dynamic_shapes=found)
    compute_scales(sim, calibration)
    choose_between_layers(sim, calibration)
    return sim


@dataclass(frozen=True)
class _Run:
    """One network to measure.

    Attributes:
        key: name of the run.
        chosen: what is quantized.
        base: name of the network whose activations it shares.
        layer: which layer it measures; empty for a network that is measured for itself.
    """

    key: str
    chosen: Selection
    base: str
    layer: str = ""


def _runs(network: PartialNetwork, layers: list[Node], modes: list[Mode], parts: list[Part]) -> list[_Run]:
    """List all runs, in the order of ``layers`` per mode and part, so that cumulative ones grow."""
    runs = [_Run(FLOAT, NOTHING, FLOAT), _Run(QUANTIZED, network.everything, QUANTIZED)]
    for mode, part in ((mode, part) for mode in modes for part in parts):
        so_far = NOTHING
        for node in layers:
            chosen = network.select(node, weight=part != "activation", activation=part != "weight")
            if chosen == NOTHING:
                continue
            so_far = so_far | chosen
            selected, base = {
                "alone": (chosen, FLOAT),
                "without": (network.everything - chosen, QUANTIZED),
                "cumulative": (so_far, f"{mode} {part}"),
            }[mode]
            runs.append(_Run(f"{mode} {part} {node.name}", selected, base, node.name))
    return runs


def _greedy(measurement: _Measurement, selections: Mapping[str, Selection], steps: int) -> tuple[GreedyStep, ...]:
    """Put the layer back to float that gains most, ``steps`` times."""
    done: list[GreedyStep] = []
    present, left = measurement.network.everything, dict(selections)
    for number in range(steps):
        runs = [_Run(name, present - selection, QUANTIZED, name) for name, selection in left.items()]
        found = measurement.run(f"greedy {number + 1}", runs, present)
        if len(found) < len(runs):  # there was no time to compare all
            break
        best = max(found, key=lambda name: worth(found[name], measurement.metric.higher_is_better))
        done.append(GreedyStep(best, found[best]))
        present = present - left.pop(best)
    return tuple(done)


class _Measurement:
    """Measures this rank's share of the runs over the data, chunk by chunk."""

    def __init__(
        self,
        network: PartialNetwork,
        metric: Metric,
        data: Any,
        samples: int | None,
        memory: int,
        seconds: float | None,
        state: str | Path | None,
        progress: Progress | None,
        runs: int,
    ) -> None:
        self.network, self.metric, self.data, self.limit = network, metric, data, samples
        self.samples, self._told, self._progress = 0, 0, progress
        self.ranks = ranks_for(data, "split")
        if seconds is not None and self.ranks.size > 1:
            why, remedy = "each would stop at other samples", "leave seconds out, or give fewer samples"
            raise InputError(f"a limit of time on {self.ranks.size} ranks", where="sensitivity", why=why, remedy=remedy)
        self._end = None if seconds is None else time.monotonic() + seconds
        total = count_samples(data, samples)
        self._total = None if total is None else total * math.ceil(runs / self.ranks.size)
        # A sample takes the activations of the float network, of the quantized one, and a quarter of one in between.
        elements = sum(math.prod(known(node.shape)) for node in network.graph)
        self.chunk = max(1, memory // max(1, 4 * elements * 9 // 4))
        if seconds is not None:
            self.chunk = min(self.chunk, FIRST)
        self._checkpoint: Checkpoint | None = None
        self._path = None if state is None else path_of(state, "the results")
        if self._path is not None and self.ranks.size > 1:
            self._path = self._path.with_name(f"{self._path.name}.rank{self.ranks.rank}of{self.ranks.size}")

    def run(self, name: str, runs: list[_Run], quantized: Selection | None = None) -> dict[str, float]:
        """Return the metric of every run by key; only of some where time ends in the first chunk.

        Args:
            name: name of the pass over the data.
            runs: what to measure.
            quantized: what the base ``quantized`` stands for; everything by default.
        """
        bases = {FLOAT: NOTHING, QUANTIZED: quantized or self.network.everything}
        mine = runs[self.ranks.rank :: self.ranks.size]
        sums: Sums = {}
        begun = seen = 0
        parts = chunks(self.network.captured, self.network.device, self.data, self.limit, self.chunk)
        with torch.no_grad():
            for number, chunk in enumerate(parts):
                if self._checkpoint is None:
                    self._checkpoint = Checkpoint(self._path, self._fingerprint(runs, chunk) if self._path else {})
                if number == 0:
                    begun, seen, sums = self._checkpoint.get(name)
                if number < begun:
                    self._tell(chunk.samples * len(mine))
                    continue
                if number > 0 and self._late():
                    break
                done = self._measure_chunk(chunk, mine, bases, sums if number == 0 else {})
                if number > 0 and len(done) < len(mine):  # time ended within
                    break
                for key, added in done.items():
                    before = sums.get(key, [0.0] * len(added))
                    sums[key] = [a + b for a, b in zip(before, added, strict=True)]
                whole = len(sums) == len(mine)
                seen += chunk.samples if whole else 0
                self._checkpoint.put(name, number + whole, seen, sums)
                if not whole:
                    seen = chunk.samples
                    break
        self.samples = seen or self.samples
        merged = {key: value for part in self.ranks.gather(sums) for key, value in part.items()}
        return {run.key: self.metric.value(merged[run.key]) for run in runs if run.key in merged}

    def _late(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def _measure_chunk(
        self, chunk: Chunk, runs: list[_Run], bases: Mapping[str, Selection], known: Sums
    ) -> dict[str, tuple[float, ...]]:
        """Return the sums of every run that is not known, or of some where time ends; networks come before layers."""
        network = self.network
        real = network.run(chunk.inputs, NOTHING)
        reference = [real[name] for name in network.graph.outputs]
        computed = {FLOAT: real}
        chosen = dict(bases)
        for base in sorted({run.base for run in runs} - {FLOAT}):
            if base in bases:
                computed[base] = network.run(chunk.inputs, bases[base])
            else:  # a cumulative network grows from the float network
                computed[base], chosen[base] = dict(real), NOTHING
        if self._end is not None:
            runs = _most_lost_first(runs, network.losses(real, computed.get(QUANTIZED), chunk.inputs), bases)
        found: dict[str, tuple[float, ...]] = {}
        for run in runs:
            if run.layer and self._late():
                break
            if run.key in known and run.base in bases:
                self._tell(chunk.samples)
                continue
            step = network.resume if run.base in bases else network.advance
            outputs = step(computed[run.base], chosen[run.base], run.chosen)
            if run.base not in bases:
                chosen[run.base] = run.chosen
            if run.key not in known:
                rebuilt = network.captured.rebuild(outputs)
                found[run.key] = self.metric.sums(outputs, reference, rebuilt, chunk.batch, chunk.samples)
            self._tell(chunk.samples)
        return found

    def _tell(self, samples: int) -> None:
        self._told += samples
        if self._progress is not None:
            self._progress(self._told, self._total)

    def _fingerprint(self, runs: list[_Run], first: Chunk) -> dict[str, Any]:
        """Return what must be the same for sums to be continued."""
        crc = 0
        for x in first.inputs:
            crc = zlib.crc32(np.ascontiguousarray(x.detach().cpu().numpy()).tobytes(), crc)
        return {
            "program": digest(self.network.program),
            "metric": [self.metric.name, identity(self.metric.sums), identity(self.metric.value)],
            "higher_is_better": self.metric.higher_is_better,
            "data": crc,
            "samples": self.limit,
            "chunk": self.chunk,
            "runs": [run.key for run in runs],
            "rank": [self.ranks.rank, self.ranks.size],
        }


def _most_lost_first(runs: list[_Run], losses: Mapping[str, float], bases: Mapping[str, Selection]) -> list[_Run]:
    """Sort networks before layers, and layers by what is lost there; those of a network that grows stay in order."""
    order = [run for run in runs if not run.layer]
    order += sorted((run for run in runs if run.layer and run.base in bases), key=lambda run: -losses[run.layer])
    return order + [run for run in runs if run.layer and run.base not in bases]


def _row(network: PartialNetwork, node: Node, found: Mapping[str, float]) -> SensitivityRow:
    keys = {(mode, part): f"{mode} {part} {node.name}" for mode in MODES for part in PARTS}
    return SensitivityRow(
        name=node.name,
        kind=node.op,
        module=node.module,
        source=tuple(node.source or [node.name]),
        point=network.point_of.get(node.name, ""),
        has_weight=node.name in network.weight_points,
        scores=tuple(Score(mode, part, found[key]) for (mode, part), key in keys.items() if key in found),
    )
