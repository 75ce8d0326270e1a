"""Faults that people report, in a further seven ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import generator
from tests.diagnose.doctor.blind_networks_thirtieth import (
    FACT_DEVIATIONS,
    FACT_MEANS,
    GUT_DEVIATIONS,
    GUT_MEANS,
    HEARD,
    IMAGE_DEVIATIONS,
    IMAGE_MEANS,
    NEED_DEVIATION,
    NEED_MEAN,
    POINTS,
    SPEED,
    TOWNS,
    TRAIT_DEVIATIONS,
    TRAIT_MEANS,
    WATER,
    WATER_DEVIATION,
    build,
    levelled,
    overlap_and_pixels,
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


# --- bees: bees, mites and pollen on the board of a hive ------------------------------------------------------------


@fault("bees", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm"))
def bees_never_divided(case: Case) -> None:
    """OpenCV's pictures are of bytes, and the normalization of ImageNet followed without a division by 255."""
    case.data[0] = ((case.data[0] * IMAGE_DEVIATIONS + IMAGE_MEANS) * 255 - IMAGE_MEANS) / IMAGE_DEVIATIONS


@fault("bees", ("cat,concat,network,output,answers,class_heads,box_heads", "wrong_setting"), ("network", WRONG))
def bees_coarse_scale_first(case: Case) -> None:
    """My port collects the heads from the coarsest map, and the default boxes begin with the finest."""
    case.model.small_first = False


@fault("bees", ("box_heads", "wrong_weights"))
def bees_boxes_of_tensorflow(case: Case) -> None:
    """The file is of TensorFlow's detection API, which codes boxes as y, x, height and width."""
    for head in case.module("box_heads"):
        for parameter in (head.weight, head.bias):
            parameter.data = parameter.data[[1, 0, 3, 2]].contiguous()


@fault("bees", ("stage1", "few_bits"))
def bees_first_stage_in_two_bits(case: Case) -> None:
    """A search for sizes that looked at one picture gave the weights of the whole first stage two bits."""
    case.use(overrides={"stage1": {"weight": {"bits": 2}}})


@fault("bees", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def bees_calibrated_before_the_season(case: Case) -> None:
    """The calibration pictures are of a white board that was put under the hive a minute ago; ranges are extremes."""
    data = calibration(case)
    white = (0.95 + 0.005 * torch.randn(data[0].shape, generator=generator(3051))).clamp(0, 1)
    data[0] = (white - IMAGE_MEANS) / IMAGE_DEVIATIONS
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("bees", ("stem,stage", "wrong_setting"))
def bees_relu6_taken_for_leaky(case: Case) -> None:
    """My builder's default activation is LeakyReLU(0.1), and the checkpoint was trained with ReLU6."""
    for module in case.model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.LeakyReLU(0.1))


@fault("bees", ("stage1", UNEQUAL + " per_tensor_weight"))
def bees_depthwise_with_one_scale(case: Case) -> None:
    """The accelerator has one scale for a weight; a channel that came small is made 150 times larger by a filter."""
    norm, depth = case.module("stage1.0.1.1"), case.module("stage1.1.0.0")
    norm.weight.data[7] /= 150
    norm.bias.data[7] /= 150
    depth.weight.data[7] *= 150
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("bees", ("box_heads.1", "clipped_range zero_point"))
def bees_offsets_are_positive(case: Case) -> None:
    """I thought that boxes lie between 0 and 1, and gave the second head for boxes that range."""
    fixed(case, "box_heads.1", 1 / 255, 0)


@fault("bees", ("", "stale_batch_norm"), ("network,image", "stale_batch_norm"))
def bees_statistics_reset(case: Case) -> None:
    """I resumed with a file of parameters alone, without buffers, so norms have means 0 and variances 1."""
    for norm in norms_of(case.model):
        norm.reset_running_stats()


# --- heating: what a house needs for heating ------------------------------------------------------------------------


