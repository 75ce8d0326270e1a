"""Faults that people report, in eight further ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import generator, spread
from tests.diagnose.doctor.blind_networks_twentyfifth import (
    DAYS,
    LETTERS,
    LONG,
    METER_DEVIATIONS,
    METER_MEANS,
    MUSHROOM_DEVIATIONS,
    MUSHROOM_MEANS,
    SHELF_DEVIATION,
    SHELF_MEAN,
    TURNS,
    WAVES,
    WINE_DEVIATIONS,
    WINE_MEANS,
    FeatTransformer,
    Ghost,
    build,
    encoded,
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


# --- solar: defects of cells of panels -------------------------------------------------------------------------------


@fault("solar", ("network,image", LOADED_OTHERWISE), ("conv_stem", "stale_batch_norm wrong_weights"))
def solar_camera_gives_negatives(case: Case) -> None:
    """The new camera's driver inverts its pictures, so what glows is dark."""
    case.data[0] = -case.data[0] + (1 - 2 * 0.55) / 0.17


@fault("solar", ("blocks", "wrong_setting wrong_weights"))
def solar_ghosts_joined_first(case: Case) -> None:
    """My modules join the cheap maps before those that they are made from."""
    for module in case.model.modules():
        if isinstance(module, Ghost):
            module.cheap_first = True


@fault("solar", ("blocks", "wrong_setting"))
def solar_every_ghost_has_relu(case: Case) -> None:
    """I overlooked that the second ghost of a bottleneck has no ReLU."""
    for k in range(4):
        ghost = case.module(f"blocks.{k}.ghost2")
        ghost.relu1, ghost.relu2 = nn.ReLU(), nn.ReLU()


@fault("solar", ("blocks", "wrong_weights"))
def solar_depthwise_filters_in_another_order(case: Case) -> None:
    """The converter sorts filters by name as text, so that of the depthwise ones of two blocks 10 comes before 2."""
    for name in ("blocks.1.ghost1", "blocks.2.ghost1"):
        layer = case.module(f"{name}.cheap_operation")
        order = sorted(range(len(layer.weight)), key=str)
        layer.weight.data = layer.weight.data[order].contiguous()


@fault("solar", ("conv_stem", "wrong_weights stale_batch_norm wrong_scale"))
def solar_stem_folded_and_norm_kept(case: Case) -> None:
    """The exporter folded the first norm into the stem, and my network norms its results once more."""
    layer, norm = case.module("conv_stem"), case.module("bn1")
    layer.weight.data *= (norm.weight.data / (norm.running_var + norm.eps).sqrt())[:, None, None, None]


