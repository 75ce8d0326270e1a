"""A ninth set of faults, on twelve small networks trained for it, and sound ones, with the answers that are right.

Who wrote these had read the page on the doctor and not its code, and wrote the answers before it was asked. None was
changed afterwards. Faults that cost less than two points of accuracy and a few decibels were left out before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor import planting
from tests.diagnose.doctor.blind_networks_ninth import (
    Beat,
    Chirps,
    Cinema,
    Estate,
    Glance,
    Grid,
    Net,
    Regard,
    Tongue,
    Turn,
    build,
)
from tests.diagnose.doctor.planting import (
    FaultWithAnswers,
    anew,
    asking,
    case_of,
    exchange,
    norms_of,
    registering,
    train_on,
)
from torch import Tensor, nn

from intact8 import Scheme, recipes

INPUTS = "wrong_setting wrong_scale wrong_weights float_network_wrong unlike_data"
"""Causes that name inputs prepared otherwise than in training."""

WIRED = "wrong_setting wrong_weights"
"""Causes that name an order, which lies in the wiring as well as in the weights."""

ALIEN = "unlike_data unrepresentative"
FEW = "too_few no_variety unlike_data unrepresentative"
UNEVEN = "outlier_channel channel_imbalance input_imbalance"
DIVERGED = "diverged_training float_network_wrong"
MINMAX = Scheme(observer="minmax")
PER_TENSOR = Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax")


class Case(planting.Case):
    """What the doctor is given."""

    def calibrate_on(self, change: Callable[[Tensor], Tensor], count: int = 192) -> None:
        """Calibrate on the first samples, of which the first input is changed, and examine on the others."""
        self.calibration = [change(self.data[0][:count].clone()), *(part[:count].clone() for part in self.data[1:])]
        self.data = [part[count:] for part in self.data]


FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


def transpose_gates(layer: nn.Module, names: tuple[str, ...]) -> None:
    """Transpose every gate's square of recurrent weights."""
    for name in names:
        weight = getattr(layer, name)
        width = weight.shape[1]
        turned = weight.data.view(-1, width, width).transpose(1, 2).reshape(-1, width)
        weight.data.copy_(turned.clone())


# --- a vision transformer -------------------------------------------------------------------------------------------


@fault("glance", ("image,input,network", INPUTS), ("patches", "wrong_scale wrong_weights"))
def glance_white_paper(case: Case) -> None:
    """Digits are dark on white paper where the service runs."""
    case.data[0] = (0.7 - (case.data[0] * 0.35 + 0.3)) / 0.35


class Mean(Glance):
    """The mean of all tokens is classified."""

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(image), -1, -1), x], 1) + self.where
        return self.head(self.last(self.layers(x)).mean(1))


@fault("glance", ("last,head,layers.1,mean,select,getitem,network", "wrong_setting"))
def glance_mean_of_tokens(case: Case) -> None:
    """The mean of all tokens is classified in place of the class token."""
    case.model.__class__ = Mean


@fault("glance", ("where,add", WIRED))
def glance_positions_moved(case: Case) -> None:
    """The table of positions came from a network with its class token behind the patches: it is moved by one row."""
    case.model.where.data.copy_(case.model.where.data.roll(-1, 1).clone())


