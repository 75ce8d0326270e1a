"""Writes to weights that torch does not count, as through ``.data``, are followed all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes


def swap_in(parameter: nn.Parameter, value: Tensor) -> None:
    parameter.data.copy_(value)


def replace(parameter: nn.Parameter, value: Tensor) -> None:
    parameter.data = value


def exchange_rows(parameter: nn.Parameter, value: Tensor) -> None:
    parameter.data.copy_(parameter.data.flip(0))


@pytest.mark.parametrize("recipe", [recipes.default(), recipes.qat(), recipes.weight_only()])
@pytest.mark.parametrize("write", [swap_in, replace, exchange_rows])
def test_the_program_is_that_of_the_weights_as_they_are(
    write: Callable[[nn.Parameter, Tensor], None], recipe: intact8.Recipe
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 4)
    ).eval()
    data = [torch.randn(32, 3, 8, 8) for _ in range(4)]
    sim = intact8.prepare(model, data[0], recipe)
    intact8.calibrate(sim, data)
    sim.eval()
    with torch.no_grad():
        before = sim(data[0])
        for parameter in sim.parameters():
            if parameter.dim() > 1:
                write(parameter, 1.25 * parameter.detach().clone())
        after = sim(data[0])
        program = intact8.convert(sim)
        for parameter in sim.parameters():
            parameter.mul_(1)  # torch counts that
        assert torch.equal(after, sim(data[0])) and not torch.allclose(before, after, atol=0.05)
    assert torch.allclose(program.run(data[0]), after, atol=1e-5)  # weight-only layers add floats
