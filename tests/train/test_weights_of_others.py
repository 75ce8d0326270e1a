"""Weights of layers that a model computes from other parameters: trained, loaded and shipped as what they are then."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import intact8
from intact8.diagnose.executors import unquantized
from intact8.errors import CaptureWarning


class Looking(nn.Module):
    """Attention whose queries are not its keys, so that torch divides the weight of all projections in two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.attention(self.norm(x), x, x, need_weights=False)[0].mean(1))
        return y


class Standardized(nn.Conv1d):
    """A convolution whose weights have mean 0 and deviation 1 (weight standardization)."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean((1, 2), keepdim=True)
        return F.conv1d(x, w / (w.std((1, 2), keepdim=True) + 1e-5), self.bias)


class Adapted(nn.Module):
    """A layer with an adapter of rank 2 (LoRA), which is added to its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        self.down, self.up = nn.Parameter(torch.randn(2, 16) / 4), nn.Parameter(torch.randn(8, 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.relu(F.linear(x, self.layer.weight + self.up @ self.down, self.layer.bias)).mean(1))
        return y


class Recurrent(nn.Module):
    """A recurrent layer whose weights have lengths of their own (weight_norm)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(16, 8, batch_first=True), nn.Linear(8, 3)
        parametrizations.weight_norm(self.layer, "weight_hh_l0")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x)[0][:, -1])
        return y


def _around(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(112, 3))


def _pruned() -> nn.Module:
    model = _around(nn.Conv1d(5, 8, 3))
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[index]
    model(torch.zeros(1, 5, 16))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": Looking,
    "weight_norm": lambda: _around(parametrizations.weight_norm(nn.Conv1d(5, 8, 3))),
    "spectral_norm": lambda: _around(parametrizations.spectral_norm(nn.Conv1d(5, 8, 3))),
    "pruned": _pruned,
    "standardized": lambda: _around(Standardized(5, 8, 3)),
    "adapted": Adapted,
    "recurrent": Recurrent,
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_computed_anew_of_what_is_trained(name: str) -> None:
    torch.manual_seed(0)
    model, x, labels = MODELS[name]().eval(), torch.randn(64, 5, 16), torch.randint(3, (64,))
    sim = intact8.prepare(model, x[:4], intact8.recipes.qat())
    intact8.calibrate(sim, x)
    with unquantized(sim):
        for network in (sim, model):
            F.cross_entropy(network(x), labels).backward()
    own = dict(model.named_parameters())
    for parameter, value in sim.named_parameters():
        if parameter in own:
            torch.testing.assert_close(value.grad, own[parameter].grad, atol=1e-5, rtol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        sim.train()
    before = {parameter: value.detach().clone() for parameter, value in sim.named_parameters()}
    optimizer = torch.optim.SGD(sim.parameters(), 0.1)
    optimizer.zero_grad()
    F.cross_entropy(sim(x), labels).backward()
    optimizer.step()
    assert all(not torch.equal(value, before[parameter]) for parameter, value in sim.named_parameters())
    with torch.no_grad():
        y = sim.eval()(x)
    program = intact8.convert(sim)
    assert torch.equal(program.run(x), y) and intact8.verify(program, x).mismatches == 0
    other = intact8.prepare(MODELS[name]().eval(), x[:4], intact8.recipes.qat())
    other.load_state_dict(sim.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(x), y)


def test_rounding_of_weights_that_are_computed_is_chosen() -> None:
    torch.manual_seed(0)
    model, x = MODELS["weight_norm"]().eval(), torch.randn(128, 5, 16)
    plain = intact8.quantize(model, x, intact8.recipes.w4a8())
    program = intact8.quantize(model, x, intact8.recipes.reconstruct(bits=4))
    with torch.no_grad():
        errors = [float((made.run(x) - model(x)).square().mean()) for made in (plain, program)]
    assert errors[1] < errors[0] and intact8.verify(program, x).mismatches == 0
