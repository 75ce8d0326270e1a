"""A seventh set of faults, on twelve small networks trained for it, and sound ones, with the answers that are right.

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
from tests.diagnose.doctor.blind_networks_seventh import Dense, Reader, Tagger, build
from tests.diagnose.doctor.planting import (
    FaultWithAnswers,
    anew,
    asking,
    case_of,
    collect,
    exchange,
    norms_of,
    registering,
    train_on,
)
from torch import Tensor, nn

import intact8
from intact8 import Scheme, recipes

INPUTS = "wrong_setting wrong_scale wrong_weights float_network_wrong unlike_data"
"""Causes that name inputs prepared otherwise than in training."""

WIRED = "wrong_setting wrong_weights"
"""Causes that name an order, which lies in the wiring as well as in the weights."""

ALIEN = "unlike_data unrepresentative"
DIVERGED = "diverged_training float_network_wrong"
MINMAX = Scheme(observer="minmax")
PER_TENSOR = Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax")


class Case(planting.Case):
    """What the doctor is given."""

    def calibrate_on(self, change: Callable[[Tensor], Tensor]) -> None:
        """Calibrate on half of the samples, of which the first input is changed."""
        self.calibration = [change(self.data[0][:256].clone()), *(part[:256].clone() for part in self.data[1:])]
        self.data = [part[256:] for part in self.data]


FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- inverted residuals ---------------------------------------------------------------------------------------------


@fault("pocket", ("pixels,input,network", INPUTS), ("stem", "wrong_weights wrong_setting stale_batch_norm"))
def pocket_blue_first(case: Case) -> None:
    """Images are decoded with blue first, where the service runs."""
    case.data[0] = case.data[0].flip(1)


@fault("pocket", ("calibration data", ALIEN))
def pocket_calibration_in_bytes(case: Case) -> None:
    """Images for calibration are whole bytes that nobody normalized."""
    mean, deviation = torch.tensor([0.3, 0.35, 0.7])[:, None, None], torch.tensor([0.36, 0.2, 0.14])[:, None, None]
    case.calibrate_on(lambda x: (x * deviation + mean).mul(255).round())


@fault("pocket", ("", "per_tensor_weight"), ("stem,bottles,last", "channel_imbalance"))
def pocket_one_scale_of_weights(case: Case) -> None:
    """All weights have one scale per tensor, though depthwise channels differ."""
    case.use(weight=PER_TENSOR, equalize=False, bias_correction=False)


@fault("pocket", ("bottles.2", "wrong_setting"))
def pocket_no_shortcut(case: Case) -> None:
    """The third block was written without its shortcut."""
    case.module("bottles.2").skip = False


@fault(
    "pocket",
    ("", "stale_batch_norm"),
    ("pixels,input,network", "unlike_data float_network_wrong wrong_setting wrong_scale"),
)
def pocket_statistics_of_darker_images(case: Case) -> None:
    """Statistics were collected again on images three times as dark, with less contrast."""
    collect(case.model, case.data[0] * 0.3 - 0.8, norms_of(case.model))


@fault("pocket", ("bottles.1", "wrong_weights dead_channels"))
def pocket_pruned(case: Case) -> None:
    """Two thirds of the depthwise kernels of the second block were pruned, and nothing was trained afterwards."""
    case.module("bottles.1.body.spread").weight.data[::3] = 0
    case.module("bottles.1.body.spread").weight.data[1::3] = 0


@fault("pocket", ("bottles.1", "wrong_setting"))
def pocket_cap_lost(case: Case) -> None:
    """The activation behind the depthwise convolution of the second block was left out."""
    case.module("bottles.1.body").cap_s = nn.Identity()


# --- residuals with norms before ------------------------------------------------------------------------------------


@fault("preact", ("three.conv_b,three.bn_b", "exploded_channel"))
def preact_channel_explodes(case: Case) -> None:
    """One channel of a convolution is 300 times as large."""
    case.module("three.conv_b").weight.data[5] *= 300


@fault("preact", ("two.conv_b", "wrong_weights"))
def preact_layer_anew(case: Case) -> None:
    """One convolution was initialized again, since its name in the file had changed."""
    anew(case.module("two.conv_b"))


@fault("preact", ("two.bn_b,two.conv_a", "wrong_setting wrong_scale"))
def preact_eps(case: Case) -> None:
    """The eps of one norm was set to 10 by an exporter that mistook a percentage for it."""
    case.module("two.bn_b").eps = 10.0


@fault("preact", ("calibration data", ALIEN))
def preact_calibrated_on_noise(case: Case) -> None:
    """Nobody had images, so it was calibrated on noise."""
    case.calibrate_on(lambda x: 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))


@fault("preact", ("four.conv_a", "few_bits"))
def preact_two_bits(case: Case) -> None:
    """One convolution was given 2 bits by a search for a mixed precision."""
    case.use(overrides={"four.conv_a": {"weight": {"bits": 2}}})


@fault("preact", ("network,output,out", f"{WIRED} float_network_wrong"))
def preact_labels_as_text(case: Case) -> None:
    """The classes were numbered in the order of their names as text."""
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    case.data[1] = torch.tensor([sorted(names).index(name) for name in names])[case.data[1]]


@fault("preact", ("network", "training_mode batch_dependence"), ("two,one,three,four,final,entry", "training_mode"))
def preact_trains(case: Case) -> None:
    """The network was exported as it trains, and small batches decide."""
    case.model.train()


@fault("preact", ("three.conv_a,three.bn_b,four.conv_a,four.bn_b", "wrong_weights"))
def preact_layers_exchanged(case: Case) -> None:
    """The first convolutions of two blocks are exchanged."""
    exchange(case.module("three.conv_a").weight, case.module("four.conv_a").weight)


# --- dense connections ----------------------------------------------------------------------------------------------


@fault("dense", ("early,begin,between", "shared_range outlier_channel channel_imbalance input_imbalance"))
def dense_loud_branch(case: Case) -> None:
    """One layer's results are 150 times as large as those they are joined with; the norms behind take it back."""
    case.module("early.1.conv").weight.data *= 150
    for path in ("early.2.norm", "between.0"):
        norm = case.module(path)
        norm.running_mean[20:28] *= 150
        norm.running_var[20:28] *= 150**2
    case.use(between_layers="integer", equalize=False)


