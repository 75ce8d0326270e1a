"""Faults in eight small networks of further trades, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_sixteenth import (
    DEVIATIONS,
    EMPTY,
    INK_DEVIATION,
    INK_MEAN,
    MEANS,
    MEL_DEVIATION,
    MEL_MEAN,
    OBSERVED_DEVIATIONS,
    OBSERVED_MEANS,
    TOKENS,
    build,
)
from tests.diagnose.doctor.blind_networks_tenth import generator, spread
from tests.diagnose.doctor.planting import (
    MINMAX,
    WRONG,
    FaultWithAnswers,
    anew,
    apart,
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
from torch import nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- keyword: spoken commands ---------------------------------------------------------------------------------------


@fault(
    "keyword",
    ("network,spectrum", "float_network_wrong stale_batch_norm wrong_scale"),
    ("stem,norm", "stale_batch_norm"),
)
def keyword_natural_logarithm(case: Case) -> None:
    """The new front end takes the natural logarithm of the power, not decibels; the normalization is the old one."""
    decibels = case.data[0] * MEL_DEVIATION + MEL_MEAN
    case.data[0] = (decibels / 4.342945 - MEL_MEAN) / MEL_DEVIATION


@fault("keyword", ("network,spectrum", WRONG), ("stem,norm", "wrong_weights stale_batch_norm"))
def keyword_axes_turned(case: Case) -> None:
    """The library gives time before bands, which nobody noticed, since there are 24 of each."""
    case.data[0] = case.data[0].transpose(2, 3).contiguous()


@fault("keyword", ("", "stale_batch_norm"))
def keyword_statistics_of_noise(case: Case) -> None:
    """All batch norms' statistics were updated on a stream of a noisy hall that nobody meant to use."""
    noisy = torch.maximum(case.data[0][:256], 0.9 + 0.5 * torch.randn(256, 1, 24, 24, generator=generator(1)))
    collect(case.model, noisy, norms_of(case.model))


@fault("keyword", ("block3.depth", "wrong_weights"))
def keyword_depth_not_loaded(case: Case) -> None:
    """A depthwise convolution has another shape in the checkpoint and was skipped: it is as initialized."""
    anew(case.module("block3.depth"))


@fault("keyword", ("block3.point", "wrong_weights"))
def keyword_point_transposed(case: Case) -> None:
    """A pointwise convolution with as many inputs as outputs was loaded in the layout of another framework."""
    weight = case.module("block3.point").weight
    weight.data = weight.data.transpose(0, 1).contiguous()


@fault("keyword", ("calibration data", "unrepresentative unlike_data"))
def keyword_calibrated_on_silence(case: Case) -> None:
    """The calibration recordings are of an empty room: nobody speaks, there is only the noise of the microphone."""
    data = calibration(case)
    silence = -24.0 + 1.8 * torch.randn(data[0].shape, generator=generator(2))
    data[0] = (silence - MEL_MEAN) / MEL_DEVIATION


@fault(
    "keyword",
    ("block2.depth,block2.norm1", "per_tensor_weight channel_imbalance outlier_weight outlier_channel"),
    ("block1.point,block1.norm2,block1.act2", "channel_imbalance outlier_channel input_imbalance"),
    ("", "per_tensor_weight"),
)
def keyword_one_scale_of_depth(case: Case) -> None:
    """Weights have one scale for each layer, and those of three depthwise channels with quiet inputs are large."""
    quiet, block = [3, 11, 20], case.module("block2")
    before = case.module("block1.norm2")
    before.weight.data[quiet] /= 90
    before.bias.data[quiet] /= 90
    block.norm1.running_mean[quiet] /= 90
    block.norm1.running_var[quiet] /= 8100
    block.norm1.eps = 1e-9
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("keyword", ("stem,norm,act", "clipped_range"))
def keyword_stem_cut(case: Case) -> None:
    """The recipe cuts the results of the first convolution at the percentile 90."""
    scheme = {"observer": "percentile", "observer_args": {"percentile": 90.0}}
    case.use(overrides={"stem": {"activation": scheme}})


# --- heart: electrocardiograms --------------------------------------------------------------------------------------


@fault(
    "heart", ("network,leads", "float_network_wrong stale_batch_norm wrong_scale"), ("stem,norm", "stale_batch_norm")
)
def heart_microvolts(case: Case) -> None:
    """The device gives microvolts, and the network was trained on millivolts."""
    case.data[0] = (case.data[0] * 1000).round()