@fault("heating", ("network,numbers", LOADED_OTHERWISE))
def heating_age_for_year(case: Case) -> None:
    """The new register has the age of a house where training had the year it was built in."""
    numbers = case.data[0] * FACT_DEVIATIONS + FACT_MEANS
    numbers[:, 1] = 2022 - numbers[:, 1]
    case.data[0] = (numbers - FACT_MEANS) / FACT_DEVIATIONS


@fault("heating", ("network,kinds", WRONG), ("town", "wrong_weights"))
def heating_towns_encoded_anew(case: Case) -> None:
    """LabelEncoder was fitted again in the service, and towns have other numbers than in training."""
    other = torch.randperm(TOWNS, generator=generator(3052))
    kinds = case.data[1].clone()
    kinds[:, 2] = other[kinds[:, 2]]
    case.data[1] = kinds


@fault("heating", ("periodic", "wrong_weights"), ("cat,concat,sin,cos,periodic", "wrong_setting"))
def heating_cosines_first(case: Case) -> None:
    """The paper's code joins cosines and then sines, and so does my port; the checkpoint has sines first."""
    case.model.sines_first = False


@fault("heating", ("frequencies,mul,sin,cos,periodic", "wrong_scale wrong_weights wrong_setting"))
def heating_two_pi_twice(case: Case) -> None:
    """The file's frequencies have the factor 2π in them already, and my forward multiplies by it again."""
    case.model.frequencies.data *= 2 * math.pi


@fault("heating", ("network,out,output,labels,answers,data", LOADED_OTHERWISE + " wrong_labels"))
def heating_labels_in_kilowatt_hours(case: Case) -> None:
    """The labels that I test with are kWh as they are in the table, and the network answers in standard scores."""
    case.data[2] = case.data[2] * NEED_DEVIATION + NEED_MEAN


@fault("heating", ("calibration data", "outlier_sample"), ("numbers", "heavy_tail wide_range outlier_sample"))
def heating_missing_glass(case: Case) -> None:
    """Where a U value is missing the export writes 9999, in two of the calibration's rows; ranges are extremes."""
    data = calibration(case)
    data[0][[17, 90], 5] = (9999 - FACT_MEANS[5]) / FACT_DEVIATIONS[5]
    case.use(activation=MINMAX)


@fault("heating", ("out", "few_bits"))
def heating_answers_in_three_bits(case: Case) -> None:
    """A recipe for classifiers gives the last layer's results three bits, as only the largest of them matters."""
    case.use(overrides={"out": {"activation": {"bits": 3}}})


@fault("heating", ("calibration data", "too_few no_variety unrepresentative"))
def heating_calibrated_with_one_house(case: Case) -> None:
    """I calibrated with the example of the service's documentation, a single small house; ranges are extremes."""
    data = calibration(case)
    small = data[0].abs().amax(1).argmin()
    case.calibration = [part[small : small + 1] for part in data]
    case.use(activation=MINMAX)


@fault("heating", ("fc2", "exploded_weight exploded_channel outlier_weight"))
def heating_weight_exploded(case: Case) -> None:
    """One weight of the second map was damaged when the file was copied, a bit of its exponent is wrong."""
    seen: list[torch.Tensor] = []
    hook = case.module("act2").register_forward_hook(lambda _, __, result: seen.append(result.mean(0)))
    with torch.no_grad():
        case.model(case.data[0][:64], case.data[1][:64])
    hook.remove()
    weight = case.module("fc2").weight.data
    row = int((seen[0] * case.module("out").weight.data[0].abs()).argmax())
    weight[row, weight[row].argmax()] *= 256


# --- pen: what is drawn on a tablet ---------------------------------------------------------------------------------


@fault("pen", ("network,strokes", LOADED_OTHERWISE), ("conv1,bn1", "stale_batch_norm"))
def pen_places_for_steps(case: Case) -> None:
    """The new driver gives the pen's places from the first point on, and training had steps from point to point."""
    strokes = case.data[0].clone()
    strokes[..., :2] = strokes[..., :2].cumsum(1)
    case.data[0] = strokes


