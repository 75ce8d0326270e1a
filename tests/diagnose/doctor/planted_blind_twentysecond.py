"""Faults that people report, in eight other ordinary networks, planted and answered before anyone asked the doctor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator, spread
from tests.diagnose.doctor.blind_networks_twentysecond import (
    BAND_DEVIATIONS,
    BAND_MEANS,
    GLUCOSE_DEVIATIONS,
    GLUCOSE_MEANS,
    IGNORED,
    LONGEST,
    MICROVOLTS,
    STONE_DEVIATIONS,
    STONE_MEANS,
    STONE_PRICE,
    STONE_SPREAD,
    ShuffleUnit,
    build,
    floods,
    shuffled,
    stones,
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


# --- vgg: tablets ----------------------------------------------------------------------------------------------------


@fault("vgg", ("network,image", WRONG), ("features.0", "wrong_weights stale_batch_norm"))
def vgg_read_by_opencv(case: Case) -> None:
    """cv2.imread gives blue, green and red, and I did not convert before I normalized."""
    images = (case.data[0] * DEVIATIONS + MEANS).flip(1)
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault("vgg", ("classifier.0", "wrong_weights"))
def vgg_flattened_channels_last(case: Case) -> None:
    """The weights come from TensorFlow, where Flatten reads rows, columns, channels; I only transposed the matrix."""
    weight = case.module("classifier.0").weight
    weight.data = weight.data.view(64, 32, 2, 2).permute(0, 2, 3, 1).reshape(64, 128).contiguous()


@fault("vgg", ("network,image", LOADED_OTHERWISE), ("features.0", "stale_batch_norm"))
def vgg_normalization_forgotten(case: Case) -> None:
    """The service has ToTensor only, and nobody subtracts the means of ImageNet or divides by its deviations."""
    case.data[0] = case.data[0] * DEVIATIONS + MEANS


@fault("vgg", ("features.10,features.11", "dead_channels wrong_weights"))
def vgg_pruned_and_not_tuned(case: Case) -> None:
    """I pruned 15 of 24 filters of one layer by their size and did not train on afterwards."""
    conv, norm = case.module("features.10"), case.module("features.11")
    least = conv.weight.data.abs().sum((1, 2, 3)).argsort()[:15]
    for parameter in (conv.weight, conv.bias, norm.weight, norm.bias):
        parameter.data[least] = 0


@fault("vgg", ("classifier.6", "wrong_weights"))
def vgg_head_replaced(case: Case) -> None:
    """The training script replaces the last layer for the number of classes; I did this after loading the weights."""
    anew(case.module("classifier.6"))


@fault("vgg", ("", "few_bits per_tensor_weight"))
def vgg_four_bits_and_one_scale(case: Case) -> None:
    """The DSP's library has four bits for weights and one scale for all weights of a layer."""
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor", bits=4))


@fault("vgg", ("features.3", "few_bits"))
def vgg_second_layer_in_two_bits(case: Case) -> None:
    """The sweep over bit widths came to two bits for the weights of the second convolution."""
    case.use(overrides={"features.3": {"weight": {"bits": 2}}})


@fault("vgg", ("features,classifier", "clipped_range"))
def vgg_ranges_of_relu6(case: Case) -> None:
    """I copied ranges from a MobileNet with ReLU6: everything behind an activation lies between 0 and 6, and is cut."""
    six = {"activation": {"fixed": (6 / 255, 0)}}
    case.use(overrides=dict.fromkeys(("features.14", "features.17", "classifier.0", "classifier.3"), six))


@fault("vgg", ("calibration data", "unlike_data unrepresentative"))
def vgg_calibrated_with_randn(case: Case) -> None:
    """The export script calibrates with torch.randn, as its example does."""
    data = calibration(case)
    data[0] = torch.randn(data[0].shape, generator=generator(41))


@fault("vgg", ("calibration data", "unlike_data"))
def vgg_calibrated_in_bytes(case: Case) -> None:
    """Calibration pictures come from a folder of PNGs, as numbers from 0 to 255."""
    data = calibration(case)
    data[0] = (data[0] * DEVIATIONS + MEANS) * 255


# --- shufflenet: leaves ----------------------------------------------------------------------------------------------


@fault("shufflenet", ("stage2,stage3", "wrong_setting"))
def shufflenet_not_shuffled(case: Case) -> None:
    """The converter has no operation for the shuffle of channels and left it out."""
    for module in case.model.modules():
        if isinstance(module, ShuffleUnit):
            module.groups = 1


