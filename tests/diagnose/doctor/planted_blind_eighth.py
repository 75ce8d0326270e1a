"""An eighth set of faults, on ten small networks trained for it, and sound ones, with the answers that are right.

Who wrote these had read the page on the doctor and not its code, and wrote the answers before it was asked. None was
changed afterwards. Faults that cost less than two points of accuracy and a few decibels were left out before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor import planting
from tests.diagnose.doctor.blind_networks_eighth import (
    Attention,
    Beat,
    Kim,
    Squeeze,
    Tracker,
    Unet,
    Unit,
    Vit,
    Wide,
    build,
)
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
        """Calibrate on half of the samples (256 at most), of which the inputs are changed."""
        half = min(256, len(self.data[0]) // 2)
        self.calibration = [change(self.data[0][:half].clone()), *(part[:half].clone() for part in self.data[1:])]
        self.data = [part[half:] for part in self.data]


FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- a vision transformer -------------------------------------------------------------------------------------------


class Pooled(Vit):
    """The mean of the patches is classified."""

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(image), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.layers(x))[:, 1:].mean(1))


@fault("vit", ("norm,head,getitem,select,slice,mean,network", "wrong_setting"))
def vit_mean_of_patches(case: Case) -> None:
    """The mean of the patches is classified, where training read the token."""
    case.model.__class__ = Pooled


class Interleaved(Attention):
    """Queries, keys and values lie head by head."""

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, self.heads, 3, width // self.heads).permute(3, 0, 2, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, count, width))


@fault("vit", ("layers", WIRED))
def vit_heads_interleaved(case: Case) -> None:
    """Another library's attention, which reads queries, keys and values head by head, was given the weights."""
    for layer in case.model.layers:
        layer.attn.__class__ = Interleaved


@fault("vit", ("pos,add,cat", WIRED))
def vit_positions_by_columns(case: Case) -> None:
    """The table of positions goes through the patches column by column."""
    grid = case.model.pos.data[:, 1:].view(1, 4, 4, 32)
    case.model.pos.data[:, 1:] = grid.transpose(1, 2).reshape(1, 16, 32).clone()


@fault("vit", ("pos,add,cat", WIRED))
def vit_token_last_in_table(case: Case) -> None:
    """The table of positions has the token's row at its end."""
    case.model.pos.data = case.model.pos.data.roll(-1, 1)


@fault("vit", ("", "few_bits"))
def vit_three_bits(case: Case) -> None:
    """All weights have 3 bits."""
    case.use(weight=Scheme(dtype="int8", bits=3, symmetric=True, granularity="per_channel", observer="minmax"))


@fault("vit", ("layers.0", "outlier_channel channel_imbalance input_imbalance"))
def vit_loud_channels(case: Case) -> None:
    """Three channels behind the first layer's second norm are 300 times as large, which the next map takes back."""
    layer = case.module("layers.0")
    for channel in (5, 11, 29):
        layer.norm2.weight.data[channel] *= 300
        layer.norm2.bias.data[channel] *= 300
        layer.mlp.fc1.weight.data[:, channel] /= 300
    case.use(activation=MINMAX, equalize=False)


@fault("vit", ("layers.1.mlp", "wrong_weights"))
def vit_maps_of_the_first_layer(case: Case) -> None:
    """The second layer's maps were loaded from those of the first."""
    case.module("layers.1.mlp").load_state_dict(case.module("layers.0.mlp").state_dict())


@fault("vit", ("calibration data", ALIEN))
def vit_calibration_not_normalized(case: Case) -> None:
    """Images for calibration are between 0 and 255, since the transformation was left out."""
    case.calibrate_on(lambda x: (x * 0.25 + 0.5) * 255)


class Undivided(Attention):
    """Scores are not divided."""

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(batch, count, width))


@fault("vit", ("layers,matmul,softmax,network", "wrong_setting wrong_scale wrong_weights"))
def vit_not_divided(case: Case) -> None:
    """Scores are not divided by the root of the head's width."""
    for layer in case.model.layers:
        layer.attn.__class__ = Undivided


# --- segmentation ---------------------------------------------------------------------------------------------------


class Across(Unet):
    """What comes from below is joined first."""

    def forward(self, scan: Tensor) -> Tensor:
        one = self.enc1(scan)
        two = self.enc2(self.pool(one))
        x = self.up2(self.bottom(self.pool(two)))
        x = self.up1(self.dec2(torch.cat([x, two], 1)))
        return self.last(self.dec1(torch.cat([x, one], 1)))