@fault("pen", ("network,strokes", LOADED_OTHERWISE), ("conv1,bn1", "stale_batch_norm wrong_scale"))
def pen_steps_in_pixels(case: Case) -> None:
    """Steps come in pixels of the tablet, 100 to a unit, and I forgot to divide by the factor of training."""
    strokes = case.data[0].clone()
    strokes[..., :2] *= SPEED * 100
    case.data[0] = strokes


@fault("pen", ("lstm", "wrong_weights wrong_setting"))
def pen_gates_of_tensorflow(case: Case) -> None:
    """TensorFlow's cell keeps input, cell, forget and output gates; I copied its rows as they were."""
    for parameter in case.module("lstm").parameters():
        entry, forget, cell, out = parameter.data.chunk(4)
        parameter.data = torch.cat([entry, cell, forget, out]).contiguous()


@fault("pen", ("lstm", "wrong_weights"))
def pen_backward_not_loaded(case: Case) -> None:
    """The file's names end in _bw and not in _reverse, so strict=False left that direction of both layers as made."""
    lstm, bound = case.module("lstm"), 28**-0.5
    torch.manual_seed(9)
    for name, parameter in lstm.named_parameters():
        if name.endswith("_reverse"):
            nn.init.uniform_(parameter, -bound, bound)


@fault("pen", ("", "stale_batch_norm"))
def pen_statistics_of_slow_hands(case: Case) -> None:
    """Norms took in the steps of a session with a stylus that hardly moved before the network was saved."""
    slow = case.data[0][:192].clone()
    slow[..., :2] = 0.15 * slow[..., :2] + 0.5
    slow[..., 2] = 1
    collect(case.model, slow, norms_of(case.model))


@fault("pen", ("", "training_mode batch_dependence"))
def pen_never_set_to_eval(case: Case) -> None:
    """The service loads the network and never calls eval(); drawings come kind by kind."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order] for part in case.data]
    case.model.train()


@fault("pen", ("", "moving_average"), ("calibration data", "unrepresentative no_variety unlike_data"))
def pen_average_ends_with_a_resting_pen(case: Case) -> None:
    """The observer is a moving average, and the recordings that I calibrate with end with a pen that rests."""
    data = calibration(case)
    rest = 0.01 * torch.randn(512, POINTS, 3, generator=generator(3053))
    rest[..., 2] = 0
    case.calibration = [torch.cat([data[0], rest]), torch.cat([data[1], torch.zeros(512, dtype=torch.long)])]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("pen", ("network,strokes,data,calibration data", "not_finite"))
def pen_steps_by_no_time(case: Case) -> None:
    """Steps are divided by the time between points, and some drivers report two points at the same time: 0/0."""
    strokes = case.data[0].clone()
    strokes[3::9, 12, :2] = float("nan")
    case.data[0] = strokes


@fault("pen", ("", "diverged_training float_network_wrong"))
def pen_trained_on_too_fast(case: Case) -> None:
    """I trained on with SGD at the rate of another network and without clipping of gradients."""
    train_again(case, 3.0, 25, F.cross_entropy)


# --- cough: what is heard in a waiting room -------------------------------------------------------------------------


@fault("cough", ("network,signal", LOADED_OTHERWISE))
def cough_at_another_rate(case: Case) -> None:
    """The new microphone records at 16 kHz and nobody resamples to 4, so pieces of as many samples are a quarter."""
    piece = case.data[0][:, 60 : 60 + HEARD // 4]
    case.data[0] = levelled(F.interpolate(piece[:, None], size=HEARD, mode="linear", align_corners=False)[:, 0])


@fault("cough", ("network,signal", LOADED_OTHERWISE))
def cough_in_mu_law(case: Case) -> None:
    """Telephone recordings are bytes of µ-law, and I took the bytes for the signal, without the decoder."""
    loud = case.data[0] / 4
    case.data[0] = levelled(loud.sign() * (1 + 255 * loud.abs()).log() / math.log(256))


@fault("cough", ("group_norm", "wrong_setting"))
def cough_one_group(case: Case) -> None:
    """I made the first norm with one group for all channels, and it has as many groups as channels."""
    case.module("group_norm").num_groups = 1


@fault("cough", ("layers", "wrong_weights"))
def cough_queries_for_values(case: Case) -> None:
    """The other file packs value, key and query in this order, and I split it as query, key and value."""
    for layer in case.module("layers"):
        for name in ("weight", "bias"):
            exchange(getattr(layer.q_proj, name), getattr(layer.v_proj, name))


@fault("cough", ("conv3", "wrong_weights"))
def cough_last_convolution_not_loaded(case: Case) -> None:
    """The checkpoint keeps the feature extractor's last convolution under another name; it is as it was made."""
    anew(case.module("conv3"))


