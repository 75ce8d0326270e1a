"""DLinear with reversible instance norm: series whose scale and level are other than those of calibration."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.torch_suites.plain import plain
from torch import Tensor, nn

import intact8

STEPS, AHEAD, CHANNELS, WINDOW = 48, 12, 3, 25


class DLinear(nn.Module):
    """Two linear layers over time, of the moving average and of what is left, between a norm and its inverse."""

    def __init__(self, affine: bool, detached: bool, joined: bool) -> None:
        super().__init__()
        self.detached, self.joined = detached, joined
        self.scale = nn.Parameter(torch.rand(CHANNELS) + 0.5) if affine else None
        self.shift = nn.Parameter(torch.randn(CHANNELS) * 0.1) if affine else None
        self.rest, self.trend = nn.Linear(STEPS, AHEAD), nn.Linear(STEPS, AHEAD)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(1, keepdim=True)
        spread = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        return (mean.detach(), spread.detach()) if self.detached else (mean, spread)

    def average(self, x: Tensor) -> Tensor:
        half = WINDOW // 2
        if not self.joined:
            return F.avg_pool1d(F.pad(x.mT, (half, half), mode="replicate"), WINDOW, 1).mT
        ends = x[:, :1].repeat(1, half, 1), x, x[:, -1:].repeat(1, half, 1)
        return F.avg_pool1d(torch.cat(ends, 1).permute(0, 2, 1), WINDOW, 1).permute(0, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.statistics(x)
        x = (x - mean) / spread
        if self.scale is not None and self.shift is not None:
            x = x * self.scale + self.shift
        trend = self.average(x)
        y = (self.rest((x - trend).mT) + self.trend(trend.mT)).mT
        if self.scale is not None and self.shift is not None:
            y = (y - self.shift) / self.scale
        return y * spread + mean


def series(count: int) -> Tensor:
    at = torch.arange(STEPS)[None, :, None] / STEPS
    waves = torch.sin(6.28 * (at * torch.randint(1, 6, (count, 1, CHANNELS)) + torch.rand(count, 1, CHANNELS)))
    return waves + 0.2 * torch.randn(count, STEPS, CHANNELS) + 3 * torch.randn(count, 1, CHANNELS)


@pytest.mark.parametrize(("affine", "detached", "joined"), [(True, False, True), (False, True, False)])
def test_series_of_another_scale_are_forecast_as_well_as_in_plain_w8a8(
    affine: bool, detached: bool, joined: bool
) -> None:
    torch.manual_seed(0)
    net = DLinear(affine, detached, joined).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = intact8.quantize(net, series(4))
    for factor, level in ((1.0, 0.0), (100.0, 0.0), (0.1, 20.0)):
        x = series(32) * factor + level
        with torch.no_grad():
            want = net(x)
        got, usual = (
            F.cosine_similarity(y.flatten(1), want.flatten(1)).mean() for y in (program.run(x), plain(net, (x,)))
        )
        assert got >= usual - 0.01
        assert (program.run(x) - want).square().sum() <= 1e-3 * want.square().sum()  # 30 dB