@fault("unet", ("dec2,dec1,up2,up1,cat", WIRED))
def unet_joined_otherwise(case: Case) -> None:
    """Both ways across are joined behind what comes from below, as other people do."""
    case.model.__class__ = Across


@fault("unet", ("dec1", "stale_batch_norm"))
def unet_norms_of_the_last_stage(case: Case) -> None:
    """The last stage's norms came without their running statistics."""
    for norm in norms_of(case.module("dec1")):
        norm.reset_running_stats()


@fault("unet", ("network,output,last", f"{WIRED} float_network_wrong"), ("scan,input", INPUTS))
def unet_masks_upside_down(case: Case) -> None:
    """Masks were saved by a tool that counts rows from below."""
    case.data[1] = case.data[1].flip(1)


@fault("unet", ("network,output,last", f"{WIRED} float_network_wrong"))
def unet_classes_of_another_tool(case: Case) -> None:
    """The annotation tool counts box, wedge, disc, where training counted disc, box, wedge."""
    case.data[1] = torch.tensor([0, 3, 1, 2])[case.data[1]]


@fault("unet", ("up1", "wrong_weights"))
def unet_step_up_anew(case: Case) -> None:
    """The last step up was initialized anew, since its shape had once been another."""
    anew(case.module("up1"))


@fault("unet", ("calibration data", ALIEN))
def unet_bytes(case: Case) -> None:
    """Scans for calibration are whole bytes."""
    case.calibrate_on(lambda x: (x.clamp(0, 1) * 255).round())


@fault("unet", ("enc1", "wrong_setting"))
def unet_bend_lost(case: Case) -> None:
    """Both ReLU of the first stage were left out."""
    case.model.enc1[2] = nn.Identity()
    case.model.enc1[5] = nn.Identity()


@fault("unet", ("calibration data", f"no_variety one_class {ALIEN}"))
def unet_empty_scans(case: Case) -> None:
    """Calibration scans show nothing but noise in the dark."""
    rng = torch.Generator().manual_seed(3)
    case.calibrate_on(lambda x: 0.02 * torch.randn(x.shape, generator=rng))


@fault("unet", ("pool", "wrong_setting"))
def unet_means(case: Case) -> None:
    """Both maxima became means."""
    case.model.pool = nn.AvgPool2d(2)


@fault("unet", ("scan,input,network", INPUTS), ("enc1", "wrong_scale stale_batch_norm wrong_weights"))
def unet_inverted(case: Case) -> None:
    """Scans are stored with white for nothing."""
    case.data[0] = 1 - case.data[0]


@fault("unet", ("", "few_bits symmetric_range"))
def unet_symmetric_four_bits(case: Case) -> None:
    """Activations are symmetric and have 4 bits."""
    case.use(activation=Scheme(dtype="int8", bits=4, symmetric=True))


# --- a recurrent network over measurements --------------------------------------------------------------------------


class Early(Tracker):
    """The first step's state is classified."""

    def forward(self, axes: Tensor) -> Tensor:
        return self.activity(self.drop(self.lstm(axes)[0][:, 0]))


@fault("tracker", ("lstm,activity,getitem,select,slice,network", "wrong_setting"))
def tracker_first_state(case: Case) -> None:
    """The first step's state is classified, by a port from a framework that returns the newest first."""
    case.model.__class__ = Early


@fault("tracker", ("lstm", WIRED))
def tracker_gates(case: Case) -> None:
    """The gates lie in the order in, forget, out, cell."""
    for parameter in case.model.lstm.parameters():
        exchange(parameter.data[48:72], parameter.data[72:])


@fault("tracker", ("axes,input,network", INPUTS), ("lstm", WIRED))
def tracker_newest_first(case: Case) -> None:
    """The buffer hands measurements out newest first."""
    case.data[0] = case.data[0].flip(1)


@fault("tracker", ("lstm", "wrong_weights"))
def tracker_layers_exchanged(case: Case) -> None:
    """The recurrent weights of both layers are exchanged."""
    exchange(case.model.lstm.weight_hh_l0, case.model.lstm.weight_hh_l1)


