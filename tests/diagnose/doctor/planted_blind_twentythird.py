"""Faults that people report, in eight more ordinary networks, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator, spread
from tests.diagnose.doctor.blind_networks_twentythird import (
    CLS,
    COUNTS,
    CURINGS,
    DRIVER_DEVIATIONS,
    DRIVER_MEANS,
    GREY_DEVIATION,
    GREY_MEAN,
    HALF,
    MIX_DEVIATIONS,
    MIX_MEANS,
    NANOMETRES,
    PAD,
    SEP,
    STRENGTH_DEVIATION,
    STRENGTH_MEAN,
    TICKS,
    Fire,
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


# --- fabric: defects of cloth ----------------------------------------------------------------------------------------


@fault("fabric", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm wrong_weights"))
def fabric_normalized_twice(case: Case) -> None:
    """The exported pipeline normalizes already, and my service did it once more."""
    case.data[0] = (case.data[0] - MEANS) / DEVIATIONS


@fault("fabric", ("layer2,layer3", "wrong_weights dead_channels"))
def fabric_last_gains_are_zero(case: Case) -> None:
    """The network is made with zero_init_residual, and the gains of these last norms were not in the checkpoint."""
    for name in ("layer2.1.bn3", "layer3.1.bn3"):
        case.module(name).weight.data.zero_()
        case.module(name).bias.data.zero_()


@fault("fabric", ("layer3", "wrong_weights"))
def fabric_convolutions_not_loaded(case: Case) -> None:
    """My blocks call the middle convolution conv2_3x3, as strict=False did not say; two keep their first weights."""
    anew(case.module("layer3.0.conv2"), case.module("layer3.1.conv2"))


@fault("fabric", ("layer2.1", "wrong_setting"))
def fabric_shortcut_forgotten(case: Case) -> None:
    """When I rewrote a bottleneck by hand for the converter, I left out the addition of what came in."""
    case.module("layer2.1").added = False


@fault("fabric", ("", "stale_batch_norm"))
def fabric_statistics_of_dark_cloth(case: Case) -> None:
    """Somebody ran the network in training mode over recordings with half the light before it was saved."""
    dark = (0.35 * (case.data[0] * DEVIATIONS + MEANS) - MEANS) / DEVIATIONS
    collect(case.model, dark[:192], norms_of(case.model))


@fault("fabric", ("layer1", "few_bits"))
def fabric_first_stage_in_three_bits(case: Case) -> None:
    """The first stage has the largest maps, so I gave what its 3 × 3 convolutions give three bits."""
    case.use(overrides={f"layer1.{k}.conv2": {"activation": {"bits": 3}} for k in range(2)})


@fault("fabric", ("calibration data", "unlike_data unrepresentative"))
def fabric_calibrated_without_light(case: Case) -> None:
    """The calibration pictures were taken on a weekend, with the machine's lamps off; ranges are extremes."""
    data = calibration(case)
    data[0] = (0.2 * (data[0] * DEVIATIONS + MEANS) - MEANS) / DEVIATIONS
    case.use(activation=MINMAX)


@fault("fabric", ("calibration data", "unlike_data unrepresentative"))
def fabric_calibrated_with_bare_tensors(case: Case) -> None:
    """The calibration loader has ToTensor and no Normalize."""
    data = calibration(case)
    data[0] = data[0] * DEVIATIONS + MEANS
    case.use(activation=MINMAX)


@fault("fabric", ("layer1.0", "exploded_weight exploded_channel"))
def fabric_bit_flipped(case: Case) -> None:
    """One weight in the flash has a flipped bit in its exponent, and is 256 times as large."""
    weight = case.module("layer1.0.conv2").weight.data
    largest = weight[3].flatten().abs().argmax()
    weight[3].view(-1)[largest] *= 256


@fault("fabric", ("layer2.0", "clipped_range"))
def fabric_range_of_a_sigmoid(case: Case) -> None:
    """I mixed up lines in the table of ranges: the first convolution of the second stage has 0..0.25."""
    fixed(case, "layer2.0.conv1", 0.25 / 255, 0)


