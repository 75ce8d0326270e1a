"""Faults on twenty networks, and sound networks that look odd, with the answers that count as right.

These were written before the doctor was asked. Afterwards some were widened to how it names places: inputs, and units
of answers, go by the name of the network, and standardization by that of its operation.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_fourth import (
    DigitsCNN,
    LoadGRU,
    Subject,
    Tagger,
    TextClassifier,
    ViT,
    build,
    cross_entropy,
    digits,
    fit,
    marked_words,
    mse,
    series,
    split,
    tagged,
)
from tests.diagnose.doctor.planting import Case, Fault
from torch import Tensor, nn

INPUT_CAUSES = {"wrong_setting", "wrong_scale", "wrong_weights", "float_network_wrong", "unlike_data"}
CALIBRATION = {"unlike_data", "unrepresentative"}


FAULTS: dict[str, Fault] = {}


def fault(subject: str, places: str, causes: set[str] | str, words: str) -> Callable[[Callable[[Case], None]], None]:
    """Register the decorated function as a fault of the subject."""

    def register(plant: Callable[[Case], None]) -> None:
        FAULTS[plant.__name__] = Fault(
            subject, plant, set(places.split()), set(causes.split()) if isinstance(causes, str) else causes, words
        )

    return register


# --- images of digits -------------------------------------------------------------------------------------------------


@fault("digits", "x features.0 network", INPUT_CAUSES - {"unlike_data"}, "inputs are 0 ... 16 and not standardized")
def digits_raw_pixels(case: Case) -> None:
    case.data[0] = (case.data[0] * 0.376 + 0.305) * 16


@fault("digits", "network drop features", "training_mode", "model.eval() was forgotten")
def digits_training(case: Case) -> None:
    case.model.train()


@fault("digits", "calibration", CALIBRATION | {"no_variety", "one_class"}, "calibrated with the lens cap on")
def digits_black(case: Case) -> None:
    case.calibration = [torch.full_like(case.data[0][:256], -0.811)]


@fault("digits", "calibration", CALIBRATION, "calibration images were not divided by 16 and standardized")
def digits_calibration_raw(case: Case) -> None:
    case.calibration = [(case.data[0][:256] * 0.376 + 0.305) * 16]


@fault(
    "digits", "calibration", CALIBRATION, "a dark level of 1 was subtracted in uint8: the black background became white"
)
def digits_calibration_wrapped(case: Case) -> None:
    pixels = ((case.data[0][:256] * 0.376 + 0.305) * 16).round().to(torch.uint8)
    case.calibration = [((pixels - 1).float() / 16 - 0.305) / 0.376]


# --- coloured shapes --------------------------------------------------------------------------------------------------


@fault("resnet", "x stem", INPUT_CAUSES, "images were loaded as BGR")
def resnet_bgr(case: Case) -> None:
    case.data[0] = case.data[0].flip(1)


@fault("resnet", "layer1", "wrong_setting", "the shortcut of layer1 is not added")
def resnet_no_shortcut(case: Case) -> None:
    case.model.layer1.add = False


@fault(
    "resnet",
    "layer2.conv1 layer2.bn1",
    "stale_batch_norm wrong_weights",
    "the statistics of layer2.bn1 were not loaded",
)
def resnet_statistics_lost(case: Case) -> None:
    case.model.layer2.bn1.reset_running_stats()


@fault("resnet", "stem", "wrong_setting", "no ReLU behind the stem")
def resnet_no_relu(case: Case) -> None:
    case.model.stem[2] = nn.Identity()


@fault(
    "mobile",
    "block1.act block2.act block1.dw block2.dw block1.expand block2.expand",
    "wrong_setting",
    "ReLU6 in place of hard swish everywhere",
)
def mobile_relu6(case: Case) -> None:
    for block in (case.model.block1, case.model.block2):
        block.act1 = block.act2 = nn.ReLU6()


@fault(
    "mobile",
    "block2.pool block2.reduce block2.gate block2.excite",
    "wrong_setting",
    "squeeze takes the maximum in place of the mean",
)
def mobile_maximum(case: Case) -> None:
    case.model.block2.pool = nn.AdaptiveMaxPool2d(1)


@fault("mobile", "block1.gate block1.excite block1.mul", "wrong_setting", "the gate has no sigmoid")
def mobile_no_gate(case: Case) -> None:
    case.model.block1.gate = nn.Identity()


@fault("mobile", "network", "diverged_training float_network_wrong", "trained with SGD and a rate of 20")
def mobile_diverged(case: Case) -> None:
    case.model = build("mobile", 20.0, lambda model: torch.optim.SGD(model.parameters(), 20.0, momentum=0.9)).model


class Whole(nn.Module):
    """A group norm of one group in place of a layer norm, channels last."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.inner = nn.GroupNorm(1, norm.weight.shape[0], norm.eps)
        self.inner.load_state_dict(norm.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@fault("convnext", "block1.norm", "wrong_setting", "the norm is over the whole image in place of channels")
def convnext_whole_norm(case: Case) -> None:
    case.model.block1.norm = Whole(case.model.block1.norm)


@fault(
    "convnext", "block2.gamma block2.mul block2.pw2", "wrong_weights wrong_scale", "layer scale as initialized, 1e-6"
)
def convnext_layer_scale(case: Case) -> None:
    case.model.block2.gamma.data.fill_(1e-6)


# --- segmentation -----------------------------------------------------------------------------------------------------


@fault("unet", "dec1 cat", "wrong_setting wrong_weights", "the skip is joined behind, not before")
def unet_skip_order(case: Case) -> None:
    case.model.skip_first = False


@fault("unet", "up2 up1", "wrong_weights", "the kernels of both transposed convolutions are flipped")
def unet_flipped(case: Case) -> None:
    for layer in (case.model.up2, case.model.up1):
        layer.weight.data = layer.weight.data.flip(2, 3).contiguous()


@fault(
    "unet",
    "head network labels",
    "wrong_weights wrong_setting float_network_wrong",
    "classes 1 and 2 are exchanged in the labels",
)
def unet_labels_exchanged(case: Case) -> None:
    case.data[1] = torch.tensor([0, 2, 1])[case.data[1]]


# --- words ------------------------------------------------------------------------------------------------------------


@fault(
    "text", "layers.0.attn layers.1.attn masked_fill eq ne ids network", "wrong_setting", "the padding mask is inverted"
)
def text_mask_inverted(case: Case) -> None:
    case.model.inverted = True


@fault("text", "positions", "wrong_weights", "the table of positions was not loaded: zeros")
def text_no_positions(case: Case) -> None:
    case.model.positions.weight.data.zero_()


@fault("text", "ids words", INPUT_CAUSES, "another tokenizer: all words but the padding have indices larger by one")
def text_tokens_shifted(case: Case) -> None:
    case.data[0] = torch.where(case.data[0] > 0, case.data[0] + 1, 0).clamp(max=39)


@fault("letters", "head", "wrong_weights", "the head was tied to the table and came as initialized")
def letters_untied(case: Case) -> None:
    case.model.head = nn.Linear(48, case.model.head.out_features, bias=False)


@fault("letters", "layers.0.attn layers.1.attn softmax", "wrong_setting", "no causal mask")
def letters_not_causal(case: Case) -> None:
    for layer in case.model.layers:
        layer.attn.causal = False


@fault(
    "letters",
    "layers.0.attn layers.1.attn",
    "wrong_setting wrong_scale",
    "scores are not divided by the root of the head's width",
)
def letters_no_scale(case: Case) -> None:
    for layer in case.model.layers:
        layer.attn.scale = 1.0


@fault("letters", "positions", "wrong_setting wrong_weights", "positions begin at row 0 of the table in place of 2")
def letters_offset(case: Case) -> None:
    case.model.offset = 0


@fault("tagger", "lstm", "wrong_weights", "both directions have the weights of one")
def tagger_directions(case: Case) -> None:
    state = case.model.lstm.state_dict()
    case.model.lstm.load_state_dict(
        {k: state[k.removesuffix("_reverse") if k.endswith("_reverse") else k + "_reverse"] for k in state}
    )


@fault("tagger", "words", "not_finite", "one row of the table is NaN")
def tagger_nan(case: Case) -> None:
    case.model.words.weight.data[13] = float("nan")


@fault("tagger", "network head labels ids", "float_network_wrong wrong_setting", "tags are shifted by one word")
def tagger_tags_shifted(case: Case) -> None:
    case.data[1] = case.data[1].roll(1, 1)


# --- transformers and mixers of images --------------------------------------------------------------------------------


@fault("vit", "pos", "wrong_weights", "rows and columns of the table of positions are exchanged")
def vit_positions_transposed(case: Case) -> None:
    grid = case.model.pos.data[:, 1:].view(1, 4, 4, 32).transpose(1, 2).reshape(1, 16, 32)
    case.model.pos.data = torch.cat([case.model.pos.data[:, :1], grid], 1)


@fault(
    "vit", "norm head select getitem slice", "wrong_setting", "the last token is classified in place of the class token"
)
def vit_last_token(case: Case) -> None:
    case.model.token = -1


@fault("vit", "blocks.0.attn", "wrong_weights", "queries, keys and values lie head by head")
def vit_heads_first(case: Case) -> None:
    for name in ("weight", "bias"):
        value = getattr(case.model.blocks[0].attn.qkv, name)
        value.data = value.data.view(3, 4, 8, -1).transpose(0, 1).reshape(value.shape).contiguous()


@fault("vit", "blocks.0.attn", "wrong_setting", "softmax over queries in place of keys")
def vit_softmax_axis(case: Case) -> None:
    case.model.blocks[0].attn.axis = -2


@fault(
    "mixer",
    "block1.token1 block1.norm1 block1.reshape block1.transpose block1.view",
    "wrong_setting wrong_weights",
    "reshaped in place of transposed",
)
def mixer_reshaped(case: Case) -> None:
    case.model.block1.reshape = True


# --- series -----------------------------------------------------------------------------------------------------------


def reorder(module: nn.RNNBase, order: list[int]) -> None:
    """Put the gates of all weights and biases in another order."""
    for value in module.parameters():
        parts = value.data.chunk(len(order))
        value.data = torch.cat([parts[i] for i in order])


@fault("lstm", "lstm", "wrong_weights", "gates in the order input, forget, output, cell")
def lstm_gates(case: Case) -> None:
    reorder(case.model.lstm, [0, 1, 3, 2])


@fault("lstm", "lstm fc select getitem slice", "wrong_setting", "the first step is classified in place of the last")
def lstm_first_step(case: Case) -> None:
    case.model.step = 0


@fault("lstm", "x lstm", INPUT_CAUSES, "the two sensors are exchanged in the data")
def lstm_sensors_exchanged(case: Case) -> None:
    case.data[0] = case.data[0].flip(2)


@fault("gru", "gru", "wrong_weights", "gates in the order update, reset, new")
def gru_gates(case: Case) -> None:
    reorder(case.model.gru, [1, 0, 2])


@fault(
    "gru",
    "network head",
    "float_network_wrong wrong_scale wrong_setting",
    "outputs are standardized, the labels in megawatts",
)
def gru_units(case: Case) -> None:
    case.data[1] = case.data[1] * 40 + 210


@fault("gru", "x gru", INPUT_CAUSES, "the newest hour comes first in the data")
def gru_reversed(case: Case) -> None:
    case.data[0] = case.data[0].flip(1)


@fault("tcn", "convs pad network", "wrong_setting", "padding on both sides in place of before")
def tcn_padding(case: Case) -> None:
    case.model.both_sides = True


@fault("tcn", "convs.1", "wrong_setting", "dilation 1 in place of 2")
def tcn_dilation(case: Case) -> None:
    case.model.convs[1].dilation = (1,)


@fault("tcn", "norms.1 convs.1", "wrong_setting", "24 groups in place of 4")
def tcn_groups(case: Case) -> None:
    case.model.norms[1].num_groups = 24


# --- tables -----------------------------------------------------------------------------------------------------------


@fault("classes", "x fc1 sub div mean std", INPUT_CAUSES, "two columns are exchanged in the data")
def classes_columns(case: Case) -> None:
    case.data[0] = case.data[0][:, [0, 1, 7, 3, 4, 5, 6, 2, 8, 9, 10, 11]]


@fault("classes", "calibration", CALIBRATION | {"outlier_sample"}, "missing values are -99999 in the calibration data")
def classes_missing(case: Case) -> None:
    case.calibration = [case.data[0][:256].clone()]
    case.calibration[0][::40, 4] = -99999.0


@fault(
    "classes",
    "sub std div fc1 x",
    "wrong_scale wrong_weights wrong_setting exploded_channel",
    "the variances are taken for standard deviations",
)
def classes_variance(case: Case) -> None:
    case.model.std.square_()


@fault("price", "fc2", "exploded_weight", "a flipped bit: one weight is 300")
def price_bit(case: Case) -> None:
    case.model.fc2.weight.data[5, 7] = 300.0


@fault(
    "price",
    "network out",
    "float_network_wrong wrong_setting wrong_scale",
    "the network gives logarithms, labels are prices",
)
def price_logarithm(case: Case) -> None:
    case.data[1] = (2 * case.data[1] + 5).exp()
    with torch.no_grad():
        case.model.out.weight *= 2
        case.model.out.bias.mul_(2).add_(5)


@fault("price", "out relu", "wrong_setting", "a ReLU behind the output")
def price_relu(case: Case) -> None:
    case.model.out = nn.Sequential(case.model.out, nn.ReLU())


@fault("films", "film films", INPUT_CAUSES, "indices of films begin at 1")
def films_from_one(case: Case) -> None:
    case.data[1] = case.data[1] + 1


@fault("films", "users", "wrong_weights", "the table of users was not loaded")
def films_table_lost(case: Case) -> None:
    case.model.users.reset_parameters()


# --- keywords ---------------------------------------------------------------------------------------------------------


@fault("keywords", "calibration", CALIBRATION, "calibration data in decibels in place of natural logarithms")
def keywords_decibels(case: Case) -> None:
    case.calibration = [((case.data[0][:256] * 3 - 5) * 4.343 + 5) / 3]


@fault("keywords", "stem", "few_bits per_tensor_weight", "weights of 3 bits in the first layer")
def keywords_few_bits(case: Case) -> None:
    import intact8

    case.options["recipe"] = intact8.Recipe(overrides={"stem.0": {"weight": {"bits": 3}}})


@fault("keywords", "dw2", "wrong_weights", "the kernels of a depthwise layer are transposed")
def keywords_transposed(case: Case) -> None:
    case.model.dw2[0].weight.data = case.model.dw2[0].weight.data.transpose(2, 3).contiguous()


@fault("keywords", "pw2", "dead_channels", "the biases of 26 of 32 channels drifted below all values")
def keywords_dead(case: Case) -> None:
    case.model.pw2[1].bias.data[:26] -= 12.0


@fault(
    "keywords",
    "dw1",
    "outlier_channel channel_imbalance per_tensor_weight",
    "a channel is 200 times as wide as the others, and the next layer takes it back",
)
def keywords_wide_channel(case: Case) -> None:
    with torch.no_grad():
        case.model.dw1[1].weight[3] *= 200
        case.model.dw1[1].bias[3] *= 200
        case.model.pw1[0].weight[:, 3] /= 200


@fault(
    "keywords",
    "",
    "stale_range clipped_range",
    "scales were calibrated on an early checkpoint, weights loaded afterwards",
)
def keywords_stale(case: Case) -> None:
    import intact8

    torch.manual_seed(5)
    early = copy.deepcopy(case.model)
    with torch.no_grad():
        for module in early.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight *= 0.3
                module.bias *= 0.3
    sim = intact8.prepare(early, example_inputs=case.data[0][:2])
    intact8.calibrate(sim, [case.data[0][:256]])
    own = dict(sim.named_parameters()) | dict(sim.named_buffers())
    with torch.no_grad():
        for name, value in case.model.state_dict().items():
            own[name].copy_(value)
    case.options["sim"] = sim


# --- boxes, denoising, several labels ---------------------------------------------------------------------------------


@fault("boxes", "box", "wrong_weights wrong_setting", "rows of the head in the order y, x, h, w")
def boxes_exchanged(case: Case) -> None:
    for value in case.model.box.parameters():
        value.data = value.data[[1, 0, 3, 2]]


@fault("boxes", "box sigmoid mul", "wrong_setting", "no sigmoid before the size")
def boxes_no_sigmoid(case: Case) -> None:
    case.model.squash = False


@fault("boxes", "mul box sigmoid network", "wrong_scale float_network_wrong", "boxes are multiplied by another size")
def boxes_size(case: Case) -> None:
    case.model.size = 32.0


@fault("denoiser", "final dec1 tanh", "wrong_setting", "tanh in place of sigmoid")
def denoiser_tanh(case: Case) -> None:
    case.model.final = nn.Tanh()


@fault("denoiser", "decode", "wrong_weights", "a layer of the decoder came as initialized")
def denoiser_layer_lost(case: Case) -> None:
    case.model.decode.reset_parameters()


@fault("labels", "final softmax", "wrong_setting", "softmax in place of sigmoid")
def labels_softmax(case: Case) -> None:
    case.model.final = nn.Softmax(-1)


@fault("labels", "x body.0", INPUT_CAUSES, "images were divided by 255 twice")
def labels_divided_twice(case: Case) -> None:
    case.data[0] = case.data[0] / 255


# --- further faults, planted after the mending for those above ------------------------------------------------

PLANTED_FIRST = frozenset(FAULTS)


@fault("letters", "layers.0 layers.1", "wrong_weights", "the attentions of the two layers are exchanged")
def letters_layers_exchanged(case: Case) -> None:
    layers = case.model.layers
    layers[0].attn, layers[1].attn = layers[1].attn, layers[0].attn


@fault("tagger", "lstm", "wrong_setting batch_dependence", "batch_first was forgotten")
def tagger_along_samples(case: Case) -> None:
    case.model.lstm.batch_first = False


@fault("mixer", "block2.channel2 block2.add", "wrong_setting", "the second shortcut of block 2 is left out")
def mixer_no_shortcut(case: Case) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.token2(F.gelu(self.token1(self.norm1(x).transpose(1, 2))))
        x = x + y.transpose(1, 2)
        return self.channel2(F.gelu(self.channel1(self.norm2(x))))

    block = case.model.block2
    block.__class__ = type("Plain", (type(block),), {"forward": forward})


@fault("denoiser", "dec2", "wrong_weights", "the kernel of the transposed convolution is flipped")
def denoiser_flipped(case: Case) -> None:
    case.model.dec2.weight.data = case.model.dec2.weight.data.flip(2, 3).contiguous()


@fault(
    "boxes",
    "mul box sigmoid network",
    "wrong_scale float_network_wrong",
    "boxes in shares of the image, labels in pixels",
)
def boxes_shares(case: Case) -> None:
    case.model.size = 1.0


@fault("labels", "head", "wrong_weights", "the head's rows are in the order of another list of names")
def labels_order(case: Case) -> None:
    for value in case.model.head.parameters():
        value.data = value.data[[2, 0, 3, 1]]


@fault("tcn", "x convs.0", INPUT_CAUSES, "the accelerometers come in the order z, x, y")
def tcn_axes(case: Case) -> None:
    case.data[0] = case.data[0][:, [2, 0, 1]]


@fault("mobile", "stem", "wrong_setting", "the stem is padded as TensorFlow pads")
def mobile_stem_padding(case: Case) -> None:
    stem = case.model.stem[0]
    stem.padding = (0, 0)
    case.model.stem[0] = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), stem)


