"""Faults that people report, in a further eight ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator
from tests.diagnose.doctor.blind_networks_twentyfourth import (
    BAND_DEVIATIONS,
    BAND_MEANS,
    GAUGE_DEVIATIONS,
    GAUGE_MEANS,
    GOODS,
    MICROVOLTS,
    MIDDLE,
    PAST,
    PATCH,
    SAMPLES,
    SMEAR_DEVIATIONS,
    SMEAR_MEANS,
    WOOD_DEVIATION,
    WOOD_MEAN,
    build,
)
from tests.diagnose.doctor.planting import (
    LOADED_OTHERWISE,
    MINMAX,
    UNEQUAL,
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
    train_again,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import nn

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- seed: kinds of grain --------------------------------------------------------------------------------------------


@fault("seed", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_weights"))
def seed_transformed_twice(case: Case) -> None:
    """The pictures lie between -1 and 1 already, and I made the network with transform_input=True."""
    case.data[0] = case.data[0] * DEVIATIONS / MIDDLE + (MEANS - MIDDLE) / MIDDLE


@fault("seed", ("inception", "wrong_setting wrong_weights"))
def seed_branches_by_name(case: Case) -> None:
    """My modules join branches in the order of the paper's figure: the maximum's comes first, 1 × 1 comes last."""
    for name in ("inception3a", "inception3b", "inception4a"):
        case.module(name).order = (3, 1, 2, 0)


@fault("seed", ("network,inception", "training_mode batch_dependence"))
def seed_modules_left_in_training(case: Case) -> None:
    """I set the last modules to training for fine-tuning and never back; pictures come kind by kind."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order] for part in case.data]
    for name in ("inception3b", "inception4a"):
        case.module(name).train()


@fault("seed", ("", "stale_batch_norm"))
def seed_statistics_of_last_batch(case: Case) -> None:
    """I understood momentum the other way round and wrote 0.99, so statistics are of the last batch, all of rice."""
    case.model.train()
    for norm in norms_of(case.model):
        norm.momentum = 0.99
    with torch.no_grad():
        case.model(case.data[0][case.data[1] == 2][:32])
    case.model.eval()