# --- galaxy: shapes of galaxies --------------------------------------------------------------------------------------


@fault("galaxy", ("network,image", LOADED_OTHERWISE), ("features.0", "stale_batch_norm"))
def galaxy_between_zero_and_one(case: Case) -> None:
    """Training had -1..1 as in timm's inception transform, the app has ToTensor alone."""
    case.data[0] = case.data[0] * HALF + HALF


@fault("galaxy", ("", "wrong_setting"))
def galaxy_relu6_for_hardswish(case: Case) -> None:
    """The accelerator has no hard swish, so I exported with ReLU6 in its place and kept the weights."""
    for module in list(case.model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Hardswish):
                setattr(module, name, nn.ReLU6())


@fault("galaxy", ("features", "wrong_setting wrong_scale"))
def galaxy_gates_without_sigmoid(case: Case) -> None:
    """In my squeeze-and-excitation I forgot the hard sigmoid, and channels are multiplied with its inputs."""
    for k in range(1, 6):
        case.module(f"features.{k}.block.2").scale_activation = nn.Identity()


@fault("galaxy", ("network", WRONG), ("classifier.3", "wrong_weights"))
def galaxy_classes_by_alphabet(case: Case) -> None:
    """The test folder's classes are numbered by alphabet, those of training were not."""
    case.data[1] = torch.tensor([2, 0, 5, 4, 1, 3])[case.data[1]]


@fault("galaxy", ("", "per_tensor_weight few_bits channel_imbalance outlier_channel"))
def galaxy_one_scale_for_a_layer(case: Case) -> None:
    """The NPU has one scale of five bits for all weights of a layer, and the converter does not equalize."""
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor", bits=5), equalize=False)


@fault("galaxy", ("features", "clipped_range zero_point"))
def galaxy_gates_before_their_sigmoids(case: Case) -> None:
    """Gates lie between 0 and 1, I thought, and gave this range to convolutions before hard sigmoids."""
    gate = {"activation": {"fixed": (1 / 255, 0)}}
    case.use(overrides={f"features.{k}.block.2.fc2": gate for k in range(1, 6)})


@fault("galaxy", ("features.2", UNEQUAL))
def galaxy_gains_of_widened_channels(case: Case) -> None:
    """The gains of the norm behind a widening convolution differ by 1:500, and equalization is off."""
    block = case.module("features.2.block")
    factors = spread(36, 500.0, 51)
    for parameter in (block[0][1].weight, block[0][1].bias):
        parameter.data *= factors
    block[1][0].weight.data /= factors[:, None, None, None]
    case.use(equalize=False)


@fault("galaxy", ("image,features.0", "heavy_tail"), ("calibration data", "outlier_sample"))
def galaxy_hot_pixels(case: Case) -> None:
    """One picture of sixteen has a hot pixel of a cosmic ray, a hundred times as bright; ranges are extremes."""
    images = case.data[0].clone()
    rows = torch.arange(5, len(images), 16)
    images[rows, :, (rows * 7) % 32, (rows * 11) % 32] = 150.0
    case.data[0] = images
    apart(case)
    case.use(activation=MINMAX)


@fault("galaxy", ("network", "training_mode batch_dependence"))
def galaxy_left_in_training(case: Case) -> None:
    """I never called eval() in the service; pictures come field by field, so that batches are of one kind."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order] for part in case.data]
    case.model.train()


@fault("galaxy", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range"))
def galaxy_one_raw_frame(case: Case) -> None:
    """One frame among the calibration pictures is raw, with 16 bits and no division; ranges are extremes."""
    data = calibration(case)
    data[0][77] = ((data[0][77] * HALF + HALF) * 65535 - HALF) / HALF
    case.use(activation=MINMAX)


# --- weld: flaws of seams --------------------------------------------------------------------------------------------


@fault("weld", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm"))
def weld_twelve_bits_in_sixteen(case: Case) -> None:
    """The detector's twelve bits come in sixteen, and I divide by 65535."""
    case.data[0] = ((case.data[0] * GREY_DEVIATION + GREY_MEAN) * COUNTS / 65535 - GREY_MEAN) / GREY_DEVIATION


