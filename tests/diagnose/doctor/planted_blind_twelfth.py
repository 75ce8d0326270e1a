"""A twelfth set of planted faults with the right answers, written before anybody asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_twelfth import (
    DEVIATIONS,
    DIGIT_DEVIATION,
    DIGIT_MEAN,
    LOUDNESS_DEVIATION,
    LOUDNESS_MEAN,
    MEANS,
    MOTION_DEVIATION,
    MOTION_MEAN,
    RENT_DEVIATION,
    RENT_MEAN,
    build,
)
from tests.diagnose.doctor.planted_blind_tenth import fixed
from tests.diagnose.doctor.planting import (
    Case,
    FaultWithAnswers,
    anew,
    apart,
    asking,
    calibrating,
    collect,
    exchange,
    norms_of,
    registering,
    train_on,
)
from torch import Tensor, nn

from intact8 import Scheme, recipes

FAULTS: dict[str, FaultWithAnswers] = {}
"""Faults by name."""

fault = registering(FAULTS)

WRONG = "float_network_wrong unlike_data"
CHANNELS = "outlier_channel channel_imbalance input_imbalance"
MINMAX = Scheme(observer="minmax")


def calibration(case: Case) -> list[Tensor]:
    """Give a case calibration data of its own, and return it: it may be changed."""
    if case.calibration is None:
        apart(case)
    assert case.calibration is not None
    return case.calibration


def only(case: Case, rows: Tensor) -> None:
    """Calibrate on some of the samples that are kept for it."""
    case.calibration = [part[rows] for part in calibration(case)]


def widened(norm: Any, channels: list[int], factor: float) -> None:
    """Multiply channels of a norm's results."""
    norm.weight.data[channels] *= factor
    norm.bias.data[channels] *= factor


def train_with(case: Case, rate: float, steps: int, loss: Callable[[Any, Tensor], Tensor]) -> None:
    """Train the network on its data with Adam, and return to evaluation mode."""
    torch.manual_seed(6)
    optimizer = torch.optim.Adam(case.model.parameters(), rate)
    case.model.train()
    for _ in range(steps):
        rows = torch.randint(len(case.data[0]), (32,))
        optimizer.zero_grad()
        loss(case.model(case.data[0][rows]), case.data[-1][rows]).backward()
        optimizer.step()
    case.model.eval()


def given_the_weights_of(sim: Any, model: nn.Module) -> None:
    """Load a network's parameters and running statistics into a simulation, whose scales stay."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    kept = dict(sim.named_parameters()) | dict(sim.named_buffers())
    for name, value in found.items():
        if name in kept and kept[name].shape == value.shape:
            kept[name].data.copy_(value.data)


# --- resnet: digits -------------------------------------------------------------------------------------------------


@fault("resnet", ("fc", "wrong_weights"))
def resnet_head_not_loaded(case: Case) -> None:
    """The checkpoint had a head under another name: the last layer is as initialized."""
    anew(case.module("fc"))


@fault("resnet", ("layer2.0.conv2,layer2.0.bn2,layer2.1.conv1,layer2.1.bn1", "wrong_weights"))
def resnet_convolutions_exchanged(case: Case) -> None:
    """Two convolutions of neighbouring blocks were loaded in each other's place."""
    exchange(case.module("layer2.0.conv2").weight, case.module("layer2.1.conv1").weight)


@fault("resnet", ("layer2.1", "wrong_setting"))
def resnet_no_shortcut(case: Case) -> None:
    """The network was written anew, and a block of the second stage has no shortcut."""
    case.module("layer2.1").residual = False


@fault("resnet", ("conv1,bn1", "stale_batch_norm"))
def resnet_statistics_not_loaded(case: Case) -> None:
    """The running statistics of the first batch norm were not in the checkpoint: means 0, variances 1."""
    case.module("bn1").reset_running_stats()


@fault("resnet", ("", "diverged_training"), ("network", "float_network_wrong"))
def resnet_diverged(case: Case) -> None:
    """The network was trained further at a rate of two, and diverged."""
    train_on(case, 2.0, 25)


@fault("resnet", ("network,x", WRONG))
def resnet_black_on_white(case: Case) -> None:
    """The digits are black on white, and were white on black in training."""
    case.data[0] = (1 - (case.data[0] * DIGIT_DEVIATION + DIGIT_MEAN) - DIGIT_MEAN) / DIGIT_DEVIATION


@fault("resnet", ("calibration data", "no_variety too_few"))
def resnet_one_digit_again_and_again(case: Case) -> None:
    """The loader for calibration returns the same digit 128 times."""
    only(case, torch.full((128,), 5))