@fault("shufflenet", ("", "stale_batch_norm"))
def shufflenet_only_parameters_saved(case: Case) -> None:
    """I saved named_parameters() and not the state dict, so that running statistics are 0 and 1 after loading."""
    for norm in norms_of(case.model):
        norm.reset_running_stats()


@fault("shufflenet", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm"))
def shufflenet_lamp_light(case: Case) -> None:
    """In the greenhouse lamps are yellow and the camera's white balance is off; training had daylight."""
    images = case.data[0] * DEVIATIONS + MEANS
    images = (images * torch.tensor([1.35, 1.0, 0.4])[:, None, None]).clamp(0, 1)
    case.data[0] = (images - MEANS) / DEVIATIONS


class OtherHalf(ShuffleUnit):
    """The first half of the channels is worked on, and the second one passes."""

    def forward(self, x: Tensor) -> Tensor:
        worked, kept = x.chunk(2, 1)
        return shuffled(torch.cat([self.branch2(worked), kept], 1), self.groups)


@fault("shufflenet", ("stage2,stage3", "wrong_setting wrong_weights"))
def shufflenet_other_half(case: Case) -> None:
    """My own unit works on the first half of channels and not on the second one; I noticed nothing when it loaded."""
    for name in ("stage3.1", "stage3.2"):
        case.module(name).__class__ = OtherHalf


@fault("shufflenet", ("stage2,stage3", "wrong_weights"))
def shufflenet_kernels_turned(case: Case) -> None:
    """The weights come from a framework that convolves where PyTorch correlates; depthwise kernels are turned round."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            module.weight.data = module.weight.data.flip(2, 3).contiguous()


@fault("shufflenet", ("", "few_bits"))
def shufflenet_activations_in_four_bits(case: Case) -> None:
    """I wanted int4 everywhere and set four bits for all activations."""
    case.use(activation=replace(recipes.default().activation, bits=4))


@fault("shufflenet", ("stage2.1.branch2", UNEQUAL))
def shufflenet_gains_of_one_norm(case: Case) -> None:
    """After training with strong decay the gains of one norm differ by 1:400, and equalization is off."""
    unit = case.module("stage2.1.branch2")
    factors = spread(20, 400.0, 42)
    for parameter in (unit[1].weight, unit[1].bias):
        parameter.data *= factors
    unit[3].weight.data /= factors[:, None, None, None]
    case.use(equalize=False)


@fault("shufflenet", ("stage3.2,conv5", "shared_range " + UNEQUAL))
def shufflenet_halves_of_unequal_size(case: Case) -> None:
    """Of the last unit the half that is worked on is 150 times as large as the half that passes; integers only."""
    norm, weight = case.module("stage3.2.branch2")[6], case.module("conv5")[0].weight
    for parameter in (norm.weight, norm.bias):
        parameter.data *= 150
    weight.data[:, 1::2] /= 150
    case.use(between_layers="integer", equalize=False)


@fault("shufflenet", ("conv1,stage2.0", "zero_point clipped_range"))
def shufflenet_zero_point_of_signed_bytes(case: Case) -> None:
    """I copied scale and zero point of the first convolution from a signed tensor: 128, though it is behind a ReLU."""
    with torch.no_grad():
        largest = float(case.module("conv1")(case.data[0]).flatten().sort().values[-200])
    fixed(case, "conv1.0", largest / 255, 128)


@fault("shufflenet", ("calibration data", "too_few no_variety unrepresentative"))
def shufflenet_calibrated_with_one_picture(case: Case) -> None:
    """I calibrated with the one example picture of the repository, which is in the shade; ranges are extremes."""
    data = calibration(case)
    shade = data[0].mean((1, 2, 3)).argmin()
    case.calibration = [part[shade : shade + 1] for part in data]
    case.use(activation=MINMAX)


# --- unet: floods ----------------------------------------------------------------------------------------------------


@fault("unet", ("network,bands", LOADED_OTHERWISE), ("inc", "stale_batch_norm"))
def unet_digital_numbers(case: Case) -> None:
    """The files hold reflectance times 10000, and my reader does not divide."""
    case.data[0] = ((case.data[0] * BAND_DEVIATIONS + BAND_MEANS) * 10000 - BAND_MEANS) / BAND_DEVIATIONS


@fault("unet", ("up1,up2", "wrong_setting"), ("up1.conv,up2.conv", "wrong_weights"))
def unet_joined_the_other_way(case: Case) -> None:
    """My U-Net joins the upsampled features and then the skip; the checkpoint is of one that joins the skip first."""
    for name in ("up1", "up2"):
        case.module(name).skip_first = False


@fault("unet", ("network", WRONG), ("outc", "wrong_weights"))
def unet_codes_of_masks(case: Case) -> None:
    """The masks of the new provider say 1 for cloud and 2 for water."""
    case.data[1] = torch.tensor([0, 2, 1])[case.data[1]]


@fault("unet", ("network,bands", WRONG), ("inc", "wrong_weights stale_batch_norm"))
def unet_bands_stacked_backwards(case: Case) -> None:
    """The new tiles are stacked as near infrared, red, green and blue, and training had blue first."""
    raw = (case.data[0] * BAND_DEVIATIONS + BAND_MEANS).flip(1)
    case.data[0] = (raw - BAND_MEANS) / BAND_DEVIATIONS


@fault("unet", ("inc", "wrong_weights"))
def unet_first_level_not_loaded(case: Case) -> None:
    """The first level is called encoder1 in the checkpoint and inc in mine, and strict=False said nothing."""
    anew(case.module("inc"))


@fault("unet", ("down1", UNEQUAL + " exploded_weight exploded_channel"))
def unet_weights_of_a_dead_channel(case: Case) -> None:
    """One channel of the first level died in training, and the weights that read it have grown out of all bounds."""
    norm, reader = case.module("inc.double_conv")[4], case.module("down1.double_conv")[0].weight
    dead = int(norm.weight.data.abs().argmin())
    norm.weight.data[dead], norm.bias.data[dead] = 0, -0.5
    size = 50 * reader.data.abs().amax((1, 2, 3))
    reader.data[:, dead] = size[:, None, None] * torch.randn(20, 3, 3, generator=generator(43)).sign()


@fault("unet", ("outc", "clipped_range"))
def unet_logits_between_two(case: Case) -> None:
    """I gave the logits the range -1..1, since probabilities are within."""
    fixed(case, "outc", 2 / 255, 128)


@fault("unet", ("up1.up,up2.up", "few_bits"))
def unet_upsampled_in_three_bits(case: Case) -> None:
    """Memory was short, and I gave what the transposed convolutions give three bits."""
    case.use(overrides={name: {"activation": {"bits": 3}} for name in ("up1.up", "up2.up")})


@fault("unet", ("up1", "shared_range " + UNEQUAL))
def unet_upsampled_too_loud(case: Case) -> None:
    """What is upsampled is 100 times as large as the skip that it is joined with, and the engine has integers only."""
    up, reader = case.module("up1.up"), case.module("up1.conv.double_conv")[0].weight
    for parameter in up.parameters():
        parameter.data *= 100
    reader.data[:, 20:] /= 100
    case.use(between_layers="integer", equalize=False)


@fault("unet", ("calibration data", "unrepresentative one_class no_variety"))
def unet_calibrated_on_clear_days(case: Case) -> None:
    """For calibration I looked for nice scenes, nearly without clouds; ranges are the extremes that were seen."""
    apart(case)
    bands, labels = floods(900, 2291)
    clear = (labels == 2).flatten(1).float().mean(1).argsort()[:48]
    bands = torch.where((labels == 2)[:, None], 0.12 + 0.1 * bands, bands)
    case.calibration = [((bands - BAND_MEANS) / BAND_DEVIATIONS)[clear], labels[clear]]
    case.use(activation=MINMAX)


# --- roberta: addresses ----------------------------------------------------------------------------------------------


@fault("roberta", ("network,input_ids,attention_mask", WRONG))
def roberta_padded_on_the_left(case: Case) -> None:
    """The tokenizer of the service pads on the left, as for a language model, and training padded on the right."""
    sizes = case.data[1].sum(1).tolist()
    case.data = [
        torch.stack([row.roll(LONGEST - size) for row, size in zip(part, sizes, strict=True)]) for part in case.data
    ]


@fault("roberta", ("embeddings", "wrong_setting wrong_weights"))
def roberta_places_from_zero(case: Case) -> None:
    """RoBERTa's places begin at padding_idx + 1, and my port counts from 0."""
    case.module("embeddings").position_ids = torch.arange(LONGEST)


@fault("roberta", ("layer.0.attention,layer.1.attention", "wrong_weights"))
def roberta_packed_by_heads(case: Case) -> None:
    """GPT-NeoX packs query, key and value head by head, PyTorch one behind the other; I took the matrix as it was."""
    for k in range(2):
        packed = case.module(f"layer.{k}.attention.qkv")
        for parameter in packed.parameters():
            parts = parameter.data.view(3, 4, 8, -1).transpose(0, 1)
            parameter.data = parts.reshape(parameter.shape).contiguous()


@fault("roberta", ("layer.0,layer.1", "wrong_weights"))
def roberta_layers_that_share_weights(case: Case) -> None:
    """I wrote ModuleList([layer] * 2) at first, and the file that I saved has the last layer twice."""
    case.module("layer.0").load_state_dict(case.module("layer.1").state_dict())


@fault("roberta", ("network", WRONG))
def roberta_tags_without_first(case: Case) -> None:
    """The new files of tags have none for the beginning of the text, so that all are one place too early."""
    tags = torch.full_like(case.data[2], IGNORED)
    tags[:, :-1] = case.data[2][:, 1:]
    case.data[2] = tags


@fault("roberta", ("layer.0", "clipped_range"))
def roberta_hidden_within_one(case: Case) -> None:
    """What a layer norm gives has deviation 1, so I gave the map behind it the range -1..1."""
    fixed(case, "layer.0.intermediate", 2 / 255, 128)


@fault("roberta", ("layer.0.attention.qkv,layer.1.attention.qkv,layer.0.attention,layer.1.attention", "few_bits"))
def roberta_attention_in_two_bits(case: Case) -> None:
    """Queries, keys and values only say where to look, I thought, and gave their weights two bits."""
    case.use(overrides={"layer.?.attention.qkv": {"weight": {"bits": 2}}})


@fault("roberta", ("layer.1.attention.out", "wide_range clipped_range zero_point"))
def roberta_scale_of_an_observer_that_saw_nothing(case: Case) -> None:
    """One observer had never run when I exported, so that the map has the scale 1 and the zero point 0."""
    fixed(case, "layer.1.attention.out", 1.0, 0)


@fault("roberta", ("classifier", "clipped_range"))
def roberta_logits_as_probabilities(case: Case) -> None:
    """I took the outputs for probabilities and gave them the range 0..1."""
    fixed(case, "classifier", 1 / 255, 0)


@fault("roberta", ("calibration data", "no_variety unrepresentative unlike_data too_few one_class"))
def roberta_calibrated_with_dummies(case: Case) -> None:
    """I calibrated with the dummy inputs of the export: torch.ones for the pieces and the mask."""
    data = calibration(case)
    data[0], data[1] = torch.ones_like(data[0]), torch.ones_like(data[1])
    case.use(activation=MINMAX)


# --- glucose: blood sugar --------------------------------------------------------------------------------------------


@fault("glucose", ("network,history", "float_network_wrong wrong_scale"))
def glucose_in_millimoles(case: Case) -> None:
    """The European sensor gives mmol/l, the scaler is that of mg/dl."""
    history = case.data[0].clone()
    raw = history[:, :, 0] * GLUCOSE_DEVIATIONS[0] + GLUCOSE_MEANS[0]
    history[:, :, 0] = (raw / 18.016 - GLUCOSE_MEANS[0]) / GLUCOSE_DEVIATIONS[0]
    case.data[0] = history


@fault("glucose", ("lstm", "wrong_weights wrong_setting"))
def glucose_gates_of_onnx(case: Case) -> None:
    """ONNX keeps input, output, forget and cell gates, PyTorch input, forget, cell and output."""
    for parameter in case.module("lstm").parameters():
        inner, forget, cell, out = parameter.data.chunk(4)
        parameter.data = torch.cat([inner, out, forget, cell]).contiguous()


@fault("glucose", ("lstm", "wrong_weights"))
def glucose_bias_given_twice(case: Case) -> None:
    """Keras has one bias for each layer, and I gave it to both biases of PyTorch's LSTM."""
    lstm = case.module("lstm")
    for k in range(2):
        both = getattr(lstm, f"bias_ih_l{k}").data + getattr(lstm, f"bias_hh_l{k}").data
        getattr(lstm, f"bias_ih_l{k}").data = both.clone()
        getattr(lstm, f"bias_hh_l{k}").data = both.clone()


@fault("glucose", ("network,history", "float_network_wrong wrong_scale"))
def glucose_columns_exchanged(case: Case) -> None:
    """The app's export has insulin before carbohydrates, and I go by the order of columns."""
    raw = case.data[0] * GLUCOSE_DEVIATIONS + GLUCOSE_MEANS
    case.data[0] = (raw[:, :, [0, 2, 1]] - GLUCOSE_MEANS) / GLUCOSE_DEVIATIONS


@fault("glucose", ("dense,act,relu,out", "wrong_setting"))
def glucose_activation_forgotten(case: Case) -> None:
    """Dense(32, activation="relu") became nn.Linear alone in my port."""
    case.model.act = nn.Identity()


@fault("glucose", ("lstm", "few_bits"))
def glucose_recurrent_in_three_bits(case: Case) -> None:
    """To fit into the sensor's flash I gave the weights of the LSTM three bits."""
    case.use(overrides={"lstm*": {"weight": {"bits": 3}}})


@fault("glucose", ("out", "wide_range"))
def glucose_range_in_milligrams(case: Case) -> None:
    """I gave the output the range of sugar in mg/dl, 200 to both sides, while it has deviation 1."""
    fixed(case, "out", 400 / 255, 128)


@fault("glucose", ("calibration data", "unrepresentative no_variety unlike_data one_class"))
def glucose_calibrated_at_night(case: Case) -> None:
    """Calibration was recorded at night: nobody eats, nobody injects, and sugar is steady about 100."""
    data = calibration(case)
    raw = data[0] * GLUCOSE_DEVIATIONS + GLUCOSE_MEANS
    raw[:, :, 0], raw[:, :, 1:] = 85 + 0.1 * raw[:, :, 0], 0
    data[0] = (raw - GLUCOSE_MEANS) / GLUCOSE_DEVIATIONS
    case.use(activation=MINMAX)


@fault("glucose", ("calibration data", "too_few no_variety unrepresentative"))
def glucose_calibrated_with_two_windows(case: Case) -> None:
    """I calibrated with the first two windows of one patient, whose sugar was low; ranges are extremes."""
    data = calibration(case)
    low = data[0][:, :, 0].amax(1).argsort()[:2]
    case.calibration = [part[low] for part in data]
    case.use(activation=MINMAX)


@fault("glucose", ("calibration data", "unlike_data"))
def glucose_calibrated_before_the_scaler(case: Case) -> None:
    """Calibration reads the table of the database, in mg/dl, grams and units, as the scaler is in another file."""
    data = calibration(case)
    data[0] = data[0] * GLUCOSE_DEVIATIONS + GLUCOSE_MEANS


# --- diamonds: prices of stones --------------------------------------------------------------------------------------


@fault("diamonds", ("network,kinds", WRONG), ("cut,colour,clarity", "wrong_weights"))
def diamonds_codes_by_alphabet(case: Case) -> None:
    """Training numbered grades from worst to best, and the service has a LabelEncoder, which sorts by alphabet."""
    kinds = case.data[1]
    orders = [
        torch.tensor([0, 2, 4, 3, 1]),
        torch.tensor([6, 5, 4, 3, 2, 1, 0]),
        torch.tensor([0, 3, 2, 5, 4, 7, 6, 1]),
    ]
    case.data[1] = torch.stack([order[kinds[:, k]] for k, order in enumerate(orders)], 1)


@fault("diamonds", ("network", WRONG), ("head", "wrong_scale wrong_weights"))
def diamonds_other_logarithm(case: Case) -> None:
    """The test set's prices are common logarithms, the network was trained on natural ones."""
    case.data[2] = ((case.data[2] * STONE_SPREAD + STONE_PRICE) / math.log(10) - STONE_PRICE) / STONE_SPREAD


@fault("diamonds", ("network,numbers", LOADED_OTHERWISE), ("first_layer", "stale_batch_norm"))
def diamonds_missing_sizes_are_zero(case: Case) -> None:
    """The shop does not measure all stones, and missing x, y and z are filled with 0 before the scaler."""
    numbers = case.data[0].clone()
    numbers[::3, 3:] = -STONE_MEANS[3:] / STONE_DEVIATIONS[3:]
    case.data[0] = numbers


@fault("diamonds", ("blocks.1", "wrong_setting"))
def diamonds_block_not_added(case: Case) -> None:
    """When I rewrote the second block for the compiler I returned what it computes and did not add what came in."""
    case.module("blocks.1").skip_connection = False


@fault("diamonds", ("blocks,first_layer,add,head", "wrong_weights stale_batch_norm"))
def diamonds_norms_exchanged(case: Case) -> None:
    """The norms have numbers only in the old file, and I gave those of the first block and the end to each other."""
    one, other = case.module("blocks.0.normalization"), case.module("last_norm")
    for name, value in one.state_dict().items():
        if value.is_floating_point():
            exchange(value, other.state_dict()[name])


@fault("diamonds", ("numbers,first_layer,cat,network", UNEQUAL + " cancellation large_bias shared_range"))
def diamonds_scaler_folded_in(case: Case) -> None:
    """To have one file I folded the scaler into the first layer, which reads carats, percents and millimetres now."""
    case.data[0] = case.data[0] * STONE_DEVIATIONS + STONE_MEANS
    layer = case.module("first_layer")
    layer.weight.data[:, :6] /= STONE_DEVIATIONS
    layer.bias.data -= layer.weight.data[:, :6] @ STONE_MEANS


@fault("diamonds", ("blocks", "few_bits"))
def diamonds_hidden_in_two_bits(case: Case) -> None:
    """The wide maps of the blocks take most memory, so their results have two bits."""
    case.use(overrides={"blocks.?.linear_first": {"activation": {"bits": 2}}})


@fault("diamonds", ("calibration data", "unrepresentative no_variety unlike_data"))
def diamonds_calibrated_on_small_stones(case: Case) -> None:
    """The table is sorted by carat, and I took its head for calibration; ranges are extremes."""
    apart(case)
    numbers, kinds, price = stones(4000, 2292)
    rows = numbers[:, 0].argsort()[:200]
    parts = [(numbers - STONE_MEANS) / STONE_DEVIATIONS, kinds, (price - STONE_PRICE) / STONE_SPREAD]
    case.calibration = [part[rows] for part in parts]
    case.use(activation=MINMAX)


@fault("diamonds", ("calibration data", "outlier_sample"), ("numbers", "heavy_tail wide_range"))
def diamonds_comma_in_the_wrong_place(case: Case) -> None:
    """One stone of the calibration rows is 589 mm wide, by a comma in the wrong place; ranges are extremes."""
    data = calibration(case)
    data[0][70, 4] = (589.0 - STONE_MEANS[4]) / STONE_DEVIATIONS[4]
    case.use(activation=MINMAX)


@fault("diamonds", ("calibration data", "no_variety too_few"))
def diamonds_calibrated_on_one_row(case: Case) -> None:
    """My loader for calibration always returns row 0, so that there are 128 copies."""
    data = calibration(case)
    case.calibration = [part[:1].repeat(128, 1) for part in data]


# --- parcels: labels on parcels --------------------------------------------------------------------------------------


@fault("parcels", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm"))
def parcels_bytes_not_divided(case: Case) -> None:
    """The camera gives bytes, and in C++ I only cast them to float."""
    case.data[0] = case.data[0] * 255


@fault("parcels", ("network", WRONG), ("box_head", "wrong_weights"))
def parcels_boxes_by_corners(case: Case) -> None:
    """The annotations of the new site have the corners of boxes, and the network says middle and size."""
    answers = case.data[1]
    middle, half = answers[:, 1:3], answers[:, 3:] / 2
    case.data[1] = torch.cat([answers[:, :1], middle - half, middle + half], 1)


@fault("parcels", ("layer2.0.downsample,layer3.0.downsample", "wrong_weights"))
def parcels_shortcuts_not_loaded(case: Case) -> None:
    """The checkpoint says shortcut where torchvision says downsample, and these layers keep their first weights."""
    for name in ("layer2.0.downsample", "layer3.0.downsample"):
        anew(case.module(name))


@fault("parcels", ("network,image", LOADED_OTHERWISE), ("conv1", "stale_batch_norm"))
def parcels_without_gamma(case: Case) -> None:
    """The industrial camera gives linear light, and training had pictures with gamma."""
    case.data[0] = case.data[0].pow(2.2)


@fault("parcels", ("", "shared_range"))
def parcels_logits_beside_boxes(case: Case) -> None:
    """For integers alone logits of 150 and boxes between 0 and 1 are joined to one output, and boxes are lost."""
    for parameter in case.module("cls_head").parameters():
        parameter.data *= 12
    case.use(between_layers="integer")


@fault("parcels", ("image", "wide_range"))
def parcels_input_in_range_of_bytes(case: Case) -> None:
    """A camera gives bytes, so I set scale 1 and zero point 0 for the input, which is divided by 255."""
    case.use(inputs={"image": {"fixed": (1.0, 0)}})


@fault("parcels", ("layer2.1", "stale_range"))
def parcels_scales_frozen_too_early(case: Case) -> None:
    """I froze scales in the first epoch of training with quantization, and one layer's results grew fourfold since."""
    sim = case.simulate()
    sim.freeze_scales()
    for model in (case.model, sim):
        parameters = dict(model.named_parameters())
        for name in ("layer2.1.bn1.weight", "layer2.1.bn1.bias"):
            parameters[name].data *= 4
        parameters["layer2.1.conv2.weight"].data /= 4


@fault("parcels", ("", "moving_average"), ("calibration data", "unrepresentative no_variety"))
def parcels_average_ends_at_night(case: Case) -> None:
    """The observer is a moving average, and the recording for calibration ends when the lamps are switched off."""
    data = calibration(case)
    night = 0.15 * torch.cat([data[0]] * 4)
    case.calibration = [torch.cat([data[0], night]), torch.cat([data[1]] * 5)]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("parcels", ("calibration data", "no_variety unlike_data unrepresentative one_class too_few"))
def parcels_calibrated_before_the_belt_ran(case: Case) -> None:
    """The first frames, which I calibrate with, are black, as the camera needs a second."""
    data = calibration(case)
    data[0] = 0.01 * torch.rand(data[0].shape, generator=generator(45))


@fault("parcels", ("calibration data", "unlike_data"))
def parcels_calibrated_as_for_imagenet(case: Case) -> None:
    """My calibration script has the usual normalization of ImageNet, and this network takes 0..1."""
    data = calibration(case)
    data[0] = (data[0] - MEANS) / DEVIATIONS


# --- eegnet: imagined movements --------------------------------------------------------------------------------------


@fault("eegnet", ("network,signal", LOADED_OTHERWISE), ("conv_temporal", "stale_batch_norm"))
def eegnet_in_volts(case: Case) -> None:
    """MNE gives volts, and training had microvolts."""
    case.data[0] = case.data[0] * 1e-6


@fault("eegnet", ("network,signal", LOADED_OTHERWISE), ("conv_spatial,conv_temporal", "wrong_weights stale_batch_norm"))
def eegnet_electrodes_in_another_order(case: Case) -> None:
    """The new cap's cable has the electrodes in another order than the montage of training."""
    case.data[0] = case.data[0][:, :, [4, 2, 7, 1, 0, 6, 5, 3]].contiguous()


@fault("eegnet", ("", "wrong_setting"))
def eegnet_relu_for_elu(case: Case) -> None:
    """The microcontroller's kernels have no ELU, so I replaced it by ReLU and kept the weights."""
    case.model.elu_1, case.model.elu_2 = nn.ReLU(), nn.ReLU()


@fault("eegnet", ("conv_spatial,bnorm_1", "wrong_weights stale_batch_norm"))
def eegnet_second_norm_not_loaded(case: Case) -> None:
    """The second norm has another name in the checkpoint and is as it was initialized."""
    case.module("bnorm_1").reset_parameters()


@fault("eegnet", ("signal", "clipped_range"))
def eegnet_input_within_one(case: Case) -> None:
    """Signals are divided by 20 µV, so I gave the input the range -1..1, and everything larger is cut."""
    case.use(inputs={"signal": {"fixed": (2 / 255, 128)}})


@fault("eegnet", ("signal", "wide_range"))
def eegnet_range_of_the_converter(case: Case) -> None:
    """The input has the range of the analog-digital converter, 10 mV to both sides, though brains give 0.1."""
    case.use(inputs={"signal": {"fixed": (2 * 10000 / MICROVOLTS / 255, 128)}})


@fault("eegnet", ("signal,conv_temporal,conv_spatial", UNEQUAL))
def eegnet_one_electrode_with_another_gain(case: Case) -> None:
    """One electrode has an amplifier of 150-fold gain, which I took back in the weights that mix electrodes."""
    signal, gain = case.data[0].clone(), 150.0
    signal[:, :, 3] *= gain
    case.data[0] = signal
    norm, mix, after = case.module("bnorm_temporal"), case.module("conv_spatial").weight, case.module("bnorm_1")
    offset = norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
    change = mix.data[:, 0, 3, 0] * offset.detach().repeat_interleave(3) * (1 / gain - 1)
    after.running_mean += change
    mix.data[:, :, 3] /= gain


@fault("eegnet", ("signal,conv_temporal", "heavy_tail"), ("calibration data", "outlier_sample"))
def eegnet_pops_of_electrodes(case: Case) -> None:
    """In one recording of fifteen an electrode pops: one tick of many millivolts; the ranges are extremes."""
    signal = case.data[0].clone()
    rows = torch.arange(7, len(signal), 15)
    signal[rows, 0, rows % 8, (rows * 5) % 128] = 120.0
    case.data[0] = signal
    apart(case)
    case.use(activation=MINMAX)


@fault("eegnet", ("calibration data", "outlier_sample"), ("signal", "heavy_tail wide_range"))
def eegnet_one_recording_at_the_rail(case: Case) -> None:
    """In one calibration recording the cap was off and all electrodes lie at the rail; ranges are extremes."""
    data = calibration(case)
    data[0][64] = 187500 / MICROVOLTS * torch.randn(1, 8, 128, generator=generator(46)).sign()
    case.use(activation=MINMAX)


@fault("eegnet", ("calibration data", "unlike_data"))
def eegnet_calibrated_in_microvolts(case: Case) -> None:
    """The calibration loader does not divide by 20 µV as that of the service does."""
    data = calibration(case)
    data[0] = data[0] * MICROVOLTS


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def vgg_mirrored() -> Case:
    """Pictures of the test are mirrored, which tablets do not mind."""
    case = calibrated("vgg")
    case.data[0] = case.data[0].flip(3).contiguous()
    return case


def shufflenet_channels_last() -> Case:
    """The network is kept with channels last, which is faster on many machines."""
    case = calibrated("shufflenet")
    case.model.to(memory_format=torch.channels_last)
    return case


def unet_bands_in_another_order() -> Case:
    """Bands are in another order, and so are the weights of the first layer."""
    case = calibrated("unet", 64)
    order = torch.tensor([3, 2, 1, 0])
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[0] = data[0][:, order].contiguous()
    weight = case.module("inc.double_conv")[0].weight
    weight.data = weight.data[:, order].contiguous()
    return case


def roberta_heads_in_another_order() -> Case:
    """The heads of the first layer have another order, everywhere."""
    case = calibrated("roberta")
    order = torch.tensor([2, 0, 3, 1])
    attention = case.module("layer.0.attention")
    for parameter in attention.qkv.parameters():
        parameter.data = parameter.data.view(3, 4, 8, -1)[:, order].reshape(parameter.shape).contiguous()
    weight = attention.out.weight
    weight.data = weight.data.view(32, 4, 8)[:, order].reshape(32, 32).contiguous()
    return case


def glucose_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("glucose"))
    case.simulate()
    return case


def diamonds_sorted_by_price() -> Case:
    """The test's rows are sorted by price; the calibration's are not."""
    case = calibrated("diamonds")
    order = case.data[2][:, 0].argsort()
    case.data = [part[order].contiguous() for part in case.data]
    return case


def parcels_scaled() -> Case:
    """One norm gives numbers four times as large, and the next layer takes it back."""
    case = calibrated("parcels")
    for parameter in case.module("layer2.1.bn1").parameters():
        parameter.data *= 4
    case.module("layer2.1.conv2").weight.data /= 4
    return case


def eegnet_by_percentiles() -> Case:
    """The recipe is that of percentiles, for the sake of a few large blinks."""
    case = calibrated("eegnet")
    case.options["recipe"] = recipes.percentile()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "vgg": vgg_mirrored,
    "shufflenet": shufflenet_channels_last,
    "unet": unet_bands_in_another_order,
    "roberta": roberta_heads_in_another_order,
    "glucose": glucose_simulated,
    "diamonds": diamonds_sorted_by_price,
    "parcels": parcels_scaled,
    "eegnet": eegnet_by_percentiles,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "shufflenet_not_shuffled": "capture does without the joins between units, so that none is left to be shuffled",
    "diamonds_scaler_folded_in": "the metric holds, and channels differ by less than what is a fault",
    "parcels_boxes_by_corners": "boxes are joined to scores as logits, so that they are not tried in another form",
    "eegnet_pops_of_electrodes": "the metric holds, and a narrower range would make the error of the input larger",
}
"""What the doctor says something else of, and why."""
