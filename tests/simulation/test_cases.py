"""Operations one by one, with the corners random networks seldom reach: simulation == reference == onednn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulation.networks import quantized
from torch import Tensor, nn

import intact8


class Fn(nn.Module):
    """Modules and a function of them and the input."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module, **buffers: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x, *self.parts)


def lively(net: nn.Module) -> nn.Module:
    """Batch norms that do something, negative factors included."""
    for m in net.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            assert m.running_mean is not None and m.running_var is not None
            nn.init.uniform_(m.weight, -1.5, 1.5)
            nn.init.normal_(m.bias)
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2)
    return net.eval()


def prelu(*slopes: float) -> nn.PReLU:
    act = nn.PReLU(len(slopes))
    with torch.no_grad():
        act.weight.copy_(torch.tensor(slopes))
    return act


C2, C4 = (2, 9, 7), (4, 8, 6)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 6, 5, 2, 2), nn.ReLU(), nn.Conv1d(6, 6, 3, groups=3)), (3, 17)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU6()), (2, 4, 5, 5)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), nn.BatchNorm2d(6), nn.ReLU()),
        C4,
    ),
    "transposed 1d dilated": (lambda: nn.ConvTranspose1d(3, 4, 3, 2, 1, output_padding=1, dilation=2), (3, 9)),
    "depthwise multiplier": (lambda: nn.Conv2d(4, 12, 3, padding=1, groups=4, bias=False), C4),
    "dilated": (lambda: nn.Conv2d(2, 5, 3, padding=4, dilation=2), C2),
    "same padding": (lambda: nn.Conv2d(2, 5, (3, 2), padding="same"), C2),
    "reflect": (lambda: nn.Conv2d(2, 5, 3, padding=1, padding_mode="reflect"), C2),
    "circular": (lambda: nn.Conv2d(2, 5, 3, padding=1, padding_mode="circular"), C2),
    "batch norm alone": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.ReLU()), C4),
    "batch norm 1d alone": (
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.ReLU(), nn.BatchNorm1d(6)),
        (6,),
    ),
    "batch norm 1d of three": (lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Conv1d(3, 3, 1)), (3, 8)),
    "activation before batch norm": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)), C4),
    "linear of three": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (5, 6)),
    "leaky": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.LeakyReLU(0.2)), C4),
    "leaky of slope zero": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.LeakyReLU(0.0)), C4),
    "leaky of negative slope": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.LeakyReLU(-0.5)), C4),
    "leaky steeper than one": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.LeakyReLU(2.5)), C4),
    "leaky of a tiny slope": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.LeakyReLU(1e-6)), C4),
    "prelu": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), prelu(0.25, -0.7, 0.0, 1.4)), C4),
    "prelu of one": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), prelu(0.1)), C4),
    "prelu alone": (lambda: nn.Sequential(nn.MaxPool2d(2), prelu(0.3), nn.Conv2d(4, 2, 1)), C4),
    "residual of a leaky": (lambda: Fn(lambda m, x, c: F.leaky_relu(c(x) + x, 0.1), nn.Conv2d(4, 4, 1)), C4),
    "residual of itself": (lambda: Fn(lambda m, x, c: F.relu(c(x) + c(x)), nn.Conv2d(4, 4, 1)), C4),
    "twice the same": (lambda: Fn(lambda m, x, c: (lambda y: y + y)(c(x)), nn.Conv2d(4, 4, 1)), C4),
    "square": (lambda: Fn(lambda m, x, c: (lambda y: y * y)(c(x)), nn.Conv2d(4, 4, 1)), C4),
    "three terms": (lambda: Fn(lambda m, x, a, b: a(x) + b(x) + x, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)), C4),
    "small and large terms": (lambda: Fn(lambda m, x, a: a(x) + 300 * x, nn.Conv2d(4, 4, 1)), C4),
    "minus itself": (lambda: Fn(lambda m, x, a: a(x) - x, nn.Conv2d(4, 4, 1)), C4),
    "constant added": (lambda: Fn(lambda m, x, a: a(x) + m.k, nn.Conv2d(4, 4, 1), k=torch.randn(1, 4, 1, 1)), C4),
    "constant times": (lambda: Fn(lambda m, x, a: a(x) * m.k, nn.Conv2d(4, 4, 1), k=torch.randn(4, 1, 1)), C4),
    "number added": (lambda: Fn(lambda m, x, a: 2 - a(x) / 3, nn.Conv2d(4, 4, 1)), C4),
    "squeeze": (lambda: Fn(lambda m, x, a: x * torch.sigmoid(a(x.mean((2, 3), True))), nn.Conv2d(4, 4, 1)), C4),
    "cat": (lambda: Fn(lambda m, x, a: torch.cat([a(x), x, 9 * a(x)], 1), nn.Conv2d(4, 4, 1)), C4),
    "cat of an input twice": (lambda: Fn(lambda m, x, a: torch.cat([x, x], 1) + a(x), nn.Conv2d(4, 8, 1)), C4),
    "shuffle": (lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.ChannelShuffle(4), nn.Conv2d(8, 2, 1)), C4),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.PixelShuffle(2), nn.PixelUnshuffle(2)), C4),
    "chunks": (
        lambda: Fn(lambda m, x, a: (lambda p: p[0] * torch.sigmoid(p[1]))(a(x).chunk(2, 1)), nn.Conv2d(4, 8, 1)),
        C4,
    ),
    "average ragged": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), C4),
    "average padded": (lambda: nn.AvgPool2d((3, 2), 2, 1, ceil_mode=True), C4),
    "average 1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 1), nn.AvgPool1d(3, 2, 1)), (3, 10)),
    "adaptive ragged": (lambda: nn.AdaptiveAvgPool2d((3, 4)), C4),
    "adaptive max": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten()), C4),
    "mean over channels": (lambda: Fn(lambda m, x: x.mean(1)), C4),
    "max pool dilated": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2, 1, 1, dilation=2)), C4),
    "padded with a value": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConstantPad2d((1, 0, 2, 3), -0.7)), C4),
    "padded with a value out of range": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConstantPad2d(1, 1e6)), C4),
    "dropout": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout2d(0.5), nn.Conv2d(4, 4, 1), nn.Dropout()), C4),
    "hardtanh": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Hardtanh(-0.3, 0.4)), C4),
    "clamp below zero": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Hardtanh(-0.9, -0.1)), C4),
    "tables in a row": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Mish(), nn.Softplus(), nn.Tanh()), C4),
    "nearest": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Upsample(scale_factor=3), nn.Conv2d(4, 1, 1)), C4),
    "output is an input": (lambda: Fn(lambda m, x, a: (a(x), x), nn.Conv2d(4, 4, 1)), C4),
    "output twice": (lambda: Fn(lambda m, x, a: (lambda y: (y, F.relu(y), y))(a(x)), nn.Conv2d(4, 4, 1)), C4),
    "no quantizable operation": (lambda: Fn(lambda m, x: torch.softmax(x, 1)), C4),
}

