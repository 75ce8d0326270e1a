"""Faults in eight small networks of further families, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_fifteenth import (
    BINS,
    CELL_DEVIATIONS,
    CELL_MEANS,
    LINE_DEVIATION,
    LINE_MEAN,
    MELS,
    VOCABULARIES,
    build,
)
from tests.diagnose.doctor.planting import (
    MINMAX,
    WRONG,
    FaultWithAnswers,
    anew,
    apart,
    asking,
    calibrating,
    calibration,
    exchange,
    fixed,
    registering,
    train_again,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import Tensor, nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


def halves_exchanged(weight: Tensor) -> None:
    """Exchange the two halves of a weight's input channels."""
    half = weight.shape[1] // 2
    weight.data = torch.cat([weight.data[:, half:], weight.data[:, :half]], 1).contiguous()


# --- points: shapes -------------------------------------------------------------------------------------------------


@fault("points", ("network,points", WRONG), ("lift,norm1", "wrong_weights stale_batch_norm"))
def points_height_second(case: Case) -> None:
    """The file format keeps the height as the second coordinate, and the loader did not turn the axes."""
    case.data[0] = case.data[0][:, [0, 2, 1]].contiguous()


@fault("points", ("mix", "wrong_weights wrong_setting"), ("cat", "wrong_setting"))
def points_whole_before_local(case: Case) -> None:
    """The port joins the features of the whole before those of the points: the weights behind fit the other order."""
    halves_exchanged(case.module("mix").weight)


@fault("points", ("local,norm2", "stale_batch_norm"))
def points_statistics_not_loaded(case: Case) -> None:
    """The converter took parameters only, so that the second batch norm's running statistics are 0 and 1."""
    case.module("norm2").reset_running_stats()


@fault("points", ("hidden,network", "not_finite"))
def points_nan_in_hidden(case: Case) -> None:
    """One weight overflowed in training with half precision and is not a number."""
    case.module("hidden").weight.data[7, 31] = float("nan")


@fault("points", ("calibration data", "unlike_data"))
def points_calibrated_in_metres(case: Case) -> None:
    """The calibration clouds are as the scanner gave them, without the division by their radius."""
    data = calibration(case)
    data[0] = data[0] * 0.06


@fault("points", ("local,norm2,mix", "channel_imbalance outlier_channel input_imbalance"))
def points_channels_unequal(case: Case) -> None:
    """The second layer's channels have widths between 1 and 120, and the weights behind are as much smaller."""
    factors = 120 ** torch.linspace(0, 1, 32)[torch.randperm(32, generator=torch.Generator().manual_seed(3))]
    norm, mix = case.module("norm2"), case.module("mix")
    norm.weight.data *= factors
    norm.bias.data *= factors
    mix.weight.data /= torch.cat([factors, factors])[:, None]


@fault("points", ("calibration data", "one_class unrepresentative"))
def points_plates_only(case: Case) -> None:
    """The network is calibrated on the first folder of its clouds, which holds nothing but plates."""
    plates = build("points").data[1] == 5
    apart(case)
    case.calibration = [part[plates][:64].clone() for part in build("points").data]
    case.use(activation=MINMAX)


@fault("points", ("calibration data", "outlier_sample"))
def points_stray_point(case: Case) -> None:
    """One calibration cloud has a stray point far from the shape, and ranges are extremes."""
    data = calibration(case)
    data[0][17, :, 5] = torch.tensor([9.0, -14.0, 11.0])
    case.use(activation=MINMAX)


@fault("points", ("", "symmetric_range"))
def points_symmetric(case: Case) -> None:
    """The recipe has symmetric ranges for results, half of which nothing uses behind a ReLU."""
    case.use(activation=replace(recipes.default().activation, dtype="int8", symmetric=True))


# --- line: lines of digits ------------------------------------------------------------------------------------------


@fault("line", ("read", "wrong_weights wrong_setting"))
def line_gates_of_keras(case: Case) -> None:
    """The GRU's gates lie in the order of another framework: update before reset."""
    for parameter in case.module("read").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([update, reset, new]).contiguous()