class Undivided(Regard):
    """Scores are not divided by the root of the head's width."""

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(count, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(2, 3)).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(count, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


@fault("glance", ("layers", "wrong_setting wrong_scale"))
def glance_scores_not_divided(case: Case) -> None:
    """Attention was written out, and the division of the scores forgotten."""
    for layer in case.model.layers:
        layer.__class__ = Undivided


@fault("glance", ("layers.0", WIRED))
def glance_heads_first(case: Case) -> None:
    """The first projection lies head by head, each with its query, key and value."""
    qkv = case.module("layers.0.qkv")
    qkv.weight.data.copy_(qkv.weight.data.view(3, 4, 8, 32).transpose(0, 1).reshape(96, 32).clone())
    qkv.bias.data.copy_(qkv.bias.data.view(3, 4, 8).transpose(0, 1).reshape(96).clone())


@fault("glance", ("layers.1", "wrong_weights"))
def glance_layer_anew(case: Case) -> None:
    """One layer's name was not in the file, and strict loading was off."""
    anew(case.module("layers.1.fc1"))


@fault("glance", ("calibration data", ALIEN))
def glance_calibrated_on_bytes(case: Case) -> None:
    """Calibration images are bytes, which training divided and normalized."""
    case.calibrate_on(lambda x: ((x * 0.35 + 0.3) * 255).round())


@fault("glance", ("layers.1", UNEVEN))
def glance_loud_channels(case: Case) -> None:
    """Two channels of a norm are 200 times as large, which the next layer takes back."""
    layer = case.module("layers.1")
    for channel in (4, 21):
        layer.norm2.weight.data[channel] *= 200
        layer.norm2.bias.data[channel] *= 200
        layer.fc1.weight.data[:, channel] /= 200
    case.use(activation=MINMAX, equalize=False)


# --- squeeze and excitation -----------------------------------------------------------------------------------------


@fault("stamp", ("stages,act0,conv0,bn0", "wrong_setting"))
def stamp_relu(case: Case) -> None:
    """Hard swish became ReLU in all convolutions, since an exporter did not know it."""
    case.model.act0 = nn.ReLU()
    for stage in case.model.stages:
        stage.act = nn.ReLU()


@fault("stamp", ("conv0,bn0", "wrong_setting wrong_scale"))
def stamp_eps(case: Case) -> None:
    """The eps of the first norm was given in the place of its momentum's complement."""
    case.module("bn0").eps = 9.0


@fault("stamp", ("views,input,network", INPUTS), ("conv0", "wrong_weights wrong_setting"))
def stamp_views_exchanged(case: Case) -> None:
    """The edges come before the sheet."""
    case.data[0] = case.data[0].flip(1)


@fault("stamp", ("stages.2,stages.3", "stale_batch_norm wrong_weights"))
def stamp_norms_exchanged(case: Case) -> None:
    """A renaming script exchanged the statistics of two norms of one width."""
    one, other = case.module("stages.2.bn"), case.module("stages.3.bn")
    exchange(one.running_mean, other.running_mean)
    exchange(one.running_var, other.running_var)


@fault("stamp", ("classes", "exploded_weight exploded_channel"))
def stamp_bit_flipped(case: Case) -> None:
    """A bit of the exponent of one of the last weights flipped."""
    case.module("classes").weight.data[3, 7] = 900.0


@fault("stamp", ("calibration data", FEW))
def stamp_one_picture(case: Case) -> None:
    """It was calibrated on one picture, again and again, and that is a faint one."""
    case.calibrate_on(lambda x: x[:1].expand_as(x) * 0.3)


@fault("stamp", ("stages.1", "wrong_weights dead_channels"))
def stamp_pruned(case: Case) -> None:
    """Two thirds of one convolution's output channels were pruned, and nothing was trained afterwards."""
    weight = case.module("stages.1.conv").weight.data
    weight[::3] = 0
    weight[1::3] = 0


# --- shuffled groups ------------------------------------------------------------------------------------------------


class Sorted(nn.Module):
    """The halves are joined and not shuffled."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.pw1, self.bn1, self.dw, self.bn2 = block.pw1, block.bn1, block.dw, block.bn2
        self.pw2, self.bn3 = block.pw2, block.bn3

    def forward(self, x: Tensor) -> Tensor:
        kept, y = x.chunk(2, 1)
        y = F.relu(self.bn1(self.pw1(y)))
        y = F.relu(self.bn3(self.pw2(self.bn2(self.dw(y)))))
        return torch.cat([kept, y], 1)


@fault("cards", ("lower,grow", WIRED))
def cards_not_shuffled(case: Case) -> None:
    """The last block's channels are not shuffled."""
    case.model.lower[1] = Sorted(case.model.lower[1])


@fault("cards", ("", "per_tensor_weight"), ("upper", "channel_imbalance outlier_channel"))
def cards_one_scale_of_weights(case: Case) -> None:
    """All weights have one scale per tensor, though the depthwise channels of two blocks differ, and nothing evens."""
    factors = torch.logspace(-1.0, 1.0, 12)
    for index in (0, 1):
        block = case.module(f"upper.{index}")
        block.bn1.weight.data *= factors
        block.bn1.bias.data *= factors
        block.dw.weight.data /= factors[:, None, None, None]
    case.use(weight=PER_TENSOR, equalize=False, bias_correction=False)


@fault("cards", ("smaller,max_pool,avg_pool", "wrong_setting"))
def cards_means(case: Case) -> None:
    """The maxima between the sizes became means."""
    case.model.smaller = nn.AvgPool2d(2)


@fault("cards", ("lower.0", "dead_channels wrong_weights"))
def cards_dead(case: Case) -> None:
    """Two thirds of one norm's gains were driven to nothing, and their biases below zero."""
    norm = case.module("lower.0.bn3")
    for part in (slice(0, None, 3), slice(1, None, 3)):
        norm.weight.data[part] = 0
        norm.bias.data[part] = -0.1


@fault("cards", ("upper.1", "wrong_weights"))
def cards_kernels_turned(case: Case) -> None:
    """One block's depthwise kernels lie the other way round, as in a library that convolves."""
    weight = case.module("upper.1.dw").weight.data
    weight.copy_(weight.flip(2, 3).clone())


@fault("cards", ("cut", "wrong_setting"))
def cards_first_activation(case: Case) -> None:
    """The first activation was left out."""
    case.model.cut[2] = nn.Identity()


@fault("cards", ("sheet,input,network", INPUTS), ("cut", "stale_batch_norm wrong_scale"))
def cards_not_divided(case: Case) -> None:
    """Grey values are not divided by 16 where the program runs."""
    case.data[0] = case.data[0] * 16


@fault("cards", ("network", DIVERGED), ("", "diverged_training"))
def cards_diverged(case: Case) -> None:
    """Fine-tuning had a rate far too large."""
    train_on(case, 3.0, 40)


@fault("cards", ("", "wrong_setting wrong_weights stale_batch_norm"))
def cards_folded_twice(case: Case) -> None:
    """Norms were folded into the weights of the file, and the network applies them again."""
    convs = [module for module in case.model.modules() if isinstance(module, nn.Conv2d)]
    for conv, norm in zip(convs, norms_of(case.model), strict=True):
        conv.weight.data *= (norm.weight.data / (norm.running_var + norm.eps).sqrt())[:, None, None, None]


# --- segmentation ---------------------------------------------------------------------------------------------------


class Turned(Net):
    """What comes from below is joined before what comes from the side."""

    def forward(self, scan: Tensor) -> Tensor:
        one = self.down1(scan)
        two = self.down2(self.pool(one))
        x = self.up2(self.bottom(self.pool(two)))
        x = self.up1(self.join2(torch.cat([x, two], 1)))
        return self.mask(self.join1(torch.cat([one, x], 1)))


@fault("net", ("join2,cat,up2,down2", WIRED))
def net_joined_otherwise(case: Case) -> None:
    """The decoder's first join has the other order."""
    case.model.__class__ = Turned


@fault("net", ("join1", "stale_batch_norm"))
def net_last_statistics(case: Case) -> None:
    """The last pair's norms were copied without their statistics."""
    for norm in norms_of(case.module("join1")):
        norm.reset_running_stats()


@fault("net", ("network,output,mask", f"{WIRED} wrong_scale float_network_wrong"))
def net_ring_is_bar(case: Case) -> None:
    """Masks for the test number rings and bars in the other order."""
    case.data[1] = torch.tensor([0, 1, 3, 2])[case.data[1]]


@fault("net", ("scan,input,network", INPUTS), ("down1", "stale_batch_norm wrong_scale"))
def net_not_standardized(case: Case) -> None:
    """Scans are between 0 and 1 and not standardized."""
    case.data[0] = case.data[0] * 0.25 + 0.1


@fault("net", ("calibration data", ALIEN))
def net_empty_scans(case: Case) -> None:
    """Calibration scans are of the empty table, at a tenth of the brightness."""
    case.calibrate_on(lambda x: 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)) - 0.4, 96)