RECIPES = {
    "separate": intact8.Recipe(),
    "fused": intact8.Recipe(residual="fused"),
    "table": intact8.Recipe(leaky="table"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_case(case: str) -> None:
    make, shape = CASES[case]
    torch.manual_seed(0)
    net = lively(make())
    x = 2 * torch.randn(5, *shape)
    which = list(RECIPES) if any(w in case for w in ("leaky", "prelu", "residual", "terms")) else ["separate"]
    for recipe in which:
        sim, program = quantized(net, torch.randn(64, *shape), RECIPES[recipe])
        if not program.integer_tensors():
            assert case == "no quantizable operation"
            continue
        report = intact8.verify(program, x, sim=sim)
        assert report.exact, (recipe, report.first, report.by_engine)
        assert not report.uncertified
        # A PReLU of several slopes is no table.
        assert not report.islands or case == "adaptive max" or (case, recipe) == ("prelu", "table")
        for n in (1, 3):
            wanted, given, ran = sim(x[:n]), net(x[:n]), program.run(x[:n], engine="onednn")
            wanted, given, ran = (v if isinstance(v, tuple) else (v,) for v in (wanted, given, ran))
            assert all(torch.equal(a, b) for a, b in zip(wanted, ran, strict=True))
    inside = torch.randn(64, *shape)
    for got, real in zip(_flat(sim(inside)), _flat(net(inside)), strict=True):
        signal, noise = real.detach().double().var(), (got.detach() - real.detach()).double().square().mean()
        assert noise < 0.01 * signal + 1e-12, f"noise {float(noise):.3g} against {float(signal):.3g}"


def _flat(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    scale=st.floats(1e-6, 1e3), z=st.integers(0, 255), gain=st.floats(1e-4, 1e4), bias=st.floats(-1e3, 1e3),
    observer=st.sampled_from(["minmax", "histogram"]),
)  # fmt: skip
def test_extreme_qparams(scale: float, z: int, gain: float, bias: float, observer: str) -> None:
    """Fixed input qparams, weights and biases of any size: exact, or named as not proved."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3))
    with torch.no_grad():
        net[0].weight.mul_(gain)  # type: ignore[operator, union-attr]
        net[0].bias.add_(bias)  # type: ignore[operator, union-attr]
    recipe = intact8.Recipe(activation={"observer": observer}, inputs={"*": {"fixed": (scale, z)}})
    x = (torch.randint(0, 256, (64, 6)) - z) * np.float32(scale)
    sim, program = quantized(net.eval(), x, recipe)
    report = intact8.verify(program, x, sim=sim)
    assert program.tensors["input.quantize"].scale == float(np.float32(scale))
    assert program.tensors["input.quantize"].zero_point == z
    if not report.uncertified:
        assert report.exact, (report.first, report.by_engine)


def test_dead_and_constant_channels() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    with torch.no_grad():
        net[0].weight[1] = 0  # type: ignore[index, union-attr]
        net[0].bias[1] = -5  # type: ignore[index, union-attr]
        net[2].weight[2] = 1e-33  # type: ignore[index, union-attr]
        net[4].weight[3] = 0  # type: ignore[index, union-attr]
        net[4].bias[3] = 1e-38  # type: ignore[index, union-attr]
    sim, program = quantized(net.eval(), torch.randn(64, 3, 8, 8))
    report = intact8.verify(program, torch.randn(4, 3, 8, 8), sim=sim)
    assert report.exact and not report.uncertified


def test_a_network_whose_values_are_all_zero() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    for p in net.parameters():
        nn.init.zeros_(p)
    sim, program = quantized(net.eval(), torch.zeros(64, 4))
    assert torch.equal(program.run(torch.zeros(2, 4)), torch.zeros(2, 2))
    assert intact8.verify(program, torch.randn(4, 4), sim=sim).exact
