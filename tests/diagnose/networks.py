"""A small network with everything a row can be of, and data for it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from intact8.calibration.summary import CalibrationWarning
from intact8.simulation.simulation import Simulation


class Net(nn.Module):
    """Convolutions with batch norm, a residual, concatenation, pools, a table, a softmax that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2, self.relu2 = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU6()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.silu = nn.SiLU()
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.bn1(self.conv1(x))))
        y = self.relu2(self.conv2(x)) + x
        z = self.silu(self.depthwise(y))
        return torch.softmax(self.fc(torch.cat([y, z], 1).mean((2, 3))), 1)


def data(samples: int = 48, seed: int = 1) -> Tensor:
    return torch.randn(samples, 3, 12, 10, generator=torch.Generator().manual_seed(seed))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    model = Net()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.normal_(module.running_mean, 0.0, 0.2)
    return model.eval()


def calibrated(model: nn.Module, x: Tensor, recipe: Any = None) -> Simulation:
    sim = intact8.prepare(model, x[:2], recipe).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        intact8.calibrate(sim, x)
    return sim
