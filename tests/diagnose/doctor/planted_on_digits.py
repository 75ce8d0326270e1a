"""Faults planted on networks that the doctor's rules were not written on: trained here on handwritten digits.

An MLP, a residual network with batch norm, a vision transformer and a network with concatenations. Most of these faults
spoil the float network itself, which no recipe repairs.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from sklearn.datasets import load_digits
from tests.diagnose.doctor.planted import Planted, calibrated, override, ranged
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.diagnose.doctor import Finding

TRAINED, SHOWN = 1000, 128
"""Samples to train on, and to calibrate on; the rest is representative data."""


class Mlp(nn.Sequential):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))


class Block(nn.Module):
    """Two convolutions with batch norm, and what comes in added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()
        return y


class Residual(nn.Module):
    """A stem, three blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.blocks, self.fc = nn.Sequential(Block(24), Block(24), Block(24)), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.blocks(self.stem(x)).mean((2, 3)))
        return y


class Transformer(nn.Module):
    """Sixteen patches of 2×2 pixels, two encoder layers with dropout, the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 32, 2, 2)
        self.position = nn.Parameter(torch.randn(1, 16, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))
        return y


class Concatenating(nn.Module):
    """Layers that read all that came before them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(32, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y: Tensor = self.fc(self.third(torch.cat([x, self.second(x)], 1)).flatten(1))
        return y


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) with mean 0 and standard deviation 1, and labels, shuffled."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    return ((x - x.mean()) / x.std())[order], y[order]


@functools.cache
def trained(kind: type[nn.Module]) -> nn.Module:
    """A network of that class, trained, in evaluation mode. Copy it before anything is changed."""
    torch.manual_seed(0)
    net = kind()
    train(net, torch.optim.Adam(net.parameters(), 3e-3), 8)
    return net.eval()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Train on the first TRAINED digits."""
    x, y = digits()
    for _ in range(epochs):
        for index in torch.randperm(TRAINED).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()


def case(net: nn.Module, place: str, cause: str, **rest: Any) -> Planted:
    """A patient on the digits that nothing was trained on."""
    x, y = digits()
    rest.setdefault("calibration", x[:SHOWN])
    return Planted(net, x[TRAINED:], y[TRAINED:], place=place, causes=(cause,), **rest)


Plant = Callable[[], Planted]
PLANTS: dict[str, Plant] = {}


def written(kind: type[nn.Module], tensor: str, place: str, cause: str, change: Callable[[Tensor], object]) -> Plant:
    """A fault that is written into one tensor of a trained network."""

    def make() -> Planted:
        net = copy.deepcopy(trained(kind))
        with torch.no_grad():
            change(net.state_dict()[tensor])
        return case(net, place, cause)

    return make


def set_to(index: Any, value: float) -> Callable[[Tensor], object]:
    """Write a value at an index."""
    return lambda tensor: tensor.__setitem__(index, value)


def times(index: Any, factor: float) -> Callable[[Tensor], object]:
    """Multiply what is at an index."""
    return lambda tensor: tensor[index].mul_(factor)


def silenced(kind: type[nn.Module], norm: str, place: str, count: int) -> Plant:
    """Channels of a batch norm are constant, 0 behind its ReLU."""

    def make() -> Planted:
        net = copy.deepcopy(trained(kind))
        module = net.get_submodule(norm)
        with torch.no_grad():
            module.weight[:count], module.bias[:count] = 0.0, -1.0
        return case(net, place, "dead_channels")

    return make


def in_training(kind: type[nn.Module]) -> Plant:
    """Nobody called eval()."""
    return lambda: case(copy.deepcopy(trained(kind)).train(), "network", "training_mode")


def retrained(kind: type[nn.Module], rate: float) -> Plant:
    """Trained with a rate that is far too large."""

    def make() -> Planted:
        torch.manual_seed(1)
        net = copy.deepcopy(trained(kind)).train()
        train(net, torch.optim.SGD(net.parameters(), rate), 2)
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in net.state_dict().values())
        return case(net.eval(), "network", "float_network_wrong" if finite else "not_finite")

    return make


def diverged(kind: type[nn.Module], rate: float) -> Plant:
    """A simulation that was trained with a rate that is far too large."""

    def make() -> Planted:
        planted = case(trained(kind), "network", "diverged_training", recipe=recipes.qat("fixed"))
        torch.manual_seed(1)
        sim = calibrated(planted).train()
        train(sim, torch.optim.SGD(sim.parameters(), rate), 1)
        return replace(planted, sim=sim.eval())

    return make


