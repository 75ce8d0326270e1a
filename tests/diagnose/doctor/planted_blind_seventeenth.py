"""Faults in eight small networks of further trades, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_seventeenth import (
    ARTICLES,
    BAND_DEVIATIONS,
    BAND_MEANS,
    BEGIN,
    GAUGE_DEVIATIONS,
    GAUGE_MEANS,
    GREY_DEVIATION,
    GREY_MEAN,
    NOTHING,
    build,
)
from tests.diagnose.doctor.blind_networks_tenth import generator, spread
from tests.diagnose.doctor.planting import (
    MINMAX,
    UNEQUAL,
    WRONG,
    FaultWithAnswers,
    asking,
    calibrating,
    calibration,
    collect,
    exchange,
    fixed,
    norms_of,
    registering,
    train_again,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import Tensor, nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- stereo: disparities --------------------------------------------------------------------------------------------


@fault("stereo", ("network,left,right", WRONG))
def stereo_cameras_exchanged(case: Case) -> None:
    """The cables of the two cameras are exchanged."""
    case.data[0], case.data[1] = case.data[1], case.data[0]


@fault(
    "stereo",
    ("network,right", "float_network_wrong stale_batch_norm wrong_scale"),
    ("eye.conv1,eye.norm1", "stale_batch_norm"),
)
def stereo_right_of_ten_bits(case: Case) -> None:
    """The right camera was replaced by one of ten bits, and is normalized as if it had eight."""
    case.data[1] = ((case.data[1] * GREY_DEVIATION + GREY_MEAN) * 4.01 - GREY_MEAN) / GREY_DEVIATION


@fault("stereo", ("softmax", "wrong_setting"))
def stereo_softmax_over_rows(case: Case) -> None:
    """The port's softmax runs over the picture's rows, since the other framework keeps channels last."""
    case.model.axis = 2


@fault("stereo", ("shifts", "wrong_weights"), ("network", WRONG), ("sum,mul", "wrong_setting wrong_scale"))
def stereo_shifts_from_one(case: Case) -> None:
    """The table of disparities was built anew, and counts from 1."""
    case.module("").shifts += 1


@fault("stereo", ("eye.norm1,eye.conv1", "wrong_setting dead_channels"))
def stereo_eps_drowns(case: Case) -> None:
    """The first layer was trained on narrow numbers with an eps of 1e-12, and the converter set the usual one."""
    conv, norm = case.module("eye.conv1"), case.module("eye.norm1")
    conv.weight.data /= 1000
    norm.running_mean /= 1000
    norm.running_var /= 1e6


@fault("stereo", ("norm2,gather2,network", "not_finite"))
def stereo_variances_overflowed(case: Case) -> None:
    """Variances of most channels were stored in half precision, and are infinite."""
    case.module("norm2").running_var[:20] = float("inf")


@fault("stereo", ("cost", "few_bits"))
def stereo_cost_of_three_bits(case: Case) -> None:
    """The recipe gives the results of the last convolution three bits."""
    case.use(overrides={"cost": {"activation": {"bits": 3}}})


@fault("stereo", ("calibration data", "unrepresentative unlike_data no_variety"))
def stereo_caps_on(case: Case) -> None:
    """The calibration pictures were taken with caps on the lenses: black, with the sensors' noise."""
    data = calibration(case)
    for view in (0, 1):
        dark = (4 + 2 * torch.randn(data[view].shape, generator=generator(21 + view))).clamp_min(0).round()
        data[view] = (dark - GREY_MEAN) / GREY_DEVIATION


@fault("stereo", ("norm1,gather1,gather2,relu", UNEQUAL))
def stereo_gathered_channels_wide(case: Case) -> None:
    """Two channels behind the first convolution of the volume are 150 times as wide, the weights behind as small."""
    norm = case.module("norm1")
    norm.weight.data[[5, 16]] *= 150
    norm.bias.data[[5, 16]] *= 150
    case.module("gather2").weight.data[:, [5, 16]] /= 150


@fault("stereo", ("norm2,gather2,relu", "stale_range clipped_range"), ("cost", "stale_range"))
def stereo_frozen_then_scaled(case: Case) -> None:
    """Scales were frozen, and then gains of a norm rose, and the weights behind them fell as much."""
    sim = case.simulate()
    with torch.no_grad():
        for model in (case.model, sim):
            norm = model.get_submodule("norm2")
            norm.weight.mul_(5)
            norm.bias.mul_(5)
            model.get_submodule("cost").weight.div_(5)