@fault("line", ("pool,max_pool,avg_pool", "wrong_setting"))
def line_mean_pooling(case: Case) -> None:
    """The network was rewritten with mean pooling in place of maximum pooling."""
    case.model.pool = nn.AvgPool2d(2)


@fault("line", ("network,image", WRONG))
def line_cut_askew(case: Case) -> None:
    """The lines are cut three pixels too far to the right, so that digits no longer lie in their columns."""
    empty = -LINE_MEAN / LINE_DEVIATION
    case.data[0] = torch.cat([case.data[0][..., 3:], torch.full_like(case.data[0][..., :3], empty)], 3).contiguous()


@fault("line", ("spell", "wrong_weights"), ("network", WRONG))
def line_blank_first(case: Case) -> None:
    """The checkpoint is of a variant whose blank is class 0, and each digit is a class later."""
    spell = case.module("spell")
    spell.weight.data, spell.bias.data = spell.weight.data.roll(1, 0), spell.bias.data.roll(1, 0)


@fault("line", ("calibration data", "no_variety unlike_data"))
def line_calibrated_on_paper(case: Case) -> None:
    """The calibration folder holds scans of empty paper."""
    data = calibration(case)
    data[0] = torch.full_like(data[0], -LINE_MEAN / LINE_DEVIATION)


@fault("line", ("conv1", "few_bits"))
def line_three_bits(case: Case) -> None:
    """The recipe gives the results of the first convolution three bits."""
    case.use(overrides={"conv1": {"activation": {"bits": 3}}})


@fault("line", ("spell", "clipped_range"))
def line_scores_clipped(case: Case) -> None:
    """The range of the scores was copied from a network whose scores lie between -2 and 2."""
    fixed(case, "spell", 4 / 255, 128)


@fault("line", ("", "float_mismatch"))
def line_simulated_before_tuning(case: Case) -> None:
    """The simulation was made, and after that the network was tuned further."""
    case.simulate()
    train_again(case, 0.02, 80, lambda out, labels: F.cross_entropy(out.flatten(0, 1), labels.flatten()))


# --- load: forecasts ------------------------------------------------------------------------------------------------


@fault("load", ("network,series", WRONG))
def load_newest_first(case: Case) -> None:
    """The database gives the newest hour first, and nobody turned the series."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("load", ("add,sqrt,mean,square,div,mul,pow", "wrong_setting"))
def load_large_eps(case: Case) -> None:
    """The eps below the deviation of a series is 15, as it was tuned for series in megawatts."""
    case.model.eps = 15.0


@fault("load", ("season", "wrong_weights wrong_setting"))
def load_sines_first(case: Case) -> None:
    """The seasonal basis of the forecast was built anew with the sine of each pair before the cosine."""
    basis = case.module("season").ahead
    basis.copy_(basis.view(-1, 2, basis.shape[1]).flip(1).reshape(basis.shape))


@fault("load", ("network", "diverged_training float_network_wrong"))
def load_rate_too_high(case: Case) -> None:
    """The network was tuned for a new customer at a rate that was far too high."""
    train_again(case, 0.25, 12, F.mse_loss)


@fault("load", ("free1.fc2,free2.fc2", "wrong_weights"))
def load_stacks_mixed(case: Case) -> None:
    """When weights were renamed, the second layers of the two free stacks were exchanged."""
    one, other = case.module("free1.fc2"), case.module("free2.fc2")
    exchange(one.weight, other.weight)
    exchange(one.bias, other.bias)


@fault("load", ("season.theta", "wide_range"))
def load_theta_too_wide(case: Case) -> None:
    """The range of the seasonal coefficients was set by hand to ±60, on the safe side."""
    fixed(case, "season.theta", 120 / 255, 128)


@fault("load", ("add,free1.fore,free2.fore", "cancellation large_bias"))
def load_stacks_cancel(case: Case) -> None:
    """Two stacks learned large opposite levels of the forecast, which cancel in their sum."""
    case.module("free1.fore").bias.data += 45
    case.module("free2.fore").bias.data -= 45


@fault("load", ("calibration data", "too_few"))
def load_one_series(case: Case) -> None:
    """The network is calibrated on a single series, by its extremes."""
    case.calibration = [part[:1] for part in calibration(case)]
    case.use(activation=MINMAX)


# --- ads: clicks ----------------------------------------------------------------------------------------------------


@fault("ads", ("network,ids", WRONG), ("tables", "wrong_weights"))
def ads_ids_from_one(case: Case) -> None:
    """The encoder counts categories from 1 and keeps 0 for unknown ones; the network was trained without."""
    case.data[1] = (case.data[1] + 1) % torch.tensor(VOCABULARIES)


@fault("ads", ("network,numbers", "float_network_wrong stale_batch_norm"), ("norm", "stale_batch_norm"))
def ads_standardized_twice(case: Case) -> None:
    """The numbers are standardized in the feature store, and the network's own norm does so again."""
    numbers = case.data[0]
    case.data[0] = (numbers - numbers.mean(0)) / numbers.std(0)


