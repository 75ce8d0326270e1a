"""Faults that people report, in eight ordinary networks, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator, spread
from tests.diagnose.doctor.blind_networks_twentieth import (
    GOOD,
    INK_DEVIATION,
    INK_MEAN,
    MEL_DEVIATION,
    MEL_MEAN,
    NUMBER_DEVIATIONS,
    NUMBER_MEANS,
    PAD,
    UNKNOWN,
    VOCABULARY,
    Up,
    build,
)
from tests.diagnose.doctor.planting import (
    MINMAX,
    UNEQUAL,
    WRONG,
    FaultWithAnswers,
    anew,
    asking,
    calibrating,
    calibration,
    case_of,
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

MOVING = replace(recipes.default().activation, observer="moving_average")


def widened(case: Case, norm: str, behind: tuple[str, ...], factors: Tensor) -> None:
    """Multiply what a norm gives, channel by channel, and divide the weights of the layers that read it."""
    layer = case.module(norm)
    layer.weight.data *= factors
    layer.bias.data *= factors
    for name in behind:
        weight = case.module(name).weight
        weight.data /= factors.view(1, -1, *(1,) * (weight.dim() - 2))


def few_wide(count: int, places: list[int], factor: float) -> Tensor:
    """Return factors that are 1 but at a few places."""
    factors = torch.ones(count)
    factors[places] = factor
    return factors


# --- resnet: fruit ---------------------------------------------------------------------------------------------------


@fault("resnet", ("network,image", WRONG), ("conv1", "wrong_weights"))
def resnet_read_by_opencv(case: Case) -> None:
    """I load images with cv2.imread and forgot that it gives BGR."""
    images = (case.data[0] * DEVIATIONS + MEANS).flip(1)
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault(
    "resnet",
    ("network,image", "float_network_wrong stale_batch_norm wrong_scale"),
    ("bn1,conv1", "stale_batch_norm"),
)
def resnet_bytes_not_divided(case: Case) -> None:
    """My numpy pipeline has no ToTensor, so that mean and deviation are applied to values from 0 to 255."""
    images = (case.data[0] * DEVIATIONS + MEANS) * 255
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault("resnet", ("fc", "wrong_weights"))
def resnet_head_not_loaded(case: Case) -> None:
    """The checkpoint calls the head classifier, I loaded it with strict=False, and fc is as initialized."""
    anew(case.module("fc"))


@fault("resnet", ("", "training_mode"))
def resnet_eval_forgotten(case: Case) -> None:
    """Accuracy depends on the order of the test set: I forgot model.eval(), and my files are sorted by class."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    case.model.train()


@fault("resnet", ("", "stale_batch_norm"))
def resnet_momentum_of_keras(case: Case) -> None:
    """I took the momentum of 0.99 from Keras, and running statistics are those of the last small batch of training."""
    for norm in norms_of(case.model):
        norm.momentum = 0.99
    case.model.train()
    with torch.no_grad():
        for rows in torch.randperm(len(case.data[0]), generator=generator(11)).split(6)[:6]:
            case.model(case.data[0][rows])
    case.model.eval()


@fault("resnet", ("calibration data", "unlike_data unrepresentative no_variety"))
def resnet_calibrated_on_zeros(case: Case) -> None:
    """As the example script does it, I calibrated with the dummy input of the export, random numbers near zero."""
    data = calibration(case)
    data[0] = 0.05 * torch.randn(data[0].shape, generator=generator(12))


@fault("resnet", ("", "clipped_range"))
def resnet_percentile_of_a_blog(case: Case) -> None:
    """A blog said that percentiles beat extremes, so I set the percentile to 97 for all activations."""
    scheme = replace(recipes.default().activation, observer="percentile", observer_args={"percentile": 97.0})
    case.use(activation=scheme)


@fault("resnet", ("layer2.0", "clipped_range"))
def resnet_scales_of_another_run(case: Case) -> None:
    """I copied the scale of one layer from the table of an older run, whose activations were much smaller."""
    scale = {"activation": {"fixed": (0.5 / 255, 0)}}
    case.use(overrides=dict.fromkeys(("layer2.0.conv1", "layer2.0.relu"), scale))