# --- dates: written dates -------------------------------------------------------------------------------------------


@fault("dates", ("network,written", WRONG), ("letters", "wrong_weights"))
def dates_tokens_shifted(case: Case) -> None:
    """The new tokenizer has a token for a full stop before the others, so that all characters are one row further."""
    case.data[0] = torch.where(case.data[0] == NOTHING, case.data[0], case.data[0] + 1)


@fault("dates", ("network,before", WRONG))
def dates_not_shifted(case: Case) -> None:
    """The serving code feeds the digits two steps late, behind two beginnings."""
    case.data[1] = torch.cat([torch.full_like(case.data[1][:, :1], BEGIN), case.data[1][:, :-1]], 1)


@fault("dates", ("say", "wrong_weights"))
def dates_no_longer_tied(case: Case) -> None:
    """The last layer shared the digits' table; the checkpoint holds it once, and the port has a table of its own."""
    case.model.say = nn.Linear(40, 11, bias=False).eval()


@fault("dates", ("places", "wrong_weights"))
def dates_places_not_loaded(case: Case) -> None:
    """The characters' places belong to no layer and were not in the checkpoint: they are as initialized."""
    case.model.places.data = 0.3 * torch.randn(case.model.places.shape, generator=generator(22))


@fault("dates", ("later", "wrong_weights"), ("decode1.own,decode2.own,network", "wrong_setting wrong_weights"))
def dates_later_ones_seen(case: Case) -> None:
    """The mask of later digits is a buffer that nobody saved, and was filled with zeros."""
    case.model.later.zero_()


@fault("dates", ("decode1.cross.key,decode2.cross.key,decode1.cross,decode2.cross", "wrong_weights"))
def dates_keys_exchanged(case: Case) -> None:
    """A pattern for renaming matched both decoders, and exchanged the keys and values of the source."""
    one, other = case.module("decode1.cross"), case.module("decode2.cross")
    for name in ("key", "value"):
        exchange(one.get_submodule(name).weight, other.get_submodule(name).weight)
        exchange(one.get_submodule(name).bias, other.get_submodule(name).bias)


@fault(
    "dates",
    (
        "norm_source,decode1.cross.key,decode1.cross.value,decode2.cross.key,decode2.cross.value",
        UNEQUAL,
    ),
)
def dates_source_channels_unequal(case: Case) -> None:
    """The encoder's last norm has gains between 1 and 200 times theirs, which both decoders' weights take back."""
    factors, norm = spread(40, 200.0, 23), case.module("norm_source")
    norm.weight.data *= factors
    norm.bias.data *= factors
    for decoder in ("decode1", "decode2"):
        for layer in ("key", "value"):
            case.module(f"{decoder}.cross.{layer}").weight.data /= factors


@fault(
    "dates",
    (
        "decode1.cross.key,decode2.cross.key,decode1.cross.unflatten,decode2.cross.unflatten,"
        "decode1.cross.matmul,decode2.cross.matmul",
        "large_bias cancellation",
    ),
)
def dates_key_biases_drifted(case: Case) -> None:
    """Biases of keys change nothing, since a softmax takes away what all keys have in common, and they drifted far."""
    for k, name in enumerate(("decode1", "decode2")):
        bias = case.module(f"{name}.cross.key").bias
        bias.data += 60 * torch.randn(40, generator=generator(30 + k)).sign()


@fault("dates", ("calibration data", "unrepresentative unlike_data no_variety"))
def dates_calibrated_at_the_beginning(case: Case) -> None:
    """The calibration script asks for the first digit only, of nothing written: all else is filled up."""
    data = calibration(case)
    data[0] = torch.cat([data[0][:, :1], torch.full_like(data[0][:, 1:], NOTHING)], 1)
    data[1] = torch.full_like(data[1], BEGIN)


@fault("dates", ("decode2.up,decode2.relu,decode2.down", "few_bits"))
def dates_two_bits_inside(case: Case) -> None:
    """The recipe gives two bits to what lies between the maps of the second decoder."""
    case.use(overrides={"decode2.up": {"activation": {"bits": 2}}, "decode2.relu": {"activation": {"bits": 2}}})