@fault("heart", ("network,leads", "float_network_wrong stale_batch_norm"), ("stem,norm", "stale_batch_norm"))
def heart_electrode_offsets(case: Case) -> None:
    """The high-pass filter was left out, so that each lead has an offset of its electrodes, up to 2 mV."""
    count = len(case.data[0])
    case.data[0] = case.data[0] + 1.0 + torch.rand(count, 2, 1, generator=generator(3))


@fault("heart", ("block1.norm1,block1.norm2,block1.conv1,block1.conv2", "wrong_weights stale_batch_norm"))
def heart_norms_exchanged(case: Case) -> None:
    """The converter matched by shape, and exchanged the two batch norms of the first block."""
    one, other = case.module("block1.norm1"), case.module("block1.norm2")
    for name in ("weight", "bias", "running_mean", "running_var"):
        exchange(getattr(one, name), getattr(other, name))


@fault("heart", ("", "stale_batch_norm"))
def heart_deviations_as_variances(case: Case) -> None:
    """The other framework keeps deviations, and the converter wrote them where variances belong."""
    for norm in norms_of(case.model):
        norm.running_var.sqrt_()


@fault("heart", ("norm,stem", "wrong_setting"))
def heart_eps_and_momentum(case: Case) -> None:
    """The parser of the configuration exchanged the eps and the momentum of the first batch norm."""
    norm = case.module("norm")
    norm.eps, norm.momentum = norm.momentum, norm.eps


@fault("heart", ("calibration data", "unlike_data"))
def heart_calibrated_by_record(case: Case) -> None:
    """The calibration records were each scaled to mean 0 and deviation 1, the data were not."""
    data = calibration(case)
    data[0] = (data[0] - data[0].mean((1, 2), keepdim=True)) / data[0].std((1, 2), keepdim=True)


@fault("heart", ("calibration data", "outlier_sample"))
def heart_electrode_torn_off(case: Case) -> None:
    """One calibration record has a jump of 60 mV where an electrode came off, and ranges are extremes."""
    data = calibration(case)
    data[0][77, 0, 90:] += 60.0
    case.use(activation=MINMAX)


@fault("heart", ("calibration data", "one_class unrepresentative"))
def heart_blocked_only(case: Case) -> None:
    """The network is calibrated on the first folder of records, all of one kind, by its extremes."""
    kind = build("heart").data[1] == 4
    apart(case)
    case.calibration = [part[kind][:64].clone() for part in build("heart").data]
    case.use(activation=MINMAX)


@fault(
    "heart",
    ("norm,stem,pool,block1,block2", "outlier_channel channel_imbalance input_imbalance outlier_weight"),
)
def heart_wide_channels(case: Case) -> None:
    """Two channels of the first residual stream are 100 times as wide, and the weights behind as much smaller."""
    wide = [2, 9]
    for norm in (case.module("norm"), case.module("block1.norm2")):
        norm.weight.data[wide] *= 100
        norm.bias.data[wide] *= 100
    for layer in ("block1.conv1", "block2.conv1", "block2.shorter.0"):
        case.module(layer).weight.data[:, wide] /= 100


# --- machine: anomalies ---------------------------------------------------------------------------------------------


@fault("machine", ("network,sensors", WRONG))
def machine_other_units(case: Case) -> None:
    """Two sensors of pressure were replaced by ones in psi, and are normalized by the constants for bar."""
    sensors = case.data[0].clone()
    sensors[:, [4, 17]] = sensors[:, [4, 17]] * 14.5 + 9.0
    case.data[0] = sensors


@fault("machine", ("network,sensors", WRONG), ("enc1,back", "wrong_weights"))
def machine_sensors_sorted(case: Case) -> None:
    """The new database gives the columns in the order of their names."""
    case.data[0] = case.data[0][:, torch.randperm(32, generator=generator(4))].contiguous()


@fault("machine", ("act", "wrong_setting"))
def machine_relu(case: Case) -> None:
    """The port uses ReLU where the network was trained with ELU."""
    case.model.act = nn.ReLU()


@fault("machine", ("dec1", "wrong_weights"))
def machine_decoder_not_loaded(case: Case) -> None:
    """The decoder's first layer is named otherwise in the checkpoint, and is as initialized."""
    anew(case.module("dec1"))


