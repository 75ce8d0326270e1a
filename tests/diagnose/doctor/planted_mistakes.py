"""Faults of kinds that were not tried before, planted before the doctor was asked about any of them.

Recurrent layers, group norm, PReLU and hard swish; modules wired or configured wrongly with the right weights in them;
data prepared wrongly in part; simulations whose numbers belong to other weights. Some have more than one right answer:
every pair of place and cause that leads a person to it. At first it was right in 12 of the first 22; after it had been
mended for those, in 11 of the 12 that were planted then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted, calibrated, override, ranged
from tests.diagnose.doctor.planted_accidents import (
    DATA,
    NETWORK,
    WRONG,
    Answers,
    Plain,
    Separable,
    changed,
    with_recipe,
)
from tests.diagnose.doctor.planted_on_digits import (
    SHOWN,
    Concatenating,
    Mlp,
    Residual,
    Transformer,
    calibrated_on,
    case,
    overridden,
    set_to,
    times,
    trained,
    written,
)
from torch import Tensor, nn

from intact8 import Recipe, Scheme, recipes

PLANTS: dict[str, tuple[Callable[[], Planted], Answers]] = {}


class Recurrent(nn.Module):
    """An LSTM that reads an image row by row, and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.lstm(x[:, 0])[0][:, -1])
        return y


class Grouped(nn.Module):
    """Convolutions with group norm, PReLU and hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1, self.act1 = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.PReLU(16)
        self.second, self.norm2, self.act2 = nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.Hardswish()
        self.fc = nn.Linear(32 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.first(x)))
        y: Tensor = self.fc(self.act2(self.norm2(self.second(x))).flatten(1))
        return y


class WithoutSkips(Residual):
    """The residual network, whose second block forgets to add what comes in."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        block = self.blocks[1]
        x = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu())).relu()
        y: Tensor = self.fc(self.blocks[2](x).mean((2, 3)))
        return y


def plant(name: str, make: Callable[[], Planted], *answers: tuple[str, str]) -> None:
    """Enter a fault with its right answers."""
    PLANTS[name] = make, set(answers)


def _without_skip() -> Planted:
    net = WithoutSkips()
    net.load_state_dict(trained(Residual).state_dict())
    return case(net.eval(), "", "")


def _blocks_swapped(net: Any) -> None:
    first, last = copy.deepcopy(net.blocks[0].state_dict()), copy.deepcopy(net.blocks[2].state_dict())
    net.blocks[0].load_state_dict(last)
    net.blocks[2].load_state_dict(first)


def _function_replaced(net: Any) -> None:
    net.stem[2] = nn.Tanh()


def _eps(name: str, eps: float) -> Callable[[Any], None]:
    return lambda net: setattr(net.get_submodule(name), "eps", eps)


def _transposed(net: Any) -> None:
    weight = net.encoder.layers[0].self_attn.out_proj.weight
    weight.copy_(weight.T.clone())


def _outlier_behind_norm(net: Any) -> None:
    layer = net.encoder.layers[1]
    layer.norm2.weight[11] *= 80
    layer.norm2.bias[11] *= 80
    layer.linear1.weight[:, 11] /= 80


def _queries(net: Any) -> None:
    net.encoder.layers[1].self_attn.in_proj_weight[:32] *= 60


def _upside_down() -> Planted:
    planted = case(trained(Plain), "", "")
    return replace(planted, x=planted.x.flip(2))


def _noisy(x: Tensor) -> Tensor:
    random = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    return torch.where(random < 0.02, 25.0, torch.where(random > 0.98, -25.0, x))


def _partly_raw(x: Tensor) -> Tensor:
    return torch.cat([x[:64], (x[64:SHOWN] + 0.8) * 16])


def _sum_clipped() -> Planted:
    planted = case(trained(Residual), "", "")
    name = next(name for name, point in calibrated(planted).points.items() if name.startswith("blocks.1.add"))
    scale, zero = ranged(planted, name)
    return override(planted, name, activation={"fixed": (scale / 12, zero)})


def _other_weights() -> Planted:
    """A simulation gets the weights of a further training, but keeps its ranges."""
    planted = case(trained(Plain), "", "", recipe=recipes.qat("fixed"))
    sim = calibrated(planted)
    with torch.no_grad():
        for name, tensor in sim.state_dict().items():
            if name.startswith("3.") and name.endswith(("weight", "bias")):
                tensor.mul_(12)
            if name == "7.weight":
                tensor.div_(12)
    return replace(planted, sim=sim.eval())