class NewFirst(nn.Module):
    """A layer that joins what is new before what is old."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm, self.conv = layer.norm, layer.conv

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.conv(F.relu(self.norm(x))), x], 1)


@fault("dense", ("late.2,norm_out,decide", WIRED), ("late.2,norm_out", "stale_batch_norm"))
def dense_new_first(case: Case) -> None:
    """The last layer joins its results before its inputs, as another framework does."""
    case.model.late[2] = NewFirst(case.model.late[2])


@fault("dense", ("calibration data", "outlier_sample"), ("x,input,begin", "heavy_tail wide_range"))
def dense_broken_pixel(case: Case) -> None:
    """One image for calibration holds a broken pixel of 60, and extremes are kept."""

    def break_one(x: Tensor) -> Tensor:
        x[77, 0, 3, 3] = 60
        return x

    case.calibrate_on(break_one)
    case.use(activation=MINMAX)


@fault("dense", ("between", "wrong_setting"))
def dense_maximum(case: Case) -> None:
    """The means between the groups became maxima."""
    case.module("between")[3] = nn.MaxPool2d(2)


@fault("dense", ("late", "wrong_weights"))
def dense_half_a_file(case: Case) -> None:
    """The file ended after the first group; the second is as initialized."""
    anew(case.module("late"))


@fault("dense", ("late,between,norm_out", "stale_batch_norm"))
def dense_never_collected(case: Case) -> None:
    """The statistics of the norms of the second group were never collected."""
    for norm in norms_of(case.module("late")):
        norm.reset_running_stats()


@fault("dense", ("", "rounded_weights"))
def dense_seven_numbers(case: Case) -> None:
    """All convolutions were rounded to seven numbers by a tool that made the file smaller."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d):
            step = module.weight.data.abs().max() / 3
            module.weight.data.copy_((module.weight.data / step).round() * step)


