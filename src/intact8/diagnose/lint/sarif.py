"""A lint report as a SARIF 2.1.0 log (OASIS standard), the format code hosting and editors read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from intact8 import __version__

from .rule import Rule
from .rules import load

if TYPE_CHECKING:
    from .finding import Finding, LintReport

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(report: LintReport) -> dict[str, Any]:
    """Return a log with one run and one result per finding.

    Places are logical locations (module, node, tensor), because a network has no lines. Findings about a file also have
    the file as a physical location. The log describes every rule that ran, documentation included.

    Example:
        >>> from intact8.diagnose.lint.finding import LintReport
        >>> log = to_sarif(LintReport((), "program", "net.safetensors", ("IQ601",)))
        >>> log["version"], log["runs"][0]["tool"]["driver"]["rules"][0]["id"]
        ('2.1.0', 'IQ601')
    """
    known = load()
    ids = list(dict.fromkeys([*report.checked, *report.ids]))
    driver = {
        "name": "intact8 lint",
        "semanticVersion": __version__,
        "rules": [_rule(known[id]) for id in ids],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [_result(f, ids.index(f.id), report) for f in report.findings],
        "columnKind": "unicodeCodePoints",
        "properties": {"subject": report.subject, "name": report.name, "skipped": dict(report.skipped)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.text},
        "help": {"text": rule.remedy, "markdown": f"{rule.text}\n\n**Remedy:** {rule.remedy}"},
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": ["quantization"]},
    }


def _result(finding: Finding, index: int, report: LintReport) -> dict[str, Any]:
    location: dict[str, Any] = {}
    logical = [
        {"fullyQualifiedName": name, "name": name.rpartition(".")[2] or name, "kind": kind}
        for kind, name in (("module", finding.module), ("function", finding.node), ("variable", finding.tensor))
        if name
    ]
    if logical:
        location["logicalLocations"] = logical
    if report.subject == "program":
        location["physicalLocation"] = {"artifactLocation": {"uri": _uri(report.name)}}
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. Remedy: {finding.remedy}"},
        "properties": dict(finding.data),
        **({"locations": [location]} if location else {}),
    }


def _uri(name: str) -> str:
    """Return a path as a URI; relative paths stay relative, so that they hold in another checkout."""
    return Path(name).as_uri() if Path(name).is_absolute() else quote(name)