@fault("tracker", ("axes,input,network", INPUTS), ("lstm", "wrong_scale wrong_weights"))
def tracker_metres(case: Case) -> None:
    """The sensor gives metres per second squared, where training had multiples of gravity."""
    case.data[0] = case.data[0] * 9.81


@fault("tracker", ("axes,input,network", INPUTS), ("lstm", WIRED))
def tracker_mounted_otherwise(case: Case) -> None:
    """The sensor was mounted on its side: first and third axis are exchanged."""
    case.data[0] = case.data[0].flip(2)


@fault("tracker", ("lstm", "exploded_weight large_bias wrong_weights"))
def tracker_gates_shut(case: Case) -> None:
    """The second layer's biases of the out gate became so large in a merge that they stay shut."""
    case.model.lstm.bias_hh_l1.data[72:] -= 50


@fault("tracker", ("calibration data", ALIEN), ("axes,input", "clipped_range"))
def tracker_calibrated_at_rest(case: Case) -> None:
    """Nobody moved while the calibration data were recorded."""
    rng = torch.Generator().manual_seed(3)
    case.calibrate_on(lambda x: torch.tensor([0.1, -0.2, 1.0]) + 0.02 * torch.randn(x.shape, generator=rng))


@fault("tracker", ("lstm", "few_bits"))
def tracker_two_bits(case: Case) -> None:
    """The recurrent layers' weights have 2 bits."""
    case.use(overrides={"lstm": {"weight": {"bits": 2}}})


# --- residual convolutions on one signal ----------------------------------------------------------------------------


@fault("pulse", ("lead,input,network", INPUTS))
def pulse_sampled_slower(case: Case) -> None:
    """Signals were recorded at two thirds of the rate, and the rest of the window is empty."""
    slower = F.interpolate(case.data[0], size=64, mode="linear", align_corners=False)
    case.data[0] = F.pad(slower, (0, 32))


@fault("pulse", ("lead,input,network", INPUTS), ("stem", "wrong_scale wrong_weights"))
def pulse_electrodes_exchanged(case: Case) -> None:
    """Electrodes are exchanged, so that beats point downwards."""
    case.data[0] = -case.data[0]


class Straight(Beat):
    """Without the way around."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@fault("pulse", ("layer1", "wrong_setting"))
def pulse_no_shortcut(case: Case) -> None:
    """The first block was written without its shortcut."""
    case.module("layer1").__class__ = Straight


@fault("pulse", ("", "wrong_weights wrong_setting wrong_scale"))
def pulse_folded_and_applied(case: Case) -> None:
    """Weights have the norms in them already, and the norms are applied again."""
    pairs = [(case.model.stem[0], case.model.stem[1])]
    for path in ("layer1", "layer2", "layer3"):
        block = case.module(path)
        pairs += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    for conv, norm in pairs:
        factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
        conv.weight.data *= factor[:, None, None]


@fault("pulse", ("calibration data", "outlier_sample"), ("lead,input,stem", "heavy_tail wide_range"))
def pulse_electrode_fell_off(case: Case) -> None:
    """In one signal for calibration an electrode fell off, and extremes are kept."""

    def fall(x: Tensor) -> Tensor:
        x[40, 0, 50:55] = 150
        return x

    case.calibrate_on(fall)
    case.use(activation=MINMAX)


@fault("pulse", ("layer2", "dead_channels wrong_weights"))
def pulse_dead_channels(case: Case) -> None:
    """Fifteen of twenty gains of a norm were set to zero by a script that prunes, with their biases."""
    norm = case.module("layer2.bn1")
    norm.weight.data[:15] = 0
    norm.bias.data[:15] = 0


@fault("pulse", ("", "stale_batch_norm"))
def pulse_last_batch(case: Case) -> None:
    """Momentum was 1, and the last batch held three signals of one class."""
    rows = (case.data[1] == 2).nonzero()[:3, 0]
    collect(case.model, case.data[0][rows], norms_of(case.model))


@fault("pulse", ("stem,pool", "wrong_setting"))
def pulse_mean_pool(case: Case) -> None:
    """The stem's maxima became means."""
    case.model.pool = nn.AvgPool1d(3, 2, 1)


@fault("pulse", ("layer1.conv2,layer1.bn2", "exploded_channel wrong_weights"))
def pulse_gain_explodes(case: Case) -> None:
    """One gain of a norm lost its decimal point."""
    case.module("layer1.bn2").weight.data[4] *= 1000