@fault("seed", ("inception4a", "wrong_weights dead_channels"))
def seed_filters_pruned(case: Case) -> None:
    """A script for pruning set three quarters of the filters of two convolutions to zero, and nobody trained on."""
    for name in ("inception4a.branch1", "inception4a.branch2.1"):
        weight = case.module(name).conv.weight.data
        weight[weight.abs().sum((1, 2, 3)).argsort()[: len(weight) * 3 // 4]] = 0


@fault("seed", ("inception", "shared_range " + UNEQUAL), ("fc", UNEQUAL))
def seed_branches_share_a_scale(case: Case) -> None:
    """The last module's 1 × 1 branch gives numbers 300 times as large as others; integers only, no equalization."""
    norm = case.module("inception4a.branch1").bn
    norm.weight.data *= 300
    norm.bias.data *= 300
    case.module("fc").weight.data[:, :20] /= 300
    case.use(between_layers="integer", equalize=False)


@fault("seed", ("calibration data", "one_class unrepresentative unlike_data no_variety"))
def seed_calibrated_on_lentils(case: Case) -> None:
    """Files are sorted by kind, and the first 128 that I calibrated with are all of the darkest lentils; extremes."""
    apart(case, 300)
    assert case.calibration is not None
    rows = case.calibration[1] == 3
    case.calibration = [part[rows] for part in case.calibration]
    case.use(activation=MINMAX)


@fault("seed", ("conv2", "few_bits"))
def seed_second_convolution_in_two_bits(case: Case) -> None:
    """A search for bits gave the second convolution's weights two of them."""
    case.use(overrides={"conv2.conv": {"weight": {"bits": 2}}})


@fault("seed", ("inception3a", "exploded_channel exploded_weight"))
def seed_gain_exploded(case: Case) -> None:
    """One gain of a norm was written with a lost decimal point, and is 100 times as large."""
    gain = case.module("inception3a.branch2.1").bn.weight.data
    gain[gain.abs().argmax()] *= 100


@fault("seed", ("inception3b", "clipped_range"))
def seed_range_of_one_branch_for_another(case: Case) -> None:
    """The log of ranges had branches in another order, and the second module's 3 × 3 has the range 0..0.3."""
    fixed(case, "inception3b.branch2.1.conv", 0.3 / 255, 0)


# --- blood: kinds of white blood cells -------------------------------------------------------------------------------


@fault("blood", ("network,image", WRONG), ("features.0", "wrong_weights"))
def blood_read_by_opencv(case: Case) -> None:
    """cv2.imread gives blue, green and red; mean and deviation are applied in the order of the file."""
    raw = (case.data[0] * SMEAR_DEVIATIONS + SMEAR_MEANS).flip(1)
    case.data[0] = ((raw - SMEAR_MEANS) / SMEAR_DEVIATIONS).contiguous()


@fault("blood", ("classifier.0", "wrong_weights"))
def blood_flattened_channels_last(case: Case) -> None:
    """Keras flattens rows, columns and channels, and the first map's weights came over as they were."""
    weight = case.module("classifier.0").weight
    weight.data = weight.data.view(64, 32, 16).transpose(1, 2).reshape(64, 512).contiguous()


@fault("blood", ("features,classifier", "wrong_setting"))
def blood_leaky(case: Case) -> None:
    """My port came from a Darknet file, and all its convolutions have LeakyReLU(0.3) instead of ReLU."""
    for k, module in enumerate(case.module("features")):
        if isinstance(module, nn.ReLU):
            case.module("features")[k] = nn.LeakyReLU(0.3)


@fault("blood", ("features.10", "wrong_weights"))
def blood_convolution_not_loaded(case: Case) -> None:
    """The checkpoint's names are shifted by one from there on, and strict=False left the fifth convolution as made."""
    anew(case.module("features.10"))


@fault("blood", ("", "rounded_weights"))
def blood_from_a_codebook(case: Case) -> None:
    """The weights come from a compressed file with a codebook of four numbers for each layer."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            flat = parameter.data.flatten()
            book = torch.quantile(flat, torch.tensor([0.05, 0.35, 0.65, 0.95]))
            for _ in range(10):
                nearest = (flat[:, None] - book).abs().argmin(1)
                book = torch.stack([flat[nearest == k].mean() for k in range(4)])
            parameter.data = book[(flat[:, None] - book).abs().argmin(1)].view_as(parameter)


@fault("blood", ("features,classifier,network", "wrong_weights"))
def blood_biases_lost(case: Case) -> None:
    """The converter was written for networks with norms and takes no biases, so they are all zero."""
    for name, parameter in case.model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()


@fault("blood", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def blood_calibrated_out_of_focus(case: Case) -> None:
    """The calibration pictures are of an empty slide, before the microscope had found a field; ranges are extremes."""
    data = calibration(case)
    slide = 0.92 + 0.01 * torch.randn(data[0].shape, generator=generator(61))
    data[0] = (slide - SMEAR_MEANS) / SMEAR_DEVIATIONS
    case.use(activation=MINMAX)


@fault("blood", ("features.7,features.5", UNEQUAL + " per_tensor_weight"))
def blood_loud_filter(case: Case) -> None:
    """Without norms one filter grew 150 times as large, which the next layer takes back; one scale for a layer."""
    layer = case.module("features.5")
    layer.weight.data[4] *= 150
    layer.bias.data[4] *= 150
    case.module("features.7").weight.data[:, 4] /= 150
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("blood", ("features.7", "wide_range"))
def blood_exponent_without_its_sign(case: Case) -> None:
    """Scales are powers of two, and the fourth convolution's -3 was written as 3 in the table."""
    fixed(case, "features.7", 8.0, 0)


@fault("blood", ("", "diverged_training float_network_wrong"))
def blood_trained_on_without_norms(case: Case) -> None:
    """I trained on with the rate of the network with norms, and this one has none."""
    train_again(case, 0.05, 30, F.cross_entropy)


# --- wood: species by their grain ------------------------------------------------------------------------------------


@fault("wood", ("network,image", LOADED_OTHERWISE), ("patch_embed", "wrong_weights"))
def wood_pictures_of_bytes(case: Case) -> None:
    """torchvision.io.read_image gives 0..255, and I normalize with mean and deviation of 0..1."""
    case.data[0] = ((case.data[0] * WOOD_DEVIATION + WOOD_MEAN) * 255 - WOOD_MEAN) / WOOD_DEVIATION


@fault("wood", ("blocks", "wrong_weights"))
def wood_packed_by_head(case: Case) -> None:
    """The other library packs query, key and value head by head, and I loaded its rows as they were."""
    for name in ("blocks1.0", "blocks1.1", "blocks2.0", "blocks2.1"):
        attention = case.module(name).attn
        for parameter in (attention.qkv.weight, attention.qkv.bias):
            rest = parameter.shape[1:]
            parts = parameter.data.view(3, attention.heads, -1, *rest).transpose(0, 1)
            parameter.data = parts.reshape(parameter.shape).contiguous()


@fault("wood", ("merge", "wrong_weights wrong_setting"))
def wood_neighbours_unfolded(case: Case) -> None:
    """The file's merging goes by nn.Unfold, which has channels before places, and I loaded it as it was."""
    norm, reduction = case.module("merge.norm"), case.module("merge.reduction")
    order = torch.arange(96).view(4, 24).t().flatten()
    for parameter in (norm.weight, norm.bias):
        parameter.data = parameter.data[order].contiguous()
    reduction.weight.data = reduction.weight.data[:, order].contiguous()


@fault("wood", ("", "wrong_scale wrong_setting"))
def wood_products_not_scaled(case: Case) -> None:
    """My attention does not divide by the root of a head's width, since I thought the weights had it already."""
    for name in ("blocks1.0", "blocks1.1", "blocks2.0", "blocks2.1"):
        case.module(name).attn.scale = 1.0


@fault("wood", ("calibration data", "unlike_data"))
def wood_calibrated_with_bare_tensors(case: Case) -> None:
    """The calibration loader has ToTensor and nothing behind it."""
    data = calibration(case)
    data[0] = data[0] * WOOD_DEVIATION + WOOD_MEAN
    case.use(activation=MINMAX)


@fault("wood", ("blocks1.0", UNEQUAL))
def wood_loud_values(case: Case) -> None:
    """One number of a head's values is 300 times as large as others, and the map behind takes it back."""
    attention = case.module("blocks1.0.attn")
    attention.qkv.weight.data[2 * 24 + 5] *= 300
    attention.qkv.bias.data[2 * 24 + 5] *= 300
    attention.proj.weight.data[:, 5] /= 300
    case.use(equalize=False)


@fault("wood", ("blocks2.0", "clipped_range zero_point"))
def wood_gelu_is_never_negative(case: Case) -> None:
    """I took GELU for ReLU's cousin, and gave its inputs 0..2, as nothing below zero mattered, I thought."""
    fixed(case, "blocks2.0.fc1", 2 / 255, 0)


@fault("wood", ("patch_embed", "few_bits"))
def wood_patches_in_three_bits(case: Case) -> None:
    """The first tokens are the largest tensor, so I gave the convolution's results three bits."""
    case.use(overrides={"patch_embed": {"activation": {"bits": 3}}})


@fault("wood", ("head", "wrong_weights"), ("network", WRONG))
def wood_head_of_another_number(case: Case) -> None:
    """I called reset_classifier(6) after the checkpoint was loaded, and not before."""
    anew(case.module("head"))


@fault("wood", ("network,patch_norm", "not_finite"))
def wood_gain_not_a_number(case: Case) -> None:
    """One step in half floats overflowed before the checkpoint was saved, and a gain of the first norm is NaN."""
    case.module("patch_norm").weight.data[3] = float("nan")


# --- sleep: stages of sleep ------------------------------------------------------------------------------------------


@fault("sleep", ("network,signals", LOADED_OTHERWISE), ("conv1", "stale_batch_norm"))
def sleep_in_volts(case: Case) -> None:
    """MNE gives volts, and I divide as if they were microvolts."""
    case.data[0] = case.data[0] * 1e-6


@fault("sleep", ("network,signals", WRONG + " stale_batch_norm"), ("conv1", "wrong_weights stale_batch_norm"))
def sleep_channels_exchanged(case: Case) -> None:
    """In the new hospital's files the eyes' channel comes first."""
    case.data[0] = case.data[0].flip(2).contiguous()


@fault("sleep", ("lstm", "wrong_weights wrong_setting"))
def sleep_gates_of_onnx(case: Case) -> None:
    """ONNX keeps input, output, forget and cell gates, PyTorch input, forget, cell and output."""
    for parameter in case.module("lstm").parameters():
        entry, forget, cell, out = parameter.data.chunk(4)
        parameter.data = torch.cat([entry, out, forget, cell]).contiguous()


@fault("sleep", ("network,signals", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_weights"))
def sleep_sampled_twice_as_fast(case: Case) -> None:
    """The new recorder samples at twice the rate, and I cut its signals into pieces of as many samples."""
    nights, epochs, channels, _ = case.data[0].shape
    half = case.data[0][..., : SAMPLES // 2].reshape(nights * epochs, channels, SAMPLES // 2)
    slow = F.interpolate(half, size=SAMPLES, mode="linear", align_corners=False)
    case.data[0] = slow.view(nights, epochs, channels, SAMPLES)


@fault("sleep", ("conv2", "wrong_weights stale_batch_norm wrong_scale"))
def sleep_folded_without_the_root(case: Case) -> None:
    """My own folding divides by the variance where its root belongs; the norm then does nothing."""
    layer, norm = case.module("conv2"), case.module("bn2")
    factor = norm.weight.data / (norm.running_var + norm.eps)
    layer.weight.data *= factor[:, None, None]
    norm.bias.data -= norm.running_mean * factor
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)
    norm.weight.data.fill_(1.0)


@fault("sleep", ("calibration data", "one_class unrepresentative unlike_data"))
def sleep_calibrated_awake(case: Case) -> None:
    """I calibrated on a healthy colleague who was awake and still all the time, quieter than patients; extremes."""
    data = calibration(case)
    time = torch.arange(float(SAMPLES)) / 32
    alpha = 8 * torch.sin(2 * torch.pi * (9.5 * time + torch.rand(128, 8, 1, generator=generator(62))))
    noise = 3 * torch.randn(128, 8, 2, SAMPLES, generator=generator(63))
    data[0] = (noise + torch.stack([alpha, 0 * alpha], 2)) / MICROVOLTS
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("sleep", ("calibration data", "outlier_sample"), ("signals", "heavy_tail wide_range"))
def sleep_electrode_came_off(case: Case) -> None:
    """In one night of the calibration data an electrode came off, and the amplifier ran into its rail; extremes."""
    data = calibration(case)
    data[0][19, 3:, 1] = 187500 / MICROVOLTS
    case.use(activation=MINMAX)


@fault("sleep", ("lstm", "few_bits"))
def sleep_recurrent_weights_in_two_bits(case: Case) -> None:
    """The LSTM has most of the weights, so they have two bits."""
    case.use(overrides={"lstm*": {"weight": {"bits": 2}}})


@fault("sleep", ("", "float_mismatch stale_range"))
def sleep_simulation_of_an_old_checkpoint(case: Case) -> None:
    """The simulation was made of last week's checkpoint, and the network was trained on since."""
    case.simulate()
    train_again(case, 0.05, 60, F.cross_entropy)


@fault("sleep", ("", "batch_dependence wrong_setting"))
def sleep_batch_taken_for_time(case: Case) -> None:
    """I forgot batch_first when I wrote the network again, so the LSTM goes from patient to patient."""
    case.module("lstm").batch_first = False


# --- speaker: who speaks ---------------------------------------------------------------------------------------------


@fault("speaker", ("network,bands", LOADED_OTHERWISE), ("layer1", "stale_batch_norm wrong_scale"))
def speaker_in_decibels(case: Case) -> None:
    """librosa.power_to_db gives tenfold logarithms to base ten, and training had natural ones."""
    raw = case.data[0] * BAND_DEVIATIONS + BAND_MEANS
    case.data[0] = (4.343 * raw - BAND_MEANS) / BAND_DEVIATIONS


@fault("speaker", ("network,bands", WRONG + " stale_batch_norm"), ("layer1", "wrong_weights stale_batch_norm"))
def speaker_bands_from_above(case: Case) -> None:
    """The filterbank of the phone has its highest band first, each scaled with its own mean and deviation."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("speaker", ("layer1", "wrong_weights"))
def speaker_splices_of_kaldi(case: Case) -> None:
    """Kaldi's first map reads frame after frame, and I reshaped its weights to bands and frames."""
    weight = case.module("layer1.conv").weight
    weight.data = weight.data.transpose(1, 2).reshape(weight.shape).contiguous()


@fault("speaker", ("mfa", "wrong_weights"))
def speaker_joining_layer_not_loaded(case: Case) -> None:
    """SpeechBrain's mfa has one level of names more than mine, and the layer is as it was made."""
    anew(case.module("mfa"))


@fault("speaker", ("", "stale_batch_norm"))
def speaker_statistics_of_telephones(case: Case) -> None:
    """The network ran in training mode over telephone calls, in which the lower and upper bands are missing."""
    calls = case.data[0][:192] * BAND_DEVIATIONS + BAND_MEANS
    calls[:, :3] -= 8
    calls[:, 14:] -= 8
    collect(case.model, (calls - BAND_MEANS) / BAND_DEVIATIONS, norms_of(case.model))


@fault("speaker", ("", "cancellation large_bias"))
def speaker_variance_from_squares(case: Case) -> None:
    """I compute the variance as the mean of squares less the square of the mean, and maps lie around 150."""
    norm, attention, pooled = case.module("mfa.bn"), case.module("attention1"), case.module("asp_bn")
    norm.bias.data += 150
    attention.bias.data -= 150 * attention.weight.data.sum((1, 2))
    pooled.running_mean[:48] += 150
    case.model.in_squares = True
    case.use(between_layers="integer")


@fault("speaker", ("calibration data", "no_variety too_few one_class"))
def speaker_calibrated_on_one_utterance(case: Case) -> None:
    """The calibration loader gave the same quiet utterance again and again; ranges are extremes."""
    data = calibration(case)
    quiet = int(data[0].flatten(1).amax(1).argmin())
    case.calibration = [part[quiet : quiet + 1].repeat(128, *[1] * (part.dim() - 1)) for part in data]
    case.use(activation=MINMAX)


@fault("speaker", ("bands,layer1", "heavy_tail"), ("calibration data", "outlier_sample"))
def speaker_digital_silence(case: Case) -> None:
    """In some utterances packets were lost, and the logarithm of nothing is -23 and less; ranges are extremes."""
    bands = case.data[0].clone()
    bands[4::24, :, 17:20] = ((torch.tensor(-130.0) - BAND_MEANS) / BAND_DEVIATIONS)[None]
    case.data[0] = bands
    apart(case)
    case.use(activation=MINMAX)


@fault("speaker", ("tanh", "clipped_range zero_point"))
def speaker_tanh_in_unsigned_bytes(case: Case) -> None:
    """I gave the hyperbolic tangent the sigmoid's range, 0..1."""
    fixed(case, "tanh", 1 / 255, 0)


@fault("speaker", ("", "symmetric_range few_bits"))
def speaker_seven_levels_and_a_sign(case: Case) -> None:
    """The unit has signed activations of four bits around zero."""
    case.use(activation=replace(recipes.symmetric().activation, bits=4))


# --- river: how high a river will be ---------------------------------------------------------------------------------


@fault("river", ("network,past", LOADED_OTHERWISE), ("embed", "stale_batch_norm wrong_scale"))
def river_level_in_metres(case: Case) -> None:
    """The agency's new interface gives levels in metres, and the scaler has centimetres."""
    past = case.data[0].clone()
    past[:, 0] = ((past[:, 0] * GAUGE_DEVIATIONS[0] + GAUGE_MEANS[0]) / 100 - GAUGE_MEANS[0]) / GAUGE_DEVIATIONS[0]
    case.data[0] = past


@fault("river", ("network,past", WRONG + " stale_batch_norm"), ("embed", "wrong_weights stale_batch_norm"))
def river_newest_first(case: Case) -> None:
    """The database gives the newest hour first, and I did not turn the series round."""
    case.data[0] = case.data[0].flip(2).contiguous()


@fault("river", ("network,past", LOADED_OTHERWISE), ("embed", "stale_batch_norm"))
def river_rain_added_up(case: Case) -> None:
    """The new rain gauge gives the sum since it was last emptied, and not what fell in the hour."""
    past = case.data[0].clone()
    fell = past[:, 1] * GAUGE_DEVIATIONS[1] + GAUGE_MEANS[1]
    past[:, 1] = (fell.clamp_min(0).cumsum(1) - GAUGE_MEANS[1]) / GAUGE_DEVIATIONS[1]
    case.data[0] = past


@fault("river", ("head", "wrong_weights"))
def river_flattened_width_first(case: Case) -> None:
    """The other implementation flattens the width before the patches, and its head's weights came as they were."""
    weight = case.module("head").weight
    weight.data = weight.data.view(12, PAST // PATCH, 32).transpose(1, 2).reshape(weight.shape).contiguous()


@fault("river", ("", "stale_batch_norm"))
def river_statistics_of_a_drought(case: Case) -> None:
    """Somebody ran the network in training mode over a summer without rain before it was saved."""
    dry = case.data[0][:192].clone()
    dry[:, 0] = 0.2 * dry[:, 0] - 1.5
    dry[:, 1] = dry[:, 1].amin()
    dry[:, 2] += 1.5
    collect(case.model, dry, norms_of(case.model))


@fault("river", ("head", "clipped_range"))
def river_small_steps_only(case: Case) -> None:
    """In the dry month that I looked at, what is added to the last level was between -0.1 and 0.1."""
    fixed(case, "head", 0.2 / 255, 128)


@fault("river", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def river_calibrated_in_a_dry_month(case: Case) -> None:
    """The calibration series are from a month without rain, in which the level hardly moved; ranges are extremes."""
    data = calibration(case)
    data[0][:, 1] = data[0][:, 1].amin()
    data[0][:, 0] = -1.0 + 0.05 * torch.randn(128, PAST, generator=generator(64))
    case.use(activation=MINMAX)


@fault("river", ("past", "wide_range"))
def river_range_of_the_sensor(case: Case) -> None:
    """I gave the input the range from the data sheet of the sensor, which measures up to 40 m of water."""
    case.use(inputs={"past": {"fixed": (100 / 255, 128)}})


@fault("river", ("calibration data", "too_few no_variety unrepresentative"))
def river_calibrated_on_a_single_series(case: Case) -> None:
    """I passed the data set's first item and not the loader, one series in which little happens; extremes."""
    data = calibration(case)
    calm = data[0].abs().amax((1, 2)).argmin()
    case.calibration = [part[calm : calm + 1] for part in data]
    case.use(activation=MINMAX)


@fault("river", ("layers", "wrong_weights"))
def river_projections_exchanged(case: Case) -> None:
    """A typo in my renaming gave the first layer's values to its output, and the other way round."""
    layer = case.module("layers.0")
    for name in ("weight", "bias"):
        exchange(getattr(layer.v_proj, name), getattr(layer.out_proj, name))


# --- basket: what is put into a basket -------------------------------------------------------------------------------


@fault("basket", ("network,item,before", WRONG), ("goods", "wrong_weights"))
def basket_articles_counted_from_zero(case: Case) -> None:
    """The shop's new database counts articles from 0, the table keeps 0 for none."""
    case.data[0] = case.data[0] - 1
    case.data[1] = (case.data[1] - 1).clamp_min(0)


@fault("basket", ("network,before", WRONG), ("goods", "wrong_weights"))
def basket_filled_with_the_last_article(case: Case) -> None:
    """I fill short histories with -1, which counts from the end of the table: it is the last article."""
    case.data[1] = torch.where(case.data[1] == 0, GOODS - 1, case.data[1])


@fault("basket", ("goods", "exploded_weight exploded_channel outlier_weight"))
def basket_row_exploded(case: Case) -> None:
    """The row of an article that is sold all the time ran away in the last night of training on the stream."""
    item, count = case.data[1][case.data[1] > 0].unique(return_counts=True)
    case.module("goods").weight.data[item[count.argmax()]] *= 80


@fault("basket", ("goods", "wrong_weights"))
def basket_rows_of_length_one(case: Case) -> None:
    """The table was exported for the search of neighbours, which wants rows of length 1."""
    weight = case.module("goods").weight
    weight.data[1:] = F.normalize(weight.data[1:], dim=1)


@fault("basket", ("sub", "wrong_setting wrong_scale"), ("att1", "wrong_weights wrong_scale"))
def basket_difference_the_other_way(case: Case) -> None:
    """The network was trained with the article less the past, and my port has the past less the article."""
    case.model.asked_first = False


@fault("basket", ("calibration data", "unrepresentative no_variety unlike_data one_class"))
def basket_calibrated_on_new_customers(case: Case) -> None:
    """The calibration rows are of people who just registered, and have bought nothing before; ranges are extremes."""
    data = calibration(case)
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("basket", ("calibration data", "outlier_sample"), ("facts", "heavy_tail wide_range"))
def basket_missing_price(case: Case) -> None:
    """In one calibration row the price is missing, which the warehouse writes as -9999; ranges are extremes."""
    data = calibration(case)
    data[3][57, 0] = -9999
    case.use(activation=MINMAX)


@fault("basket", ("att1", "few_bits"))
def basket_attention_in_two_bits(case: Case) -> None:
    """The attention runs once for each article of the past, so I gave its first map weights of two bits."""
    case.use(overrides={"att1": {"weight": {"bits": 2}}})


@fault("basket", ("att2", "zero_point clipped_range"))
def basket_weights_are_positive(case: Case) -> None:
    """Attention is never negative, I thought, and gave the weights of the past the range 0..2."""
    fixed(case, "att2", 2 / 255, 0)


@fault("basket", ("fc2", "stale_batch_norm wrong_weights"), ("network", "stale_batch_norm"))
def basket_second_norm_of_another_country(case: Case) -> None:
    """The second norm's statistics come from the checkpoint of another country's network."""
    norm = case.module("bn2")
    norm.running_mean = 1.5 * norm.running_var.sqrt() * torch.randn(24, generator=generator(65))
    norm.running_var = norm.running_var * torch.exp(1.5 * torch.randn(24, generator=generator(66)))


# --- scan: small scans made large ------------------------------------------------------------------------------------


@fault("scan", ("network,small", LOADED_OTHERWISE))
def scan_pages_of_bytes(case: Case) -> None:
    """Pillow gives bytes, and I turned them to floats without a division."""
    case.data[0] = case.data[0] * 255


@fault("scan", ("up", "wrong_weights"), ("shuffle,pixel_shuffle", "wrong_setting"))
def scan_depth_to_space(case: Case) -> None:
    """TensorFlow's depth_to_space has places before channels, and I loaded its weights for PixelShuffle."""
    layer = case.module("up")
    for parameter in (layer.weight, layer.bias):
        rest = parameter.shape[1:]
        parameter.data = parameter.data.view(12, 4, *rest).transpose(0, 1).reshape(parameter.shape).contiguous()


@fault("scan", ("body", "wrong_scale wrong_setting"), ("", "wrong_scale"))
def scan_blocks_not_scaled(case: Case) -> None:
    """I forgot res_scale when I made the network, and blocks are added in full."""
    for k in range(3):
        case.module(f"body.{k}").res_scale = 1.0


@fault("scan", ("", "wrong_setting"), ("network", WRONG))
def scan_long_sum_forgotten(case: Case) -> None:
    """In my port the body's results go on alone, without what the first convolution gave."""
    case.model.long_sum = False


@fault("scan", ("body", "wrong_weights"))
def scan_filters_in_another_layout(case: Case) -> None:
    """The weights come from a file with inputs before outputs, and the body's convolutions have as many of both."""
    for k in range(3):
        for name in ("conv1", "conv2"):
            weight = case.module(f"body.{k}.{name}").weight
            weight.data = weight.data.transpose(0, 1).contiguous()


@fault("scan", ("", "rounded_weights"))
def scan_from_a_ternary_file(case: Case) -> None:
    """The weights come from an experiment with ternary weights: minus one, nothing or one times a number."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            size = parameter.data.abs()
            kept = size > 0.7 * size.mean()
            parameter.data = parameter.data.sign() * kept * size[kept].mean()


@fault("scan", ("tail,add,output,network", "wide_range"))
def scan_answers_up_to_255(case: Case) -> None:
    """Answers are bytes in the end, so I gave the last convolution the range up to 255 to both sides."""
    fixed(case, "tail", 2.0, 128)


@fault("scan", ("", "moving_average"), ("calibration data", "unrepresentative no_variety"))
def scan_average_ends_on_blank_pages(case: Case) -> None:
    """The observer is a moving average, and the scans that I calibrate with end with a pile of blank pages."""
    data = calibration(case)
    blank = 0.9 + 0.01 * torch.randn(512, 3, 12, 12, generator=generator(67))
    case.calibration = [torch.cat([data[0], blank]), torch.cat([data[1], torch.full((512, 3, 24, 24), 0.9)])]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("scan", ("body.1", UNEQUAL))
def scan_loud_channel(case: Case) -> None:
    """One channel of a block is 300 times as large as others, which its second convolution takes back."""
    block = case.module("body.1")
    channel = int(block.conv2.weight.data.abs().sum((0, 2, 3)).argmax())
    block.conv1.weight.data[channel] *= 300
    block.conv1.bias.data[channel] *= 300
    block.conv2.weight.data[:, channel] /= 300
    case.use(equalize=False)


@fault("scan", ("up", "stale_range"))
def scan_scales_before_finetuning(case: Case) -> None:
    """Scales were frozen, and then the maps before the shuffle became five times as large, and the tail as small."""
    sim = case.simulate()
    sim.freeze_scales()
    for model in (case.model, sim):
        parameters = dict(model.named_parameters())
        for name in ("weight", "bias"):
            parameters[f"up.{name}"].data *= 5
        parameters["tail.weight"].data /= 5


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def seed_joined_in_another_order() -> Case:
    """The first module joins its branches in another order, and the weights of the next one were moved with them."""
    case = calibrated("seed")
    case.module("inception3a").order = (3, 1, 2, 0)
    order = torch.cat([torch.arange(36, 44), torch.arange(12, 36), torch.arange(12)])
    module = case.module("inception3b")
    for layer in (module.branch1, module.branch2[0], module.branch3[0], module.branch4[1]):
        layer.conv.weight.data = layer.conv.weight.data[:, order].contiguous()
    return case


def blood_by_percentiles() -> Case:
    """The recipe is that of percentiles, and pictures are mirrored."""
    case = calibrated("blood")
    case.data[0] = case.data[0].flip(2).contiguous()
    case.options["recipe"] = recipes.percentile()
    return case


def wood_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("wood"))
    case.simulate()
    return case


def sleep_with_poles_exchanged() -> Case:
    """The electrodes' poles are exchanged in all recordings, and so are the signs of the first weights."""
    case = calibrated("sleep", 96)
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0] = -data[0]
    case.module("conv1").weight.data *= -1
    return case


def speaker_scaled() -> Case:
    """One norm gives numbers five times as large, and the next convolution takes it back."""
    case = calibrated("speaker")
    for parameter in case.module("layer3.tdnn1.bn").parameters():
        parameter.data[24:] *= 5
    case.module("layer3.res2.2.conv").weight.data /= 5
    part = case.module("layer3.res2.1.bn")
    for parameter in part.parameters():
        parameter.data *= 5
    case.module("layer3.tdnn2.conv").weight.data[:, 16:24] /= 5
    return case


def river_of_one_gauge() -> Case:
    """The test has the wettest series first, and the calibration's are as they come."""
    case = calibrated("river")
    order = case.data[0][:, 1].sum(1).argsort(descending=True)
    case.data = [part[order].contiguous() for part in case.data]
    return case


def basket_numbered_anew() -> Case:
    """Articles have other numbers, in the table as in the data."""
    case = calibrated("basket")
    assert case.calibration is not None
    other = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(GOODS - 1, generator=generator(68))])
    for data in (case.data, case.calibration):
        data[0], data[1] = other[data[0]], other[data[1]]
    table = case.module("goods").weight
    table.data[other] = table.data.clone()
    return case


def scan_channels_last() -> Case:
    """The network is kept with channels last, and pages lie on their sides."""
    case = calibrated("scan", 100)
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0], data[1] = data[0].flip(3).contiguous(), data[1].flip(3).contiguous()
    case.model.to(memory_format=torch.channels_last)
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "seed": seed_joined_in_another_order,
    "blood": blood_by_percentiles,
    "wood": wood_simulated,
    "sleep": sleep_with_poles_exchanged,
    "speaker": speaker_scaled,
    "river": river_of_one_gauge,
    "basket": basket_numbered_anew,
    "scan": scan_channels_last,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "basket_difference_the_other_way": "the other way gives a quarter of the loss back, too little to tell",
    "wood_loud_values": "what takes a channel back behind attention is not seen where queries and values are one layer",
    "speaker_digital_silence": "inputs with another mean give some answers back, and few frames make that mean",
    "sleep_sampled_twice_as_fast": "the dilation of all convolutions, doubled, makes up for signals of twice the rate",
}
"""What the doctor says something else of, and why."""