def calibrated_on(kind: type[nn.Module], cause: str, change: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """Calibration data as they should not be, made of the images and labels to train on."""

    def make() -> Planted:
        x, y = digits()
        return case(trained(kind), "calibration data", cause, calibration=change(x[:TRAINED], y[:TRAINED]))

    return make


def overridden(kind: type[nn.Module], place: str, cause: str, **changes: Any) -> Plant:
    """An override that asks for too little."""
    return lambda: override(case(trained(kind), place, cause), place, **changes)


def clipped(kind: type[nn.Module], place: str, share: float) -> Plant:
    """A range fixed to a share of what it should be."""

    def make() -> Planted:
        planted = case(trained(kind), place, "clipped_range")
        scale, zero = ranged(planted, place)
        return override(planted, place, activation={"fixed": (scale * share, zero)})

    return make


def _permuted() -> Planted:
    net = copy.deepcopy(trained(Mlp))
    order = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    with torch.no_grad():
        net[5].weight.copy_(net[5].weight[order])
        net[5].bias.copy_(net[5].bias[order])
    return case(net, "network", "float_network_wrong")


def _new_head() -> Planted:
    net = copy.deepcopy(trained(Transformer))
    torch.manual_seed(2)
    net.head.reset_parameters()
    return case(net, "head", "wrong_weights")


def _loud(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:127], x[127:128] * 40])


FC2 = "encoder.layers.1.linear1"
PLANTS |= {
    "mlp_exploded_weight": written(Mlp, "3.weight", "3", "exploded_weight", set_to((5, 7), 300.0)),
    "mlp_dead_channels": written(Mlp, "1.bias", "1", "dead_channels", set_to(slice(0, 60), -500.0)),
    "mlp_nan": written(Mlp, "5.weight", "5", "not_finite", set_to((0, 0), math.nan)),
    "mlp_permuted_classes": _permuted,
    "mlp_large_learning_rate": retrained(Mlp, 20.0),
    "mlp_raw_calibration": calibrated_on(Mlp, "unlike_data", lambda x, y: (x[:128] + 0.8) * 16),
    "mlp_few_bits": overridden(Mlp, "3", "few_bits", weight={"bits": 2}),
    "resnet_training_mode": in_training(Residual),
    "resnet_exploded_channel": written(
        Residual, "blocks.1.bn1.weight", "blocks.1.conv1", "exploded_channel", times(3, 300.0)
    ),
    "resnet_stale_batch_norm": written(
        Residual, "blocks.1.bn1.running_var", "blocks.1.conv1", "stale_batch_norm", times(slice(None), 25.0)
    ),
    "resnet_dead_channels": silenced(Residual, "blocks.2.bn1", "blocks.2.conv1", 16),
    "resnet_exploded_weight": written(
        Residual, "blocks.0.conv2.weight", "blocks.0.conv2", "exploded_weight", set_to((2, 1, 1, 1), 100.0)
    ),
    "resnet_infinite_variance": written(
        Residual, "blocks.2.bn2.running_var", "blocks.2.bn2", "not_finite", set_to(5, math.inf)
    ),
    "resnet_one_class": calibrated_on(Residual, "one_class", lambda x, y: x[y == 1][:90]),
    "resnet_clipped": clipped(Residual, "blocks.1.conv1", 0.1),
    "resnet_diverged_training": diverged(Residual, 30.0),
    "resnet_large_learning_rate": retrained(Residual, 50.0),
    "transformer_training_mode": in_training(Transformer),
    "transformer_exploded_weight": written(Transformer, f"{FC2}.weight", FC2, "exploded_weight", set_to((9, 9), 200.0)),
    "transformer_new_head": _new_head,
    "transformer_nan": written(
        Transformer, "encoder.layers.0.norm1.weight", "encoder.layers.0.norm1", "not_finite", set_to(3, math.nan)
    ),
    "transformer_few_bits": overridden(Transformer, FC2, "few_bits", weight={"bits": 2}),
    "transformer_outlier_image": calibrated_on(Transformer, "outlier_sample", _loud),
    "transformer_diverged_training": diverged(Transformer, 5.0),
    "concatenating_exploded_channel": written(
        Concatenating, "second.1.weight", "second.0", "exploded_channel", times(7, 500.0)
    ),
    "concatenating_dead_channels": silenced(Concatenating, "third.1", "third.0", 10),
    "concatenating_too_few": calibrated_on(Concatenating, "too_few", lambda x, y: x[:4]),
    "concatenating_training_mode": in_training(Concatenating),
    "concatenating_stale_batch_norm": written(
        Concatenating, "third.1.running_mean", "third.0", "stale_batch_norm", lambda t: t.add_(5.0)
    ),
}


def examined(planted: Planted, remedies: bool = False) -> intact8.DoctorReport:
    """The doctor's report about a patient."""
    xs = planted.x if isinstance(planted.x, tuple) else (planted.x,)
    known = xs if planted.y is None else (*xs, planted.y)
    data = list(zip(*(t.split(100) for t in known), strict=True))
    given = {name: getattr(planted, name) for name in ("calibration", "recipe", "sim", "metric")}
    return intact8.doctor(planted.model, data, remedies=remedies, seconds=0, **given)


def first_finding(make: Callable[[], Planted]) -> Finding:
    """What the doctor says first about a fault; warnings of the set-up are not its answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return examined(make()).findings[0]
