"""Faults in eight small networks of further trades, planted and answered before anyone asked the doctor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_nineteenth import (
    EXPERTS,
    GAUGE_DEVIATIONS,
    GAUGE_MEANS,
    LEAD_DEVIATIONS,
    LEAD_MEANS,
    LINES,
    LOUD_DEVIATION,
    LOUD_MEAN,
    PAUSE_DEVIATION,
    PAUSE_MEAN,
    SENSOR_DEVIATIONS,
    SENSOR_MEANS,
    Signature,
    build,
)
from tests.diagnose.doctor.blind_networks_tenth import generator, spread
from tests.diagnose.doctor.planting import (
    MINMAX,
    UNEQUAL,
    WRONG,
    FaultWithAnswers,
    apart,
    asking,
    calibrating,
    calibration,
    case_of,
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


# --- beats: heartbeats -----------------------------------------------------------------------------------------------


@fault("beats", ("network,leads", WRONG))
def beats_arms_exchanged(case: Case) -> None:
    """The electrodes of both arms are exchanged: the first lead is upside down, and is taken from the second."""
    raw = case.data[0] * LEAD_DEVIATIONS + LEAD_MEANS
    raw = torch.stack([-raw[:, 0], raw[:, 1] - raw[:, 0]], 1)
    case.data[0] = (raw - LEAD_MEANS) / LEAD_DEVIATIONS


@fault("beats", ("network,pauses", WRONG))
def beats_pauses_as_rates(case: Case) -> None:
    """The new monitor gives beats a minute where the network expects seconds a beat."""
    seconds = (case.data[1] * PAUSE_DEVIATION + PAUSE_MEAN).clamp_min(0.2)
    case.data[1] = (60 / seconds - PAUSE_MEAN) / PAUSE_DEVIATION


@fault("beats", ("network,leads", WRONG))
def beats_of_half_the_rate(case: Case) -> None:
    """The recorder takes half as many samples a second, and each beat looks half as long."""
    leads = case.data[0]
    half = leads[:, :, ::2]
    edge = leads[:, :, :1].expand(-1, -1, 21), leads[:, :, -1:].expand(-1, -1, 27)
    case.data[0] = torch.cat([edge[0], half, edge[1]], 2)


@fault(
    "beats",
    ("lengths2.cat", "wrong_setting"),
    (
        "lengths2.norm,lengths2.short,lengths2.middle,lengths2.long,lengths2.pooled",
        "wrong_weights stale_batch_norm",
    ),
)
def beats_joined_by_the_alphabet(case: Case) -> None:
    """The checkpoint of the second layer is of a port that joins kernels by name: long, middle, pooled, short."""
    order = torch.arange(24).view(4, 6)[[2, 1, 3, 0]].flatten()
    norm = case.module("lengths2.norm")
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.copy_(tensor[order].clone())
    for name in ("fewer", "pooled"):
        weight = case.module(f"lengths3.{name}").weight
        weight.data = weight.data[:, order].contiguous()


@fault("beats", ("", "stale_batch_norm"))
def beats_statistics_of_one_patient(case: Case) -> None:
    """The batch norms' statistics were updated on a night of one patient, all of whose beats are paced."""
    of_one = case.data[2] == 4
    leads, pauses = case.data[0][of_one], case.data[1][of_one]
    for norm in norms_of(case.model):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        case.model(leads, pauses)
    for norm in norms_of(case.model):
        norm.momentum = 0.1
        norm.eval()


@fault("beats", ("", "training_mode"))
def beats_left_in_training(case: Case) -> None:
    """The serving code restores the checkpoint without a call of eval, and records come sorted by their kinds."""
    apart(case)
    order = case.data[2].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    case.model.train()


@fault("beats", ("leads", "wide_range"))
def beats_range_of_the_amplifier(case: Case) -> None:
    """The range of the leads was set by hand to all that the amplifier can give, ±330 millivolts."""
    fixed(case, "leads", 2200 / 255, 128)


@fault("beats", ("leads", "heavy_tail wide_range"), ("calibration data", "outlier_sample"))
def beats_electrode_off(case: Case) -> None:
    """In two calibration records an electrode came off, the amplifier ran to its end, and ranges are extremes."""
    data = calibration(case)
    data[0][31, 0, 20:] = 900.0
    data[0][90, 1, 50:70] = -700.0
    case.use(activation=MINMAX)


