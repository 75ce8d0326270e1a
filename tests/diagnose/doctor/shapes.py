"""Made data and small networks of many kinds, trained on the spot, on which faults are planted."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted, changing, writing
from torch import Tensor, nn
from torch.nn import functional as F

TRAINED, SHOWN, COUNT = 1400, 128, 1900
"""Samples to train on, to calibrate on, and in all; those behind the first are representative."""


def random(seed: int) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


@functools.cache
def shapes() -> dict[str, Tensor]:
    """Coloured shapes on noise: images (COUNT, 3, 16, 16), classes, boxes (left, top, width, height in pixels), masks.

    Images have, by channel, mean 0 and standard deviation 1.
    """
    g = random(1)
    y = torch.randint(0, 6, (COUNT,), generator=g)
    size = torch.randint(3, 6, (COUNT,), generator=g).float()
    cx, cy = (torch.rand(COUNT, generator=g) * 5 + 5.5 for _ in range(2))
    v, u = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    dx, dy = u - cx[:, None, None], v - cy[:, None, None]
    s = size[:, None, None]
    inside = (dx.abs() <= s) & (dy.abs() <= s)
    kinds = [
        dx**2 + dy**2 <= s**2, inside, inside & (dx.abs() <= (dy + s) / 2),
        inside & ((dx.abs() < 1.5) | (dy.abs() < 1.5)), inside & ((v % 4) < 2),
        inside & ((dx.abs() > s - 1.5) | (dy.abs() > s - 1.5)),
    ]  # fmt: skip
    mask = torch.stack(kinds)[y, torch.arange(COUNT)]
    tint = torch.tensor([0.9, 0.55, 0.3]) + 0.15 * torch.randn(COUNT, 3, generator=g)
    ground = torch.tensor([0.2, 0.3, 0.5]) + 0.1 * torch.randn(COUNT, 3, generator=g)
    image = torch.where(mask[:, None], tint[:, :, None, None], ground[:, :, None, None])
    image = (image + 0.12 * torch.randn(image.shape, generator=g)).clamp(0, 1)
    mean, std = image.mean((0, 2, 3)), image.std((0, 2, 3))
    return {
        "raw": image, "mean": mean, "std": std, "x": (image - mean[:, None, None]) / std[:, None, None], "y": y,
        "box": torch.stack([cx - size, cy - size, 2 * size, 2 * size], 1), "mask": mask.long(),
    }  # fmt: skip


@functools.cache
def texts() -> tuple[Tensor, Tensor]:
    """Sentences of 20 words of 120, the common ones first, and which of five subjects they are about."""
    g = random(2)
    y = torch.randint(0, 5, (COUNT,), generator=g)
    common = (torch.rand(COUNT, 20, generator=g) ** 2 * 40).long()
    own = 40 + 16 * y[:, None] + (torch.rand(COUNT, 20, generator=g) ** 1.5 * 16).long()
    return torch.where(torch.rand(COUNT, 20, generator=g) < 0.25, own, common), y


@functools.cache
def series() -> tuple[Tensor, Tensor]:
    """Four measured quantities over 32 steps (COUNT, 32, 4), and the first one 4 steps later (COUNT, 1)."""
    g = random(3)
    t = torch.arange(36.0)
    frequency = 0.15 + 0.35 * torch.rand(COUNT, 1, generator=g)
    phase, size = 6.28 * torch.rand(COUNT, 1, generator=g), 0.5 + torch.rand(COUNT, 1, generator=g)
    wave = size * torch.sin(frequency * t + phase)
    drift = 0.03 * torch.randn(COUNT, 36, generator=g).cumsum(1)
    noise = 0.05 * torch.randn(COUNT, 36, 4, generator=g)
    x = torch.stack([wave + drift, size * torch.cos(frequency * t + phase), drift, wave**2 - 0.5], 2) + noise
    return x[:, :32], (wave + drift)[:, 35:]


@functools.cache
def motions() -> tuple[Tensor, Tensor]:
    """Movements of six channels over 48 steps (COUNT, 6, 48), and which of five they are."""
    g = random(4)
    y = torch.randint(0, 5, (COUNT,), generator=g)
    t = torch.arange(48.0)
    rate = 0.12 * (1 + y[:, None]) + 0.02 * torch.randn(COUNT, 1, generator=g)
    phase = 6.28 * torch.rand(COUNT, 6, 1, generator=g)
    x = torch.sin(rate[:, None] * t + phase) * (0.6 + 0.8 * torch.rand(COUNT, 6, 1, generator=g))
    return x + 0.5 * torch.randn(COUNT, 6, 48, generator=g), y


@functools.cache
def codes() -> tuple[Tensor, Tensor]:
    """Codes (COUNT, 16) and pictures of 12×12 that belong to them, in [-1, 1]."""
    g = random(5)
    z = torch.randn(COUNT, 16, generator=g)
    v, u = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    z0, z1, z2, z3 = (torch.tanh(z[:, i])[:, None, None] for i in range(4))
    picture = torch.sin(3 * (u * z0 + v * z1) + 2 * z2) * torch.exp(-((u - 0.5 * z1) ** 2) * (1 + z3))
    return z, picture[:, None]


Data = Callable[[], tuple[Tensor, Tensor]]
Loss = Callable[[Any, Tensor], Tensor]


@functools.cache
def trained(kind: type[nn.Module]) -> nn.Module:
    """A network of that class, trained, in evaluation mode. Copy it before anything is changed.

    The class says by ``data`` and ``loss`` on what, and may say how many ``epochs`` and with which ``rate``.
    """
    torch.manual_seed(0)
    net: Any = kind()
    rate, epochs = getattr(kind, "rate", 2e-3), getattr(kind, "epochs", 6)
    for share in (1.0, 1.0, 0.2):  # statistics of batch norms settle while the rate is low
        train(net, torch.optim.Adam(net.parameters(), rate * share), max(1, epochs // 3))
    result: nn.Module = net.eval()
    return result


def train(net: Any, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Train on the first TRAINED samples of a network's data."""
    x, y = type(net).data()
    for _ in range(epochs):
        for index in torch.randperm(TRAINED).split(50):
            optimizer.zero_grad()
            type(net).loss(net(x[index]), y[index]).backward()
            optimizer.step()


