"""``intact8.report``: gather everything that is known about a program."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from intact8.diagnose.lint.finding import LintReport
from intact8.diagnose.lint.run import lint as lint_program
from intact8.diagnose.report.contents import Counts, Integers, Layer, Metric, Milliseconds, Report, Speed, Tuning
from intact8.diagnose.report.integer_histograms import clamp, count_integers
from intact8.diagnose.report.layer_times import time_layers
from intact8.engines import available_engines
from intact8.engines.cpu import isa
from intact8.errors import InputError, require_number
from intact8.opset.op import Op
from intact8.program.certify import certifiable
from intact8.program.file import digest
from intact8.program.golden import products
from intact8.program.inspect import Row, table
from intact8.program.program import Program, require_program
from intact8.program.provenance import well_formed
from intact8.program.samples import random_samples
from intact8.runtime.facts import Facts
from intact8.text import finite
from intact8.verification import batches

from .accuracy import accuracy, run_float
from .next_steps import next_steps
from .weights import activation_function, channels, runs_as

if TYPE_CHECKING:
    from torch import nn

    from intact8.arithmetic.dimensions import Dim
    from intact8.diagnose.compare.report import CompareReport
    from intact8.diagnose.doctor.report import DoctorReport
    from intact8.diagnose.sensitivity.report import SensitivityReport
    from intact8.simulation.simulation import Simulation
    from intact8.tuning.result import TuneResult

TIMED = ("native", "onednn", "reference")
"""Engines that time their operations, fastest first."""


def report(
    program: Program,
    data: Any = None,
    *,
    model: nn.Module | None = None,
    sim: Simulation | None = None,
    compare: CompareReport | None = None,
    sensitivity: SensitivityReport | None = None,
    lint: LintReport | None = None,
    engine: str = "",
    seconds: float = 2.0,
    batch_size: int = 8,
    title: str = "",
    labels: Any = None,
    doctor: DoctorReport | None = None,
    other: Program | None = None,
    tuning: TuneResult | None = None,
) -> Report:
    """Gather all facts about a program, for a page (``save``), a terminal (``rich.print``) or a script (``to_json``).

    Args:
        program: a checked program (converted or loaded).
        data: as for :func:`intact8.verify`; without data no integers are counted, and random samples are timed.
        model: the float32 network; compared layer by layer on ``data``.
        sim: the simulation that the program was converted from; compared with the model in place of the program.
        compare: the result of :func:`intact8.compare`, used in place of comparing again.
        sensitivity: the result of :func:`intact8.sensitivity`.
        lint: the result of :func:`intact8.lint`; the program is linted when None.
        engine: the engine that is timed, "native", "onednn" or "reference"; the first that is here by default.
        seconds: roughly how long to time; 0 times nothing.
        batch_size: samples run at once, at most.
        title: title of the page; the class of the model by default.
        labels: one class index per sample of ``data``, for the accuracy; found in ``data`` where its batches are
            ``(inputs, labels)``.
        doctor: the result of :func:`intact8.doctor`, which says what to do next.
        other: a second program of the same inputs, measured on the same data and compared with the first.
        tuning: the result of :func:`intact8.tune` that the program comes from.

    Raises:
        InputError: a model without data, data that do not fit, an iterator that can be read only once, a comparison or
            sensitivity of another network, or a number outside its limits.
        EngineError: the engine is missing, or cannot time its operations.

    Example:
        >>> import intact8, torch
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(64, 4)
        >>> made = report(intact8.quantize(model, x), x, seconds=0.0)
        >>> [layer.runs_as for layer in made.layers]
        ['int8', 'int8', 'int8']
    """
    require_program(program, "report")
    for argument, given, cls in (
        ("compare", compare, "CompareReport"),
        ("sensitivity", sensitivity, "SensitivityReport"),
        ("lint", lint, "LintReport"),
        ("doctor", doctor, "DoctorReport"),
        ("tuning", tuning, "TuneResult"),
    ):
        if given is not None and type(given).__name__ != cls:
            verb = "tune" if argument == "tuning" else argument
            what, remedy = f"{argument}={given!r:.40} is no result", f"give what intact8.{verb} returned"
            raise InputError(what, where="report", remedy=remedy)
    require_number("batch_size", batch_size, 1, "report")
    require_number("seconds", seconds, 0, "report", numbers.Real)
    if compare is not None:
        _require_compared(program, compare)
    rows = () if sensitivity is None else sensitivity.rows
    if rows and not any(row.name in program.tensors for row in rows):
        what, why = "the sensitivity is of another network", "none of its layers is one of the program's"
        remedy = "give what intact8.sensitivity found of this one"
        raise InputError(what, where="report(sensitivity=)", why=why, remedy=remedy)
    if labels is not None and data is None:
        raise InputError("labels without data", where="report", remedy="give the samples they are of")
    if other is not None and _taken(require_program(other, "report")) != _taken(program):
        what, why = "the other program takes other inputs", f"{_taken(other)}, not {_taken(program)}"
        raise InputError(what, where="report", why=why, remedy="give a program of the same network")
    if data is not None and not isinstance(data, Mapping) and iter(data) is data:
        what = "the data can be read only once, and are read more than once"
        raise InputError(what, where="report", remedy="give a list, an array or a DataLoader")
    if model is not None and compare is None:
        compare = _compare(model, program if sim is None else sim, data)
    engine = engine or next(name for name in TIMED if name in available_engines(program))
    measured = _measure(program, data, model, engine, seconds, batch_size)
    found = lint_program(program) if lint is None else lint
    name = title or ("int8 program" if model is None else type(model).__name__)
    made = _assemble(program, name, measured, compare, sensitivity, found)
    beside = None
    if other is not None:
        chosen: dict[str, Any] = {"engine": engine, "seconds": seconds, "batch_size": batch_size, "labels": labels}
        beside = report(other, data, model=model, title="the other program", **chosen)
    made = replace(made, accuracy=accuracy(program, data, labels, model, engine, batch_size), other=beside)
    return replace(made, tuning=_tuning(tuning), next_steps=next_steps(made, doctor))


def _require_compared(program: Program, compare: CompareReport) -> None:
    """Raise InputError where a comparison is of another network: its layers are not the program's, or of other sizes.

    Sizes that change, and so have a name in one of both, are not compared.
    """
    rows = {row.name: row for row in compare}
    # Every layer with a weight has a row; one of several operations has one in the name of the last of them.
    weighted = [op.name for op in program.ops if "weight" in op.arrays]
    missing = [name for name in weighted if not {name, name.rpartition(".part")[0]} & rows.keys()]
    missing += [name for name in rows if name not in program.tensors]
    missing += [name for name, row in rows.items() if not missing and _differ(row.shape, program.tensors[name].shape)]
    if missing:
        why = f"the layer {missing[0]!r} is missing in one of the two, or has another size"
        what = "the comparison is of another network"
        raise InputError(what, where="report(compare=)", why=why, remedy="give what intact8.compare found of this one")


def _differ(one: Sequence[Dim], other: Sequence[Dim]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) != len(other) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _taken(program: Program) -> str:
    """Return in words what a program takes, in order."""
    tensors = (program.tensors[name] for name in program.inputs)
    return ", ".join(f"{t.dtype} {tuple('batch' if d is None else d for d in t.shape)}" for t in tensors)


def _tuning(result: TuneResult | None) -> Tuning | None:
    if result is None:
        return None
    grid = result.grid()
    return Tuning(grid.caption, result.svg(), tuple(column.title for column in grid.columns), grid.rows)


class _Measured(NamedTuple):
    """What running the program showed."""

    integers: dict[str, Integers]
    samples: int
    speed: Speed | None
    times: dict[str, Milliseconds]


def _compare(model: nn.Module, quantized: Program | Simulation, data: Any) -> CompareReport:
    if data is None:
        raise InputError("a model without data", where="report", remedy="give the samples to compare it on")
    from intact8.diagnose.compare import compare  # it needs torch

    return compare(model, quantized, data)


def _measure(
    program: Program, data: Any, model: nn.Module | None, engine: str, seconds: float, batch_size: int
) -> _Measured:
    integers: dict[str, Integers] = {}
    samples, inputs, kind = 0, random_samples(program, 1), "random"
    if data is not None:
        integers, samples = count_integers(program, batches(program, data, batch_size), engine)
        if not samples:
            remedy = "give one sample or more, or None"
            raise InputError("there are no samples to count integers of", where="report", remedy=remedy)
        inputs, kind = next(batches(program, data, batch_size)), "given"
    if seconds <= 0:
        return _Measured(integers, samples, None, {})
    float32 = None if model is None else partial(run_float, program, model, inputs)
    timed = time_layers(program, inputs, engine, seconds=seconds, data=kind, float32=float32)
    return _Measured(integers, samples, *timed)


def _assemble(
    program: Program,
    title: str,
    measured: _Measured,
    compare: CompareReport | None,
    sensitivity: SensitivityReport | None,
    lint: LintReport,
) -> Report:
    errors = {row.name: row for row in compare or ()}
    scores = {row.name: finite(row.score("alone")) for row in sensitivity or ()}
    layers = tuple(
        replace(
            _layer(program, op, row),
            integers=measured.integers.get(op.name),
            error=errors.get(op.name),
            sensitivity=scores.get(op.name),
            time=measured.times.get(op.name),
            findings=_findings(op, lint),
        )
        for op, row in zip(program.ops, table(program), strict=True)
    )
    s, metric = sensitivity, None
    if s is not None:
        both = finite(s.float_score), finite(s.quantized_score)
        metric = Metric(s.metric, s.higher_is_better, *both, s.samples)
    return Report(
        title=title,
        digest=digest(program),
        needs=program.needs,
        counts=_counts(program, layers),
        layers=layers,
        findings=tuple(lint),
        skipped=dict(lint.skipped),
        samples=measured.samples,
        compared=0 if compare is None else compare.samples,
        metric=metric,
        speed=measured.speed,
        provenance=well_formed(program.provenance),
        recipe=program.recipe,
        machine=_machine(),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _layer(program: Program, op: Op, row: Row) -> Layer:
    """Return what is known of an operation before anything runs."""
    t = program.tensors[op.name]
    ends: tuple[float | None, float | None] = (None, None)
    if t.scale is not None and t.zero_point is not None:
        low, high = clamp(op)
        ends = ((low - t.zero_point) * t.scale, (high - t.zero_point) * t.scale)
    weight = op.arrays.get("weight")
    return Layer(
        **{name: getattr(op, name) for name in ("name", "kind", "module", "inputs", "source", "note")},
        **{name: getattr(t, name) for name in ("shape", "dtype", "scale", "zero_point")},
        runs_as=runs_as(op),
        fused=row.fused,
        activation_function=activation_function(op, t),
        real_low=ends[0],
        real_high=ends[1],
        weight_shape=() if weight is None or not weight.size else tuple(weight.shape),
        macs=products(Program(program.tensors, (op,), (), ())),
        bytes=row.bytes,
        certificate=op.certificate if certifiable(op) else None,
        channels=channels(program, op),
    )


def _findings(op: Op, lint: LintReport) -> tuple[int, ...]:
    """Return the positions of the findings about an operation."""
    about = [op.name in (f.node, f.tensor) or (f.module == op.name != "") for f in lint]
    return tuple(i for i, found in enumerate(about) if found)


def _counts(program: Program, layers: Sequence[Layer]) -> Counts:
    kinds = [layer.runs_as for layer in layers]
    provable = [op for op in program.ops if certifiable(op)]
    return Counts(
        ops=len(layers),
        int8=kinds.count("int8"),
        moves=kinds.count("move"),
        floats=kinds.count("float32"),
        tensors=len(program.integer_tensors()),
        certifiable=len(provable),
        certified=sum(bool(op.certificate and op.certificate.get("exact")) for op in provable),
        bytes=program.nbytes(),
        macs=sum(layer.macs for layer in layers),
    )


def _machine() -> dict[str, Any]:
    """Return the CPU, the system and the versions of packages of this machine."""
    facts = Facts.here()
    system = {"cpu": facts.cpu, "architecture": facts.machine, "isa": isa(), "system": facts.system}
    return {**system, "python": facts.python, "packages": dict(facts.packages)}