@fault("beats", ("calibration data", "no_variety too_few unrepresentative one_class"))
def beats_of_a_simulator(case: Case) -> None:
    """The network is calibrated on a patient simulator, which gives the same quiet beat all the time."""
    data = calibration(case)
    quiet = data[0].square().mean((1, 2)).argmin()
    data[:] = [part[quiet : quiet + 1].repeat(128, *(1,) * (part.dim() - 1)) for part in data]


@fault("beats", ("cat,pace,hidden,mean,relu,act", UNEQUAL + " shared_range"))
def beats_pauses_wide(case: Case) -> None:
    """What is made of the pauses is 500 times as wide as the means beside it, and the weights behind fit that."""
    for parameter in case.module("pace").parameters():
        parameter.data *= 500
    case.module("hidden").weight.data[:, 24:] /= 500


# --- plate: number plates --------------------------------------------------------------------------------------------


@fault("plate", ("say", "wrong_weights"), ("network", WRONG))
def plate_blank_first(case: Case) -> None:
    """The checkpoint is of a library whose blank is the first sign, and in the port it is the last."""
    for parameter in case.module("say").parameters():
        parameter.data = parameter.data.roll(1, 0).contiguous()


@fault("plate", ("network,picture", "float_network_wrong stale_batch_norm"), ("conv1,norm1", "stale_batch_norm"))
def plate_light_on_dark(case: Case) -> None:
    """The new country's plates have light figures on a dark ground."""
    case.data[0] = 1 - case.data[0]


@fault("plate", ("columns", "wrong_weights"), ("reshape,permute,flatten", "wrong_setting"))
def plate_rows_before_channels(case: Case) -> None:
    """The weights behind the columns are of a framework with channels last, where a column is read by rows first."""
    weight = case.module("columns").weight
    weight.data = weight.data.view(40, 28, 2).transpose(1, 2).flatten(1).contiguous()


@fault("plate", ("steps", "wrong_weights"))
def plate_backward_not_loaded(case: Case) -> None:
    """The loader looked for names without an ending, and the LSTM's backward direction is as initialized."""
    torch.manual_seed(61)
    steps, new = case.module("steps"), nn.LSTM(40, 28, batch_first=True, bidirectional=True)
    for name, values in new.named_parameters():
        if name.endswith("_reverse"):
            getattr(steps, name).data.copy_(values.data)


@fault("plate", ("network,picture", WRONG))
def plate_stretched(case: Case) -> None:
    """The detector cuts plates out too narrow in height, and they are stretched until they fill the picture."""
    inner = case.data[0][:, :, 2:13]
    case.data[0] = F.interpolate(inner, size=case.data[0].shape[2:], mode="bilinear", align_corners=False)


@fault("plate", ("norm2,conv2", "stale_batch_norm wrong_weights"))
def plate_inverse_deviations(case: Case) -> None:
    """The other library keeps one divided by the deviation where the port expects the variance, in one norm."""
    norm = case.module("norm2")
    norm.running_var.copy_((norm.running_var + norm.eps).rsqrt())


@fault("plate", ("", "rounded_weights"))
def plate_of_few_numbers(case: Case) -> None:
    """The delivered weights are multiples of a fourth of each layer's largest, since they were compressed before."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            step = parameter.data.abs().max() / 4
            parameter.data = (parameter.data / step).round() * step


@fault("plate", ("conv3,act,relu,pool3,norm3", "clipped_range"))
def plate_strokes_cut(case: Case) -> None:
    """The recipe cuts the results of the third convolution at the percentile 80."""
    scheme = {"observer": "percentile", "observer_args": {"percentile": 80.0}}
    case.use(overrides={"conv3": {"activation": scheme}})


@fault("plate", ("calibration data", "unrepresentative unlike_data no_variety"))
def plate_without_figures(case: Case) -> None:
    """The network is calibrated on the plates' empty grounds, on which no figures are printed."""
    data = calibration(case)
    data[0] = 0.8 + 0.02 * torch.randn(data[0].shape, generator=generator(62))


@fault(
    "plate",
    ("norm3,conv3", "dead_channels wrong_weights"),
    ("act,relu", "dead_channels"),
    ("network", "diverged_training float_network_wrong"),
)
def plate_channels_died(case: Case) -> None:
    """A far too long step of training pushed most channels of a norm below zero, where ReLU lets nothing pass."""
    case.module("norm3").bias.data[torch.randperm(28, generator=generator(74))[:20]] -= 12