@fault("resnet", "layer3", "wrong_weights stale_batch_norm", "the two batch norms of layer3 are exchanged")
def resnet_norms_exchanged(case: Case) -> None:
    block = case.model.layer3
    block.bn1, block.bn2 = block.bn2, block.bn1


@fault("keywords", "x stem", INPUT_CAUSES, "energies without the logarithm")
def keywords_no_logarithm(case: Case) -> None:
    case.data[0] = (case.data[0] * 3 - 5).exp()


@fault("digits", "x features.0", INPUT_CAUSES, "black on white in place of white on black")
def digits_inverted(case: Case) -> None:
    case.data[0] = ((1 - (case.data[0] * 0.376 + 0.305)) - 0.305) / 0.376


@fault("resnet", "calibration", "too_few", "calibrated on three images")
def resnet_few(case: Case) -> None:
    case.calibration = [case.data[0][:3]]


@fault("vit", "blocks.0.attn blocks.1.attn", "wrong_setting", "two heads in place of four, in both layers")
def vit_heads(case: Case) -> None:
    for block in case.model.blocks:
        block.attn.heads, block.attn.scale = 2, 16**-0.5


@fault("keywords", "pw2", "few_bits", "results of 3 bits")
def keywords_few_bits_of_results(case: Case) -> None:
    import intact8

    case.options["recipe"] = intact8.Recipe(overrides={"pw2.0": {"activation": {"bits": 3}}})


