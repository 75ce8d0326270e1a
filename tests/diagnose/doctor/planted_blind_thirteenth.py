"""Faults planted in eight networks, with their right answers; they were written before the doctor saw them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_thirteenth import (
    DEVIATIONS,
    DIGIT_DEVIATION,
    DIGIT_MEAN,
    MEANS,
    SPEECH_DEVIATION,
    SPEECH_MEAN,
    build,
)
from tests.diagnose.doctor.planting import (
    WRONG,
    Arrays,
    Case,
    FaultWithAnswers,
    anew,
    asking,
    calibrating,
    collect,
    exchange,
    fixed,
    norms_of,
    registering,
    train_again,
    train_on,
)
from torch import Tensor, nn

from intact8 import Scheme, recipes

FAULTS: dict[str, FaultWithAnswers] = {}
"""Faults by name."""

fault = registering(FAULTS)

WIDE = "outlier_channel channel_imbalance input_imbalance"
MINMAX = Scheme(observer="minmax")


def apart(case: Case) -> Arrays:
    """Take 128 samples from the data for calibration, and return them."""
    case.calibration = [part[:128].clone() for part in case.data]
    case.data = [part[128:] for part in case.data]
    return case.calibration


def rows_of(data: Arrays, rows: Tensor) -> Arrays:
    """Return rows of all parts."""
    return [part[rows] for part in data]


def widen(norm: Any, channel: int, factor: float) -> None:
    """Let a norm, or a linear map, give one channel that is wider."""
    with torch.no_grad():
        norm.weight[channel] *= factor
        norm.bias[channel] *= factor


# --- repvgg: digits -------------------------------------------------------------------------------------------------


@fault("repvgg", ("stage2.0", "wrong_weights"))
def repvgg_block_not_loaded(case: Case) -> None:
    """The convolutions of one block had other names in the checkpoint and are as initialized."""
    anew(case.module("stage2.0.dense"), case.module("stage2.0.point"))


@fault("repvgg", ("network,image", WRONG))
def repvgg_ink_on_paper(case: Case) -> None:
    """The digits come dark on a bright ground, and the network knows bright ones on a dark ground."""
    case.data[0] = (1 - (case.data[0] * DIGIT_DEVIATION + DIGIT_MEAN) - DIGIT_MEAN) / DIGIT_DEVIATION


@fault("repvgg", ("stage1.0.dense", "wrong_weights"))
def repvgg_kernels_channels_last(case: Case) -> None:
    """The numbers of a convolution were stored with channels last, and read as though channels came first."""
    weight = case.module("stage1.0.dense").weight
    weight.data = weight.data.permute(0, 2, 3, 1).reshape(weight.shape).contiguous()


@fault("repvgg", ("stage0", "stale_batch_norm"), ("network,image", WRONG))
def repvgg_statistics_of_raw_images(case: Case) -> None:
    """The statistics of the first block were collected anew on images whose pixels went from 0 to 16."""
    raw = (case.data[0] * DIGIT_DEVIATION + DIGIT_MEAN) * 16
    collect(case.model, raw, norms_of(case.module("stage0")))


@fault("repvgg", ("calibration data", "one_class"))
def repvgg_only_ones(case: Case) -> None:
    """The calibration images are the first of a folder that is sorted by class: all show a one."""
    apart(case)
    case.calibration = rows_of(case.data, (case.data[1] == 1).nonzero().flatten())
    case.use(activation=MINMAX)


@fault("repvgg", ("stage2.1,pool,head", WIDE))
def repvgg_wide_last_channel(case: Case) -> None:
    """One channel of the last block is 60 times as wide as the others, and the classifier divides it again."""
    block, head = case.module("stage2.1"), case.module("head")
    for norm in (block.dense_norm, block.point_norm, block.identity):
        widen(norm, 7, 60)
    head.weight.data[:, 7] /= 60


@fault("repvgg", ("head", "large_bias"))
def repvgg_all_logits_high(case: Case) -> None:
    """The biases of the classifier have drifted together: all are 4000 larger than they need be."""
    case.module("head").bias.data += 4000


@fault("repvgg", ("", "shared_range wide_range"))
def repvgg_range_of_the_head(case: Case) -> None:
    """In the simulation all activations were given the range of the logits by a slip in a loop."""
    sim = case.simulate()
    head = sim.points["head"]
    for name, point in sim.points.items():
        if name not in ("image", "head"):
            point.assign(float(head.scale), int(head.zero_point))


# --- convnext: scenes -----------------------------------------------------------------------------------------------


@fault("convnext", ("network,image", WRONG))
def convnext_normalized_twice(case: Case) -> None:
    """The images are normalized by the loader, and once more by the script."""
    case.data[0] = (case.data[0] - MEANS) / DEVIATIONS


@fault("convnext", ("calibration data", "unlike_data unrepresentative"))
def convnext_calibrated_on_random_numbers(case: Case) -> None:
    """The network is calibrated on images of random numbers, as in an example that was copied."""
    data = apart(case)
    data[0] = torch.rand(data[0].shape)


@fault("convnext", ("stage1.1", "wrong_weights wrong_scale"))
def convnext_layer_scale_as_initialized(case: Case) -> None:
    """The layer scale of a block was not loaded: it is as the paper initializes it, a millionth."""
    case.module("stage1.1").gamma.data.fill_(1e-6)


@fault("convnext", ("stage1", "wrong_weights"))
def convnext_depth_transposed(case: Case) -> None:
    """The depthwise kernels of the first stage have height and width exchanged, as another framework keeps them."""
    for block in case.module("stage1"):
        block.depth.weight.data = block.depth.weight.data.transpose(2, 3).contiguous()


@fault("convnext", ("calibration data", "unlike_data"))
def convnext_calibrated_with_bytes(case: Case) -> None:
    """The calibration images were normalized from bytes, which nobody had divided by 255."""
    data = apart(case)
    data[0] = ((data[0] * DEVIATIONS + MEANS) * 255 - MEANS) / DEVIATIONS


@fault("convnext", ("image", "clipped_range zero_point"))
def convnext_recipe_for_bytes(case: Case) -> None:
    """The recipe is the one for images between 0 and 1, and the images are normalized."""
    case.use(recipes.images())


@fault("convnext", ("stage2.0.norm,stage2.0.expand,stage2.0.permute", f"outlier_weight {WIDE}"))
def convnext_small_norm_gains(case: Case) -> None:
    """One gain of a layer norm is a hundredth of what it was, and the column that reads it a hundred times as large."""
    block = case.module("stage2.0")
    block.norm.weight.data[11] /= 100
    block.norm.bias.data[11] /= 100
    block.expand.weight.data[:, 11] *= 100


@fault("convnext", ("", "few_bits"))
def convnext_five_bits(case: Case) -> None:
    """The recipe gives all activations five bits."""
    case.use(activation=replace(recipes.default().activation, bits=5))


@fault("convnext", ("stage1.0.norm,stage1.0.expand,stage1.0.depth", "wrong_setting"))
def convnext_large_eps(case: Case) -> None:
    """One layer norm was rebuilt with an eps of one in place of a millionth."""
    case.module("stage1.0.norm").eps = 1.0


# --- ticket: texts --------------------------------------------------------------------------------------------------


@fault(
    "ticket",
    ("layers.0.attention,layers.1.attention", "wrong_setting"),
    ("network,ids", WRONG),
)
def ticket_mask_inverted(case: Case) -> None:
    """The mask of padding is inverted: words attend to padding alone, where there is any."""
    case.model.inverted = True


@fault("ticket", ("layers.0.attention,layers.1.attention", "wrong_setting"))
def ticket_softmax_of_queries(case: Case) -> None:
    """The softmax of both attentions runs over queries and not over keys."""
    for layer in case.module("layers"):
        layer.attention.axis = -2


@fault("ticket", ("network,ids", WRONG))
def ticket_other_vocabulary(case: Case) -> None:
    """The texts were tokenized with a newer vocabulary, in which three words more stand before the others."""
    ids = case.data[0]
    case.data[0] = torch.where(ids >= 4, (ids - 4 + 3) % 56 + 4, ids)


@fault("ticket", ("pooler", "wrong_weights"))
def ticket_pooler_not_loaded(case: Case) -> None:
    """The pooler was not in the checkpoint, and has weights of chance."""
    anew(case.module("pooler"))


@fault("ticket", ("layers.0.attention", "wrong_weights"))
def ticket_value_and_merge_exchanged(case: Case) -> None:
    """The weights of the values and of the map behind the heads were loaded in each other's place."""
    attention = case.module("layers.0.attention")
    attention.value, attention.merge = attention.merge, attention.value


