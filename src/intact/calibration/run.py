"""The calibration run: data through the float network, observers watching."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from intact.errors import CalibrationError, StateError

from .base import NonFiniteError, Observer
from .data import Call, Spec, batches, device_of, first_batch, length, samples
from .summary import CalibrationSummary, CalibrationWarning, Growth, PointSummary, warnings_of

Progress = Callable[[int, "int | None"], None]
"""Called with (batches done, batches in all or None where that is unknown)."""


STATISTICS = 32
"""Samples looked at before ranges are observed (``Simulation.collect_statistics``)."""


class Switchable(Protocol):
    """What fake quantization can be switched off at."""

    quantizing: bool


class Point(Switchable, Protocol):
    """What calibration needs of a quantization point of an activation."""

    observer: Observer
    observing: bool
    fixed: bool
    scale: Tensor
    zero_point: Tensor


class Simulated(Protocol):
    """What calibration needs of a simulation (``intact.simulation.Simulation`` has it)."""

    calibration: dict[str, Any]

    @property
    def points(self) -> Mapping[str, Point]: ...
    @property
    def weight_points(self) -> Mapping[str, Switchable]: ...
    @property
    def input_specs(self) -> Sequence[Spec]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[Tensor]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def eval(self) -> Any: ...
    def resolve(self) -> None: ...
    @property
    def constant_channels(self) -> Mapping[str, tuple[int, int]]: ...
    def collect_statistics(self, calls: list[Call]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def calibrate(
    sim: Simulated,
    data: Any,
    *,
    progress: Progress | None = None,
    max_batches: int | None = None,
    reset: bool = False,
) -> CalibrationSummary:
    """Show calibration data to a simulation and compute its scales.

    The float network runs in evaluation mode without gradients while every point observes; then ``sim.resolve()``
    turns ranges into scales and multipliers. Modes and switches are afterwards what they were before. A second call
    continues where the first ended, to the same bits as one call on all the data. On any error, and on Ctrl-C, the
    simulation goes back to what it was before the call.

    Args:
        sim: what :func:`intact.prepare` returned.
        data: a tensor, a dict, or an iterable of tensors, tuples or dicts; a DataLoader yielding (x, y) will do.
            Labels are dropped. See :func:`intact.calibration.data.batches`.
        progress: called after every batch.
        max_batches: stop after so many; None for all.
        reset: forget what earlier calls observed.

    Returns:
        Numbers per point, and warnings; also kept as JSON in ``sim.calibration``.

    Raises:
        CalibrationError: no data, data that do not fit the model's inputs, NaN or infinity in an activation (names
            batch and layer), or a point that saw nothing.
        StateError: not a simulation.

    Warns:
        CalibrationWarning: once, with all that should be looked at: few samples, ranges still moving, constants.

    Example:
        >>> import intact, torch
        >>> sim = intact.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4))
        >>> intact.calibrate(sim, torch.randn(64, 4)).samples
        64
    """
    if not isinstance(getattr(sim, "points", None), Mapping):
        raise StateError(
            f"calibrate takes a simulation, not {type(sim).__name__}", why="it has no quantization points",
            remedy="call intact.prepare(model, example_inputs) first, or intact.quantize(model, data) for all at once",
        )  # fmt: skip
    if max_batches is not None and max_batches < 1:
        raise CalibrationError(f"max_batches = {max_batches}", why="nothing would be observed", remedy="give 1 or more")
    points = sim.points
    before = {} if reset else sim.calibration
    growth = Growth()
    with _observing(sim), _all_or_nothing(sim):
        for name, point in points.items():
            if reset:
                point.observer.reset()
            growth.note(name, -1, point.observer.minimum, point.observer.maximum)
        seen, done = _run(sim, data, growth, progress, max_batches)
        sim.resolve()
    total = int(before.get("samples", 0)) + seen
    summaries = {name: _summary(point) for name, point in points.items()}
    summary = CalibrationSummary(
        batches=int(before.get("batches", 0)) + done,
        samples=total,
        points=summaries,
        warnings=warnings_of(total, done, summaries, growth, sim.constant_channels),
    )
    sim.calibration = summary.to_json()
    if summary.warnings:
        warnings.warn(CalibrationWarning("; ".join(summary.warnings)), stacklevel=2)
    return summary


def _run(
    sim: Simulated, data: Any, growth: Growth, progress: Progress | None, max_batches: int | None
) -> tuple[int, int]:
    """Samples and batches shown."""
    specs = sim.input_specs
    total = length(data, specs)
    if max_batches is not None:
        total = max_batches if total is None else min(total, max_batches)
    seen = done = 0
    calls = batches(data, specs, device_of(sim))
    if all(point.observer.count == 0 for point in sim.points.values()):
        first = _first(calls, max_batches)
        sim.collect_statistics(first)
        calls = itertools.chain(first, calls)
    with torch.no_grad():
        for index, (args, kwargs) in enumerate(calls):
            try:
                sim(*args, **kwargs)
            except NonFiniteError as error:
                where = next((n for n, p in sim.points.items() if p.observer is error.observer), "an unnamed layer")
                raise CalibrationError(
                    error.what, where=f"batch {index}, layer {where}", why=error.why, remedy=error.remedy
                ) from error
            for name, point in sim.points.items():
                growth.note(name, index, point.observer.minimum, point.observer.maximum)
            seen += samples((args, kwargs))
            done += 1
            if progress is not None:
                progress(done, total)
            if done == max_batches:
                break
    return seen, done


def _first(calls: Iterator[Call], max_batches: int | None) -> list[Call]:
    """The first batches, up to STATISTICS samples."""
    first: list[Call] = []
    while sum(samples(call) for call in first) < STATISTICS and (max_batches is None or len(first) < max_batches):
        call = next(calls, None)
        if call is None:
            break
        first.append(call)
    return first


@contextmanager
def _observing(sim: Simulated) -> Iterator[None]:
    """Evaluation mode, observing on, fake quantization off; everything as before afterwards."""
    training = {module: module.training for module in sim.modules()}
    observing = {name: point.observing for name, point in sim.points.items()}
    switches: list[Switchable] = [*sim.points.values(), *sim.weight_points.values()]
    quantizing = [point.quantizing for point in switches]
    try:
        sim.eval()
        for point in sim.points.values():
            point.observing = True
        for switch in switches:
            switch.quantizing = False
        yield
    finally:
        for module, flag in training.items():
            module.training = flag
        for name, flag in observing.items():
            sim.points[name].observing = flag
        for switch, flag in zip(switches, quantizing, strict=True):
            switch.quantizing = flag


@contextmanager
def _all_or_nothing(sim: Simulated) -> Iterator[None]:
    """Observers, scales and all other buffers go back to what they were unless the block ends normally."""
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


def _summary(point: Point) -> PointSummary:
    observer = point.observer
    known = bool(torch.isfinite(point.scale))
    return PointSummary(
        count=observer.count,
        minimum=None if math.isnan(observer.minimum) else observer.minimum,
        maximum=None if math.isnan(observer.maximum) else observer.maximum,
        scale=float(point.scale) if known else None,
        zero_point=int(point.zero_point) if known else None,
    )


__all__ = ["Progress", "calibrate", "first_batch"]