@fault("pulse", ("", "moving_average"), ("calibration data", ALIEN))
def pulse_quiet_ones_last(case: Case) -> None:
    """Signals for calibration lie in the order of their strength, and the observer forgets the strong ones."""

    def sort(x: Tensor) -> Tensor:
        return x[x.abs().amax((1, 2)).argsort(descending=True)] * torch.linspace(1, 0.1, len(x))[:, None, None]

    case.calibrate_on(sort)
    case.use(activation=Scheme(observer="moving_average", observer_args={"averaging_constant": 0.9}))


@fault("pulse", ("calibration data", ALIEN))
def pulse_volts(case: Case) -> None:
    """Signals for calibration are in another unit, a fiftieth as large."""
    case.calibrate_on(lambda x: x / 50)


@fault("pulse", ("layer1.conv1,layer1.bn1,relu", "clipped_range"), ("layer1", "clipped_range"))
def pulse_range_by_hand(case: Case) -> None:
    """The results of one convolution were given a range by hand that is far too narrow."""
    case.use(overrides={"layer1.conv1": {"activation": {"fixed": (0.001, 0)}}})


# --- regression -----------------------------------------------------------------------------------------------------


@fault("valve", ("network,output,exit", "float_network_wrong wrong_scale wrong_setting wrong_weights"))
def valve_fahrenheit(case: Case) -> None:
    """Temperatures to compare with are in another unit, 1.8 times as large and shifted by 32."""
    case.data[1] = case.data[1] * torch.tensor([1.0, 1.8]) + torch.tensor([0.0, 32.0])


@fault("valve", ("network,output,exit", f"float_network_wrong {WIRED}"))
def valve_answers_exchanged(case: Case) -> None:
    """The file has temperature before flow."""
    case.data[1] = case.data[1].flip(1)


@fault("valve", ("sensors,input", INPUTS), ("entry", "exploded_channel wrong_scale"))
def valve_sentinel(case: Case) -> None:
    """A broken sensor's values are -9 everywhere."""
    case.data[0] = case.data[0].clone()
    case.data[0][:, 5] = -9


@fault("valve", ("sensors,input,network", INPUTS), ("entry", WIRED))
def valve_columns_turned(case: Case) -> None:
    """The first three sensors come in alphabetical order."""
    case.data[0] = case.data[0][:, [2, 0, 1, 3, 4, 5, 6, 7]]


@fault("valve", ("exit", "clipped_range zero_point"))
def valve_answers_clipped(case: Case) -> None:
    """The answers' range was set by hand from minus 1 to 1."""
    case.use(overrides={"exit": {"activation": {"fixed": (1 / 128, 128)}}})


@fault("valve", ("b1", "wrong_setting"))
def valve_bend(case: Case) -> None:
    """The first block's ReLU became a hyperbolic tangent."""

    class Bent(Wide):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.narrow(torch.tanh(self.wide(self.ln(x))))

    case.module("b1").__class__ = Bent


@fault("valve", ("b2.narrow", "outlier_weight input_imbalance exploded_channel exploded_weight"))
def valve_dead_unit(case: Case) -> None:
    """A unit that is never alive has weights of 60 behind it, which nobody notices in float."""
    block = case.module("b2")
    block.wide.bias.data[7] = -100
    block.wide.weight.data[7] = 0
    block.narrow.weight.data[:, 7] = 60


@fault("valve", ("b2", "stale_range clipped_range"))
def valve_scales_kept(case: Case) -> None:
    """The weights changed after calibration: one map gives ten times as much, and the next takes it back."""
    sim = case.simulate(replace(recipes.default(), scales="fixed", equalize=False))
    for model in (case.model, sim):
        found = dict(model.named_parameters())
        for path, factor in (("b2.wide.weight", 10), ("b2.wide.bias", 10), ("b2.narrow.weight", 0.1)):
            found[path].data *= factor


@fault("valve", ("", "few_bits symmetric_range"))
def valve_four_bits(case: Case) -> None:
    """All activations have 4 bits."""
    case.use(activation=Scheme(bits=4))


# --- embeddings -----------------------------------------------------------------------------------------------------


@fault("face", ("network,bn,embed", "training_mode"), ("network", "batch_dependence"))
def face_norm_in_training(case: Case) -> None:
    """The norm was left in training mode, and the folder is read class by class."""
    order = case.data[1].argsort(stable=True)
    case.data = [part[order] for part in case.data]
    case.module("bn").train()


