"""The calibration run: data through the float network, observers watching."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from intact8.calibration.distributed import Ranks, ranks_for, synchronize
from intact8.calibration.observer import NonFiniteError, make_observer
from intact8.calibration.sketch_observer import SketchObserver
from intact8.errors import CalibrationError, no_simulation, require_number, warn

from .data import Call, batches, device_of, first_batch, length, samples
from .summary import CalibrationSummary, CalibrationWarning, Growth, PointSummary, warnings_of

if TYPE_CHECKING:
    from intact8.simulation.scales.quant_points import QuantPoint, WeightPoint
    from intact8.simulation.simulation import Simulation

Progress = Callable[[int, "int | None"], None]
"""Called with (batches done, batches in all or None where that is unknown)."""


STATISTICS = 32
"""Samples looked at before ranges are observed (``Simulation.collect_statistics``)."""


def compute_scales(
    sim: Simulation,
    data: Any,
    *,
    progress: Progress | None = None,
    max_batches: int | None = None,
    reset: bool = False,
    shard: str = "auto",
    quiet: bool = False,
) -> CalibrationSummary:
    """Do what :func:`intact8.calibrate` does, but choose nothing: the recipe of the simulation stays as it is.

    ``quiet`` warns of nothing, as for another recipe on the same data. Filters of warnings would do, too, but all
    threads of a process share them.
    """
    if not isinstance(getattr(sim, "points", None), Mapping):
        raise no_simulation(sim, "calibrate")
    if max_batches is not None:
        require_number("max_batches", max_batches, 1, "calibrate", error=CalibrationError)
    points = sim.points
    before = {} if reset else sim.calibration
    ranks = ranks_for(data, shard)
    synchronize(sim, ranks)
    ranks.require_same(
        "other weights",
        [*sim.parameters()],
        why="each would observe another network",
        remedy='load the same checkpoint on every rank, or calibrate alone with shard="off"',
    )
    growth = Growth()
    # What is kept and solved here outlives the call, and no gradient passes tensors of inference mode.
    with torch.inference_mode(False), torch.no_grad(), _observing(sim), _all_or_nothing(sim):
        for name, point in points.items():
            if reset:
                point.observer.reset()
            growth.note(name, -1, point.observer.minimum, point.observer.maximum)
        counts, growth = _run(sim, data, growth, progress, max_batches, ranks)
        with ranks.together():
            sim.resolve()
        synchronize(sim, ranks)
    total, batches_before = int(before.get("samples", 0)) + counts.samples, int(before.get("batches", 0))
    summaries = {name: _summary(point) for name, point in points.items()}
    summary = CalibrationSummary(
        batches=batches_before + counts.batches,
        samples=total,
        points=summaries,
        warnings=warnings_of(
            total, counts.batches, summaries, growth, _ranges(points), sim.constant_channels, sim.graph.held()
        ),
    )
    sim.calibration = summary.to_json()
    if summary.warnings and ranks.rank == 0 and not quiet:
        warn(CalibrationWarning("; ".join(summary.warnings)))
    return summary


class _Counts(NamedTuple):
    batches: int = 0
    samples: int = 0


def _run(
    sim: Simulation, data: Any, growth: Growth, progress: Progress | None, max_batches: int | None, ranks: Ranks
) -> tuple[_Counts, Growth]:
    """Return the batches and samples that all ranks showed, and how extremes grew."""
    calls = batches(data, sim.input_specs, device_of(sim))
    if all(point.observer.count == 0 for point in sim.points.values()):
        first, taken = ranks.first(calls, STATISTICS, max_batches)
        if not ranks.given:
            ranks.require_same(
                "other first batches",
                first,
                why="ranks take batches of the same data in turn",
                remedy="give every rank the same data in the same order (a DataLoader without shuffle, or a seeded "
                'one), or its own share of them with a DistributedSampler or shard="given"',
            )
        with ranks.together():
            sim.collect_statistics(first)
        calls = itertools.chain(taken, calls)
    if ranks.size == 1:
        return _show(sim, calls, growth, _Progress(progress, data, sim, max_batches, ranks), max_batches, ranks), growth
    merged = {name: point.observer for name, point in sim.points.items()}
    earlier = len(sim.kept)
    try:
        for name, point in sim.points.items():
            point.observer = make_observer(merged[name].kind, **merged[name].args())
        with ranks.together():
            counts = _show(sim, calls, growth, _Progress(progress, data, sim, max_batches, ranks), max_batches, ranks)
        kept = [[t.cpu() for t in inputs] for inputs in sim.kept[earlier:]]
        states = ranks.gather((counts, growth, {name: p.observer.state() for name, p in sim.points.items()}, kept))
    finally:
        for name, point in sim.points.items():
            point.observer = merged[name]
    for name, observer in merged.items():
        shares = [make_observer(observer.kind, **observer.args()) for _ in states]
        for share, (_, _, state, _) in zip(shares, states, strict=True):
            share.load_state(state[name])
        observer.merge_in_turn(shares, [counts.batches for counts, *_ in states])
    del sim.kept[earlier:]
    for turn in itertools.zip_longest(*(kept for *_, kept in states), fillvalue=()):
        for inputs in filter(None, turn):
            sim.keep([t.to(device_of(sim)) for t in inputs])
    counts = _Counts(*(sum(each) for each in zip(*(counts for counts, *_ in states), strict=True)))
    return counts, Growth.merged([g for _, g, *_ in states])


def _show(
    sim: Simulation, calls: Iterator[Call], growth: Growth, progress: _Progress, max_batches: int | None, ranks: Ranks
) -> _Counts:
    """Run this rank's share of the calls."""
    seen = done = 0
    specs = sim.input_specs
    batched, along = all(shape[:1] == (None,) for _, _, shape in specs), specs.along
    for index, (args, kwargs) in ranks.turns(calls, max_batches):
        _tell_samples(sim, samples((args, kwargs)) if batched else None)
        try:
            sim(*args, **kwargs)
        except NonFiniteError as error:
            where = next((n for n, p in sim.points.items() if p.observer is error.observer), "an unnamed layer")
            raise CalibrationError(
                error.what, where=f"batch {index}, layer {where}", why=error.why, remedy=error.remedy
            ) from error
        sim.keep(sim.flatten(args, kwargs))
        for name, point in sim.points.items():
            growth.note(name, index, point.observer.minimum, point.observer.maximum)
        seen += samples((args, kwargs), along)
        done += 1
        progress(index + 1)
    return _Counts(done, seen)


