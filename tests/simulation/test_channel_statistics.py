"""Equalization, bias correction and dead channels: what the first samples of calibration tell."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import Tensor, nn

import intact8


def separable(slope: float = 0.1) -> nn.Sequential:
    """A convolution whose channels differ by a factor of 300, then a depthwise one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(slope), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip
    with torch.no_grad():
        factors = torch.logspace(-1.5, 1, 8)
        model[0].weight.mul_(factors.view(-1, 1, 1, 1))
        model[0].bias.mul_(factors)
        model[2].weight.div_(factors.view(-1, 1, 1, 1))
    return model.eval()


def error(recipe: intact8.Recipe, model: nn.Module, x: Tensor) -> float:
    sim = intact8.prepare(model, x[:2], recipe).eval()
    intact8.calibrate(sim, x)
    with torch.no_grad():
        y, z = sim(x), model(x)
    report = intact8.verify(intact8.convert(sim), x[:16], sim=sim)
    assert report.mismatches == 0
    return float((y - z).norm() / z.norm())


def test_equalization_brings_back_the_small_channels() -> None:
    model, x = separable(), torch.randn(64, 3, 12, 12)
    recipe = intact8.recipes.default()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        without = error(dataclasses.replace(recipe, equalize=False), model, x)
        with_it = error(recipe, model, x)
    assert with_it < 0.5 * without


def test_equalization_changes_neither_the_float_function_nor_the_parameters() -> None:
    model, x = separable(), torch.randn(64, 3, 12, 12)
    sim = intact8.prepare(model, x[:2]).eval()
    intact8.calibrate(sim, x)
    assert len(sim.equalized) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(sim.state_dict()[name], value)
    sim.fake_quantize(False)
    with torch.no_grad():
        torch.testing.assert_close(sim(x), model(x), rtol=1e-4, atol=1e-5)


def test_channels_behind_relu6_are_equalized_and_the_float_function_stays() -> None:
    model, x = separable(), torch.randn(64, 3, 12, 12)
    model[1] = nn.ReLU6()
    sim = intact8.prepare(model, x[:2]).eval()
    intact8.calibrate(sim, x)
    (place,) = sim.equalized
    assert sim.tensors[place.factor].min() < 0.2 and sim.tensors[place.factor].max() == 1
    report = intact8.verify(intact8.convert(sim), 3 * x[:16], sim=sim)
    assert report.mismatches == 0
    sim.fake_quantize(False)
    with torch.no_grad():
        assert model[:2](3 * x).max() == 6
        torch.testing.assert_close(sim(3 * x), model(3 * x), rtol=1e-4, atol=1e-5)


def test_bias_correction_lowers_the_mean_error() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(16, 8, 1), nn.Conv2d(8, 8, 1)).eval(), torch.rand(256, 16, 6, 6) + 1
    scheme = {"dtype": "int8", "bits": 4, "symmetric": True, "granularity": "per_channel", "observer": "minmax"}
    means = []
    for correction in (False, True):
        recipe = intact8.Recipe(weight=intact8.Scheme(**scheme), bias_correction=correction)
        sim = intact8.prepare(model, x[:2], recipe).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            intact8.calibrate(sim, x)
        with torch.no_grad():
            means.append(float((sim(x) - model(x)).mean((0, 2, 3)).abs().mean()))
    assert means[1] < 0.3 * means[0]


def test_dead_channels_are_counted_in_a_warning() -> None:
    model, x = separable(), torch.randn(64, 3, 12, 12)
    with torch.no_grad():
        model[4].weight[1:3] = 0.0
    sim = intact8.prepare(model, x[:2]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = intact8.calibrate(sim, x)
    assert sim.constant_channels["4"] == (2, 4)
    assert any("4: 2 of 4" in w for w in summary.warnings)


def test_a_loud_sample_does_not_decide_the_correction_of_biases() -> None:
    """The mean input is that of the usual samples, and the plain mean where none is loud."""
    torch.manual_seed(0)
    x = torch.rand(16, 4)
    loud = torch.cat([x, 100 * torch.rand(1, 4).flip(1)])
    means = []
    for data in (x, loud):
        sim = intact8.prepare(nn.Linear(4, 3), x[:2], intact8.recipes.default())
        sim.collect_statistics([((data,), {})])
        (name,) = [n for node in sim.graph for role, n in node.params.items() if role == "correct.mean"]
        means.append(sim.tensors[name].clone())
    assert torch.allclose(means[0], x.mean(0), rtol=1e-6)
    assert float((means[1] - means[0]).norm() / means[0].norm()) < 0.1