def _percentile_everywhere() -> Planted:
    recipe = Recipe(activation=Scheme(observer="percentile", observer_args={"percentile": 70.0}))
    return case(trained(Grouped), "", "", recipe=recipe)


def _inputs_transposed() -> Planted:
    planted = case(trained(Residual), "", "")
    return replace(planted, x=planted.x.transpose(2, 3))


def _labels_swapped() -> Planted:
    planted = case(trained(Mlp), "", "")
    names = torch.tensor([0, 1, 2, 8, 4, 5, 6, 7, 3, 9])
    return replace(planted, y=names[planted.y])


def _scales_swapped() -> Planted:
    planted = case(trained(Plain), "", "")
    sim = calibrated(planted)
    one, other = sim.points["0"], sim.points["7"]
    first, second = (float(one.scale), int(one.zero_point)), (float(other.scale), int(other.zero_point))
    one.set(*second)
    other.set(*first)
    return replace(planted, sim=sim)


def _gates_reordered(net: Any) -> None:
    order = torch.arange(4 * 48).reshape(4, 48)[[0, 2, 1, 3]].reshape(-1)
    for parameter in net.lstm.parameters():
        parameter.copy_(parameter[order].clone())


def _heads_rolled(net: Any) -> None:
    weight = net.encoder.layers[1].self_attn.out_proj.weight
    weight.copy_(weight.roll(8, 1))


plant(
    "recurrent_exploded_weight",
    written(Recurrent, "lstm.weight_hh_l0", "", "", set_to((100, 7), 500.0)),
    ("lstm", "exploded_weight"),
    ("lstm", "exploded_channel"),
)
plant(
    "recurrent_forgets",
    written(Recurrent, "lstm.bias_ih_l0", "", "", set_to(slice(48, 96), -40.0)),
    ("lstm", "exploded_weight"),
)
plant("recurrent_two_bits", overridden(Recurrent, "lstm", "", weight={"bits": 2}), ("lstm", "few_bits"))
plant("grouped_eps", changed(Grouped, _eps("norm1", 100.0)), (NETWORK, WRONG), ("norm1", "wrong_setting"))
plant(
    "grouped_exploded_slope",
    written(Grouped, "act1.weight", "", "", set_to(6, -400.0)),
    ("act1", "exploded_channel"),
    ("act1", "exploded_weight"),
    ("norm1", "exploded_channel"),
)
plant(
    "grouped_silenced",
    written(Grouped, "norm2.weight", "", "", set_to(slice(0, 24), 0.0)),
    ("norm2", "dead_channels"),
    ("second", "dead_channels"),
)
plant(
    "grouped_percentile",
    _percentile_everywhere,
    *((n, "clipped_range") for n in ("first", "norm1", "act1", "fc", "x", NETWORK)),
)
plant("resnet_eps", changed(Residual, _eps("blocks.1.bn1", 30.0)), ("blocks.1.conv1", "wrong_setting"))
plant(
    "resnet_skip_forgotten",
    _without_skip,
    ("blocks.1.conv2", "wrong_setting"),
    (NETWORK, WRONG),
    ("blocks.2.conv1", "stale_batch_norm"),
)
plant("resnet_blocks_swapped", changed(Residual, _blocks_swapped), ("blocks.0.conv1", "wrong_weights"))
plant(
    "resnet_vanished_layer",
    written(Residual, "blocks.2.conv2.weight", "", "", times(slice(None), 1e-6)),
    ("blocks.2.conv2", "stale_batch_norm"),
    ("blocks.2.conv2", "dead_channels"),
)
plant(
    "resnet_sum_clipped",
    _sum_clipped,
    *((f"blocks.1.{name}", "clipped_range") for name in ("add", "relu", "add_1", "relu_1", "conv2")),
)
plant(
    "separable_function_replaced",
    changed(Separable, _function_replaced),
    (NETWORK, WRONG),
    ("depthwise.0", "stale_batch_norm"),
    ("stem.2", "wrong_setting"),
)
plant(
    "transformer_transposed",
    changed(Transformer, _transposed),
    ("encoder.layers.0.self_attn.linear_1", "wrong_weights"),
)
plant(
    "transformer_position",
    written(Transformer, "position", "", "", times(slice(None), 60.0)),
    ("position", "wrong_scale"),
)
plant(
    "transformer_queries",
    changed(Transformer, _queries),
    (NETWORK, WRONG),
    *(("encoder.layers.1.self_attn.linear", cause) for cause in ("exploded_weight", "exploded_channel")),
    ("encoder.layers.1.self_attn.matmul", "wrong_scale"),
)
plant(
    "transformer_outlier_behind_norm",
    changed(Transformer, _outlier_behind_norm),
    ("encoder.layers.1.norm2", "outlier_channel"),
    ("encoder.layers.1.norm2", "exploded_channel"),
)
plant("plain_upside_down", _upside_down, (NETWORK, WRONG), (DATA, "unlike_data"))
plant(
    "separable_noisy_calibration",
    calibrated_on(Separable, "", lambda x, y: _noisy(x[:SHOWN])),
    (DATA, "unlike_data"),
    (DATA, "unrepresentative"),
    (DATA, "outlier_sample"),
)
plant(
    "concatenating_partly_raw_calibration",
    calibrated_on(Concatenating, "", lambda x, y: _partly_raw(x)),
    (DATA, "unlike_data"),
    (DATA, "outlier_sample"),
)
plant(
    "recurrent_shifted_calibration",
    calibrated_on(Recurrent, "", lambda x, y: x[:SHOWN] + 6.0),
    (DATA, "unlike_data"),
)
plant("plain_simulation_of_other_weights", _other_weights, ("3", "stale_range"), ("3", "clipped_range"))