class Front(Dense):
    """The mean of the map's first row and column only."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.late(self.between(self.early(self.begin(x))))
        return self.decide(F.relu(self.norm_out(x))[:, :, 0, 0])


@fault("dense", ("norm_out,decide,late.2,select,getitem,relu,network", "wrong_setting"))
def dense_corner(case: Case) -> None:
    """The first place of the map is classified, in place of the mean."""
    case.model.__class__ = Front


# --- modern convolutions --------------------------------------------------------------------------------------------


@fault("modern", ("blocks", "wrong_setting"))
def modern_without_gelu(case: Case) -> None:
    """The blocks' GELU was lost by a script that removes modules without parameters."""
    for block in case.model.blocks:
        block.act = nn.Identity()


@fault("modern", ("blocks.0", "wrong_weights wrong_scale"))
def modern_gamma(case: Case) -> None:
    """The first block's layer scale is a millionth, as it is initialized in the paper."""
    case.module("blocks.0").gamma.data.fill_(1e-6)


@fault("modern", ("", "few_bits"))
def modern_activations_of_three_bits(case: Case) -> None:
    """All activations have 3 bits."""
    case.use(activation=Scheme(bits=3))


@fault("modern", ("img,input", "clipped_range zero_point"))
def modern_input_range(case: Case) -> None:
    """The input has the range of bytes between 0 and 1, though images are normalized."""
    case.use(inputs={"*": Scheme(fixed=(1 / 255, 0))})


@fault("modern", ("blocks", "wrong_weights"))
def modern_kernels_turned(case: Case) -> None:
    """Depthwise kernels came from a file with width before height."""
    for block in case.model.blocks:
        block.deep.weight.data.copy_(block.deep.weight.data.transpose(2, 3).clone())


@fault("modern", ("img,input,network", INPUTS), ("patch", "wrong_scale wrong_weights"))
def modern_paper_and_ink(case: Case) -> None:
    """Images come from a scanner: dark ink on white paper."""
    case.data[0] = -case.data[0]


@fault("modern", ("blocks.1,blocks.2", "wrong_weights"))
def modern_block_twice(case: Case) -> None:
    """A script that renamed weights wrote those of the second block's maps into the third block, too."""
    for name in ("up", "down"):
        case.module(f"blocks.2.{name}").load_state_dict(case.module(f"blocks.1.{name}").state_dict())


# --- an encoder of words --------------------------------------------------------------------------------------------


@fault("reader", ("places,add", WIRED))
def reader_places_reversed(case: Case) -> None:
    """The table of positions lies the other way round."""
    case.model.places.data.copy_(case.model.places.data.flip(0).clone())


@fault("reader", ("ids,input,network,words", INPUTS))
def reader_another_vocabulary(case: Case) -> None:
    """The tokenizer counts words from another first index, so that all words are one too high."""
    ids = case.data[0]
    case.data[0] = torch.where(ids > 0, (ids + 1).clamp(max=29), ids)


@fault("reader", ("encoder.layers.0.self_attn", WIRED))
def reader_key_and_value(case: Case) -> None:
    """The first attention's projections lie in the order query, value, key."""
    attention = case.module("encoder.layers.0.self_attn")
    exchange(attention.in_proj_weight.data[32:64], attention.in_proj_weight.data[64:])
    exchange(attention.in_proj_bias.data[32:64], attention.in_proj_bias.data[64:])


