"""The whole house in one short file: if this fails, look here first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import intact8


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_tiny(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    images = torch.rand(128, 1, 8, 8)
    sim = intact8.prepare(model, images[:1], intact8.recipes.images())
    intact8.calibrate(sim, images)
    program = intact8.Program.load(intact8.convert(sim).save(tmp_path / "tiny.safetensors"))

    y = program.run(images[:5], engine="onednn")
    assert torch.equal(y, sim(images[:5])) and torch.equal(y, program.run(images[:5], engine="reference"))
    assert (y - model(images[:5])).abs().max() < 0.05
    report = intact8.verify(program, images, sim=sim)
    assert report.exact and report.elements > 50_000 and not report.uncertified and not report.islands
