"""The result of a lint run: findings, each with its rule, its place and its remedy, and the report that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from intact8.display import Column, Grid, Shown, inert
from intact8.errors import InputError
from intact8.text import printable

SEVERITIES = ("error", "warning", "note")
"""Worst first, in the words of SARIF. error: numbers are wrong, or it will not convert; warning: accuracy, speed or the
promise suffers; note: worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One fault at one place.

    Attributes:
        id: id of the rule, ``IQ101``.
        name: name of the rule, ``reused-module``.
        severity: error, warning or note.
        message: what is wrong here, with numbers.
        remedy: what to do about it.
        module: path of the module concerned; "" where the finding is about the whole network, or the path is unknown.
        node: name of the operation or quantization point, or "".
        tensor: name of the parameter, buffer or tensor, or "".
        data: the numbers of the message, JSON values.

    Example:
        >>> found = Finding("IQ101", "reused-module", "note", "called twice", "make two of it", module="relu")
        >>> found.where, found.page
        ('relu', 'docs/lint/IQ101.md')
        >>> Finding.from_dict(found.to_dict()) == found
        True
    """

    id: str
    name: str
    severity: str
    message: str
    remedy: str
    module: str = ""
    node: str = ""
    tensor: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def where(self) -> str:
        """The most exact name of the place; "" for the network as a whole."""
        return self.tensor or self.node or self.module

    @property
    def page(self) -> str:
        """The rule's documentation page in the repository."""
        return f"docs/lint/{self.id}.md"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, ``where`` and ``page`` included."""
        return {**asdict(self), "data": dict(self.data), "where": self.where, "page": self.page}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Finding:
        """Return the finding that :meth:`to_dict` wrote."""
        return Finding(**{k: v for k, v in values.items() if k not in ("where", "page")})

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return printable(f"{self.id} {self.severity}: {where}{self.message}. Remedy: {self.remedy}")


@dataclass(frozen=True)
class LintReport(Shown):
    """The findings of one run, worst first.

    Attributes:
        findings: sorted by severity, then by rule, then as the network runs.
        subject: what was linted: "model", "simulation", "program" or "torch.ao model".
        name: the file or class it came from.
        checked: ids of the rules that ran.
        skipped: id of a rule that applies but could not run → what it needs ("data", "optimizer", …).

    Example:
        >>> report = LintReport((), "program", "net.safetensors", ("IQ601",), {})
        >>> report.clean, LintReport.from_dict(report.to_dict()) == report
        (True, True)
    """

    findings: tuple[Finding, ...]
    subject: str
    name: str
    checked: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the rules that found something, each once, in the order of ``findings``."""
        return tuple(dict.fromkeys(f.id for f in self.findings))

    def counts(self) -> dict[str, int]:
        """Return severity → number of findings, worst first, zeros included."""
        found = Counter(f.severity for f in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of this severity or worse.

        Raises:
            InputError: it is no severity.
        """
        if severity not in SEVERITIES:
            what, remedy = f"{severity!r} is no severity", f"choose {', '.join(SEVERITIES)}"
            raise InputError(what, where="at_least", remedy=remedy)
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return tuple(f for f in self.findings if f.severity in worst)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "subject": self.subject,
            "name": self.name,
            "counts": self.counts(),
            "findings": [f.to_dict() for f in self.findings],
            "checked": list(self.checked),
            "skipped": dict(self.skipped),
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> LintReport:
        """Return the report that :meth:`to_dict` wrote."""
        findings = tuple(map(Finding.from_dict, values["findings"]))
        checked, skipped = tuple(values["checked"]), dict(values["skipped"])
        return LintReport(findings, values["subject"], values["name"], checked, skipped)

    def to_sarif(self) -> dict[str, Any]:
        """Return the report as a SARIF 2.1.0 log, JSON values. See ``intact8.diagnose.lint.sarif``."""
        from .sarif import to_sarif

        return to_sarif(self)

    def grid(self) -> Grid:
        """Return the report as a table: one row per finding, and a caption that sums up."""
        columns = tuple(Column(title, "left") for title in ("rule", "severity", "place", "what", "remedy"))
        rows = tuple((f"{f.id} {f.name}", f.severity, f.where, f.message, f.remedy) for f in self.findings)
        return Grid(columns, rows, self.summary())

    def summary(self) -> str:
        """Return one line: how much was found, by how many rules, and what could not be checked.

        Example:
            >>> LintReport((), "model", "Net", ("IQ101", "IQ102"), {"IQ303": "data"}).summary()
            'Net (model): nothing found by 2 rules; 1 rule could not run (data: IQ303)'
        """
        counts = ", ".join(_count(n, severity) for severity, n in self.counts().items() if n)
        text = f"{self.name} ({self.subject}): {counts or 'nothing'} found by {_count(len(self.checked), 'rule')}"
        needs: dict[str, list[str]] = {}
        for rule, need in self.skipped.items():
            needs.setdefault(need, []).append(rule)
        listed = "; ".join(f"{need}: {', '.join(rules)}" for need, rules in needs.items())
        return text + (f"; {_count(len(self.skipped), 'rule')} could not run ({listed})" if needs else "")

    def __rich__(self) -> Any:
        return self.grid().__rich__() if self.findings else inert(self.summary())

    def _repr_html_(self) -> str:
        return self.grid().to_html()


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
