"""The list of slow tests names tests that are there, and none of those that are never left out."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.slow import KEPT, LIST, ROOT, listed, measured, of_file


def test_what_is_listed_is_there() -> None:
    names = LIST.read_text().splitlines()
    assert names == sorted(set(names)) and not any(name.startswith(KEPT) for name in names)
    functions: dict[str, set[str]] = {}
    for name in names:
        file, of = of_file(name), name.partition("::")[2].partition("[")[0].rpartition("::")[2]
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text())
            functions[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert of.rpartition(".")[2] in functions[file] or file.startswith("src/"), f"{name} is gone: see tests/slow.py"


def test_reports_are_read(tmp_path: Path) -> None:
    report = tmp_path / "times.xml"
    case = '<testcase classname="tests.test_slow" name="test_reports_are_read" time="3.5"/>'
    doctest = '<testcase classname="src.intact8.api" name="intact8.api.calibrate" time="0.5"/>'
    report.write_text(f"<testsuites><testsuite>{case}{doctest}</testsuite></testsuites>")
    assert dict(measured(report)) == {
        "tests/test_slow.py::test_reports_are_read": 3.5,
        "src/intact8/api.py::intact8.api.calibrate": 0.5,
    }
    assert {of_file(name) for name in listed()}