@fault("face", ("network,output,directions", f"{WIRED} float_network_wrong"))
def face_folders_sorted(case: Case) -> None:
    """Folders are listed with the new one, which is number four, at the end."""
    case.data[1] = torch.tensor([0, 1, 2, 3, 9, 4, 5, 6, 7, 8])[case.data[1]]


@fault("face", ("crop,input,network", INPUTS), ("features.conv1", "wrong_scale wrong_weights"))
def face_not_centred(case: Case) -> None:
    """Crops lie between 0 and 255, where training had -1 to 1."""
    case.data[0] = (case.data[0] + 1) * 127.5


@fault("face", ("features.conv2,features.act2", WIRED))
def face_slopes(case: Case) -> None:
    """The slopes of the second activation were lost, and are -1 by mistake of a sign."""
    case.module("features.act2").weight.data.fill_(-1.0)


@fault("face", ("features.conv2", "wrong_weights rounded_weights"))
def face_pruned(case: Case) -> None:
    """Most of the second convolution's weights, the smaller ones, were set to zero and not trained further."""
    weight = case.module("features.conv2").weight.data
    weight[weight.abs() < weight.abs().quantile(0.9)] = 0


@fault("face", ("calibration data", f"no_variety too_few one_class {ALIEN}"))
def face_one_crop(case: Case) -> None:
    """Calibration used one crop, a dark one without anything on it."""
    case.calibrate_on(lambda x: torch.full_like(x, -1.0))


@fault("face", ("embed", "few_bits"))
def face_embedding_of_two_bits(case: Case) -> None:
    """The embedding layer's weights have 2 bits, to make the file smaller."""
    case.use(overrides={"embed": {"weight": {"bits": 2}}})


# --- groups whose channels are shuffled -----------------------------------------------------------------------------


class Unshuffled(Unit):
    """The shuffle of another library, which undoes this one's."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat([left, self.branch(right)], 1)
        batch, width, high, wide = x.shape
        return x.view(batch, width // 2, 2, high, wide).transpose(1, 2).reshape(batch, width, high, wide)


@fault("shuffle", ("stage,view,transpose,reshape,cat,chunk", WIRED))
def shuffle_undone(case: Case) -> None:
    """Channels are shuffled by the opposite permutation."""
    for unit in case.model.stage:
        unit.__class__ = Unshuffled


class Swapped(Unit):
    """The other half of the channels is convolved."""

    def forward(self, x: Tensor) -> Tensor:
        right, left = x.chunk(2, dim=1)
        x = torch.cat([left, self.branch(right)], 1)
        batch, width, high, wide = x.shape
        return x.view(batch, 2, width // 2, high, wide).transpose(1, 2).reshape(batch, width, high, wide)


@fault("shuffle", ("stage.1,chunk,split,getitem,cat", WIRED))
def shuffle_other_half(case: Case) -> None:
    """The second unit convolves the first half of the channels and keeps the second."""
    case.model.stage[1].__class__ = Swapped


@fault("shuffle", ("stage.1.branch", "exploded_channel stale_batch_norm"))
def shuffle_variance_underflows(case: Case) -> None:
    """Small variances of a norm became zero in half precision."""
    case.module("stage.1.branch.bn2").running_var[[2, 7]] = 0


@fault("shuffle", ("stage.2.branch", "wrong_setting"))
def shuffle_extra_bend(case: Case) -> None:
    """A ReLU stands behind the third unit's depthwise convolution, where none was."""
    branch = case.module("stage.2.branch")
    branch.bn2 = nn.Sequential(branch.bn2, nn.ReLU())


@fault("shuffle", ("stage.0.branch.pw1,stage.0.branch.pw2,stage.0.branch.bn", "wrong_weights"))
def shuffle_pointwise_exchanged(case: Case) -> None:
    """Both pointwise convolutions of the first unit are exchanged, since their shapes agree."""
    exchange(case.module("stage.0.branch.pw1").weight, case.module("stage.0.branch.pw2").weight)


@fault("shuffle", ("", "not_finite"))
def shuffle_not_a_number(case: Case) -> None:
    """One weight is not a number, since training overflowed in half precision."""
    case.module("stage.0.branch.pw2").weight.data[3, 4] = float("nan")


