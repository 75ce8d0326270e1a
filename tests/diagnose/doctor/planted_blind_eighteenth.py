"""Faults in eight small networks of further trades, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_eighteenth import (
    ECHO_DEVIATION,
    ECHO_MEAN,
    MOTION_DEVIATIONS,
    MOTION_MEANS,
    PLACES,
    POINTS,
    RIDE_DEVIATIONS,
    SPEED_DEVIATION,
    SPEED_MEAN,
    START,
    STATIONS,
    STOP,
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
    case_of,
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


# --- gesture: gestures of a wrist -----------------------------------------------------------------------------------


@fault("gesture", ("network,motion", WRONG))
def gesture_other_wrist(case: Case) -> None:
    """The band is worn on the other wrist, the wrong way round: two axes of both sensors point backwards."""
    raw = case.data[0] * MOTION_DEVIATIONS + MOTION_MEANS
    raw[:, [0, 1, 3, 4]] *= -1
    case.data[0] = (raw - MOTION_MEANS) / MOTION_DEVIATIONS


@fault("gesture", ("block4.conv1,block4.conv2,block4.norm1,block4.norm2", "wrong_setting wrong_weights"))
def gesture_gaps_lost(case: Case) -> None:
    """The exporter does not know gaps in one dimension, and the convolutions of the last block have none."""
    block = case.module("block4")
    block.past = 2
    for conv in (block.conv1, block.conv2):
        conv.dilation = (1,)


@fault("gesture", ("block2.conv1,block2.conv2", "wrong_weights"))
def gesture_kernels_turned(case: Case) -> None:
    """The other framework turns kernels round, as mathematics does, and the converter forgot one block."""
    for name in ("conv1", "conv2"):
        weight = case.module(f"block2.{name}").weight
        weight.data = weight.data.flip(2).contiguous()


@fault("gesture", ("", "stale_batch_norm"))
def gesture_statistics_not_saved(case: Case) -> None:
    """The checkpoint holds parameters only: the means of all batch norms are 0 and the variances 1."""
    for norm in norms_of(case.model):
        norm.reset_running_stats()


@fault("gesture", ("block2.norm2,block2.conv2", "exploded_channel exploded_weight wrong_weights"))
def gesture_points_lost(case: Case) -> None:
    """Two gains of a norm went through a table of text and lost their decimal points: they are 1000 times as large."""
    case.module("block2.norm2").weight.data[[4, 13]] *= 1000


@fault("gesture", ("", "training_mode"))
def gesture_left_in_training(case: Case) -> None:
    """Nobody called eval, and the records come sorted by their gestures."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    case.model.train()


@fault("gesture", ("calibration data", "unrepresentative unlike_data no_variety"))
def gesture_on_the_table(case: Case) -> None:
    """The calibration records were taken while the band lay on a table: gravity and a little noise."""
    data = calibration(case)
    data[0] = 0.05 * torch.randn(data[0].shape, generator=generator(41))


@fault("gesture", ("motion", "clipped_range"))
def gesture_between_minus_1_and_1(case: Case) -> None:
    """The range of the input was set by hand to what normalized numbers usually are, between -1 and 1."""
    fixed(case, "motion", 2 / 255, 128)


@fault("gesture", ("hidden,relu", "wide_range"))
def gesture_hidden_range_by_hand(case: Case) -> None:
    """The range of the hidden units was set by hand to what an accumulator can hold, ±400."""
    fixed(case, "hidden", 800 / 255, 128)


@fault(
    "gesture",
    (
        "block1.conv2,block1.norm2,block1.match,block1.add,block1.act,block2.conv1,block2.conv2,block2.norm2,block2.add,"
        "block2.act,block3.conv1,block3.match",
        UNEQUAL,
    ),
)
def gesture_stream_unequal(case: Case) -> None:
    """Channels of the stream between the second and the third block have widths between 1 and 300."""
    factors = spread(20, 300.0, 43)
    one, two, three = (case.module(f"block{k}") for k in (1, 2, 3))
    for norm in (one.norm2, two.norm2):
        norm.weight.data *= factors
        norm.bias.data *= factors
    one.match.weight.data *= factors[:, None, None]
    one.match.bias.data *= factors
    for conv in (two.conv1, three.conv1, three.match):
        conv.weight.data /= factors[:, None]


