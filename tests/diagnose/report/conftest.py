"""A small network with every kind of row in its report, and a browser to open pages in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intact8
from intact8.diagnose.compare.report import CompareReport
from intact8.diagnose.report import Report
from intact8.diagnose.sensitivity.report import Score, SensitivityReport, SensitivityRow
from intact8.program.program import Program

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)) + x)


class Net(nn.Module):
    """Fused, residual, pooled, looked up, moved, and one float island."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(8, 16, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.blocks(self.stem(x)))
        x = torch.sigmoid(self.head(x)).mean((2, 3))
        return torch.softmax(self.fc(x), 1)


@dataclass(frozen=True)
class Case:
    """A report and what it was made from."""

    model: nn.Module
    sim: Any
    program: Program
    data: torch.Tensor
    compared: CompareReport
    sensitivity: SensitivityReport
    report: Report


@pytest.fixture(scope="session")
def case() -> Case:
    torch.manual_seed(0)
    model = Net()
    model.train()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(64, 3, 16, 16))
    model.eval()
    data = torch.randn(48, 3, 16, 16)
    sim = intact8.prepare(model, data[:2])
    intact8.calibrate(sim, data)
    program = intact8.convert(sim)
    compared = intact8.compare(model, sim, data, engine="onednn")
    rows = tuple(
        SensitivityRow(r.name, r.kind, r.module, r.source, r.name, r.weight is not None, (Score("alone", "both", v),))
        for v, r in zip((30.0, 28.5, 33.25, 21.125, 40.0, 26.0, 27.0, 29.0, 31.0, 32.0), compared, strict=False)
    )
    sensitivity = SensitivityReport("sqnr", True, None, 18.5, rows, (), 48)
    with torch.no_grad():
        labels = model(data).argmax(1).numpy()
    other = intact8.quantize(model, data, intact8.recipes.minmax())
    report = intact8.report(
        program,
        data,
        model=model,
        sim=sim,
        compare=compared,
        sensitivity=sensitivity,
        seconds=0.2,
        title="a net",
        labels=labels,
        other=other,
    )
    return Case(model, sim, program, data, compared, sensitivity, report)


@pytest.fixture(scope="session")
def page_file(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly")
    return case.report.save(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        # A container's root may not use the sandbox; what is opened is our own file.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
