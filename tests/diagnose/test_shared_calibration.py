"""Simulations that share a calibration are, to the bit, those that were calibrated alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import intact8
from intact8 import recipes
from intact8.calibration.distributed import checksum
from intact8.diagnose.shared_calibration import SharedCalibration


class Block(nn.Module):
    """A residual block with a depthwise convolution, whose channels are equalized."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return x + self.last(self.depthwise(x).relu())


@pytest.fixture(scope="module")
def shared() -> tuple[nn.Module, torch.Tensor, SharedCalibration]:
    torch.manual_seed(0)
    x = torch.randn(72, 3, 8, 8)
    return Block().eval(), x, SharedCalibration(x.split(24))


DEFAULT = recipes.default()
RECIPES = {
    "first": DEFAULT,
    "again": DEFAULT,
    "other factors": replace(DEFAULT, overrides={"depthwise": None}),
    "less": replace(DEFAULT, overrides={"last": None}),
    "no factors": replace(DEFAULT, equalize=False),
    "other observer": recipes.minmax(),
    "reconstructed": replace(DEFAULT, reconstruction="gptq"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_state_is_that_of_a_calibration_alone(
    shared: tuple[nn.Module, torch.Tensor, SharedCalibration], name: str
) -> None:
    model, x, calibration = shared
    sims = [intact8.prepare(model, x[:2], RECIPES[name]) for _ in range(2)]
    calibration.calibrate(sims[0])
    intact8.calibrate(sims[1], x.split(24))
    assert checksum(sims[0].state_dict()) == checksum(sims[1].state_dict())
