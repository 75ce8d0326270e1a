"""What a GPU would refuse is refused here: every tensor of a simulation lies on the device of its model."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pretend_device import pretend_device, real_device
from tests.simulation.test_cuda import Net
from torch import Tensor, nn

import intact8
import intact8.simulation.prepare
import intact8.train
from intact8.capture import Captured, capture
from intact8.train import fused


class Encoder(nn.Module):
    """Attention, layer norm, embedding and a mask of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify tokens (N, T)."""
        y: Tensor = self.head(self.layer(self.embedding(tokens)).mean(1))
        return y


class Recurrent(nn.Module):
    """An LSTM in both directions and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last step's state."""
        y: Tensor = self.gru(self.lstm(x)[0])[0][:, -1]
        return y


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here: test_cuda.py uses it")


@pytest.fixture(autouse=True)
def no_fused_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are computed by torch, as on a GPU: torch switches the pretence of names off in a backward pass."""
    monkeypatch.setattr(fused, "_library", None)


prepare = sys.modules["intact8.simulation.prepare"]


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 12, 12)


def tokens(n: int) -> Tensor:
    return torch.randint(0, 20, (n, 5))


def sequences(n: int) -> Tensor:
    return torch.randn(n, 5, 6)


QUICK = [
    (Net, images, "learned"),
    (Encoder, tokens, "integer"),
    (Recurrent, sequences, "learned"),
]
LONG = [
    *(
        (Net, images, recipe)
        for recipe in ("accurate", "default", "distill", "fast", "weight_only", "lsq+", "observed")
    ),
    *((Encoder, tokens, recipe) for recipe in ("default", "dynamic", "learned")),
    (Recurrent, sequences, "default"),
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]


def recipe_of(name: str) -> intact8.Recipe:
    if name in ("learned", "lsq+", "pact", "observed"):
        return intact8.recipes.qat(name)
    if name == "distill":
        return intact8.recipes.reconstruct(method=name, iterations=5)
    found: intact8.Recipe = getattr(intact8.recipes, name)()
    return found


def captured(*args: Any, **kwargs: Any) -> Captured:
    with real_device():
        return capture(*args, **kwargs)


@pytest.mark.parametrize("kind, data, recipe", CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_model_on_another_device_goes_the_whole_way(
    kind: type[nn.Module], data: Callable[[int], Tensor], recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "capture", captured)
    torch.manual_seed(0)
    model = kind().eval()
    with pretend_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sim = intact8.prepare(copy.deepcopy(model).cuda(), data(2).cuda(), recipe_of(recipe)).eval()
        intact8.calibrate(sim, data(16))
        if recipe in ("learned", "lsq+", "observed"):
            optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=1e-4))
            for _ in range(2):
                optimizer.zero_grad()
                sim.train()(data(4).cuda()).square().mean().backward()
                optimizer.step()
            sim.eval()
        with torch.no_grad():
            there = sim(data(8).cuda())
        assert there.is_cuda and there.isfinite().all()
        assert intact8.convert(sim).ops


def test_a_training_step_reads_no_number_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every such look waits for the GPU; a step does it once, for the scales of all layers together."""
    looks: list[Tensor] = []
    for name in ("item", "__int__", "__float__", "__bool__"):
        read = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda t, read=read: (looks.append(t) if t.is_cuda else None, read(t))[1])
    sim = intact8.prepare(Net().eval(), images(2), intact8.recipes.qat("learned")).eval()
    with pretend_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sim = sim.cuda()
        intact8.calibrate(sim, images(16))
        optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=1e-4))
        sim.train()
        for _ in range(2):
            looks.clear()
            optimizer.zero_grad()
            sim(images(4).cuda()).square().mean().backward()
            optimizer.step()
    assert not looks