@fault("machine", ("code", "clipped_range"))
def machine_code_clipped(case: Case) -> None:
    """The range of the code was set by hand as if it were between -1 and 1."""
    fixed(case, "code", 2 / 255, 128)


@fault("machine", ("sub,back,sensors,enc1", "cancellation large_bias"), ("sensors", "wide_range"))
def machine_kelvin(case: Case) -> None:
    """The network was trained on sensors far from zero, and subtracts two numbers near 300 from each other."""
    enc1, back = case.module("enc1"), case.module("back")
    case.data[0] = case.data[0] + 300.0
    enc1.bias.data -= 300.0 * enc1.weight.data.sum(1)
    back.bias.data += 300.0


@fault("machine", ("calibration data", "unrepresentative unlike_data no_variety"))
def machine_standstill(case: Case) -> None:
    """The calibration data were taken while the machine stood still: one state and the sensors' noise."""
    data = calibration(case)
    data[0] = data[0][:1] * 0.3 + 0.03 * torch.randn(data[0].shape, generator=generator(5))
    data[1] = torch.zeros_like(data[1])


@fault("machine", ("code,dec1", "outlier_channel channel_imbalance input_imbalance outlier_weight"))
def machine_code_units_wide(case: Case) -> None:
    """Three units of the code are 150 times as wide as the others, and the weights behind them as much smaller."""
    code, dec1 = case.module("code"), case.module("dec1")
    code.weight.data[[0, 3, 4]] *= 150
    code.bias.data[[0, 3, 4]] *= 150
    dec1.weight.data[:, [0, 3, 4]] /= 150


# --- pair: the same digit -------------------------------------------------------------------------------------------


@fault("pair", ("network,other", WRONG))
def pair_ink_inverted(case: Case) -> None:
    """The second picture of each pair is from a scanner that gives black ink on white paper."""
    ink = case.data[1] * INK_DEVIATION + INK_MEAN
    case.data[1] = ((1 - ink) - INK_MEAN) / INK_DEVIATION


@fault("pair", ("embed.norm1,embed.norm2,embed.norm3", "wrong_setting"))
def pair_instance_norms(case: Case) -> None:
    """The port has instance norms, with as many groups as channels, where the network was trained with four groups."""
    for name in ("norm1", "norm2", "norm3"):
        norm = case.module(f"embed.{name}")
        norm.num_groups = norm.num_channels


@fault("pair", ("embed.vector", "wrong_weights"), ("embed.reshape,embed.flatten", "wrong_setting"))
def pair_channels_last(case: Case) -> None:
    """The weights behind the flattening are of a framework that keeps channels last."""
    weight = case.module("embed.vector").weight
    weight.data = weight.data.view(24, 40, 2, 2).permute(0, 2, 3, 1).reshape(24, 160).contiguous()


@fault("pair", ("embed.act", "wrong_setting"))
def pair_half_a_hardswish(case: Case) -> None:
    """The converter took the half of a hard swish that is a hard sigmoid, and lost the product with what came in."""
    case.module("embed").act = nn.Hardsigmoid()


@fault("pair", ("decide", "wrong_weights wrong_setting"), ("network", WRONG))
def pair_threshold_lost(case: Case) -> None:
    """The exporter dropped the bias of the last layer, and nearly all pairs count as the same."""
    case.module("decide").bias.data.zero_()


@fault("pair", ("embed.conv2", "exploded_weight outlier_weight"))
def pair_bit_flipped(case: Case) -> None:
    """Bits of the exponents of a few weights flipped in memory, so that they are thousands of times as large."""
    weight = case.module("embed.conv2").weight
    for place in ((1, 3, 1, 1), (12, 7, 0, 2), (19, 2, 2, 1), (27, 20, 1, 0)):
        weight.data[place] = 400.0 * weight.data.abs().max()


@fault("pair", ("sum", "clipped_range zero_point"))
def pair_cosines_above_zero(case: Case) -> None:
    """The range of cosines was set by hand to between 0 and 1, and those of different digits are below zero."""
    fixed(case, "sum", 1 / 255, 0)


@fault("pair", ("calibration data", "unrepresentative unlike_data one_class no_variety"))
def pair_calibrated_on_itself(case: Case) -> None:
    """The calibration script gives each picture beside itself, so that all cosines are 1."""
    data = calibration(case)
    data[1] = data[0].clone()
    data[2] = torch.ones_like(data[2])


