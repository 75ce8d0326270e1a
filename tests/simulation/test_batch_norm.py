"""Batch norm in every position: behind a layer, before one, alone; live in training, folded in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intact8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3, groups=2), nn.ReLU(),
        nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(),
        nn.BatchNorm1d(8 * 36), nn.Linear(8 * 36, 5),
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    with torch.no_grad():
        for _ in range(5):
            model(images())
    return model.eval()


def images(n: int = 64) -> Tensor:
    return torch.randn(n, 3, 16, 16) * 2 + 1


def test_only_an_exact_fold_is_made() -> None:
    sim = intact8.prepare(network(), images(2))
    decisions = {note.node: note.decision for note in sim.fusion_log}
    assert decisions["3"] == "folded into 4"
    assert decisions["6"] == "folded into 7" and decisions["8"] == "fused into 7"
    assert decisions["10"].startswith("scale_shift"), "padding behind a batch norm is not zero before it"
    assert decisions["13"] == "folded into 14"


def test_float_evaluation_and_training_equal_the_model() -> None:
    model, x = network(), images()
    sim = intact8.prepare(model, x[:2]).eval()
    with torch.no_grad():
        torch.testing.assert_close(sim(x), model(x), rtol=1e-4, atol=1e-5)
    model.train()
    sim.train()
    torch.testing.assert_close(sim(x), model(x), rtol=1e-4, atol=1e-4)
    buffers = dict(sim.named_buffers())
    for name, value in model.named_buffers():
        torch.testing.assert_close(buffers[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["onednn", "onnxruntime"])
def test_integers_agree(engine: str) -> None:
    if engine == "onnxruntime":
        pytest.importorskip(engine)
    sim = intact8.prepare(network(), images(2)).eval()
    intact8.calibrate(sim, images(256))
    report = intact8.verify(intact8.convert(sim), images(16), engines=("reference", engine), sim=sim)
    assert report.elements > 10_000 and report.mismatches == 0


def test_every_parameter_gets_a_gradient_in_training() -> None:
    sim = intact8.prepare(network(), images(2)).eval()
    intact8.calibrate(sim, images(256))
    sim.train()
    sim(images()).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in sim.parameters())
