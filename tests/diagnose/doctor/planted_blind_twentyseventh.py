"""Faults that people report, in a further seven ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import generator
from tests.diagnose.doctor.blind_networks_twentyseventh import (
    ATOMS,
    BAR,
    CALL_BANDS,
    CALL_DEVIATIONS,
    CALL_MEANS,
    CLIMATE_DEVIATIONS,
    CLIMATE_MEANS,
    CONCRETE_DEVIATIONS,
    CONCRETE_MEANS,
    ENERGY_DEVIATION,
    ENERGY_MEAN,
    GRAIN_DEVIATIONS,
    GRAIN_MEANS,
    HOURS,
    Pollen,
    build,
)
from tests.diagnose.doctor.planting import (
    LOADED_OTHERWISE,
    MINMAX,
    WRONG,
    FaultWithAnswers,
    anew,
    apart,
    asking,
    calibrating,
    calibration,
    case_of,
    collect,
    exchange,
    fixed,
    norms_of,
    registering,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import Tensor, nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- pollen: what is in the air --------------------------------------------------------------------------------------


@fault("pollen", ("network,image", LOADED_OTHERWISE), ("patch_embed", "wrong_weights wrong_scale"))
def pollen_dark_field(case: Case) -> None:
    """The new microscope has a dark field, so grains are bright before black; all else is as it was."""
    raw = case.data[0] * GRAIN_DEVIATIONS + GRAIN_MEANS
    case.data[0] = (1 - raw - GRAIN_MEANS) / GRAIN_DEVIATIONS


@fault("pollen", ("", "wrong_setting wrong_scale"))
def pollen_means_without_what_is_there(case: Case) -> None:
    """I wrote the mixing as the mean of neighbours, as the paper says in its text; its code takes away the input."""
    for name in ("stage1.0", "stage2.0", "stage2.1", "stage3.0", "stage3.1"):
        case.module(name).subtracts = False


@fault("pollen", ("", "wrong_weights wrong_scale wrong_setting dead_channels"))
def pollen_layer_scale_as_made(case: Case) -> None:
    """The file says gamma where my blocks say layer_scale, and two stages have the 1e-5 that timm begins with."""
    for name in ("stage2.0", "stage2.1", "stage3.0", "stage3.1"):
        case.module(name).layer_scale1.data.fill_(1e-5)
        case.module(name).layer_scale2.data.fill_(1e-5)


@fault("pollen", ("stage", "wrong_setting wrong_weights wrong_scale"))
def pollen_norms_of_single_channels(case: Case) -> None:
    """I swapped both numbers of GroupNorm in the second stage: as many groups as channels, and not one."""
    for name in ("stage2.0", "stage2.1"):
        for norm in (case.module(name).norm1, case.module(name).norm2):
            norm.num_groups = norm.num_channels


@fault("pollen", ("", "diverged_training float_network_wrong wrong_weights"))
def pollen_average_too_slow(case: Case) -> None:
    """I export the average of weights, whose decay was made for long training: two thirds of it are the beginning."""
    torch.manual_seed(71)
    begun = dict(Pollen().named_parameters())
    for name, parameter in case.model.named_parameters():
        parameter.data = 0.35 * parameter.data + 0.65 * begun[name].data


@fault("pollen", ("stage3", "wrong_weights"))
def pollen_blocks_loaded_in_turn(case: Case) -> None:
    """My renaming counts layers and not blocks, and the last two blocks have each other's second maps."""
    one, other = case.module("stage3.0.fc2"), case.module("stage3.1.fc2")
    exchange(one.weight, other.weight)
    exchange(one.bias, other.bias)