@fault("solar", ("blocks.3", "dead_channels wrong_weights"))
def solar_slimmed_too_far(case: Case) -> None:
    """Network slimming set three quarters of the gains and biases of a ghost's first norm to zero."""
    norm = case.module("blocks.3.ghost1.bn1")
    least = norm.weight.data.abs().argsort()[: len(norm.weight) * 3 // 4]
    norm.weight.data[least] = 0
    norm.bias.data[least] = 0


@fault("solar", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def solar_calibrated_on_dark_frames(case: Case) -> None:
    """The calibration folder holds the camera's dark frames, taken without a voltage; ranges are extremes."""
    data = calibration(case)
    dark = 0.03 + 0.01 * torch.randn(data[0].shape, generator=generator(71)).abs()
    data[0] = (dark - 0.55) / 0.17
    case.use(activation=MINMAX)


@fault("solar", ("", "symmetric_range few_bits"))
def solar_signed_accelerator_of_four_bits(case: Case) -> None:
    """The camera's accelerator has signed activations of four bits around zero."""
    case.use(activation=replace(recipes.symmetric().activation, bits=4))


@fault("solar", ("blocks.1", UNEQUAL + " per_tensor_weight shared_range"))
def solar_channels_of_a_ghost_differ(case: Case) -> None:
    """A ghost's first maps differ by up to 400 times, which layers behind take back; weights have one scale."""
    ghost, deep = case.module("blocks.1.ghost1"), case.module("blocks.1.conv_dw")
    factors = spread(16, 400.0, 72)
    ghost.bn1.weight.data *= factors
    ghost.bn1.bias.data *= factors
    ghost.cheap_operation.weight.data /= factors[:, None, None, None]
    deep.weight.data[:16] /= factors[:, None, None, None]
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("solar", ("", "stale_batch_norm"))
def solar_statistics_of_another_factory(case: Case) -> None:
    """AdaBN was run on another factory's cells, which glow half as brightly, and this one's are asked about."""
    other = 0.5 * case.data[0][:256] - 1.6
    collect(case.model, other, norms_of(case.model))


# --- request: attacks in requests to a web server --------------------------------------------------------------------


@fault("request", ("network,letters", WRONG), ("embed", "wrong_weights"))
def request_in_capitals(case: Case) -> None:
    """The new proxy makes capitals of all letters before it logs a request, and training had them as they came."""
    letters = case.data[0]
    small = (letters >= ord("a") - 31) & (letters <= ord("z") - 31)
    case.data[0] = torch.where(small, letters - 32, letters)


@fault("request", ("network,letters", WRONG), ("embed", "wrong_weights"))
def request_letters_from_zero(case: Case) -> None:
    """The new tokenizer counts a blank as 0, and training had it as 1 and kept 0 for none."""
    case.data[0] = (case.data[0] - 1).clamp_min(0)


@fault("request", ("network,letters", WRONG), ("blocks", "wrong_weights"))
def request_padded_in_front(case: Case) -> None:
    """pad_sequences of Keras pads in front unless told otherwise, and training padded behind."""
    letters = case.data[0]
    lengths = (letters > 0).sum(1, keepdim=True)
    case.data[0] = letters.gather(1, (torch.arange(LONG)[None] + lengths) % LONG)


@fault("request", ("blocks", "wrong_setting wrong_weights"))
def request_gated_by_the_first_half(case: Case) -> None:
    """In my rewriting the first half of the maps gates the second."""
    for k in range(3):
        case.module(f"blocks.{k}.gate").second_is_gate = False


@fault("request", ("blocks", "wrong_weights"))
def request_places_transposed(case: Case) -> None:
    """JAX has inputs before outputs, and the square maps of places were not transposed."""
    for k in range(3):
        weight = case.module(f"blocks.{k}.gate.proj").weight
        weight.data = weight.data.t().contiguous()


@fault("request", ("blocks,head", "wrong_weights"))
def request_maps_without_biases(case: Case) -> None:
    """The converter takes biases of convolutions only, and those of maps, also of gates, are zero."""
    for module in case.model.modules():
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()


@fault("request", ("embed", "wrong_weights exploded_weight exploded_channel"))
def request_padding_has_a_row(case: Case) -> None:
    """nn.Embedding.from_pretrained of a file whose row for padding was never zeroed, but of deviation 1."""
    case.module("embed").weight.data[0] = torch.randn(24, generator=generator(77))


@fault("request", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def request_calibrated_on_probes(case: Case) -> None:
    """The calibration log is of the night, when only the load balancer asks whether the server lives; extremes."""
    data = calibration(case)
    probe = torch.zeros(LONG, dtype=torch.long)
    probe[:3] = torch.tensor([ord(letter) - 31 for letter in "/ok"])
    data[0] = probe.repeat(128, 1)
    case.use(activation=MINMAX)


@fault("request", ("blocks.1.gate", "clipped_range"))
def request_gates_up_to_one(case: Case) -> None:
    """Gates lie between 0 and 1, I thought, and gave the map of places that range."""
    fixed(case, "blocks.1.gate.proj", 1 / 255, 0)


@fault("request", ("blocks,norm", "wrong_setting"))
def request_eps_of_one(case: Case) -> None:
    """A configuration file had eps: 1-05, which the reader of numbers took for 1."""
    for module in case.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.0


# --- mushroom: kinds of mushrooms ------------------------------------------------------------------------------------


@fault("mushroom", ("network,image", LOADED_OTHERWISE), ("patch_embed", "wrong_weights"))
def mushroom_colours_of_yuv(case: Case) -> None:
    """The phone's camera gives YUV, and I took its three planes for red, green and blue."""
    red, green, blue = (case.data[0] * MUSHROOM_DEVIATIONS + MUSHROOM_MEANS).unbind(1)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    planes = torch.stack([light, 0.5 + 0.564 * (blue - light), 0.5 + 0.713 * (red - light)], 1)
    case.data[0] = (planes - MUSHROOM_MEANS) / MUSHROOM_DEVIATIONS


@fault("mushroom", ("cat,pos_embed,add,constant,slice", "wrong_setting wrong_weights"), ("network", WRONG))
def mushroom_tokens_behind_patches(case: Case) -> None:
    """My port puts both tokens behind the patches, and takes its answers from there."""
    case.module("").tokens_first = False


@fault("mushroom", ("pos_embed,add,patch_embed", "wrong_weights wrong_setting"))
def mushroom_places_column_by_column(case: Case) -> None:
    """The other library flattens patches column by column, and rows for places came over as they were."""
    places = case.module("").pos_embed
    patches = places.data[:, 2:].view(1, 8, 8, 32).transpose(1, 2).reshape(1, 64, 32)
    places.data = torch.cat([places.data[:, :2], patches], 1).contiguous()


@fault("mushroom", ("blocks", "wrong_weights"))
def mushroom_blocks_from_the_last(case: Case) -> None:
    """The converter numbered blocks from the last to the first, so the first and the last one came in exchange."""
    first, last = case.module("blocks.0"), case.module("blocks.2")
    for one, other in zip(first.parameters(), last.parameters(), strict=True):
        exchange(one, other)


@fault("mushroom", ("blocks", "wrong_setting"))
def mushroom_softmax_over_heads(case: Case) -> None:
    """I wrote softmax(dim=1) when tensors had three axes, and now the second of four is that of heads."""
    for k in range(3):
        case.module(f"blocks.{k}.attn").axis = 1


@fault("mushroom", ("blocks.1.attn", "wrong_weights wrong_setting"))
def mushroom_keys_first(case: Case) -> None:
    """One block's packed map came from a library that packs values, keys and queries in the other order."""
    layer = case.module("blocks.1.attn.qkv")
    for parameter in (layer.weight, layer.bias):
        q, k, v = parameter.data.chunk(3)
        parameter.data = torch.cat([v, k, q]).contiguous()


@fault("mushroom", ("calibration data", "unlike_data"))
def mushroom_calibrated_on_bytes(case: Case) -> None:
    """The calibration loader forgets ToTensor's division, and hands bytes to the normalization; extremes."""
    data = calibration(case)
    raw = (data[0] * MUSHROOM_DEVIATIONS + MUSHROOM_MEANS) * 255
    data[0] = (raw - MUSHROOM_MEANS) / MUSHROOM_DEVIATIONS
    case.use(activation=MINMAX)


@fault("mushroom", ("blocks.0", UNEQUAL))
def mushroom_massive_number_of_a_norm(case: Case) -> None:
    """Two numbers of a norm are 150 times as large as others, and the map behind takes them back; no equalization."""
    norm, layer = case.module("blocks.0.norm2"), case.module("blocks.0.fc1")
    for k in (7, 19):
        norm.weight.data[k] *= 150
        norm.bias.data[k] *= 150
        layer.weight.data[:, k] /= 150
    case.use(equalize=False, between_layers="integer")


@fault("mushroom", ("", "diverged_training float_network_wrong"))
def mushroom_finetuned_too_fast(case: Case) -> None:
    """I fine-tuned with the rate of the convolutional network that I had before, 0.3 with momentum."""
    train_again(case, 0.3, 25, F.cross_entropy)


@fault("mushroom", ("head,add_1,div", "cancellation large_bias"))
def mushroom_heads_against_each_other(case: Case) -> None:
    """The heads' biases drifted apart without decay, one far up and one far down; integers only."""
    away = 400 * torch.randn(6, generator=generator(73))
    case.module("head").bias.data += away
    case.module("head_dist").bias.data -= away
    case.use(between_layers="integer")


# --- lawn: what is before a robot that mows --------------------------------------------------------------------------


@fault("lawn", ("network,image", LOADED_OTHERWISE), ("sp,cp1", "stale_batch_norm wrong_weights"))
def lawn_pictures_of_half_contrast(case: Case) -> None:
    """The robot's pipeline hands over pictures between 0 and 1, and not between -1 and 1."""
    case.data[0] = (case.data[0] + 1) / 2


@fault("lawn", ("ffm", "wrong_setting wrong_weights"))
def lawn_paths_joined_the_other_way(case: Case) -> None:
    """My fusion joins context before detail."""
    case.module("ffm").detail_first = False


@fault("lawn", ("conv_out", "wrong_weights"), ("network,upsample_2", WRONG))
def lawn_classes_by_alphabet(case: Case) -> None:
    """The annotation tool's export sorts classes by alphabet: bed, fence, lawn, path, thing; so do my rows."""
    layer = case.module("conv_out")
    order = torch.tensor([2, 4, 0, 1, 3])
    for parameter in (layer.weight, layer.bias):
        parameter.data = parameter.data[order].contiguous()


@fault("lawn", ("network,arm,conv_head,ffm", "training_mode batch_dependence"))
def lawn_refinement_left_in_training(case: Case) -> None:
    """I froze the backbone and trained the rest, and forgot eval() for it; pictures come from morning to evening."""
    order = case.data[0].mean((1, 2, 3)).argsort()
    case.data = [part[order].contiguous() for part in case.data]
    for name in ("arm16", "arm32", "conv_avg", "conv_head32", "conv_head16", "ffm"):
        case.module(name).train()


@fault("lawn", ("arm,ffm", "wrong_setting"))
def lawn_factors_without_sigmoid(case: Case) -> None:
    """The exported graph had the sigmoids of attention as a custom operator, which my importer skips."""
    for name in ("arm16", "arm32", "ffm"):
        case.module(name).sigmoid = nn.Identity()


@fault("lawn", ("network,cp2", "not_finite dead_channels stale_batch_norm"))
def lawn_variances_overflowed(case: Case) -> None:
    """The checkpoint was saved in half floats, and variances of one norm that had run away became infinite."""
    norm = case.module("cp2.bn")
    norm.running_var[norm.weight.data.abs().argsort(descending=True)[:12]] = float("inf")


@fault("lawn", ("calibration data", "unlike_data unrepresentative no_variety"))
def lawn_calibrated_in_the_garage(case: Case) -> None:
    """The calibration pictures were recorded in the dark garage, where the robot charges; ranges are extremes."""
    data = calibration(case)
    data[0] = 2 * (0.06 + 0.02 * torch.randn(data[0].shape, generator=generator(74))).clamp(0, 1) - 1
    case.use(activation=MINMAX)


@fault("lawn", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range"))
def lawn_one_picture_of_sixteen_bits(case: Case) -> None:
    """One calibration picture has 16 bits for each colour, and was divided by 255; ranges are extremes."""
    data = calibration(case)
    data[0][77] = 2 * ((data[0][77] + 1) / 2 * 257) - 1
    case.use(activation=MINMAX)


@fault("lawn", ("conv_out,upsample_2", "large_bias bias_overflow"))
def lawn_logits_far_from_zero(case: Case) -> None:
    """Cross entropy does not see what all logits have in common, and their biases drifted to 2500; integers only."""
    case.module("conv_out").bias.data += 2500
    case.use(between_layers="integer")


@fault("lawn", ("", "float_mismatch stale_range"))
def lawn_simulated_before_training(case: Case) -> None:
    """The simulation was made in spring, and the network was trained on with pictures of the summer."""
    case.simulate()
    train_again(case, 0.1, 40, F.cross_entropy)


# --- appliance: what runs in a house ---------------------------------------------------------------------------------


@fault("appliance", ("network,meter", LOADED_OTHERWISE), ("encoder", "stale_batch_norm wrong_scale"))
def appliance_in_kilowatts(case: Case) -> None:
    """The new meters give kilowatts and kilovolt-amperes, and the scaler has watts."""
    case.data[0] = ((case.data[0] * METER_DEVIATIONS + METER_MEANS) / 1000 - METER_MEANS) / METER_DEVIATIONS


@fault("appliance", ("network,meter", LOADED_OTHERWISE), ("encoder", "stale_batch_norm wrong_weights"))
def appliance_sign_of_reactive_power(case: Case) -> None:
    """The new meters count reactive power of motors as negative."""
    raw = case.data[0] * METER_DEVIATIONS + METER_MEANS
    raw[:, 1] = -raw[:, 1]
    case.data[0] = (raw - METER_MEANS) / METER_DEVIATIONS


@fault("appliance", ("layers", "wrong_weights"))
def appliance_kernels_not_flipped(case: Case) -> None:
    """Training convolved by Fourier transforms, and nn.Conv1d correlates: the kernels had to be turned round."""
    for k in range(4):
        weight = case.module(f"layers.{k}.kernel").weight
        weight.data = weight.data.flip(2).contiguous()


@fault("appliance", ("layers", "wrong_setting wrong_weights"))
def appliance_padded_on_both_sides(case: Case) -> None:
    """My port pads as padding="same" does, half before and half behind, and training padded before."""
    for k in range(4):
        layer = case.module(f"layers.{k}")
        layer.before, layer.after = 15, 16


@fault("appliance", ("layers", "wrong_weights wrong_setting"))
def appliance_feedthrough_missing(case: Case) -> None:
    """The file calls D skip, and strict=False left it out, which my class makes zeros of."""
    for k in range(4):
        case.module(f"layers.{k}").D.data.zero_()


@fault("appliance", ("", "stale_batch_norm"))
def appliance_statistics_of_an_empty_house(case: Case) -> None:
    """The demonstration ran in training mode in a house where nobody was, before the network was saved."""
    empty = case.data[0][:192].clone()
    empty[:, 0] = -0.65 + 0.05 * empty[:, 0]
    empty[:, 1] = -0.6 + 0.1 * empty[:, 1]
    collect(case.model, empty, norms_of(case.model))


@fault("appliance", ("meter,encoder", "heavy_tail"), ("calibration data", "outlier_sample"))
def appliance_spikes_of_the_sensor(case: Case) -> None:
    """The clamp gives single values of a megawatt when it is touched, as in one series of thirty; extremes."""
    meter = case.data[0].clone()
    meter[5::30, 0, 40] = 1000.0
    case.data[0] = meter
    apart(case)
    case.use(activation=MINMAX)


@fault("appliance", ("calibration data", "one_class unrepresentative unlike_data no_variety"))
def appliance_calibrated_at_night(case: Case) -> None:
    """The calibration series are of a night in which no appliance ran at all; ranges are extremes."""
    data = calibration(case)
    rest = torch.tensor([200.0, 50.0])[:, None] + torch.tensor([30.0, 20.0])[:, None] * torch.randn(
        data[0].shape, generator=generator(75)
    )
    data[0] = (rest - METER_MEANS) / METER_DEVIATIONS
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("appliance", ("layers", "few_bits"))
def appliance_kernels_in_two_bits(case: Case) -> None:
    """Kernels are the longest weights, so I gave those of all layers two bits."""
    case.use(overrides={f"layers.{k}.kernel": {"weight": {"bits": 2}} for k in range(4)})


@fault("appliance", ("layers,network", "left_float"))
def appliance_maps_left_float(case: Case) -> None:
    """When I looked for a fault last year I kept the maps of all layers float, and never took it back."""
    case.use(overrides={f"layers.{k}.output_linear": None for k in range(4)})


# --- radiance: a scene as a field of density and colour --------------------------------------------------------------


@fault("radiance", ("network,points", WRONG), ("pts_linears.0,pts_linears.3", "wrong_weights"))
def radiance_encoded_without_pi(case: Case) -> None:
    """The paper's formula has π in it and the original program has not; this network was trained with it."""
    case.data[0] = encoded(case.data[0][:, :3], WAVES, 1.0)


@fault("radiance", ("network,points,views", WRONG), ("pts_linears,views_linear", "wrong_weights"))
def radiance_cosines_first(case: Case) -> None:
    """My encoding has cosines before sines."""
    case.data[0] = encoded(case.data[0][:, :3], WAVES, cosines_first=True)
    case.data[1] = encoded(case.data[1][:, :3], TURNS, cosines_first=True)


@fault("radiance", ("cat", "wrong_setting"), ("pts_linears.3", "wrong_weights"))
def radiance_points_joined_behind(case: Case) -> None:
    """My network joins points behind the maps where the original has them before."""
    case.module("").points_first = False


@fault("radiance", ("network,points", WRONG), ("pts_linears.0,pts_linears.3", "wrong_weights"))
def radiance_axes_of_blender(case: Case) -> None:
    """Blender's y looks up, the scene's z does, and points were not turned."""
    x, y, z = case.data[0][:, :3].unbind(1)
    case.data[0] = encoded(torch.stack([x, z, -y], 1), WAVES)


@fault("radiance", ("", "rounded_weights"))
def radiance_of_eight_numbers(case: Case) -> None:
    """The web viewer's file keeps weights as eight numbers for each layer, and I loaded them as floats."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            step = parameter.data.abs().max() / 4
            parameter.data = (parameter.data / step).round().clamp(-4, 3) * step


@fault("radiance", ("feature_linear,cat_1", "stale_range"))
def radiance_scales_from_before(case: Case) -> None:
    """Scales were frozen, and then features became eight times as large, which the map of views takes back."""
    sim = case.simulate()
    sim.freeze_scales()
    for model in (case.model, sim):
        parameters = dict(model.named_parameters())
        for name in ("weight", "bias"):
            parameters[f"feature_linear.{name}"].data *= 8
        parameters["views_linear.weight"].data[:, :48] /= 8


@fault("radiance", ("calibration data", "unrepresentative no_variety unlike_data one_class too_few"))
def radiance_calibrated_on_one_point(case: Case) -> None:
    """The calibration script makes its points with torch.zeros for both inputs, encoded; ranges are extremes."""
    data = calibration(case)
    data[0] = encoded(torch.zeros(128, 3), WAVES)
    data[1] = encoded(torch.zeros(128, 3), TURNS)
    case.use(activation=MINMAX)


@fault("radiance", ("network", WRONG), ("alpha_linear,density,cat_2", "wrong_scale wrong_weights exploded_channel"))
def radiance_density_for_centimetres(case: Case) -> None:
    """The checkpoint is of the scene in metres with densities for each, and mine counts them for each centimetre."""
    layer = case.module("alpha_linear")
    layer.weight.data /= 100
    layer.bias.data /= 100


@fault("radiance", ("cat_2,output,network", "shared_range " + UNEQUAL))
def radiance_density_beside_colours(case: Case) -> None:
    """Densities are 200 times as large as colours in this scene's units, and both leave in one tensor of integers."""
    layer = case.module("alpha_linear")
    layer.weight.data *= 200
    layer.bias.data *= 200
    case.data[2] = case.data[2] * torch.tensor([200.0, 1, 1, 1])
    case.use(between_layers="integer")


@fault("radiance", ("pts_linears", "wrong_weights"))
def radiance_maps_exchanged(case: Case) -> None:
    """The checkpoint's list of layers was sorted from the last, and two maps of the same size came in exchange."""
    for name in ("weight", "bias"):
        exchange(getattr(case.module("pts_linears.1"), name), getattr(case.module("pts_linears.2"), name))


# --- shelf: what a shop sells in the next week -----------------------------------------------------------------------


@fault("shelf", ("network,past", LOADED_OTHERWISE), ("encoder1,residual", "wrong_scale"))
def shelf_pieces_and_not_logarithms(case: Case) -> None:
    """The warehouse gives pieces that were sold, and training had their logarithms."""
    case.data[0] = (torch.exp(case.data[0] * SHELF_DEVIATION + SHELF_MEAN) - SHELF_MEAN) / SHELF_DEVIATION


@fault("shelf", ("network,covariates", WRONG), ("feature,encoder1", "wrong_weights"))
def shelf_next_weeks_leaflet_unknown(case: Case) -> None:
    """At the time of asking next week's leaflet is not in the data base yet, and the join fills it with zeros."""
    covariates = case.data[1].clone()
    covariates[:, DAYS:, :2] = 0
    case.data[1] = covariates


@fault("shelf", ("network,past", WRONG), ("residual,encoder1", "wrong_weights"))
def shelf_newest_day_first(case: Case) -> None:
    """The query orders by date descending, and past sales come newest first."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("shelf", ("reshape,decoder2,slice,cat_1", "wrong_setting wrong_weights"))
def shelf_decoded_width_first(case: Case) -> None:
    """I reshape what the decoder gives to width and days, and the original to days and width."""
    case.module("").by_day = False


@fault("shelf", ("covariates,feature", UNEQUAL))
def shelf_discount_in_thousandths(case: Case) -> None:
    """Discounts come in thousandths of the price, which the first map's weights take back; no equalization."""
    case.data[1] = case.data[1] * torch.tensor([200.0, 1, 1, 1])
    for name in ("feature.fc1", "feature.skip"):
        case.module(name).weight.data[:, 0] /= 200
    case.use(equalize=False, between_layers="integer")


@fault("shelf", ("residual", "wrong_weights"))
def shelf_residual_turned_round(case: Case) -> None:
    """The original's linear map reads the past from its end, and I took its weights as they were."""
    weight = case.module("residual").weight
    weight.data = weight.data.flip(1).contiguous()


@fault("shelf", ("encoder2", "wrong_weights"))
def shelf_encoder_layer_not_loaded(case: Case) -> None:
    """With num_encoder_layers=1 in the file's configuration, the second layer of mine is as it was made."""
    anew(case.module("encoder2"))


@fault("shelf", ("", "moving_average"), ("calibration data", "unrepresentative no_variety"))
def shelf_average_ends_on_closed_days(case: Case) -> None:
    """The observer is a moving average, and the rows end with shops that were closed for rebuilding."""
    data = calibration(case)
    shut = [part[:1].repeat(512, *[1] * (part.dim() - 1)) * 0.02 for part in data]
    case.calibration = [torch.cat([part, quiet]) for part, quiet in zip(data, shut, strict=True)]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("shelf", ("encoder1,cat,facts", UNEQUAL + " cancellation large_bias exploded_weight exploded_channel"))
def shelf_shares_that_sum_to_one(case: Case) -> None:
    """Three shares always sum to one, and without decay their weights ran up by 40, and biases down by as much."""
    for name in ("encoder1.fc1", "encoder1.skip"):
        layer = case.module(name)
        layer.weight.data[:, -3:] += 40
        layer.bias.data -= 40


@fault("shelf", ("residual", "zero_point clipped_range"))
def shelf_sales_are_never_negative(case: Case) -> None:
    """Nobody sells less than nothing, so I gave the linear map of the past the range 0..3."""
    fixed(case, "residual", 3 / 255, 0)


# --- wine: grapes by what a laboratory measures ----------------------------------------------------------------------


@fault("wine", ("network,measured", LOADED_OTHERWISE), ("initial_bn,measured", "stale_batch_norm wrong_scale"))
def wine_sulphur_in_grams(case: Case) -> None:
    """The new laboratory gives sulphur in grams per litre, and training had milligrams."""
    raw = case.data[0] * WINE_DEVIATIONS + WINE_MEANS
    raw[:, 5:7] /= 1000
    case.data[0] = (raw - WINE_MEANS) / WINE_DEVIATIONS


@fault("wine", ("network,measured", LOADED_OTHERWISE), ("initial", "stale_batch_norm wrong_weights"))
def wine_columns_by_alphabet(case: Case) -> None:
    """The new export sorts columns by name, and the scaler's numbers, which have names, went along."""
    acids, sulphur = ["fixed", "volatile", "citric"], ["free", "bound"]
    names = [*acids, "sugar", "chlorides", *sulphur, "density", "ph", "sulphates", "alcohol", "phenols"]
    case.data[0] = case.data[0][:, sorted(range(12), key=names.__getitem__)].contiguous()


@fault("wine", ("", "wrong_setting"), ("network", WRONG))
def wine_attention_before_decision(case: Case) -> None:
    """In my port the first half of a step goes on to attention and the second half decides."""
    case.module("").decision_first = False


@fault("wine", ("initial_splitter.shared,feat_transformers", "wrong_weights"))
def wine_shared_map_not_loaded(case: Case) -> None:
    """The file has the layer that all steps share under another name, its map is as it was made, its norm is loaded."""
    anew(case.module("initial_splitter.shared.fc"))


@fault("wine", ("feat_transformers,initial_splitter", "wrong_scale wrong_setting"), ("", "wrong_scale"))
def wine_sums_scaled_inversely(case: Case) -> None:
    """My transformers divide sums by the root of a half instead of multiplying with it."""
    for module in case.model.modules():
        if isinstance(module, FeatTransformer):
            module.scale = math.sqrt(2)


@fault("wine", ("", "stale_batch_norm"))
def wine_statistics_of_one_grape(case: Case) -> None:
    """For a demonstration the network ran in training mode over bottles of one grape, and was saved behind it."""
    one = case.data[0][case.data[1] == 2]
    collect(case.model, one[: len(one) // 2], norms_of(case.model))


@fault("wine", ("calibration data", "outlier_sample"), ("measured", "heavy_tail wide_range"))
def wine_density_without_its_point(case: Case) -> None:
    """In one row of the calibration data the density lost its decimal point, 9947 for 0.9947; ranges are extremes."""
    data = calibration(case)
    data[0][41, 7] = ((9947 - WINE_MEANS) / WINE_DEVIATIONS)[7]
    case.use(activation=MINMAX)


@fault("wine", ("att_transformers.0,mul_1,mul", "clipped_range"))
def wine_shares_up_to_a_twelfth(case: Case) -> None:
    """Shares of twelve features are about a twelfth, I thought, and gave the first step's shares the range 0..1/12."""
    fixed(case, "att_transformers.0.softmax", 1 / 12 / 255, 0)


@fault("wine", ("", "diverged_training float_network_wrong"))
def wine_decayed(case: Case) -> None:
    """I fine-tuned with a weight decay of 0.5, which I had read as the factor of dropout."""
    train_again(case, 0.05, 60, F.cross_entropy, 0.5)


@fault("wine", ("initial_splitter.shared", "exploded_weight exploded_channel dead_channels wrong_weights large_bias"))
def wine_gates_held_shut(case: Case) -> None:
    """Biases of most gates of the layer that all steps share were set again by hand, to -20 and not to -2."""
    case.module("initial_splitter.shared.bn").bias.data[40:] = -20


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def solar_folded() -> Case:
    """Norms are folded into convolutions as they should be, and there are none behind them."""
    case = calibrated("solar")
    fuse = nn.utils.fusion.fuse_conv_bn_eval
    case.model.conv_stem, case.model.bn1 = fuse(case.module("conv_stem"), case.module("bn1")), nn.Identity()
    for name in [name for name, module in case.model.named_modules() if isinstance(module, Ghost)]:
        ghost = case.module(name)
        ghost.primary_conv, ghost.bn1 = fuse(ghost.primary_conv, ghost.bn1), nn.Identity()
        ghost.cheap_operation, ghost.bn2 = fuse(ghost.cheap_operation, ghost.bn2), nn.Identity()
    return case


def request_with_rows_to_spare() -> Case:
    """The table of letters has rows to spare, which are zero."""
    case = calibrated("request")
    table = nn.Embedding(LETTERS + 32, 24, padding_idx=0)
    table.weight.data.zero_()
    table.weight.data[:LETTERS] = case.module("embed").weight.data
    case.model.embed = table
    return case


def mushroom_scaled_queries() -> Case:
    """The factor of products of attention is within the weights of queries."""
    case = calibrated("mushroom")
    for k in range(3):
        attention = case.module(f"blocks.{k}.attn")
        attention.qkv.weight.data[:32] *= attention.scale
        attention.qkv.bias.data[:32] *= attention.scale
        attention.scale = 1.0
    return case


def lawn_frozen() -> Case:
    """The simulation was made of the network as it is, and its scales are frozen; pictures are mirrored."""
    case: Case = case_of(Case, build("lawn"))
    case.data = [part.flip(-1).contiguous() for part in case.data]
    case.simulate().freeze_scales()
    return case


def appliance_gates_in_front() -> Case:
    """The halves of gated maps are in the other order, in weights as in the network."""
    case = calibrated("appliance", 96)
    for k in range(4):
        layer = case.module(f"layers.{k}")
        layer.gate_behind = False
        for parameter in (layer.output_linear.weight, layer.output_linear.bias):
            parameter.data = torch.cat(parameter.data.chunk(2)[::-1]).contiguous()
    return case


def radiance_scaled() -> Case:
    """One map of points gives numbers six times as large, and the next one takes it back."""
    case = calibrated("radiance")
    first, second = case.module("pts_linears.1"), case.module("pts_linears.2")
    first.weight.data *= 6
    first.bias.data *= 6
    second.weight.data /= 6
    return case


def shelf_facts_not_standardized() -> Case:
    """Facts are three times as large, and the weights that read them a third; the order of rows is by sales."""
    case = calibrated("shelf")
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[2] = 3 * data[2]
    for name in ("encoder1.fc1", "encoder1.skip"):
        case.module(name).weight.data[:, -6:] /= 3
    order = case.data[0].mean(1).argsort()
    case.data = [part[order].contiguous() for part in case.data]
    return case


def wine_features_in_another_order() -> Case:
    """Columns come in another order, and everything that reads or weighs them was moved with them."""
    case = calibrated("wine")
    assert case.calibration is not None
    order = torch.randperm(12, generator=generator(76))
    for data in (case.data, case.calibration):
        data[0] = data[0][:, order].contiguous()
    norms = [case.module("initial_bn"), *(case.module(f"att_transformers.{k}.bn") for k in range(3))]
    for norm in norms:
        for part in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            part.copy_(part[order].clone())
    shared = case.module("initial_splitter.shared.fc").weight
    shared.data = shared.data[:, order].contiguous()
    for k in range(3):
        weight = case.module(f"att_transformers.{k}.fc").weight
        weight.data = weight.data[order].contiguous()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "solar": solar_folded,
    "request": request_with_rows_to_spare,
    "mushroom": mushroom_scaled_queries,
    "lawn": lawn_frozen,
    "appliance": appliance_gates_in_front,
    "radiance": radiance_scaled,
    "shelf": shelf_facts_not_standardized,
    "wine": wine_features_in_another_order,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "solar_depthwise_filters_in_another_order": "few orders of filters are tried, and new statistics give most back",
    "appliance_spikes_of_the_sensor": "the spikes make more noise in what the first layer gives than in the input",
}
"""What the doctor says something else of, and why."""