class Last(Reader):
    """The last word is classified."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(self.words(ids) + self.places, src_key_padding_mask=ids == 0)
        return self.head(x[:, -1])


@fault("reader", ("encoder,head,select,network", "wrong_setting"))
def reader_last_word(case: Case) -> None:
    """The last word is classified, as in a decoder, though it may be padding, in place of the mean."""
    case.model.__class__ = Last


@fault("reader", ("encoder.layers.1", "outlier_channel channel_imbalance input_imbalance"))
def reader_loud_channels(case: Case) -> None:
    """Two channels behind a norm are 150 times as large, which the next layer takes back."""
    layer = case.module("encoder.layers.1")
    for channel in (3, 17):
        layer.norm2.weight.data[channel] *= 150
        layer.norm2.bias.data[channel] *= 150
        layer.linear1.weight.data[:, channel] /= 150
    case.use(activation=MINMAX, equalize=False)


@fault("reader", ("encoder.layers", "wrong_scale wrong_setting wrong_weights"))
def reader_divided_twice(case: Case) -> None:
    """A converter divided queries and keys by the root of the head's width, and the attention divides by it again."""
    for layer in case.model.encoder.layers:
        layer.self_attn.in_proj_weight.data[:32] /= 8**0.5
        layer.self_attn.in_proj_bias.data[:32] /= 8**0.5
        layer.self_attn.in_proj_weight.data[32:64] /= 8**0.5
        layer.self_attn.in_proj_bias.data[32:64] /= 8**0.5


# --- a tagger -------------------------------------------------------------------------------------------------------


@fault("tagger", ("gru", WIRED))
def tagger_gates(case: Case) -> None:
    """The gates lie in the order of another framework, update before reset."""
    for parameter in case.model.gru.parameters():
        exchange(parameter.data[:20], parameter.data[20:40])


class Turned(Tagger):
    """The way back comes first."""

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.gru(self.lookup(tokens))[0]
        return self.tags(torch.cat([states[..., 20:], states[..., :20]], -1))


@fault("tagger", ("gru,tags,cat", WIRED))
def tagger_ways_exchanged(case: Case) -> None:
    """The states of the way back are joined before those of the way there."""
    case.model.__class__ = Turned


@fault("tagger", ("gru", "wrong_setting"))
def tagger_along_samples(case: Case) -> None:
    """The recurrent layer takes samples for steps."""
    case.module("gru").batch_first = False


@fault("tagger", ("gru", "few_bits"))
def tagger_two_bits(case: Case) -> None:
    """The recurrent layer's weights have 2 bits."""
    case.use(overrides={"gru": {"weight": {"bits": 2}}})


@fault("tagger", ("lookup", "exploded_weight exploded_channel"))
def tagger_row_explodes(case: Case) -> None:
    """The rows of two words are 80 times as large."""
    case.module("lookup").weight.data[[4, 9]] *= 80


@fault("tagger", ("gru", "exploded_weight large_bias wrong_weights"))
def tagger_gates_held(case: Case) -> None:
    """The biases of the update gates are so large that states hardly change."""
    case.module("gru").bias_ih_l0.data[20:40] += 60
    case.module("gru").bias_ih_l0_reverse.data[20:40] += 60


@fault("tagger", ("calibration data", f"no_variety too_few {ALIEN}"))
def tagger_one_text(case: Case) -> None:
    """It was calibrated on one word, again and again."""
    case.calibrate_on(lambda x: torch.full_like(x, 7))


# --- dilated convolutions in time -----------------------------------------------------------------------------------


@fault("temporal", ("d4", "wrong_setting"))
def temporal_padded_both_sides(case: Case) -> None:
    """One convolution is padded on both sides, so that it sees the future."""
    case.module("d4").pad = nn.ConstantPad1d(4, 0.0)


@fault("temporal", ("d8", "wrong_setting"))
def temporal_dilation(case: Case) -> None:
    """The dilation of the fourth block was lost."""
    case.module("d8").conv.dilation = (1,)
    case.module("d8").pad = nn.ConstantPad1d((2, 0), 0.0)


@fault("temporal", ("verdict,select,d1b,network", "wrong_setting"))
def temporal_first_step(case: Case) -> None:
    """The first step is classified in place of the last."""
    case.model.step = 0