@fault("shuffle", ("pic,input,network", INPUTS), ("stem", "wrong_weights stale_batch_norm"))
def shuffle_turned(case: Case) -> None:
    """Pictures are handed over with width before height."""
    case.data[0] = case.data[0].transpose(2, 3).contiguous()


# --- a decoder ------------------------------------------------------------------------------------------------------


@fault("scribe", ("blocks,add,softmax,mask,network", "wrong_setting"))
def scribe_mask_of_the_future(case: Case) -> None:
    """The mask hides the past, since the triangle is the other one."""
    for block in case.model.blocks:
        block.mask = block.mask.t().contiguous()


@fault("scribe", ("place,add,arange", WIRED))
def scribe_places_from_one(case: Case) -> None:
    """The table of places begins with a row for padding elsewhere, so that all rows are one too late."""
    case.model.place.weight.data = case.model.place.weight.data.roll(1, 0)


@fault("scribe", ("out,letters", "wrong_weights"))
def scribe_tied(case: Case) -> None:
    """The configuration says that the last layer shares the letters' table, which it did not in training."""
    case.module("out").weight.data.copy_(case.module("letters").weight.data)


@fault("scribe", ("norm,pow,mean,rsqrt,add,mul,blocks", "wrong_setting wrong_scale wrong_weights"))
def scribe_eps(case: Case) -> None:
    """The norms' eps are 10, for want of a minus five."""
    for module in (case.model.blocks[0], case.model.blocks[1]):
        module.norm_a.eps = 10.0
        module.norm_m.eps = 10.0


@fault("scribe", ("blocks.1.o", "wrong_weights"))
def scribe_transposed(case: Case) -> None:
    """The second attention's last map came transposed."""
    case.module("blocks.1.o").weight.data = case.module("blocks.1.o").weight.data.t().contiguous()


@fault("scribe", ("network,output,out,norm", f"{WIRED} float_network_wrong"))
def scribe_labels_not_shifted(case: Case) -> None:
    """The right answers are the letters that are read, and not the next ones."""
    case.data[1] = case.data[0].clone()


@fault("scribe", ("blocks", "few_bits"))
def scribe_queries_of_two_bits(case: Case) -> None:
    """Queries and keys have weights of 2 bits."""
    case.use(overrides={f"blocks.{b}.{p}": {"weight": {"bits": 2}} for b in (0, 1) for p in "qk"})


@fault("scribe", ("calibration data", f"no_variety too_few {ALIEN}"))
def scribe_one_letter(case: Case) -> None:
    """Calibration texts repeat one letter."""
    case.calibrate_on(lambda x: torch.full_like(x, 3))


# --- convolutions over words ----------------------------------------------------------------------------------------


class Averaged(Kim):
    """Means over the words."""

    def forward(self, words: Tensor) -> Tensor:
        x = self.emb(words).transpose(1, 2)
        found = torch.cat([F.relu(conv(x)).mean(2) for conv in self.convs], 1)
        return self.topics(self.drop(found))


@fault("kim", ("mean,amax,max,convs,cat,topics,network", "wrong_setting"))
def kim_means(case: Case) -> None:
    """Means over the words stand for the largest results."""
    case.model.__class__ = Averaged


class Widest(Kim):
    """The widest convolution comes first."""

    def forward(self, words: Tensor) -> Tensor:
        x = self.emb(words).transpose(1, 2)
        found = torch.cat([F.relu(conv(x)).amax(2) for conv in reversed(self.convs)], 1)
        return self.topics(self.drop(found))


@fault("kim", ("cat,topics,convs", WIRED))
def kim_widest_first(case: Case) -> None:
    """The results are joined with those of the widest convolution first."""
    case.model.__class__ = Widest


@fault("kim", ("words,input,network,emb", INPUTS))
def kim_words_from_one(case: Case) -> None:
    """The tokenizer has one more word in front, so that all indices but padding are one higher."""
    words = case.data[0]
    case.data[0] = torch.where(words > 0, (words + 1).clamp(max=39), words)


@fault("kim", ("network,output,topics", f"{WIRED} wrong_scale float_network_wrong"))
def kim_yes_is_zero(case: Case) -> None:
    """The file says for every topic whether it is absent."""
    case.data[1] = 1 - case.data[1]


