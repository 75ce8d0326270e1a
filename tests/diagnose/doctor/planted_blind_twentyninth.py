"""Faults that people report, in a further seven ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator
from tests.diagnose.doctor.blind_networks_twentyninth import (
    CONTRACTS,
    FRAMES,
    GREY,
    HARBOUR_DEVIATIONS,
    HARBOUR_MEANS,
    MEL_DEVIATIONS,
    MEL_MEANS,
    MELS,
    NUMBER_DEVIATIONS,
    NUMBER_MEANS,
    SALES_DEVIATION,
    SALES_MEAN,
    Waste,
    build,
)
from tests.diagnose.doctor.planting import (
    LOADED_OTHERWISE,
    MINMAX,
    UNEQUAL,
    WRONG,
    FaultWithAnswers,
    anew,
    asking,
    calibrating,
    calibration,
    case_of,
    exchange,
    fixed,
    norms_of,
    registering,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- waste: what lies on a belt for sorting --------------------------------------------------------------------------


@fault("waste", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_scale"))
def waste_normalize_forgotten(case: Case) -> None:
    """My evaluation transform is ToTensor alone, and training had Normalize behind it."""
    case.data[0] = case.data[0] * DEVIATIONS + MEANS


@fault("waste", ("network,image", WRONG + " stale_batch_norm"), ("stem", "stale_batch_norm wrong_weights"))
def waste_from_thumbnails(case: Case) -> None:
    """The pictures at hand are thumbnails of a quarter of a side, and I made them as large as the network wants."""
    small = F.avg_pool2d(case.data[0], 4)
    case.data[0] = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)


@fault("waste", ("stage2.1,cat", "wrong_setting wrong_weights"))
def waste_fused_the_other_way(case: Case) -> None:
    """My block joins what attention gives before what came in, and the checkpoint's has it behind."""
    case.module("stage2.1").own_first = False


@fault("waste", ("", "wrong_setting"))
def waste_relu_for_silu(case: Case) -> None:
    """My helper's default activation is ReLU, and the checkpoint loads into it without a word."""
    for module in list(case.model.modules()):
        if isinstance(getattr(module, "act", None), nn.SiLU):
            module.act = nn.ReLU()


@fault("waste", ("", "wrong_weights float_network_wrong stale_batch_norm"))
def waste_average_that_had_hardly_begun(case: Case) -> None:
    """I deploy the moving average of the weights, whose decay is far too slow: it is mostly the initial weights."""
    torch.manual_seed(11)
    begun = dict(Waste().named_parameters())
    for name, parameter in case.model.named_parameters():
        parameter.data = 0.6 * begun[name].data + 0.4 * parameter.data


@fault("waste", ("stage2.1.layers", "wrong_weights"))
def waste_encoders_by_another_count(case: Case) -> None:
    """My renaming counts the encoders from the end, so that the two have each other's weights."""
    first, second = case.module("stage2.1.layers.0"), case.module("stage2.1.layers.1")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        exchange(one, other)


@fault("waste", ("calibration data", "unlike_data unrepresentative"))
def waste_calibrated_with_random_numbers(case: Case) -> None:
    """I copied the calibration loop of a tutorial, which has torch.rand for pictures; ranges are extremes."""
    data = calibration(case)
    data[0] = torch.rand(data[0].shape, generator=generator(291))
    case.use(activation=MINMAX)


@fault("waste", ("stage2.1", UNEQUAL))
def waste_loud_features(case: Case) -> None:
    """Two features behind the layer norms are 250 times as large as others, and the maps behind take it back."""
    for k in range(2):
        encoder = case.module(f"stage2.1.layers.{k}")
        for norm, layer in ((encoder.norm1, encoder.qkv), (encoder.norm2, encoder.fc1)):
            norm.weight.data[[3, 17]] *= 250
            norm.bias.data[[3, 17]] *= 250
            layer.weight.data[:, [3, 17]] /= 250
    case.use(between_layers="integer", equalize=False)


@fault("waste", ("stage2.0", "zero_point clipped_range"))
def waste_bottleneck_without_negatives(case: Case) -> None:
    """I thought that an activation follows each convolution, and gave a narrow one, which has none, the range 0..3."""
    fixed(case, "stage2.0.project.conv", 3 / 255, 0)