@fault("net", ("down2", "exploded_channel"))
def net_gain_explodes(case: Case) -> None:
    """One gain of a norm is 200 times as large."""
    case.module("down2.4").weight.data[3] *= 200


# --- languages ------------------------------------------------------------------------------------------------------


@fault("tongue", ("memory", WIRED))
def tongue_gates(case: Case) -> None:
    """Gates lie in the order of ONNX: input, output, forget, cell."""
    order = torch.cat([torch.arange(24) + 24 * gate for gate in (0, 3, 1, 2)])
    for parameter in case.model.memory.parameters():
        parameter.data.copy_(parameter.data[order].clone())


@fault("tongue", ("text,input,network", INPUTS), ("memory,letters", "wrong_setting"))
def tongue_backwards(case: Case) -> None:
    """Texts are read from the end."""
    case.data[0] = case.data[0].flip(1)


class Lower(Tongue):
    """The first layer's state is classified."""

    def forward(self, text: Tensor) -> Tensor:
        _, (state, _) = self.memory(self.letters(text))
        return self.language(self.norm(state[0]))


@fault("tongue", ("memory,norm,language,getitem,select,network", "wrong_setting"))
def tongue_first_layer(case: Case) -> None:
    """The state of the first layer is classified in place of the second's."""
    case.model.__class__ = Lower


