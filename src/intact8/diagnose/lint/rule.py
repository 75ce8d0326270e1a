"""The registry of rules: one function per rule; its docstring is the rule's documentation page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from intact8.errors import RecipeError

MODEL, SIMULATION, PROGRAM, TORCH_AO = "model", "simulation", "program", "torch.ao model"
KINDS = (MODEL, SIMULATION, PROGRAM, TORCH_AO)
"""What can be linted: the values of ``Subject.kind``."""


@dataclass(frozen=True)
class Hit:
    """What a rule's function yields: a finding without what the rule already says.

    Attributes:
        message: what is wrong at this place, with numbers, one sentence without a full stop.
        module, node, tensor: the place, see :class:`~intact8.diagnose.lint.finding.Finding`.
        remedy: replaces the remedy of the rule where it is not empty.
        severity: replaces the severity of the rule where it is not empty.
        data: the numbers, JSON values.
    """

    message: str
    module: str = ""
    node: str = ""
    tensor: str = ""
    remedy: str = ""
    severity: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def joint_hit(names: Sequence[str], message: str, place: str = "node", key: str = "points", **more: str) -> list[Hit]:
    """Return one hit for all ``names``, at the first of them; no hit where there are none.

    Args:
        names: names of points, modules or tensors.
        message, more: fields of :class:`Hit`.
        place: the field of :class:`Hit` that holds the first name.
        key: the entry of ``Hit.data`` that holds all names.
    """
    fields: dict[str, Any] = {place: names[0], **more, "data": {key: list(names)}} if names else {}
    return [Hit(message, **fields)] if names else []


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, joined by commas.

    Example:
        >>> first_of(["a", "b", "c"], most=2)
        'a, b …'
    """
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


class NeedsError(Exception):
    """A rule cannot run because something was not given. The text says what, in one or two words."""


Check = Callable[[Any], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: "IQ" and three digits; an id is never used again for another rule.
        severity: of its findings: error, warning or note.
        kinds: the kinds of subject that it applies to.
        check: takes a subject, yields hits; raises NeedsError where something it needs was not given. Its name is the
            rule's name; its docstring is the rule's documentation and ends with a paragraph "Remedy: …".
    """

    id: str
    severity: str
    kinds: tuple[str, ...]
    check: Check

    @property
    def name(self) -> str:
        """A few words joined by hyphens."""
        return self.check.__name__.replace("_", "-")

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.text.partition("\n")[0]

    @property
    def text(self) -> str:
        """The documentation without the remedy."""
        return self._documentation[0].rstrip()

    @property
    def remedy(self) -> str:
        """What to do, unless a finding says something more exact."""
        return " ".join(self._documentation[1].split())

    @property
    def _documentation(self) -> tuple[str, str]:
        text, _, remedy = (inspect.getdoc(self.check) or "").rpartition("\nRemedy: ")
        return text, remedy


RULES: dict[str, Rule] = {}
"""All rules by id."""


def rule(id: str, severity: str, *kinds: str) -> Callable[[Check], Check]:
    """Register the decorated function as the check of a rule, for all kinds of subject where ``kinds`` is empty."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise RuntimeError(f"two rules are called {id}")
        RULES[id] = Rule(id, severity, kinds or KINDS, check)
        return check

    return register


def choose(rules: dict[str, Rule], select: Iterable[str] | None, ignore: Iterable[str] | None) -> dict[str, Rule]:
    """Return the rules that ``select`` names (all by default) and ``ignore`` does not.

    Entries are ids, beginnings of ids ("IQ3") or names.

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
        named = isinstance(entry, str) and bool(entry)
        matching = {id for id, r in rules.items() if named and (id.startswith(entry) or r.name == entry)}
        if not matching:
            remedy = "rules are IQ101 … ; `intact8 lint --rules` lists them all"
            raise RecipeError(f"there is no lint rule {entry!r}", where=where, remedy=remedy)
        found |= matching
    return found