@fault("classes", "x sub network", INPUT_CAUSES, "columns were standardized before, and are again")
def classes_standardized_twice(case: Case) -> None:
    case.data[0] = (case.data[0] - case.model.mean) / case.model.std


@fault(
    "gru",
    "head",
    "wrong_weights exploded_weight wrong_scale",
    "the head's bias was read in other units: 50 times as large",
)
def gru_head_bias(case: Case) -> None:
    case.model.head.bias.data.mul_(50).add_(3)


@fault(
    "films", "user film users films", INPUT_CAUSES, "users are numbered in another order by one: the first came last"
)
def films_users_later(case: Case) -> None:
    case.data[0] = (case.data[0] + 1) % 60


@fault("price", "fc1 fc2", "wrong_setting", "leaky ReLU of slope 0.2 in place of ReLU")
def price_leaky(case: Case) -> None:
    model = case.model

    class Leaky(type(model)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            x = F.leaky_relu(self.fc1((x - self.mean) / self.std), 0.2)
            return self.out(F.leaky_relu(self.fc2(x), 0.2))

    model.__class__ = Leaky


@fault("lstm", "lstm", "wrong_weights", "biases of the second layer were not loaded: zeros")
def lstm_biases_lost(case: Case) -> None:
    for name in ("bias_ih_l1", "bias_hh_l1"):
        getattr(case.model.lstm, name).data.zero_()


@fault("convnext", "stem", "wrong_weights", "the kernel of the patches has rows and columns exchanged")
def convnext_patches_transposed(case: Case) -> None:
    case.model.stem.weight.data = case.model.stem.weight.data.transpose(2, 3).contiguous()


@fault("unet", "x", INPUT_CAUSES, "images were not standardized")
def unet_raw(case: Case) -> None:
    case.data[0] = case.data[0] * 0.3 + 0.35


# --- sound networks ---------------------------------------------------------------------------------------------------

SOUND: dict[str, Callable[[], Case]] = {}


def sound(make: Callable[[], Case]) -> Callable[[], Case]:
    """Register a sound network."""
    SOUND[make.__name__] = make
    return make


def plain(name: str) -> Callable[[], Case]:
    """Return a function that gives the subject as it is."""

    def make() -> Case:
        subject = build(name)
        return Case(subject.model, list(subject.data))

    return make


SOUND |= {f"sound_{name}": plain(name) for name in ("unet", "letters", "films", "tcn", "denoiser", "mobile")}


@sound
def sound_pruned() -> Case:
    """Half of all weights and some whole channels are zero."""
    subject = build("digits")
    with torch.no_grad():
        for module in subject.model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight *= module.weight.abs() > module.weight.abs().quantile(0.5)
        norm = subject.model.features[1][1]
        small = norm.weight.abs().argsort()[:6]
        norm.weight[small], norm.bias[small] = 0.0, 0.0
    masks = [p != 0 for p in subject.model.parameters()]
    x, y = digits()
    for _ in range(3):
        fit(subject.model, [(x[:997] - 0.305) / 0.376, y[:997]], cross_entropy, 2, 1e-3)
        for p, mask in zip(subject.model.parameters(), masks, strict=True):
            p.data *= mask
    with torch.no_grad():  # statistics as after the last step
        subject.model.train()
        for _ in range(40):
            subject.model((x[:997] - 0.305) / 0.376)
    return Case(subject.model.eval(), subject.data)


@sound
def sound_fixed_filters() -> Case:
    """The first convolution has Sobel filters, a Laplacian and averages, and is not trained."""
    torch.manual_seed(0)
    model = DigitsCNN()
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    laplace = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
    filters = [sobel, -sobel, sobel.T, -sobel.T, laplace, -laplace, torch.ones(3, 3) / 9, torch.eye(3)]
    conv = model.features[0][0]
    conv.weight.data[:8, 0] = torch.stack(filters)
    conv.weight.data[8:, 0] = torch.stack([f.roll(1, 0) for f in filters])
    conv.weight.requires_grad_(False)
    x, y = digits()
    train, held = split([(x - 0.305) / 0.376, y], 997)
    return Case(fit(model, train, cross_entropy, 15, 5e-3), held)


@sound
def sound_bytes() -> Case:
    """Trained on 0 ... 255 without any preparation."""
    torch.manual_seed(0)
    x, y = digits()
    train, held = split([(x * 255).round(), y], 997)
    return Case(fit(DigitsCNN(), train, cross_entropy, 14, 5e-3), held)


@sound
def sound_sinusoids() -> Case:
    """Positions are sinusoids that are not trained, and both layers share their weights."""
    torch.manual_seed(0)
    model = TextClassifier()
    angles = torch.arange(20)[:, None] / 100 ** (torch.arange(16) / 16)
    model.positions.weight.data = torch.cat([angles.sin(), angles.cos()], 1)
    model.positions.weight.requires_grad_(False)
    model.layers[1] = model.layers[0]
    train, held = split(list(marked_words(3800, 0)), 3000)
    return Case(fit(model, train, cross_entropy, 20, 5e-3), held)


class Cosine(nn.Module):
    """Classifies by the angle, times 16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 32))

    def forward(self, x: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


@sound
def sound_cosine() -> Case:
    """A vision transformer with a cosine classifier."""
    torch.manual_seed(0)
    model = ViT()
    model.head = Cosine()
    x, y = digits()
    train, held = split([(x - 0.305) / 0.376, y], 997)
    return Case(fit(model, train, cross_entropy, 25, 5e-3), held)


class Megawatts(nn.Module):
    """A forecast in megawatts from megawatts; the network within computes in standardized numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = LoadGRU()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x - 2100) / 400) * 400 + 2100