# --- wind: quantiles of power ---------------------------------------------------------------------------------------


@fault("wind", ("network,hours", WRONG))
def wind_in_knots(case: Case) -> None:
    """The new station gives knots, normalized by the constants for metres a second."""
    hours = case.data[0].clone()
    hours[:, :, 0] = ((hours[:, :, 0] * 3.2 + 8.0) * 1.94384 - 8.0) / 3.2
    case.data[0] = hours


@fault("wind", ("network,hours", WRONG))
def wind_hours_late(case: Case) -> None:
    """The database gives the newest hour first."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("wind", ("first", "wrong_weights wrong_setting"))
def wind_gates_of_onnx(case: Case) -> None:
    """The first LSTM's gates lie in the order of the exchange format: input, output, forget, cell."""
    for parameter in case.module("first").parameters():
        entry, forget, cell, out = parameter.data.chunk(4)
        parameter.data = torch.cat([entry, out, forget, cell]).contiguous()


@fault("wind", ("first,second", "exploded_weight large_bias wrong_weights exploded_channel"))
def wind_memory_held(case: Case) -> None:
    """Biases of forget gates of twelve units were set for memories of thousands of hours, and never let go."""
    case.module("second").bias_ih_l0.data[32:44] += 60


@fault("wind", ("quantiles", "wrong_weights"), ("network", WRONG))
def wind_quantiles_turned(case: Case) -> None:
    """The checkpoint has the quantiles in falling order."""
    last = case.module("quantiles")
    last.weight.data, last.bias.data = last.weight.data.flip(0).contiguous(), last.bias.data.flip(0).contiguous()


@fault("wind", ("first,second", "wrong_weights"))
def wind_recurrent_not_loaded(case: Case) -> None:
    """The LSTMs' recurrent weights have other names in the checkpoint, and are as initialized."""
    torch.manual_seed(25)
    for name in ("first", "second"):
        case.module(name).weight_hh_l0.data = nn.LSTM(32, 32).weight_hh_l0.data.clone()


@fault("wind", ("hours,inlet", UNEQUAL + " large_bias cancellation"))
def wind_raw_pressure(case: Case) -> None:
    """The network takes the pressure as it is measured, near 1012, and its first weights and biases fit that."""
    inlet = case.module("inlet")
    hours = case.data[0].clone()
    hours[:, :, 4] = hours[:, :, 4] * 7.0 + 1012.0
    case.data[0] = hours
    inlet.weight.data[:, 4] /= 7.0
    inlet.bias.data -= 1012.0 * inlet.weight.data[:, 4]


@fault("wind", ("calibration data", "unrepresentative unlike_data one_class"))
def wind_calm_days(case: Case) -> None:
    """The network is calibrated on the calmest days of the year."""
    calm = build("wind").data[0][:, :, 0].amax(1).argsort()
    case.calibration = [part[calm[:32]].clone() for part in build("wind").data]
    case.data = [part[calm[32:].sort().values].clone() for part in build("wind").data]
    case.use(activation=MINMAX)


@fault("wind", ("hours", "heavy_tail wide_range"), ("calibration data", "outlier_sample"))
def wind_missing_pressure(case: Case) -> None:
    """In three calibration samples a few hours of pressure are missing, which means 0, and ranges are extremes."""
    data = calibration(case)
    for row, hour in ((8, 3), (8, 4), (55, 20), (101, 11)):
        data[0][row, hour, 4] = -1012.0 / 7.0
    case.use(activation=MINMAX)


@fault("wind", ("inlet,hidden,quantiles,act", "shared_range wide_range"))
def wind_one_range_for_all(case: Case) -> None:
    """One range for the results of all maps was set by hand, as wide as what the widest of them might need."""
    one = {"activation": {"fixed": (60 / 255, 128)}}
    case.use(overrides=dict.fromkeys(("inlet", "hidden", "quantiles"), one))


# --- crop: crops ----------------------------------------------------------------------------------------------------


@fault("crop", ("network,bands", WRONG), ("patches", "wrong_weights"))
def crop_red_and_blue(case: Case) -> None:
    """The new library gives red, green, blue, and the network was trained on blue, green, red."""
    raw = (case.data[0] * BAND_DEVIATIONS + BAND_MEANS)[:, [2, 1, 0, 3, 4, 5]]
    case.data[0] = (raw - BAND_MEANS) / BAND_DEVIATIONS


