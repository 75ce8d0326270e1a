"""Faults by kind of accident: files loaded wrongly, data prepared wrongly, settings that ask for too little.

They were planted before the doctor was asked about any of them, on networks of two further kinds and on those of
``planted_on_digits``: at first it was right in 16 of 26. Some have more than one right answer: every pair of place and
cause that leads a person to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted, changing
from tests.diagnose.doctor.planted_on_digits import (
    SHOWN,
    Concatenating,
    Mlp,
    Residual,
    Transformer,
    calibrated_on,
    case,
    overridden,
    times,
    trained,
    written,
)
from torch import Tensor, nn

from intact8 import Recipe, Scheme, recipes

DATA, NETWORK, WRONG = "calibration data", "network", "float_network_wrong"
Answers = set[tuple[str, str]]
PLANTS: dict[str, tuple[Callable[[], Planted], Answers]] = {}


class Plain(nn.Sequential):
    """Two convolutions without norms, pooling by maximum, a classifier."""

    def __init__(self) -> None:
        first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        head = nn.Flatten(), nn.Linear(128, 10)
        super().__init__(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), *head)


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with SiLU, and a gate per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU()
        )
        self.gate = nn.Linear(16, 16)
        self.pointwise = nn.Sequential(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU())
        self.fc = nn.Linear(32 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        x = x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]
        y: Tensor = self.fc(nn.functional.avg_pool2d(self.pointwise(x), 2).flatten(1))
        return y


def plant(name: str, make: Callable[[], Planted], *answers: tuple[str, str]) -> None:
    """Enter a fault with its right answers."""
    PLANTS[name] = make, set(answers)


changed = changing(trained, lambda kind, net, **rest: case(net, "", "", **rest))


def with_recipe(kind: type[nn.Module], recipe: Recipe) -> Callable[[], Planted]:
    """The whole network gets a recipe that asks for too little."""
    return lambda: case(trained(kind), "", "", recipe=recipe)


def _labels_shifted() -> Planted:
    planted = case(trained(Concatenating), "", "")
    return replace(planted, y=(planted.y + 1) % 10)


def _data_not_normalized() -> Planted:
    planted = case(trained(Separable), "", "")
    return replace(planted, x=(planted.x + 0.8) * 16)


def _hot(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., 0, 0] = 60.0
    return x


def _missing(x: Tensor) -> Tensor:
    x = x.clone()
    x[17, 0, 3, 3] = float("nan")
    return x


def _half(net: Any) -> None:
    net[3].weight.mul_(1e6)
    net.half().float()


def _two_weights(net: Any) -> None:
    net[1].weight[5, 30], net[5].weight[1, 1] = 400.0, 400.0


def _lost_classes(net: Any) -> None:
    net[5].weight[2:], net[5].bias[2:] = 0.0, 0.0


def _roll(weight: Tensor) -> None:
    weight.copy_(weight.roll(1, 0))


EXTREME_PERCENTILE = {"observer": "percentile", "observer_args": {"percentile": 90.0}}
THREE_BITS = replace(recipes.default(), inputs={"*": Scheme(bits=3)})
WEIGHTS_OF_THREE_BITS = replace(recipes.default(), weight=recipes.default().weight.changed({"bits": 3}))

plant("plain_sign_flipped", written(Plain, "3.weight", "", "", lambda t: t.neg_()), ("3", "wrong_weights"))
plant(
    "resnet_channels_rolled",
    written(Residual, "blocks.1.conv1.weight", "", "", _roll),
    ("blocks.1.conv1", "wrong_weights"),
)
plant(
    "separable_layer_not_loaded",
    changed(Separable, lambda net: net.pointwise[0].reset_parameters()),
    ("pointwise.0", "wrong_weights"),
)
plant(
    "plain_one_class_bias",
    written(Plain, "7.bias", "", "", lambda t: t[4].add_(1000)),
    (NETWORK, WRONG),
    ("7", "exploded_channel"),
)
plant("mlp_exploded_bias", written(Mlp, "1.bias", "", "", lambda t: t[3].fill_(1e4)), ("1", "exploded_channel"))
plant(
    "transformer_inverted_calibration", calibrated_on(Transformer, "", lambda x, y: -x[:SHOWN]), (DATA, "unlike_data")
)
plant(
    "concatenating_blank_calibration",
    calibrated_on(Concatenating, "", lambda x, y: torch.zeros_like(x[:SHOWN])),
    (DATA, "no_variety"),
)
plant(
    "resnet_noise_calibration",
    calibrated_on(Residual, "", lambda x, y: torch.randn(x[:SHOWN].shape, generator=torch.Generator().manual_seed(0))),
    *((DATA, cause) for cause in ("unlike_data", "unrepresentative", "one_class")),
)
plant("plain_faint_calibration", calibrated_on(Plain, "", lambda x, y: 0.2 * x[:SHOWN]), (DATA, "unlike_data"))
plant(
    "separable_hot_pixel_calibration",
    calibrated_on(Separable, "", lambda x, y: _hot(x[:SHOWN])),
    (DATA, "unlike_data"),
    (DATA, "unrepresentative"),
)
plant(
    "transformer_repeated_calibration",
    calibrated_on(Transformer, "", lambda x, y: x[:4].repeat(32, 1, 1, 1)),
    (DATA, "no_variety"),
)
plant("plain_nan_image", calibrated_on(Plain, "", lambda x, y: _missing(x[:SHOWN])), (DATA, "not_finite"))
plant(
    "resnet_symmetric_activation",
    overridden(Residual, "blocks.0.conv1", "", activation={"symmetric": True}),
    ("blocks.0.conv1", "symmetric_range"),
)
plant(
    "concatenating_percentile",
    overridden(Concatenating, "second.0", "", activation=EXTREME_PERCENTILE),
    ("second.0", "clipped_range"),
)
plant("separable_three_bits", with_recipe(Separable, WEIGHTS_OF_THREE_BITS), (NETWORK, "few_bits"))
plant("transformer_input_of_three_bits", with_recipe(Transformer, THREE_BITS), ("x", "few_bits"), ("input", "few_bits"))
plant(
    "transformer_exploded_norm",
    written(Transformer, "encoder.layers.1.norm2.weight", "", "", times(3, 300.0)),
    ("encoder.layers.1.norm2", "exploded_channel"),
)
plant(
    "transformer_exploded_projection",
    written(Transformer, "encoder.layers.1.self_attn.out_proj.weight", "", "", times(slice(None), 100.0)),
    (NETWORK, WRONG),
    ("encoder.layers.1.self_attn.linear_1", "exploded_weight"),
    ("encoder.layers.1.self_attn.linear_1", "exploded_channel"),
)
plant(
    "resnet_variance_zero",
    written(Residual, "blocks.0.bn2.running_var", "", "", lambda t: t.zero_()),
    ("blocks.0.conv2", "stale_batch_norm"),
)
plant("mlp_lost_classes", changed(Mlp, _lost_classes), (NETWORK, WRONG), ("5", "dead_channels"))
plant("mlp_half_precision", changed(Mlp, _half), ("3", "not_finite"))
plant("mlp_two_exploded_weights", changed(Mlp, _two_weights), ("1", "exploded_weight"))
plant("resnet_one_block_in_training", changed(Residual, lambda net: net.blocks[1].train()), (NETWORK, "training_mode"))
plant("concatenating_labels_shifted", _labels_shifted, (NETWORK, WRONG))
plant("separable_data_not_normalized", _data_not_normalized, (DATA, "unlike_data"), (NETWORK, WRONG))
plant(
    "separable_gate_stuck",
    written(Separable, "gate.bias", "", "", lambda t: t.fill_(-40.0)),
    ("gate", "dead_channels"),
)