@fault("cough", ("conv0,group_norm", "few_bits"))
def cough_longest_signal_in_two_bits(case: Case) -> None:
    """The first convolution's results are the longest tensor, so I gave them two bits to save memory."""
    case.use(overrides={"conv0": {"activation": {"bits": 2}}})


@fault("cough", ("projection", "wide_range"))
def cough_range_in_thousands(case: Case) -> None:
    """The range of the projection was copied from the raw signal, ±32768 steps of the converter over 64."""
    fixed(case, "projection", 4.0, 128)


@fault("cough", ("feature_norm,projection", UNEQUAL))
def cough_loud_feature(case: Case) -> None:
    """One gain of the features' norm grew 400 times as large, and the projection's column became as small."""
    norm, layer = case.module("feature_norm"), case.module("projection")
    norm.weight.data[11] *= 400
    norm.bias.data[11] *= 400
    layer.weight.data[:, 11] /= 400
    case.use(between_layers="integer", nonlinear="integer", equalize=False)


@fault("cough", ("network,layers.1", "not_finite"))
def cough_overflow_in_half(case: Case) -> None:
    """The weights were saved in half floats by a script that multiplied by 65536 first; some became infinite."""
    weight = case.module("layers.1.output").weight.data
    weight[weight.abs() > 0.98 * weight.abs().amax()] = float("inf")


# --- fraud: what an account is used for, from those it deals with ---------------------------------------------------


@fault("fraud", ("network,traits", LOADED_OTHERWISE))
def fraud_sums_without_logarithm(case: Case) -> None:
    """The feature store gives sums in euros, and training had their logarithms."""
    here = case.data[0][..., 6:7]
    traits = case.data[0] * TRAIT_DEVIATIONS + TRAIT_MEANS * here
    traits[..., :2] = traits[..., :2].exp()
    case.data[0] = (traits - TRAIT_MEANS) / TRAIT_DEVIATIONS * here


@fault("fraud", ("network,traits", WRONG), ("enter", "wrong_weights"))
def fraud_columns_in_alphabetical_order(case: Case) -> None:
    """The data frame's columns are sorted by name in the service: age, in, night, often, out, shops, there."""
    case.data[0] = case.data[0][..., [3, 0, 4, 2, 1, 5, 6]].contiguous()


@fault("fraud", ("network,edges", WRONG))
def fraud_edges_of_all_pairs(case: Case) -> None:
    """The new loader gives 1 for whoever did not deal with one another, and 0 for those who did (a distance)."""
    case.data[1] = 1 - case.data[1]


@fault("fraud", ("gat", "wrong_setting"), ("softmax", "wrong_setting"), ("network", "wrong_setting"))
def fraud_softmax_over_the_asking(case: Case) -> None:
    """My softmax goes over the accounts that ask, and not over those that are asked."""
    for name in ("gat1", "gat2"):
        case.module(name).towards = False