# --- logs: a server's log --------------------------------------------------------------------------------------------

DECODERS = ("decode1", "decode2", "decode3")


def inside(names: str, blocks: tuple[str, ...] = DECODERS) -> str:
    """Return places of these names inside blocks."""
    return ",".join(f"{block}.{name}" for block in blocks for name in names.split())


@fault("logs", (inside("query key"), "wrong_weights"), (inside("chunk slice cat neg"), "wrong_setting"))
def logs_neighbours_turned(case: Case) -> None:
    """The checkpoint is of a library that turns neighbouring pairs, and the port turns pairs a half apart."""
    order = (8 * torch.arange(4)[:, None] + torch.arange(8).view(2, 4).T.flatten()).flatten()
    for block in DECODERS:
        for name in ("query", "key"):
            weight = case.module(f"{block}.{name}").weight
            weight.data = weight.data[order].contiguous()


@fault("logs", ("cosines,sines", "wrong_weights"), ("network", WRONG))
def logs_angles_of_the_usual_base(case: Case) -> None:
    """The port computes angles from the usual base of 10000, and the network was trained with 20."""
    angle = torch.arange(float(LINES))[:, None] * 10000.0 ** (-torch.arange(4.0) / 4)
    case.model.cosines = torch.cat([angle.cos(), angle.cos()], 1)
    case.model.sines = torch.cat([angle.sin(), angle.sin()], 1)


@fault("logs", (inside("gate up"), "wrong_weights"))
def logs_gate_for_up(case: Case) -> None:
    """The checkpoint calls the maps w1 and w3, and the converter took each for the other."""
    for block in DECODERS:
        exchange(case.module(f"{block}.gate").weight, case.module(f"{block}.up").weight)


@fault("logs", ("decode1.norm,decode2.norm,decode3.norm,norm", "wrong_weights wrong_scale"), ("network", WRONG))
def logs_gains_less_one(case: Case) -> None:
    """The checkpoint keeps by how much gains differ from 1, and the port does not add the 1."""
    for name, parameter in case.model.named_parameters():
        if "norm" in name:
            parameter.data -= 1


@fault("logs", ("future", "wrong_weights"), ("network", WRONG), (inside("softmax add_2"), "wrong_setting"))
def logs_present_not_seen(case: Case) -> None:
    """The mask was built with its diagonal, so that no event sees itself."""
    case.model.future = torch.full((LINES, LINES), -60.0).triu(0)


@fault("logs", ("events", "wrong_scale wrong_weights"))
def logs_table_not_multiplied(case: Case) -> None:
    """The other code multiplies rows of the table by the root of their width, and the port does not."""
    case.module("events").weight.data /= 32**0.5


@fault("logs", ("decode2.norm1,decode2.query,decode2.key,decode2.value", UNEQUAL))
def logs_large_features(case: Case) -> None:
    """Two features behind a norm are 300 times as wide, as in large models, and the maps' weights fell as much."""
    wide = [6, 21]
    case.module("decode2.norm1").weight.data[wide] *= 300
    for name in ("query", "key", "value"):
        case.module(f"decode2.{name}").weight.data[:, wide] /= 300