@fault("crop", ("network,bands", WRONG))
def crop_new_baseline(case: Case) -> None:
    """Since a new version of the product all reflectances are 1000 larger, which the loader does not know."""
    case.data[0] = case.data[0] + 1000 / BAND_DEVIATIONS


@fault("crop", ("block1,block2,block3,block4", "wrong_weights wrong_scale"))
def crop_factors_not_loaded(case: Case) -> None:
    """The blocks' factors have another name in the checkpoint, and are as initialized, at one in a million."""
    for name in ("block1", "block2", "block3", "block4"):
        case.module(name).factors.data.fill_(1e-6)


@fault("crop", ("smaller", "wrong_weights"))
def crop_patches_merged_otherwise(case: Case) -> None:
    """The weights that halve the size are of a library that joins four places first and channels last."""
    weight = case.module("smaller").weight
    weight.data = weight.data.permute(0, 2, 3, 1).reshape(weight.shape).contiguous()


@fault("crop", ("network", "diverged_training float_network_wrong wrong_weights"))
def crop_average_not_corrected(case: Case) -> None:
    """The delivered weights are a moving average that began with zeros, and had hardly any time to rise."""
    for parameter in case.model.parameters():
        parameter.data *= 0.03


@fault("crop", ("calibration data", "unlike_data"))
def crop_calibrated_on_reflectances(case: Case) -> None:
    """The calibration tiles are reflectances between 0 and 1, and were not normalized."""
    data = calibration(case)
    data[0] = (data[0] * BAND_DEVIATIONS + BAND_MEANS) / 10000


@fault("crop", ("block3.down,block3.factors,block3.mul,block3.up", UNEQUAL))
def crop_factors_unequal(case: Case) -> None:
    """The third block's factors fell to a 500th in many channels, and the weights before them rose as much."""
    factors, block = spread(32, 500.0, 26), case.module("block3")
    block.down.weight.data *= factors[:, None]
    block.down.bias.data *= factors
    block.factors.data /= factors


@fault("crop", ("bands", "wide_range"))
def crop_range_of_raw_bands(case: Case) -> None:
    """The range of the input was set by hand to what raw reflectances would need after a division by 100."""
    fixed(case, "bands", 200 / 255, 128)


@fault("crop", ("", "float_mismatch"))
def crop_simulated_before_merging(case: Case) -> None:
    """The simulation was made before adapters were merged into the weights of two layers."""
    case.simulate()
    chance = generator(27)
    for name in ("block1.up", "block4.up"):
        weight = case.module(name).weight
        one, other = torch.randn(len(weight), 2, generator=chance), torch.randn(2, weight.shape[1], generator=chance)
        weight.data += 0.08 * one @ other


# --- news: articles -------------------------------------------------------------------------------------------------


@fault("news", ("network,ago", WRONG))
def news_hours_plain(case: Case) -> None:
    """The hours since an article was read are given as they are, and not as logarithms."""
    case.data[1] = case.data[1].exp()


@fault("news", ("network,offered", WRONG))
def news_offered_by_other_numbers(case: Case) -> None:
    """The service of candidates has numbers from 1, and that of histories from 0."""
    case.data[2] = (case.data[2] + 1) % ARTICLES


@fault("news", ("shares", "wrong_setting"))
def news_shares_by_softmax(case: Case) -> None:
    """The port divides shares among the articles read by a softmax, where each had a sigmoid of its own."""
    case.model.shares = nn.Softmax(2)


