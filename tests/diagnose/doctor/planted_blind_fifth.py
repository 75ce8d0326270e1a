"""Faults of everyday quantization on eleven networks, and sound networks, with the answers that count as right.

Who wrote these had read the page on the doctor and not its code, and wrote the answers before it was asked. None was
changed afterwards; one fault was left out, a moving average, for it cost nothing.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.blind_networks_fifth import REAL, Arrays, Subject, build, loader
from tests.diagnose.doctor.planting import Case, Fault, train_on
from torch import Tensor, nn

from intact8 import Scheme, recipes

INPUTS = "wrong_setting wrong_scale wrong_weights float_network_wrong unlike_data"
"""Causes that name inputs prepared otherwise than in training."""

DIVERGED = "diverged_training float_network_wrong"
MINMAX = Scheme(observer="minmax")


FAULTS: dict[str, Fault] = {}


def fault(subject: str, places: str, causes: str, words: str) -> Callable[[Callable[[Case], None]], None]:
    """Register the decorated function as a fault of the subject; places are divided by commas, none is any."""

    def register(plant: Callable[[Case], None]) -> None:
        FAULTS[plant.__name__] = Fault(subject, plant, tuple(places.split(",")), set(causes.split()), words)

    return register


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the batch norms."""
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def by_class(data: Arrays) -> Arrays:
    """Return the samples in the order of their classes, as they lie in folders."""
    order = data[-1].argsort()
    return [part[order] for part in data]


def to_few_bits(weight: Tensor, bits: int) -> None:
    """Round weights to so many bits, with one scale for all, in place."""
    with torch.no_grad():
        step = weight.abs().max() / (2 ** (bits - 1) - 1)
        weight.copy_((weight / step).round() * step)


