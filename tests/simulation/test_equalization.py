"""Factors per channel in transformers: exact in float, back where outlier channels took the accuracy, trainable."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.simulation import equalization
from intact8.simulation.simulation import Simulation

BASE = intact8.Recipe(activation=intact8.Scheme(observer="minmax"))


class Block(nn.Module):
    """A transformer's feed-forward block; ``post`` normalizes behind the sum, as BERT does."""

    def __init__(self, post: bool, gamma: float, row: float) -> None:
        super().__init__()
        self.post, self.norm, self.last = post, nn.LayerNorm(16), nn.LayerNorm(16)
        self.f1, self.f2, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.norm.weight[[3, 8]] *= gamma
            self.f1.weight[:, [3, 8]] /= gamma
            self.f2.weight[5] *= row

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        z = self.f2(torch.nn.functional.gelu(self.f1(y)))
        logits: Tensor = self.head(self.last((y if self.post else x) + z))
        return logits


def quantized(model: nn.Module, x: Tensor, **changes: object) -> Simulation:
    sim = intact8.prepare(model, x[:2], dataclasses.replace(BASE, **changes)).eval()  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, x)
    return sim


def block(post: bool, gamma: float = 30.0, row: float = 1.0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Block(post, gamma, row).eval(), torch.randn(64, 6, 16)


def noise(sim: Simulation, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((sim(x) - model(x)).norm() / model(x).norm())


@pytest.mark.parametrize("post", [False, True], ids=["pre_norm", "post_norm"])
def test_outlier_channels_behind_a_layer_norm_no_longer_cost_the_others(post: bool) -> None:
    model, x = block(post)
    without = noise(quantized(model, x), model, x)
    sim = quantized(model, x, smooth=0.5)
    assert noise(sim, model, x) < 0.6 * without
    report = intact8.verify(intact8.convert(sim), x[:8], sim=sim)
    assert report.mismatches == 0 and report.elements > 0


def test_outlier_channels_before_a_float_operation_have_a_scale_each() -> None:
    model, x = block(post=True, gamma=1.0, row=100.0)
    assert noise(quantized(model, x), model, x) < 0.5 * noise(quantized(model, x, equalize=False), model, x)


@pytest.mark.parametrize("post", [False, True], ids=["pre_norm", "post_norm"])
def test_factors_change_neither_the_float_function_nor_the_parameters(post: bool) -> None:
    model, x = block(post)
    sim = quantized(model, x, smooth=0.5)
    assert any(bool((sim.tensors[place.factor] != 1).any()) for place in sim.equalized if place.readers)
    for name, value in model.state_dict().items():
        assert torch.equal(sim.state_dict()[name], value)
    sim.fake_quantize(False)
    with torch.no_grad():
        torch.testing.assert_close(sim(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_layer_norm_that_is_only_quantized_takes_the_factor_itself() -> None:
    model, x = block(post=False)
    sim = quantized(model, x, smooth=0.5)
    assert "div" not in {node.op for node in sim.graph} and "equalize.out" in sim.graph.nodes["norm"].params
    post, x = block(post=True)
    divided = [node.inputs[0] for node in quantized(post, x, smooth=0.5).graph if node.op == "div"]
    assert divided == ["norm"]


def test_training_goes_on_with_factors() -> None:
    model, x = block(post=True)
    recipe = dataclasses.replace(intact8.recipes.qat("learned"), smooth=0.5)
    sim = intact8.prepare(model, x[:2], recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, x)
    sim.train()
    optimizer = torch.optim.SGD(sim.parameters(), 1e-2)
    with torch.no_grad():
        wanted = model(x) + 1.0
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (sim(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    weight = sim.get_submodule("norm").weight
    assert isinstance(weight, Tensor) and weight.grad is not None and bool((weight.grad != 0).any())
    assert losses[-1] < losses[0]
    sim.eval()
    assert intact8.verify(intact8.convert(sim), x[:8], sim=sim).mismatches == 0


def test_fixed_inputs_and_per_tensor_weights_have_no_factors() -> None:
    model, x = block(post=True)
    fixed = quantized(model, x, smooth=0.5, inputs={"0": intact8.Scheme(fixed=(0.05, 128))})
    assert "x.quantize" not in [place.name for place in fixed.equalized]
    weight = intact8.Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax")
    assert "f2" not in [place.name for place in quantized(model, x, weight=weight).equalized]


@pytest.mark.parametrize("smooth", [-0.1, 1.5, "yes", True])
def test_a_strength_without_meaning_is_refused(smooth: object) -> None:
    with pytest.raises(intact8.errors.RecipeError, match="smooth"):
        intact8.Recipe(smooth=smooth)  # type: ignore[arg-type]


def test_few_values_per_channel_leave_room_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row per sample, as a class token: most samples exceed some channel's largest of eight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128)).eval()
    x = torch.randn(256, 64)

    def error() -> float:
        with torch.no_grad():
            return float((quantized(model, x[:8], between_layers="integer")(x[8:]) - model(x[8:])).square().mean())

    roomy = error()
    monkeypatch.setattr(equalization, "ENOUGH", 1)
    monkeypatch.setattr(equalization, "SAMPLES", 1)
    assert roomy < 0.5 * error()


def test_few_images_leave_room_to_grow_however_many_values_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image has a strength of its own in every channel, which four images do not show."""
    torch.manual_seed(0)
    layers = nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16)
    model = nn.Sequential(*layers).eval()
    x = torch.randn(64, 16, 1, 1) * torch.randn(64, 16, 24, 24).abs()

    def error() -> float:
        sim = intact8.prepare(model, x[:1]).eval()
        intact8.calibrate(sim, x[:4])
        assert sim.equalized
        with torch.no_grad():
            return float((sim(x[4:]) - model(x[4:])).square().mean())

    roomy = error()
    monkeypatch.setattr(equalization, "SAMPLES", 1)
    assert roomy < 0.8 * error()


def test_a_class_token_has_room_and_a_map_has_none() -> None:
    place = equalization.Equalized("x", "factor", {"x": 1}, ())
    few, many = (equalization.factors(place, torch.tensor([8.0, 4.0, 1.0]), {}, count) for count in (4, 1024))
    assert few is not None and many is not None
    torch.testing.assert_close(few, torch.tensor([1.0, 1.0, 0.3808]), atol=1e-3, rtol=0)
    torch.testing.assert_close(many, torch.tensor([1.0, 0.5, 0.125]))


def test_room_to_grow_is_that_of_the_channel_that_was_smallest_by_chance() -> None:
    """Of 64 channels of normal values the one whose largest of four is smallest grows most."""
    values = torch.randn(1000, 4, 64, generator=torch.Generator().manual_seed(0)).abs()
    smallest = values.amax(1).amin(1).median()
    assert 0.85 < equalization.headroom(4, 32, 64) * float(smallest) / 2.86 < 1.1, "2.86: the same of 1,024"


def test_a_channel_that_no_weight_reads_leaves_the_others_their_ratios() -> None:
    model, x = block(post=False)
    found = []
    for _ in range(2):
        sim = quantized(model, x, smooth=0.5)
        (place,) = (p for p in sim.equalized if p.readers == (sim.graph.nodes["f1"],))
        others = sim.tensors[place.factor][1:]
        found.append(others / others.max())
        with torch.no_grad():
            model.get_parameter("f1.weight")[:, 0] = 0
    torch.testing.assert_close(*found, rtol=1e-3, atol=0)
    assert float(found[0].min()) < 0.3


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_only_ratios_of_weights_count(size: float) -> None:
    """Weights that are small throughout are no reason to share less of the ranges with them."""
    model, x = block(post=False)
    found = []
    for factor in (1.0, size):
        with torch.no_grad():
            model.get_parameter("f1.weight").mul_(factor)
        sim = quantized(model, x, smooth=0.5)
        (place,) = (p for p in sim.equalized if p.readers == (sim.graph.nodes["f1"],))
        found.append(sim.tensors[place.factor])
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)
    assert float(found[0].min()) < 0.1