# --- remote: what is said to a television ----------------------------------------------------------------------------


@fault("remote", ("network,mels", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_scale"))
def remote_in_decibels(case: Case) -> None:
    """The device gives decibels, and the means and deviations that I take are those of natural logarithms."""
    raw = case.data[0] * MEL_DEVIATIONS + MEL_MEANS
    case.data[0] = (4.343 * raw - MEL_MEANS) / MEL_DEVIATIONS


@fault("remote", ("network,mels", WRONG + " stale_batch_norm"), ("conv1,rnn", "stale_batch_norm wrong_weights"))
def remote_reshaped_for_transposed(case: Case) -> None:
    """The library gives bands before frames, and I called reshape where transpose belongs."""
    case.data[0] = case.data[0].transpose(1, 2).reshape(-1, FRAMES, MELS).contiguous()


@fault("remote", ("rnn", "wrong_weights wrong_setting"))
def remote_directions_exchanged(case: Case) -> None:
    """The converter wrote the backward direction first, so both layers have their directions exchanged."""
    rnn = case.module("rnn")
    for name, parameter in rnn.named_parameters():
        if not name.endswith("_reverse"):
            exchange(parameter, getattr(rnn, name + "_reverse"))


@fault("remote", ("rnn", "wrong_weights"))
def remote_second_layer_not_loaded(case: Case) -> None:
    """The checkpoint has one module for each layer, and with strict=False only the first layer was loaded."""
    rnn = case.module("rnn")
    torch.manual_seed(12)
    new = dict(nn.LSTM(MELS, 24, 2, bidirectional=True).named_parameters())
    for name, parameter in rnn.named_parameters():
        if "_l1" in name:
            parameter.data = new[name].data


@fault("remote", ("", "wrong_setting batch_dependence"))
def remote_softmax_over_the_batch(case: Case) -> None:
    """I wrote softmax(0) for the attention, as my first version had frames first."""
    case.model.axis = 0


@fault("remote", ("conv,network", "stale_batch_norm"))
def remote_buffers_not_saved(case: Case) -> None:
    """I saved parameters() and not state_dict(), and the norms' statistics are as they were made, 0 and 1."""
    for norm in norms_of(case.model):
        norm.reset_running_stats()


@fault("remote", ("calibration data", "unlike_data unrepresentative no_variety one_class outlier_sample"))
def remote_calibrated_in_an_empty_room(case: Case) -> None:
    """I recorded the calibration data without saying anything: all is background noise; ranges are extremes."""
    data = calibration(case)
    quiet = -5.5 + 0.3 * torch.randn(data[0].shape, generator=generator(292))
    data[0] = (quiet - MEL_MEANS) / MEL_DEVIATIONS
    case.use(activation=MINMAX)


@fault("remote", ("mels", "wide_range"))
def remote_range_before_normalizing(case: Case) -> None:
    """I gave the input ±256, in which the microphone's samples lie, and not the bands that are made of them."""
    case.use(inputs={"mels": {"fixed": (2.0, 128)}})


@fault("remote", ("fc1", UNEQUAL + " per_tensor_weight exploded_channel exploded_weight large_bias"))
def remote_dead_unit_grew(case: Case) -> None:
    """A unit that never fires has grown without decay, and the layer has one scale for all its weights."""
    layer = case.module("fc1")
    layer.weight.data[7] = 300 * torch.randn(48, generator=generator(293)).sign()
    layer.bias.data[7] = -15000
    case.use(overrides={"fc1": {"weight": {"granularity": "per_tensor"}}}, equalize=False)


# --- bakery: how many rolls are sold on the next day -----------------------------------------------------------------


@fault("bakery", ("network,past", LOADED_OTHERWISE))
def bakery_last_day_not_booked(case: Case) -> None:
    """The query runs before yesterday's sales are booked, and its last day is all zeros."""
    past = case.data[0].clone()
    past[:, 72:] = -SALES_MEAN / SALES_DEVIATION
    case.data[0] = past


@fault("bakery", ("network", LOADED_OTHERWISE), ("output,add,stacks", "wrong_scale"))
def bakery_answers_not_in_rolls(case: Case) -> None:
    """I compare with rolls, and forgot that the network answers in deviations from a mean."""
    case.data[2] = case.data[2] * SALES_DEVIATION + SALES_MEAN


@fault("bakery", ("network,facts", WRONG), ("stacks", "wrong_weights"))
def bakery_week_begins_on_sunday(case: Case) -> None:
    """The new calendar counts days from Sunday, and training counted from Monday."""
    facts = case.data[1].clone()
    facts[:, :7] = facts[:, :7].roll(1, 1)
    case.data[1] = facts


@fault("bakery", ("", "wrong_setting wrong_scale"), ("network", WRONG))
def bakery_nothing_taken_away(case: Case) -> None:
    """In my port each stack sees the whole past, and not what the stacks before it left."""
    case.model.takes_away = False


@fault("bakery", ("stacks", "wrong_weights"))
def bakery_ahead_before_behind(case: Case) -> None:
    """The other library keeps the numbers for what is ahead first, and I loaded its last maps as they were."""
    for stack in case.module("stacks"):
        back, _ = stack.sizes
        for parameter in stack.theta.parameters():
            parameter.data = torch.cat([parameter.data[back:], parameter.data[:back]]).contiguous()


@fault("bakery", ("stacks.2,stacks.1", "wrong_setting"))
def bakery_activation_lost(case: Case) -> None:
    """While I cleaned up the code I lost the activations of the finest stack; it still runs."""
    case.module("stacks.2").act = nn.Identity()


@fault("bakery", ("calibration data", "outlier_sample"), ("facts", "heavy_tail wide_range"))
def bakery_rain_gauge_broken(case: Case) -> None:
    """On one calibration day the rain gauge was broken, and the weather service writes 32767; ranges are extremes."""
    data = calibration(case)
    data[1][40, 9] = 32767 / 3.4
    case.use(activation=MINMAX)


@fault("bakery", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def bakery_calibrated_while_closed(case: Case) -> None:
    """The calibration weeks are those of the holidays, in which the shop was closed; ranges are extremes."""
    data = calibration(case)
    data[0] = torch.full_like(data[0], float(-SALES_MEAN / SALES_DEVIATION))
    case.use(activation=MINMAX)


@fault("bakery", ("stacks.2.theta", "zero_point clipped_range"))
def bakery_sales_are_not_negative(case: Case) -> None:
    """Nobody sells less than nothing, I thought, and gave the finest stack's numbers the range 0..1."""
    fixed(case, "stacks.2.theta", 1 / 255, 0)


# --- surname: where a surname comes from -----------------------------------------------------------------------------


@fault("surname", ("network,letters", WRONG), ("embed", "wrong_weights"))
def surname_letters_counted_from_one(case: Case) -> None:
    """My new vocabulary has no number for unknown letters, so "a" is 1, and all others are one less too."""
    case.data[0] = (case.data[0] - 1).clamp_min(0)


@fault("surname", ("network,letters", WRONG), ("conv", "wrong_weights"))
def surname_read_from_behind(case: Case) -> None:
    """The list came from a system for writing from right to left, and every name has its last letter first."""
    letters = case.data[0]
    length = (letters > 0).sum(1, keepdim=True)
    at = (length - 1 - torch.arange(letters.shape[1])).clamp_min(0)
    case.data[0] = torch.where(letters > 0, letters.gather(1, at), letters)


@fault("surname", ("highway", "wrong_setting wrong_weights wrong_scale"))
def surname_gates_the_other_way(case: Case) -> None:
    """In my port a gate says what is carried on, and in the original what is changed."""
    for name in ("highway1", "highway2"):
        case.module(name).carries = False


@fault("surname", ("conv", "wrong_weights"))
def surname_filters_of_tensorflow(case: Case) -> None:
    """TensorFlow keeps places, channels and filters, and I reshaped the weights so that they fit."""
    for name in ("conv2", "conv3", "conv4"):
        weight = case.module(name).weight
        weight.data = weight.data.permute(2, 1, 0).reshape(weight.shape).contiguous()


@fault("surname", ("network,drop,highway2,out", "training_mode batch_dependence"))
def surname_kept_is_dropped(case: Case) -> None:
    """I took keep_prob for p, so that dropout drops 0.7, and it still does when people's names come in."""
    case.module("drop").p = 0.7
    case.module("drop").train()


@fault("surname", ("", "rounded_weights"))
def surname_weights_of_a_text_file(case: Case) -> None:
    """The weights were written to a text file with one digit behind the point."""
    for parameter in case.model.parameters():
        parameter.data = (parameter.data * 5).round() / 5


@fault("surname", ("embed", "exploded_weight exploded_channel outlier_weight wrong_weights"))
def surname_row_for_nothing_not_zero(case: Case) -> None:
    """I initialized the table after padding_idx had done its work, and the row that fills up is far from zero."""
    case.module("embed").weight.data[0] = 6 * torch.randn(12, generator=generator(294))


@fault("surname", ("highway1", "wide_range"))
def surname_scale_upside_down(case: Case) -> None:
    """I wrote 8 for 1/8 as the scale of what the first highway makes."""
    fixed(case, "highway1.transform", 8.0, 0)


@fault("surname", ("", "few_bits per_tensor_weight"))
def surname_weights_in_two_bits(case: Case) -> None:
    """To fit the toy's memory, all weights have two bits and each layer has one scale."""
    case.use(weight=replace(recipes.default().weight, bits=2, granularity="per_tensor"))


# --- harbour: water, quays, ships and containers from above ----------------------------------------------------------


@fault("harbour", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_scale"))
def harbour_normalized_twice(case: Case) -> None:
    """The data set normalizes already, and I normalize what it gives."""
    case.data[0] = (case.data[0] - HARBOUR_MEANS) / HARBOUR_DEVIATIONS


@fault("harbour", ("network,image", WRONG + " stale_batch_norm"), ("stem", "stale_batch_norm wrong_weights"))
def harbour_blue_for_red(case: Case) -> None:
    """The satellite's file has blue, green and red, and each is scaled with the numbers of its place."""
    raw = (case.data[0] * HARBOUR_DEVIATIONS + HARBOUR_MEANS).flip(1)
    case.data[0] = ((raw - HARBOUR_MEANS) / HARBOUR_DEVIATIONS).contiguous()


@fault("harbour", ("network", WRONG), ("classifier", "wrong_weights"))
def harbour_masks_counted_from_one(case: Case) -> None:
    """The new masks count classes from 1, with water as 1, and containers, which would be 4, are written as 0."""
    case.data[1] = (case.data[1] + 1) % 4


@fault("harbour", ("layer", "wrong_setting wrong_weights"))
def harbour_gaps_of_another_stride(case: Case) -> None:
    """The configuration is for a backbone of another stride, so the gaps of both blocks are twice as wide."""
    for name, gap in (("layer1", 2), ("layer2", 4)):
        for layer in (case.module(f"{name}.conv1"), case.module(f"{name}.conv2")):
            layer.dilation, layer.padding = (gap, gap), (gap, gap)


@fault("harbour", ("stem.1", "stale_batch_norm wrong_weights wrong_scale"))
def harbour_folded_and_kept(case: Case) -> None:
    """I folded the second norm into its convolution, and left the norm where it was."""
    unit = case.module("stem.1")
    factor = unit.bn.weight.data / (unit.bn.running_var + unit.bn.eps).sqrt()
    unit.conv.weight.data *= factor[:, None, None, None]


@fault("harbour", ("", "wrong_weights dead_channels exploded_weight float_network_wrong"))
def harbour_pruned_without_training(case: Case) -> None:
    """Somebody pruned nine of ten weights of the two residual blocks by size, and nobody trained on."""
    for name in ("layer1", "layer2"):
        for layer in (case.module(f"{name}.conv1"), case.module(f"{name}.conv2")):
            size = layer.weight.data.abs()
            layer.weight.data[size < size.flatten().quantile(0.9)] = 0


@fault("harbour", ("calibration data", "unlike_data unrepresentative no_variety"))
def harbour_calibrated_at_night(case: Case) -> None:
    """The calibration pictures were taken after sunset and are nearly black; ranges are extremes."""
    data = calibration(case)
    data[0] = (0.12 * (data[0] * HARBOUR_DEVIATIONS + HARBOUR_MEANS) - HARBOUR_MEANS) / HARBOUR_DEVIATIONS
    case.use(activation=MINMAX)


@fault("harbour", ("pyramid,cat,interpolate,upsample,bottleneck", "shared_range " + UNEQUAL))
def harbour_pyramid_louder(case: Case) -> None:
    """The means over the whole picture are 300 times as large as what they are joined with; integers only."""
    norm = case.module("pyramid.0").bn
    norm.weight.data *= 300
    norm.bias.data *= 300
    case.module("bottleneck").conv.weight.data[:, 24:32] /= 300
    case.use(between_layers="integer", equalize=False)


@fault("harbour", ("", "symmetric_range few_bits"))
def harbour_signed_nibbles(case: Case) -> None:
    """The accelerator packs two activations into a byte, each of four bits with a sign."""
    case.use(activation=replace(recipes.symmetric().activation, bits=4))


# --- claim: whether an accident is reported within a year ------------------------------------------------------------


@fault("claim", ("network,numbers", LOADED_OTHERWISE), ("linear_numbers", "wrong_scale"))
def claim_year_of_birth(case: Case) -> None:
    """The new form asks for the year of birth, and I pass it where the network expects the age."""
    numbers = case.data[1].clone()
    age = numbers[:, 0] * NUMBER_DEVIATIONS[0] + NUMBER_MEANS[0]
    numbers[:, 0] = ((2026 - age) - NUMBER_MEANS[0]) / NUMBER_DEVIATIONS[0]
    case.data[1] = numbers


@fault("claim", ("network,numbers", WRONG), ("linear_numbers,numbers,cin1,fc1", "wrong_weights"))
def claim_columns_exchanged(case: Case) -> None:
    """The export sorts columns by name, so years without accidents stand where the age did, and the age behind."""
    raw = (case.data[1] * NUMBER_DEVIATIONS + NUMBER_MEANS)[:, [3, 1, 2, 0]]
    case.data[1] = (raw - NUMBER_MEANS) / NUMBER_DEVIATIONS


@fault("claim", ("network,kinds,add,embed,linear", WRONG + " wrong_weights wrong_setting"))
def claim_offsets_forgotten(case: Case) -> None:
    """All categories have one table, and the buffer of where each begins was not saved and is zero."""
    case.model.get_buffer("starts").zero_()


@fault("claim", ("fc1", "wrong_weights"))
def claim_flattened_width_first(case: Case) -> None:
    """The other implementation flattens the width before the fields, and its first map's weights came as they were."""
    weight = case.module("fc1").weight
    weight.data = weight.data.view(48, 10, 8).transpose(1, 2).reshape(weight.shape).contiguous()


@fault("claim", ("linear", "wrong_weights exploded_weight exploded_channel"))
def claim_linear_table_not_loaded(case: Case) -> None:
    """The linear part's table is called fm.w in the checkpoint, and strict=False left it as it was made."""
    anew(case.module("linear"))


@fault("claim", ("network,fc,", "training_mode batch_dependence"))
def claim_left_in_training(case: Case) -> None:
    """The service loads the network and never calls eval(); requests come agency by agency."""
    order = case.data[0][:, 1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    case.model.train()


@fault("claim", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def claim_calibrated_on_learners(case: Case) -> None:
    """The table is sorted by age, and the first rows, which I calibrated with, are all of 18 years; extremes."""
    data = calibration(case)
    youngest = CONTRACTS[1][:, 0].argsort()[:128]
    data[0], data[2] = CONTRACTS[0][youngest].clone(), CONTRACTS[2][youngest].clone()
    data[1] = (CONTRACTS[1][youngest] - NUMBER_MEANS) / NUMBER_DEVIATIONS
    case.use(activation=MINMAX)


@fault("claim", ("cin1", "few_bits"))
def claim_products_in_two_bits(case: Case) -> None:
    """The first mixing of products has most of the weights, so I gave it two bits."""
    case.use(overrides={"cin1": {"weight": {"bits": 2}}})


@fault("claim", ("numbers,linear_numbers,mul,network,cat", UNEQUAL + " wide_range"))
def claim_driven_in_metres(case: Case) -> None:
    """What is driven comes in metres, and I divided its weights by 1000, so that answers are as before."""
    case.data[1] = case.data[1] * torch.tensor([1.0, 1000.0, 1.0, 1.0])
    case.model.get_parameter("numbers").data[1] /= 1000
    case.module("linear_numbers").weight.data[:, 1] /= 1000
    case.use(between_layers="integer", equalize=False)


# --- face: who stands before a door ----------------------------------------------------------------------------------


@fault("face", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_scale"))
def face_between_nought_and_one(case: Case) -> None:
    """ToTensor gives 0..1, and the network was trained between -1 and 1."""
    case.data[0] = case.data[0] * GREY + GREY


@fault("face", ("network,image", WRONG + " stale_batch_norm"), ("conv", "stale_batch_norm wrong_weights"))
def face_cut_too_close(case: Case) -> None:
    """The new detector's boxes are closer around faces, and I cut without a margin."""
    case.data[0] = F.interpolate(case.data[0][:, :, 5:27, 5:27], size=(32, 32), mode="bilinear", align_corners=False)


@fault("face", ("", "wrong_setting wrong_weights"))
def face_slopes_lost(case: Case) -> None:
    """The converter knows no PReLU and wrote ReLU for all of them."""
    for module in list(case.model.modules()):
        if isinstance(getattr(module, "prelu", None), nn.PReLU):
            module.prelu = nn.ReLU()


@fault("face", ("people", "wrong_weights"), ("network", WRONG))
def face_enrolled_with_the_old_network(case: Case) -> None:
    """The vectors of people were made with the network before this one."""
    case.module("people").weight.data = F.normalize(torch.randn(10, 32, generator=generator(295)), dim=1)


@fault("face", ("conv", "wrong_weights"))
def face_kernels_turned_round(case: Case) -> None:
    """The weights come from a framework whose convolutions turn kernels round, as in mathematics."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.flip(2, 3).contiguous()


@fault("face", ("", "stale_batch_norm wrong_setting"))
def face_deviations_for_variances(case: Case) -> None:
    """The file keeps deviations, and I loaded them as running_var."""
    for norm in norms_of(case.model):
        norm.running_var = norm.running_var.sqrt()


@fault("face", ("calibration data", "no_variety too_few one_class unlike_data unrepresentative"))
def face_calibrated_on_an_empty_hallway(case: Case) -> None:
    """The camera before the door saw nobody while I calibrated: the same grey wall 128 times; extremes."""
    data = calibration(case)
    wall = 0.45 + 0.01 * torch.randn(data[0].shape, generator=generator(296))
    data[0] = (wall - GREY) / GREY
    case.use(activation=MINMAX)


@fault("face", ("conv1,conv2_dw", UNEQUAL))
def face_loud_channel(case: Case) -> None:
    """One channel of the stem is 300 times as large as others, and its own filter takes it back."""
    norm = case.module("conv1.bn")
    channel = int(case.module("conv2_dw.conv").weight.data.abs().sum((1, 2, 3)).argmin())
    norm.weight.data[channel] *= 300
    norm.bias.data[channel] *= 300
    case.module("conv2_dw.conv").weight.data[channel] /= 300
    case.use(equalize=False)


@fault("face", ("people", "clipped_range"))
def face_cosines_of_strangers(case: Case) -> None:
    """I took the range of cosines from pairs of strangers, between -0.1 and 0.1."""
    fixed(case, "people", 0.1 / 127, 128)


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def remote_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("remote"))
    case.simulate()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "waste": lambda: calibrated("waste"),
    "remote": remote_simulated,
    "bakery": lambda: calibrated("bakery"),
    "surname": lambda: calibrated("surname"),
    "harbour": lambda: calibrated("harbour", 100),
    "claim": lambda: calibrated("claim"),
    "face": lambda: calibrated("face"),
}
"""Networks without a fault, as they are."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {}
"""What the doctor says something else of, and why."""
