"""The registry of rules: one function per rule; its docstring is the rule's documentation page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from intact8.errors import RecipeError

MODEL, SIMULATION, PROGRAM, TORCH_AO = "model", "simulation", "program", "torch.ao model"
KINDS = (MODEL, SIMULATION, PROGRAM, TORCH_AO)
"""What can be looked at; ``Subject.kind``."""


@dataclass(frozen=True)
class Hit:
    """What a rule's function yields: a finding without what the rule already says.

    Attributes:
        message: what is wrong at this place, with numbers, one sentence without a full stop.
        module, node, tensor: the place, see :class:`~intact8.diagnose.lint.finding.Finding`.
        remedy: instead of the rule's own.
        severity: instead of the rule's own.
        data: the numbers, JSON values.
    """

    message: str
    module: str = ""
    node: str = ""
    tensor: str = ""
    remedy: str = ""
    severity: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class NeedsError(Exception):
    """A rule cannot run: something was not given. The text says what, in one or two words."""


Check = Callable[[Any], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: "IQ" and three digits; never used again for anything else.
        name: a few words joined by hyphens.
        severity: of its findings: error, warning or note.
        remedy: what to do, unless a finding says something more exact.
        kinds: what it applies to.
        check: takes a subject, yields hits; raises NeedsError where something it needs was not given.
        covers: the failures it was written for, by the ids of the project's requirements.
    """

    id: str
    name: str
    severity: str
    remedy: str
    kinds: tuple[str, ...]
    check: Check
    covers: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.text.partition("\n")[0]

    @property
    def text(self) -> str:
        """The documentation: the docstring of the function."""
        return inspect.getdoc(self.check) or ""


RULES: dict[str, Rule] = {}
"""All rules by id."""


def rule(
    id: str, name: str, severity: str, *kinds: str, remedy: str, covers: Iterable[str] = ()
) -> Callable[[Check], Check]:
    """Decorator: register the function as the check of a rule. The registry is filled by :func:`load`."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise RuntimeError(f"two rules are called {id}")
        RULES[id] = Rule(id, name, severity, remedy, kinds or KINDS, check, tuple(covers))
        return check

    return register


def choose(rules: dict[str, Rule], select: Iterable[str] | None, ignore: Iterable[str] | None) -> dict[str, Rule]:
    """The rules that ``select`` names (all by default) and ``ignore`` does not: ids, or their beginnings ("IQ3").

    Raises:
        RecipeError: an entry that begins no rule's id and is no rule's name, or an empty ``select``.

    Example:
        >>> from intact8.diagnose.lint.rules import load
        >>> sorted(choose(load(), ["IQ30"], ["IQ301"]))[:2]
        ['IQ302', 'IQ303']
    """
    selected = set(rules) if select is None else _named(rules, select, "select")
    if not selected:
        raise RecipeError("no rule is selected", where="select", remedy="name one, or leave it out for all of them")
    ignored = set() if ignore is None else _named(rules, ignore, "ignore")
    return {id: r for id, r in rules.items() if id in selected - ignored}


def _named(rules: dict[str, Rule], entries: Iterable[str], where: str) -> set[str]:
    if isinstance(entries, str):
        entries = [part.strip() for part in entries.split(",") if part.strip()]
    found: set[str] = set()
    for entry in entries:
        matching = {
            id for id, r in rules.items() if isinstance(entry, str) and (id.startswith(entry) or r.name == entry)
        }
        if not entry or not matching:
            raise RecipeError(
                f"there is no lint rule {entry!r}", where=where,
                remedy="rules are IQ101 … ; `intact8 lint --rules` lists them all",
            )  # fmt: skip
        found |= matching
    return found
