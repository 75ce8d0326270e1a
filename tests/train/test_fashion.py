"""Trained Fashion-MNIST networks after a short training: every engine computes the simulation's integers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import intact8
import intact8.train

STEPS, BATCH = 60, 64


@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize(
    ("kind", "scales"),
    [("cnn", "learned"), pytest.param("cnn", "observed", marks=pytest.mark.long),
     pytest.param("dw", "learned", marks=pytest.mark.long), pytest.param("dw", "observed", marks=pytest.mark.long)],
)  # fmt: skip
def test_exact_after_training(assets: Path, kind: str, scales: str) -> None:
    from safetensors.torch import load_file

    threads = torch.get_num_threads()
    fashion, common = importlib.import_module("fashion_mnist"), importlib.import_module("common")
    torch.set_num_threads(threads)  # the loaders choose one
    net = fashion.net(kind)
    net.load_state_dict(load_file(assets / "fashion_mnist" / f"{kind}.safetensors"))
    x, y = common.fashion_mnist("train")
    test_x, test_y = common.fashion_mnist("test")
    sim = intact8.prepare(net.eval(), x[:2], intact8.recipes.qat(scales))
    intact8.calibrate(sim, x[:512])
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=2e-4))
    schedule = intact8.train.Schedule(observe=20, freeze_batchnorm=30, freeze_scales=45, unit="step")
    schedule.start(sim)
    torch.manual_seed(0)
    sim.train()
    for _ in range(STEPS):
        index = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(sim(x[index]), y[index]).backward()
        optimizer.step()
        schedule.step(sim)
    trained = sim(test_x[:256]).detach()
    program = intact8.convert(sim.eval())
    report = intact8.verify(program, test_x[:256], engines=("reference", "onednn"), sim=sim)
    assert report.exact and not report.uncertified and report.elements > 256 * 7000
    # What the training forward gave is what ships, but for layers that had to be solved again.
    assert (trained.argmax(1) == sim(test_x[:256]).argmax(1)).float().mean() > 0.99
    with torch.no_grad():
        correct, of_float = (int((f(test_x[:2000]).argmax(1) == test_y[:2000]).sum()) for f in (sim, net))
    assert correct > of_float - 30
