"""``intact8 report`` and ``intact8 doctor --env`` from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="quantizing needs torch")

import torch

import intact8 as library
from intact8.cli.app import app

SOURCE = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)).eval()
"""


def intact8(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "220"})
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets_of_report_test.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    images = np.random.default_rng(0).random((40, 3, 8, 8), dtype=np.float32)
    np.save(tmp_path / "images.npy", images)
    from nets_of_report_test import net

    library.quantize(net(), images).save(tmp_path / "net.safetensors")
    return tmp_path


def test_a_page_beside_the_file_and_tables(folder: Path) -> None:
    pytest.importorskip("plotly")
    result = intact8("report", "net.safetensors", "--seconds", "0.05")
    page = folder / "net.report.html"
    assert page.resolve().as_uri() in result.stderr
    assert "net.safetensors" in page.read_text(encoding="utf-8")
    assert "proved exact" in result.stdout and "input.quantize" in result.stdout


def test_everything_as_json_without_a_page(folder: Path) -> None:
    arguments = ["--model", "nets_of_report_test:net", "--data", "images.npy", "--samples", "20", "--seconds", "0.05"]
    result = intact8("report", "net.safetensors", *arguments, "--sensitivity", "--json")
    document = json.loads(result.stdout)
    assert (document["samples"], document["compared"]) == (20, 20)
    conv = next(layer for layer in document["layers"] if layer["kind"] == "conv")
    assert conv["error"]["own"]["sqnr"] > 20
    assert conv["sensitivity"] > 20
    assert conv["time"]["median"] > 0
    assert not list(folder.glob("*.html"))


def test_both_when_asked_for(folder: Path) -> None:
    pytest.importorskip("plotly")
    result = intact8("report", "net.safetensors", "--seconds", "0", "--json", "-o", "out.html")
    assert json.loads(result.stdout)["speed"] is None
    assert (folder / "out.html").exists()


@pytest.mark.long
def test_two_programs_labels_and_the_doctor(folder: Path) -> None:
    images = np.load("images.npy")
    np.savez("test.npz", images=images, y=np.arange(40) % 5)
    from nets_of_report_test import net

    library.quantize(net(), images, library.recipes.minmax()).save(folder / "other.safetensors")
    arguments = ["--model", "nets_of_report_test:net", "--data", "test.npz", "--labels", "y", "--samples", "40"]
    result = intact8(
        "report", "net.safetensors", "other.safetensors", *arguments, "--doctor", "--json", "--seconds", "0"
    )
    document = json.loads(result.stdout)
    assert document["title"] == "net · net.safetensors"
    assert document["accuracy"]["samples"] == document["other"]["accuracy"]["samples"] == 40
    assert document["next_steps"]
    np.save("y.npy", np.arange(40) % 5)
    arguments = ["--data", "images.npy", "--labels", "y.npy", "--samples", "40", "--json", "--seconds", "0"]
    other = json.loads(intact8("report", "net.safetensors", *arguments).stdout)
    assert other["accuracy"]["samples"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nets_of_report_test:net"], "--data"),
        (["--data", "images.npy", "--sensitivity"], "--model"),
        (["--data", "images.npy", "--doctor"], "--model"),
        (
            ["--data", "images.npy", "--labels", "y"],
            "no entry 'y'. Reason: a .npy file holds one array, without a name",
        ),
        (["--labels", "y"], "give them with --data"),
        (["--engine", "nothing"], "there is no engine"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    result = intact8("report", "net.safetensors", *arguments, status=2)
    assert result.stderr.startswith("error: ") and message in result.stderr


def test_doctor_env() -> None:
    document = json.loads(intact8("doctor", "--env", "--json").stdout)
    assert document["torch"]["version"] == torch.__version__ and document["facts"]["machine"]
    assert any(
        ability["what"] == "run programs on reference" and ability["possible"] for ability in document["abilities"]
    )