def replaced(model: nn.Module, old: type[nn.Module], new: Callable[[], nn.Module]) -> None:
    """Exchange all modules of a class."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, old):
                setattr(module, name, new())


# --- MobileNetV1, ImageNet --------------------------------------------------------------------------------------------


@fault("mobile", "stage", "per_tensor_weight", "one scale for all channels of depthwise kernels, no equalization")
def mobile_per_tensor(case: Case) -> None:
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("mobile", "calibration data", "unlike_data", "calibrated on images in 0 … 255 that nobody normalized")
def mobile_calibration_bytes(case: Case) -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    case.calibration = [(case.data[0][:96] * std + mean) * 255, case.data[1][:96]]


@fault("mobile", "network,stage1.0.0", INPUTS, "images in the order blue, green, red")
def mobile_blue_first(case: Case) -> None:
    case.data[0] = case.data[0].flip(1)


@fault("mobile", "stage2.3.3", "exploded_weight outlier_weight", "a bit of one weight's exponent flipped")
def mobile_bit_flip(case: Case) -> None:
    weight = case.module("stage2.3.3").weight
    with torch.no_grad():
        weight[17, 40] = 400 * weight.abs().mean()


@fault("mobile", "stage2.2.0", "stale_batch_norm wrong_weights", "one batch norm kept its initial statistics")
def mobile_statistics_of_one(case: Case) -> None:
    case.module("stage2.2.1").reset_running_stats()


@fault("mobile", "stage1.2", "clipped_range", "somebody set a range by hand, a sixth as wide as needed")
def mobile_clipped_by_hand(case: Case) -> None:
    sim = case.simulate()
    point = sim.points[next(name for name in sim.points if name.startswith("stage1.2"))]
    point.set(point.scale_value / 6, point.zero_point_value)


@fault("mobile", "stage1.1", "few_bits", "four bits for the results of one depthwise block")
def mobile_four_bits(case: Case) -> None:
    case.use(overrides={"stage1.1.*": {"activation": {"bits": 4}}})


@fault("mobile", "", "wrong_setting stale_batch_norm", "a converter's default: eps 0.01 in all batch norms")
def mobile_eps(case: Case) -> None:
    for norm in norms(case.model):
        norm.eps = 0.01


@fault("mobile", "", "wrong_setting", "leaky slopes of 0.1 became those of the library, 0.01")
def mobile_slopes(case: Case) -> None:
    replaced(case.model, nn.LeakyReLU, nn.LeakyReLU)


@fault("mobile", "calibration data", "unlike_data no_variety unrepresentative", "calibrated on noise, min-max")
def mobile_noise(case: Case) -> None:
    torch.manual_seed(0)
    case.calibration = [torch.randn(64, 3, 224, 224), torch.zeros(64).long()]
    case.use(activation=MINMAX)


# --- a depthwise network, Fashion-MNIST -------------------------------------------------------------------------------


@fault("fashion", "", "training_mode", "model.eval() forgotten, and the test images lie in the order of classes")
def fashion_training_mode(case: Case) -> None:
    case.data = by_class(case.data)
    case.model.train()


@fault("fashion", "12,13", "training_mode", "one batch norm unfrozen for tuning and left so; images by class")
def fashion_one_norm_trains(case: Case) -> None:
    case.data = by_class(case.data)
    case.module("13").train()


@fault("fashion", "calibration data", "unlike_data", "calibrated on photos with a white background")
def fashion_inverted(case: Case) -> None:
    x = case.data[0][:256]
    case.calibration = [x.max() + x.min() - x, case.data[1][:256]]
    case.use(activation=MINMAX)


@fault("efficient", "calibration data", "unlike_data", "calibrated on photos taken in the dark, min-max")
def efficient_dark(case: Case) -> None:
    x = case.data[0][:256]
    case.calibration = [x.min() + (x - x.min()) / 6, case.data[1][:256]]
    case.use(activation=MINMAX)


@fault("fashion", "", "clipped_range", "the percentile set to 95")
def fashion_percentile(case: Case) -> None:
    case.use(activation=Scheme(observer="percentile", observer_args={"percentile": 95.0}))


@fault("fashion", "", "rounded_weights", "weights of a file with three bits, dequantized")
def fashion_three_bit_file(case: Case) -> None:
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            to_few_bits(module.weight, 3)


@fault("fashion", "6", "wrong_weights wrong_scale wrong_setting stale_batch_norm", "a batch norm folded, and kept")
def fashion_folded_twice(case: Case) -> None:
    layer, norm = case.module("6"), case.module("7")
    with torch.no_grad():
        layer.weight *= (norm.weight / (norm.running_var + norm.eps).sqrt()).view(-1, 1, 1, 1)


@fault("fashion", "network,0", INPUTS, "images in 0 … 1 where the network was trained on standardized ones")
def fashion_not_standardized(case: Case) -> None:
    case.data[0] = case.data[0] * 0.3530 + 0.2860


# --- a keyword transformer --------------------------------------------------------------------------------------------


@fault("speech", "blocks.1.f2", "wrong_weights", "a layer that the checkpoint did not hold")
def speech_fresh_layer(case: Case) -> None:
    torch.manual_seed(0)
    case.module("blocks.1.f2").reset_parameters()


@fault("speech", "blocks.2", "wrong_weights", "queries and values exchanged in a renamed block")
def speech_exchanged(case: Case) -> None:
    block = case.module("blocks.2")
    block.q, block.v = block.v, block.q


@fault("speech", "calibration data", "outlier_sample unlike_data", "one clip among the 64 is a microphone's knock")
def speech_knock(case: Case) -> None:
    x = case.data[0][:64].clone()
    x[11] *= 40
    case.calibration = [x, case.data[1][:64]]
    case.use(activation=MINMAX)


@fault("speech", "network,embed", INPUTS, "coefficients of audio in 16-bit numbers: the first one is shifted")
def speech_integers(case: Case) -> None:
    case.data[0] = case.data[0].clone()
    case.data[0][:, :, 0] += torch.log(torch.tensor(32768.0)) * loader("kwt1").load()[0].dct[0].sum()


# --- sentences --------------------------------------------------------------------------------------------------------


@fault("Transformer", "drop,emb", "training_mode", "dropout of embeddings left on to try Monte Carlo dropout")
def sentences_dropout(case: Case) -> None:
    case.module("drop").p = 0.7
    case.module("drop").train()


@fault("Transformer", "n2.0", "not_finite", "a NaN in a norm's gain after an overflow")
def sentences_nan(case: Case) -> None:
    with torch.no_grad():
        case.module("n2.0").weight[5] = torch.nan


@fault("Transformer", "network,emb", INPUTS, "another vocabulary: all words one row further")
def sentences_vocabulary(case: Case) -> None:
    x = case.data[0]
    case.data[0] = torch.where(x > 1, (x + 1).clamp(max=case.module("emb").num_embeddings - 1), x)


@fault("Transformer", "ff.0.0", "exploded_weight outlier_weight", "one weight of a perceptron exploded in training")
def sentences_exploded(case: Case) -> None:
    with torch.no_grad():
        case.module("ff.0.0").weight[3, 7] = 80


@fault("BiLSTM", "rnn", "wrong_weights wrong_setting", "forward and backward direction exchanged")
def lstm_directions(case: Case) -> None:
    rnn = case.module("rnn")
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        there, back = getattr(rnn, name), getattr(rnn, name + "_reverse")
        there.data, back.data = back.data, there.data


# --- a ResNet on digits -----------------------------------------------------------------------------------------------


@fault("resnet", "", DIVERGED, "fine-tuned with a learning rate a thousand times too large")
def resnet_diverged(case: Case) -> None:
    train_on(case, 5.0, 60)


@fault(
    "resnet", "layer2.0.conv1", "dead_channels stale_batch_norm wrong_weights", "a channel mask zeroed most of a layer"
)
def resnet_dead(case: Case) -> None:
    norm = case.module("layer2.0.bn1")
    norm.weight.data[4:], norm.bias.data[4:] = 0, 0


@fault("resnet", "network,conv1", INPUTS, "grey levels in 0 … 16, not standardized")
def resnet_raw(case: Case) -> None:
    case.data[0] = (case.data[0] * 0.3760 + 0.3053) * 16


@fault("resnet", "", "stale_range", "scales frozen, then trained on until the weights were others")
def resnet_stale_scales(case: Case) -> None:
    sim = case.simulate(recipes.qat("fixed"))
    train_on(case, 0.3, 100)
    case.options["sim"] = sim
    sim.load_state_dict(case.model.state_dict(), strict=False)


@fault("resnet", "layer1.0,layer1.1", "wrong_weights", "two blocks' kernels loaded in the wrong order")
def resnet_exchanged(case: Case) -> None:
    a, b = case.module("layer1.0"), case.module("layer1.1")
    a.conv1, b.conv1 = b.conv1, a.conv1


@fault("resnet", "", "stale_batch_norm", "batch norm statistics of the last steps on grey levels in 0 … 16")
def resnet_statistics_of_other_images(case: Case) -> None:
    x = (case.data[0] * 0.3760 + 0.3053) * 16
    for norm in norms(case.model):
        norm.momentum = 0.5
    case.model.train()
    with torch.no_grad():
        for batch in x[:256].split(64):
            case.model(batch)
    case.model.eval()


# --- inverted residuals with SiLU and gates ---------------------------------------------------------------------------


@fault("efficient", "", "symmetric_range few_bits", "symmetric activations of six bits behind SiLU")
def efficient_symmetric(case: Case) -> None:
    case.use(activation=Scheme(dtype="int8", bits=6, symmetric=True))


@fault("efficient", "", "wrong_setting", "SiLU became ReLU on the way")
def efficient_relu(case: Case) -> None:
    replaced(case.model, nn.SiLU, nn.ReLU)


@fault("efficient", "blocks.2.gate", "wrong_setting wrong_scale", "a gate without its sigmoid")
def efficient_open_gate(case: Case) -> None:
    case.module("blocks.2.gate").act = lambda x: x


@fault("efficient", "blocks.3.expand.0", "exploded_channel", "one channel of an expansion fifty times as large")
def efficient_channel(case: Case) -> None:
    case.module("blocks.3.expand.0").weight.data[9] *= 50


@fault("efficient", "classifier", "large_bias bias_overflow wide_range exploded_weight", "a thousand on all logits")
def efficient_logits(case: Case) -> None:
    case.module("classifier").bias.data += 1000


# --- a vision transformer on digits -----------------------------------------------------------------------------------


@fault("vit", "layers.1.attn", "wrong_setting", "softmax over queries instead of keys")
def vit_softmax(case: Case) -> None:
    case.module("layers.1.attn").axis = -2


@fault("vit", "layers.0.fc1", "few_bits", "two bits for one layer's weights")
def vit_two_bits(case: Case) -> None:
    case.use(overrides={"layers.0.fc1": {"weight": {"bits": 2}}})


@fault("vit", "pos,network", "wrong_weights", "the table of positions was not loaded")
def vit_positions(case: Case) -> None:
    nn.init.normal_(case.model.get_parameter("pos"), std=0.02)


@fault("vit", "calibration data", "no_variety too_few", "a loader that repeats one image 256 times")
def vit_one_image(case: Case) -> None:
    rows = torch.full((256,), int(case.data[0].flatten(1).std(1).argmin()))
    case.calibration = [part[rows] for part in case.data]
    case.use(activation=MINMAX)


# --- a GRU and vibrations ---------------------------------------------------------------------------------------------


@fault("machine", "", DIVERGED, "fine-tuned with a learning rate of 3")
def machine_diverged(case: Case) -> None:
    train_on(case, 3.0, 80)


@fault("machine", "hidden", "clipped_range", "a range by hand, a tenth as wide as needed")
def machine_clipped_by_hand(case: Case) -> None:
    point = case.simulate().points["hidden"]
    point.set(point.scale_value / 10, point.zero_point_value)


@fault(
    "machine", "calibration data", "too_few no_variety unlike_data unrepresentative", "calibrated on one quiet machine"
)
def machine_quiet(case: Case) -> None:
    quiet = case.data[0].flatten(1).std(1).argsort()[:2]
    case.calibration = [part[quiet] for part in case.data]
    case.use(activation=MINMAX)


@fault("machine", "network,gru", INPUTS, "axes mounted in another order: z, x, y")
def machine_axes(case: Case) -> None:
    case.data[0] = case.data[0][:, :, [2, 3, 0, 1]]


class Difference(nn.Module):
    """A layer as the difference of two, which have large parts in common."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positive, self.negative = copy.deepcopy(layer), copy.deepcopy(layer)
        self.negative.weight.data = 20 * torch.randn_like(layer.weight)
        self.negative.bias.data.zero_()
        self.positive.weight.data += self.negative.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.positive(x) - self.negative(x)