@fault("news", ("articles", "wrong_weights"))
def news_table_of_half_the_rows(case: Case) -> None:
    """The table was stored with half of its rows to save memory, and the others are copies of these."""
    weight = case.module("articles").weight
    weight.data = weight.data[: ARTICLES // 2].repeat(2, 1)


@fault("news", ("articles", "wrong_weights rounded_weights"))
def news_table_of_whole_numbers(case: Case) -> None:
    """The data base keeps the table in a column of whole numbers."""
    weight = case.module("articles").weight
    weight.data = weight.data.round()


@fault("news", ("score3", "large_bias"))
def news_scores_drifted(case: Case) -> None:
    """The loss does not see what all scores have in common, and it drifted to 3000."""
    case.module("score3").bias.data += 3000


@fault("news", ("articles,cat,mul,care1,score1", UNEQUAL + " shared_range"))
def news_one_number_wide(case: Case) -> None:
    """One number of each article is 50 times as wide as the others, and the weights behind as much smaller."""
    case.module("articles").weight.data[:, 6] *= 50
    for name in ("care1", "score1"):
        for part, factor in ((0, 50), (20, 50), (40, 2500)):
            case.module(name).weight.data[:, part + 6] /= factor


@fault("news", ("calibration data", "unrepresentative unlike_data no_variety"))
def news_new_readers(case: Case) -> None:
    """The network is calibrated on new readers: the first article of the table ten times, six minutes ago."""
    data = calibration(case)
    data[0] = torch.zeros_like(data[0])
    data[1] = torch.full_like(data[1], -2.3)


@fault("news", ("score1,score2", "per_tensor_weight " + UNEQUAL), ("", "per_tensor_weight"), ("act1", UNEQUAL))
def news_one_scale_of_weights(case: Case) -> None:
    """Weights have one scale for each layer, and the rows of the first layer of scores differ by a factor of 80."""
    factors = spread(48, 80.0, 28)
    one, other = case.module("score1"), case.module("score2")
    one.weight.data *= factors[:, None]
    one.bias.data *= factors
    other.weight.data /= factors
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


# --- boxes: objects -------------------------------------------------------------------------------------------------


@fault("boxes", ("network,picture", "float_network_wrong stale_batch_norm wrong_scale"), ("stem", "stale_batch_norm"))
def boxes_of_bytes(case: Case) -> None:
    """The pictures are bytes between 0 and 255, and the network was trained on numbers between 0 and 1."""
    case.data[0] = case.data[0] * 255


@fault("boxes", ("network,picture", WRONG))
def boxes_upside_down(case: Case) -> None:
    """The camera hangs from the ceiling, and nobody reads the tag that says so."""
    case.data[0] = case.data[0].flip(2).contiguous()


@fault("boxes", ("say", "wrong_weights"), ("network", WRONG))
def boxes_objectness_last(case: Case) -> None:
    """The checkpoint is of a version that says the box first, then the object, then the kinds."""
    last, order = case.module("say"), [1, 2, 3, 4, 0, 5, 6, 7]
    last.weight.data, last.bias.data = last.weight.data[order].contiguous(), last.bias.data[order].contiguous()


@fault("boxes", ("stem", "wrong_setting"))
def boxes_activation_lost(case: Case) -> None:
    """When a convolution and its norm were fused by hand, the activation behind them was lost."""
    case.module("stem").act = nn.Identity()


@fault("boxes", ("part1.one", "wrong_weights stale_batch_norm wrong_scale"))
def boxes_folded_twice(case: Case) -> None:
    """The converter folded a norm into the convolution before it, and left the norm where it was."""
    conv, norm = case.module("part1.one.conv"), case.module("part1.one.norm")
    conv.weight.data *= (norm.weight.data / (norm.running_var + norm.eps).sqrt())[:, None, None, None]


@fault("boxes", ("part1.one,part1.other", "wrong_weights"), ("part1.mix", "wrong_weights wrong_setting"))
def boxes_halves_exchanged(case: Case) -> None:
    """The names of a partial block's two ways in mean the opposite in the other library."""
    one, other = case.module("part1.one"), case.module("part1.other")
    for name, values in one.state_dict().items():
        exchange(values, other.state_dict()[name])


@fault("boxes", ("", "few_bits"))
def boxes_results_of_four_bits(case: Case) -> None:
    """The recipe gives the results of all layers four bits."""
    case.use(activation=replace(recipes.default().activation, bits=4))


@fault("boxes", ("", "symmetric_range"))
def boxes_symmetric(case: Case) -> None:
    """The recipe has symmetric ranges for results, which are hardly ever below zero."""
    case.use(activation=replace(recipes.default().activation, dtype="int8", symmetric=True))


@fault("boxes", ("", "moving_average"), ("calibration data", "unrepresentative unlike_data"))
def boxes_night_last(case: Case) -> None:
    """The observer is a moving average, and the last calibration pictures were taken when the light was off."""
    data = calibration(case)
    data[0] = torch.cat([data[0][:64], data[0][64:] * 0.0 + 0.02])
    case.use(activation=replace(recipes.default().activation, observer="moving_average"))


# --- engine: cycles that are left -----------------------------------------------------------------------------------


@fault("engine", ("network,gauges", WRONG))
def engine_in_kelvin(case: Case) -> None:
    """Two temperatures are given in kelvin, and normalized by constants in degrees Rankine."""
    raw = case.data[0] * GAUGE_DEVIATIONS + GAUGE_MEANS
    raw[:, :, :2] /= 1.8
    case.data[0] = (raw - GAUGE_MEANS) / GAUGE_DEVIATIONS


@fault("engine", ("network,gauges", WRONG), ("inlet", "wrong_weights"))
def engine_gauge_left_out(case: Case) -> None:
    """The new recorder lacks the fourth gauge, so that those behind it moved up, and the last is 0."""
    gauges = case.data[0]
    case.data[0] = torch.cat([gauges[:, :, :3], gauges[:, :, 4:], torch.zeros_like(gauges[:, :, :1])], 2)


@fault("engine", ("mixer1.time", "wrong_weights"))
def engine_time_transposed(case: Case) -> None:
    """The first map over time has as many inputs as outputs, and was loaded without being transposed."""
    weight = case.module("mixer1.time").weight
    weight.data = weight.data.T.contiguous()


@fault("engine", ("squash", "wrong_setting"), ("network", WRONG), ("left", "wrong_setting"))
def engine_without_sigmoid(case: Case) -> None:
    """The exporter took the network without the sigmoid at its end, as for a loss that has one of its own."""
    case.model.squash = nn.Identity()


@fault("engine", ("network", "diverged_training float_network_wrong"))
def engine_rate_too_high(case: Case) -> None:
    """The network was tuned on a new fleet at a rate that was far too high."""
    train_again(case, 1.5, 60, F.mse_loss)


@fault("engine", ("mixer1.norm1,mixer2.norm1,mixer3.norm1,network", "stale_batch_norm"))
def engine_statistics_of_new_ones(case: Case) -> None:
    """The batch norms' statistics were updated on test runs of new engines, none of which is worn."""
    gauges, left = build("engine").data
    collect(case.model, gauges[left.argsort(descending=True)[:128]], norms_of(case.model))


class ByBatch(nn.Module):
    """Gauges normalized by the batch, and a map."""

    def __init__(self, inlet: nn.Module) -> None:
        super().__init__()
        self.inlet = inlet

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean((0, 1), keepdim=True)
        return self.inlet(x / (x.square().mean((0, 1), keepdim=True) + 1e-6).sqrt())


@fault("engine", ("", "batch_dependence"))
def engine_normalized_by_batch(case: Case) -> None:
    """The port normalizes gauges by each batch, and the engines come in the order of their age."""
    case.model.inlet = ByBatch(case.model.inlet)
    order = case.data[1].argsort()
    case.data = [part[order].contiguous() for part in case.data]


@fault("engine", ("inlet,gauges", UNEQUAL + " large_bias cancellation wide_range"))
def engine_raw_gauges(case: Case) -> None:
    """The normalization was folded into the first layer, which takes gauges as they are, far from zero."""
    inlet = case.module("inlet")
    case.data[0] = case.data[0] * GAUGE_DEVIATIONS + GAUGE_MEANS
    inlet.weight.data /= GAUGE_DEVIATIONS
    inlet.bias.data -= inlet.weight.data @ GAUGE_MEANS


@fault("engine", ("calibration data", "one_class unrepresentative unlike_data"))
def engine_new_ones_only(case: Case) -> None:
    """The network is calibrated on new engines, none of which is worn, by their extremes."""
    data = build("engine").data
    old = data[1].argsort(descending=True)
    case.calibration = [part[old[:64]].clone() for part in data]
    case.data = [part[old[64:].sort().values].clone() for part in data]
    case.use(activation=MINMAX)


@fault("engine", ("left", "zero_point clipped_range"))
def engine_zero_point_slipped(case: Case) -> None:
    """The range of the last results was written with a zero point for signed numbers, and lies below zero."""
    fixed(case, "left", 12 / 255, 240)


# --- separate: voices and drums -------------------------------------------------------------------------------------


@fault("separate", ("network,mixture", "float_network_wrong wrong_scale"))
def separate_of_sixteen_bits(case: Case) -> None:
    """The mixtures are whole numbers of 16 bits, and the network was trained on numbers between -1 and 1."""
    case.data[0] = (case.data[0] * 8192).round()


@fault("separate", ("masks", "wrong_weights"), ("network", WRONG), ("cat,chunk", "wrong_setting"))
def separate_sources_exchanged(case: Case) -> None:
    """The checkpoint gives the drums first, and then the voice."""
    masks = case.module("masks")
    masks.weight.data, masks.bias.data = masks.weight.data.roll(40, 0), masks.bias.data.roll(40, 0)


@fault("separate", ("network,mixture", WRONG))
def separate_samples_late(case: Case) -> None:
    """A filter in front of the network delays what it hears by five samples, which the labels are not."""
    case.data[0] = case.data[0].roll(5, 2).contiguous()


@fault("separate", ("decoder", "wrong_weights wrong_setting"))
def separate_decoder_turned(case: Case) -> None:
    """The other framework turns the kernels of transposed convolutions round in time, and the converter did not."""
    weight = case.module("decoder").weight
    weight.data = weight.data.flip(2).contiguous()


@fault("separate", ("encoder", "wrong_weights"))
def separate_encoder_half_loaded(case: Case) -> None:
    """The checkpoint's encoder has half as many filters, and the loader left the others as initialized."""
    torch.manual_seed(29)
    other = nn.Conv1d(1, 40, 16, 8, 4, bias=False)
    case.module("encoder").weight.data[20:] = other.weight.data[20:]


@fault("separate", ("gate", "wrong_setting"))
def separate_masks_by_relu(case: Case) -> None:
    """The port lets masks be any number above zero, where the network was trained with a sigmoid."""
    case.model.gate = nn.ReLU()


@fault(
    "separate",
    ("block1.narrow,block1.add,block2.add,add,block2.narrow,block2.widen,block1,block2", "large_bias cancellation"),
)
def separate_stream_lifted(case: Case) -> None:
    """The first block lifts all that it passes on by 500, and the second takes it back."""
    one, two = case.module("block1"), case.module("block2")
    one.narrow.bias.data += 500
    two.widen.bias.data -= 500 * two.widen.weight.data.sum((1, 2))
    two.narrow.bias.data -= 500


@fault("separate", ("encoder", "clipped_range"))
def separate_frames_cut(case: Case) -> None:
    """The recipe cuts the encoder's results at the percentile 95."""
    scheme = {"observer": "percentile", "observer_args": {"percentile": 95.0}}
    case.use(overrides={"encoder": {"activation": scheme}})


@fault("separate", ("decoder", "few_bits"))
def separate_decoder_of_three_bits(case: Case) -> None:
    """The recipe gives the decoder's weights three bits."""
    case.use(overrides={"decoder": {"weight": {"bits": 3}}})


@fault("separate", ("calibration data", "too_few no_variety unrepresentative"))
def separate_one_mixture(case: Case) -> None:
    """The network is calibrated on the first second of a recording, in which hardly anybody speaks."""
    data = calibration(case)
    quiet = data[0].square().mean((1, 2)).argsort()[:1]
    case.calibration = [part[quiet] for part in data]


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


SOUND: dict[str, Callable[[], Case]] = {
    "stereo": lambda: calibrated("stereo"),
    "dates": lambda: calibrated("dates"),
    "wind": lambda: calibrated("wind"),
    "crop": lambda: calibrated("crop"),
    "news": lambda: calibrated("news"),
    "boxes": lambda: calibrated("boxes"),
    "engine": lambda: calibrated("engine"),
    "separate": lambda: calibrated("separate"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "boxes_halves_exchanged": "a layer further behind, whose statistics do not fit, is named",
    "crop_factors_unequal": "factors become a part of the weights now, and nothing is lost",
    "dates_places_not_loaded": "positions that begin with another deviation than 0.02 are not told from trained ones",
    "engine_statistics_of_new_ones": "inputs prepared otherwise make up for the statistics",
    "engine_without_sigmoid": "numbers from 0 to 1 are taken for probabilities that logits are trained on",
    "separate_decoder_turned": "the encoder turned round gives as much back",
    "wind_gates_of_onnx": "the metric is of batches, so that no repair is measured",
}
"""What the doctor does not say first, and what it says."""
