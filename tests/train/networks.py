"""A small network with everything that matters in training, and its training loop."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import intact8
import intact8.train
from intact8.calibration.summary import CalibrationWarning


class Net(nn.Module):
    """Conv + BN + ReLU, a residual add, depthwise, a table, a mean and a linear."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.prelu = nn.PReLU(8)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.silu = nn.SiLU()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = x + self.prelu(self.bn2(self.depthwise(x)))
        x = self.silu(self.conv2(x))
        y: Tensor = self.fc(self.dropout(x.mean((2, 3))))
        return y


def batch(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Images whose class is the quadrant with the bright spot: learnable, and the same in every run."""
    g = torch.Generator().manual_seed(1000 + step)
    x = 0.5 * torch.randn(size, 2, 6, 6, generator=g)
    y = torch.randint(0, 4, (size,), generator=g)
    for i, k in enumerate(y.tolist()):
        x[i, :, 3 * (k // 2) : 3 * (k // 2) + 3, 3 * (k % 2) : 3 * (k % 2) + 3] += 1 + k
    return x, y


def prepared(scales: str, seed: int = 0, *, calibrated: bool = True, recipe: Any = None, dropout: float = 0.0) -> Any:
    """A simulation of its own. (Capturing takes a second, so every kind is captured once and copied.)"""
    text = (recipe or intact8.recipes.qat(scales)).to_toml()
    return copy.deepcopy(_prepared(seed, calibrated, text, dropout))


@functools.lru_cache(maxsize=64)
def _prepared(seed: int, calibrated: bool, recipe: str, dropout: float) -> Any:
    torch.manual_seed(seed)
    net = Net(dropout)
    net.train()
    for i in range(8):  # statistics of batch norm
        net(batch(-1 - i)[0])
    sim = intact8.prepare(net.eval(), batch(0)[0], intact8.Recipe.from_toml(recipe)).eval()
    if calibrated:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            intact8.calibrate(sim, [batch(-20 - i)[0] for i in range(4)])
    return sim


def optimizer_of(sim: Any, lr: float = 2e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(intact8.train.parameter_groups(sim, lr=lr))


def train(sim: Any, optimizer: Any, steps: range) -> None:
    sim.train()
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        torch.manual_seed(step)  # dropout
        nn.functional.cross_entropy(sim(x), y).backward()
        optimizer.step()


def exact(sim: Any) -> Any:
    """The program of ``sim``; every engine gives its integers, and every op is proved."""
    program = intact8.convert(sim.eval())
    report = intact8.verify(program, batch(77, 8)[0], sim=sim)
    assert report.exact and not report.uncertified, (report.first, report.uncertified)
    assert "vnni" not in program.needs
    return program
