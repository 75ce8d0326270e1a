"""Ranges by the error of the outputs: what they leave out, what they keep, the same integers again."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme
from intact8.calibration.output_error import OutputObserver
from intact8.errors import StateError

RECIPE = Recipe(activation=Scheme(observer="output"), between_layers="integer")


class Unread(nn.Module):
    """The second layer hardly reads the large values of the first: to clip them costs little."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(24, 5)
        with torch.no_grad():
            self.a.weight[:4] *= 30
            self.b.weight[:, :4] *= 1e-4

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(self.a(x)).relu())
        return y


def simulated(model: nn.Module, x: Tensor, recipe: Recipe = RECIPE) -> intact8.simulation.simulation.Simulation:
    sim = intact8.prepare(model, x[:2], recipe).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, x.split(8))
    return sim


def error(sim: nn.Module, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((sim(x) - model(x)).square().mean())


def test_what_outputs_do_not_show_is_clipped() -> None:
    model = Unread().eval()
    x, unseen = torch.randn(192, 16).split(96)
    sim, plain = simulated(model, x), simulated(model, x, replace(RECIPE, activation=Scheme(observer="mse")))
    assert error(sim, model, unseen) < 0.2 * error(plain, model, unseen)
    assert intact8.verify(intact8.convert(sim), x[:8], sim=sim).mismatches == 0


def test_the_same_data_give_the_same_integers_and_states_keep_them() -> None:
    model, x = Unread().eval(), torch.randn(64, 16)
    first, second = simulated(model, x), simulated(model, x)
    assert torch.equal(first(x), second(x))
    loaded = intact8.prepare(model, x[:2], RECIPE)
    loaded.load_state_dict(first.state_dict())
    assert torch.equal(loaded.eval()(x), first(x))
    assert all(p.grad is None for p in first.parameters())


def test_few_samples_and_no_outputs_with_gradients_leave_the_range_of_mse() -> None:
    model, x = Unread().eval(), torch.randn(4, 16)
    mse = replace(RECIPE, activation=Scheme(observer="mse"))
    assert torch.equal(simulated(model, x)(x), simulated(model, x, mse)(x))

    class Chosen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu().argmax(1)

    sim = simulated(Chosen(), torch.randn(64, 16))
    assert all(p.observer.chosen is None for p in sim.points.values() if isinstance(p.observer, OutputObserver))


def test_an_output_that_is_zero_everywhere_or_has_huge_gradients_leaves_the_range_of_mse() -> None:
    """Transformers of torchvision begin with a last layer of zeros."""
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    for scale in (0.0, 1e25):
        model = Unread().eval()
        with torch.no_grad():
            model.b.weight.mul_(1e-12)
            model.c.weight.mul_(scale)
            model.c.bias.zero_()
        assert all(
            p.observer.chosen is None
            for p in simulated(model, x).points.values()
            if isinstance(p.observer, OutputObserver)
        )


def test_new_observations_forget_what_was_chosen() -> None:
    observer = OutputObserver()
    observer.observe(torch.arange(256.0))
    observer.chosen = (0.0, 1.0)
    observer.observe(torch.arange(256.0))
    assert observer.chosen is None


def test_nothing_to_reconstruct_is_refused() -> None:
    sim = simulated(Unread().eval(), torch.randn(16, 16), Recipe())
    with pytest.raises(StateError, match="nothing to reconstruct"):
        intact8.reconstruct(sim)


def test_a_constant_has_a_range_too() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 16), nn.Linear(17, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(torch.cat([torch.ones_like(x[:, :1]), self.a(x).relu()], -1))
            return y

    torch.manual_seed(0)
    model, x = Joined().eval(), torch.randn(64, 6)
    program = intact8.quantize(model, x, RECIPE)
    expected = model(x).detach()
    assert float((program.run(x) - expected).norm() / expected.norm()) < 0.05