# --- cloud: shapes of points ----------------------------------------------------------------------------------------


@fault("cloud", ("network,points", WRONG), ("point1", "wrong_weights"))
def cloud_second_axis_up(case: Case) -> None:
    """The files are of a drawing program, in which the second axis points upwards."""
    case.data[0] = case.data[0][:, [0, 2, 1]].contiguous()


@fault("cloud", ("hidden", "wrong_weights wrong_setting"), ("cat", "wrong_setting"), ("norm5", "wrong_weights"))
def cloud_halves_exchanged(case: Case) -> None:
    """The other library joins means first and then maxima: the halves of the weights behind are exchanged."""
    weight = case.module("hidden").weight
    weight.data = weight.data.roll(80, 1).contiguous()


class OfTheBatch(nn.Module):
    """A batch norm that takes what it needs from the batch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean((0, 2), keepdim=True)
        x = x / (x.square().mean((0, 2), keepdim=True) + 1e-5).sqrt()
        return x * self.weight[:, None] + self.bias[:, None]


@fault("cloud", ("", "batch_dependence"))
def cloud_statistics_of_the_batch(case: Case) -> None:
    """The port's norms keep no statistics and take those of the batch, and the clouds come sorted by their shapes."""
    for name in ("norm1", "norm2", "norm3", "norm4"):
        setattr(case.model, name, OfTheBatch(case.module(name)))
    order = case.data[1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]


@fault("cloud", ("point3,norm3", "wrong_weights dead_channels stale_batch_norm"))
def cloud_pruned(case: Case) -> None:
    """Two in three channels of a layer were pruned, with zeros for their weights, and nobody trained again."""
    weight = case.module("point3").weight
    small = weight.data.flatten(1).norm(dim=1).argsort()[:42]
    weight.data[small] = 0


@fault("cloud", ("act", "wrong_setting"))
def cloud_slope_of_one_in_a_hundred(case: Case) -> None:
    """The port has the usual slope of 0.01 below zero, where the network was trained with 0.2."""
    case.model.act = nn.LeakyReLU(0.01)


@fault("cloud", ("points", "heavy_tail wide_range"), ("calibration data", "outlier_sample"))
def cloud_ghosts(case: Case) -> None:
    """In three calibration clouds a ray went through a window and came back from afar, and ranges are extremes."""
    data = calibration(case)
    for row, point in ((12, 3), (60, 40), (99, 17)):
        data[0][row, :, point] = torch.tensor([55.0, -48.0, 12.0])
    case.use(activation=MINMAX)


@fault("cloud", ("points", "zero_point clipped_range"))
def cloud_points_above_zero(case: Case) -> None:
    """The range of the points was set by hand as for pictures, with a zero point of 0: what lies below zero is cut."""
    fixed(case, "points", 2.5 / 255, 0)


@fault("cloud", ("calibration data", "too_few no_variety unrepresentative"))
def cloud_origin_only(case: Case) -> None:
    """The network is calibrated on what the scanner gives before the first turn: all points in one place."""
    data = calibration(case)
    data[0] = data[0][:1].mean(2, keepdim=True).expand(128, 3, POINTS).clone()


@fault("cloud", ("hidden,norm4,point4,act,amax,mean,cat", UNEQUAL))
def cloud_dead_maxima(case: Case) -> None:
    """Weights of four features that are nearly always zero grew without end, and stretch the rows' scales."""
    norm, hidden = case.module("norm4"), case.module("hidden")
    chosen = [4, 22, 41, 63]
    norm.weight.data[chosen] *= 1e-3
    norm.bias.data[chosen] *= 1e-3
    hidden.weight.data[:, chosen] *= 1e3
    hidden.weight.data[:, [80 + k for k in chosen]] *= 1e3


# --- traffic: speeds on roads ---------------------------------------------------------------------------------------


@fault("traffic", ("network,speeds", WRONG))
def traffic_missing_as_zero(case: Case) -> None:
    """A quarter of the loops is out of order, and the data base gives a speed of 0."""
    lost = torch.rand(len(case.data[0]), PLACES, 1, generator=generator(44)) < 0.25
    case.data[0] = torch.where(lost, -SPEED_MEAN / SPEED_DEVIATION, case.data[0])


