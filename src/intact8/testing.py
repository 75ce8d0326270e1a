"""Assertions for the test suite of a project that quantizes: a failure says what, where and what to do.

They are plain functions, and tracebacks end at the line that called them. Importing this module is quick; what a
function needs is imported when it is called.

Example:
    >>> import intact8, torch
    >>> from intact8.testing import assert_all_fused, assert_bit_exact
    >>> _ = torch.manual_seed(0)
    >>> program = intact8.quantize(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.randn(64, 4))
    >>> assert_bit_exact(program, engines=("reference", "onednn"))
    >>> assert_all_fused(program)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from intact8.diagnose.lint import LintReport
    from intact8.program.program import Program
    from intact8.simulation.simulation import Simulation

FUSION_RULES = ("IQ204", "IQ205", "IQ701")
OPTIMIZER_RULES = ("IQ504", "IQ505")
SHOWN = 10
"""Findings a message lists."""


def assert_bit_exact(
    program: Program | str | Path,
    engines: Sequence[str] | None = None,
    data: Any = None,
    *,
    sim: Simulation | None = None,
    samples: int = 32,
    seed: int = 0,
) -> None:
    """Assert that all integers are the same on every engine (and in the simulation), and every operation is proved.

    Args:
        program: or the path of its file.
        engines: names; None as for :func:`intact8.verify`.
        data: as for :func:`intact8.verify`; made up where None.
        sim: compared as well.
        samples, seed: of made-up data.

    Raises:
        AssertionError: an integer differs (names the first), an engine cannot be proved, or an operation has no
            certificate.
        EngineError: an engine is missing.
    """
    __tracebackhide__ = True
    from intact8.program.samples import random_samples
    from intact8.verification import verify

    program = _program(program)
    inputs = random_samples(program, samples, seed) if data is None else data
    report = verify(program, inputs, engines=engines, sim=sim)
    if report.mismatches:
        by_engine = ", ".join(f"{name} in {e.mismatches:,}" for name, e in report.by_engine.items() if e.mismatches)
        raise AssertionError(
            f"integers differ from the reference: {by_engine} of {report.elements:,} over {report.samples} samples. "
            f"First difference: {report.first}"
        )
    if report.refused:
        raise AssertionError(f"not compared: {'; '.join(report.refused.values())}")
    if report.uncertified:
        listed = "".join(f"\n  {name}: {reason}" for name, reason in list(report.uncertified.items())[:SHOWN])
        raise AssertionError(
            f"no integer differs on these data, but {len(report.uncertified)} operations are not proved exact:{listed}"
        )


def assert_all_fused(x: nn.Module | Program | str | Path, data: Any = None) -> None:
    """Assert that no ReLU and no batch norm stands alone where it could be part of the layer before it.

    Args:
        x: a simulation, a program or its file, a torch.ao model; or a float model with example inputs as ``data``.
        data: example inputs of a float model.

    Raises:
        AssertionError: lists what is not fused.
        InputError: a float model without example inputs.
    """
    __tracebackhide__ = True
    from intact8.diagnose.lint import lint

    report = lint(x, data=data, select=FUSION_RULES)
    _require(report, FUSION_RULES)
    _clean(report, "not fused", "note")


def assert_lint_clean(
    x: nn.Module | Program | str | Path,
    *,
    data: Any = None,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    fail_on: str | None = None,
) -> None:
    """Assert that :func:`intact8.lint` finds nothing.

    Args:
        x, data, optimizer, schedule: as for :func:`intact8.lint`.
        select, ignore, fail_on: None takes them from ``[tool.intact8.lint]`` of the nearest pyproject.toml: by default
            all rules, of which warnings and errors fail.

    Raises:
        AssertionError: lists the findings.
        InputError: of the rules selected here, none could run with what was given.
        RecipeError: a rule that does not exist.
    """
    __tracebackhide__ = True
    from intact8.diagnose.lint import config, lint

    chosen = config.find()
    limit = chosen.fail_on if fail_on is None else config.check_fail_on(fail_on, "fail_on")
    report = lint(
        x,
        data=data,
        optimizer=optimizer,
        schedule=schedule,
        select=chosen.select if select is None else select,
        ignore=chosen.ignore if ignore is None else ignore,
    )
    if select is not None:
        _require(report, ())
    if limit != config.NEVER:
        _clean(report, "lint", limit)


def assert_accuracy_drop(
    float_model: nn.Module,
    program: Program | str | Path,
    data: Iterable[Any],
    metric: Callable[[Any, Any], Any] | str,
    *,
    at_most: float,
    higher_is_better: bool = True,
    engine: str = "auto",
) -> None:
    """Assert that the program is at most ``at_most`` worse than the float model on labelled data.

    Args:
        float_model: evaluated in evaluation mode, by :func:`intact8.evaluate`.
        program: or the path of its file.
        data: batches ``(x, …, labels)``, or dicts by input name with an entry "labels". Gone through once.
        metric: as for :func:`intact8.evaluate`: a function of (outputs, labels) that gives a number (the mean over the
            batch) or one per sample, or "top1". Batches count by size.
        at_most: the largest drop allowed, in units of the metric. Negative demands a gain.
        higher_is_better: False for losses.
        engine: see :meth:`intact8.Program.run`.

    Raises:
        AssertionError: the drop is larger; says both values.
        InputError: no data, or as :func:`intact8.evaluate`.

    Example:
        >>> import intact8, torch
        >>> model, x = torch.nn.Linear(4, 2).eval(), torch.randn(64, 4)
        >>> batches = [(x, model(x).argmax(1))]
        >>> assert_accuracy_drop(model, intact8.quantize(model, x), batches, "top1", at_most=0.1)
    """
    __tracebackhide__ = True
    from intact8.diagnose.evaluate import evaluate

    report = evaluate({"float": float_model, "int8": _program(program)}, data, metric, engine=engine)
    before, after, samples = report.score("float").value, report.score("int8").value, report.samples
    drop = before - after if higher_is_better else after - before
    if not drop <= at_most:
        raise AssertionError(
            f"the metric went from {before:.6g} (float) to {after:.6g} (int8) on {samples} samples: a drop of "
            f"{drop:.6g}, more than {at_most:g}. Look for the layer with intact8.doctor(model, data)"
        )


def assert_qparams_in(optimizer: Optimizer, sim: nn.Module) -> None:
    """Assert that the optimizer has all learned scales, and the weights, of this very model.

    Args:
        optimizer: of the training.
        sim: a simulation, or a torch.ao model with learnable fake quantizers.

    Raises:
        AssertionError: names what is missing.
    """
    __tracebackhide__ = True
    from intact8.diagnose.lint import lint

    _clean(lint(sim, optimizer=optimizer, select=OPTIMIZER_RULES), "optimizer", "note")


def assert_frozen(sim: Simulation) -> None:
    """Assert that nothing moves the scales any more: training computes the integers that ship, and so does evaluation.

    Scales are frozen, nothing observes, everything rounds, batch norm uses its running statistics.

    Raises:
        AssertionError: names what still moves.
    """
    __tracebackhide__ = True
    from intact8.diagnose.lint import lint
    from intact8.errors import no_simulation

    if not hasattr(sim, "phase"):
        raise no_simulation(sim, "assert_frozen")
    problems = []
    if not sim.calibrated:
        missing = [name for name, p in sim.points.items() if not p.calibrated]
        problems.append(f"{len(missing)} points have no scale yet, {missing[0]} first: call intact8.calibrate")
    if sim.phase != "frozen":
        problems.append(f"scales are in phase {sim.phase!r}: call sim.freeze_scales(), or Schedule(freeze_scales=…)")
    watching = [name for name, p in sim.points.items() if p.observing]
    if watching:
        problems.append(f"{len(watching)} points observe, {watching[0]} first: call sim.observe(False)")
    problems += [str(f) for f in lint(sim, select=("IQ502", "IQ503"))]
    if problems:
        raise AssertionError("the simulation is not frozen:" + "".join(f"\n  {p}" for p in problems))


def _program(x: Program | str | Path) -> Program:
    from intact8.program.program import Program

    return Program.load(x) if isinstance(x, str | os.PathLike) else x


def _require(report: LintReport, rules: Sequence[str]) -> None:
    """Raise InputError where nothing was checked, or one of ``rules`` could not be."""
    from intact8.errors import InputError

    __tracebackhide__ = True
    needs = {need for id, need in report.skipped.items() if id in rules or not report.checked}
    if needs:
        raise InputError(
            f"rules {', '.join(report.skipped)} could not run",
            where=report.name,
            why=f"they need {', '.join(needs)}",
            remedy="give it, for instance data=example_inputs",
        )


def _clean(report: LintReport, what: str, limit: str) -> None:
    __tracebackhide__ = True
    found = report.at_least(limit)
    if found:
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        listed = "".join(f"\n  {finding} ({finding.page})" for finding in found[:SHOWN])
        raise AssertionError(f"{what}: {len(found)} found in {report.name} ({report.subject}):{listed}{more}")