@fault("tongue", ("memory", "wrong_weights"))
def tongue_transposed(case: Case) -> None:
    """The recurrent weights of both layers came transposed."""
    transpose_gates(case.module("memory"), ("weight_hh_l0", "weight_hh_l1"))


@fault("tongue", ("memory", "exploded_weight large_bias wrong_weights"))
def tongue_forgets(case: Case) -> None:
    """The biases of the forget gates are so low that nothing is remembered."""
    for name in ("bias_ih_l0", "bias_ih_l1"):
        getattr(case.module("memory"), name).data[24:48] -= 40


@fault("tongue", ("letters,text,input,network", INPUTS))
def tongue_table_moved(case: Case) -> None:
    """The table of letters came from a file whose first row was for padding, and all rows are one too high."""
    case.module("letters").weight.data.copy_(case.module("letters").weight.data.roll(-1, 0).clone())


@fault("tongue", ("memory", "few_bits"))
def tongue_two_bits(case: Case) -> None:
    """The recurrent layers' weights have 2 bits."""
    case.use(overrides={"memory": {"weight": {"bits": 2}}})


# --- heartbeats -----------------------------------------------------------------------------------------------------


@fault("heart", ("leads,input,network", INPUTS), ("lead_in", "wrong_weights wrong_setting"))
def heart_electrodes(case: Case) -> None:
    """The second lead's electrodes are exchanged, and its sign with them."""
    case.data[0] = case.data[0] * torch.tensor([1.0, -1.0])[:, None]


class Straight(Beat):
    """A residual without its way around."""

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


@fault("heart", ("layer1", "wrong_setting"))
def heart_no_shortcut(case: Case) -> None:
    """The first block was written without its shortcut."""
    case.module("layer1").__class__ = Straight


@fault("heart", ("layer2", "exploded_weight"))
def heart_bit_flipped(case: Case) -> None:
    """A bit of one weight's exponent flipped."""
    case.module("layer2.conv1").weight.data[4, 2, 1] = 300.0


@fault("heart", ("calibration data", "outlier_sample"), ("leads,input,lead_in", "heavy_tail wide_range"))
def heart_electrode_fell_off(case: Case) -> None:
    """In one beat for calibration an electrode fell off, and extremes are kept."""

    def fall(x: Tensor) -> Tensor:
        x[41, 0, 50:] = 600
        return x

    case.calibrate_on(fall)
    case.use(activation=MINMAX)