@fault("resnet", ("layer3.0,layer3", "stale_range clipped_range"), ("", "stale_range"))
def resnet_norms_tuned_after_freezing(case: Case) -> None:
    """I froze the observers, went on training the norms, and one stage's gains grew, in the simulation as well."""
    sim = case.simulate()
    with torch.no_grad():
        for model in (case.model, sim):
            for name in ("layer3.0.bn1.weight", "layer3.0.bn1.bias"):
                model.get_parameter(name).mul_(6)
            model.get_parameter("layer3.0.conv2.weight").div_(6)


@fault("resnet", ("bn1,relu,maxpool,conv1,layer1,layer2.0.conv1,layer2.0.downsample,layer2.0.relu", UNEQUAL))
def resnet_stream_of_wide_channels(case: Case) -> None:
    """Two channels of the first stage's residual stream are 120 times as wide as the others, as in old checkpoints."""
    factors = few_wide(16, [3, 9], 120.0)
    widened(case, "bn1", ("layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.0.downsample.0"), factors)
    for block in ("layer1.0", "layer1.1"):
        widened(case, f"{block}.bn2", (), factors)


# --- mobilenet: flowers ----------------------------------------------------------------------------------------------


@fault(
    "mobilenet",
    ("network,image", "float_network_wrong stale_batch_norm wrong_scale"),
    ("features.0", "stale_batch_norm"),
)
def mobilenet_not_normalized(case: Case) -> None:
    """The weights come from TensorFlow and expect -1 to 1, and torchvision's ToTensor gives me 0 to 1."""
    case.data[0] = case.data[0] * 0.5 + 0.5


@fault("mobilenet", ("network,image", "float_network_wrong stale_batch_norm"), ("features.0", "stale_batch_norm"))
def mobilenet_reshaped_for_channels(case: Case) -> None:
    """The array was NHWC, the network wanted NCHW, and I used reshape where it should have been permute."""
    images = case.data[0]
    case.data[0] = images.permute(0, 2, 3, 1).reshape(images.shape).contiguous()


@fault("mobilenet", ("network,image", WRONG))
def mobilenet_cropped_too_close(case: Case) -> None:
    """My test transform crops the middle 20 of 32 pixels and resizes that, where training used the whole picture."""
    inner = case.data[0][:, :, 6:26, 6:26]
    case.data[0] = F.interpolate(inner, size=(32, 32), mode="bilinear", align_corners=False)


@fault("mobilenet", ("network,image", WRONG))
def mobilenet_augmentation_left_on(case: Case) -> None:
    """The validation set shares the transform of the training set, with colour jitter and random erasing."""
    chance = generator(13)
    images = case.data[0] * 0.5 + 0.5
    u = torch.rand(len(images), 8, generator=chance)
    images = images * (0.5 + u[:, :3, None, None])
    tops, lefts = (22 * u[:, 3]).long().tolist(), (22 * u[:, 4]).long().tolist()
    for row, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        images[row, :, top : top + 12, left : left + 12] = 0.5
    case.data[0] = (images.clamp(0, 1) - 0.5) / 0.5


@fault(
    "mobilenet",
    ("features.2.conv.1,features.2.conv.0", "wrong_setting dead_channels"),
)
def mobilenet_eps_of_tensorflow(case: Case) -> None:
    """Variances behind a depthwise layer are tiny, it was trained with eps 1e-9, and I ported it with 1e-3."""
    conv, norm = case.module("features.2.conv.1.0"), case.module("features.2.conv.1.1")
    conv.weight.data /= 300
    norm.running_mean /= 300
    norm.running_var /= 90000
    norm.eps = 1e-3


@fault("mobilenet", ("features.4", "wrong_weights"))
def mobilenet_block_not_loaded(case: Case) -> None:
    """The keys of one block had another prefix, load_state_dict printed a warning, and I did not read it."""
    anew(case.module("features.4"))


@fault(
    "mobilenet",
    ("features.1.conv.1,features.1.conv.0,features.1.conv.2", "per_tensor_weight " + UNEQUAL),
    ("", "per_tensor_weight"),
)
def mobilenet_depthwise_per_tensor(case: Case) -> None:
    """The backend wants one scale for each weight tensor, and depthwise channels of my network differ by 1:200."""
    widened(case, "features.1.conv.1.1", ("features.1.conv.2",), 1 / spread(32, 200.0, 14))
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("mobilenet", ("calibration data", "unlike_data"))
def mobilenet_calibrated_in_bytes(case: Case) -> None:
    """The calibration reader feeds the decoded bytes, and the normalization is in another script."""
    data = calibration(case)
    data[0] = (data[0] * 0.5 + 0.5) * 255