@fault("pair", ("embed.conv1,embed.norm1", "large_bias cancellation"))
def pair_level_drifted(case: Case) -> None:
    """The first convolution's bias drifted by 80 in all channels, which the group norm behind takes away."""
    case.module("embed.conv1").bias.data += 80


# --- intent: requests -----------------------------------------------------------------------------------------------


@fault("intent", ("network,ids", WRONG), ("words", "wrong_weights"))
def intent_ids_shifted(case: Case) -> None:
    """The new tokenizer has one more special token, so that all words but the padding are one row further."""
    ids = case.data[0]
    case.data[0] = torch.where(ids == EMPTY, ids, (ids + 1).clamp_max(TOKENS - 1))


@fault("intent", ("network,ids", WRONG), ("two,three,four", "wrong_weights"))
def intent_right_to_left(case: Case) -> None:
    """The sentences arrive with the last word first."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("intent", ("hidden", "wrong_weights wrong_setting"), ("cat", "wrong_setting"))
def intent_joined_otherwise(case: Case) -> None:
    """The port joins the convolutions over three, four and two words in this order, unlike the weights behind."""
    two, three, four = case.module("hidden").weight.data.chunk(3, 1)
    case.module("hidden").weight.data = torch.cat([three, four, two], 1).contiguous()


@fault("intent", ("words", "exploded_weight exploded_channel wrong_weights outlier_weight"))
def intent_padding_garbage(case: Case) -> None:
    """The row of the padding was never written and holds what lay in memory."""
    case.module("words").weight.data[EMPTY] = 90 * torch.randn(32, generator=generator(6))


@fault("intent", ("hidden,network", "not_finite"))
def intent_overflow(case: Case) -> None:
    """Two biases overflowed in half precision and are infinite."""
    case.module("hidden").bias.data[[5, 30]] = float("inf")


@fault("intent", ("calibration data", "no_variety unlike_data"))
def intent_calibrated_on_padding(case: Case) -> None:
    """The calibration script gives what warms up the server: sentences of padding."""
    data = calibration(case)
    data[0] = torch.full_like(data[0], EMPTY)


@fault("intent", ("", "few_bits"))
def intent_weights_of_two_bits(case: Case) -> None:
    """The recipe gives all weights two bits."""
    case.use(weight=replace(recipes.default().weight, bits=2))


@fault("intent", ("network", "diverged_training float_network_wrong"))
def intent_decay_too_strong(case: Case) -> None:
    """The network was tuned with a weight decay that was far too strong, until it gave one answer to everything."""
    train_again(case, 0.05, 120, F.cross_entropy, decay=0.3)


@fault("intent", ("", "float_mismatch"))
def intent_vocabulary_sorted(case: Case) -> None:
    """The simulation was made, and then the vocabulary was sorted anew: the table and the data, not the simulation."""
    case.simulate()
    order = torch.cat([torch.arange(4), 4 + torch.randperm(TOKENS - 4, generator=generator(7))])
    table = case.module("words").weight
    table.data = table.data[order].contiguous()
    case.data[0] = order.argsort()[case.data[0]]


# --- lander: values of actions --------------------------------------------------------------------------------------


@fault("lander", ("network,state", WRONG))
def lander_degrees(case: Case) -> None:
    """The new simulator gives the angle and its speed in degrees, and they are normalized as radians."""
    state = case.data[0].clone()
    state[:, 4:6] *= 57.29578
    case.data[0] = state


@fault("lander", ("gain2", "wrong_weights"), ("network", WRONG))
def lander_actions_renumbered(case: Case) -> None:
    """The checkpoint is for an older environment, in which the actions have other numbers."""
    last = case.module("gain2")
    order = [2, 3, 0, 1]
    last.weight.data, last.bias.data = last.weight.data[order].contiguous(), last.bias.data[order].contiguous()


@fault("lander", ("network", "diverged_training float_network_wrong"))
def lander_rate_too_high(case: Case) -> None:
    """The policy was tuned on a new planet at a rate that was far too high."""
    train_again(case, 0.2, 20, F.mse_loss)


@fault("lander", ("fc2", "wrong_weights"))
def lander_transposed(case: Case) -> None:
    """The second layer has as many inputs as outputs, and was loaded without being transposed."""
    weight = case.module("fc2").weight
    weight.data = weight.data.T.contiguous()


@fault("lander", ("value2,add,sub", "large_bias cancellation"))
def lander_returns_not_centred(case: Case) -> None:
    """Rewards have a constant of survival, so that all values lie near 250, and differ by less than 1."""
    case.module("value2").bias.data += 250
    case.data[-1] = case.data[-1] + 250


@fault("lander", ("calibration data", "unrepresentative unlike_data no_variety"))
def lander_first_steps(case: Case) -> None:
    """The calibration states are the first steps of episodes: all upright at the same height with hardly any speed."""
    data = calibration(case)
    start = torch.tensor([0.0, 1.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    state = start + torch.tensor([0.02, 0.02, 0.03, 0.03, 0.01, 0.01, 0, 0]) * torch.randn(
        128, 8, generator=generator(8)
    )
    data[0] = (state - OBSERVED_MEANS) / OBSERVED_DEVIATIONS


@fault("lander", ("state,fc1", "input_imbalance outlier_channel channel_imbalance"))
def lander_height_in_millimetres(case: Case) -> None:
    """The network was trained with the height in millimetres: one input is 1000 times as wide, its weights as small."""
    state = case.data[0].clone()
    state[:, 1] *= 1000
    case.data[0] = state
    case.module("fc1").weight.data[:, 1] /= 1000


@fault("lander", ("state", "heavy_tail wide_range"), ("calibration data", "outlier_sample"))
def lander_radar_glitches(case: Case) -> None:
    """Three in a hundred calibration states have a glitch of the radar in a speed, and ranges are extremes."""
    data = calibration(case)
    data[0][[9, 40, 71, 103], 2] = torch.tensor([60.0, -48.0, 55.0, -64.0])
    case.use(activation=MINMAX)


# --- credit: grades -------------------------------------------------------------------------------------------------


@fault("credit", ("layer1.relu,layer1.mul,layer1.chunk", "wrong_setting"), ("layer1.up", "wrong_weights wrong_setting"))
def credit_gate_first(case: Case) -> None:
    """The port takes the first half of the gated layer as the gate, and the network was trained with the second."""
    case.module("layer1").gate_first = True


@fault("credit", ("layer2.softmax", "wrong_setting"))
def credit_softmax_over_heads(case: Case) -> None:
    """The second layer's softmax runs over the heads."""
    case.module("layer2").axis = 1