@fault("heart", ("", "stale_batch_norm"))
def heart_last_batch(case: Case) -> None:
    """A momentum of 1 left the statistics of the last batch, which was of one kind."""
    kind = case.data[0][case.data[1] == 0][:8]
    for norm in norms_of(case.model):
        norm.momentum = 1.0
    case.model.train()
    with torch.no_grad():
        case.model(kind)
    case.model.eval()


@fault("heart", ("layer2", "wrong_weights"))
def heart_shortcut_anew(case: Case) -> None:
    """The convolution in the shortcut was not in the file."""
    anew(case.module("layer2.downsample.0"))


@fault("heart", ("layer1", "wrong_weights"))
def heart_exchanged(case: Case) -> None:
    """The two convolutions of the first block are exchanged."""
    exchange(case.module("layer1.conv1").weight, case.module("layer1.conv2").weight)


# --- prices ---------------------------------------------------------------------------------------------------------


@fault("estate", ("network,output,price", f"{WIRED} wrong_scale float_network_wrong"))
def estate_units(case: Case) -> None:
    """Prices for the test are in thousands and not standardized."""
    case.data[1] = case.data[1] * 4.5 + 13


@fault("estate", ("features,input,network", INPUTS), ("first", "wrong_scale wrong_weights"))
def estate_not_standardized(case: Case) -> None:
    """Features are between 0 and 1 and not standardized."""
    case.data[0] = case.data[0] * 0.29 + 0.5


@fault("estate", ("features,input,network", INPUTS), ("first", "wrong_weights wrong_setting"))
def estate_columns(case: Case) -> None:
    """The columns of the second and the sixth feature are exchanged."""
    case.data[0] = case.data[0][:, [0, 5, 2, 3, 4, 1, 6, 7]]


@fault("estate", ("act,a1,a2,b1,b2,relu,silu", "wrong_setting"))
def estate_relu(case: Case) -> None:
    """The blocks have ReLU in place of SiLU."""
    case.model.act = nn.ReLU()


class Chain(Estate):
    """The second block has no way around."""

    def forward(self, features: Tensor) -> Tensor:
        x = self.first(features)
        x = x + self.a2(self.act(self.a1(self.ln_a(x))))
        x = self.b2(self.act(self.b1(self.ln_b(x))))
        return self.price(F.silu(x))


@fault("estate", ("b1,b2,ln_b,a2,add,silu,price", "wrong_setting"))
def estate_no_shortcut(case: Case) -> None:
    """The second block was written without its shortcut."""
    case.model.__class__ = Chain


@fault("estate", ("ln_a", "wrong_setting wrong_scale"))
def estate_eps(case: Case) -> None:
    """The eps of the first norm is 1, since its exponent was lost."""
    case.module("ln_a").eps = 1.0


@fault("estate", ("calibration data", FEW))
def estate_one_house(case: Case) -> None:
    """It was calibrated on one house, the first of the table."""
    case.calibrate_on(lambda x: x[:1].expand_as(x).clone())


@fault("estate", ("", "rounded_weights"))
def estate_fifteen_numbers(case: Case) -> None:
    """All weights went through 4 bits in another tool."""
    for module in case.model.modules():
        if isinstance(module, nn.Linear):
            step = module.weight.data.abs().amax(1, keepdim=True) / 7
            module.weight.data.copy_((module.weight.data / step).round() * step)


# --- cosines --------------------------------------------------------------------------------------------------------


@fault("faces", ("body", "wrong_setting"))
def faces_relu(case: Case) -> None:
    """The slopes of PReLU were lost, which became ReLU."""
    for name in ("p1", "p2", "p3"):
        setattr(case.model.body, name, nn.ReLU())


@fault("faces", ("network,output,people", f"{WIRED} float_network_wrong"))
def faces_numbered_from_one(case: Case) -> None:
    """Classes were numbered from one, and the tenth is the zeroth."""
    case.data[1] = (case.data[1] + 1) % 10


@fault("faces", ("body", "wrong_weights"))
def faces_kernels_turned(case: Case) -> None:
    """All convolutions' kernels lie the other way round."""
    for name in ("c1", "c2", "c3"):
        weight = case.module(f"body.{name}").weight.data
        weight.copy_(weight.flip(2, 3).clone())