@fault("temporal", ("calibration data", ALIEN))
def temporal_quiet(case: Case) -> None:
    """Signals for calibration were recorded at a twentieth of the gain."""
    case.calibrate_on(lambda x: x * 0.05)


@fault("temporal", ("d2", "wide_range"))
def temporal_wide(case: Case) -> None:
    """A sum was given a range by hand that is far too wide."""
    case.use(overrides={"d2.conv*": {"activation": Scheme(fixed=(1.5, 20))}})


@fault("temporal", ("network", DIVERGED), ("", "diverged_training"))
def temporal_last_epoch(case: Case) -> None:
    """A last epoch had a rate forty times too large."""
    train_on(case, 0.4, 40)


@fault("temporal", ("d1.conv,d1.norm", "exploded_channel stale_batch_norm"))
def temporal_tiny_variance(case: Case) -> None:
    """The variance of two channels became a hundred thousandth, as where a sensor was off."""
    case.module("d1.norm").running_var[[2, 9]] *= 1e-5


@fault("temporal", ("signal,input,network", INPUTS), ("mix", WIRED))
def temporal_cables(case: Case) -> None:
    """The two channels' cables are exchanged."""
    case.data[0] = case.data[0].flip(1)


# --- two heads ------------------------------------------------------------------------------------------------------


@fault("spotter", ("box,sigmoid,mul,output", WIRED))
def spotter_rows_first(case: Case) -> None:
    """The box head comes from a framework that gives top, left, bottom, right."""
    order = [1, 0, 3, 2]
    case.module("box").weight.data.copy_(case.module("box").weight.data[order].clone())
    case.module("box").bias.data.copy_(case.module("box").bias.data[order].clone())


@fault("spotter", ("calibration data", f"no_variety {ALIEN}"))
def spotter_empty(case: Case) -> None:
    """Calibration images are of an empty stage, and black."""
    case.calibrate_on(lambda x: torch.zeros_like(x))


@fault("spotter", ("c1,c2", "wrong_setting"))
def spotter_padding(case: Case) -> None:
    """Both strided convolutions are padded on the right and below only."""
    for path in ("c1", "c2"):
        conv = case.module(path)
        conv.padding = 0
        setattr(case.model, path, nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), conv))


@fault("spotter", ("neck", "stale_range clipped_range"), ("leaky_relu", "stale_range clipped_range"))
def spotter_scales_kept(case: Case) -> None:
    """The weights changed after calibration: the neck gives eight times as much, and the heads take it back."""
    sim = case.simulate(replace(recipes.default(), scales="fixed", equalize=False))
    for model in (case.model, sim):
        found = dict(model.named_parameters())
        for path, factor in (("neck.weight", 8), ("neck.bias", 8), ("kind.weight", 1 / 8), ("box.weight", 1 / 8)):
            found[path].data *= factor


@fault("spotter", ("neck", "wrong_weights"))
def spotter_flattened_otherwise(case: Case) -> None:
    """The neck's weights expect channels last."""
    weight = case.module("neck").weight.data
    weight.copy_(weight.view(48, 24, 16).transpose(1, 2).reshape(48, 384).clone())


# --- a table --------------------------------------------------------------------------------------------------------


@fault("ledger", ("columns,input,network,codes,first,add", INPUTS))
def ledger_second_column(case: Case) -> None:
    """The second column's codes begin with 0 for unknown, where training began with the first known one."""
    case.data[0] = case.data[0].clone()
    case.data[0][:, 1] = (case.data[0][:, 1] + 1).clamp(max=9)


@fault(
    "ledger", ("amounts,input,network", INPUTS), ("scaling", "stale_batch_norm wrong_scale wrong_weights wrong_setting")
)
def ledger_cents(case: Case) -> None:
    """The fourth amount is in another unit, 25 times as large."""
    case.data[1] = case.data[1] * torch.tensor([1.0, 1, 1, 25, 1, 1])


