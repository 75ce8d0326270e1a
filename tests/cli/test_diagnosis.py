"""``intact8 compare`` and ``intact8 sensitivity``, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="comparing needs torch")

import torch

from intact8.cli.app import app

SOURCE = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets_of_diagnosis_test.py").write_text(SOURCE)
    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((48, 3, 8, 8), dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def intact8(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "250"})
    assert result.exit_code == status, result.output
    return result


def test_compare(folder: Path) -> None:
    from nets_of_diagnosis_test import net

    import intact8 as library

    intact8("quantize", "nets_of_diagnosis_test:net", "--data", "images.npy", "-o", "net.safetensors")
    common = ["compare", "nets_of_diagnosis_test:net", "net.safetensors", "--data", "images.npy", "--samples", "40"]
    shown = intact8(*common).stdout
    assert "input.quantize" in shown and "40 samples" in shown
    values = json.loads(intact8(*common, "--json").stdout)
    images = torch.from_numpy(np.load("images.npy"))[:40].split(16)
    expected = library.compare(net().eval(), library.Program.load("net.safetensors"), images)
    assert library.CompareReport.from_dict(values) == expected
    assert "no such file" in intact8(*common[:4], "absent.npy", status=2).stderr


def test_sensitivity(folder: Path) -> None:
    common = ["sensitivity", "nets_of_diagnosis_test:net", "--data", "images.npy", "--metric", "cosine"]
    shown = intact8(*common, "--mode", "alone", "--mode", "without", "--state", "run.json").stdout
    assert "all but this" in shown and "cosine, higher is better" in shown and Path("run.json").exists()
    values = json.loads(intact8(*common, "--part", "weight", "--greedy", "1", "--json").stdout)
    assert [row["name"] for row in values["rows"]] == ["input.quantize", "0", "4"]
    assert len(values["greedy"]) == 1 and values["rows"][0]["scores"] == []
    assert "no metric 'psnr'" in intact8(*common[:-1], "psnr", status=2).stderr
