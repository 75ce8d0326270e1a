"""What a lint run returns: findings, each with its rule, its place and its remedy, and the report that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from intact8.text import printable

if TYPE_CHECKING:
    from intact8.display import Grid

SEVERITIES = ("error", "warning", "note")
"""Worst first, in the words of SARIF. error: numbers are wrong, or it will not convert; warning: accuracy, speed or the
promise suffers; note: worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One fault at one place.

    Attributes:
        id: of the rule, ``IQ101``.
        name: of the rule, in words: ``reused-module``.
        severity: error, warning or note.
        message: what is wrong here, with numbers.
        remedy: what to do about it.
        module: path of the module concerned; "" where it is the whole network, or unknown.
        node: name of the operation or quantization point; "" where it is none.
        tensor: name of the parameter, buffer or tensor; "" where it is none.
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
        """JSON values; ``where`` and ``page`` are written out for readers that do not compute them."""
        return {**asdict(self), "data": dict(self.data), "where": self.where, "page": self.page}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Finding:
        """What :meth:`to_dict` wrote."""
        return Finding(**{k: v for k, v in values.items() if k not in ("where", "page")})

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return printable(f"{self.id} {self.severity}: {where}{self.message}. Remedy: {self.remedy}")


@dataclass(frozen=True)
class LintReport:
    """The findings of one run, worst first.

    Attributes:
        findings: sorted by severity, then by rule, then as the network runs.
        subject: what was looked at: "model", "simulation", "program" or "torch.ao model".
        name: the file or class it came from.
        checked: ids of the rules that ran.
        skipped: rule that applies but could not run → what it needs ("data", "optimizer", …).

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
        """Ids of the rules that found something, without repetition, in the order of ``findings``."""
        return tuple(dict.fromkeys(f.id for f in self.findings))

    def counts(self) -> dict[str, int]:
        """Severity → number of findings, worst first, with zeros."""
        found = Counter(f.severity for f in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """Findings of this severity or worse."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return tuple(f for f in self.findings if f.severity in worst)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
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
        """What :meth:`to_dict` wrote."""
        return LintReport(
            tuple(Finding.from_dict(f) for f in values["findings"]), values["subject"], values["name"],
            tuple(values["checked"]), dict(values["skipped"]),
        )  # fmt: skip

    def to_sarif(self) -> dict[str, Any]:
        """The report as a SARIF 2.1.0 log, JSON values. See ``intact8.diagnose.lint.sarif``."""
        from .sarif import to_sarif

        return to_sarif(self)

    def grid(self) -> Grid:
        """The report as a table: one row per finding, and a caption that sums up."""
        from .show import grid

        return grid(self)

    def __rich__(self) -> Any:
        from intact8.display import inert

        from .show import summary

        return self.grid() if self.findings else inert(summary(self))

    def _repr_html_(self) -> str:
        return self.grid().to_html()