@fault(
    "traffic",
    ("follows,leads", "wrong_weights"),
    ("spread1,spread2,spread3", "wrong_weights wrong_setting"),
    ("network", WRONG),
)
def traffic_edges_turned(case: Case) -> None:
    """The library's edges go from the target to the source: what follows and what leads are exchanged."""
    exchange(case.model.follows, case.model.leads)


@fault("traffic", ("network,speeds", WRONG), ("follows,leads,spot", "wrong_weights"))
def traffic_loops_renumbered(case: Case) -> None:
    """The loops have new numbers in the speeds, and the old ones in the graph."""
    order = torch.randperm(PLACES, generator=generator(45))
    case.data[0], case.data[2] = case.data[0][:, order].contiguous(), case.data[2][:, order].contiguous()


@fault("traffic", ("spread1.norm", "wrong_setting"))
def traffic_eps_without_minus(case: Case) -> None:
    """The configuration's eps of 1e-5 was typed as 1e5 in one norm."""
    case.module("spread1.norm").eps = 1e5


@fault("traffic", ("spread2.act,spread2.sigmoid", "wrong_setting"))
def traffic_sigmoid_for_silu(case: Case) -> None:
    """The converter wrote a sigmoid where the sigmoid is to be multiplied with what came in."""
    case.module("spread2").act = nn.Sigmoid()


@fault("traffic", ("calibration data", "unrepresentative unlike_data one_class"))
def traffic_at_night(case: Case) -> None:
    """The network is calibrated on the hours in which all roads are free, by their extremes."""
    data = build("traffic").data
    free = data[0].amin((1, 2)).argsort(descending=True)
    case.calibration = [part[free[:64]].clone() for part in data]
    case.data = [part[free[64:].sort().values].clone() for part in data]
    case.use(activation=MINMAX)


@fault("traffic", ("change2", "wide_range"))
def traffic_change_of_any_speed(case: Case) -> None:
    """The range of the change was set by hand to ±100, as if it were in kilometres an hour."""
    fixed(case, "change2", 200 / 255, 128)


@fault("traffic", ("change2", "zero_point clipped_range"))
def traffic_never_faster(case: Case) -> None:
    """The range of the change was set with a zero point at its upper end: speeds only ever fall."""
    fixed(case, "change2", 4 / 255, 255)


@fault("traffic", ("", "float_mismatch"))
def traffic_road_closed(case: Case) -> None:
    """The simulation was made, and then two roads were closed, in the network's graph alone."""
    case.simulate()
    for name in ("follows", "leads"):
        graph = getattr(case.model, name)
        graph[:, 5:12] = 0
        graph[5:12, :] = 0


@fault("traffic", ("inlet", "few_bits"))
def traffic_past_of_three_bits(case: Case) -> None:
    """The recipe gives the results of the first map three bits."""
    case.use(overrides={"inlet": {"activation": {"bits": 3}}})


# --- roman: Roman numerals ------------------------------------------------------------------------------------------


@fault("roman", ("writer", "wrong_weights wrong_setting"))
def roman_gates_of_keras(case: Case) -> None:
    """The writer's gates lie in the other framework's order: update before reset."""
    for parameter in case.module("writer").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([update, reset, new]).contiguous()


