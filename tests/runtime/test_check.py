"""``intact8 check``: the table, the verdict and the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.program.build import certified
from typer.testing import CliRunner

from intact8.cli.app import app
from intact8.program.file import save
from intact8.runtime import Facts, load
from intact8.runtime.check import check_file

run = CliRunner().invoke


def test_a_good_file_on_the_reference(path: Path) -> None:
    result = run(app, ["check", str(path), "--engine", "reference"])
    assert result.exit_code == 0, result.output
    assert "loads, on reference" in result.stdout
    for word in ("certificates", "golden vectors", "memory", "probe", "specification"):
        assert word in result.stdout


def test_json(path: Path) -> None:
    result = run(app, ["check", str(path), "--engine", "reference", "--json"])
    report = json.loads(result.stdout)
    assert report["ok"] and report["engines"][0]["usable"]
    assert {row["verdict"] for row in report["file"]} <= {"ok", "unknown", "refused"}
    probe = report["engines"][0]["rows"][-1]
    assert probe["what"] == "probe" and "tensors bit for bit" in probe["found"]


def test_where_it_was_made_is_shown_beside_this_machine(tmp_path: Path, cache: Path) -> None:
    made = {
        "intact8": "0.0.9",
        "torch": "2.9.1",
        "machine": "x86_64",
        "cpu_features": ["avx", "avx2", 7],
        "python": "3.10",
    }
    path = save(replace(certified(), provenance=made), tmp_path / "made")
    row = next(r for r in check_file(path, "reference", probe=False).file if r.what == "made on")
    assert "x86_64 with AVX2, intact8 0.0.9, torch 2.9.1, python 3.10; here:" in row.found
    assert Facts.here().machine in row.found and row.verdict == "ok"
    unknown = save(replace(certified(), provenance={"cpu_features": {"a": 1}}), tmp_path / "unknown")
    assert (
        "not recorded"
        in next(r for r in check_file(unknown, "reference", probe=False).file if r.what == "made on").found
    )


def test_a_damaged_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    result = run(app, ["check", str(path)])
    assert result.exit_code == 1 and "refused" in result.stdout
    assert result.stdout.count("→") == 1  # the remedy stands where something is wrong
    assert "copy it again from where it came from" in " ".join(result.stdout.split())
    assert run(app, ["check", str(path.with_name("absent"))]).exit_code == 1


@pytest.mark.usefixtures("engines")
def test_an_engine_that_crashes_is_a_row_and_a_verdict(path: Path) -> None:
    report = check_file(path, ("ill", "fine"))
    assert report.ok and report.verdict == "loads, on fine"
    assert "SIGILL" in report.engines[0].rows[-1].found and report.engines[0].rows[-1].verdict == "refused"
    alone = check_file(path, "ill")
    assert not alone.ok and "SIGILL" in alone.verdict
    # What the check found is remembered for the load.
    assert load(path, engine="fine").info.probe == "remembered"


def test_another_machine_can_be_asked_about(path: Path) -> None:
    facts = replace(Facts.here(), machine="riscv64", memory=1 << 34)
    report = check_file(path, ("onednn", "reference"), facts=facts, probe=False)
    assert report.ok and not report.engines[0].usable and report.engines[1].usable
    assert report.engines[0].rows[0].found == "riscv64"
    assert [row.found for row in report.engines[1].rows if row.what == "probe"] == ["not asked for"]


def test_a_program_that_needs_what_the_machine_lacks(tmp_path: Path, cache: Path) -> None:
    path = save(replace(certified(), needs=("vnni",)), tmp_path / "needy")
    facts = replace(
        Facts.here(), machine="x86_64", features=frozenset({"sse4_1", "sse4_2", "avx", "avx2"}), memory=1 << 34
    )
    report = check_file(path, "onednn", facts=facts)
    assert not report.ok
    if "torch" in facts.packages:
        assert "found" not in report.verdict and "AVX2" in report.verdict
        row = next(r for r in report.engines[0].rows if r.verdict == "refused")
        assert row.needed == "AVX512-VNNI or AVX-VNNI" and "portable=True" in row.remedy


def test_usage_errors_are_status_2(path: Path) -> None:
    assert run(app, ["check", str(path), "--engine", ","]).exit_code == 2
