"""Group and instance norm on integers: one program on every engine, near the float network, trained alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import intact8
from intact8 import recipes
from intact8.engines import available_engines

ENGINES = [name for name in available_engines() if name != "openvino"]  # which has no integer norms


class Net(nn.Module):
    """Convolutions with group and instance norms, one of them without weights, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.instance = nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8)
        self.third, self.last = nn.Conv2d(8, 6, 1), nn.GroupNorm(6, 6, affine=False)
        with torch.no_grad():
            self.norm.weight.uniform_(-2, 2)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.last(self.third(x + self.instance(self.second(x))))).mean((2, 3))


@pytest.fixture(scope="module")
def networks() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(32, 3, 9, 7)


def test_every_engine_gives_its_integers(networks: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = networks
    sim = intact8.prepare(model, x[:2], recipes.integer()).eval()
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    assert sum(op.kind == "group_norm" for op in program.ops) == 3 and not program.islands()
    report = intact8.verify(program, torch.randn(5, 3, 9, 7), sim=sim, engines=ENGINES)
    assert report.mismatches == 0 and not report.uncertified
    with torch.no_grad():
        want, got = model(x), sim(x)
    assert float((got - want).norm() / want.norm()) < 0.15


def test_the_default_keeps_them_float(networks: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = networks
    kinds = {op.kind for op in intact8.quantize(model, x).islands()}
    assert "float.group_norm" in kinds


def test_it_trains(networks: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = networks
    sim = intact8.prepare(model, x[:2], replace(recipes.qat("learned"), nonlinear="integer"))
    intact8.calibrate(sim, [x])
    sim.train()(x).square().sum().backward()
    weight = sim.get_parameter("norm.weight")
    assert weight.grad is not None and float(weight.grad.abs().sum()) > 0


def test_a_group_that_is_too_long_stays_float() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.GroupNorm(1, 2), nn.Conv2d(2, 1, 1)).eval()
    sim = intact8.prepare(model, torch.randn(1, 1, 256, 256), recipes.integer())
    assert "no integer form yet: group norm with groups of 131072 elements" in sim.placed.float_nodes.values()