@fault("machine", "head", "cancellation", "answers are the small difference of two large numbers")
def machine_difference(case: Case) -> None:
    case.model.head = Difference(case.module("head"))


# --- prices -----------------------------------------------------------------------------------------------------------


@fault(
    "price",
    "fc1,network,x,input",
    "outlier_channel channel_imbalance input_imbalance outlier_weight",
    "a column in cents, without labels",
)
def price_cents(case: Case) -> None:
    with torch.no_grad():
        case.module("fc1").weight[:, 3] /= 2000
    case.data = [case.data[0] * torch.where(torch.arange(10) == 3, 2000.0, 1.0)]


@fault("price", "calibration data", "outlier_sample unlike_data", "one row with a decimal point in the wrong place")
def price_typing_error(case: Case) -> None:
    x = case.data[0][:256].clone()
    x[100, 3] = 900
    case.calibration = [x, case.data[1][:256]]
    case.use(activation=MINMAX)


@fault("price", "network,out", "float_network_wrong wrong_scale", "targets in dollars, answers in thousands")
def price_thousands(case: Case) -> None:
    case.data[1] = case.data[1] * 1000


@fault("price", "fc2", "exploded_weight outlier_weight", "one weight without use exploded: its input is always zero")
def price_useless_weight(case: Case) -> None:
    with torch.no_grad():
        case.module("fc1").weight[7], case.module("fc1").bias[7] = 0, -1
        case.module("fc2").weight[:, 7] = 80