# The following were planted after the doctor had been mended for those above.

MLP = ("1", "3", "5")
plant("resnet_inputs_transposed", _inputs_transposed, (NETWORK, WRONG), (DATA, "unlike_data"))
plant(
    "grouped_dark_calibration",
    calibrated_on(Grouped, "", lambda x, y: x[:SHOWN].clamp(max=-0.3)),
    (DATA, "unlike_data"),
    (DATA, "no_variety"),
)
plant("separable_two_classes", calibrated_on(Separable, "", lambda x, y: x[y < 2][:SHOWN]), (DATA, "one_class"))
plant(
    "plain_scales_swapped",
    _scales_swapped,
    *((place, cause) for place in ("0", "7") for cause in ("clipped_range", "wide_range", "zero_point")),
)
plant(
    "mlp_activations_of_three_bits",
    with_recipe(Mlp, replace(recipes.default(), activation=Scheme(bits=3))),
    *((place, "few_bits") for place in (*MLP, NETWORK, "x", "input", "reshape", "0")),
)
plant(
    "grouped_layer_of_zeros",
    written(Grouped, "second.weight", "", "", lambda t: t.zero_()),
    (NETWORK, WRONG),
    ("second", "dead_channels"),
    ("second", "wrong_weights"),  # which holds nothing but zeros, as is said
)
plant("recurrent_gates_reordered", changed(Recurrent, _gates_reordered), ("lstm", "wrong_weights"))
plant(
    "transformer_heads_rolled",
    changed(Transformer, _heads_rolled),
    ("encoder.layers.1.self_attn.linear_1", "wrong_weights"),
)
plant(
    "transformer_norm_bias",
    written(Transformer, "encoder.layers.1.norm2.bias", "", "", set_to(5, 60.0)),
    (NETWORK, WRONG),
    *(("encoder.layers.1.norm2", cause) for cause in ("exploded_channel", "outlier_channel")),
)
plant("mlp_labels_swapped", _labels_swapped, (NETWORK, WRONG))
plant(
    "plain_input_percentile",
    with_recipe(
        Plain,
        replace(
            recipes.default(),
            inputs={"*": Scheme(observer="percentile", observer_args={"percentile": 85.0})},
        ),
    ),
    ("x", "clipped_range"),
    ("input", "clipped_range"),
)
plant(
    "recurrent_dynamic_two_bits",
    with_recipe(Recurrent, replace(recipes.dynamic(), weight=recipes.w4a8().weight.changed({"bits": 2}))),
    ("lstm", "few_bits"),
    ("fc", "few_bits"),
)


def _faint_column() -> Planted:
    """One pixel of every row is 400 times as faint, and its weights are as much larger; rows are quantized when run."""
    net = copy.deepcopy(trained(Recurrent))
    with torch.no_grad():
        net.lstm.weight_ih_l0[:, 0] *= 400
    planted = case(net, "", "", recipe=recipes.dynamic())
    faint = torch.ones(8)
    faint[0] = 1 / 400
    return replace(planted, x=planted.x * faint, calibration=planted.calibration * faint)


plant("recurrent_dynamic_imbalance", _faint_column, ("lstm", "input_imbalance"))
