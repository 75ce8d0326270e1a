"""The simulation is near the network it stands for: in evaluation and in training, forward and backward.

Other tests compare the simulation with the integers that ship. Both could be wrong together; the network is not.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.simulation.networks import Builder, quantized
from tests.simulation.test_exact import RECIPES
from torch import Tensor, nn

import intact8


class Residuals(nn.Module):
    """What random networks rarely combine: a residual behind batch norm, a leaky one, a difference, cut borders."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        self.leaky = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU(0.2))
        self.pool = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.depthwise(x))
        x = self.leaky(x) - 0.5 * x
        y: Tensor = self.head(self.pool(x).mean((2, 3)))
        return y


def network(seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    if seed == 0:
        net, shape = Residuals(), (3, 9, 9)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # type: ignore[assignment]
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.3)
        with torch.no_grad():
            net.train()(torch.randn(32, *shape))
    else:
        net, shape = Builder(seed, 9).build()
    return net.eval(), torch.randn(32, *shape)


def outputs(module: Any, x: Tensor) -> list[Tensor]:
    y = module(x)
    return [v for v in (y.values() if isinstance(y, dict) else [y]) if v.std() > 0]


def snr(want: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(want.var() / ((want - got) ** 2).mean()))


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("recipe", ["default", "fused", "learned"])
@pytest.mark.parametrize("seed", [0, 1004, 1006, 1010])
def test_forward_and_backward(seed: int, recipe: str, training: bool) -> None:
    net, x = network(seed)
    made = intact8.Recipe(scales="learned") if recipe == "learned" else RECIPES[recipe]()
    sim, _ = quantized(net, x, made)
    other = copy.deepcopy(net).train(training)
    sim.train(training)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    want, got = outputs(other, a), outputs(sim, b)
    assert min(snr(w.detach(), g.detach()) for w, g in zip(want, got, strict=True)) > 20
    weights = [torch.randn_like(w) for w in want]
    for results in (want, got):
        torch.autograd.backward(results, weights)
    assert a.grad is not None and b.grad is not None
    assert cosine(a.grad, b.grad) > 0.95
    ours = dict(sim.named_parameters())
    grads = {n: (p.grad, ours[n].grad) for n, p in other.named_parameters() if p.grad is not None}
    largest = max(float(g.norm()) for g, _ in grads.values())
    # A bias in front of batch norm has no gradient but noise; where values are clipped a small one may vanish.
    far = {
        n: (float((g - h).norm()), float(g.norm()))
        for n, (g, h) in grads.items()
        if h is not None and (g - h).norm() > 0.6 * g.norm() + 0.02 * largest
    }
    assert sum(h is not None for _, h in grads.values()) > len(grads) / 2 and not far, far


def test_negative_results_of_small_multipliers_keep_their_slope() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1)).eval()
    with torch.no_grad():
        net[0].weight[0] *= 30  # one channel decides the grid: the multipliers of the others are small
    sim, _ = quantized(net, torch.randn(16, 3, 12, 12), replace(intact8.recipes.symmetric(), equalize=False))
    found = sim.requantizations["0"]
    slope = (found.a_neg / found.b_neg) / (found.a / found.b)
    assert float((slope / 0.1 - 1).abs().max()) < 0.01, slope