@fault("ticket", ("calibration data", "no_variety unlike_data unrepresentative too_few one_class"))
def ticket_calibrated_on_padding(case: Case) -> None:
    """The calibration texts are empty: the token of the class and padding."""
    data = apart(case)
    data[0][:, 1:] = 0


@fault("ticket", ("layers.1.act,layers.1.up", "clipped_range"))
def ticket_low_ceiling(case: Case) -> None:
    """A range written by hand cuts the results of an activation function at about a half."""
    fixed(case, "layers.1.act", 0.7 / 255, 60)


@fault("ticket", ("layers.1.attention", WIDE))
def ticket_wide_value(case: Case) -> None:
    """One channel of the values is 80 times as wide as the others, and the map behind the heads divides it again."""
    attention = case.module("layers.1.attention")
    widen(attention.value, 9, 80)
    attention.merge.weight.data[:, 9] /= 80


# --- gesture: movements ---------------------------------------------------------------------------------------------


@fault("gesture", ("lstm", "wrong_weights"))
def gesture_gates_in_other_order(case: Case) -> None:
    """The gates of the first LSTM layer stand in the order of ONNX: input, output, forget, cell."""
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        kept = getattr(case.module("lstm"), name)
        into, forget, cell, out = kept.data.clone().chunk(4)
        kept.data.copy_(torch.cat([into, out, forget, cell]))