@fault("weld", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights"))
def weld_inverted(case: Case) -> None:
    """The DICOM files are MONOCHROME1: dark is bright, and I did not turn them round."""
    case.data[0] = (1 - (case.data[0] * GREY_DEVIATION + GREY_MEAN) - GREY_MEAN) / GREY_DEVIATION


@fault("weld", ("", "rounded_weights"))
def weld_from_an_int3_file(case: Case) -> None:
    """The float weights come from a file that held them in three bits with one scale for each layer."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            scale = parameter.data.abs().max() / 3
            parameter.data = (parameter.data / scale).round() * scale


@fault("weld", ("s2.1", "wrong_weights"))
def weld_convolutions_exchanged(case: Case) -> None:
    """My converter goes by shapes, and gave the first and the last 1 × 1 convolution of a block each other's."""
    exchange(case.module("s2.1.conv1").weight, case.module("s2.1.conv3").weight)


@fault("weld", ("s1,s2,s3", "wrong_weights"))
def weld_groups_interleaved(case: Case) -> None:
    """The other framework writes grouped filters with the group last, and I did not take them apart."""
    for name in ("s2.0", "s2.1"):
        weight = case.module(name).conv2.weight
        weight.data = weight.data.view(5, 8, 8, 3, 3).transpose(0, 1).reshape(weight.shape).contiguous()


@fault("weld", ("s3", "stale_batch_norm"))
def weld_buffers_of_a_stage_lost(case: Case) -> None:
    """The last stage was saved without its buffers, and its running statistics are 0 and 1."""
    for norm in norms_of(case.module("s3")):
        norm.reset_running_stats()


@fault("weld", ("stem", "few_bits"))
def weld_first_layer_in_two_bits(case: Case) -> None:
    """All layers should have few bits, and the search gave the first one's weights two."""
    case.use(overrides={"stem.0": {"weight": {"bits": 2}}})


@fault("weld", ("head", "large_bias cancellation"), ("network", "large_bias cancellation"))
def weld_logits_moved(case: Case) -> None:
    """A wrapper for energies adds 20000 to every logit, which changes no class, and I folded it into the bias."""
    case.module("head").bias.data += 20000


@fault("weld", ("calibration data", "no_variety too_few"))
def weld_calibrated_on_one_seam(case: Case) -> None:
    """The calibration folder holds one picture many times, a faint one, as the script never moved on."""
    data = calibration(case)
    faint = data[0].std((1, 2, 3)).argmin()
    case.calibration = [part[faint : faint + 1].repeat(128, *[1] * (part.dim() - 1)) for part in data]
    case.use(activation=MINMAX)


@fault("weld", ("", "symmetric_range few_bits"))
def weld_symmetric_and_small(case: Case) -> None:
    """The chip has signed activations around zero of five bits."""
    case.use(activation=replace(recipes.symmetric().activation, bits=5))


# --- card: suits of cards --------------------------------------------------------------------------------------------


@fault("card", ("network,image", WRONG), ("features.0", "wrong_weights"))
def card_read_by_opencv(case: Case) -> None:
    """The camera's driver gives blue, green and red."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("card", ("network,image", LOADED_OTHERWISE))
def card_normalized_all_the_same(case: Case) -> None:
    """I normalize as for ImageNet, as one does, and this network was trained on 0..1."""
    case.data[0] = (case.data[0] - MEANS) / DEVIATIONS


@fault("card", ("features", "wrong_setting wrong_weights"))
def card_joined_the_other_way(case: Case) -> None:
    """My fire modules join 3 × 3 before 1 × 1."""
    for module in case.model.modules():
        if isinstance(module, Fire):
            module.small_first = False


@fault("card", ("features", "wrong_weights"))
def card_rows_and_columns(case: Case) -> None:
    """The weights come from MATLAB, which keeps columns first; 3 × 3 kernels lie on their sides."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.weight.data = module.weight.data.transpose(2, 3).contiguous()


@fault("card", ("features", "wrong_setting"))
def card_squeezed_without_relu(case: Case) -> None:
    """In my port squeezing convolutions have no activation."""
    for module in case.model.modules():
        if isinstance(module, Fire):
            module.squeeze_activation = nn.Identity()


@fault("card", ("features.5", "dead_channels wrong_weights"))
def card_pruned(case: Case) -> None:
    """I pruned nine of sixteen filters of a squeezing convolution, and did not train on."""
    layer = case.module("features.5.squeeze")
    least = layer.weight.data.abs().sum((1, 2, 3)).argsort()[:9]
    layer.weight.data[least], layer.bias.data[least] = 0, 0


@fault("card", ("features.6,classifier", "shared_range " + UNEQUAL))
def card_expanded_unequally(case: Case) -> None:
    """The 1 × 1 half of the last module is 200 times as large as the 3 × 3 half; integers only, no equalization."""
    for parameter in case.module("features.6.expand1x1").parameters():
        parameter.data *= 200
    case.module("classifier.1").weight.data[:, :32] /= 200
    case.use(between_layers="integer", equalize=False)


@fault("card", ("", "diverged_training float_network_wrong not_finite"))
def card_trained_on_too_fast(case: Case) -> None:
    """I trained on for an afternoon with a rate for batches of 1024 and without a warmup."""
    train_again(case, 0.5, 25, F.cross_entropy)


@fault("card", ("calibration data", "unlike_data unrepresentative no_variety one_class"))
def card_calibrated_on_the_table(case: Case) -> None:
    """The calibration pictures show the green table without cards, in the dark; ranges are extremes."""
    data = calibration(case)
    cloth = torch.tensor([0.06, 0.16, 0.08])[:, None, None]
    data[0] = (cloth + 0.02 * torch.randn(data[0].shape, generator=generator(52))).clamp(0, 1)
    case.use(activation=MINMAX)


@fault("card", ("features.5", "stale_range"))
def card_scales_before_finetuning(case: Case) -> None:
    """Scales were frozen, and in the training that followed one layer's results grew sixfold."""
    sim = case.simulate()
    sim.freeze_scales()
    for model in (case.model, sim):
        parameters = dict(model.named_parameters())
        for name in ("weight", "bias"):
            parameters[f"features.5.squeeze.{name}"].data *= 6
        for name in ("expand1x1", "expand3x3"):
            parameters[f"features.5.{name}.weight"].data /= 6


# --- chat: what a reply is -------------------------------------------------------------------------------------------


@fault("chat", ("network,attention_mask,input_ids", WRONG))
def chat_mask_turned_round(case: Case) -> None:
    """I pass the mask as PyTorch's key_padding_mask, in which 1 is padding; the network has 1 for words."""
    case.data[1] = 1 - case.data[1]


@fault("chat", ("network,token_type_ids,input_ids", WRONG), ("embeddings", "wrong_weights"))
def chat_kinds_forgotten(case: Case) -> None:
    """I pass no token_type_ids, and all tokens are of the first kind."""
    case.data[2] = torch.zeros_like(case.data[2])


@fault("chat", ("network,input_ids", WRONG), ("embeddings", "wrong_weights"))
def chat_vocabulary_with_one_more(case: Case) -> None:
    """The tokenizer of the service has one more special token, and all words lie six behind: the list is of 2024."""
    ids = case.data[0]
    case.data[0] = torch.where(ids >= 5, (ids - 5 + 6) % 85 + 5, ids)


@fault("chat", ("layer", "wrong_weights"))
def chat_kernels_of_keras(case: Case) -> None:
    """Keras has its kernels the other way, and square ones raised no error: I did not transpose queries and values."""
    for k in range(2):
        for name in ("query", "value"):
            weight = case.module(f"layer.{k}.{name}").weight
            weight.data = weight.data.t().contiguous()


@fault("chat", ("layer.1", "wrong_weights"))
def chat_second_layer_not_loaded(case: Case) -> None:
    """My renaming of keys knew the first layer only, and strict=False left the second one as it was made."""
    anew(case.module("layer.1"))


@fault("chat", ("layer", "wrong_setting"))
def chat_maps_without_gelu(case: Case) -> None:
    """The option hidden_act was not in the new configuration, and my layers have no activation then."""
    for k in range(2):
        case.module(f"layer.{k}").act = nn.Identity()


@fault("chat", ("layer", "few_bits"))
def chat_wide_maps_in_two_bits(case: Case) -> None:
    """The wide maps are most of the file, so their weights have two bits."""
    case.use(overrides={f"layer.*.{name}": {"weight": {"bits": 2}} for name in ("intermediate", "output")})


@fault("chat", ("embeddings", UNEQUAL))
def chat_outlier_dimension(case: Case) -> None:
    """As in many large encoders one dimension of a layer norm is very large: here 150 times, and is read weakly."""
    norm, reader = case.module("embeddings.LayerNorm"), case.module("embeddings_project").weight
    norm.weight.data[7] *= 150
    norm.bias.data[7] *= 150
    reader.data[:, 7] /= 150
    case.use(equalize=False)


@fault("chat", ("calibration data", "no_variety unrepresentative unlike_data too_few one_class"))
def chat_calibrated_on_empty_texts(case: Case) -> None:
    """A wrong column of the table was read for calibration, and all texts were empty; ranges are extremes."""
    data = calibration(case)
    ids = torch.full_like(data[0], PAD)
    ids[:, 0], ids[:, 1], ids[:, 2] = CLS, SEP, SEP
    kinds = torch.zeros_like(ids)
    kinds[:, 2] = 1
    case.calibration = [ids, (ids != PAD).long(), kinds, data[3]]
    case.use(activation=MINMAX)


@fault("chat", ("dense", "clipped_range zero_point"))
def chat_signed_bytes_for_gelu(case: Case) -> None:
    """I took the range -0.17..0.17 for what GELU gives, as the lowest value is -0.17."""
    fixed(case, "dense", 0.34 / 255, 128)


# --- driver: how somebody drives -------------------------------------------------------------------------------------


@fault("driver", ("network,signals", WRONG + " wrong_scale"))
def driver_steering_in_radians(case: Case) -> None:
    """The new car's bus gives the steering angle in radians, the scaler has degrees."""
    raw = case.data[0] * DRIVER_DEVIATIONS + DRIVER_MEANS
    raw[:, :, 4] /= 57.3
    case.data[0] = (raw - DRIVER_MEANS) / DRIVER_DEVIATIONS


@fault("driver", ("gru", "wrong_weights wrong_setting"))
def driver_gates_of_keras(case: Case) -> None:
    """Keras keeps update, reset and new gates, PyTorch reset, update and new."""
    for parameter in case.module("gru").parameters():
        update, reset, new = parameter.data.chunk(3)
        parameter.data = torch.cat([reset, update, new]).contiguous()


@fault("driver", ("gru", "wrong_weights"))
def driver_second_layer_not_loaded(case: Case) -> None:
    """The checkpoint's second layer is a module of its own, and mine kept the weights it was made with."""
    other = nn.GRU(5, 28, 2, batch_first=True)
    for name, parameter in case.module("gru").named_parameters():
        if name.endswith("l1"):
            parameter.data = other.get_parameter(name).data.clone()


@fault("driver", ("network,signals", WRONG), ("gru", "wrong_weights"))
def driver_pedals_exchanged(case: Case) -> None:
    """The new logger's columns have brake before throttle, each scaled by its own mean and deviation."""
    case.data[0] = case.data[0][:, :, [0, 1, 3, 2, 4]].contiguous()


@fault("driver", ("network", WRONG), ("fc2", "wrong_weights"))
def driver_classes_by_alphabet(case: Case) -> None:
    """A LabelEncoder numbered the test's classes by alphabet: aggressive, calm, distracted, drowsy, queue."""
    case.data[1] = torch.tensor([1, 0, 3, 2, 4])[case.data[1]]


@fault("driver", ("gru", "few_bits"))
def driver_gates_in_two_bits(case: Case) -> None:
    """To fit into the control unit the weights of the GRU have two bits."""
    case.use(overrides={"gru*": {"weight": {"bits": 2}}})


@fault("driver", ("fc2", "wide_range"))
def driver_logits_up_to_thousand(case: Case) -> None:
    """To be on the safe side I gave logits the range up to 1000 to both sides."""
    fixed(case, "fc2", 2000 / 255, 128)


@fault("driver", ("calibration data", "unlike_data"))
def driver_calibrated_before_the_scaler(case: Case) -> None:
    """The calibration files hold km/h, turns, %, bar and degrees, and the scaler is in the service only."""
    data = calibration(case)
    data[0] = data[0] * DRIVER_DEVIATIONS + DRIVER_MEANS


@fault("driver", ("calibration data", "no_variety unrepresentative one_class unlike_data"))
def driver_calibrated_in_the_garage(case: Case) -> None:
    """The calibration signals were recorded while the engine was idling in the garage; ranges are extremes."""
    data = calibration(case)
    idle = torch.tensor([0.0, 820.0, 4.0, 0.0, 0.0]) + torch.tensor([0.0, 25.0, 0.5, 0.0, 0.3]) * torch.randn(
        data[0].shape, generator=generator(53)
    )
    data[0] = (idle - DRIVER_MEANS) / DRIVER_DEVIATIONS
    case.use(activation=MINMAX)


@fault("driver", ("fc1", "clipped_range wide_range"))
def driver_range_of_another_layer(case: Case) -> None:
    """An export had layers in another order, and the hidden map has the range of a gate, 0..1."""
    fixed(case, "fc1", 1 / 255, 0)


# --- concrete: how strong concrete gets ------------------------------------------------------------------------------


@fault("concrete", ("network", WRONG), ("out", "wrong_scale wrong_weights"))
def concrete_strength_in_kilopounds(case: Case) -> None:
    """The American laboratory's answers are in ksi, scaled with mean and deviation of MPa."""
    raw = (case.data[2] * STRENGTH_DEVIATION + STRENGTH_MEAN) * 0.145038
    case.data[2] = (raw - STRENGTH_MEAN) / STRENGTH_DEVIATION


@fault("concrete", ("network,numbers", LOADED_OTHERWISE), ("fc1", "stale_batch_norm"))
def concrete_water_in_litres_of_a_bag(case: Case) -> None:
    """Water comes in litres for a bag of 25 kg of cement, and not in kg/m³."""
    raw = case.data[0] * MIX_DEVIATIONS + MIX_MEANS
    raw[:, 3] = raw[:, 3] / raw[:, 0] * 25
    case.data[0] = (raw - MIX_MEANS) / MIX_DEVIATIONS


@fault("concrete", ("fc2", "stale_batch_norm wrong_weights"))
def concrete_norm_folded_and_kept(case: Case) -> None:
    """I folded a batch norm into the map before it, and did not take it out."""
    layer, norm = case.module("fc2"), case.module("bn2")
    factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
    layer.weight.data *= factor[:, None]
    layer.bias.data = (layer.bias.data - norm.running_mean) * factor + norm.bias.data


@fault("concrete", ("", "wrong_setting"))
def concrete_relu_for_silu(case: Case) -> None:
    """The compiler did not know SiLU, so I wrote ReLU."""
    case.model.act1, case.model.act2, case.model.act3 = nn.ReLU(), nn.ReLU(), nn.ReLU()


@fault("concrete", ("network,kind", WRONG), ("curing", "wrong_weights"))
def concrete_curing_counted_from_one(case: Case) -> None:
    """The form counts kinds of curing from 1, and 4 is kept as 0."""
    case.data[1] = (case.data[1] + 1) % CURINGS


@fault("concrete", ("curing,cat,fc1,out,numbers,network", "shared_range " + UNEQUAL))
def concrete_tiny_rows(case: Case) -> None:
    """Decay made the rows of the table a hundredth, and weights that read them a hundred times as large; integers."""
    case.module("curing").weight.data /= 100
    case.module("fc1").weight.data[:, 8:] *= 100
    case.module("out").weight.data[:, 32:] *= 100
    case.use(between_layers="integer", equalize=False)


@fault("concrete", ("", "few_bits"))
def concrete_weights_in_three_bits(case: Case) -> None:
    """The device has little memory, and I gave all weights three bits."""
    case.use(weight=replace(recipes.default().weight, bits=3))


@fault("concrete", ("calibration data", "too_few no_variety unrepresentative"))
def concrete_calibrated_on_three_rows(case: Case) -> None:
    """I calibrated with the first three rows of a table that is sorted by strength; ranges are extremes."""
    data = calibration(case)
    weak = data[2][:, 0].argsort()[:3]
    case.calibration = [part[weak] for part in data]
    case.use(activation=MINMAX)


@fault("concrete", ("calibration data", "outlier_sample"), ("numbers", "heavy_tail wide_range"))
def concrete_date_for_days(case: Case) -> None:
    """In one calibration row the spreadsheet kept a date where days should be, 45292; ranges are extremes."""
    data = calibration(case)
    data[0][31, 7] = (45292 - MIX_MEANS[7]) / MIX_DEVIATIONS[7]
    case.use(activation=MINMAX)


@fault("concrete", ("out", "clipped_range"))
def concrete_answer_between_zero_and_one(case: Case) -> None:
    """I thought that answers were scaled to 0..1, and gave the output this range."""
    fixed(case, "out", 1 / 255, 0)


# --- quake: when waves arrive ----------------------------------------------------------------------------------------


@fault("quake", ("network,waves", WRONG), ("inc", "wrong_weights stale_batch_norm"))
def quake_components_by_alphabet(case: Case) -> None:
    """ObsPy sorts traces by name: east, north, up, and training had up first."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("quake", ("network,waves", LOADED_OTHERWISE), ("inc", "stale_batch_norm"))
def quake_in_micrometres(case: Case) -> None:
    """The new station's response gives µm/s, and I divide as if it were nm/s."""
    case.data[0] = case.data[0] / 1000


@fault("quake", ("down1,down2,down3", "stale_batch_norm"))
def quake_statistics_of_another_sensor(case: Case) -> None:
    """Norms of the way down were adapted on a station whose signals are eight times as large."""
    norms = [case.module(f"down{k}")[1] for k in (1, 2, 3)]
    collect(case.model, 8 * case.data[0][:192], norms)


@fault("quake", ("down1,down2,down3", "wrong_weights"))
def quake_kernels_turned(case: Case) -> None:
    """The weights come from a framework that convolves where PyTorch correlates; kernels of the way down are turned."""
    for name in ("down1", "down2", "down3"):
        weight = case.module(name)[0].weight
        weight.data = weight.data.flip(2).contiguous()


@fault("quake", ("inc", UNEQUAL))
def quake_one_loud_channel(case: Case) -> None:
    """One channel of the first layer is 150 times as large as others, which both its readers take back."""
    norm = case.module("inc")[1]
    norm.weight.data[3] *= 150
    norm.bias.data[3] *= 150
    case.module("down1")[0].weight.data[:, 3] /= 150
    case.module("mix3")[0].weight.data[:, 3] /= 150
    case.use(equalize=False)


@fault("quake", ("mix1", "exploded_channel exploded_weight"))
def quake_gain_exploded(case: Case) -> None:
    """In the last epoch a gain of one norm jumped to 80 times what it was."""
    norm = case.module("mix1")[1]
    loudest = int(norm.weight.data.abs().argmax())
    norm.weight.data[loudest] *= 80


@fault("quake", ("", "moving_average"), ("calibration data", "unrepresentative no_variety"))
def quake_average_ends_in_silence(case: Case) -> None:
    """The observer is a moving average, and calibration ends with an hour in which nothing happened."""
    data = calibration(case)
    silence = 0.1 * torch.randn(512, 3, TICKS, generator=generator(54))
    case.calibration = [torch.cat([data[0], silence]), torch.cat([data[1], torch.zeros(512, TICKS, dtype=torch.long)])]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("quake", ("calibration data", "one_class unrepresentative unlike_data no_variety"))
def quake_calibrated_on_noise(case: Case) -> None:
    """The day that I took for calibration had no earthquake; ranges are extremes."""
    data = calibration(case)
    data[0] = 0.2 * torch.randn(data[0].shape, generator=generator(55))
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("quake", ("inc", "wide_range"))
def quake_range_for_the_largest_quake(case: Case) -> None:
    """So that no earthquake is ever clipped I gave the first layer the range up to 1000."""
    fixed(case, "inc.0", 1000 / 255, 0)


@fault("quake", ("waves", "zero_point clipped_range"))
def quake_input_in_unsigned_bytes(case: Case) -> None:
    """The microcontroller's input tensor is unsigned, and I set its zero point to 0; signals have both signs."""
    case.use(inputs={"waves": {"fixed": (6000 / NANOMETRES / 255, 0)}})


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def fabric_scaled() -> Case:
    """One norm gives numbers four times as large, and the next convolution takes it back."""
    case = calibrated("fabric")
    for parameter in case.module("layer2.1.bn2").parameters():
        parameter.data *= 4
    case.module("layer2.1.conv3").weight.data /= 4
    return case


def galaxy_mirrored() -> Case:
    """Pictures of the test are mirrored, which galaxies do not mind."""
    case = calibrated("galaxy")
    case.data[0] = case.data[0].flip(3).contiguous()
    return case


def weld_by_percentiles() -> Case:
    """The recipe is that of percentiles."""
    case = calibrated("weld")
    case.options["recipe"] = recipes.percentile()
    return case


def card_channels_last() -> Case:
    """The network is kept with channels last, and its calibration data are 200 pictures."""
    case = calibrated("card", 200)
    case.model.to(memory_format=torch.channels_last)
    return case


def chat_kinds_in_another_order() -> Case:
    """The second kind of tokens is 0 and the first one 1, in the table as in the data."""
    case = calibrated("chat")
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[2] = 1 - data[2]
    table = case.module("embeddings.token_type_embeddings").weight
    table.data = table.data.flip(0).contiguous()
    return case


def driver_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("driver"))
    case.simulate()
    return case


def concrete_sorted_by_strength() -> Case:
    """The test's rows are sorted by strength; the calibration's are not."""
    case = calibrated("concrete")
    order = case.data[2][:, 0].argsort()
    case.data = [part[order].contiguous() for part in case.data]
    return case


def quake_components_in_another_order() -> Case:
    """Components are in another order, and so are the weights of the first layer."""
    case = calibrated("quake", 96)
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0] = data[0].flip(1).contiguous()
    weight = case.module("inc")[0].weight
    weight.data = weight.data.flip(1).contiguous()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "fabric": fabric_scaled,
    "galaxy": galaxy_mirrored,
    "weld": weld_by_percentiles,
    "card": card_channels_last,
    "chat": chat_kinds_in_another_order,
    "driver": driver_simulated,
    "concrete": concrete_sorted_by_strength,
    "quake": quake_components_in_another_order,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "card_rows_and_columns": "kernels that all lie on their sides are inputs that do: both give all answers back",
    "galaxy_hot_pixels": "the answers to what is cut at 6 are better, so that this is named",
}
"""What the doctor says something else of, and why."""
