"""The strength of smoothing that calibration chooses for every tensor."""

from __future__ import annotations

import pytest
import torch
from tests.simulation.test_equalization import noise, quantized
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.simulation.smoothing import USUAL, Spread, choose_strength


def heavy_tailed(loud: float) -> tuple[nn.Module, Tensor]:
    """Return a linear layer of many channels, and samples of it with rare large values, one channel louder still."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 8)).eval()
    x = torch.randn(64, 32, 1024, generator=torch.Generator().manual_seed(1)) ** 3
    x[..., 3] *= loud
    with torch.no_grad():
        model[0].weight[:, 3] /= max(1.0, loud / 300)
    return model, x


def test_channels_that_are_far_apart_give_the_weights_more() -> None:
    model, x = heavy_tailed(10_000)
    usual = noise(quantized(model, x, smooth=USUAL, between_layers="float"), model, x)
    sim = quantized(model, x, smooth="auto", between_layers="float")
    assert noise(sim, model, x) < 0.7 * usual
    report = intact8.verify(intact8.convert(sim), x[:8], sim=sim)
    assert report.mismatches == 0 and report.elements > 0


def test_ordinary_channels_have_the_usual_strength() -> None:
    model, x = heavy_tailed(1.0)
    usual, sim = (quantized(model, x, smooth=smooth) for smooth in (USUAL, "auto"))
    (before,), (place,) = usual.equalized, sim.equalized
    assert torch.equal(usual.tensors[before.factor], sim.tensors[place.factor])


def test_the_same_is_chosen_in_batches_of_any_size() -> None:
    x = torch.randn(12, 5, 7)
    whole, parts = Spread.of(x, 1), Spread.of(x[:5], 1).with_more(Spread.of(x[5:], 1))
    assert torch.equal(whole.low, parts.low) and torch.equal(whole.high, parts.high) and whole.count == parts.count
    torch.testing.assert_close(whole.squares, parts.squares)
    assert whole.low.shape == (5,) and bool((whole.low <= 0).all())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_samples_without_a_batch_have_channels() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.randn(32, 8)
    program = intact8.quantize(model, [*x], recipes.accurate())
    found = torch.stack([program.run(row) for row in x])
    assert float((found - model(x)).norm() / model(x).norm()) < 0.05


def test_where_nothing_can_be_divided_the_usual_strength_stands() -> None:
    model, x = heavy_tailed(1.0)
    sim = quantized(model, x, smooth=USUAL)
    (place,) = sim.equalized
    spreads = {name: Spread.of(torch.zeros(2, 1024), 1) for name in place.observed}
    assert choose_strength(sim.quantized_graph, place.readers, spreads, lambda _: None) == USUAL


def test_accurate_chooses_it_and_says_so_in_its_file() -> None:
    recipe = recipes.accurate()
    assert (recipe.smooth, recipe.between_layers, recipe.rounds_between_layers) == ("auto", "nearest", "integer")
    assert intact8.Recipe.from_toml(recipe.to_toml()) == recipe
