"""The SARIF log obeys the standard: names, types and nesting of OASIS SARIF 2.1.0, of all objects that are written."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from intact8.diagnose.lint import Finding, LintReport, load
from intact8.diagnose.lint.sarif import to_sarif

Schema = dict[str, Any]


def closed(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
BAG = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
# Section 3.12 (multiformatMessageString), 3.49 (reportingDescriptor), 3.33 (logicalLocation), 3.27 (result) …
FORMATTED = closed(["text"], text=TEXT, markdown=TEXT)
RULE = closed(
    ["id"], id=TEXT, name=TEXT, shortDescription=FORMATTED, fullDescription=FORMATTED, help=FORMATTED,
    defaultConfiguration=closed([], level=LEVEL), properties=BAG,
)  # fmt: skip
LOGICAL = closed([], name=TEXT, fullyQualifiedName=TEXT, kind=TEXT)
PHYSICAL = closed([], artifactLocation=closed([], uri={"type": "string", "format": "uri-reference"}))
LOCATION = closed([], logicalLocations={"type": "array", "items": LOGICAL}, physicalLocation=PHYSICAL)
RESULT = closed(
    ["message"], ruleId=TEXT, ruleIndex={"type": "integer", "minimum": 0}, level=LEVEL,
    message=closed(["text"], text=TEXT), locations={"type": "array", "items": LOCATION}, properties=BAG,
)  # fmt: skip
DRIVER = closed(["name"], name=TEXT, semanticVersion=TEXT, rules={"type": "array", "items": RULE, "uniqueItems": True})
RUN = closed(
    ["tool"], tool=closed(["driver"], driver=DRIVER), results={"type": "array", "items": RESULT},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]}, properties=BAG,
)  # fmt: skip
LOG = {
    **closed(["version", "runs"], version={"const": "2.1.0"}, runs={"type": "array", "items": RUN}),
    "properties": {"$schema": {"type": "string", "format": "uri"}, "version": {"const": "2.1.0"},
                   "runs": {"type": "array", "items": RUN}},
}  # fmt: skip


def report(subject: str = "program", name: str = "my net.safetensors") -> LintReport:
    findings = (
        Finding("IQ601", "missing-certificate", "error", "no certificate", "convert again", "layer1", "layer1.0.conv1"),
        Finding("IQ454", "dead-weights", "note", "dead", "prune", tensor="fc.weight", data={"dead": 3, "share": 0.5}),
        Finding("IQ602", "needs-vnni", "warning", "the program needs VNNI", "check"),
    )
    return LintReport(findings, subject, name, tuple(load()), {"IQ305": "data"})


@pytest.mark.parametrize("subject", ["program", "simulation"])
def test_the_log_has_the_form_of_the_standard(subject: str) -> None:
    log = json.loads(json.dumps(to_sarif(report(subject)), allow_nan=False))
    jsonschema.Draft7Validator(LOG, format_checker=jsonschema.FormatChecker()).validate(log)


def test_results_name_rule_level_and_place() -> None:
    run = to_sarif(report())["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result, finding in zip(run["results"], report().findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.id
        assert result["level"] == finding.severity
        assert finding.message in result["message"]["text"] and finding.remedy in result["message"]["text"]
    first, second, third = (r["locations"][0] for r in run["results"])
    assert [p["fullyQualifiedName"] for p in first["logicalLocations"]] == ["layer1", "layer1.0.conv1"]
    assert second["logicalLocations"][0]["kind"] == "variable"
    assert "logicalLocations" not in third
    assert first["physicalLocation"]["artifactLocation"]["uri"] == "my%20net.safetensors"


def test_models_have_no_file() -> None:
    results = to_sarif(report("model", "Net"))["runs"][0]["results"]
    assert "locations" not in results[2]
    assert "physicalLocation" not in results[0]["locations"][0]


def test_an_absolute_path_is_a_file_uri() -> None:
    results = to_sarif(report(name="/data/my net.safetensors"))["runs"][0]["results"]
    uri = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///data/my%20net.safetensors"