@fault("ledger", ("network,output,score", f"{WIRED} float_network_wrong"))
def ledger_classes_from_one(case: Case) -> None:
    """Classes are counted from one, and the fourth became the zeroth."""
    case.data[2] = (case.data[2] + 1) % 4


@fault("ledger", ("amounts,input,network,scaling", f"{INPUTS} stale_batch_norm"))
def ledger_columns_exchanged(case: Case) -> None:
    """Two amounts are exchanged, since the table was sorted by its headings."""
    case.data[1] = case.data[1][:, [0, 4, 2, 3, 1, 5]]


@fault("ledger", ("l2,n2", "stale_batch_norm"))
def ledger_second_norm(case: Case) -> None:
    """The second norm was copied by itself, without its running statistics."""
    case.module("n2").reset_running_stats()


@fault("ledger", ("l1,n1", "wrong_setting wrong_scale"))
def ledger_eps(case: Case) -> None:
    """The first layer's norm has an eps of 20, which a typing error made of 2e-5."""
    case.module("n1").eps = 20.0


# --- an autoencoder -------------------------------------------------------------------------------------------------


@fault("coder", ("mu,spread", WIRED))
def coder_spread_for_mean(case: Case) -> None:
    """The layers of means and of spreads are exchanged."""
    exchange(case.module("mu").weight, case.module("spread").weight)
    exchange(case.module("mu").bias, case.module("spread").bias)


@fault("coder", ("drawn.5,drawn.6,network,output", "wrong_setting"))
def coder_without_sigmoid(case: Case) -> None:
    """The last sigmoid stayed in the loss function of another version."""
    case.model.drawn[6] = nn.Identity()


@fault("coder", ("calibration data", ALIEN))
def coder_calibrated_in_the_dark(case: Case) -> None:
    """Images for calibration were divided by the largest value twice, so that they are nearly black."""
    case.calibrate_on(lambda x: x / 16)


@fault("coder", ("drawn.3,drawn.5", "wrong_weights"))
def coder_kernels_turned(case: Case) -> None:
    """The transposed convolutions' kernels lie the other way round."""
    for index in (3, 5):
        case.model.drawn[index].weight.data.copy_(case.model.drawn[index].weight.data.flip(2, 3).clone())


@fault("coder", ("mu", "wrong_scale wrong_weights"))
def coder_collapsed(case: Case) -> None:
    """Weight decay made the layer of means nearly nothing."""
    case.module("mu").weight.data *= 0.1
    case.module("mu").bias.data *= 0.1


@fault("coder", ("mu", "few_bits"))
def coder_code_of_two_bits(case: Case) -> None:
    """The ten numbers have 2 bits each."""
    case.use(overrides={"mu": {"activation": {"bits": 2}}})


# --- sounds ---------------------------------------------------------------------------------------------------------


@fault("spoken", ("mel,input,network", INPUTS), ("front", "stale_batch_norm wrong_scale"))
def spoken_not_normalized(case: Case) -> None:
    """Logarithms are not normalized where the program runs."""
    case.data[0] = case.data[0] * 2 - 2.5


@fault("spoken", ("mel,input,network", INPUTS), ("front,bands", "wrong_weights"))
def spoken_bands_reversed(case: Case) -> None:
    """The bands begin with the highest."""
    case.data[0] = case.data[0].flip(2)


@fault("spoken", ("calibration data", ALIEN))
def spoken_powers(case: Case) -> None:
    """Calibration data are powers and not their logarithms."""
    case.calibrate_on(lambda x: (2 * x - 2.5).exp())


@fault("spoken", ("middle", "exploded_weight"))
def spoken_bit_flipped(case: Case) -> None:
    """A bit of one weight's exponent flipped."""
    case.module("middle").weight.data[3, 5, 1, 1] = 40.0