@fault("gesture", ("network,motion", WRONG))
def gesture_radians(case: Case) -> None:
    """The turning rates come in radians in place of degrees."""
    case.data[0] = case.data[0].clone()
    case.data[0][:, :, 3:] *= math.pi / 180


@fault("gesture", ("network,motion", WRONG))
def gesture_time_backwards(case: Case) -> None:
    """The ring buffer was read from its newest sample to its oldest: time runs backwards."""
    case.data[0] = case.data[0].flip(1)


@fault("gesture", ("lstm", "exploded_weight exploded_channel dead_channels"))
def gesture_gates_shut(case: Case) -> None:
    """The biases of two thirds of the output gates of the second layer are so low that the gates never open."""
    case.module("lstm").bias_ih_l1.data[96:118] = -60


@fault("gesture", ("calibration data,motion", "outlier_sample"))
def gesture_shock_in_calibration(case: Case) -> None:
    """Somebody dropped the device in one calibration recording, and the recipe keeps extremes."""
    data = apart(case)
    data[0][17, 12:15] *= 150
    case.use(activation=MINMAX)


@fault("gesture", ("motion", "clipped_range"))
def gesture_narrow_input(case: Case) -> None:
    """The recipe says that inputs lie between -0.5 and 0.5, and they do not."""
    case.use(inputs={"motion": {"fixed": (0.5 / 128, 128)}})


@fault("gesture", ("lstm", "few_bits"))
def gesture_lstm_of_three_bits(case: Case) -> None:
    """The recipe gives the weights of the LSTM three bits."""
    case.use(overrides={"lstm": {"weight": {"bits": 3}}})


@fault("gesture", ("", "moving_average"), ("calibration data", "unrepresentative unlike_data"))
def gesture_forgetting_observer(case: Case) -> None:
    """The recipe averages extremes of batches over time, and the calibration ends with the device lying still."""
    data = apart(case)
    data[0][40:] = 0.02 * torch.randn(data[0][40:].shape)
    observer = Scheme(observer="moving_average")
    case.calibration = [part.repeat(15, *[1] * (part.dim() - 1)) for part in rows_of(data, torch.arange(40, 128))]
    case.calibration = [torch.cat([part[:40], more]) for part, more in zip(data, case.calibration, strict=True)]
    case.use(activation=observer)


# --- heart: beats ---------------------------------------------------------------------------------------------------


@fault("heart", ("calibration data", "unlike_data unrepresentative no_variety"))
def heart_electrodes_off(case: Case) -> None:
    """The calibration recordings were made before the electrodes were on: they are noise around zero."""
    data = apart(case)
    data[0] = 0.15 * torch.randn(data[0].shape)


@fault("heart", ("block2.conv2,block2.norm2", "wrong_setting wrong_weights stale_batch_norm"))
def heart_dilation_lost(case: Case) -> None:
    """One convolution was rebuilt without its dilation."""
    conv = case.module("block2.conv2")
    conv.dilation, conv.padding = (1,), (2,)


@fault("heart", ("block3", "wrong_setting"))
def heart_another_activation(case: Case) -> None:
    """The activation of the last block is a hyperbolic tangent in place of a leaky one."""
    case.module("block3").act = nn.Tanh()


@fault("heart", ("", "stale_batch_norm"), ("network,signal", WRONG))
def heart_statistics_of_another_device(case: Case) -> None:
    """The statistics of all batch norms were collected on another device, whose signals are five times as high."""
    collect(case.model, case.data[0] * 5 + 2, norms_of(case.model))


@fault("heart", ("", "stale_range"))
def heart_trained_after_freezing(case: Case) -> None:
    """The scales were frozen, then the network was trained further, and the simulation was given the new weights."""
    sim = case.simulate()
    sim.freeze_scales()
    train_on(case, 0.03, 250)
    sim.load_state_dict(case.model.state_dict(), strict=False)