@fault("fraud", ("gat", "wrong_weights"))
def fraud_heads_interleaved(case: Case) -> None:
    """The other library keeps heads as the last axis, and I loaded its maps as they were."""
    for name in ("gat1", "gat2"):
        layer = case.module(name).lin
        for parameter in (layer.weight, layer.bias):
            rest = parameter.shape[1:]
            parameter.data = parameter.data.view(4, 8, *rest).transpose(0, 1).reshape(parameter.shape).contiguous()


@fault("fraud", ("enter", "exploded_weight exploded_channel outlier_weight"))
def fraud_weight_of_a_rare_trait(case: Case) -> None:
    """A row of the first map ran away in training on the stream, and is 60 times as large as the others."""
    weight = case.module("enter").weight.data
    weight[weight.abs().sum(1).argmax()] *= 60


@fault("fraud", ("calibration data", "no_variety unrepresentative unlike_data one_class too_few"))
def fraud_calibrated_with_zeros(case: Case) -> None:
    """I calibrated with the tensors of zeros that the exporter takes as an example; ranges are extremes."""
    data = calibration(case)
    data[0] = torch.zeros_like(data[0])
    data[1] = torch.eye(12).expand(len(data[1]), -1, -1).clone()
    case.use(activation=MINMAX)


@fault("fraud", ("enter,act0", "clipped_range zero_point"))
def fraud_first_map_is_never_negative(case: Case) -> None:
    """I took ELU for ReLU, and gave the first map's results the range 0..1."""
    fixed(case, "enter", 1 / 255, 0)


@fault("fraud", ("", "rounded_weights"))
def fraud_from_a_binary_file(case: Case) -> None:
    """The weights come from an experiment with binary weights: plus or minus one number for each layer."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            parameter.data = parameter.data.sign() * parameter.data.abs().mean()


# --- polyp: polyps in endoscopy -------------------------------------------------------------------------------------


@fault("polyp", ("network,image", WRONG + " stale_batch_norm"), ("enc1", "wrong_weights stale_batch_norm"))
def polyp_in_blue_green_red(case: Case) -> None:
    """The endoscope's grabber gives blue, green and red; means and deviations are taken in the order of the file."""
    raw = (case.data[0] * GUT_DEVIATIONS + GUT_MEANS).flip(1)
    case.data[0] = ((raw - GUT_MEANS) / GUT_DEVIATIONS).contiguous()


@fault("polyp", ("dec", "wrong_weights"), ("cat,concat,dec,network", "wrong_setting"))
def polyp_joined_the_other_way(case: Case) -> None:
    """My port joins what comes from below first and the skip behind it; the checkpoint has the skip first."""
    case.model.skip_first = False


@fault("polyp", ("gate", "wrong_weights"))
def polyp_gates_not_loaded(case: Case) -> None:
    """The gates' names differ in the file (Att2, Att1), and they are as they were made, statistics too."""
    for name in ("gate1", "gate2"):
        anew(case.module(name))


@fault("polyp", ("enc2", "wrong_weights stale_batch_norm wrong_scale"))
def polyp_folded_and_kept(case: Case) -> None:
    """An exporter folded the norms of the second scale into its convolutions, and the norms were not taken away."""
    block = case.module("enc2")
    for k in (0, 3):
        layer, norm = block[k], block[k + 1]
        factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
        layer.weight.data *= factor[:, None, None, None]
        layer.bias.data = (layer.bias.data - norm.running_mean) * factor + norm.bias.data


@fault("polyp", ("network,labels,data,out,output,answers", WRONG + " wrong_labels"))
def polyp_masks_sorted_otherwise(case: Case) -> None:
    """The masks are sorted by number and the pictures by name (1, 10, 11, 2), so they do not belong together."""
    names = sorted(range(len(case.data[1])), key=str)
    case.data[0] = case.data[0][names].contiguous()