@fault("spoken", ("network", DIVERGED), ("", "diverged_training"))
def spoken_simulation_diverged(case: Case) -> None:
    """Training with quantization had a rate far too large."""
    sim = case.simulate(recipes.qat())
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=1.0), momentum=0.9)
    sim.train()
    for _ in range(30):
        rows = torch.randint(len(case.data[0]), (32,))
        optimizer.zero_grad()
        F.cross_entropy(sim(case.data[0][rows]), case.data[1][rows]).backward()
        optimizer.step()
    sim.eval()


@fault("spoken", ("frames", "wrong_weights"))
def spoken_transposed(case: Case) -> None:
    """The frames' convolution is square, and its file had inputs before outputs."""
    case.module("frames").weight.data.copy_(case.module("frames").weight.data.transpose(0, 1).clone())


# --- tumours --------------------------------------------------------------------------------------------------------


@fault("clinic", ("calibration data", ALIEN))
def clinic_raw_calibration(case: Case) -> None:
    """Calibration data are measurements that were not standardized."""
    spread = torch.logspace(-2, 2.5, 30)
    case.calibrate_on(lambda x: (x + 3) * spread)


@fault("clinic", ("enter,inner,leave", "wrong_weights rounded_weights"))
def clinic_whole_numbers(case: Case) -> None:
    """One layer's weights went through whole numbers."""
    weight = case.module("enter").weight.data
    weight.copy_((weight * 2).trunc() / 2)


@fault("clinic", ("network,output,leave", f"{WIRED} wrong_scale float_network_wrong"))
def clinic_benign_is_one(case: Case) -> None:
    """Malignant and benign are exchanged in the answers."""
    case.data[1] = 1 - case.data[1]


@fault("clinic", ("", "few_bits per_tensor_weight"))
def clinic_two_bits(case: Case) -> None:
    """All weights have 2 bits."""
    case.use(weight=Scheme(dtype="int8", symmetric=True, bits=2, granularity="per_channel", observer="minmax"))


@fault("clinic", ("inner", "wrong_weights"))
def clinic_square(case: Case) -> None:
    """The square layer came transposed."""
    case.module("inner").weight.data.copy_(case.module("inner").weight.data.t().clone())


# --- sound networks -------------------------------------------------------------------------------------------------


def fresh(name: str) -> Case:
    """Return a network as it is."""
    case: Case = case_of(Case, build(name))
    return case


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case = fresh(name)
    case.calibration, case.data = [part[:200] for part in case.data], [part[200:] for part in case.data]
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "pocket": lambda: fresh("pocket"),
    "preact": lambda: calibrated("preact"),
    "dense": lambda: fresh("dense"),
    "modern": lambda: calibrated("modern"),
    "reader": lambda: fresh("reader"),
    "tagger": lambda: fresh("tagger"),
    "temporal": lambda: calibrated("temporal"),
    "spotter": lambda: fresh("spotter"),
    "ledger": lambda: fresh("ledger"),
    "coder": lambda: calibrated("coder"),
    "spoken": lambda: fresh("spoken"),
    "clinic": lambda: fresh("clinic"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)

QUICK: tuple[str, ...] = ("ledger_eps",)
"""Those of which network and examination take a second or two."""

MISSED: dict[str, str] = {
    "coder_spread_for_mean": "the layer that should be read is not in the graph",
    "dense_corner": "the slice that takes the corner is named, which no answer does",
    "reader_last_word": "it costs four answers in a hundred, and a weight of the other sign makes up for it",
    "reader_places_reversed": "indices in reverse order give as many answers back",
    "spotter_rows_first": "it is judged by its classes, which are right, and not by its boxes",
    "tagger_along_samples": "its place and its remedy, batch_first=True, are named, by another cause",
    "temporal_first_step": "the slice that takes the step is named, which no answer does",
    "temporal_last_epoch": "all layers are off, and the first is named",
}
"""What the doctor does not say first, and why."""

WEAK: dict[str, str] = {"dense": "parts that are joined differ in width, which makes most of the noise"}
"""Networks without a fault against which something is said."""

STRICT = True
"""What is missed is to be missed: a test that passes all the same fails."""
