"""``intact8.lint``: find out what was given, run the rules that apply, sort what they found."""

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
from .subject import SavedSubject, Subject

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
            them are else skipped, and named as such in the report; a float model needs at least one sample for
            most, a program takes none.
        optimizer: of a model in training: does it have the learned scales?
        schedule: the ``intact8.train.Schedule`` of a model in training.
        select: ids or names of rules, or the beginnings of ids ("IQ3"); all by default.
        ignore: those to leave out.

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
    return Finding(
        rule.id, rule.name, hit.severity or rule.severity, hit.message, hit.remedy or rule.remedy, hit.module, hit.node,
        hit.tensor, hit.data,
    )  # fmt: skip


def subject_of(x: Any, data: Any = None, optimizer: Any = None, schedule: Any = None) -> Subject:
    """What ``x`` is. Raises InputError where it is nothing that can be looked at."""
    if isinstance(x, Program | str | os.PathLike):
        _refuse("a program is finished", data=data, optimizer=optimizer, schedule=schedule)
        return SavedSubject(x, "program") if isinstance(x, Program) else SavedSubject.load(os.fspath(x))
    if "torch" in sys.modules:
        from torch import nn

        if isinstance(x, nn.Module):
            return _module_subject(x, data, optimizer, schedule)
    raise InputError(
        f"cannot look at a {type(x).__name__}", where="lint",
        remedy="give a torch.nn.Module, an intact8.Program or the path of a program file",
    )  # fmt: skip


def _module_subject(x: nn.Module, data: Any, optimizer: Any, schedule: Any) -> Subject:
    from intact8.simulation.simulation import Simulation

    from .subject_torch import ModelSubject, SimulationSubject, is_torch_ao

    wrapped = getattr(x, "module", None)  # DistributedDataParallel and its like
    if isinstance(wrapped, Simulation):
        x = wrapped
    if isinstance(x, Simulation):
        return SimulationSubject(x, data, optimizer, schedule)
    if is_torch_ao(x):
        _refuse("torch.ao knows no schedule", schedule=schedule)
        from intact8.diagnose.lint.subject_torch_ao import TorchAoSubject  # it reads torch.ao, which goes away one day

        return TorchAoSubject(x, data, optimizer, schedule)
    _refuse("a float model has no scales to train", optimizer=optimizer, schedule=schedule)
    return ModelSubject(x, data)


def _refuse(why: str, **given: Any) -> None:
    """Raise InputError for an argument that says nothing about this subject."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is given for nothing", where="lint", why=why, remedy="leave it out")