@fault("ads", ("experts,softmax", "wrong_setting batch_dependence"), ("network", "batch_dependence"))
def ads_gate_over_batch(case: Case) -> None:
    """The gate's softmax runs over the batch and not over the experts."""
    case.module("experts").axis = 0


@fault("ads", ("tables.1", "wrong_weights"))
def ads_table_not_loaded(case: Case) -> None:
    """The second embedding has another name in the checkpoint and was left as initialized."""
    torch.manual_seed(12)
    nn.init.normal_(case.module("tables.1").weight, std=0.3)


@fault("ads", ("network", WRONG))
def ads_labels_inverted(case: Case) -> None:
    """The labels of the new export are 1 where nobody clicked."""
    case.data[-1] = 1 - case.data[-1]


@fault("ads", ("calibration data", "outlier_sample"))
def ads_default_value(case: Case) -> None:
    """One calibration row has -99999 where a number is missing, and ranges are extremes."""
    data = calibration(case)
    data[0][40, 4] = -99999.0
    case.use(activation=MINMAX)


@fault(
    "ads", ("norm,cat,cross1,cross2,experts,numbers", "outlier_channel channel_imbalance input_imbalance shared_range")
)
def ads_one_number_wide(case: Case) -> None:
    """One normalized number is 60 times as wide as all else it is joined with; the weights behind make up for it."""
    case.module("norm").weight.data[3] *= 60
    case.module("norm").bias.data[3] *= 60
    for layer in (
        "cross1.form",
        "cross2.form",
        "decide",
        "experts.gate",
        *(f"experts.experts.{i}.0" for i in range(4)),
    ):
        case.module(layer).weight.data[:, 3] /= 60


@fault("ads", ("cross1", "clipped_range"))
def ads_crossed_clipped(case: Case) -> None:
    """The range of the first cross layer's results was taken over from an older network and is too narrow."""
    fixed(case, "cross1.add", 1.6 / 255, 128)


@fault("ads", ("calibration data", "no_variety"))
def ads_one_customer(case: Case) -> None:
    """The calibration set is one row, written 128 times by a faulty export."""
    case.calibration = [part[3:4].expand(128, *part.shape[1:]).clone() for part in calibration(case)]


# --- cells: centres -------------------------------------------------------------------------------------------------


@fault("cells", ("network,image", "float_network_wrong stale_batch_norm"), ("stem", "stale_batch_norm"))
def cells_minus_one_to_one(case: Case) -> None:
    """The images are scaled to between -1 and 1, in place of normalization by means and deviations."""
    case.data[0] = (case.data[0] * CELL_DEVIATIONS + CELL_MEANS - 0.5) / 0.5


@fault("cells", ("lateral1", "wrong_weights"))
def cells_lateral_not_loaded(case: Case) -> None:
    """The lateral convolution of the finest level is missing in the checkpoint and is as initialized."""
    anew(case.module("lateral1"))


@fault("cells", ("smooth", "wrong_setting"))
def cells_activation_identity(case: Case) -> None:
    """The rewritten layer in front of the heat maps has no activation after its norm."""
    case.module("smooth").act = nn.Identity()