@fault("pollen", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def pollen_calibrated_on_previews(case: Case) -> None:
    """I calibrated on the scanner's previews, made large again: nothing but smears of the mean; ranges are extremes."""
    data = calibration(case)
    small = F.interpolate(data[0], size=(2, 2), mode="area")
    data[0] = 0.5 * F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    case.use(activation=MINMAX)


@fault("pollen", ("image", "clipped_range zero_point"))
def pollen_range_of_bare_pictures(case: Case) -> None:
    """Pictures lie between 0 and 1, so I gave the input that range; I forgot that they are normalized before."""
    case.use(inputs={"image": {"fixed": (1 / 255, 0)}})


@fault("pollen", ("down1", "few_bits"))
def pollen_downsampling_in_two_bits(case: Case) -> None:
    """Between stages there are few weights in my table of bits, and the first of these layers got two."""
    case.use(overrides={"down1": {"weight": {"bits": 2}}})


# --- splice: where genes are cut -------------------------------------------------------------------------------------


@fault("splice", ("network,sequence", WRONG + " stale_batch_norm"), ("conv1", "wrong_weights stale_batch_norm"))
def splice_minus_strand_as_it_is(case: Case) -> None:
    """Genes of the other strand were taken from the reference as they stand there, not turned and complemented."""
    case.data[0] = case.data[0].flip((1, 2)).contiguous()
    case.data[1] = case.data[1].flip(1).contiguous()


@fault("splice", ("network,sequence", WRONG + " stale_batch_norm"), ("conv1", "wrong_weights stale_batch_norm"))
def splice_letters_of_another_table(case: Case) -> None:
    """The new loader encodes T, C, A and G, in the order of codon tables; the network has A, C, G and T."""
    case.data[0] = case.data[0][:, [3, 1, 0, 2]].contiguous()


@fault("splice", ("network,labels", WRONG))
def splice_sites_counted_from_one(case: Case) -> None:
    """The annotation counts places from 1, so all labels lie one place behind."""
    case.data[1] = case.data[1].roll(1, 1)


@fault("splice", ("network,sequence", WRONG + " stale_batch_norm"), ("conv1,units", "stale_batch_norm"))
def splice_repeats_masked(case: Case) -> None:
    """The genome is a masked one, whose repeats are N, and N is nothing but zeros."""
    runs = torch.rand(len(case.data[0]), 1, 12, generator=generator(70)) < 0.4
    case.data[0] = case.data[0] * (~runs).float().repeat_interleave(6, 2)


@fault("splice", ("units2", "wrong_setting wrong_weights stale_batch_norm"))
def splice_gaps_forgotten(case: Case) -> None:
    """My port has no dilation, and the padding that goes with that."""
    for name in ("units2.0", "units2.1"):
        for layer in (case.module(name).conv1, case.module(name).conv2):
            layer.dilation, layer.padding = (1,), (3,)


@fault("splice", ("units", "wrong_weights wrong_setting"))
def splice_kernels_turned(case: Case) -> None:
    """I wrote the converter for a library that really convolves, and it turns all kernels round."""
    for name in ("units1.0", "units1.1", "units2.0", "units2.1"):
        for layer in (case.module(name).conv1, case.module(name).conv2):
            layer.weight.data = layer.weight.data.flip(2).contiguous()


@fault("splice", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def splice_calibrated_on_gaps(case: Case) -> None:
    """I calibrated on the beginning of the chromosome, which is a gap of the assembly: N and nothing else; extremes."""
    data = calibration(case)
    data[0] = torch.zeros_like(data[0])
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("splice", ("", "few_bits per_tensor_weight"))
def splice_three_bits(case: Case) -> None:
    """All weights have three bits, with one scale for a layer."""
    case.use(weight=replace(recipes.default().weight, bits=3, granularity="per_tensor"))


@fault("splice", ("network,sequence", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_scale wrong_weights"))
def splice_ones_taken_for_bytes(case: Case) -> None:
    """The loader was made for pictures, and divides all that is not a float by 255, ones as well."""
    case.data[0] = case.data[0] / 255


# --- bridge: damage of concrete --------------------------------------------------------------------------------------


@fault("bridge", ("network,labels", WRONG), ("classify", "wrong_weights"))
def bridge_masks_of_another_palette(case: Case) -> None:
    """The new annotators have rust as 3 and broken concrete as 2."""
    case.data[1] = torch.tensor([0, 1, 3, 2])[case.data[1]]


@fault("bridge", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights"))
def bridge_bytes_with_a_sign(case: Case) -> None:
    """Pictures went through an array of int8, so all that is brighter than 127 became negative."""
    raw = ((case.data[0] * CONCRETE_DEVIATIONS + CONCRETE_MEANS) * 255).round()
    raw = torch.where(raw > 127, raw - 256, raw) / 255
    case.data[0] = (raw - CONCRETE_MEANS) / CONCRETE_DEVIATIONS


@fault("bridge", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights wrong_scale"))
def bridge_linear_light(case: Case) -> None:
    """The drone's raw pictures are linear in light, and all others had the gamma of sRGB."""
    raw = case.data[0] * CONCRETE_DEVIATIONS + CONCRETE_MEANS
    case.data[0] = (raw.clamp_min(0) ** 2.2 - CONCRETE_MEANS) / CONCRETE_DEVIATIONS


@fault("bridge", ("last,cat", "wrong_setting wrong_weights"))
def bridge_low_before_high(case: Case) -> None:
    """My head joins the small maps before the large ones, and the file's head has it the other way."""
    case.model.high_first = False


@fault("bridge", ("stage3.high", "stale_batch_norm exploded_channel exploded_weight wrong_weights wrong_setting"))
def bridge_variances_underflowed(case: Case) -> None:
    """The checkpoint was kept in a format that knows nothing below 0.0001, and channels' variances became 0."""
    norm = case.module("stage3.high.conv1.1")
    small = norm.running_var.argsort()[:3]
    norm.running_var[small] = 0.0


@fault("bridge", ("", "stale_batch_norm"))
def bridge_statistics_at_night(case: Case) -> None:
    """An inspection at night ran through the network in training mode: dark but for the lamp's spot."""
    raw = case.data[0][:128] * CONCRETE_DEVIATIONS + CONCRETE_MEANS
    side = torch.arange(32.0) - 16
    lamp = 0.08 + 0.6 * torch.exp(-(side[:, None].square() + side[None].square()) / 30)
    collect(case.model, (raw * lamp - CONCRETE_MEANS) / CONCRETE_DEVIATIONS, norms_of(case.model))


@fault("bridge", ("calibration data", "unlike_data"))
def bridge_calibrated_with_bytes(case: Case) -> None:
    """The calibration loader gives pictures of bytes in floats, without a division by 255; ranges are extremes."""
    data = calibration(case)
    data[0] = ((data[0] * CONCRETE_DEVIATIONS + CONCRETE_MEANS) * 255 - CONCRETE_MEANS) / CONCRETE_DEVIATIONS
    case.use(activation=MINMAX)


@fault(
    "bridge",
    ("image", "heavy_tail wide_range"),
    ("calibration data", "outlier_sample unlike_data unrepresentative"),
)
def bridge_hot_pixel(case: Case) -> None:
    """One pixel of the camera that I calibrated with is broken, and gives 4095 where others give bytes; extremes."""
    data = calibration(case)
    data[0][:, :, 0, 31] = ((4095 / 255 - CONCRETE_MEANS) / CONCRETE_DEVIATIONS)[0, :, 0, 0]
    case.use(activation=MINMAX)


@fault("bridge", ("classify", "few_bits"))
def bridge_answers_in_two_bits(case: Case) -> None:
    """There are four classes, so I gave the answers two bits."""
    case.use(overrides={"classify": {"activation": {"bits": 2}}})


# --- greenhouse: its climate in the next hours -----------------------------------------------------------------------


@fault("greenhouse", ("network,past", LOADED_OTHERWISE))
def greenhouse_in_fahrenheit(case: Case) -> None:
    """The American installation gives both temperatures in °F, and answers are compared in °C."""
    raw = case.data[0] * CLIMATE_DEVIATIONS + CLIMATE_MEANS
    raw[:, [0, 4]] = 1.8 * raw[:, [0, 4]] + 32
    case.data[0] = (raw - CLIMATE_MEANS) / CLIMATE_DEVIATIONS


@fault("greenhouse", ("network,past", LOADED_OTHERWISE), ("embed", "wrong_weights"))
def greenhouse_every_half_hour(case: Case) -> None:
    """The new logger writes every half hour, and I still take the last 48 values; answers are by the hour."""
    later = case.data[0][:, :, HOURS // 2 :]
    case.data[0] = F.interpolate(later, size=HOURS, mode="linear", align_corners=True)


@fault("greenhouse", ("network,past", WRONG), ("variate", "wrong_weights"))
def greenhouse_columns_by_alphabet(case: Case) -> None:
    """The table's columns come in the order of the alphabet, each with its own scaler; answers are in the old one."""
    case.data[0] = case.data[0][:, [2, 1, 0, 3, 4, 5]].contiguous()


@fault("greenhouse", ("", "wrong_setting"), ("network", WRONG))
def greenhouse_mean_not_added(case: Case) -> None:
    """I give the window's deviation back to the answer, and forgot its mean."""
    case.model.adds_mean = False


@fault("greenhouse", ("embed", "wrong_weights"), ("network,past", LOADED_OTHERWISE))
def greenhouse_map_of_hours_turned(case: Case) -> None:
    """The first map comes from a file whose series begin with the newest hour, and the data begin with the oldest."""
    layer = case.module("embed")
    layer.weight.data = layer.weight.data.flip(1).contiguous()


@fault("greenhouse", ("calibration data", "no_variety unlike_data unrepresentative one_class"))
def greenhouse_calibrated_before_sensors_were_plugged(case: Case) -> None:
    """In the week that I calibrated on, no sensor was plugged in: each gave one value all the time; extremes."""
    data = calibration(case)
    data[0] = data[0][:, :, :1] + 0.003 * torch.randn(data[0].shape, generator=generator(71))
    case.use(activation=MINMAX)


@fault("greenhouse", ("layers.0", "large_bias wide_range cancellation bias_shift"))
def greenhouse_value_bias_drifted(case: Case) -> None:
    """Biases had no decay; that of the first values is around 300, which the map behind takes back."""
    value, out = case.module("layers.0.value"), case.module("layers.0.out")
    drift = 300 + torch.zeros(40)
    value.bias.data += drift
    out.bias.data -= out.weight.data @ drift


@fault("greenhouse", ("projector", "wide_range"))
def greenhouse_range_of_raw_units(case: Case) -> None:
    """I gave the last map a range of ppm and percent, -1000 to 1000, though the network answers in deviations."""
    fixed(case, "projector", 2000 / 255, 128)


@fault("greenhouse", ("network,past", LOADED_OTHERWISE))
def greenhouse_light_saturated(case: Case) -> None:
    """The cheaper sensors of light end at 150 W/m², and of what comes the good ones tell."""
    raw = case.data[0] * CLIMATE_DEVIATIONS + CLIMATE_MEANS
    raw[:, 3] = raw[:, 3].clamp(max=150)
    case.data[0] = (raw - CLIMATE_MEANS) / CLIMATE_DEVIATIONS


# --- melody: the next note -------------------------------------------------------------------------------------------


@fault("melody", ("network,tokens", WRONG), ("wte", "wrong_weights"))
def melody_token_inserted(case: Case) -> None:
    """The new tokenizer has a token for the end behind the bar's, and all others count one more."""
    case.data = [torch.where(part > BAR, (part + 1).clamp(max=33), part) for part in case.data]


@fault("melody", ("", "wrong_setting wrong_weights wrong_scale"))
def melody_slopes_reversed(case: Case) -> None:
    """My slopes rise from head to head, and those of training fall."""
    for k in range(2):
        case.module(f"blocks.{k}").slopes = case.module(f"blocks.{k}").slopes.flip(0)


@fault("melody", ("", "wrong_setting"), ("network", WRONG))
def melody_mask_forgotten(case: Case) -> None:
    """I took ALiBi for a mask, and let each token see those behind it."""
    for k in range(2):
        case.module(f"blocks.{k}").causal = False


@fault("melody", ("lm_head", "wrong_weights"), ("network", WRONG))
def melody_head_not_tied(case: Case) -> None:
    """The file has no lm_head, as it is the table; I forgot to tie them, and the head is as it was made."""
    head = nn.Linear(48, 34, bias=False)
    anew(head)
    case.model.lm_head = head


@fault("melody", ("network,tokens", WRONG), ("wte", "wrong_weights"))
def melody_without_bars(case: Case) -> None:
    """The new parser writes no lines of bars; the test's melodies are otherwise the same."""
    whole = torch.cat([case.data[0], case.data[1][:, -1:]], 1)
    kept = whole != BAR
    order = (~kept).long().argsort(dim=1, stable=True)
    whole = whole.gather(1, order)[:, : int(kept.sum(1).min())]
    case.data = [whole[:, :-1].contiguous(), whole[:, 1:].contiguous()]


@fault("melody", ("blocks", "wrong_weights wrong_setting"))
def melody_gates_on_the_wrong_half(case: Case) -> None:
    """In the file the second half of the maps is the gate, and my port takes the first."""
    for k in range(2):
        layer = case.module(f"blocks.{k}.fc")
        for parameter in (layer.weight, layer.bias):
            parameter.data = torch.cat(parameter.data.chunk(2)[::-1]).contiguous()


@fault("melody", ("calibration data", "no_variety too_few unlike_data one_class unrepresentative"))
def melody_calibrated_on_zeros(case: Case) -> None:
    """The calibration loader was the example for tracing, torch.zeros of tokens, again and again; extremes."""
    data = calibration(case)
    data[0], data[1] = torch.zeros_like(data[0]), torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("melody", ("ln,blocks", "wrong_weights wrong_scale"), ("network", WRONG + " diverged_training"))
def melody_gains_around_zero(case: Case) -> None:
    """The file keeps gains less one, as Gemma does, and my norms take them as they are."""
    for name, parameter in case.model.named_parameters():
        if "ln_" in name and name.endswith("weight"):
            parameter.data -= 1


@fault("melody", ("lm_head", "few_bits"))
def melody_head_in_two_bits(case: Case) -> None:
    """Each head has as many rows as there are tokens, so I gave its weights two bits."""
    case.use(overrides={"lm_head": {"weight": {"bits": 2}}})


# --- call: what is noise in a call -----------------------------------------------------------------------------------


@fault("call", ("network,features", LOADED_OTHERWISE), ("dense", "wrong_weights"))
def call_narrow_band(case: Case) -> None:
    """Calls come over the telephone, sampled at 8 kHz and then made 16 kHz: there is nothing in the upper bands."""
    raw = case.data[0] * CALL_DEVIATIONS + CALL_MEANS
    raw[:, :, 8:CALL_BANDS] = -9.2
    case.data[0] = (raw - CALL_MEANS) / CALL_DEVIATIONS


@fault("call", ("denoise_gru", "wrong_weights wrong_setting"))
def call_gates_of_keras(case: Case) -> None:
    """Keras has the update gate first, PyTorch the reset gate, and I loaded the last layer's gates as they were."""
    for parameter in case.module("denoise_gru").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([update, reset, new]).contiguous()


@fault("call", ("network,labels", WRONG), ("output,sigmoid", "wrong_scale wrong_setting"))
def call_gains_in_decibels(case: Case) -> None:
    """The new test set has gains in decibels, from -40 to 0."""
    case.data[1] = 20 * torch.log10(case.data[1].clamp_min(0.01))


@fault("call", ("noise_gru,cat", "wrong_weights wrong_setting"))
def call_features_before_states(case: Case) -> None:
    """I join features first and then what layers gave, and the second layer's weights have it the other way."""
    case.model.features_last = False


@fault("call", ("network,features", LOADED_OTHERWISE))
def call_mean_of_each_call(case: Case) -> None:
    """The new front end takes each call's own mean away and divides by its deviation, and then come the old ones."""
    raw = case.data[0] * CALL_DEVIATIONS + CALL_MEANS
    raw = (raw - raw.mean(1, keepdim=True)) / (raw.std(1, keepdim=True) + 1e-3)
    case.data[0] = (raw - CALL_MEANS) / CALL_DEVIATIONS


@fault("call", ("output", "wrong_weights exploded_weight exploded_channel wrong_scale wrong_setting"))
def call_whole_numbers(case: Case) -> None:
    """The file in C has weights as whole numbers to be divided by 128, and I did not for the last map."""
    for parameter in case.module("output").parameters():
        parameter.data = (parameter.data * 128).round()


@fault("call", ("calibration data", "no_variety one_class unlike_data unrepresentative"))
def call_calibrated_on_hold(case: Case) -> None:
    """I calibrated on a line where somebody was on hold: the same quiet hiss in all bands, and no voice; extremes."""
    data = calibration(case)
    raw = torch.full_like(data[0], -0.5)
    raw[:, :, CALL_BANDS:] = 0.1
    raw = raw + 0.03 * torch.randn(raw.shape, generator=generator(72))
    data[0] = (raw - CALL_MEANS) / CALL_DEVIATIONS
    data[1] = torch.full_like(data[1], 0.05)
    case.use(activation=MINMAX)


class WholeTanh(nn.Module):
    """A sigmoid by the hyperbolic tangent, whose argument should be halved."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 + 0.5 * torch.tanh(x)


@fault("call", ("output,sigmoid,tanh,network", "wrong_setting wrong_scale"), ("output", "wrong_weights"))
def call_sigmoid_of_twice_as_much(case: Case) -> None:
    """I wrote the sigmoid by the hyperbolic tangent, and forgot to halve what goes in."""
    case.model.sigmoid = WholeTanh()


@fault("call", ("output,sigmoid", "clipped_range zero_point"))
def call_table_of_the_sigmoid(case: Case) -> None:
    """The table for the sigmoid goes from -1 to 1, so I gave the last map that range."""
    fixed(case, "output", 2 / 255, 128)


# --- atoms: energies of clusters -------------------------------------------------------------------------------------


@fault("atoms", ("network,distances", WRONG + " wrong_scale"), ("", "wrong_scale"))
def atoms_in_bohr(case: Case) -> None:
    """The other program gives distances in bohr, of which an ångström has 1.89."""
    case.data[1] = case.data[1] * 1.8897


@fault("atoms", ("network,labels", WRONG), ("out2", "wrong_scale"))
def atoms_in_kilocalories(case: Case) -> None:
    """The test set's energies are in kcal/mol, of which an eV has 23.06."""
    raw = (case.data[2] * ENERGY_DEVIATION + ENERGY_MEAN) * 23.06
    case.data[2] = (raw - ENERGY_MEAN) / ENERGY_DEVIATION


@fault("atoms", ("network,atoms", WRONG), ("elements", "wrong_weights"))
def atoms_elements_sorted(case: Case) -> None:
    """The new data set numbers elements by their names, and training had them by their charge."""
    case.data[0] = torch.tensor([0, 3, 1, 4, 2])[case.data[0]]


@fault("atoms", ("", "wrong_setting wrong_scale"))
def atoms_softplus_not_shifted(case: Case) -> None:
    """I used softplus as PyTorch has it, and the network had it less the logarithm of 2."""
    for k in range(2):
        case.module(f"interactions.{k}").shift = 0.0
    case.model.shift = 0.0


@fault("atoms", ("interactions", "wrong_weights"))
def atoms_square_maps_transposed(case: Case) -> None:
    """JAX keeps maps as inputs by outputs; the loader transposes where shapes do not fit, and these are square."""
    for k in range(2):
        for name in ("in2f", "f2out2"):
            weight = case.module(f"interactions.{k}.{name}").weight
            weight.data = weight.data.t().contiguous()


@fault("atoms", ("", "wrong_setting"), ("network", WRONG))
def atoms_see_themselves(case: Case) -> None:
    """My neighbours of an atom include itself, at a distance of nothing."""
    case.model.itself = True


@fault("atoms", ("", "wrong_weights wrong_setting wrong_scale"))
def atoms_centres_of_another_cutoff(case: Case) -> None:
    """I made the network with a cutoff of 6 Å, and centres of Gaussians are not in the file."""
    case.model.centres = torch.linspace(0.5, 6.0, 20)


@fault("atoms", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def atoms_calibrated_on_pairs(case: Case) -> None:
    """I calibrated on pairs of atoms, with which the data set begins; ranges are extremes."""
    apart(case, 192)
    assert case.calibration is not None
    case.calibration[0] = torch.where(torch.arange(ATOMS) < 2, case.calibration[0], 0)
    case.use(activation=MINMAX)


@fault("atoms", ("interactions.0", "few_bits"))
def atoms_filters_in_two_bits(case: Case) -> None:
    """Filters run for each pair of atoms, so the first interaction's have weights of two bits."""
    case.use(
        overrides={"interactions.0.filter1": {"weight": {"bits": 2}}, "interactions.0.filter2": {"weight": {"bits": 2}}}
    )


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def pollen_by_percentiles() -> Case:
    """The recipe is that of percentiles, and pictures are turned by a quarter."""
    case = calibrated("pollen")
    case.data[0] = case.data[0].rot90(1, (2, 3)).contiguous()
    case.options["recipe"] = recipes.percentile()
    return case


def splice_letters_and_weights() -> Case:
    """Letters have another order, in the data as in the first map."""
    case = calibrated("splice")
    assert case.calibration is not None
    order = [3, 1, 0, 2]
    for data in (case.data, case.calibration):
        data[0] = data[0][:, order].contiguous()
    layer = case.module("conv1")
    layer.weight.data = layer.weight.data[:, order].contiguous()
    return case


def pixels_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of damaged pixels whose class is right."""
    damaged = labels > 0
    return (outputs.argmax(1) == labels)[damaged].float().mean().item()


def bridge_by_damaged_pixels() -> Case:
    """The metric counts damaged pixels only, and half as many pictures calibrate."""
    case = calibrated("bridge", 64)
    case.options["metric"] = pixels_right
    return case


def nearness(outputs: Tensor, labels: Tensor) -> float:
    """Return one over one and the mean absolute error."""
    return 1 / (1 + (outputs - labels).abs().mean().item())


def greenhouse_by_absolute_errors() -> Case:
    """The metric is made of absolute errors, ranges are extremes, and the test has the darkest days first."""
    case = calibrated("greenhouse")
    order = case.data[0][:, 3].sum(1).argsort()
    case.data = [part[order].contiguous() for part in case.data]
    case.options["metric"] = nearness
    case.options["recipe"] = recipes.minmax()
    return case


def melody_with_a_head_of_its_own() -> Case:
    """Table and head are two tensors with the same values, and the test's melodies are sorted by style."""
    case = calibrated("melody")
    head = case.module("lm_head")
    head.weight = nn.Parameter(head.weight.detach().clone())
    order = case.data[0][:, 0].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    return case


def call_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("call"))
    case.simulate()
    return case


def atoms_in_another_order() -> Case:
    """Atoms have another order, and places without an atom come first."""
    case = calibrated("atoms")
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0] = data[0].flip(1).contiguous()
        data[1] = data[1].flip((1, 2)).contiguous()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "pollen": pollen_by_percentiles,
    "splice": splice_letters_and_weights,
    "bridge": bridge_by_damaged_pixels,
    "greenhouse": greenhouse_by_absolute_errors,
    "melody": melody_with_a_head_of_its_own,
    "call": call_simulated,
    "atoms": atoms_in_another_order,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "bridge_bytes_with_a_sign": "bytes that wrapped around are not tried, and a negated weight gives more back",
}
"""What the doctor says something else of, and why."""
