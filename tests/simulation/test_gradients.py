"""Where a model does something to gradients, which a simulation does not follow, that is said before it is trained."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.errors import CaptureWarning


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return -dy


class Two(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.between, self.body, self.head = between, nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.between == "no_grad":
            with torch.no_grad():
                y = self.body(x).relu()
        else:
            y = self.body(x).relu()
        if self.between == "detach":
            y = y.detach()
        if self.between == "straight through":
            y = y + (y.round() - y).detach()
        if self.between == "reversed":
            y = Reversed.apply(y)  # type: ignore[no-untyped-call]
        out: Tensor = self.head(y)
        return out


def warned(model: nn.Module, x: Tensor, recipe: intact8.Recipe) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        intact8.prepare(model, x, recipe)
    return [str(w.message) for w in caught if issubclass(w.category, CaptureWarning)]


@pytest.mark.parametrize("between", ["no_grad", "detach", "straight through", "reversed"])
def test_other_gradients_are_named(between: str) -> None:
    torch.manual_seed(0)
    model, x = Two(between).eval(), torch.randn(4, 8)
    (message,) = warned(model, x, intact8.recipes.qat())
    assert message.startswith("gradients of body.weight, body.bias are not the model's in the simulation")
    assert all(p.grad is None for p in model.parameters())
    assert warned(model, x, intact8.recipes.default()) == []
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
    assert warned(model, x, intact8.recipes.qat()) == []


def test_rows_of_padding_are_named() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)).eval()
    (message,) = warned(model, torch.tensor([[0, 1, 0, 0], [0, 0, 2, 3]]), intact8.recipes.qat())
    assert "gradients of 0.weight are not" in message and "padding_idx" in message


def test_what_cannot_be_copied_or_differentiated_is_prepared() -> None:
    locked, x = Two("no_grad").eval(), torch.randn(4, 8)
    locked.lock = threading.Lock()  # type: ignore[assignment]
    assert warned(locked, x, intact8.recipes.qat()) == []
    norm_alone = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4, bias=False)).eval()
    assert warned(norm_alone, x, intact8.recipes.qat()) == []


def test_what_is_random_in_training_and_no_layer_of_its_own_is_named() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.RReLU())
    (message,) = warned(model, torch.randn(2, 5, 8), intact8.recipes.qat())
    assert message.startswith("training a simulation leaves out") and "RReLU: 0.self_attn, 1. Reason" in message


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed", "fixed"])
def test_the_same_gradients_are_silent(scales: str) -> None:
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU6(), nn.Flatten(), nn.Linear(216, 4))
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    parametrized = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), nn.GELU())
    for model, shape in ((convolutions, (2, 3, 8, 8)), (attention, (2, 5, 8)), (parametrized, (3, 8))):
        assert warned(model.train(), torch.randn(shape), intact8.recipes.qat(scales)) == []
        assert model.training