@fault("faces", ("body.embed,body.norm", "stale_batch_norm"))
def faces_last_statistics(case: Case) -> None:
    """The norm of the embeddings was copied without its statistics."""
    case.module("body.norm").reset_running_stats()


@fault("faces", ("crop,input,network", INPUTS), ("body.c1", "wrong_weights"))
def faces_mirrored(case: Case) -> None:
    """The camera's driver mirrors images."""
    case.data[0] = case.data[0].flip(3)


@fault("faces", ("body.c1,body.n1,body.p1,body.c2", UNEVEN))
def faces_uneven_channels(case: Case) -> None:
    """Channels differ by a factor of 3000, which the next convolution takes back."""
    factors = torch.logspace(-1.75, 1.75, 16)
    norm = case.module("body.n1")
    norm.weight.data *= factors
    norm.bias.data *= factors
    case.module("body.c2").weight.data /= factors[:, None, None]
    case.use(equalize=False)


@fault("faces", ("body.c3", "wrong_weights"))
def faces_zeroed(case: Case) -> None:
    """The last convolution reads a third of its channels only: the file ended there, and the rest is zero."""
    case.module("body.c3").weight.data[:, 8:] = 0


# --- films ----------------------------------------------------------------------------------------------------------


@fault("cinema", ("persons,films,input,network", INPUTS))
def cinema_columns_exchanged(case: Case) -> None:
    """Persons and films are exchanged in the table."""
    case.data[0], case.data[1] = case.data[1], case.data[0]


@fault("cinema", ("films,film,input,network", INPUTS))
def cinema_films_from_one(case: Case) -> None:
    """Films are numbered from one where the program runs."""
    case.data[1] = (case.data[1] + 1).clamp(max=49)


@fault("cinema", ("film", "wrong_weights"))
def cinema_table_anew(case: Case) -> None:
    """One table of films is as initialized."""
    anew(case.module("film"))


@fault("cinema", ("network,output,click", f"{WIRED} wrong_scale float_network_wrong"))
def cinema_inverted(case: Case) -> None:
    """A one means that the film was skipped."""
    case.data[2] = 1 - case.data[2]


@fault("cinema", ("deep", "wrong_setting"))
def cinema_activation_lost(case: Case) -> None:
    """The first activation of the deep network was left out."""
    case.model.deep[1] = nn.Identity()


@fault("cinema", ("deep.0", "few_bits"))
def cinema_two_bits(case: Case) -> None:
    """The first deep layer has weights of 2 bits."""
    case.use(overrides={"deep.0": {"weight": {"bits": 2}}})


class Otherwise(Cinema):
    """What is deep comes before the product."""

    def forward(self, persons: Tensor, films: Tensor) -> Tensor:
        product = self.person(persons) * self.film(films)
        deep = self.deep(torch.cat([self.person_deep(persons), self.film_deep(films)], 1))
        return self.click(torch.cat([deep, product], 1))[:, 0]


@fault("cinema", ("click,cat,deep,mul", WIRED))
def cinema_joined_otherwise(case: Case) -> None:
    """The deep network's results are joined before the products."""
    case.model.__class__ = Otherwise


@fault("cinema", ("deep.2,deep.3", "clipped_range"))
def cinema_clipped(case: Case) -> None:
    """The last deep layer was given a range by hand that is far too narrow."""
    case.use(overrides={"deep.2*": {"activation": Scheme(fixed=(0.003, 0))}})


# --- a decoder ------------------------------------------------------------------------------------------------------