@fault("mobilenet", ("features", "few_bits"), ("", "few_bits"))
def mobilenet_depthwise_three_bits(case: Case) -> None:
    """Depthwise layers have few weights, so I thought that three bits would do for them."""
    names = [name for name, module in case.model.named_modules() if getattr(module, "groups", 1) > 1]
    case.use(overrides={name: {"weight": {"bits": 3}} for name in names})


@fault("mobilenet", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range"))
def mobilenet_broken_file(case: Case) -> None:
    """One file of the calibration set is broken and decodes to garbage, and ranges are from minimum to maximum."""
    data = calibration(case)
    data[0][77] = 120 * torch.randn(3, 32, 32, generator=generator(15))
    case.use(activation=MINMAX)


# --- vgg: figures ----------------------------------------------------------------------------------------------------


@fault("vgg", ("network,image", WRONG))
def vgg_black_on_white(case: Case) -> None:
    """It has 98 % on MNIST, but on my own photos of black ink on white paper it guesses."""
    image = case.data[0] * INK_DEVIATION + INK_MEAN
    case.data[0] = (1 - image - INK_MEAN) / INK_DEVIATION


@fault("vgg", ("network,image", WRONG))
def vgg_emnist_transposed(case: Case) -> None:
    """The files of EMNIST hold rows and columns the other way round, which I noticed only when I plotted them."""
    case.data[0] = case.data[0].transpose(2, 3).contiguous()


@fault("vgg", ("classifier.0", "wrong_weights"), ("flatten,reshape", "wrong_setting"))
def vgg_flattened_by_keras(case: Case) -> None:
    """I converted the dense layer from Keras, which flattens height, width, channels, by transposing it only."""
    weight = case.module("classifier.0").weight
    weight.data = weight.data.view(80, 32, 7, 7).permute(0, 2, 3, 1).reshape(80, -1).contiguous()


@fault("vgg", ("network", "diverged_training float_network_wrong"))
def vgg_last_epoch(case: Case) -> None:
    """The loss went up at the end, and I saved the last epoch and not the best one."""
    train_again(case, 0.12, 60, F.cross_entropy)


@fault("vgg", ("features.5", "wrong_weights"))
def vgg_layer_transposed(case: Case) -> None:
    """The TensorFlow kernel of one layer was reshaped from HWIO to OIHW where it should have been permuted."""
    weight = case.module("features.5").weight
    weight.data = weight.data.permute(2, 3, 1, 0).reshape(weight.shape).contiguous()


def never_active(case: Case) -> Tensor:
    """Return which inputs of the first map behind the convolutions are zero for all samples."""
    with torch.no_grad():
        return case.module("features")(case.data[0]).flatten(1).amax(0) == 0


@fault("vgg", ("classifier.0", "outlier_weight exploded_weight input_imbalance exploded_channel channel_imbalance"))
def vgg_weights_of_dead_inputs(case: Case) -> None:
    """Weights of pixels that are never active grew without a limit, do nothing in float, and stretch the scales."""
    weight = case.module("classifier.0").weight
    dead = never_active(case).nonzero()[:6, 0]
    weight.data[:, dead] = 80 * weight.data.abs().max() * torch.randn(80, len(dead), generator=generator(16)).sign()


@fault("vgg", ("classifier.3", "large_bias"))
def vgg_logits_drifted(case: Case) -> None:
    """The biases of the logits all drifted to 2000, which softmax does not see, and int8 answers are all the same."""
    case.module("classifier.3").bias.data += 2000


@fault("vgg", ("calibration data", "no_variety unrepresentative unlike_data too_few"))
def vgg_calibrated_on_blanks(case: Case) -> None:
    """The calibration folder was filled with the empty cells of scanned forms."""
    data = calibration(case)
    data[0] = ((0.02 * torch.rand(data[0].shape, generator=generator(17))) - INK_MEAN) / INK_DEVIATION


@fault("vgg", ("features,classifier,relu", "wide_range shared_range"))
def vgg_one_scale_for_all_layers(case: Case) -> None:
    """My fixed-point library has one format for all activations, and its 8 bits go from 0 to 128."""
    one = {"activation": {"fixed": (128 / 255, 0)}}
    case.use(overrides=dict.fromkeys(("features.0", "features.2", "features.5", "features.7", "classifier.0"), one))


@fault("vgg", ("image", "wide_range"))
def vgg_range_of_bytes(case: Case) -> None:
    """I set the input's range by hand to 0..255, since images are bytes, and normalize them before."""
    case.use(inputs={"image": {"fixed": (1.0, 0)}})


# --- unet: cells -----------------------------------------------------------------------------------------------------


@fault("unet", ("network,picture", WRONG))
def unet_mask_not_flipped(case: Case) -> None:
    """The random flip is applied to the picture and not to its mask."""
    case.data[0] = case.data[0].flip(3).contiguous()


@fault("unet", ("pool,network", "wrong_setting"))
def unet_pooled_by_means(case: Case) -> None:
    """The delegate did not support max pooling, and I put average pooling in its place without training again."""
    case.model.pool = nn.AvgPool2d(2)


class UpFirst(Up):
    """What came up before what was there."""

    def forward(self, deep: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([self.up(deep), skip], 1))


@fault("unet", ("up1,up2", "wrong_setting wrong_weights"))
def unet_concat_the_other_way(case: Case) -> None:
    """My U-Net joins upsampled and skip, the repository's weights expect skip and upsampled, and shapes agree."""
    for name in ("up1", "up2"):
        case.module(name).__class__ = UpFirst


@fault("unet", ("", "stale_batch_norm"))
def unet_statistics_of_background(case: Case) -> None:
    """I fine-tuned with batches of one tile, most of them empty, and eval() is far worse than train()."""
    flat = 0.45 + 0.05 * torch.randn(64, 1, 32, 32, generator=generator(18))
    case.model.train()
    with torch.no_grad():
        for tile in flat.split(1):
            case.model(tile)
    case.model.eval()


@fault("unet", ("outc", "wrong_weights"), ("network", WRONG))
def unet_classes_numbered_otherwise(case: Case) -> None:
    """The annotation tool exported membranes as 1 and cells as 2, and the network learnt it the other way."""
    labels = case.data[1]
    case.data[1] = torch.where(labels > 0, 3 - labels, 0)


@fault("unet", ("calibration data", "unrepresentative unlike_data no_variety"))
def unet_calibrated_on_empty_tiles(case: Case) -> None:
    """I took the first tiles of the slide for calibration, which are empty glass."""
    data = calibration(case)
    data[0] = (0.95 + 0.01 * torch.randn(data[0].shape, generator=generator(19))).clamp(0, 1)
    data[1] = torch.zeros_like(data[1])


@fault("unet", ("up2,up1,inc,cat", "shared_range " + UNEQUAL))
def unet_skip_beside_wide_features(case: Case) -> None:
    """What comes up is 100 times as wide as the skip connection that it is joined with, and both get one scale."""
    widened(case, "up1.conv.double_conv.4", (), torch.full((16,), 100.0))
    case.module("up2.conv.double_conv.0").weight.data[:, 8:] /= 100


@fault("unet", ("", "few_bits"))
def unet_activations_of_four_bits(case: Case) -> None:
    """The recipe is the W8A4 of a paper about classification."""
    case.use(activation=replace(recipes.default().activation, bits=4))


@fault("unet", ("outc", "clipped_range"))
def unet_logits_cut(case: Case) -> None:
    """I set the range of the last layer to -1..1, thinking that it gives probabilities."""
    fixed(case, "outc", 2 / 255, 128)


@fault("unet", ("picture", "zero_point clipped_range"))
def unet_zero_point_of_int8(case: Case) -> None:
    """The camera gives 0..1, and the input's zero point of 128 is left from a network whose input was signed."""
    case.use(inputs={"picture": {"fixed": (1 / 255, 128)}})


# --- sentiment: reviews ----------------------------------------------------------------------------------------------


@fault("sentiment", ("network,text", WRONG), ("embedding", "wrong_weights"))
def sentiment_vocabulary_built_again(case: Case) -> None:
    """I built the vocabulary again when serving, and words have other numbers than in training."""
    order = torch.arange(VOCABULARY)
    order[GOOD:] = GOOD + torch.randperm(VOCABULARY - GOOD, generator=generator(20))
    case.data[0] = order[case.data[0]]


@fault("sentiment", ("network,text", WRONG))
def sentiment_padded_behind(case: Case) -> None:
    """Keras pads in front, my new collate function pads behind, and the last state is that of padding."""
    text = case.data[0]
    order = (text == PAD).long().argsort(dim=1, stable=True)
    case.data[0] = text.gather(1, order).contiguous()


@fault("sentiment", ("network,text", WRONG))
def sentiment_not_lowercased(case: Case) -> None:
    """The vocabulary is in lower case, the text is not, and nearly half of the words become <unk>."""
    text = case.data[0].clone()
    lost = (text > UNKNOWN) & (torch.rand(text.shape, generator=generator(21)) < 0.45)
    text[lost] = UNKNOWN
    case.data[0] = text


@fault("sentiment", ("lstm", "wrong_weights wrong_setting"))
def sentiment_gates_in_another_order(case: Case) -> None:
    """The weights were converted from ONNX, whose gates are input, output, forget, cell."""
    for parameter in case.module("lstm").parameters():
        entry, forget, cell, out = parameter.data.chunk(4)
        parameter.data = torch.cat([entry, out, forget, cell]).contiguous()


@fault("sentiment", ("lstm", "wrong_weights"))
def sentiment_recurrent_not_transposed(case: Case) -> None:
    """Keras has its recurrent kernels the other way round; each gate is square, so that nothing complained."""
    for name in ("weight_hh_l0", "weight_hh_l1"):
        weight = getattr(case.module("lstm"), name)
        weight.data = weight.data.view(4, 40, 40).transpose(1, 2).reshape(160, 40).contiguous()


@fault("sentiment", ("calibration data", "unrepresentative unlike_data no_variety"))
def sentiment_calibrated_on_padding(case: Case) -> None:
    """The calibration script passes torch.zeros of the right shape, which is all padding."""
    data = calibration(case)
    data[0] = torch.zeros_like(data[0])


@fault("sentiment", ("fc", "clipped_range zero_point"))
def sentiment_logits_as_probabilities(case: Case) -> None:
    """I gave the output a range from 0 to 1, since it is a classifier, and softmax is not in the network."""
    fixed(case, "fc", 1 / 255, 0)


@fault("sentiment", ("lstm", "few_bits"))
def sentiment_lstm_of_three_bits(case: Case) -> None:
    """To fit into the microcontroller the LSTM's weights have three bits."""
    case.use(overrides={"lstm": {"weight": {"bits": 3}}})


@fault("sentiment", ("fc", "wide_range"))
def sentiment_range_of_a_diverged_run(case: Case) -> None:
    """The range of the logits is from the log of an earlier run, in which the loss had exploded."""
    fixed(case, "fc", 1200 / 255, 128)


@fault("sentiment", ("", "float_mismatch"))
def sentiment_simulated_before_tuning(case: Case) -> None:
    """I quantized, then fine-tuned the float network for my domain, and evaluate the old quantized one."""
    case.simulate()
    train_again(case, 0.08, 120, F.cross_entropy)


# --- vit: balls ------------------------------------------------------------------------------------------------------

BLOCKS = ("blocks.0", "blocks.1", "blocks.2")


@fault("vit", ("pos_embed", "wrong_weights"))
def vit_positions_not_loaded(case: Case) -> None:
    """The positions had another size in the checkpoint, were skipped when it was loaded, and are as initialized."""
    case.model.pos_embed.data = 0.02 * torch.randn(1, 37, 40, generator=generator(22))


@fault("vit", ("patch_embed", "wrong_weights"))
def vit_patches_with_channels_last(case: Case) -> None:
    """The checkpoint is of JAX: its patch kernel was reshaped to the right size and not permuted."""
    weight = case.module("patch_embed").weight
    weight.data = weight.data.permute(0, 2, 3, 1).reshape(weight.shape).contiguous()


@fault("vit", ("network,image", "float_network_wrong wrong_scale"))
def vit_normalized_as_for_imagenet(case: Case) -> None:
    """The weights want 0.5 and 0.5, and I normalize with ImageNet's mean and deviation, as everybody does."""
    case.data[0] = (case.data[0] * 0.5 + 0.5 - MEANS) / DEVIATIONS


@fault("vit", ("blocks", "wrong_weights wrong_setting"))
def vit_values_packed_first(case: Case) -> None:
    """The other implementation packs value, query and key in this order, mine reads query, key, value."""
    for block in BLOCKS:
        for parameter in case.module(f"{block}.attn.qkv").parameters():
            parameter.data = parameter.data.roll(40, 0).contiguous()


@fault("vit", ("blocks.0", "wrong_weights"))
def vit_first_block_missing(case: Case) -> None:
    """My regular expression for keys began to count at 1, the first block got nothing, and strict=False hid it."""
    anew(case.module("blocks.0"))


@fault("vit", ("blocks.1.norm1,blocks.1.attn.qkv", UNEQUAL))
def vit_norm_with_outliers(case: Case) -> None:
    """LayerNorm has outlier gains in two features, as in BERT, and per-tensor activations collapse behind it."""
    widened(case, "blocks.1.norm1", ("blocks.1.attn.qkv",), few_wide(40, [7, 30], 300.0))


@fault("vit", ("blocks", UNEQUAL))
def vit_smoothed_the_wrong_way(case: Case) -> None:
    """I wrote SmoothQuant myself and multiplied activations by the factors that I should have divided them by."""
    for block in BLOCKS:
        weight = case.module(f"{block}.mlp.fc1").weight
        factors = case.module(f"{block}.norm2").weight.data.abs() / weight.data.abs().amax(0)
        factors = (factors / factors.mean()).pow(2).clamp(1e-2, 1e2) * spread(40, 200.0, 23)
        widened(case, f"{block}.norm2", (f"{block}.mlp.fc1",), factors)
    case.use(equalize=False)


@fault("vit", ("", "few_bits"))
def vit_four_bit_weights(case: Case) -> None:
    """All large language models run with four bits, so I gave the weights of my small transformer four bits."""
    case.use(weight=replace(recipes.default().weight, bits=4))


@fault("vit", ("calibration data", "unlike_data"))
def vit_calibrated_without_transform(case: Case) -> None:
    """For calibration I used the raw dataset with values from 0 to 255, without the transform of the evaluation."""
    data = calibration(case)
    data[0] = (data[0] * 0.5 + 0.5) * 255


@fault("vit", ("calibration data", "too_few no_variety unrepresentative"))
def vit_calibrated_on_one_image(case: Case) -> None:
    """I calibrated on a single image, the one of the readme, by its extremes, as it had worked for a ResNet."""
    data = calibration(case)
    case.calibration = [part[5:6] for part in data]
    case.use(activation=MINMAX)


# --- churn: customers ------------------------------------------------------------------------------------------------


@fault(
    "churn",
    ("network,numbers", "float_network_wrong stale_batch_norm wrong_scale"),
    ("bn1,fc1", "stale_batch_norm"),
)
def churn_scaler_not_applied(case: Case) -> None:
    """The StandardScaler was fitted in the notebook and is not in the service, which sends numbers as they are."""
    case.data[1] = case.data[1] * NUMBER_DEVIATIONS + NUMBER_MEANS


@fault("churn", ("network,numbers", WRONG), ("fc1", "wrong_weights"))
def churn_columns_sorted(case: Case) -> None:
    """The new export sorts columns by name: age, calls, delay, gigabytes, monthly, tenure, total."""
    case.data[1] = case.data[1][:, [4, 3, 6, 5, 1, 0, 2]].contiguous()


@fault("churn", ("network,categories", WRONG), ("contract,payment", "wrong_weights"))
def churn_labels_encoded_again(case: Case) -> None:
    """LabelEncoder was fitted again on new data, and contracts and payments have other codes."""
    categories = case.data[0].clone()
    categories[:, 0] = torch.tensor([2, 0, 1])[categories[:, 0]]
    categories[:, 1] = torch.tensor([1, 3, 0, 2])[categories[:, 1]]
    case.data[0] = categories


@fault("churn", ("network,numbers", WRONG))
def churn_missing_as_minus_one(case: Case) -> None:
    """Missing tenures and charges were filled with the mean in training and arrive as -999 now."""
    numbers = case.data[1].clone()
    for column, seed in ((0, 24), (1, 25), (3, 26)):
        lost = torch.rand(len(numbers), generator=generator(seed)) < 0.2
        numbers[lost, column] = (-999 - NUMBER_MEANS[column]) / NUMBER_DEVIATIONS[column]
    case.data[1] = numbers


@fault("churn", ("region,payment", "wrong_weights"))
def churn_table_not_saved(case: Case) -> None:
    """The embeddings were kept in a plain list, and two of them were not in the state dict."""
    anew(case.module("region"), case.module("payment"))


@fault("churn", ("calibration data", "outlier_sample"), ("numbers", "heavy_tail wide_range"))
def churn_one_absurd_record(case: Case) -> None:
    """One calibration record has a total of a hundred million, which is a telephone number, and ranges are extremes."""
    data = calibration(case)
    data[1][40, 2] = 5e4
    case.use(activation=MINMAX)


@fault("churn", ("numbers,fc1,cat", UNEQUAL + " shared_range large_bias cancellation wide_range"))
def churn_scaler_folded(case: Case) -> None:
    """I folded the scaler into the first layer to feed raw numbers, and int8 no longer tells customers apart."""
    fc1 = case.module("fc1")
    case.data[1] = case.data[1] * NUMBER_DEVIATIONS + NUMBER_MEANS
    fc1.weight.data[:, 14:] /= NUMBER_DEVIATIONS
    fc1.bias.data -= fc1.weight.data[:, 14:] @ NUMBER_MEANS


@fault("churn", ("calibration data", "too_few no_variety unrepresentative"))
def churn_three_customers(case: Case) -> None:
    """The tutorial calibrates on one batch, and mine has two customers."""
    data = calibration(case)
    case.calibration = [part[:2] for part in data]
    case.use(activation=MINMAX)


@fault("churn", ("fc2,bn2", "wide_range"))
def churn_scale_of_another_layer(case: Case) -> None:
    """When I filled in the table of scales I gave the second layer the one of the raw logits of another network."""
    fixed(case, "fc2", 400 / 255, 20)


@fault("churn", ("", "moving_average"), ("calibration data", "unrepresentative unlike_data one_class no_variety"))
def churn_moving_average_of_the_night(case: Case) -> None:
    """The observer is a moving average, and my calibration file ends with thousands of empty default records."""
    data = calibration(case)
    count = 64 * 60
    data[0] = torch.cat([data[0], torch.ones(count, 3, dtype=torch.long)])
    data[1] = torch.cat([data[1], torch.zeros(count, 7)])
    data[2] = torch.cat([data[2], torch.zeros(count, 1)])
    case.use(activation=MOVING)


# --- speech: commands ------------------------------------------------------------------------------------------------


@fault("speech", ("network,mels", "float_network_wrong wrong_scale stale_batch_norm"), ("block1", "stale_batch_norm"))
def speech_without_logarithm(case: Case) -> None:
    """torchaudio's MelSpectrogram gives power, and I forgot AmplitudeToDB."""
    decibels = case.data[0] * MEL_DEVIATION + MEL_MEAN
    case.data[0] = (10 ** (decibels / 10) - MEL_MEAN) / MEL_DEVIATION


@fault("speech", ("network,mels", "float_network_wrong stale_batch_norm"), ("block1", "stale_batch_norm"))
def speech_of_sixteen_bit_integers(case: Case) -> None:
    """scipy reads wav files as int16, librosa as floats, and so all my decibels are 90 too high."""
    case.data[0] = case.data[0] + 90.3 / MEL_DEVIATION


@fault("speech", ("network,mels", WRONG))
def speech_of_another_sample_rate(case: Case) -> None:
    """The telephone line gives 8 kHz where the network was trained on 16 kHz, and nobody resampled."""
    mels = case.data[0]
    stretched = F.interpolate(mels[:, None, :14], size=(20, 40), mode="bilinear", align_corners=False)[:, 0]
    case.data[0] = stretched.contiguous()


@fault("speech", ("", "stale_batch_norm wrong_weights"))
def speech_averaged_without_update(case: Case) -> None:
    """I average weights as in SWA and did not call update_bn: the averaged copy has means 0 and variances 1."""
    for norm in norms_of(case.model):
        norm.reset_running_stats()


@fault("speech", ("block", "wrong_weights stale_batch_norm wrong_scale"), ("", "stale_batch_norm"))
def speech_fused_twice(case: Case) -> None:
    """I fused convolutions and norms by hand, and left the norms where they were."""
    for block in ("block1", "block2", "block3"):
        for k in "12":
            conv, norm = case.module(f"{block}.conv{k}"), case.module(f"{block}.bn{k}")
            conv.weight.data *= (norm.weight.data / (norm.running_var + norm.eps).sqrt())[:, None, None]


@fault("speech", ("network,mels", WRONG), ("conv0", "wrong_weights"))
def speech_bands_upside_down(case: Case) -> None:
    """I cut features out of saved pictures of spectrograms, whose first row is the highest band."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("speech", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def speech_calibrated_on_silence(case: Case) -> None:
    """I recorded calibration data on the device, and nobody said anything."""
    data = calibration(case)
    data[0] = -1.1 + 0.25 * torch.randn(data[0].shape, generator=generator(27))


@fault("speech", ("block2.bn1,block2.conv1,block2.relu,block2.conv2", UNEQUAL))
def speech_channels_not_equalized(case: Case) -> None:
    """Channels differ by 1:300 inside a block, and I turned cross-layer equalization off since it crashed once."""
    widened(case, "block2.bn1", ("block2.conv2",), spread(40, 300.0, 28))
    case.use(equalize=False)


@fault("speech", ("conv0,fc", "few_bits"))
def speech_first_layer_of_two_bits(case: Case) -> None:
    """Papers keep the first and last layers in eight bits, and I gave them two like all others."""
    case.use(overrides={"conv0": {"weight": {"bits": 2}}, "fc": {"weight": {"bits": 2}}})


@fault("speech", ("mels", "wide_range"))
def speech_range_of_decibels(case: Case) -> None:
    """The input's range is -80..0 decibels, I wrote it into the configuration, and then normalized the input."""
    case.use(inputs={"mels": {"fixed": (80 / 255, 255)}})


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def resnet_fused() -> Case:
    """The stem's norm is fused into its convolution, as deployment scripts do it."""
    case = calibrated("resnet")
    conv, norm = case.module("conv1"), case.module("bn1")
    factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
    conv.weight.data *= factor[:, None, None, None]
    conv.bias = nn.Parameter(norm.bias.data - norm.running_mean * factor)
    case.model.bn1 = nn.Identity()
    return case


def mobilenet_sorted() -> Case:
    """The test files are sorted by class, as ImageFolder gives them; the calibration files are not."""
    case = calibrated("mobilenet")
    order = case.data[1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    return case


def vgg_scaled() -> Case:
    """One layer gives numbers four times as large, and the next layer takes it back."""
    case = calibrated("vgg")
    for parameter in case.module("features.2").parameters():
        parameter.data *= 4
    case.module("features.5").weight.data /= 4
    return case


def unet_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("unet"))
    case.simulate()
    return case


def sentiment_units_in_another_order() -> Case:
    """The units of the second LSTM layer have another order, everywhere."""
    case = calibrated("sentiment")
    lstm, order = case.module("lstm"), torch.randperm(40, generator=generator(29))
    rows = (40 * torch.arange(4)[:, None] + order).flatten()
    for name in ("weight_ih_l1", "weight_hh_l1", "bias_ih_l1", "bias_hh_l1"):
        parameter = getattr(lstm, name)
        parameter.data = parameter.data[rows].contiguous()
    lstm.weight_hh_l1.data = lstm.weight_hh_l1.data[:, order].contiguous()
    case.module("fc").weight.data = case.module("fc").weight.data[:, order].contiguous()
    return case


def vit_heads_in_another_order() -> Case:
    """The heads of a block have another order, in its projections as well."""
    case = calibrated("vit")
    attn, order = case.module("blocks.1.attn"), torch.arange(40).view(4, 10)[[3, 1, 0, 2]].flatten()
    rows = (40 * torch.arange(3)[:, None] + order).flatten()
    for parameter in attn.qkv.parameters():
        parameter.data = parameter.data[rows].contiguous()
    attn.proj.weight.data = attn.proj.weight.data[:, order].contiguous()
    return case


def churn_codes_renumbered() -> Case:
    """Regions have other codes, and so have the rows of their table."""
    case = calibrated("churn")
    order = torch.randperm(9, generator=generator(30))
    table = case.module("region").weight
    table.data = table.data[order.argsort()].contiguous()
    for data in (case.data, case.calibration):
        data[0] = torch.cat([data[0][:, :2], order[data[0][:, 2:]]], 1)
    return case


def speech_of_brain_floats() -> Case:
    """The checkpoint was stored in bfloat16, which costs nothing."""
    case = calibrated("speech")
    for parameter in case.model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "resnet": resnet_fused,
    "mobilenet": mobilenet_sorted,
    "vgg": vgg_scaled,
    "unet": unet_simulated,
    "sentiment": sentiment_units_in_another_order,
    "vit": vit_heads_in_another_order,
    "churn": churn_codes_renumbered,
    "speech": speech_of_brain_floats,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "churn_table_not_saved": "two tables of eleven rows are too small to tell initial rows from trained ones",
    "speech_of_another_sample_rate": "the first layer whose statistics do not fit is not the one that reads the input",
    "speech_range_of_decibels": "the range is said to clip, which makes more of the noise than its width does",
}
"""What the doctor does not say first, and what it says."""

WEAK: dict[str, str] = {"speech": "weights that are numbers of bfloat16 are said to be rounded, which they are"}
"""What it says of networks without a fault."""
