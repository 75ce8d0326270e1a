"""Whole networks: trained ones on real images, and unmodified torchvision models with random weights."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conftest import benchmark

import intact8

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

ELEMENTS = 20_000_000


def per_sample(program: intact8.Program) -> int:
    """Integers of one sample in all named tensors."""
    return sum(math.prod(d for d in program.tensors[n].shape if d is not None) for n in program.integer_tensors())


def check(task: Any, recipe: intact8.Recipe, points: float) -> None:
    """Simulation, reference and onednn agree on 20 M integers, and accuracy is within ``points`` of float32's."""
    data = benchmark("assets")
    sim = intact8.prepare(task.model, task.calibration[:2], recipe).eval()
    intact8.calibrate(sim, task.calibration.split(32))
    program = intact8.convert(sim)
    samples = ELEMENTS // per_sample(program) + 1
    images = task.held_out.repeat(-(-samples // len(task.held_out)), 1, 1, 1)[:samples]
    report = intact8.verify(program, images, sim=sim, batch_size=32)
    assert report.elements >= ELEMENTS and report.samples == samples
    assert report.exact, (report.first, report.by_engine)
    assert not report.uncertified and not report.islands
    with torch.no_grad():
        floats = data.accuracy(task.model, task)
    integers = data.accuracy(lambda x: program.run(x, engine="onednn"), task)
    assert integers >= floats - points, f"{integers:.2f} against {floats:.2f} in float32"


@pytest.mark.parametrize("kind", ["cnn", "dw"])
def test_fashion_mnist(assets: Path, kind: str) -> None:
    check(benchmark("assets").fashion(assets, kind), intact8.recipes.default(), 0.3)


@pytest.mark.long
def test_mobilenet_v1_on_imagenet(assets: Path) -> None:
    pytest.importorskip("PIL")
    check(benchmark("assets").mobilenet(assets), intact8.recipes.accurate(), 3.0)


MODELS = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "googlenet",
    "densenet121", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "lraspp_mobilenet_v3_large",
)  # fmt: skip


# The blocks of the long ones are those of others; densenet121 is in tests/placement/test_networks.py.
LONG = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "googlenet", "densenet121", "convnext_tiny",
    "lraspp_mobilenet_v3_large", "regnet_y_400mf", "shufflenet_v2_x1_0",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in MODELS])
def test_torchvision(torchvision: ModuleType, name: str) -> None:
    """Random weights, batch norm statistics from random images, so that activations are alive at every depth."""
    coverage = benchmark("coverage")
    model = coverage.build(name)
    torch.manual_seed(1)
    data = torch.randn(18, 3, 64, 64)
    sim = intact8.prepare(model, data[:2], intact8.Recipe(between_layers="integer")).eval()
    intact8.calibrate(sim, data[:16].split(8))
    program = intact8.convert(sim)
    report = intact8.verify(program, data[16:17], sim=sim)
    assert report.exact, (report.first, report.by_engine)
    assert not report.uncertified
    assert report.elements > 100_000
    heavy = [op.kind for op in program.ops if op.kind in ("conv", "linear", "float.conv", "float.linear")]
    assert heavy.count("conv") + heavy.count("linear") == len(heavy), "every product runs on integers"
    if name not in ("convnext_tiny", "lraspp_mobilenet_v3_large"):
        assert not report.islands
