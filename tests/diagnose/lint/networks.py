"""Small networks and ready subjects for the tests of lint rules."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

SIZE = (3, 8, 8)


def images(n: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(n, *SIZE, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """conv, batch norm, ReLU, pooling, conv, ReLU, mean, linear: nothing to complain about."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.bn, self.relu1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2, self.relu2 = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.bn(self.conv1(x))))
        out: Tensor = self.fc(self.relu2(self.conv2(x)).mean((2, 3)))
        return out


def network(classes: int = 4) -> Net:
    torch.manual_seed(1)
    net = Net(classes)
    with torch.no_grad():  # all classes are predicted about as often
        y = net.eval()(images(256))
        net.fc.weight /= y.std(0)[:, None]
        net.fc.bias.copy_((net.fc.bias - y.mean(0)) / y.std(0))
    return net


def prepared(recipe: Recipe | None = None, model: nn.Module | None = None, x: Tensor | None = None) -> Simulation:
    return intact8.prepare(network() if model is None else model, images(2) if x is None else x, recipe).eval()


def calibrated(
    recipe: Recipe | None = None, model: nn.Module | None = None, data: Any = None, x: Tensor | None = None
) -> Simulation:
    sim = prepared(recipe, model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, images() if data is None else data)
    return sim


def program(recipe: Recipe | None = None, model: nn.Module | None = None, data: Any = None) -> Program:
    return intact8.convert(calibrated(recipe, model, data))


@functools.cache
def clean_program() -> Program:
    return program()


class Chain(nn.Sequential):
    """A Sequential with named parts."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def chain(**parts: nn.Module) -> Chain:
    torch.manual_seed(1)
    return Chain(**parts).eval()