class Seeing(Turn):
    """Attention to everything, what comes later included."""

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        y = self.ln1(x)
        q, k, v = (
            part(y).view(count, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        y = self.ln2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@fault("scribe", ("blocks", "wrong_setting"))
def scribe_sees_ahead(case: Case) -> None:
    """The causal mask was lost."""
    for block in case.model.blocks:
        block.__class__ = Seeing


@fault("scribe", ("wpe,steps,add", WIRED))
def scribe_positions_from_one(case: Case) -> None:
    """Positions are counted from one."""
    case.model.steps.copy_((case.model.steps + 1).clamp(max=13))


@fault("scribe", ("lm_head", "wrong_weights"))
def scribe_tied(case: Case) -> None:
    """A loader tied the last layer to the table of numbers, which was trained apart from it."""
    case.module("lm_head").weight.data.copy_(case.module("wte").weight.data)


@fault("scribe", ("blocks.1", WIRED))
def scribe_gate_and_value(case: Case) -> None:
    """The gate and the value of the second block's map are exchanged."""
    gate, up = case.module("blocks.1.gate"), case.module("blocks.1.up")
    exchange(gate.weight, up.weight)
    exchange(gate.bias, up.bias)


class Sigmoid(Turn):
    """The gate is a sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        y = self.ln1(x)
        q, k, v = (
            part(y).view(count, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        y = self.ln2(x)
        return x + self.down(self.gate(y).sigmoid() * self.up(y))


@fault("scribe", ("blocks", "wrong_setting"))
def scribe_glu(case: Case) -> None:
    """Gates are sigmoids, as in the first paper, in place of SiLU."""
    for block in case.model.blocks:
        block.__class__ = Sigmoid


@fault("scribe", ("blocks.0", WIRED))
def scribe_query_interleaved(case: Case) -> None:
    """The rows of the first block's queries are interleaved among the heads."""
    weight = case.module("blocks.0.query").weight.data
    weight.copy_(weight.view(4, 8, 32).transpose(0, 1).reshape(32, 32).clone())


@fault("scribe", ("network,output,lm_head,numbers,input", INPUTS))
def scribe_labels_not_moved(case: Case) -> None:
    """Labels are the numbers themselves, and not those that follow."""
    case.data[1] = case.data[0].clone()


@fault("scribe", ("blocks.0.out", "wrong_weights"))
def scribe_zeros(case: Case) -> None:
    """The last map of the first attention is zero, as it is initialized for training."""
    case.module("blocks.0.out").weight.data.zero_()


# --- a detector -----------------------------------------------------------------------------------------------------


@fault("grid", ("conv2,norm2", "stale_batch_norm"))
def grid_second_norm(case: Case) -> None:
    """The second norm was copied without its statistics."""
    case.module("norm2").reset_running_stats()


@fault("grid", ("conv3", "wrong_weights"))
def grid_layer_anew(case: Case) -> None:
    """The third convolution was initialized again."""
    anew(case.module("conv3"))


@fault("grid", ("frame,input,network", INPUTS), ("conv1,norm1", "stale_batch_norm wrong_scale"))
def grid_bytes(case: Case) -> None:
    """Frames are whole bytes that nobody normalized."""
    case.data[0] = ((case.data[0] * 0.4 + 0.2) * 128).round()


@fault("grid", ("conv3,norm3", "exploded_channel"))
def grid_channel_explodes(case: Case) -> None:
    """One gain of the last norm is 300 times as large."""
    case.module("norm3").weight.data[6] *= 300


@fault("grid", ("calibration data", ALIEN))
def grid_covered_lens(case: Case) -> None:
    """Calibration frames were taken with the lens covered."""
    case.calibrate_on(lambda x: 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)) - 0.5, 128)


@fault("grid", ("conv2,norm2,leaky_relu", "clipped_range"))
def grid_clipped(case: Case) -> None:
    """The second convolution was given a range by hand that is far too narrow."""
    case.use(overrides={"conv2*": {"activation": Scheme(fixed=(0.004, 0))}})