@sound
def sound_megawatts() -> Case:
    """Numbers in the thousands at both ends."""
    torch.manual_seed(0)
    x, y = series(2400, 0)
    train, held = split([x * 400 + 2100, y * 400 + 2100], 1600)
    return Case(fit(Megawatts(), train, lambda a, b: mse(a / 400, b / 400), 20, 5e-3), held)


@sound
def sound_rare_tags() -> Case:
    """Nine of ten words have the tag 0."""
    torch.manual_seed(0)
    words, tags = tagged(1600, 0)
    tags = torch.where(tags == 5, 1, torch.where(tags == 2, 2, 0)) * (words % 3 > 0)
    train, held = split([words, tags], 800)
    return Case(fit(Tagger(), train, cross_entropy, 25, 5e-3), held)


# --- asking -----------------------------------------------------------------------------------------------------------


def plant(name: str, subject: Subject | None = None) -> Case:
    """Return the case of a fault, on a fresh or given network."""
    found = FAULTS[name]
    subject = subject or build(found.subject)
    case: Case = Case.of(subject)
    found.plant(case)
    return case


def right(name: str, report: Any) -> bool:
    """Return whether the first finding has one of the causes and one of the places."""
    if not report.findings:
        return False
    first, found = report.findings[0], FAULTS[name]
    if (
        first.place == "network" and {"float_network_wrong", "wrong_weights", "wrong_scale"} <= found.causes
    ):  # inputs go by this name
        return "if it sees" in first.message or "prepared already" in first.message
    return found.is_named_by(first)


QUICK = ("price_relu", "classes_columns", "classes_missing")
"""Those of which network and examination take a second or two."""

MISSED = {
    "films_table_lost": "a table as initialized looks like one that was trained for a little while",
    "convnext_whole_norm": "it costs four answers in a hundred",
    "convnext_patches_transposed": "transposing all other kernels gives back more",
    "gru_head_bias": "all answers are off, which other units explain as well",
    "keywords_no_logarithm": "new statistics of the first batch norm give most answers back",
    "mobile_stem_padding": "it costs two answers in a hundred",
    "unet_raw": "new statistics of the first batch norm give the answers back",
}
"""What the doctor does not say first, and why."""

BUDGET = 120.0
"""Seconds that the doctor has."""
