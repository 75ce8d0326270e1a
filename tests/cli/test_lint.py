"""``intact8 lint`` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="networks are made with torch")

import torch

import intact8
from intact8.cli.app import app

SOURCE = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu)


def training():
    from torch.ao import quantization as ao

    model = nn.Sequential(ao.QuantStub(), nn.Linear(4, 4), ao.DeQuantStub()).train()
    model.qconfig = ao.get_default_qat_qconfig("fbgemm")
    model = ao.prepare_qat(model)
    model(torch.randn(8, 4))
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lint")
    (folder / "nets_of_lint_test.py").write_text(SOURCE)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
    torch.manual_seed(0)
    intact8.quantize(torch.nn.Linear(4, 2), torch.randn(64, 4)).save(folder / "fine.safetensors")
    vnni = intact8.recipes.full_range()
    intact8.quantize(torch.nn.Linear(4, 2), torch.randn(64, 4), vnni).save(folder / "vnni.safetensors")
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["lint", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


def test_a_clean_program() -> None:
    assert "nothing found" in run("fine.safetensors").stdout


def test_findings_are_shown_and_fail() -> None:
    out = run("vnni.safetensors", status=1).stdout
    assert "IQ453" in out and "IQ602" in out and "VNNI" in out


@pytest.mark.parametrize(("limit", "status"), [("warning", 1), ("error", 0), ("never", 0)])
def test_what_fails_can_be_chosen(limit: str, status: int) -> None:
    run("vnni.safetensors", "--fail-on", limit, status=status)


def test_json_and_a_file() -> None:
    run("vnni.safetensors", "--format", "json", "-o", "found.json", status=1)
    found = intact8.diagnose.lint.LintReport.from_dict(json.loads(Path("found.json").read_text()))
    assert found.ids == ("IQ453", "IQ602") and found.name == "vnni.safetensors"
    run("vnni.safetensors", "-o", "found.txt", status=1)
    assert Path("found.txt").read_text().splitlines() == [str(f) for f in found]


def test_sarif() -> None:
    log = json.loads(run("vnni.safetensors", "--format", "sarif", status=1).stdout)
    assert [r["ruleId"] for r in log["runs"][0]["results"]] == ["IQ453", "IQ602"]


def test_a_float_model_with_data() -> None:
    out = run("nets_of_lint_test:net", "--data", "x.npy", "--fail-on", "note", status=1).stdout
    assert "IQ101" in out and "could not run" not in out
    run("nets_of_lint_test:net", "--data", "x.npy", "--ignore", "IQ101,IQ3", "--fail-on", "note")


def test_a_model_keeps_the_mode_its_factory_left_it_in() -> None:
    out = run("nets_of_lint_test:training", "--select", "IQ501").stdout
    assert "nothing found by 1 rule" in out


def test_rules_are_chosen_in_pyproject(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "pyproject.toml"
    file = str(folder / "vnni.safetensors")
    table.write_text('[tool.intact8.lint]\nignore = ["IQ453", "needs-vnni"]\n')
    run(file)
    run(file, "--ignore", "IQ453", status=1)  # the command line wins
    table.write_text('[tool.intact8.lint]\nselect = ["IQ3"]\nfail-on = "note"\n')
    assert "nothing found by 2 rules" in run(file).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to lint"),
        (["fine.safetensors", "--select", "IQ999"], "no lint rule 'IQ999'"),
        (["fine.safetensors", "--select", ""], "no rule is selected"),
        (["fine.safetensors", "--format", "xml"], "unknown format 'xml'"),
        (["fine.safetensors", "--fail-on", "sometimes"], "fail-on = 'sometimes'"),
        (["fine.safetensors", "--data", "x.npy"], "without data"),
        (["missing.safetensors"], "missing.safetensors"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    assert message in run(*arguments, status=2).stderr


def test_the_list_of_rules() -> None:
    assert "IQ301 error   uncalibrated" in run("--rules").stdout