@fault("cells", ("level1.conv,level1.norm", "wrong_weights"))
def cells_pruned_too_far(case: Case) -> None:
    """All but four in a hundred weights of the first level's convolution were pruned, without training after that."""
    weight = case.module("level1.conv").weight
    weight.data *= weight.data.abs() >= weight.data.abs().flatten().quantile(0.96)


@fault("cells", ("calibration data", "unrepresentative unlike_data"))
def cells_empty_slides(case: Case) -> None:
    """The network is calibrated on slides without cells: background and noise."""
    data = calibration(case)
    chance = torch.Generator().manual_seed(4)
    ground = torch.tensor([0.42, 0.33, 0.28]).view(3, 1, 1)
    images = ground + 0.05 * torch.randn(data[0].shape, generator=chance)
    data[0] = (images - CELL_MEANS) / CELL_DEVIATIONS
    data[1] = torch.zeros_like(data[1])


@fault("cells", ("smooth", "stale_range clipped_range"))
def cells_frozen_then_changed(case: Case) -> None:
    """Ranges were frozen, and then a norm's gain was raised in the network and the simulation, as tuning might."""
    sim = case.simulate()
    for model in (case.model, sim):
        model.get_submodule("smooth.norm").weight.data *= 4


@fault("cells", ("heat", "clipped_range"))
def cells_peaks_cut(case: Case) -> None:
    """The observer of the heat maps cuts at the percentile 98, and the few peaks are what lies above."""
    scheme = {"observer": "percentile", "observer_args": {"percentile": 98.0}}
    case.use(overrides={"heat": {"activation": scheme}})


@fault("cells", ("level1", "zero_point clipped_range"))
def cells_zero_point(case: Case) -> None:
    """The range of a SiLU was written by hand as that of a ReLU: its zero point is 0."""
    fixed(case, "level1.act", 6 / 255, 0)


# --- voice: speakers ------------------------------------------------------------------------------------------------


@fault("voice", ("log,sub,div", "wrong_setting wrong_scale"), ("conv1,norm1", "stale_batch_norm wrong_scale"))
def voice_decimal_logarithm(case: Case) -> None:
    """The new front end takes the decimal logarithm, but is normalized by the constants of the natural one."""
    case.model.middle, case.model.spread = case.model.middle * 2.302585, case.model.spread * 2.302585


@fault("voice", ("network,sound", "float_network_wrong stale_batch_norm"), ("conv1,norm1", "stale_batch_norm"))
def voice_other_rate(case: Case) -> None:
    """The sounds were recorded at 6 kHz and taken as if they were at 4 kHz."""
    sound = F.interpolate(case.data[0], int(case.data[0].shape[2] * 1.5), mode="linear")
    case.data[0] = sound[..., : case.data[0].shape[2]].contiguous()


@fault(
    "voice",
    ("network,sound", "float_network_wrong stale_batch_norm wrong_scale"),
    ("conv1,norm1", "stale_batch_norm"),
    ("spectrum", "wrong_scale"),
)
def voice_whole_numbers(case: Case) -> None:
    """The sounds are whole numbers of 16 bits and were not divided by 32768."""
    case.data[0] = (case.data[0] * 32768).round()


@fault("voice", ("mel", "wrong_weights"))
def voice_linear_filters(case: Case) -> None:
    """The mel filters were built anew with equal distances in hertz."""
    centres = torch.linspace(0, BINS - 1, MELS + 2)[1:-1]
    filters = (1 - (torch.arange(BINS)[None] - centres[:, None]).abs() / 3.05).clamp_min(0) + 1e-3
    case.module("mel").weight.data = (filters / filters.sum(1, keepdim=True))[:, :, None].contiguous()


@fault("voice", ("sqrt,spectrum", "wide_range"))
def voice_spectrum_wide(case: Case) -> None:
    """The range of the spectrum was set by hand for the loudest sound one could think of."""
    fixed(case, "sqrt", 80 / 255, 0)


@fault("voice", ("calibration data", "unlike_data"))
def voice_calibrated_quiet(case: Case) -> None:
    """The calibration sounds were recorded at a twentieth of the volume."""
    data = calibration(case)
    data[0] = data[0] * 0.05