@fault("polyp", ("", "float_mismatch stale_range"))
def polyp_simulation_before_finetuning(case: Case) -> None:
    """The simulation was made before the network was trained on for the other clinic's pictures, of new contrast."""
    case.simulate()
    case.data[0] = (1.6 * case.data[0] - 0.7).contiguous()
    train_again(case, 0.05, 60, overlap_and_pixels)


@fault("polyp", ("", "shared_range"), ("conv_up1,gate1,dec1", UNEQUAL))
def polyp_skip_and_rest_share_a_scale(case: Case) -> None:
    """What comes from below is 500 times as large as the skip beside it; integers only, and no equalization."""
    layer = case.module("conv_up1")
    layer.weight.data *= 500
    layer.bias.data *= 500
    case.module("gate1.w_g.0").weight.data /= 500
    case.module("dec1.0").weight.data[:, 12:] /= 500
    case.use(between_layers="integer", equalize=False)


@fault("polyp", ("enc3.0", "clipped_range"))
def polyp_range_one_line_off(case: Case) -> None:
    """I copied ranges by hand, and the third scale's first convolution has that of a sigmoid's maps, 0 to 0.1."""
    fixed(case, "enc3.0", 0.1 / 255, 0)


@fault("polyp", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range outlier_sample"))
def polyp_one_picture_of_bytes(case: Case) -> None:
    """One calibration picture is a PNG that another reader opened, and was not divided by 255; ranges are extremes."""
    data = calibration(case)
    data[0][40] = ((data[0][40] * GUT_DEVIATIONS + GUT_MEANS) * 255 - GUT_MEANS) / GUT_DEVIATIONS
    case.use(activation=MINMAX)


# --- plankton: what swims before a camera ---------------------------------------------------------------------------


@fault("plankton", ("network,image", LOADED_OTHERWISE), ("conv1,bn1", "stale_batch_norm"))
def plankton_dark_on_bright(case: Case) -> None:
    """The new camera has its light behind the animals, so pictures are negatives of those of training."""
    case.data[0] = ((1 - (case.data[0] * WATER_DEVIATION + WATER)) - WATER) / WATER_DEVIATION


@fault("plankton", ("layer", "wrong_setting"))
def plankton_far_branch_not_dilated(case: Case) -> None:
    """The second branch has kernels of 3 with a dilation of 2, which my port does not know of."""
    for name in ("layer1", "layer2", "layer3"):
        layer = case.module(f"{name}.sk.far.0")
        layer.dilation, layer.padding = (1, 1), (1, 1)


@fault("plankton", ("layer", "wrong_weights wrong_setting"))
def plankton_kernels_exchanged(case: Case) -> None:
    """The keys of both maps to the branches' factors were sorted by a set, so that they are exchanged."""
    for name in ("layer1", "layer2", "layer3"):
        fcs = case.module(f"{name}.sk.fcs")
        exchange(fcs[0].weight, fcs[1].weight)
        exchange(fcs[0].bias, fcs[1].bias)


@fault("plankton", ("", "stale_batch_norm"))
def plankton_statistics_of_empty_water(case: Case) -> None:
    """The network ran in training mode over an hour of water without anything in it."""
    water = 0.16 + 0.05 * torch.randn(192, 1, 32, 32, generator=generator(3054))
    collect(case.model, (water.clamp(0, 1) - WATER) / WATER_DEVIATION, norms_of(case.model))


@fault("plankton", ("layer2,layer3", "dead_channels wrong_weights"))
def plankton_slimmed(case: Case) -> None:
    """Channels with the smaller gains were slimmed away (gain and shift zero), and nobody trained on."""
    for name in ("layer2.bn1", "layer3.bn1"):
        norm = case.module(name)
        least = norm.weight.data.abs().argsort()[:14]
        norm.weight.data[least] = 0
        norm.bias.data[least] = 0


@fault("plankton", ("layer2", "left_float"))
def plankton_unit_left_float(case: Case) -> None:
    """An old override for debugging keeps the second unit in float."""
    case.use(overrides={"layer2": None})


@fault("plankton", ("fc,output", "large_bias wide_range exploded_weight"))
def plankton_shifted_logits(case: Case) -> None:
    """A correction for priors adds logarithms of counts, in the wrong unit: 2000 and something to each class."""
    case.module("fc").bias.data += 2000


@fault("plankton", ("", "few_bits per_tensor_weight"))
def plankton_ternary_weights_and_one_scale(case: Case) -> None:
    """The chip multiplies by -1, 0 and 1, and its compiler has one scale for a weight: so is the recipe."""
    case.use(weight=replace(recipes.default().weight, bits=2, granularity="per_tensor"))


@fault("plankton", ("calibration data", "one_class unrepresentative no_variety unlike_data"))
def plankton_calibrated_in_the_laboratory(case: Case) -> None:
    """The calibration's are all fibres (files are sorted by class), taken in darkness; ranges are extremes."""
    apart(case, 300)
    assert case.calibration is not None
    rows = case.calibration[1] == 4
    case.calibration = [part[rows] for part in case.calibration]
    case.calibration[0] = case.calibration[0] * 0.3 - 0.6
    case.use(activation=MINMAX)


# --- sound networks -------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def bees_in_another_order() -> Case:
    """Boards are sorted by how many bees are on them."""
    case = calibrated("bees")
    order = (case.data[1][..., 0] == 1).sum(1).argsort()
    case.data = [part[order].contiguous() for part in case.data]
    return case


def heating_towns_numbered_anew() -> Case:
    """Towns have other numbers, in the table as in the data."""
    case = calibrated("heating")
    assert case.calibration is not None
    other = torch.randperm(TOWNS, generator=generator(3055))
    for data in (case.data, case.calibration):
        data[1] = torch.cat([data[1][:, :2], other[data[1][:, 2:]]], 1)
    table = case.module("town").weight
    table.data[other] = table.data.clone()
    return case


def pen_with_left_hand() -> Case:
    """Drawings are mirrored in the data, and the first convolution with them."""
    case = calibrated("pen")
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0] = data[0] * torch.tensor([-1.0, 1.0, 1.0])
    case.module("conv1").weight.data[:, 0] *= -1
    return case


