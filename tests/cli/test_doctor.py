"""``intact8 doctor`` end to end, on a small network of a user's module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="quantizing needs torch")

from intact8.cli.app import app
from intact8.diagnose.doctor import DoctorReport
from intact8.recipe.recipe import Recipe

SOURCE = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))


def nothing():
    return nn.Sequential(nn.Flatten(), nn.Softmax(1))
"""

CLIPPED = """
[[overrides]]
match = "0"
activation = { fixed = [0.0005, 0] }
"""


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets_of_doctor_test.py").write_text(SOURCE)
    (tmp_path / "clipped.toml").write_text(CLIPPED)
    rng = np.random.default_rng(0)
    images = rng.random((96, 3, 8, 8), dtype=np.float32)
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    answers = names["net"]()(torch.from_numpy(images)).argmax(1)  # labels that the float network finds
    np.savez(tmp_path / "images.npz", x=images, y=answers.numpy())
    np.save(tmp_path / "calibration.npy", images[:40] * 200)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def doctor(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


NET = ("nets_of_doctor_test:net", "images.npz", "--labels", "y", "--seconds", "0")


def test_report_and_recipe(inside: Path) -> None:
    result = doctor(*NET, "--recipe", "clipped.toml", "-o", "better.toml", "--json", "--tolerance", "0.2")
    report = DoctorReport.from_dict(json.loads(result.stdout))
    assert report.metric == "accuracy"
    assert (report.findings[0].place, report.findings[0].cause) == ("0", "clipped_range")
    assert Recipe.load(inside / "better.toml") == report.recipe
    assert report.outcome("after").noise < report.outcome("before").noise / 100


def test_calibration_of_your_own(inside: Path) -> None:
    result = doctor(*NET, "--calibration", "calibration.npy", "--tolerance", "0.2")
    assert "calibration data: unlike_data" in result.stdout and "Verdict" in result.stdout


def test_exit_status_of_do_not(inside: Path) -> None:
    result = doctor("nets_of_doctor_test:nothing", *NET[1:], status=1)
    assert "do not quantize this" in result.stdout


def test_labels_that_are_not_there(inside: Path) -> None:
    assert "no entry 'z'" in doctor(*NET[:2], "--labels", "z", status=2).stderr


def test_model_and_data_are_needed(inside: Path) -> None:
    assert "--env" in doctor(status=2).stderr