@fault("roman", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def roman_round_thousands(case: Case) -> None:
    """The network is calibrated on round thousands, of which there are three."""
    data = calibration(case)
    thousands = 1 + torch.arange(128) % 3
    data[0] = torch.zeros_like(data[0])
    data[0][:, 0] = thousands
    letters = torch.where(torch.arange(data[2].shape[1]) < thousands[:, None], 7, STOP)
    data[1], data[2] = torch.cat([torch.full((128, 1), START), letters[:, :-1]], 1), letters


@fault("roman", ("network,before", WRONG), ("letters", "wrong_weights"))
def roman_start_is_stop(case: Case) -> None:
    """The serving code has letters from 0, and the network from 1: each letter before is one row off."""
    case.data[1] = (case.data[1] - 1).clamp_min(STOP)


@fault("roman", ("bridge,begin", "wrong_weights wrong_setting"))
def roman_bridge_lost(case: Case) -> None:
    """The layer between reader and writer was not exported: zeros are handed over."""
    for parameter in case.module("bridge").parameters():
        parameter.data.zero_()


@fault("roman", ("writer", "rounded_weights wrong_weights"), ("", "rounded_weights"))
def roman_writer_in_halves(case: Case) -> None:
    """The delivered weights of the writer are multiples of a half, for a device of long ago."""
    for parameter in case.module("writer").parameters():
        parameter.data = (2 * parameter.data).round() / 2


@fault("roman", ("calibration data", "unrepresentative unlike_data no_variety"))
def roman_zeros_only(case: Case) -> None:
    """The calibration script asks for the number 0000, with letters of nothing."""
    data = calibration(case)
    data[0], data[1] = torch.zeros_like(data[0]), torch.full_like(data[1], STOP)


@fault("roman", ("writer", "few_bits"))
def roman_writer_of_two_bits(case: Case) -> None:
    """The recipe gives the writer's weights two bits."""
    case.use(overrides={"writer": {"weight": {"bits": 2}}})


@fault("roman", ("mix", "clipped_range"))
def roman_half_a_tanh(case: Case) -> None:
    """Somebody took what goes into a tanh for what comes out of it, and set its range to between -1 and 1."""
    fixed(case, "mix", 2 / 255, 128)


# --- organ: ultrasound ----------------------------------------------------------------------------------------------


@fault("organ", ("network,echo", "float_network_wrong stale_batch_norm"), ("down1", "stale_batch_norm"))
def organ_not_compressed(case: Case) -> None:
    """The new scanner's pictures are not compressed: dark parts are much darker than in training."""
    bytes_ = case.data[0] * ECHO_DEVIATION + ECHO_MEAN
    case.data[0] = (255 * (bytes_ / 255).pow(2.5) - ECHO_MEAN) / ECHO_DEVIATION


@fault("organ", ("up1.conv1", "wrong_weights wrong_setting"), ("cat", "wrong_setting"), ("up1.norm1", "wrong_weights"))
def organ_skip_last(case: Case) -> None:
    """The other library joins what comes back first and what was before last: the weights behind fit that order."""
    weight = case.module("up1.conv1").weight
    weight.data = weight.data.roll(16, 1).contiguous()


@fault("organ", ("rise1", "wrong_scale wrong_weights"), ("cat", "wrong_scale"))
def organ_rise_four_times(case: Case) -> None:
    """The converter took the first rise for a sum over four pixels, and multiplied its weights by four."""
    for parameter in case.module("rise1").parameters():
        parameter.data *= 4


@fault("organ", ("pool", "wrong_setting"), ("down2,deep", "stale_batch_norm wrong_weights"))
def organ_means_for_maxima(case: Case) -> None:
    """The port has means of four pixels where the network was trained with maxima."""
    case.model.pool = nn.AvgPool2d(2)


@fault("organ", ("", "stale_batch_norm"))
def organ_statistics_of_the_air(case: Case) -> None:
    """The batch norms' statistics were updated while the probe hung in the air."""
    air = (6 + 5 * torch.randn(64, 1, 32, 32, generator=generator(48))).clamp(0, 255).round()
    collect(case.model, (air - ECHO_MEAN) / ECHO_DEVIATION, norms_of(case.model))


@fault(
    "organ",
    ("down2.conv1,down2.norm1,down2.conv2", "per_tensor_weight " + UNEQUAL),
    ("", "per_tensor_weight"),
    ("down2.act", UNEQUAL),
)
def organ_one_scale_of_weights(case: Case) -> None:
    """Weights have one scale for each layer, and the gains of a norm lie between 1 and 100 times theirs."""
    factors, block = spread(16, 100.0, 56), case.module("down2")
    block.norm1.weight.data *= factors
    block.norm1.bias.data *= factors
    block.conv2.weight.data /= factors[:, None, None]
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("organ", ("cat,rise2,down1,up2.conv1", UNEQUAL + " shared_range"))
def organ_rise_narrow(case: Case) -> None:
    """What comes back is 150 times as narrow as what it is joined with, and the weights behind are as much larger."""
    rise, conv = case.module("rise2"), case.module("up2.conv1")
    rise.weight.data /= 150
    rise.bias.data /= 150
    conv.weight.data[:, 8:] *= 150


@fault("organ", ("calibration data", "unlike_data"))
def organ_calibrated_between_0_and_1(case: Case) -> None:
    """The calibration pictures were divided by 255, and not normalized as the data are."""
    data = calibration(case)
    data[0] = (data[0] * ECHO_DEVIATION + ECHO_MEAN) / 255


@fault("organ", ("up2", "few_bits"))
def organ_last_block_of_two_bits(case: Case) -> None:
    """The recipe gives the weights of the last block two bits."""
    case.use(overrides={"up2.conv1": {"weight": {"bits": 2}}, "up2.conv2": {"weight": {"bits": 2}}})


@fault("organ", ("echo", "clipped_range"))
def organ_bright_parts_cut(case: Case) -> None:
    """The recipe cuts the input at the percentile 80."""
    scheme = {"observer": "percentile", "observer_args": {"percentile": 80.0}}
    case.use(overrides={"echo": {"activation": scheme}})


@fault("organ", ("kinds", "large_bias cancellation"))
def organ_logits_far_from_zero(case: Case) -> None:
    """The logits have in common what the softmax takes away, and drifted to 900."""
    case.module("kinds").bias.data += 900


# --- joints: an arm's joints ----------------------------------------------------------------------------------------


@fault("joints", ("grid", "wrong_weights"), ("network", WRONG), ("heat", "wrong_weights"))
def joints_rows_first(case: Case) -> None:
    """The port's grid has rows first and then columns."""
    case.model.grid = case.model.grid.flip(1).contiguous()


@fault("joints", ("grid,matmul", "wrong_weights wrong_scale"), ("network", "float_network_wrong wrong_scale"))
def joints_in_pixels(case: Case) -> None:
    """The port's grid counts the cells of the heat, and does not go from -1 to 1."""
    case.model.grid = (case.model.grid + 1) * 7


@fault("joints", ("block1.depth,block2.depth,block3.depth,block4.depth", "wrong_weights"))
def joints_kernels_transposed(case: Case) -> None:
    """The depthwise kernels were loaded with rows and columns exchanged."""
    for k in range(1, 5):
        weight = case.module(f"block{k}.depth").weight
        weight.data = weight.data.transpose(2, 3).contiguous()


@fault("joints", ("network,picture", WRONG))
def joints_cropped_otherwise(case: Case) -> None:
    """The crop's corner is computed otherwise, and pictures lie four pixels further left than the joints."""
    case.data[0] = case.data[0].roll(-4, 3).contiguous()


@fault("joints", ("heat", "clipped_range"))
def joints_heat_clipped(case: Case) -> None:
    """The range of the heat was set as for probabilities, between 0 and 1."""
    fixed(case, "heat", 1 / 255, 0)


@fault(
    "joints", ("block1.narrow,block1.norm3,block2.widen,block2.narrow,block2.norm3,block2.add,block3.widen", UNEQUAL)
)
def joints_wide_stream(case: Case) -> None:
    """Two channels of the stream are 200 times as wide as the others, and the weights behind as much smaller."""
    wide = [3, 11]
    for name in ("block1.norm3", "block2.norm3"):
        norm = case.module(name)
        norm.weight.data[wide] *= 200
        norm.bias.data[wide] *= 200
    for name in ("block2.widen", "block3.widen"):
        case.module(name).weight.data[:, wide] /= 200


@fault("joints", ("block3,block4,add", "stale_range clipped_range"), ("heat", "stale_range"))
def joints_frozen_then_scaled(case: Case) -> None:
    """Scales were frozen, and then gains of the last stream rose, and the weights of all that reads it fell as much."""
    sim = case.simulate()
    with torch.no_grad():
        for model in (case.model, sim):
            for name in ("block3.norm3", "block4.norm3"):
                norm = model.get_submodule(name)
                norm.weight.mul_(6)
                norm.bias.mul_(6)
            for name in ("block4.widen", "heat"):
                model.get_submodule(name).weight.div_(6)


@fault("joints", ("calibration data", "unlike_data unrepresentative"))
def joints_hardly_any_light(case: Case) -> None:
    """The calibration pictures have a tenth of the light that the data have."""
    data = calibration(case)
    data[0] = ((data[0] + 1) * 0.1) - 1


@fault("joints", ("softmax,matmul", "few_bits"))
def joints_shares_of_four_bits(case: Case) -> None:
    """The recipe gives the shares of places four bits."""
    case.use(overrides={"softmax": {"activation": {"bits": 4}}})


# --- rides: bicycles ------------------------------------------------------------------------------------------------


@fault("rides", ("numbers,cat,cross1,cross2,deep1,mul,add,trunk", UNEQUAL + " shared_range"))
def rides_warmth_in_millikelvins(case: Case) -> None:
    """The network takes the warmth in thousandths: all that reads it has weights that are as much smaller."""
    numbers = case.data[0].clone()
    numbers[:, 0] *= 1000
    case.data[0] = numbers
    for name in ("cross1", "cross2", "deep1", "trunk"):
        case.module(name).weight.data[:, 0] /= 1000


@fault("rides", ("network,numbers", WRONG))
def rides_clock_of_twelve_hours(case: Case) -> None:
    """The hour is of a clock of twelve hours, and nobody reads whether it is morning or afternoon."""
    numbers = case.data[0].clone()
    hour = torch.atan2(numbers[:, 3], numbers[:, 4]) % (2 * torch.pi)
    hour = hour % torch.pi
    numbers[:, 3], numbers[:, 4] = hour.sin() / RIDE_DEVIATIONS[3], hour.cos() / RIDE_DEVIATIONS[4]
    case.data[0] = numbers


@fault("rides", ("network", "float_network_wrong wrong_scale"), ("demand2", "wrong_scale wrong_weights"))
def rides_single_bicycles(case: Case) -> None:
    """The new labels are single bicycles, and the network's are units of 20."""
    answers = case.data[4].clone()
    answers[:, 0] *= 20
    case.data[4] = answers


@fault("rides", ("stations", "wrong_weights"))
def rides_rows_of_length_one(case: Case) -> None:
    """The search for similar stations scaled all rows of the table to length 1, in place."""
    weight = case.module("stations").weight
    weight.data /= weight.data.norm(dim=1, keepdim=True)


@fault("rides", ("act", "wrong_setting"))
def rides_relu(case: Case) -> None:
    """The port uses ReLU where the network was trained with SELU."""
    case.model.act = nn.ReLU()


@fault("rides", ("state1,demand1", "wrong_weights"))
def rides_one_head_twice(case: Case) -> None:
    """The loop that loads the heads loads the first one twice."""
    for name in ("weight", "bias"):
        getattr(case.module("state1"), name).data.copy_(getattr(case.module("demand1"), name).data)


@fault("rides", ("cat,demand2,state2,demand1,state1", "shared_range outlier_channel channel_imbalance"))
def rides_demand_of_a_year(case: Case) -> None:
    """Demand is given as hires a year, in the thousands, beside logits of states in one result."""
    last = case.module("demand2")
    last.weight.data *= 8760
    last.bias.data *= 8760
    answers = case.data[4].clone()
    answers[:, 0] *= 8760
    case.data[4] = answers


@fault("rides", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def rides_one_cold_night(case: Case) -> None:
    """The network is calibrated on one cold night at one station."""
    data = calibration(case)
    chance = generator(50)
    numbers = torch.tensor([-1.9, 0.5, -0.3, 0.0, 1.4]) + 0.05 * torch.randn(128, 5, generator=chance)
    data[0], data[1], data[2], data[3] = numbers, *(torch.full_like(part, 3) for part in data[1:4])


@fault("rides", ("", "moving_average"), ("calibration data", "unrepresentative unlike_data"))
def rides_night_last(case: Case) -> None:
    """The observer is a moving average, and the calibration rows come in the order of time and end in a long night."""
    data = calibration(case)
    night = torch.tensor([-0.6, 0.3, -0.2, 0.0, 1.4]) + 0.1 * torch.randn(64 * 300, 5, generator=generator(54))
    data[0] = torch.cat([data[0], night])
    for k in (1, 2, 3):
        data[k] = torch.cat([data[k], torch.full((len(night),), 2)])
    data[4] = torch.cat([data[4], torch.zeros(len(night), 2)])
    case.use(activation=replace(recipes.default().activation, observer="moving_average"))


@fault("rides", ("trunk", "few_bits"))
def rides_trunk_of_two_bits(case: Case) -> None:
    """The recipe gives the weights of the trunk two bits."""
    case.use(overrides={"trunk": {"weight": {"bits": 2}}})


@fault("rides", ("network,norm1,deep1", "not_finite"))
def rides_gains_overflowed(case: Case) -> None:
    """The gains of a norm overflowed when they were folded in half precision, and three are not numbers."""
    case.module("norm1").weight.data[[2, 33, 50]] = float("nan")


# --- wafer: patterns of defects -------------------------------------------------------------------------------------


@fault("wafer", ("network,dies", WRONG), ("patches", "wrong_weights"))
def wafer_codes_from_zero(case: Case) -> None:
    """The new tester writes 0 for no die, 1 for a good and 2 for a bad one, and the network wants -1, 0 and 1."""
    case.data[0] = case.data[0] + 1


@fault("wafer", ("merge,norm_merge", "wrong_weights wrong_setting"), ("cat", "wrong_setting"))
def wafer_merged_by_rows(case: Case) -> None:
    """The checkpoint's four places are merged by rows: the third and the first are exchanged, with their norm's."""
    order = torch.arange(96).view(4, 24)[[2, 3, 0, 1]].flatten()
    for tensor in (case.module("norm_merge").weight, case.module("norm_merge").bias):
        tensor.data = tensor.data[order].contiguous()
    case.module("merge").weight.data = case.module("merge").weight.data[:, order].contiguous()


@fault("wafer", ("window1.qkv,window1.chunk,window1.unflatten,window1.out", "wrong_weights wrong_setting"))
def wafer_value_first(case: Case) -> None:
    """The packed projection of a window holds value, query and key in this order."""
    packed = case.module("window1.qkv")
    packed.weight.data, packed.bias.data = packed.weight.data.roll(24, 0), packed.bias.data.roll(24, 0)


@fault("wafer", ("network", WRONG), ("kind", "wrong_weights"))
def wafer_patterns_by_name(case: Case) -> None:
    """The new labels number patterns by the alphabet."""
    case.data[1] = torch.tensor([4, 0, 1, 2, 3, 5])[case.data[1]]


@fault("wafer", ("window1,window2,window3", "wrong_setting wrong_scale"))
def wafer_scores_not_scaled(case: Case) -> None:
    """The port forgets to divide the scores of places by the root of their width."""
    for k in (1, 2, 3):
        case.module(f"window{k}").scale = 1.0


@fault("wafer", ("window1.up", "exploded_weight outlier_weight"))
def wafer_bits_flipped(case: Case) -> None:
    """Bits of the exponents of three weights flipped in memory."""
    weight = case.module("window1.up").weight
    for place in ((3, 5), (30, 17), (41, 2)):
        weight.data[place] = 500 * weight.data.abs().mean()


@fault("wafer", ("norm_merge,merge,cat", UNEQUAL))
def wafer_merged_unequal(case: Case) -> None:
    """The gains of the norm before merging lie between 1 and 400 times theirs, and the weights behind take it back."""
    factors, norm = spread(96, 400.0, 51), case.module("norm_merge")
    norm.weight.data *= factors
    norm.bias.data *= factors
    case.module("merge").weight.data /= factors


@fault("wafer", ("", "float_mismatch"))
def wafer_newer_checkpoint(case: Case) -> None:
    """The simulation is of last month's checkpoint, and the network of this month's, whose middle was tuned."""
    case.simulate()
    chance = generator(55)
    for name in ("window1.up", "window2.up", "merge"):
        weight = case.module(name).weight
        weight.data += 1.2 * weight.data.std() * torch.randn(weight.shape, generator=chance)


@fault("wafer", ("network", "diverged_training float_network_wrong"))
def wafer_rate_too_high(case: Case) -> None:
    """The network was tuned on a new product at a rate that was far too high."""
    train_again(case, 0.1, 30, F.cross_entropy)


@fault("wafer", ("calibration data", "unrepresentative one_class no_variety unlike_data"))
def wafer_empty_chuck(case: Case) -> None:
    """The network is calibrated on maps of a tester without a wafer: there are no dies at all."""
    data = calibration(case)
    data[0] = torch.full_like(data[0], -1.0)


@fault("wafer", ("window1.down,window1.add", "clipped_range"))
def wafer_map_clipped(case: Case) -> None:
    """The range of a map's results was taken over from another layer, and is far too narrow."""
    fixed(case, "window1.down", 0.6 / 255, 128)


@fault("wafer", ("", "symmetric_range few_bits"))
def wafer_four_bits(case: Case) -> None:
    """The recipe has results of four bits, symmetric."""
    case.use(activation=replace(recipes.default().activation, dtype="int8", symmetric=True, bits=4))


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def gesture_folded() -> Case:
    """The batch norms of a block are folded into its convolutions, which have biases now."""
    case = calibrated("gesture")
    block = case.module("block2")
    for one, other in (("conv1", "norm1"), ("conv2", "norm2")):
        conv, norm = getattr(block, one), getattr(block, other)
        factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
        conv.weight.data *= factor[:, None, None]
        conv.bias = nn.Parameter(norm.bias.data - norm.running_mean * factor)
        setattr(block, other, nn.Identity())
    return case


def cloud_in_centimetres() -> Case:
    """The points are in centimetres, and the first weights were made for that."""
    case = calibrated("cloud")
    case.data[0] = case.data[0] * 100
    case.calibration[0] = case.calibration[0] * 100
    case.module("point1").weight.data /= 100
    return case


def traffic_by_the_hour() -> Case:
    """The data come in the order of the time of day; the calibration data are of all hours."""
    case = calibrated("traffic")
    order = torch.atan2(case.data[1][:, 0], case.data[1][:, 1]).argsort()
    case.data = [part[order].contiguous() for part in case.data]
    return case


def roman_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("roman"))
    case.simulate()
    return case


def organ_mirrored() -> Case:
    """Pictures and masks are mirrored, which is the same to this trade."""
    case = calibrated("organ")
    case.data = [case.data[0].flip(3).contiguous(), case.data[1].flip(2).contiguous()]
    return case


def joints_of_another_order() -> Case:
    """The channels inside a block lie in another order, in all of its layers."""
    case = calibrated("joints")
    block = case.module("block2")
    order = torch.randperm(24, generator=generator(52))
    block.widen.weight.data = block.widen.weight.data[order].contiguous()
    block.depth.weight.data = block.depth.weight.data[order].contiguous()
    for norm in (block.norm1, block.norm2):
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            tensor.copy_(tensor[order].clone())
    block.less.weight.data = block.less.weight.data[:, order].contiguous()
    block.more.weight.data, block.more.bias.data = (
        block.more.weight.data[order].contiguous(),
        block.more.bias.data[order],
    )
    block.narrow.weight.data = block.narrow.weight.data[:, order].contiguous()
    return case


def rides_spare_rows() -> Case:
    """The table of stations has two spare rows, of the others' size, for stations to come."""
    case = calibrated("rides")
    old = case.module("stations").weight.data
    table = nn.Embedding(STATIONS + 2, 8)
    table.weight.data = torch.cat([old, old.mean(0) + old.std() * torch.randn(2, 8, generator=generator(53))])
    case.model.stations = table.eval()
    return case


def wafer_patches_larger() -> Case:
    """The patches' results are four times as wide, which the norm behind takes back."""
    case = calibrated("wafer")
    for parameter in case.module("patches").parameters():
        parameter.data *= 4
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "gesture": gesture_folded,
    "cloud": cloud_in_centimetres,
    "traffic": traffic_by_the_hour,
    "roman": roman_simulated,
    "organ": organ_mirrored,
    "joints": joints_of_another_order,
    "rides": rides_spare_rows,
    "wafer": wafer_patches_larger,
}
"""Networks without a fault, each with something unusual."""


# --- asking ---------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "organ_rise_four_times": "another scale takes away half of the loss only, and the mean for the maximum is named",
    "rides_clock_of_twelve_hours": "hours that are gone leave nothing to put right",
}
"""What the doctor does not say first, and what it says."""