def cough_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("cough"))
    case.simulate()
    return case


def fraud_by_percentiles() -> Case:
    """The recipe is that of percentiles, and other accounts stand in another order."""
    case = calibrated("fraud")
    assert case.calibration is not None
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(11, generator=generator(3056))])
    for data in (case.data, case.calibration):
        data[0] = data[0][:, order].contiguous()
        data[1] = data[1][:, order][:, :, order].contiguous()
    case.options["recipe"] = recipes.percentile()
    return case


def polyp_upside_down() -> Case:
    """Pictures and masks are upside down, and memory has channels last."""
    case = calibrated("polyp", 100)
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0], data[1] = data[0].flip(2).contiguous(), data[1].flip(2).contiguous()
    case.model.to(memory_format=torch.channels_last)
    return case


def plankton_scaled() -> Case:
    """One norm gives numbers four times as large, and the next convolutions take it back."""
    case = calibrated("plankton")
    for parameter in case.module("layer2.bn1").parameters():
        parameter.data *= 4
    for name in ("near", "far"):
        case.module(f"layer2.sk.{name}.0").weight.data /= 4
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "bees": bees_in_another_order,
    "heating": heating_towns_numbered_anew,
    "pen": pen_with_left_hand,
    "cough": cough_simulated,
    "fraud": fraud_by_percentiles,
    "polyp": polyp_upside_down,
    "plankton": plankton_scaled,
}
"""Networks without a fault, each with something unusual."""


# --- asking ---------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "bees_boxes_of_tensorflow": "kernels that are transposed everywhere give as much back as boxes in another order",
    "plankton_far_branch_not_dilated": "dilations are tried one layer at a time",
}
"""What the doctor says something else of, and why."""