def _tell_samples(sim: Simulation, count: int | None) -> None:
    """Say how many samples the tensors hold that observers see next; None where that is unknown."""
    for point in sim.points.values():
        if isinstance(point.observer, SketchObserver):
            point.observer.begin(count)


class _Progress:
    """Tells the user's function how far the batches of all ranks are."""

    def __init__(
        self, tell: Progress | None, data: Any, sim: Simulation, max_batches: int | None, ranks: Ranks
    ) -> None:
        self.tell = tell
        total = length(data, sim.input_specs)
        if total is not None and ranks.given:
            total *= ranks.size
        self.total = max_batches if total is None else total if max_batches is None else min(total, max_batches)

    def __call__(self, done: int) -> None:
        if self.tell is not None:
            self.tell(done, self.total)


@contextmanager
def _observing(sim: Simulation) -> Iterator[None]:
    """Switch to evaluation mode, observing on and fake quantization off, and back to what was before."""
    training = {module: module.training for module in sim.modules()}
    observing = {name: point.observing for name, point in sim.points.items()}
    switches: list[QuantPoint | WeightPoint] = [*sim.points.values(), *sim.all_weight_points.values()]
    quantizing = [point.quantizing for point in switches]
    try:
        sim.eval()
        for point in sim.points.values():
            point.observing = True
        for switch in switches:
            switch.quantizing = False
        yield
    finally:
        _tell_samples(sim, None)
        for module, flag in training.items():
            module.training = flag
        for name, flag in observing.items():
            sim.points[name].observing = flag
        for switch, flag in zip(switches, quantizing, strict=True):
            switch.quantizing = flag


@contextmanager
def _all_or_nothing(sim: Simulation) -> Iterator[None]:
    """Put observers, scales and all other buffers back to what they were unless the block ends normally."""
    points = [(p, p.observer.state(), p.scale.clone(), p.zero_point.clone()) for p in sim.points.values()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in sim.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    finished = False
    try:
        yield
        finished = True
    finally:
        # Not "except": Ctrl-C must restore as well.
        if not finished:
            with torch.no_grad():
                for point, state, scale, zero_point in points:
                    point.observer.load_state(state)
                    point.scale.copy_(scale)
                    point.zero_point.copy_(zero_point)
                for module, name, buffer, values in buffers:
                    module._buffers[name] = buffer
                    if not torch.equal(buffer, values):
                        buffer.copy_(values)


def _ranges(points: Mapping[str, QuantPoint]) -> dict[str, tuple[float, float]]:
    """Return the real numbers that grids of known scale span, half a step beyond their ends."""
    found = {}
    for name, point in points.items():
        scale, zero_point = float(point.scale), int(point.zero_point)
        if math.isfinite(scale):
            found[name] = ((point.lo - zero_point - 0.5) * scale, (point.hi - zero_point + 0.5) * scale)
    return found


def _summary(point: QuantPoint) -> PointSummary:
    observer = point.observer
    known = bool(torch.isfinite(point.scale))
    return PointSummary(
        count=observer.count,
        minimum=None if math.isnan(observer.minimum) else observer.minimum,
        maximum=None if math.isnan(observer.maximum) else observer.maximum,
        scale=float(point.scale) if known else None,
        zero_point=int(point.zero_point) if known else None,
    )


__all__ = ["Progress", "compute_scales", "first_batch"]