# --- branches that are joined -----------------------------------------------------------------------------------------


@fault(
    "squeeze",
    "fire1,fire2",
    "shared_range channel_imbalance outlier_channel input_imbalance",
    "a branch 400 times as wide as the one it is joined with",
)
def squeeze_shared(case: Case) -> None:
    for parameter in case.module("fire2.expand1").parameters():
        parameter.data *= 400
    case.module("fire3.squeeze").weight.data[:, :24] /= 400
    case.use(equalize=False)


@fault("squeeze", "fire2", "wrong_setting wrong_weights", "branches joined the other way round")
def squeeze_turned(case: Case) -> None:
    case.module("fire2").turned = True


@fault("squeeze", "fire3.expand3", "wrong_weights", "a layer as initialized, after a partial load")
def squeeze_fresh(case: Case) -> None:
    torch.manual_seed(1)
    case.module("fire3.expand3").reset_parameters()


@fault("squeeze", "head", "wrong_weights float_network_wrong", "a head for new classes that nobody trained")
def squeeze_fresh_head(case: Case) -> None:
    torch.manual_seed(1)
    case.module("head").reset_parameters()


# --- sound networks ---------------------------------------------------------------------------------------------------


def fresh(name: str) -> Case:
    """Return a network as it is."""
    case: Case = Case.of(build(name))
    return case


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case = fresh(name)
    case.calibration, case.data = [part[:200] for part in case.data], [part[200:] for part in case.data]
    return case