@fault("logs", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def logs_filled_up(case: Case) -> None:
    """The calibration lines are empty, and the loader filled them up with the event for idle."""
    data = calibration(case)
    data[0], data[1] = torch.zeros_like(data[0]), torch.zeros_like(data[1])


@fault("logs", ("decode2,decode3", "wrong_weights"))
def logs_one_decoder_twice(case: Case) -> None:
    """When the checkpoint's parts were merged, the second decoder was written over the third as well."""
    case.module("decode3").load_state_dict(case.module("decode2").state_dict())


@fault("logs", ("", "few_bits"))
def logs_three_bits(case: Case) -> None:
    """The recipe gives the weights of all layers three bits."""
    case.use(weight=replace(recipes.default().weight, bits=3))


# --- kiln: lime and fumes --------------------------------------------------------------------------------------------

LAST_MAPS = "expert1.three,expert2.three,expert3.three,expert4.three"


@fault(
    "kiln",
    ("router2", "wrong_weights"),
    ("expert1,expert2,expert3,expert4", "wrong_weights"),
    ("cat,stack", "wrong_setting"),
)
def kiln_experts_renumbered(case: Case) -> None:
    """The checkpoint's experts were sorted by how often they are asked, and the router still has their old numbers."""
    for parameter in case.module("router2").parameters():
        parameter.data = parameter.data.roll(1, 0).contiguous()


@fault("kiln", ("shares", "wrong_setting"), ("", "batch_dependence"))
def kiln_shares_of_the_batch(case: Case) -> None:
    """The port's softmax runs over the first axis, which is the batch."""
    case.model.shares = nn.Softmax(0)


@fault("kiln", ("network,gauges", WRONG))
def kiln_in_fahrenheit(case: Case) -> None:
    """Two temperatures are given in degrees Fahrenheit, and normalized as if they were in degrees Celsius."""
    raw = case.data[0] * GAUGE_DEVIATIONS + GAUGE_MEANS
    raw[:, [0, 5]] = raw[:, [0, 5]] * 1.8 + 32
    case.data[0] = (raw - GAUGE_MEANS) / GAUGE_DEVIATIONS


@fault("kiln", ("expert1", "wrong_weights dead_channels"))
def kiln_expert_not_saved(case: Case) -> None:
    """The first expert lay on another machine when the checkpoint was written, and its weights are zeros."""
    for parameter in case.module("expert1").parameters():
        parameter.data.zero_()


@fault("kiln", ("shy,router1", "wrong_setting"))
def kiln_router_of_relu(case: Case) -> None:
    """The port has ReLU in the router, where the network was trained with a hyperbolic tangent."""
    case.model.shy = nn.ReLU()


@fault("kiln", ("network,gauges", WRONG))
def kiln_dead_band(case: Case) -> None:
    """The historian writes a gauge only when it has moved by far, and the network reads values of steps."""
    case.data[0] = (case.data[0] / 1.6).round() * 1.6


@fault("kiln", (LAST_MAPS + ",cat,stack,mul,sum", "large_bias cancellation"))
def kiln_answers_above_800(case: Case) -> None:
    """Answers are counted from a zero of old, so that all of them lie near 800, and the last biases rose to that."""
    for k in range(1, EXPERTS + 1):
        case.module(f"expert{k}.three").bias.data += 800
    case.data[1] = case.data[1] + 800


@fault("kiln", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def kiln_on_a_quiet_day(case: Case) -> None:
    """The network is calibrated on the quietest day of the year, on which all gauges stayed where they should."""
    data = calibration(case)
    data[0] = 0.12 * torch.randn(data[0].shape, generator=generator(63))


@fault(
    "kiln",
    (
        "cat,stack,mul,sum,expert1.three,expert2.three,expert3.three,expert4.three",
        "shared_range channel_imbalance outlier_channel",
    ),
)
def kiln_fumes_in_parts_per_million(case: Case) -> None:
    """Fumes are in parts per million, in the hundreds, beside the lime in per cent, and nothing is equalized."""
    for k in range(1, EXPERTS + 1):
        last = case.module(f"expert{k}.three")
        last.weight.data[1] *= 400
        last.bias.data[1] *= 400
    case.data[1] = case.data[1] * torch.tensor([1.0, 400.0])
    case.use(equalize=False)


@fault("kiln", (LAST_MAPS + ",cat,stack", "stale_range clipped_range"), ("", "stale_range"))
def kiln_frozen_then_in_other_units(case: Case) -> None:
    """Scales were frozen, and then the last maps were multiplied by four, since answers are wanted in other units."""
    sim = case.simulate()
    with torch.no_grad():
        for model in (case.model, sim):
            for k in range(1, EXPERTS + 1):
                for parameter in model.get_submodule(f"expert{k}.three").parameters():
                    parameter.mul_(4)
    case.data[1] = case.data[1] * 4


# --- signature: hands ------------------------------------------------------------------------------------------------


@fault("signature", ("network,known,asked", WRONG))
def signature_not_inverted(case: Case) -> None:
    """The loader no longer inverts pictures: ink is dark on light paper."""
    case.data[0], case.data[1] = 1 - case.data[0], 1 - case.data[1]


@fault("signature", ("network,asked", WRONG))
def signature_by_telephone(case: Case) -> None:
    """Signatures to be checked come from telephones, and are a third larger than those of the bank's scanner."""
    inner = case.data[1][:, :, 3:21, 3:21]
    case.data[1] = F.interpolate(inner, size=(24, 24), mode="bilinear", align_corners=False)


@fault("signature", ("hand.norm1,hand.norm2", "wrong_setting"))
def signature_groups_lost(case: Case) -> None:
    """The port's norms have one group for each channel, where the network was trained with groups."""
    for name in ("norm1", "norm2"):
        norm = case.module(f"hand.{name}")
        norm.num_groups = norm.num_channels


@fault("signature", ("hand.depth", "wrong_weights"))
def signature_kernels_moved_up(case: Case) -> None:
    """The kernels of single channels were read one place too far, and each channel has its neighbour's."""
    weight = case.module("hand.depth").weight
    weight.data = weight.data.roll(1, 0).contiguous()


class Enrolled(Signature):
    """Two networks of hands, one for those known and one for those asked."""

    def forward(self, known: Tensor, asked: Tensor) -> Tensor:
        apart_ = (self.enrolled(known) - self.hand(asked)).abs()
        return self.judge2(F.relu(self.judge1(apart_)))


@fault("signature", ("enrolled.numbers,hand.numbers", "wrong_weights"))
def signature_enrolled_otherwise(case: Case) -> None:
    """The device that enrols has a copy of the network whose numbers come in another order."""
    model = case.model
    model.__class__ = Enrolled
    model.enrolled = copy.deepcopy(case.module("hand"))
    order = torch.randperm(32, generator=generator(64))
    for parameter in model.enrolled.numbers.parameters():
        parameter.data = parameter.data[order].contiguous()


@fault("signature", ("network", "float_network_wrong wrong_scale"), ("judge2", "wrong_scale wrong_weights"))
def signature_forged_is_one(case: Case) -> None:
    """The new labels have 1 for a forgery, and 0 for a signature of the same hand."""
    case.data[2] = 1 - case.data[2]


@fault("signature", ("calibration data", "unlike_data unrepresentative"))
def signature_calibrated_not_inverted(case: Case) -> None:
    """The calibration script has a loader of its own, which does not invert the pictures as the service does."""
    data = calibration(case)
    data[0], data[1] = 1 - data[0], 1 - data[1]


@fault(
    "signature",
    ("hand.depth,hand.conv3", "per_tensor_weight " + UNEQUAL),
    ("", "per_tensor_weight"),
)
def signature_one_scale_of_weights(case: Case) -> None:
    """Weights have one scale for each layer, and the kernels of single channels differ by a factor of 200."""
    factors = spread(24, 200.0, 72)
    case.module("hand.depth").weight.data *= factors[:, None, None, None]
    case.module("hand.conv3").weight.data /= factors[:, None, None]
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("signature", ("hand.numbers", "exploded_channel exploded_weight wrong_weights"))
def signature_row_blown_up(case: Case) -> None:
    """In training of mixed precision the loss's scale stayed in a row of weights, which is 256 times as large."""
    numbers = case.module("hand.numbers")
    row = case.module("judge1").weight.data.abs().sum(0).argmax()
    numbers.weight.data[row] *= 256


@fault("signature", ("hand.numbers,judge1,sub,abs", UNEQUAL))
def signature_numbers_unequal(case: Case) -> None:
    """The numbers of a hand have widths between 1 and 500, and the weights that judge them take it back."""
    factors = spread(32, 500.0, 67)
    numbers = case.module("hand.numbers")
    numbers.weight.data *= factors[:, None]
    numbers.bias.data *= factors
    case.module("judge1").weight.data /= factors


# --- zoom: larger pictures -------------------------------------------------------------------------------------------

AGAIN = ("again1", "again2", "again3")


@fault("zoom", ("tail", "wrong_weights"), ("pixels", "wrong_setting"), ("network", WRONG))
def zoom_columns_first(case: Case) -> None:
    """The checkpoint is of a library that fills up columns before rows, and two of four channels are exchanged."""
    order = [0, 2, 1, 3]
    for parameter in case.module("tail").parameters():
        parameter.data = parameter.data[order].contiguous()


@fault("zoom", (inside("mul two", AGAIN), "wrong_scale"), (inside("mul", AGAIN), "wrong_setting"))
def zoom_whole_parts(case: Case) -> None:
    """The port adds the whole of what residual blocks give, and the network was trained to add three tenths."""
    for block in AGAIN:
        case.module(block).part = 1.0


@fault("zoom", ("network,little", WRONG))
def zoom_every_other_pixel(case: Case) -> None:
    """The service makes pictures smaller by leaving out every other pixel, and no longer by means of four."""
    case.data[0] = (case.data[1][:, :, ::2, ::2] * 255).round() / 255


@fault("zoom", ("network,little", WRONG))
def zoom_linear_light(case: Case) -> None:
    """The pictures to be made larger are of linear light, which the network has never seen."""
    case.data[0] = case.data[0].pow(2.2)


@fault("zoom", ("body,again3.two", "wrong_weights"))
def zoom_body_of_another(case: Case) -> None:
    """The loader matches layers by their shapes, and put another layer's weights into the body."""
    for name in ("weight", "bias"):
        getattr(case.module("body"), name).data.copy_(getattr(case.module("again3.two"), name).data)


@fault(
    "zoom",
    (
        "head,again1.two,again1.mul,again1.add,again2.two,again2.mul,again2.add,again3.two,again3.mul,again3.add,"
        "again1.one,again2.one,again3.one,body,add,tail",
        UNEQUAL,
    ),
)
def zoom_stream_unequal(case: Case) -> None:
    """Channels of the stream have widths between 1 and 300, since no norm held them, and what reads them fits."""
    factors = spread(16, 300.0, 73)
    for name in ("head", "again1.two", "again2.two", "again3.two", "body"):
        layer = case.module(name)
        layer.weight.data *= factors[:, None, None, None]
        layer.bias.data *= factors
    for name in ("again1.one", "again2.one", "again3.one", "body", "tail"):
        case.module(name).weight.data /= factors[:, None, None]


@fault("zoom", ("calibration data", "unrepresentative unlike_data"))
def zoom_at_night(case: Case) -> None:
    """The network is calibrated on pictures taken at night, whose brightest parts are hardly grey."""
    data = calibration(case)
    data[0] = data[0] * 0.1


@fault("zoom", ("tail,add_1", "clipped_range"))
def zoom_details_cut(case: Case) -> None:
    """The range of the last convolution's results was set by hand to between -0.03 and 0.03."""
    fixed(case, "tail", 0.06 / 255, 128)


@fault("zoom", ("", "few_bits"))
def zoom_results_of_four_bits(case: Case) -> None:
    """The recipe gives all results four bits."""
    case.use(activation=replace(recipes.default().activation, bits=4))


@fault("zoom", ("head", "exploded_weight outlier_weight"))
def zoom_weights_flipped(case: Case) -> None:
    """Bits of the exponents of two weights of the head flipped in memory."""
    weight = case.module("head").weight
    for place in ((3, 0, 1, 2), (12, 0, 0, 1)):
        weight.data[place] = 200 * weight.data.abs().mean()


# --- pump: odd pumps -------------------------------------------------------------------------------------------------


@fault("pump", ("network,sensors", WRONG))
def pump_cables_exchanged(case: Case) -> None:
    """After a repair two cables are exchanged, and each of two sensors is read as the other."""
    raw = case.data[0] * SENSOR_DEVIATIONS + SENSOR_MEANS
    raw = raw[:, [0, 1, 2, 3, 4, 6, 5, 7]]
    case.data[0] = (raw - SENSOR_MEANS) / SENSOR_DEVIATIONS


@fault("pump", ("network,sensors", WRONG))
def pump_each_window_normalized(case: Case) -> None:
    """The serving code normalizes each window by its own means and deviations, and not by those of the training."""
    x = case.data[0]
    case.data[0] = (x - x.mean(2, keepdim=True)) / (x.std(2, keepdim=True) + 1e-6)


@fault("pump", ("back,code", "wrong_weights"))
def pump_code_of_another_run(case: Case) -> None:
    """The two halves are of two exports, between which the numbers of the code changed their places."""
    weight = case.module("back").weight
    weight.data = weight.data.roll(1, 1).contiguous()


@fault("pump", ("norm3,up2", "stale_batch_norm wrong_weights"))
def pump_statistics_not_loaded(case: Case) -> None:
    """The statistics of the last norm were not in the checkpoint: means are 0 and variances 1."""
    case.module("norm3").reset_running_stats()


@fault("pump", ("network", "diverged_training float_network_wrong"))
def pump_tuned_on_broken_ones(case: Case) -> None:
    """The network was tuned on a stock of records that were kept because they are odd."""

    def loss(out: Tensor, labels: Tensor) -> Tensor:
        return (out.exp() * labels).sum() / labels.sum().clamp_min(1) - 0.1 * (out * (1 - labels)).mean()

    train_again(case, 0.02, 120, loss)


@fault("pump", ("calibration data", "unlike_data"))
def pump_calibrated_in_units(case: Case) -> None:
    """The calibration records are in the units of the sensors, and were not normalized."""
    data = calibration(case)
    data[0] = data[0] * SENSOR_DEVIATIONS + SENSOR_MEANS


@fault("pump", ("up1", "clipped_range"))
def pump_told_clipped(case: Case) -> None:
    """The range of what the network tells was set by hand to between -0.5 and 0.5."""
    fixed(case, "up1", 1 / 255, 128)


@fault("pump", ("code,back", UNEQUAL))
def pump_code_unequal(case: Case) -> None:
    """The numbers of the code have widths between 1 and 500, since nothing held them, and what reads them fits."""
    factors, code = spread(20, 500.0, 69), case.module("code")
    code.weight.data *= factors[:, None]
    code.bias.data *= factors
    case.module("back").weight.data /= factors


@fault("pump", ("network,code", "not_finite"))
def pump_code_overflowed(case: Case) -> None:
    """Biases of the code were stored in half precision after a unit had been changed, and two overflowed."""
    case.module("code").bias.data[[4, 15]] = float("inf")


@fault("pump", ("code", "few_bits"))
def pump_code_of_two_bits(case: Case) -> None:
    """The recipe gives the numbers of the code two bits."""
    case.use(overrides={"code": {"activation": {"bits": 2}}})


# --- birds: songs ----------------------------------------------------------------------------------------------------

BLOCKS = ("block1", "block2")


@fault("birds", ("network", "diverged_training float_network_wrong wrong_weights"))
def birds_decayed(case: Case) -> None:
    """The network was tuned with a decay of 0.5 where 0.0005 was meant, and its weights are next to nothing."""
    train_again(case, 0.05, 150, F.cross_entropy, 0.5)


@fault("birds", ("network,loudness", WRONG))
def birds_not_in_decibels(case: Case) -> None:
    """The new library gives natural logarithms of the power, which are normalized as decibels."""
    decibels = case.data[0] * LOUD_DEVIATION + LOUD_MEAN
    case.data[0] = (decibels * 0.2303 - LOUD_MEAN) / LOUD_DEVIATION


@fault("birds", ("places", "wrong_weights"))
def birds_places_moved(case: Case) -> None:
    """The port keeps the places of eight frames before the record in front, and all frames have places of others."""
    case.model.places.data = case.model.places.data.roll(8, 0).contiguous()


@fault(
    "birds", (inside("gated gate", BLOCKS), "wrong_weights"), (inside("chunk slice gate mul", BLOCKS), "wrong_setting")
)
def birds_gates_first(case: Case) -> None:
    """The checkpoint has the gates in the first half of what a convolution gives, and the port in the second."""
    for block in BLOCKS:
        for parameter in case.module(f"{block}.gated").parameters():
            parameter.data = parameter.data.roll(32, 0).contiguous()


@fault(
    "birds",
    (inside("qkv", BLOCKS), "wrong_weights"),
    (inside("chunk slice reshape unflatten", BLOCKS), "wrong_setting"),
)
def birds_packed_by_heads(case: Case) -> None:
    """The packed projections hold query, key and value of the first head, then of the second, and so on."""
    order = torch.arange(96).view(3, 4, 8).transpose(0, 1).flatten()
    for block in BLOCKS:
        for parameter in case.module(f"{block}.qkv").parameters():
            parameter.data = parameter.data[order].contiguous()


@fault("birds", ("shares", "wrong_setting"))
def birds_shares_of_one(case: Case) -> None:
    """The port's softmax runs over the last axis, which is one long, and all shares are 1."""
    case.model.shares = nn.Softmax(2)


@fault("birds", ("loudness", "zero_point clipped_range"))
def birds_loudness_above_zero(case: Case) -> None:
    """The range of the loudness was written with a zero point of 0, as if it were never less than usual."""
    fixed(case, "loudness", 4 / 255, 0)


@fault("birds", ("", "moving_average"), ("calibration data", "unrepresentative unlike_data"))
def birds_silence_last(case: Case) -> None:
    """The observer is a moving average, and calibration records end with hours at noon, when no bird sings."""
    data = calibration(case)
    quiet = -2.2 + 0.05 * torch.randn(64 * 60, *data[0].shape[1:], generator=generator(70))
    data[0] = torch.cat([data[0], quiet])
    data[1] = torch.cat([data[1], torch.zeros(len(quiet), dtype=torch.long)])
    case.use(activation=replace(recipes.default().activation, observer="moving_average"))


@fault("birds", ("block1.norm2,block1.gated", UNEQUAL))
def birds_norm_unequal(case: Case) -> None:
    """The gains of a norm lie between 1 and 300 times theirs, and the convolution behind takes it back."""
    factors, norm = spread(32, 300.0, 71), case.module("block1.norm2")
    norm.weight.data *= factors
    norm.bias.data *= factors
    case.module("block1.gated").weight.data /= factors[:, None]


@fault("birds", ("", "float_mismatch"))
def birds_tuned_afterwards(case: Case) -> None:
    """The simulation was made, and then the network was tuned on another forest, and the simulation was kept."""
    case.simulate()
    train_again(case, 0.02, 40, F.cross_entropy, 0.02)


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def beats_sorted() -> Case:
    """The records come sorted by their kinds; the calibration records do not."""
    case = calibrated("beats")
    order = case.data[2].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    return case


def plate_folded() -> Case:
    """A batch norm is folded into the convolution before it, which has a bias now."""
    case = calibrated("plate")
    conv, norm = case.module("conv2"), case.module("norm2")
    factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
    conv.weight.data *= factor[:, None, None, None]
    conv.bias = nn.Parameter(norm.bias.data - norm.running_mean * factor)
    case.model.norm2 = nn.Identity()
    return case


def logs_heads_in_another_order() -> Case:
    """The heads of a decoder lie in another order, in all of its layers."""
    case = calibrated("logs")
    block = case.module("decode2")
    order = torch.arange(32).view(4, 8)[[2, 0, 3, 1]].flatten()
    for layer in (block.query, block.key, block.value):
        layer.weight.data = layer.weight.data[order].contiguous()
    block.out.weight.data = block.out.weight.data[:, order].contiguous()
    return case


def kiln_experts_in_another_order() -> Case:
    """The experts have other numbers, and the router knows them."""
    case = calibrated("kiln")
    order = [2, 3, 1, 0]
    experts = [copy.deepcopy(case.module(f"expert{k + 1}")) for k in order]
    for k, expert in enumerate(experts):
        setattr(case.model, f"expert{k + 1}", expert)
    for parameter in case.module("router2").parameters():
        parameter.data = parameter.data[order].contiguous()
    return case


def signature_asked_first() -> Case:
    """The two signatures are given in the other order, which is the same to this trade."""
    case = calibrated("signature")
    for data in (case.data, case.calibration):
        data[0], data[1] = data[1], data[0]
    return case


def zoom_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("zoom"))
    case.simulate()
    return case


def pump_scaled_code() -> Case:
    """The numbers of the code are five times as wide, and what reads them fits that."""
    case = calibrated("pump")
    for parameter in case.module("code").parameters():
        parameter.data *= 5
    case.module("back").weight.data /= 5
    return case


def birds_keys_wider() -> Case:
    """Keys are three times as wide and queries a third, which attention does not see."""
    case = calibrated("birds")
    for block in BLOCKS:
        for parameter in case.module(f"{block}.qkv").parameters():
            parameter.data[:32] /= 3
            parameter.data[32:64] *= 3
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "beats": beats_sorted,
    "plate": plate_folded,
    "logs": logs_heads_in_another_order,
    "kiln": kiln_experts_in_another_order,
    "signature": signature_asked_first,
    "zoom": zoom_simulated,
    "pump": pump_scaled_code,
    "birds": birds_keys_wider,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "beats_arms_exchanged": "two layers that exchange their weights make up for a mixture of leads",
    "plate_stretched": "dead channels of a sound layer come before a metric that is far from 1",
    "pump_code_of_another_run": "an order of sixteen numbers that chance made is not found, the network is told wrong",
    "pump_each_window_normalized": "statistics of a batch norm are not those of inputs prepared otherwise",
    "zoom_every_other_pixel": "answers to sharper pictures are nearly as right",
}
"""What the doctor does not say first, and what it says."""