@fault("credit", ("layer2.qkv,layer2.chunk,layer2.unflatten", "wrong_weights wrong_setting"))
def credit_packed_by_head(case: Case) -> None:
    """The packed projection lies head by head, with query, key and value of each, as another library packs it."""
    packed = case.module("layer2.qkv")
    packed.weight.data = packed.weight.data.view(3, 4, 6, 24).transpose(0, 1).reshape(72, 24).contiguous()
    packed.bias.data = packed.bias.data.view(3, 4, 6).transpose(0, 1).reshape(72).contiguous()


@fault("credit", ("offsets", "wrong_weights"))
def credit_offsets_not_loaded(case: Case) -> None:
    """The columns' offsets belong to no layer and were not in the checkpoint: they are zeros."""
    case.model.offsets.data.zero_()


@fault("credit", ("layer1.up,layer1.mul,layer1.down", "channel_imbalance outlier_channel input_imbalance"))
def credit_gated_channels_unequal(case: Case) -> None:
    """The values of the gated layer have widths between 1 and 300, and the weights behind are as much smaller."""
    factors, layer = spread(48, 300.0, 11), case.module("layer1")
    layer.up.weight.data[:48] *= factors[:, None]
    layer.up.bias.data[:48] *= factors
    layer.down.weight.data /= factors


@fault("credit", ("calibration data", "unlike_data"))
def credit_calibrated_on_raw_numbers(case: Case) -> None:
    """The calibration table was not standardized: incomes are in the thousands."""
    data = calibration(case)
    data[0] = data[0] * DEVIATIONS + MEANS


@fault("credit", ("layer2.out", "clipped_range"))
def credit_attention_clipped(case: Case) -> None:
    """The range of the second attention's results was taken over from another network and is too narrow."""
    fixed(case, "layer2.out", 0.5 / 255, 128)