DATA, NETWORK, WRONG = "calibration data", "network", "float_network_wrong"
Plants = dict[str, tuple[Callable[[], Planted], set[tuple[str, str]]]]
"""A fault's name → what makes it, and its right answers: pairs of a place and a cause."""


def planter(plants: Plants) -> Callable[..., None]:
    """Return what enters a fault with its right answers."""

    def plant(name: str, make: Callable[[], Planted], *answers: tuple[str, str]) -> None:
        plants[name] = make, set(answers)

    return plant


def images() -> tuple[Tensor, Tensor]:
    """Shapes and their classes."""
    return shapes()["x"], shapes()["y"]


def patient(kind: Any, net: nn.Module | None = None, **rest: Any) -> Planted:
    """A network on data that it was not trained on."""
    x, y = kind.data()
    rest.setdefault("calibration", x[:SHOWN])
    net = copy.deepcopy(trained(kind)) if net is None else net
    return Planted(net, rest.pop("x", x[TRAINED:]), rest.pop("y", y[TRAINED:]), place="", causes=(), **rest)


changed = changing(trained, patient)
written = writing(changed)


def shown(kind: Any, change: Callable[[Tensor], Tensor], both: bool = True) -> Callable[[], Planted]:
    """Data as they should not be: all, or only those to calibrate on."""

    def make() -> Planted:
        x, _ = kind.data()
        rest = {"x": change(x[TRAINED:])} if both else {}
        return patient(kind, calibration=change(x[:SHOWN]), **rest)

    return make


def labelled(kind: Any, change: Callable[[Tensor], Tensor]) -> Callable[[], Planted]:
    """Other labels."""
    return lambda: patient(kind, y=change(kind.data()[1][TRAINED:]))


def reset(net: Any, layer: str) -> None:
    """Initialize a layer anew."""
    torch.manual_seed(99)
    net.get_submodule(layer).reset_parameters()


def swap(net: Any, one: str, other: str) -> None:
    """Exchange two tensors."""
    state = net.state_dict()
    kept = state[one].clone()
    state[one].copy_(state[other])
    state[other].copy_(kept)


def classes(scores: Tensor, y: Tensor) -> Tensor:
    """Cross entropy, over dimension 1."""
    return F.cross_entropy(scores, y)


def squares(result: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(result, y)