@fault("kim", ("convs", WIRED))
def kim_kernels_reversed(case: Case) -> None:
    """Kernels were exported for a convolution that turns them round, as mathematics has it."""
    for conv in case.model.convs:
        conv.weight.data = conv.weight.data.flip(2)


@fault("kim", ("calibration data", f"no_variety too_few {ALIEN}"))
def kim_calibrated_on_padding(case: Case) -> None:
    """Calibration texts are empty."""
    case.calibrate_on(torch.zeros_like)


@fault("kim", ("emb", "wrong_weights"))
def kim_table_not_trained(case: Case) -> None:
    """The table of words is that of another vocabulary's checkpoint: half of its rows in another order."""
    table = case.module("emb").weight.data
    table[20:] = table[20:].flip(0).clone()


# --- excitation of channels -----------------------------------------------------------------------------------------


class Unbounded(Squeeze):
    """Without the sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))


@fault("gate", ("se1,se2,mul", "wrong_setting"))
def gate_without_sigmoid(case: Case) -> None:
    """Channels are weighed without the sigmoid."""
    case.model.se1.__class__ = Unbounded
    case.model.se2.__class__ = Unbounded


@fault("gate", ("act,c1,c2,c3,n1,n2,n3,fc,network", "wrong_setting"))
def gate_sigmoid_for_swish(case: Case) -> None:
    """Hard sigmoid stands where hard swish was."""
    case.model.act = nn.Hardsigmoid()


@fault("gate", ("picture,input,network", INPUTS))
def gate_upside_down(case: Case) -> None:
    """Rows are stored from below."""
    case.data[0] = case.data[0].flip(2)


@fault("gate", ("", "clipped_range heavy_tail"))
def gate_percentile(case: Case) -> None:
    """A tenth of all activations is cut off on purpose."""
    case.use(activation=Scheme(observer="percentile", observer_args={"percentile": 80.0}))


@fault("gate", ("n2,c2", "wrong_setting wrong_scale"))
def gate_eps(case: Case) -> None:
    """The second norm has an eps of 5, which another framework's configuration calls 1e-5."""
    case.module("n2").eps = 5.0


@fault("gate", ("network", DIVERGED), ("", "diverged_training"))
def gate_diverged(case: Case) -> None:
    """Fine-tuning had a rate a hundred times too large."""
    train_on(case, 1.0, 40)


@fault("gate", ("c3,n3", "wrong_weights"))
def gate_kernels_transposed(case: Case) -> None:
    """The third convolution is square, and came with inputs before outputs."""
    case.module("c3").weight.data = case.module("c3").weight.data.transpose(0, 1).contiguous()


@fault("gate", ("picture,input", "wide_range"))
def gate_wide_input(case: Case) -> None:
    """The input's range was set by hand for bytes, from minus 128 to 127."""
    case.use(inputs={"*": Scheme(fixed=(1.0, 128))})


@fault("gate", ("", "per_tensor_weight few_bits"))
def gate_four_bits_per_tensor(case: Case) -> None:
    """All weights have 4 bits, and one scale per tensor."""
    case.use(weight=replace(PER_TENSOR, bits=4), equalize=False, bias_correction=False)


# --- sound networks -------------------------------------------------------------------------------------------------


def fresh(name: str) -> Case:
    """Return a network as it is."""
    case: Case = case_of(Case, build(name))
    return case


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case = fresh(name)
    half = len(case.data[0]) // 2
    case.calibration, case.data = [part[:half] for part in case.data], [part[half:] for part in case.data]
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "vit": lambda: fresh("vit"),
    "unet": lambda: fresh("unet"),
    "tracker": lambda: calibrated("tracker"),
    "pulse": lambda: fresh("pulse"),
    "valve": lambda: fresh("valve"),
    "face": lambda: calibrated("face"),
    "shuffle": lambda: fresh("shuffle"),
    "scribe": lambda: fresh("scribe"),
    "kim": lambda: calibrated("kim"),
    "gate": lambda: fresh("gate"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)

NOWHERE = "the float network is said to be wrong, without a place"
BESIDE = "a place beside it, or a consequence, is named"
SECOND = "named, but not first"

MISSED: dict[str, str] = {
    "kim_kernels_reversed": "texts are said to be reversed, which comes to the same",
    "kim_table_not_trained": BESIDE,
    "pulse_sampled_slower": SECOND,
    "valve_sentinel": NOWHERE,
}
"""What the doctor does not say first, and what it says."""
