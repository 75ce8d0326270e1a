"""Forty-six more faults on the networks of planted_blind_third.py, written with their answers before they were tried.

Their author had read the doctor by then, and had mended it for the first set. It was right first in 35 (76 %); one was
planted with an error, four of the other ten cost nothing or have no effect. It was mended for these afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.diagnose.doctor.blind_networks_third import (
    Trained,
    autoencoder,
    branches,
    colour,
    energies,
    experts,
    fit,
    mobile,
    perceptron,
    residual,
    rows,
    segmenter,
    signals,
    tabular,
    vit,
    words,
)
from tests.diagnose.doctor.planted import Planted
from tests.diagnose.doctor.planted_blind_third import patient
from tests.diagnose.doctor.shapes import DATA, NETWORK, WRONG, Plants, planter
from torch import Tensor, nn

from intact8 import Recipe, Scheme

PLANTS: Plants = {}
enter = planter(PLANTS)


def changed(
    name: str, trained: Callable[[], Trained], change: Callable[[Any], object], *answers: tuple[str, str]
) -> None:
    """Enter a network that is changed."""

    def make() -> Planted:
        t = trained()
        model = t.fresh()
        torch.manual_seed(31)
        with torch.no_grad():
            change(model)
        return patient(t, model=model)

    enter(name, make, *answers)


def shown(name: str, trained: Callable[[], Trained], change: Callable[[Tensor], Tensor], *causes: str) -> None:
    """Enter other data to calibrate on."""

    def make() -> Planted:
        t = trained()
        return patient(t, calibration=change(t.inputs[:400].clone()))

    enter(name, make, *((DATA, cause) for cause in causes))


def seen(
    name: str, trained: Callable[[], Trained], change: Callable[[Tensor], Tensor], *answers: tuple[str, str]
) -> None:
    """Enter data prepared otherwise than in training, all of them."""

    def make() -> Planted:
        t = trained()
        return patient(t, calibration=change(t.inputs[:400].clone()), x=change(t.held_inputs.clone()))

    enter(name, make, *answers)


def quantized(name: str, trained: Callable[[], Trained], recipe: Recipe, *answers: tuple[str, str]) -> None:
    """Enter a recipe."""
    enter(name, lambda: patient(trained(), recipe=recipe), *answers)


# Data.
def _erased(x: Tensor) -> Tensor:
    x[:, :, :4] = x.min()
    return x


def _loud(x: Tensor) -> Tensor:
    x[::40] *= 25
    return x


def _sentinel(x: Tensor) -> Tensor:
    x[11, 4] = 9999.0
    return x


shown("cal_half_erased", residual, _erased, "unlike_data")
shown("cal_few", mobile, lambda x: x[:8], "too_few")
shown(
    "cal_heavy_noise",
    branches,
    lambda x: x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)),
    "unlike_data",
)
shown("cal_normalized_twice", colour, lambda x: (x - 0.45) / 0.226, "unlike_data")
shown("cal_missing_value", tabular, _sentinel, "outlier_sample")
shown("cal_amplified_recordings", signals, _loud, "outlier_sample", "unlike_data", "unrepresentative")
shown("cal_blank_images", vit, lambda x: torch.full_like(x, float(x.min())), "no_variety", "unlike_data")
shown("cal_rows_as_columns", rows, lambda x: x.transpose(1, 2), "unlike_data")
shown("cal_one_word", words, lambda x: torch.full_like(x, 3), "no_variety", "unlike_data")
seen("all_blue_first", colour, lambda x: x.flip(1), (NETWORK, WRONG), ("x", WRONG))
seen("all_turned", residual, lambda x: x.transpose(2, 3), (NETWORK, WRONG), ("x", WRONG))
seen("all_negated", mobile, lambda x: -x, (NETWORK, WRONG), ("x", WRONG))
seen("all_in_tenths", perceptron, lambda x: x * 10, (NETWORK, WRONG), ("x", "wrong_scale"))
seen("all_sequences_backwards", rows, lambda x: x.flip(1), (NETWORK, WRONG), ("x", WRONG))


# Weights.
def _few_steps(model: Any) -> None:
    t = branches()
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    with torch.enable_grad():
        fit(model, t.inputs[:64], t.targets[:64], 1)


def _gates(model: Any) -> None:
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        i, f, g, o = getattr(model.lstm, name).chunk(4)
        getattr(model.lstm, name).copy_(torch.cat([i, g, f, o]))


def _relu(model: Any) -> None:
    model.stem_act = nn.ReLU()
    for stage in (model.stage1, model.stage2, model.stage3):
        stage.act1 = stage.act2 = nn.ReLU()


def _same(model: Any) -> None:
    model.block3.conv1.weight.copy_(model.block2.conv2.weight)


changed("conv_bias_lost", branches, lambda m: m.mix.bias.zero_(), ("mix", "wrong_weights"))
changed(
    "gains_not_loaded",
    residual,
    lambda m: (m.block2.norm1.weight.fill_(1), m.block2.norm1.bias.zero_()),
    ("block2.*1", "wrong_weights"),
)
changed("activation_lost", perceptron, lambda m: setattr(m, "relu2", nn.Identity()), ("fc2", "wrong_setting"))
changed("gates_in_another_order", rows, _gates, ("lstm", "wrong_weights"))
changed("hardly_trained", branches, _few_steps, (NETWORK, WRONG))
changed(
    "classes_in_another_order",
    colour,
    lambda m: (
        m.classifier.weight.copy_(m.classifier.weight[[3, 1, 4, 0, 5, 9, 2, 6, 8, 7]]),
        m.classifier.bias.copy_(m.classifier.bias[[3, 1, 4, 0, 5, 9, 2, 6, 8, 7]]),
    ),
    (NETWORK, WRONG),
    ("classifier", "wrong_weights"),
)
changed("layer_copied", residual, _same, ("block3.conv1", "wrong_weights"))
changed("head_negated", signals, lambda m: m.head.weight.neg_(), ("head", "wrong_weights"))
changed(
    "cast_to_integers",
    perceptron,
    lambda m: m.fc3.weight.copy_((m.fc3.weight * 4).round()),
    ("fc3", "wrong_weights"),
    ("fc3", "rounded_weights"),
)
changed(
    "means_lost",
    residual,
    lambda m: m.block2.norm2.running_mean.zero_(),
    ("block2.norm2", "stale_batch_norm"),
    ("block2.conv2", "stale_batch_norm"),
)
changed(
    "an_lstm_weight_exploded", rows, lambda m: m.lstm.weight_hh_l0[70].__setitem__(3, 80.0), ("lstm", "exploded_weight")
)
changed(
    "output_shifted",
    autoencoder,
    lambda m: m.out.bias.add_(0.5),
    ("out", "wrong_weights"),
    ("out", "wrong_scale"),
    (NETWORK, WRONG),
)
changed(
    "filters_ten_times_as_large",
    energies,
    lambda m: (m.filters.weight.mul_(5), m.filters.bias.mul_(5)),
    ("filters", "wrong_scale"),
    ("square", "wrong_scale"),
    ("pool", "wrong_scale"),
)
changed(
    "kernels_of_a_deconvolution_turned",
    segmenter,
    lambda m: m.up.weight.copy_(m.up.weight.flip(2, 3)),
    ("up", "wrong_weights"),
)
changed(
    "large_eps", signals, lambda m: setattr(m.norm3, "eps", 10.0), ("*3", "wrong_setting"), ("*3", "stale_batch_norm")
)
changed("rates_shifted", experts, lambda m: m.rates.weight.mul_(8), ("rates", "wrong_scale"))
changed(
    "layer_norm_not_loaded",
    vit,
    lambda m: (m.layer2.norm1.weight.fill_(1), m.layer2.norm1.bias.zero_()),
    ("layer2.norm1", "wrong_weights"),
)
changed(
    "scores_divided_twice",
    vit,
    lambda m: [setattr(m.get_submodule(f"layer{i}.attention"), "scale", 1 / 8) for i in (1, 2)],
    ("layer1.attention*", "wrong_setting"),
    ("layer*.attention*", "wrong_scale"),
)
changed(
    "positions_one_row_later", vit, lambda m: m.positions.copy_(m.positions.roll(1, 1)), ("positions", "wrong_weights")
)
changed(
    "patches_transposed",
    vit,
    lambda m: m.patches.weight.copy_(m.patches.weight.transpose(2, 3).clone()),
    ("patches", "wrong_weights"),
    (NETWORK, WRONG),
)
changed("relu_in_place_of_relu6", mobile, _relu, ("*", "wrong_setting"))
changed("a_key_row_exploded", vit, lambda m: m.layer2.fc1.weight[5].mul_(200), ("layer2.fc1", "exploded_channel"))
changed(
    "half_a_layer_zero",
    perceptron,
    lambda m: m.fc2.weight[:48].zero_(),
    ("fc2", "dead_channels"),
    ("fc2", "wrong_weights"),
)
changed(
    "weights_of_a_row_nan",
    vit,
    lambda m: m.layer1.norm2.weight.__setitem__(2, float("nan")),
    ("layer1.norm2", "not_finite"),
)
changed(
    "gate_left_open",
    mobile,
    lambda m: setattr(m.stage2, "gate", nn.Identity()),
    ("stage2.*", "wrong_setting"),
    ("stage2.*", "wrong_scale"),
    ("stage2.pointwise", "wrong_weights"),
    ("stage2.pointwise", "stale_batch_norm"),
)

# Recipes.
MINMAX_WEIGHT = {"dtype": "int8", "symmetric": True, "granularity": "per_channel", "observer": "minmax"}
quantized("two_bits_everywhere", signals, Recipe(weight=Scheme(bits=2, **MINMAX_WEIGHT)), (NETWORK, "few_bits"))
quantized(
    "input_clipped_by_percentile",
    signals,
    Recipe(inputs={"*": {"observer": "percentile", "observer_args": {"percentile": 80.0}}}),
    ("x", "clipped_range"),
)
quantized(
    "signed_input_as_unsigned",
    rows,
    Recipe(inputs={"*": Scheme(fixed=(2.0 / 255, 0))}),
    ("x", "clipped_range"),
    ("x", "zero_point"),
)
quantized(
    "range_far_too_wide",
    segmenter,
    Recipe(overrides={"dec.2": {"activation": {"fixed": (0.8, 0)}}}),
    ("dec.*", "wide_range"),
)
quantized(
    "first_layer_of_two_bits", autoencoder, Recipe(overrides={"down1": {"weight": {"bits": 2}}}), ("down1", "few_bits")
)
quantized("five_bit_activations", autoencoder, Recipe(activation=Scheme(bits=4)), (NETWORK, "few_bits"))
quantized("head_left_float", colour, Recipe(overrides={"classifier": None}), ("classifier", "left_float"))