@fault("voice", ("embed", "outlier_weight exploded_weight exploded_channel input_imbalance"))
def voice_weights_of_dead_channel(case: Case) -> None:
    """Weights of an input that is always zero grew during training, and stretch the scales of the embedding."""
    norm, embed = case.module("norm3"), case.module("embed")
    weakest = int(embed.weight.data[:, :48].norm(dim=0).argmin())
    norm.weight.data[weakest], norm.bias.data[weakest] = 0.0, -0.5
    embed.weight.data[:, weakest] = 80 * embed.weight.data.abs().max() * torch.ones(32)


@fault("voice", ("conv2", "few_bits"))
def voice_two_bits(case: Case) -> None:
    """The recipe gives the weights of the dilated convolution two bits."""
    case.use(overrides={"conv2": {"weight": {"bits": 2}}})


# --- graph: solubility ----------------------------------------------------------------------------------------------


@fault("graph", ("network,mask", WRONG))
def graph_mask_of_ones(case: Case) -> None:
    """The new loader gives a mask of ones, so that the padding counts as atoms."""
    case.data[2] = torch.ones_like(case.data[2])


@fault("graph", ("network,bonds", WRONG))
def graph_bonds_normalized(case: Case) -> None:
    """The loader divides each row of the bonds by the number of neighbours, as another network needs it."""
    case.data[1] = case.data[1] / case.data[1].sum(2, keepdim=True).clamp_min(1)


@fault("graph", ("layer1.norm", "wrong_setting"))
def graph_norm_eps(case: Case) -> None:
    """The first layer norm was rebuilt with an eps of 2."""
    case.module("layer1.norm").eps = 2.0


@fault("graph", ("network", WRONG))
def graph_other_units(case: Case) -> None:
    """The labels are solubilities in their own unit, and the network gives standardized ones."""
    case.data[-1] = case.data[-1] * 2.1 - 3.4


@fault("graph", ("", "rounded_weights"))
def graph_weights_of_few_numbers(case: Case) -> None:
    """The weights were compressed to five values for each layer before they were delivered."""
    for module in case.model.modules():
        if isinstance(module, nn.Linear):
            step = module.weight.data.abs().max() / 1.6
            module.weight.data = (module.weight.data / step).round() * step


@fault("graph", ("", "moving_average"))
def graph_small_ones_first(case: Case) -> None:
    """The observer is a moving average, and the calibration data are sorted, so that large molecules hardly count."""
    data = calibration(case)
    order = data[2].sum(1).argsort()
    case.calibration = [part[order] for part in data]
    case.use(activation=replace(recipes.default().activation, observer="moving_average"))


@fault("graph", ("calibration data", "unrepresentative unlike_data"))
def graph_without_bonds(case: Case) -> None:
    """The calibration set was read without the table of bonds, so that no atoms are joined."""
    data = calibration(case)
    data[1] = torch.zeros_like(data[1])


@fault("graph", ("atoms", "large_bias"))
def graph_level_drifted(case: Case) -> None:
    """The atoms' bias drifted by 60 in all features, which the layer norms behind take away."""
    case.module("atoms").bias.data += 60


@fault("graph", ("layer1.matmul,layer1.bmm", "few_bits"))
def graph_sums_of_three_bits(case: Case) -> None:
    """The recipe gives the sums of neighbours in the first layer three bits."""
    case.use(overrides={"layer1.matmul": {"activation": {"bits": 3}}})


# --- query: digits --------------------------------------------------------------------------------------------------


@fault("query", ("network,pixels", WRONG), ("place", "wrong_weights"))
def query_columns_first(case: Case) -> None:
    """The pixels are written column by column, as another language keeps matrices."""
    case.data[0] = case.data[0].view(-1, 8, 8).transpose(1, 2).reshape(-1, 64, 1).contiguous()


@fault("query", ("read2", "wrong_setting"))
def query_softmax_over_queries(case: Case) -> None:
    """The second reading's softmax runs over the queries and not over the pixels."""
    case.module("read2").axis = -2