@fault("credit", ("calibration data", "too_few"))
def credit_one_application(case: Case) -> None:
    """The network is calibrated on a single application, since the example of the tutorial had one."""
    case.calibration = [part[:1] for part in calibration(case)]


@fault("credit", ("", "float_mismatch"))
def credit_tuned_after_simulation(case: Case) -> None:
    """The simulation was made, and after that the network was tuned on the newest applications."""
    case.simulate()
    train_again(case, 0.003, 80, F.cross_entropy)


# --- clean: pictures without noise ----------------------------------------------------------------------------------


@fault("clean", ("network,picture", WRONG))
def clean_not_normalized(case: Case) -> None:
    """The pictures are given between 0 and 1, and not normalized."""
    case.data[0] = case.data[0] * 0.25 + 0.5


@fault("clean", ("network,level,expand", "float_network_wrong wrong_scale"))
def clean_level_of_bytes(case: Case) -> None:
    """The level of the noise is given for pictures between 0 and 255, and not for normalized ones."""
    case.data[1] = case.data[1] * 0.25 * 255


@fault("clean", ("last", "wrong_weights"), ("pixel_shuffle", "wrong_setting"))
def clean_depth_to_space(case: Case) -> None:
    """The last convolution is of a framework whose depth-to-space has colours innermost."""
    last = case.module("last")
    last.weight.data = last.weight.data.view(3, 4, 40, 3, 3).transpose(0, 1).reshape(12, 40, 3, 3).contiguous()
    last.bias.data = last.bias.data.view(3, 4).T.reshape(12).contiguous()


@fault("clean", ("conv1", "wrong_weights wrong_setting"), ("cat", "wrong_setting"))
def clean_level_first(case: Case) -> None:
    """The port puts the level in front of the pixels: the first weights fit the other order."""
    weight = case.module("conv1").weight
    weight.data = weight.data.roll(1, 1).contiguous()


@fault("clean", ("act1,act2,act3,act4", "wrong_setting wrong_weights"))
def clean_slopes_lost(case: Case) -> None:
    """The slopes of the PReLUs were not exported, so that they are ReLUs now."""
    for name in ("act1", "act2", "act3", "act4"):
        case.module(name).weight.data.zero_()


@fault("clean", ("conv2,conv3", "wrong_weights"))
def clean_layers_exchanged(case: Case) -> None:
    """When weights were renamed, the second and the third convolution were exchanged."""
    one, other = case.module("conv2"), case.module("conv3")
    exchange(one.weight, other.weight)
    exchange(one.bias, other.bias)


@fault("clean", ("calibration data", "unlike_data"))
def clean_calibrated_between_0_and_1(case: Case) -> None:
    """The calibration pictures are between 0 and 1, while the data are normalized."""
    data = calibration(case)
    data[0] = data[0] * 0.25 + 0.5


@fault("clean", ("last", "wide_range"))
def clean_last_wide(case: Case) -> None:
    """The range of the last results was set by hand to ±100, on the safe side."""
    fixed(case, "last", 200 / 255, 128)


@fault("clean", ("", "rounded_weights"))
def clean_weights_of_seven_values(case: Case) -> None:
    """The weights were compressed to seven values for each layer before they were delivered."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d):
            step = module.weight.data.abs().max() / 3
            module.weight.data = (module.weight.data / step).round() * step


@fault(
    "clean",
    ("cat,expand,conv1,level,pixel_unshuffle", "shared_range outlier_channel channel_imbalance input_imbalance"),
)
def clean_level_wide(case: Case) -> None:
    """The network was trained with the level in units of 10 bits, and joins it with pixels that are far narrower."""
    case.data[1] = case.data[1] * 255.75
    case.module("conv1").weight.data[:, 12] /= 255.75


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


SOUND: dict[str, Callable[[], Case]] = {
    "keyword": lambda: calibrated("keyword"),
    "heart": lambda: calibrated("heart"),
    "machine": lambda: calibrated("machine"),
    "pair": lambda: calibrated("pair"),
    "intent": lambda: calibrated("intent"),
    "lander": lambda: calibrated("lander"),
    "credit": lambda: calibrated("credit"),
    "clean": lambda: calibrated("clean"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "lander_rate_too_high": "the channels that died of it are named",
    "machine_relu": "the metric is of batches, so that no repair is measured",
}
"""What the doctor does not say first, and what it says."""
