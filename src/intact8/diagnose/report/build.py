"""``intact8.report``: everything known about a program, gathered."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.diagnose.compare.report import CompareReport
from intact8.diagnose.lint.finding import LintReport
from intact8.diagnose.report.contents import Counts, Integers, Layer, Metric, Milliseconds, Report, Speed
from intact8.diagnose.report.integer_histograms import clamp, integers
from intact8.diagnose.report.layer_times import time_layers
from intact8.diagnose.sensitivity.report import SensitivityReport
from intact8.engines import available_engines
from intact8.errors import InputError
from intact8.opset.op import Op
from intact8.program.certify import certifiable
from intact8.program.file import digest
from intact8.program.golden import products
from intact8.program.inspect import Row, table
from intact8.program.program import Program
from intact8.program.provenance import well_formed
from intact8.program.samples import random_samples
from intact8.verification import batches

from .weights import activation_function, channels, runs_as

if TYPE_CHECKING:
    from torch import nn

    from intact8.simulation.simulation import Simulation

TIMED = ("onednn", "reference")
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
) -> Report:
    """Everything known about a program, for a page (``save``), a terminal (``rich.print``) or a script (``to_json``).

    Args:
        program: checked (converted or loaded).
        data: as for :func:`intact8.verify`; without it nothing is counted, and speed is measured on random samples.
        model: the float32 network; compared layer by layer on ``data``.
        sim: what the program was converted from; compared with the model in place of the program.
        compare: what :func:`intact8.compare` found, used in place of comparing again.
        sensitivity: what :func:`intact8.sensitivity` found.
        lint: what :func:`intact8.lint` found; the program is linted when None.
        engine: what is timed, "onednn" or "reference"; the fastest of them by default.
        seconds: how long to time, roughly; 0 times nothing.
        batch_size: samples run at once, at most.
        title: of the page.

    Raises:
        InputError: a model without data, data that do not fit, or an iterator that can be read only once.
        EngineError: the engine is missing, or cannot time its operations.

    Example:
        >>> import intact8, torch
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(64, 4)
        >>> made = report(intact8.quantize(model, x), x, seconds=0.0)
        >>> [layer.runs_as for layer in made.layers]
        ['int8', 'int8', 'int8']
    """
    if data is not None and not isinstance(data, Mapping) and iter(data) is data:
        raise InputError(
            "the data can be read only once, and are read more than once", where="report",
            remedy="give a list, an array or a DataLoader",
        )  # fmt: skip
    if model is not None and compare is None:
        if data is None:
            raise InputError("a model without data", where="report", remedy="give the samples to compare it on")
        from intact8.diagnose.compare import compare as compare_networks

        compare = compare_networks(model, program if sim is None else sim, data)
    if lint is None:
        from intact8.diagnose.lint import lint as lint_program

        lint = lint_program(program)
    engine = engine or next(name for name in TIMED if name in available_engines())
    counts: dict[str, Integers] = {}
    samples = 0
    if data is not None:
        counts, samples = integers(program, batches(program, data, batch_size), engine)
    first = None if data is None else next(batches(program, data, batch_size))
    speed: Speed | None = None
    times: dict[str, Milliseconds] = {}
    if seconds > 0:
        inputs = random_samples(program, 1) if first is None else first
        speed, times = time_layers(
            program, inputs, engine, seconds=seconds, data="random" if first is None else "given"
        )
    errors = {} if compare is None else {row.name: row for row in compare}
    scores = {} if sensitivity is None else {row.name: row.score("alone") for row in sensitivity}
    layers = tuple(
        _layer(program, op, row, counts, times.get(op.name), errors.get(op.name), scores.get(op.name), lint)
        for op, row in zip(program.ops, table(program), strict=True)
    )
    return Report(
        title=title or "int8 program",
        digest=digest(program),
        needs=program.needs,
        counts=_counts(program, layers),
        layers=layers,
        findings=tuple(lint),
        skipped=dict(lint.skipped),
        samples=samples,
        compared=0 if compare is None else compare.samples,
        metric=None if sensitivity is None else _metric(sensitivity),
        speed=speed,
        provenance=well_formed(program.provenance),
        recipe=program.recipe,
        machine=_machine(),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _layer(
    program: Program,
    op: Op,
    row: Row,
    counts: Mapping[str, Integers],
    time: Milliseconds | None,
    error: Any,
    sensitivity: float | None,
    lint: LintReport,
) -> Layer:
    t = program.tensors[op.name]
    low, high = clamp(op)
    ends: tuple[float | None, float | None] = (None, None)
    if t.scale is not None and t.zero_point is not None:
        ends = ((low - t.zero_point) * t.scale, (high - t.zero_point) * t.scale)
    weight = op.arrays.get("weight", np.empty(0))
    return Layer(
        name=op.name,
        kind=op.kind,
        module=op.module,
        runs_as=runs_as(op),
        inputs=op.inputs,
        source=op.source,
        fused=row.fused,
        activation_function=activation_function(op, t),
        shape=t.shape,
        dtype=t.dtype,
        scale=t.scale,
        zero_point=t.zero_point,
        real_low=ends[0],
        real_high=ends[1],
        weight_shape=tuple(weight.shape) if weight.size else (),
        macs=products(Program(program.tensors, (op,), (), ())),
        bytes=row.bytes,
        certificate=op.certificate if certifiable(op) else None,
        note=op.note,
        channels=channels(program, op),
        integers=counts.get(op.name),
        error=error,
        sensitivity=sensitivity,
        time=time,
        findings=tuple(i for i, f in enumerate(lint) if op.name in (f.node, f.tensor) or (f.module == op.name != "")),
    )


def _counts(program: Program, layers: tuple[Layer, ...]) -> Counts:
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


def _metric(found: SensitivityReport) -> Metric:
    return Metric(found.metric, found.higher_is_better, found.float_score, found.quantized_score, found.samples)


def _machine() -> dict[str, Any]:
    from intact8.engines.cpu import isa
    from intact8.runtime.facts import Facts

    facts = Facts.here()
    return {
        "cpu": facts.cpu, "architecture": facts.machine, "isa": isa(), "system": facts.system, "python": facts.python,
        "packages": dict(facts.packages),
    }  # fmt: skip


__all__ = ["Report", "report"]