@fault("heart", ("", "symmetric_range"))
def heart_symmetric(case: Case) -> None:
    """The recipe has symmetric ranges for all activations, and most of them are nearly positive."""
    case.use(recipes.symmetric())


@fault("heart", ("block1", "cancellation large_bias"))
def heart_terms_cancel(case: Case) -> None:
    """The two terms of a block's sum have large constants that cancel each other."""
    case.module("block1.norm2").bias.data += 60
    case.module("block1.short_norm").bias.data -= 60


@fault("heart", ("", "heavy_tail"), ("signal,calibration data", "outlier_sample"))
def heart_pops(case: Case) -> None:
    """Every thirtieth recording has a short pop of its electrode, and the recipe keeps extremes."""
    case.data[0] = case.data[0].clone()
    for row in range(0, len(case.data[0]), 30):
        case.data[0][row, 0, (7 * row) % 120] = 80.0 + row % 40
    case.use(activation=MINMAX)


# --- cells: pictures ------------------------------------------------------------------------------------------------


@fault("cells", ("", "wrong_setting"), ("merge1,merge2", "wrong_weights"))
def cells_joined_in_other_order(case: Case) -> None:
    """The way up joins what came up before what went down; in training it was the other way round."""
    case.model.up_first = True


@fault("cells", ("up1,up2", "wrong_weights"))
def cells_upsampling_transposed(case: Case) -> None:
    """The transposed convolutions were stored with outputs first and are read with inputs first."""
    for up in (case.module("up1"), case.module("up2")):
        up.weight.data = up.weight.data.transpose(0, 1).reshape(up.weight.shape).contiguous()


@fault("cells", ("merge1.norm1,merge1.conv1", "stale_batch_norm"))
def cells_statistics_reset(case: Case) -> None:
    """The running statistics of one batch norm were not saved: mean 0 and variance 1."""
    case.module("merge1.norm1").reset_running_stats()


@fault("cells", ("network,picture", WRONG))
def cells_gamma(case: Case) -> None:
    """The pictures were corrected for gamma before they were normalized."""
    case.data[0] = ((case.data[0] * 0.18 + 0.36).clamp(0, 1).pow(1 / 2.2) - 0.36) / 0.18


@fault("cells", ("down1.conv2,down1.norm2", "exploded_channel exploded_weight"))
def cells_one_channel_exploded(case: Case) -> None:
    """One channel of a convolution has weights 60 times too large."""
    case.module("down1.conv2").weight.data[2] *= 60


@fault("cells", ("calibration data", "one_class unlike_data unrepresentative no_variety"))
def cells_empty_pictures(case: Case) -> None:
    """The calibration pictures show empty ground: no cell is on them."""
    data = apart(case)
    data[0] = (0.28 + 0.04 * torch.randn(data[0].shape) - 0.36) / 0.18
    data[1] = torch.zeros_like(data[1])


@fault("cells", ("head", "wide_range"))
def cells_coarse_head(case: Case) -> None:
    """The logits have a range written by hand that is many times as wide as they are."""
    fixed(case, "head", 1.5, 128)


@fault("cells", ("up1,down1,merge1,cat", "shared_range channel_imbalance outlier_channel input_imbalance"))
def cells_joined_with_wide(case: Case) -> None:
    """What comes up is 40 times as wide as what it is joined with, and the convolution behind divides it again."""
    up = case.module("up1")
    up.weight.data *= 40
    up.bias.data *= 40
    case.module("merge1.conv1").weight.data[:, 8:] /= 40


# --- movie: ratings -------------------------------------------------------------------------------------------------