class Plain(Grid):
    """ReLU in place of leaky ReLU."""

    def forward(self, frame: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(frame)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.cells(x)


@fault("grid", ("conv,norm,relu,leaky_relu", "wrong_setting"))
def grid_relu(case: Case) -> None:
    """Leaky ReLU became ReLU."""
    case.model.__class__ = Plain


# --- convolutions and memory ----------------------------------------------------------------------------------------


@fault("chirps", ("bands,input,network", INPUTS), ("conv_a,bn_a", "stale_batch_norm wrong_scale"))
def chirps_powers(case: Case) -> None:
    """The logarithm was forgotten where the program runs."""
    case.data[0] = (case.data[0] * 1.3 - 2.7).exp()


@fault("chirps", ("lower", WIRED))
def chirps_flattened_otherwise(case: Case) -> None:
    """The map behind the convolutions expects bands before channels."""
    weight = case.module("lower").weight.data
    weight.copy_(weight.view(24, 16, 4).transpose(1, 2).reshape(24, 64).clone())


class Early(Chirps):
    """The first state is read."""

    def forward(self, bands: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn_a(self.conv_a(bands))))
        x = self.pool(F.relu(self.bn_b(self.conv_b(x))))
        x = self.lower(x.permute(0, 3, 1, 2).flatten(2))
        return self.bird(self.rnn(x.tanh())[0][:, 0])


@fault("chirps", ("rnn,bird,getitem,select,slice,network", "wrong_setting"))
def chirps_first_step(case: Case) -> None:
    """The state of the first step is classified in place of the last."""
    case.model.__class__ = Early


class Unbent(Chirps):
    """No activation before the memory."""

    def forward(self, bands: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn_a(self.conv_a(bands))))
        x = self.pool(F.relu(self.bn_b(self.conv_b(x))))
        x = self.lower(x.permute(0, 3, 1, 2).flatten(2))
        return self.bird(self.rnn(x)[0][:, -1])


@fault("chirps", ("lower,rnn,tanh", "wrong_setting"))
def chirps_tanh_lost(case: Case) -> None:
    """The activation before the recurrent layer was left out."""
    case.model.__class__ = Unbent


@fault("chirps", ("rnn", "wrong_weights"))
def chirps_transposed(case: Case) -> None:
    """The recurrent weights came transposed, gate by gate."""
    transpose_gates(case.module("rnn"), ("weight_hh_l0",))


@fault("chirps", ("calibration data", ALIEN))
def chirps_calibrated_on_pauses(case: Case) -> None:
    """Calibration songs are of the pauses between the songs alone."""
    case.calibrate_on(lambda x: x.clamp(max=-0.4))


@fault("chirps", ("conv_b,bn_b,relu,pool", "stale_range clipped_range"))
def chirps_scales_kept(case: Case) -> None:
    """The weights changed after calibration: a norm gives forty times as much, and the next layer takes it back."""
    sim = case.simulate(replace(recipes.default(), scales="fixed", equalize=False))
    for model in (case.model, sim):
        found = dict(model.named_parameters())
        for path, factor in (("bn_b.weight", 40), ("bn_b.bias", 40), ("lower.weight", 1 / 40)):
            found[path].data *= factor


@fault("chirps", ("lower", "wide_range"))
def chirps_wide(case: Case) -> None:
    """The map before the recurrent layer was given a range by hand that is far too wide."""
    case.use(overrides={"lower": {"activation": Scheme(fixed=(1.5, 0))}})


# --- sound networks -------------------------------------------------------------------------------------------------


def fresh(name: str) -> Case:
    """Return a network as it is."""
    case: Case = case_of(Case, build(name))
    return case


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case = fresh(name)
    case.calibration, case.data = [part[:160] for part in case.data], [part[160:] for part in case.data]
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "glance": lambda: fresh("glance"),
    "stamp": lambda: calibrated("stamp"),
    "cards": lambda: fresh("cards"),
    "net": lambda: fresh("net"),
    "tongue": lambda: calibrated("tongue"),
    "heart": lambda: fresh("heart"),
    "estate": lambda: fresh("estate"),
    "faces": lambda: calibrated("faces"),
    "cinema": lambda: fresh("cinema"),
    "scribe": lambda: calibrated("scribe"),
    "grid": lambda: fresh("grid"),
    "chirps": lambda: calibrated("chirps"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "chirps_wide": "the range given by hand is said to clip, which it does: it has no values below 0",
    "grid_relu": "two points of a metric that is right or wrong for each sample are too few to tell",
    "heart_bit_flipped": "the channel of the weight is named before the weight",
}
"""What the doctor does not say first, and what it says."""