def unlabelled(name: str) -> Case:
    """Return a network as it is, and inputs without answers."""
    case = fresh(name)
    case.data = case.data[:1]
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "mobile": lambda: fresh("mobile"),
    "fashion": lambda: calibrated("fashion"),
    "speech": lambda: fresh("speech"),
    "BiLSTM": lambda: calibrated("BiLSTM"),
    "Transformer": lambda: fresh("Transformer"),
    "resnet": lambda: calibrated("resnet"),
    "efficient": lambda: fresh("efficient"),
    "machine": lambda: calibrated("machine"),
    "price": lambda: unlabelled("price"),
    "squeeze": lambda: fresh("squeeze"),
}
"""Networks without a fault."""


# --- asking -----------------------------------------------------------------------------------------------------------


def plant(name: str, subject: Subject | None = None) -> Case:
    """Return the case of a fault, on a copy of its network."""
    found = FAULTS[name]
    subject = subject or build(found.subject)
    case: Case = Case.of(subject)
    found.plant(case)
    return case


def right(name: str, report: Any) -> bool:
    """Return whether the first finding has one of the causes and one of the places."""
    return bool(report.findings) and FAULTS[name].is_named_by(report.findings[0])


QUICK = ("price_thousands",)
"""Those of which network and examination take a second or two."""

NEEDS_ASSETS = {*REAL, "efficient"}
"""Networks whose weights, or data, lie in the folder of assets."""

MISSED = {
    "fashion_one_norm_trains": "training mode is said of the network; the message names the norm",
    "sentences_dropout": "training mode is said of the network; the message names the dropout",
    "speech_exchanged": "it costs three answers in a hundred",
    "vit_positions": "the patches' few weights look as they are initialized, a small table of positions does not",
}
"""What the doctor does not say first, and why."""

WEAK = {"speech": "its first coefficient is 48 times as wide as the median one, which costs noise: a warning says so"}
"""A network without a fault against which something is said."""

STRICT = True
"""What is missed is to be missed: a test that passes all the same fails."""