@fault("resnet", ("layer1.1.bn1,layer1.1.conv1,layer1.1.conv2,layer1.1.relu", CHANNELS))
def resnet_three_wide_channels(case: Case) -> None:
    """Three channels of a block in the first stage are 80 times as wide, and the weights behind as much smaller."""
    widened(case.module("layer1.1.bn1"), [2, 7, 11], 80)
    case.module("layer1.1.conv2").weight.data[:, [2, 7, 11]] /= 80


@fault("resnet", ("layer2", "few_bits"))
def resnet_three_bits_in_a_stage(case: Case) -> None:
    """The recipe gives the weights of the second stage three bits."""
    case.use(overrides={"layer2": {"weight": {"bits": 3}}})


@fault("resnet", ("", "stale_range float_mismatch"))
def resnet_fine_tuned_after_calibration(case: Case) -> None:
    """The network was trained further after calibration, and its weights loaded into the simulation with old scales."""
    sim = case.simulate()
    train_on(case, 0.03, 60)
    given_the_weights_of(sim, case.model)


# --- inverted: pictures of objects ----------------------------------------------------------------------------------


@fault("inverted", ("network", "training_mode"))
def inverted_left_in_training(case: Case) -> None:
    """The network was left in training mode, and the samples come class by class."""
    order = case.data[-1].argsort()
    case.data = [part[order] for part in case.data]
    case.model.train()


