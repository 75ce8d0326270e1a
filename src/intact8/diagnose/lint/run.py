"""``intact8.lint``: run the rules that apply to what was given, and sort what they find."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from intact8.errors import InputError
from intact8.program.program import Program

from .finding import SEVERITIES, Finding, LintReport
from .rule import Hit, NeedsError, Rule, choose
from .rules import load
from .subject import ProgramSubject, Subject

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


def lint(
    x: nn.Module | Program | str | Path,
    *,
    data: Any = None,
    optimizer: Any = None,
    schedule: Any = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
) -> LintReport:
    """Look for the mistakes that quantization makes silently. Nothing is changed, and nothing is trained or converted.

    Args:
        x: a float model, a simulation (what :func:`intact8.prepare` returned), a program or the path of its file, or an
            eager or FX model of ``torch.ao`` (fused, prepared or converted).
        data: samples as for :func:`intact8.calibrate`: the calibration data, or better, held-out ones. Rules that need
            data are skipped without them, and the report names these rules; a float model needs at least one sample
            for most rules, a program takes none.
        optimizer: optimizer of a model in training; rules check that it has the learned scales.
        schedule: the ``intact8.train.Schedule`` of a model in training.
        select: ids or names of rules, or the beginnings of ids ("IQ3"); all by default.
        ignore: rules to leave out.

    Returns:
        The report: ``report.clean``, ``report.findings``, ``report.to_dict()``, ``report.to_sarif()``.

    Raises:
        InputError: ``x`` is none of these, or an argument is given that says nothing about it.
        RecipeError: ``select`` or ``ignore`` names no rule.
        ProgramError: the file is damaged.

    Example:
        >>> import intact8, torch
        >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4))
        >>> intact8.lint(sim).ids
        ('IQ301',)
    """
    rules = choose(load(), select, ignore)
    subject = subject_of(x, data, optimizer, schedule)
    findings: list[Finding] = []
    checked, skipped = [], {}
    for id, rule in rules.items():
        if subject.kind not in rule.kinds:
            continue
        try:
            hits = list(rule.check(subject))
        except NeedsError as need:
            skipped[id] = str(need)
            continue
        checked.append(id)
        findings += [_finding(rule, hit) for hit in hits]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.id))  # stable: places stay in the network's order
    return LintReport(tuple(findings), subject.kind, subject.name, tuple(checked), skipped)


def _finding(rule: Rule, hit: Hit) -> Finding:
    severity, remedy = hit.severity or rule.severity, hit.remedy or rule.remedy
    place = hit.module, hit.node, hit.tensor
    return Finding(rule.id, rule.name, severity, hit.message, remedy, *place, hit.data)


def subject_of(x: Any, data: Any = None, optimizer: Any = None, schedule: Any = None) -> Subject:
    """Return the subject that ``x`` is. Raises InputError where it cannot be linted."""
    if isinstance(x, Program | str | os.PathLike):
        _refuse("a program is finished", data=data, optimizer=optimizer, schedule=schedule)
        return ProgramSubject(x, "program") if isinstance(x, Program) else ProgramSubject.load(os.fspath(x))
    if sys.modules.get("torch") is not None:  # None: its import is forbidden
        from torch import nn

        if isinstance(x, nn.Module):
            return _module_subject(x, data, optimizer, schedule)
    remedy = "give a torch.nn.Module, an intact8.Program or the path of a program file"
    raise InputError(f"cannot lint a {type(x).__name__}", where="lint", remedy=remedy)


def _module_subject(x: nn.Module, data: Any, optimizer: Any, schedule: Any) -> Subject:
    from intact8.simulation.simulation import Simulation

    from .subject_torch import ModelSubject, SimulationSubject, is_torch_ao

    wrapped = getattr(x, "module", None)  # DistributedDataParallel and its like
    if isinstance(wrapped, Simulation):
        x = wrapped
    if isinstance(x, Simulation):
        return SimulationSubject(x, data, optimizer, schedule)
    if is_torch_ao(x):
        _refuse("torch.ao has no schedule", schedule=schedule)
        from .subject_torch_ao import TorchAoSubject  # imported late, because torch.ao is deprecated

        return TorchAoSubject(x, data, optimizer, schedule)
    _refuse("a float model has no scales to train", optimizer=optimizer, schedule=schedule)
    return ModelSubject(x, data)


def _refuse(why: str, **given: Any) -> None:
    """Raise InputError for an argument that says nothing about this subject."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is given for nothing", where="lint", why=why, remedy="leave it out")