@fault("query", ("read1.value", "wrong_weights"), ("read1.out", "wrong_weights"))
def query_heads_interleaved(case: Case) -> None:
    """The values' rows lie with heads innermost, unlike those of queries and keys."""
    value = case.module("read1.value")
    value.weight.data = value.weight.data.view(4, 8, -1).transpose(0, 1).reshape(32, -1).contiguous()
    value.bias.data = value.bias.data.view(4, 8).T.reshape(32).contiguous()


@fault("query", ("queries", "wrong_weights"))
def query_queries_not_loaded(case: Case) -> None:
    """The learned queries were not in the checkpoint, since they belong to no layer."""
    torch.manual_seed(13)
    case.model.queries.data = torch.randn_like(case.model.queries) * 0.5


@fault("query", ("read2.query", "clipped_range"))
def query_queries_clipped(case: Case) -> None:
    """The range of the second reading's queries was set by hand to ±1.2, and many are larger."""
    fixed(case, "read2.query", 2.4 / 255, 128)


@fault("query", ("read2.norm_from,read2.key,read2.value", "outlier_channel channel_imbalance input_imbalance"))
def query_norm_of_wide_channels(case: Case) -> None:
    """Two channels of a layer norm have gains 80 times as large, and the weights behind are as much smaller."""
    reading = case.module("read2")
    reading.norm_from.weight.data[[4, 19]] *= 80
    reading.norm_from.bias.data[[4, 19]] *= 80
    for layer in (reading.key, reading.value):
        layer.weight.data[:, [4, 19]] /= 80


@fault("query", ("think1.value", "shared_range wide_range"))
def query_one_range_for_three(case: Case) -> None:
    """Queries, keys and values have one range by hand, as one packed tensor would, and values are narrow."""
    thinking = case.module("think1")
    thinking.value.weight.data /= 25
    thinking.value.bias.data /= 25
    thinking.out.weight.data *= 25
    one = {"activation": {"fixed": (12 / 255, 128)}}
    case.use(overrides={f"think1.{layer}": one for layer in ("query", "key", "value")})


@fault("query", ("", "few_bits"))
def query_weights_of_three_bits(case: Case) -> None:
    """The recipe gives all weights three bits."""
    case.use(weight=replace(recipes.default().weight, bits=3))


@fault("query", ("", "clipped_range"))
def query_percentile(case: Case) -> None:
    """The recipe cuts all ranges at the percentile 97."""
    scheme = replace(recipes.default().activation, observer="percentile", observer_args={"percentile": 97.0})
    case.use(activation=scheme)


@fault("query", ("read2.value,read2.out", "per_tensor_weight channel_imbalance"), ("", "per_tensor_weight"))
def query_one_scale_of_weights(case: Case) -> None:
    """The recipe has one scale for each layer's weights, and the rows of one layer differ by a factor of 60."""
    factors = 60 ** torch.linspace(0, 1, 32)[torch.randperm(32, generator=torch.Generator().manual_seed(6))]
    reading = case.module("read2")
    reading.value.weight.data *= factors[:, None]
    reading.value.bias.data *= factors
    reading.out.weight.data /= factors
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"))


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


SOUND: dict[str, Callable[[], Case]] = {
    "points": lambda: calibrated("points"),
    "line": lambda: calibrated("line"),
    "load": lambda: calibrated("load"),
    "ads": lambda: calibrated("ads"),
    "cells": lambda: calibrated("cells"),
    "voice": lambda: calibrated("voice"),
    "graph": lambda: calibrated("graph"),
    "query": lambda: calibrated("query"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "ads_crossed_clipped": "its numbers, which nobody normalized, make more noise still",
    "ads_table_not_loaded": "an embedding that was never trained is not told from one that was",
    "cells_activation_identity": "the activation is missed at the sum before it",
    "load_large_eps": "the eps is used twice, and one place put right gives nothing back",
    "query_queries_not_loaded": "queries that were never trained are not told from those that were",
    "voice_linear_filters": "the filters are fixed, and the layer behind them is said to be wrong",
}
"""What the doctor does not say first, and what it says."""