@fault("inverted", ("", "per_tensor_weight"))
def inverted_per_tensor(case: Case) -> None:
    """The recipe gives each layer one scale for all its weights."""
    case.use(weight=Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax"))


@fault("inverted", ("network,image", WRONG))
def inverted_without_deviations(case: Case) -> None:
    """The means were subtracted from the pictures, and the division by the deviations forgotten."""
    case.data[0] = case.data[0] * DEVIATIONS


@fault("inverted", ("features.2.depthwise", "wrong_setting"))
def inverted_activation_forgotten(case: Case) -> None:
    """One depthwise convolution has no activation behind it since the network was written anew."""
    case.module("features.2.depthwise")[2] = nn.Identity()


@fault("inverted", ("features.1.depthwise", "wrong_weights stale_batch_norm"))
def inverted_folded_twice(case: Case) -> None:
    """A batch norm was folded into its convolution at export, and computes a second time."""
    conv, norm = case.module("features.1.depthwise")[0], case.module("features.1.depthwise")[1]
    conv.weight.data *= (norm.weight / (norm.running_var + norm.eps).sqrt()).view(-1, 1, 1, 1).data


@fault("inverted", ("features.3.project", "exploded_channel exploded_weight"))
def inverted_channel_exploded(case: Case) -> None:
    """Training with half precision made one gain of a projection's norm explode."""
    case.module("features.3.project")[1].weight.data[9] *= 70


@fault("inverted", ("calibration data", "unlike_data"))
def inverted_calibrated_on_bytes(case: Case) -> None:
    """The calibration pictures have values from 0 to 255, and were not normalized."""
    data = calibration(case)
    data[0] = (data[0] * DEVIATIONS + MEANS) * 255


@fault("inverted", ("", "few_bits"))
def inverted_three_bits(case: Case) -> None:
    """The recipe gives all weights three bits."""
    case.use(weight=Scheme(dtype="int8", bits=3, symmetric=True, granularity="per_channel", observer="minmax"))


@fault("inverted", ("features.1.depthwise", "clipped_range"))
def inverted_clipped(case: Case) -> None:
    """A range copied from another project ends at 1, where the activation goes to 6."""
    fixed(case, "features.1.depthwise.2", 1 / 255, 0)


@fault("inverted", ("features.4.depthwise", "wrong_weights"))
def inverted_depthwise_not_loaded(case: Case) -> None:
    """One depthwise convolution was missing in the checkpoint, and is as initialized."""
    anew(case.module("features.4.depthwise")[0])


# --- vit: digits ----------------------------------------------------------------------------------------------------


@fault("vit", ("blocks.0.attn", "wrong_setting wrong_scale"))
def vit_scale_forgotten(case: Case) -> None:
    """The attention of the first block does not divide by the root of the width."""
    case.module("blocks.0.attn").scale = 1.0


@fault("vit", ("pos_embed", "wrong_weights"))
def vit_positions_not_loaded(case: Case) -> None:
    """The embeddings of positions were left out of the checkpoint, and are as initialized."""
    case.model.pos_embed.data = 0.02 * torch.randn(case.model.pos_embed.shape)


@fault("vit", ("patch_embed", "wrong_weights"))
def vit_patches_transposed(case: Case) -> None:
    """The kernels of the patch embedding were imported with height and width exchanged."""
    conv = case.module("patch_embed")
    conv.weight.data = conv.weight.data.transpose(2, 3).contiguous()


@fault("vit", ("blocks", "wrong_weights"))
def vit_blocks_exchanged(case: Case) -> None:
    """The first and the last block were loaded in each other's place."""
    for one, other in zip(case.module("blocks.0").parameters(), case.module("blocks.2").parameters(), strict=True):
        exchange(one, other)


@fault("vit", ("blocks.1.norm2,blocks.1.fc1", CHANNELS))
def vit_loud_channels(case: Case) -> None:
    """Two channels of a norm are 100 times as loud as the others, and the weights behind as much smaller."""
    widened(case.module("blocks.1.norm2"), [7, 31], 100)
    case.module("blocks.1.fc1").weight.data[:, [7, 31]] /= 100


@fault("vit", ("calibration data", "outlier_sample"))
def vit_broken_sample(case: Case) -> None:
    """One digit among those for calibration is broken, with values 60 times too large; extremes make ranges."""
    calibration(case)[0][17] *= 60
    case.use(activation=MINMAX)


@fault("vit", ("blocks.2.fc1", "few_bits"))
def vit_three_bits(case: Case) -> None:
    """The recipe gives the results of one linear layer three bits."""
    case.use(overrides={"blocks.2.fc1": {"activation": {"bits": 3}}})


# --- review: texts --------------------------------------------------------------------------------------------------


@fault("review", ("network,ids", WRONG))
def review_tokens_shifted(case: Case) -> None:
    """The vocabulary of the tokenizer lacks a line: all words are numbered one too low."""
    ids = case.data[0]
    case.data[0] = torch.where(ids > 4, ids - 1, ids)


@fault("review", ("layers", "wrong_setting"), ("network", "wrong_setting float_network_wrong"))
def review_without_mask(case: Case) -> None:
    """Attention sees the padding, since the mask is not passed on."""
    for layer in case.module("layers"):
        layer.attention.masked = False


@fault("review", ("embeddings.word_embeddings", "wrong_weights"))
def review_words_not_loaded(case: Case) -> None:
    """The embeddings of words were not in the checkpoint, and are as initialized."""
    anew(case.module("embeddings.word_embeddings"))


@fault("review", ("layers.0.attention", "wrong_weights"))
def review_value_and_out_exchanged(case: Case) -> None:
    """The projections of values and of results were loaded in each other's place."""
    exchange(case.module("layers.0.attention.value").weight, case.module("layers.0.attention.out").weight)
    exchange(case.module("layers.0.attention.value").bias, case.module("layers.0.attention.out").bias)


@fault("review", ("layers.1.intermediate", "not_finite"))
def review_nan(case: Case) -> None:
    """One weight is NaN since training with half precision."""
    case.module("layers.1.intermediate").weight.data[3, 5] = float("nan")


@fault("review", ("layers.0.attention", CHANNELS))
def review_loud_values(case: Case) -> None:
    """Two channels of the values are 100 times as wide, and the weights behind as much smaller."""
    value, out = case.module("layers.0.attention.value"), case.module("layers.0.attention.out")
    value.weight.data[[4, 29]] *= 100
    value.bias.data[[4, 29]] *= 100
    out.weight.data[:, [4, 29]] /= 100


@fault("review", ("pooler,pooled", "clipped_range"))
def review_pooler_clipped(case: Case) -> None:
    """A range by hand ends at 0.2, where the pooler gives more."""
    fixed(case, "pooler", 0.2 / 127, 128)


@fault("review", ("", "diverged_training"), ("network", "float_network_wrong"))
def review_diverged(case: Case) -> None:
    """The encoder was fine-tuned at the rate of a convolutional network, and has one answer to everything."""
    train_with(case, 0.05, 30, F.cross_entropy)


# --- motion: recordings of a phone ----------------------------------------------------------------------------------


@fault("motion", ("network,signal", WRONG))
def motion_in_g(case: Case) -> None:
    """Acceleration comes in units of g, where training had m/s²."""
    signal = case.data[0] * MOTION_DEVIATION + MOTION_MEAN
    signal[..., :3] /= 9.81
    case.data[0] = (signal - MOTION_MEAN) / MOTION_DEVIATION


@fault("motion", ("gru", "wrong_weights"))
def motion_gates_in_another_order(case: Case) -> None:
    """The gates of the GRU were imported in the order of another framework: update before reset."""
    for parameter in case.module("gru").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([update, reset, new])


@fault("motion", ("calibration data", "one_class unrepresentative"))
def motion_calibrated_at_rest(case: Case) -> None:
    """The phone lay on a table while recordings for calibration were made."""
    only(case, (calibration(case)[-1] == 0).nonzero().flatten())


@fault("motion", ("project,relu", "wide_range"))
def motion_wide_range(case: Case) -> None:
    """A range by hand of the first layer's results is that of raw values, up to 250."""
    fixed(case, "project", 2.0, 128)


@fault("motion", ("gru", "exploded_weight"))
def motion_update_gates_held(case: Case) -> None:
    """Biases of update gates are 100, so that the backward states never change."""
    case.module("gru").bias_hh_l0_reverse.data[24:48] = 100.0


@fault("motion", ("gru", "rounded_weights"))
def motion_rounded(case: Case) -> None:
    """The weights of the GRU were stored in steps of three quarters."""
    for parameter in case.module("gru").parameters():
        parameter.data = (parameter.data / 0.75).round() * 0.75


@fault("motion", ("fc1", "wrong_weights"))
def motion_layer_of_zeros(case: Case) -> None:
    """The conversion of the checkpoint left zeros in a linear layer."""
    case.module("fc1").weight.data.zero_()


# --- keyword: spectrograms of words ---------------------------------------------------------------------------------


@fault("keyword", ("network,spectrogram", WRONG))
def keyword_transposed(case: Case) -> None:
    """The spectrograms have frames along the height and bands along the width."""
    case.data[0] = case.data[0].transpose(2, 3).contiguous()


@fault("keyword", ("network,spectrogram", WRONG))
def keyword_amplitudes(case: Case) -> None:
    """The logarithm was forgotten: amplitudes in place of decibels, normalized like these."""
    level = case.data[0] * LOUDNESS_DEVIATION + LOUDNESS_MEAN
    case.data[0] = (10 ** (level / 20) - LOUDNESS_MEAN) / LOUDNESS_DEVIATION


@fault("keyword", ("calibration data", "unlike_data unrepresentative no_variety"))
def keyword_calibrated_on_silence(case: Case) -> None:
    """The network is calibrated on silence."""
    data = calibration(case)
    data[0] = (-60 + 4 * torch.randn_like(data[0]) - LOUDNESS_MEAN) / LOUDNESS_DEVIATION


@fault("keyword", ("classifier.2", "wrong_weights"))
def keyword_channels_last(case: Case) -> None:
    """The first linear layer was imported from a framework that flattens with channels last."""
    linear = case.module("classifier.2")
    linear.weight.data = linear.weight.data.view(64, 32, 3, 3).permute(0, 2, 3, 1).reshape(64, -1).contiguous()


@fault("keyword", ("classifier.2,classifier.3", f"large_bias {CHANNELS}"), ("classifier.5", "cancellation large_bias"))
def keyword_large_bias(case: Case) -> None:
    """One bias of a linear layer is 1000, and the biases behind take it back."""
    case.module("classifier.2").bias.data[4] += 1000
    case.module("classifier.5").bias.data -= 1000 * case.module("classifier.5").weight.data[:, 4]


@fault("keyword", ("features.7", "outlier_weight input_imbalance"))
def keyword_weights_behind_a_dead_channel(case: Case) -> None:
    """One channel is always zero, and the weights that read it are huge, which nothing corrected."""
    conv = case.module("features.5")
    conv.weight.data[5], conv.bias.data[5] = 0.0, 0.0
    case.module("features.7").weight.data[:, 5] = 20.0


@fault("keyword", ("", "moving_average"))
def keyword_forgetful_average(case: Case) -> None:
    """Ranges are moving averages, and quiet recordings come first."""
    data = calibration(case)
    data[0][:64] = data[0][:64] * 0.1 - 1.2
    case.use(activation=Scheme(observer="moving_average"))


# --- cells: segmentation --------------------------------------------------------------------------------------------


@fault("cells", ("", "wrong_setting"), ("dec1,dec2", "wrong_weights"))
def cells_joined_in_another_order(case: Case) -> None:
    """The network was written anew, and joins what comes from below before what comes from the side."""
    case.model.skip_first = False


@fault("cells", ("network,image", WRONG))
def cells_inverted(case: Case) -> None:
    """The pictures are negatives: dark cells on bright ground."""
    case.data[0] = 1 - case.data[0]


@fault("cells", ("", "stale_batch_norm"))
def cells_statistics_of_bytes(case: Case) -> None:
    """Running statistics were collected on pictures with too large values, before these were divided by 4."""
    collect(case.model, case.data[0] * 4, norms_of(case.model))


@fault("cells", ("dec1,cat,enc1,up1", "shared_range"), ("", "shared_range"))
def cells_skip_wider(case: Case) -> None:
    """What the first level passes on is 60 times as wide as what it is joined with, and so they share a scale."""
    widened(case.module("enc1")[4], list(range(10)), 60)
    case.module("enc2")[0].weight.data /= 60
    case.module("dec1")[0].weight.data[:, :10] /= 60


@fault("cells", ("dec1,cat,up1", "wide_range"))
def cells_wide_range(case: Case) -> None:
    """A range by hand of the last activation is 200 times too wide."""
    fixed(case, "dec1.5", 2.0, 0)


# --- rent: a table --------------------------------------------------------------------------------------------------


@fault("rent", ("network,table", WRONG))
def rent_square_feet(case: Case) -> None:
    """Areas are in square feet, where training had square metres."""
    case.data[0] = case.data[0].clone()
    area = case.data[0][:, 0] * RENT_DEVIATION[0] + RENT_MEAN[0]
    case.data[0][:, 0] = (area * 10.764 - RENT_MEAN[0]) / RENT_DEVIATION[0]


@fault("rent", ("network", "float_network_wrong"))
def rent_in_euros(case: Case) -> None:
    """The labels are in euros, where the network answers in hundreds."""
    case.data[-1] = case.data[-1] * 100


@fault("rent", ("table,fc1", CHANNELS))
def rent_traffic_not_normalized(case: Case) -> None:
    """Traffic comes as a count up to a thousand, which the first layer's weights were made for."""
    linear = case.module("fc1")
    case.data[0] = case.data[0].clone()
    case.data[0][:, 5] = case.data[0][:, 5] * 290 + 500
    linear.weight.data[:, 5] /= 290
    linear.bias.data -= linear.weight.data[:, 5] * 500


@fault("rent", ("calibration data", "outlier_sample"))
def rent_typing_error(case: Case) -> None:
    """One flat among those for calibration has 7,500 square metres; extremes make ranges."""
    calibration(case)[0][3, 0] = (7500 - 75) / 28
    case.use(activation=MINMAX)


@fault("rent", ("calibration data", "too_few"))
def rent_three_flats(case: Case) -> None:
    """The network is calibrated on three flats, by their extremes."""
    only(case, torch.arange(3))
    case.use(activation=MINMAX)


@fault("rent", ("fc3,bn3", "stale_batch_norm"))
def rent_deviations_for_variances(case: Case) -> None:
    """The last batch norm was imported with standard deviations where variances belong."""
    case.module("bn3").running_var.data.sqrt_()


@fault("rent", ("fc2", "wrong_weights"))
def rent_transposed(case: Case) -> None:
    """The weights of the second layer were imported transposed."""
    case.module("fc2").weight.data = case.module("fc2").weight.data.t().contiguous()


@fault("rent", ("table", "clipped_range zero_point"))
def rent_recipe_of_pictures(case: Case) -> None:
    """The recipe is the one for pictures, which has inputs from 0 to 1."""
    case.use(recipes.images())


@fault("rent", ("act2,fc2", "wrong_setting"))  # an activation goes by the layer that it follows
def rent_another_activation(case: Case) -> None:
    """The second activation is ReLU since the network was written anew, and was SiLU."""
    case.model.act2 = nn.ReLU()


@fault("rent", ("", "few_bits"))
def rent_four_bits(case: Case) -> None:
    """The recipe gives activations four bits."""
    case.use(activation=Scheme(bits=4))


@fault("rent", ("bn1,fc1,act1", "zero_point clipped_range"))
def rent_zero_point(case: Case) -> None:
    """A range by hand begins at zero, as behind ReLU, where SiLU reads negative values, too."""
    fixed(case, "bn1", 0.03, 0)


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


SOUND: dict[str, Callable[[], Case]] = {
    "resnet": lambda: calibrated("resnet"),
    "inverted": lambda: calibrated("inverted"),
    "vit": lambda: calibrated("vit"),
    "review": lambda: calibrated("review"),
    "motion": lambda: calibrated("motion"),
    "keyword": lambda: calibrated("keyword"),
    "cells": lambda: calibrated("cells"),
    "rent": lambda: calibrated("rent"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)