@fault("movie", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def movie_calibrated_on_one_film(case: Case) -> None:
    """All calibration samples are of one user and one film, which the script took for placeholders."""
    data = apart(case)
    data[0][:, 0] = 0
    data[0][:, 1:] = 0


@fault("movie", ("hidden1,cat,user,film,mul", "wrong_weights wrong_setting"))
def movie_parts_in_other_order(case: Case) -> None:
    """The first linear map has the columns of the film and of the product exchanged."""
    weight = case.module("hidden1").weight.data
    exchange(weight[:, 16:32], weight[:, 32:48])


@fault("movie", ("network", WRONG))
def movie_percents(case: Case) -> None:
    """The ratings to compare with are percents, and the network was trained on one to five stars."""
    case.data[1] = (case.data[1] - 1) * 25


@fault("movie", ("", "diverged_training float_network_wrong"))
def movie_diverged(case: Case) -> None:
    """The network was trained further at a rate that is far too large."""
    train_again(case, 0.12, 40, F.mse_loss)


@fault("movie", ("seen", "exploded_weight exploded_channel"))
def movie_row_exploded(case: Case) -> None:
    """The row of one film in a table is 200 times too large."""
    case.module("seen").weight.data[5] *= 200


@fault("movie", ("rate", "clipped_range"))
def movie_at_most_three(case: Case) -> None:
    """The range of the ratings was written by hand for an older scale, which ended at three."""
    fixed(case, "rate", 3 / 255, 0)


@fault("movie", ("cat,user,film,seen,hidden1,mul", f"shared_range {WIDE}"))
def movie_wide_users(case: Case) -> None:
    """The table of users is 40 times as wide as that of films, with which it is joined."""
    case.module("user").weight.data *= 40
    weight = case.module("hidden1").weight.data
    weight[:, :16] /= 40
    weight[:, 32:48] /= 40


@fault("movie", ("", "float_mismatch"))
def movie_trained_after_preparing(case: Case) -> None:
    """The simulation was made of the network before it was trained further."""
    case.simulate()
    train_again(case, 0.01, 300, F.mse_loss)


@fault("movie", ("", "rounded_weights"))
def movie_seven_numbers(case: Case) -> None:
    """Tables and layers went through a file with very few levels: each has at most seven numbers."""
    for weight in case.model.parameters():
        if weight.dim() > 1:
            step = weight.data.abs().max() / 3
            weight.data = (weight.data / step).round() * step


# --- speech: words --------------------------------------------------------------------------------------------------


@fault("speech", ("blocks.0.convolve", "wrong_setting wrong_weights"))
def speech_gate_of_first_half(case: Case) -> None:
    """One gated convolution takes its gate from the first half of the channels and not from the second."""
    case.module("blocks.0.convolve").gate_first = True


@fault("speech", ("network,spectrum", WRONG))
def speech_decadic_logarithm(case: Case) -> None:
    """The spectra were made with logarithms to the base of ten."""
    natural = case.data[0] * SPEECH_DEVIATION + SPEECH_MEAN
    case.data[0] = (natural / math.log(10) - SPEECH_MEAN) / SPEECH_DEVIATION


@fault("speech", ("blocks.1.attend", "wrong_weights"))
def speech_values_first(case: Case) -> None:
    """The joint weights of queries, keys and values stand in another order: values, queries, keys."""
    inputs = case.module("blocks.1.attend.inputs")
    inputs.weight.data = inputs.weight.data.roll(32, 0)
    inputs.bias.data = inputs.bias.data.roll(32, 0)


@fault("speech", ("position,network", "not_finite"))
def speech_position_nan(case: Case) -> None:
    """One number of the learned positions is not a number."""
    case.model.position.data[3, 5] = math.nan


@fault("speech", ("", "few_bits per_tensor_weight"))
def speech_four_bits_per_tensor(case: Case) -> None:
    """The recipe gives weights four bits and one scale for a whole layer."""
    case.use(weight=replace(recipes.default().weight, bits=4, granularity="per_tensor"))


@fault("speech", ("calibration data,spectrum", "outlier_sample"))
def speech_digital_silence(case: Case) -> None:
    """One calibration recording has frames of zeros, whose logarithm is that of a tiny number; extremes are kept."""
    data = apart(case)
    data[0][40, 5:12] = (math.log(1e-30) - SPEECH_MEAN) / SPEECH_DEVIATION
    case.use(activation=MINMAX)


@fault("speech", ("blocks.1.convolve", WIDE))
def speech_wide_before_depthwise(case: Case) -> None:
    """One channel before a depthwise convolution is 80 times as wide as the others, and divided in it again."""
    convolve = case.module("blocks.1.convolve")
    widen(convolve.point1, 6, 80)
    convolve.depth.weight.data[6] /= 80


@fault("speech", ("blocks.0.attend", "large_bias channel_imbalance outlier_channel shared_range"))
def speech_large_biases_of_keys(case: Case) -> None:
    """The biases of the keys are large, which the softmax takes back, and queries and values share their scale."""
    case.module("blocks.0.attend.inputs").bias.data[32:64] += 60


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


SOUND: dict[str, Callable[[], Case]] = {
    "repvgg": lambda: calibrated("repvgg"),
    "convnext": lambda: calibrated("convnext"),
    "ticket": lambda: calibrated("ticket"),
    "gesture": lambda: calibrated("gesture"),
    "heart": lambda: calibrated("heart"),
    "cells": lambda: calibrated("cells"),
    "movie": lambda: calibrated("movie"),
    "speech": lambda: calibrated("speech"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)
