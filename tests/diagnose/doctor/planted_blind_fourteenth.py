"""Faults planted in the networks of the fourteenth blind set, with the answers that are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_fourteenth import (
    CLOTH_DEVIATIONS,
    CLOTH_MEANS,
    DIGIT_DEVIATION,
    DIGIT_MEAN,
    Arrays,
    build,
)
from tests.diagnose.doctor.planting import (
    MINMAX,
    WRONG,
    Case,
    FaultWithAnswers,
    asking,
    case_of,
    collect,
    exchange,
    fixed,
    norms_of,
    registering,
    train_again,
)
from torch import Tensor, nn

from intact8 import Scheme, recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- helpers --------------------------------------------------------------------------------------------------------


def apart(case: Case) -> None:
    """Take the first 200 samples as calibration data, which the data then have no more."""
    case.calibration = [part[:200].clone() for part in case.data]
    case.data = [part[200:] for part in case.data]


def calibration(case: Case) -> Arrays:
    """Return calibration data of the case's own, to be changed in place."""
    apart(case)
    assert case.calibration is not None
    return case.calibration


def widen(norm: Any, factors: Tensor) -> None:
    """Let a norm's results be wider by factors, one for each channel."""
    norm.weight.data *= factors
    norm.bias.data *= factors


def seen(norm: Any, channels: slice, factor: float) -> None:
    """Let a batch norm expect channels that are wider by a factor."""
    norm.running_mean[channels] *= factor
    norm.running_var[channels] *= factor**2


class OfBatch(nn.Module):
    """Normalizes by the mean and the deviation of the batch that is there."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0, keepdim=True)
        return centred / (centred.square().mean(0, keepdim=True) + 1e-5).sqrt() * self.weight + self.bias


# --- mixer: digits --------------------------------------------------------------------------------------------------


@fault("mixer", ("patch", "wrong_weights"))
def mixer_kernels_transposed(case: Case) -> None:
    """The kernels of the patch embedding were converted with height and width exchanged."""
    patch = case.module("patch")
    patch.weight.data = patch.weight.data.transpose(2, 3).contiguous()


@fault("mixer", ("network", WRONG), ("blocks", "wrong_weights"))
def mixer_merged_unaligned(case: Case) -> None:
    """The network is the average of two checkpoints whose hidden neurons have different orders."""
    for block in case.module("blocks"):
        for inner in (block.patches, block.channels):
            order = torch.randperm(len(inner.fc1.weight))
            inner.fc1.weight.data = (inner.fc1.weight.data + inner.fc1.weight.data[order]) / 2
            inner.fc1.bias.data = (inner.fc1.bias.data + inner.fc1.bias.data[order]) / 2
            inner.fc2.weight.data = (inner.fc2.weight.data + inner.fc2.weight.data[:, order]) / 2


@fault("mixer", ("blocks.1.patches,blocks.2.patches", "wrong_weights"))
def mixer_prefix_matched_twice(case: Case) -> None:
    """The loading script matched a prefix twice, and the mixing of patches of the last block is that of the second."""
    case.module("blocks.2.patches").load_state_dict(case.module("blocks.1.patches").state_dict())


@fault("mixer", ("calibration data", "one_class"))
def mixer_calibrated_on_ones(case: Case) -> None:
    """The calibration data are the first folder of the data set, which has only one digit in it."""
    labels = case.data[1]
    case.calibration = [part[labels == 1].clone() for part in case.data]
    case.use(activation=MINMAX)


@fault("mixer", ("calibration data", "outlier_sample"))
def mixer_broken_scan(case: Case) -> None:
    """One calibration image has a defect with a value of 250, and ranges are taken from extremes."""
    calibration(case)[0][17, 0, 2:4, 5] = 250.0
    case.use(activation=MINMAX)


@fault("mixer", ("blocks.1.channels.fc1,blocks.1.norm2", "outlier_weight input_imbalance"))
def mixer_loud_column(case: Case) -> None:
    """A norm makes one channel 200 times as small, and a column of the weights behind it is as much larger."""
    factors = torch.ones(48)
    factors[11] = 1 / 200
    widen(case.module("blocks.1.norm2"), factors)
    case.module("blocks.1.channels.fc1").weight.data[:, 11] *= 200


@fault("mixer", ("patch", "clipped_range"))
def mixer_patch_range(case: Case) -> None:
    """The range of the patch embedding was copied from another project and is far too narrow."""
    fixed(case, "patch", 0.002, 128)


@fault("mixer", ("blocks.1.channels.fc2", "outlier_weight input_imbalance"))
def mixer_loud_weights_of_silence(case: Case) -> None:
    """A neuron that is always silent has outgoing weights 60 times as large as the others', which nothing shows."""
    inner = case.module("blocks.1.channels")
    neuron = inner.fc2.weight.data.norm(dim=0).argmin()
    inner.fc1.bias.data[neuron] = -40.0
    inner.fc2.weight.data[:, neuron] = 60 * inner.fc2.weight.data.std() * torch.randn(48).sign()


@fault("mixer", ("", "float_mismatch"))
def mixer_other_checkpoint(case: Case) -> None:
    """The simulation was made of an earlier checkpoint, and the network was trained further since."""
    case.simulate()
    train_again(case, 0.01, 60, F.cross_entropy)


# --- shuffle: cloths ------------------------------------------------------------------------------------------------


@fault("shuffle", ("units2.0", "wrong_setting"))
def shuffle_halves_exchanged(case: Case) -> None:
    """One unit joins its halves in the other order before it shuffles them."""
    case.module("units2.0").through_first = False


@fault("shuffle", ("network,photo", WRONG))
def shuffle_normalized_twice(case: Case) -> None:
    """The photos are normalized by the loader and once more by the serving code."""
    case.data[0] = (case.data[0] - CLOTH_MEANS) / CLOTH_DEVIATIONS


@fault("shuffle", ("", "stale_batch_norm"))
def shuffle_statistics_of_one_cloth(case: Case) -> None:
    """The statistics of all batch norms were collected anew, from photos of one cloth under a dim lamp."""
    photos = case.data[0][case.data[1] == 3] * CLOTH_DEVIATIONS + CLOTH_MEANS
    collect(case.model, (photos * 0.4 - CLOTH_MEANS) / CLOTH_DEVIATIONS, norms_of(case.model))


@fault("shuffle", ("units1.0.depth", "wrong_setting"))
def shuffle_dilated(case: Case) -> None:
    """One depthwise convolution was given a dilation of two, as for larger photos."""
    conv = case.module("units1.0.depth")
    conv.dilation, conv.padding = (2, 2), (2, 2)


@fault("shuffle", ("network", WRONG))
def shuffle_classes_by_name(case: Case) -> None:
    """The classes are numbered by the alphabet in the new data set, and were numbered by their age in the old one."""
    case.data[1] = torch.tensor([3, 5, 0, 6, 1, 7, 2, 4])[case.data[1]]


@fault(
    "shuffle",
    (
        "units1.1.depth,units1.1.norm2,units1.1.conv3,units1.1.norm3",
        "channel_imbalance outlier_channel input_imbalance",
    ),
)
def shuffle_wide_and_narrow(case: Case) -> None:
    """The channels behind a depthwise convolution are from 1 to 300 times as wide, which the next weights take back."""
    factors = torch.logspace(0, 2.5, 12)
    widen(case.module("units1.1.norm2"), factors)
    case.module("units1.1.conv3").weight.data /= factors[None, :, None, None]


@fault("shuffle", ("units2.0.depth,units2.0.norm2,units2.0.conv3,units2.0.norm3", "large_bias"))
def shuffle_pedestal(case: Case) -> None:
    """All channels of one batch norm have a large bias, which the batch norm behind the next convolution subtracts."""
    norm, conv, after = (case.module(f"units2.0.{name}") for name in ("norm2", "conv3", "norm3"))
    norm.bias.data += 400
    after.running_mean += 400 * conv.weight.data.sum((1, 2, 3))


@fault("shuffle", ("photo", "few_bits"))
def shuffle_coarse_photos(case: Case) -> None:
    """The recipe gives the photos three bits."""
    case.use(inputs={"photo": {"bits": 3}})


@fault("shuffle", ("calibration data", "unlike_data"))
def shuffle_calibrated_at_night(case: Case) -> None:
    """The calibration photos were taken from bytes that were divided by 255 twice."""
    data = calibration(case)
    data[0] = ((data[0] * CLOTH_DEVIATIONS + CLOTH_MEANS) / 255 - CLOTH_MEANS) / CLOTH_DEVIATIONS


# --- points: scenes -------------------------------------------------------------------------------------------------


@fault("points", ("softmax", "wrong_setting"))
def points_softmax_over_points(case: Case) -> None:
    """The softmax of the heat maps goes over the points and not over the places."""
    case.module("").axis = 1


@fault("points", ("act3,near_norm,far_norm,add", "wrong_setting"))
def points_no_activation(case: Case) -> None:
    """The activation behind the sum of the branches was lost in the port."""
    case.module("").act3 = nn.Identity()


@fault("points", ("mul,heat,softmax", "wrong_scale"))
def points_blunt(case: Case) -> None:
    """The heat maps are multiplied by a tenth of the factor that they were trained with."""
    case.module("").sharpness = 0.3


@fault("points", ("network", WRONG), ("matmul,grid", "wrong_scale"))
def points_fractions(case: Case) -> None:
    """The grid of places was made in fractions of the image, and labels are pixels."""
    case.module("").grid /= 24


@fault("points", ("add,near,far", "cancellation"))
def points_cancel(case: Case) -> None:
    """Both branches learned the same large map of opposite signs at their middle taps, which vanishes in their sum."""
    common = 3 * torch.randn(32, 32)
    for name, sign in (("near", 1), ("far", -1)):
        conv, norm = case.module(name), case.module(f"{name}_norm")
        back = (norm.running_var + norm.eps).sqrt() / norm.weight.data
        conv.weight.data[:, :, 1, 1] += sign * common * back[:, None]


@fault("points", ("heat", "few_bits"))
def points_coarse_maps(case: Case) -> None:
    """The heat maps have four bits."""
    case.use(overrides={"heat": {"activation": {"bits": 4}}})


@fault("points", ("", "heavy_tail"), ("image,calibration data", "outlier_sample heavy_tail"))
def points_hot_pixels(case: Case) -> None:
    """The camera has a hot pixel in one image of fifty, and ranges are taken from extremes."""
    case.data[0] = case.data[0].clone()
    case.data[0][::50, 0, 1, 1] = 60.0
    apart(case)
    case.use(activation=MINMAX)


@fault("points", ("", "symmetric_range"))
def points_symmetric(case: Case) -> None:
    """The recipe gives all activations symmetric ranges, although most are hardly ever negative."""
    case.use(activation=Scheme(dtype="int8", symmetric=True))


# --- tcn: signals ---------------------------------------------------------------------------------------------------


@fault("tcn", ("blocks.1", "wrong_setting"))
def tcn_dilations_start_late(case: Case) -> None:
    """The dilation of the second block is one and was two, as the port counts blocks from another number."""
    block = case.module("blocks.1")
    block.filter.dilation = block.gate.dilation = (1,)
    block.pad = (2, 0)


@fault("tcn", ("network,signal", WRONG))
def tcn_half_the_rate(case: Case) -> None:
    """The signals were recorded at half the rate, and each value was repeated."""
    case.data[0] = case.data[0][:, :, ::2].repeat_interleave(2, 2)
    case.data[0] = case.data[0][:, :, :48].repeat_interleave(2, 2)
    case.data[1] = case.data[1][:, :48].repeat_interleave(2, 1)


@fault("tcn", ("stem", "wrong_weights wrong_scale"))
def tcn_norms_of_weights_lost(case: Case) -> None:
    """Only the directions of a weight-normalized layer were loaded, and the lengths of its rows are one."""
    weight = case.module("stem").weight
    weight.data /= weight.data.flatten(1).norm(dim=1)[:, None, None]


@fault("tcn", ("", "moving_average"))
def tcn_forgetful(case: Case) -> None:
    """The observer is a moving average with a large constant, and the last calibration signals are quiet."""
    data = calibration(case)
    data[0][128:] *= 0.15
    case.use(activation=replace(MINMAX, observer="moving_average", observer_args={"averaging_constant": 0.9}))


@fault("tcn", ("calibration data", "one_class unrepresentative"))
def tcn_machine_off(case: Case) -> None:
    """The calibration signals were recorded on a Sunday, when the machine was off."""
    apart(case)
    noise = 0.3 * torch.randn(200, 2, 96)
    noise[:, 1] -= 0.8
    case.calibration = [noise, torch.zeros(200, 96, dtype=torch.int64)]


@fault("tcn", ("blocks.0.skip", "wide_range"))
def tcn_wide_skip(case: Case) -> None:
    """The range of what one block gives to the sum was written by hand, and is a hundred times too wide."""
    fixed(case, "blocks.0.skip", 1.5, 128)


@fault("tcn", ("blocks.1.on,blocks.1.filter,blocks.1.gate,blocks.1", "zero_point clipped_range"))
def tcn_shifted_residual(case: Case) -> None:
    """The range of what one block adds was given with the zero point of an unsigned tensor."""
    fixed(case, "blocks.1.on", 0.03, 10)


@fault("tcn", ("head1,relu", "large_bias outlier_channel"))
def tcn_lifted_neurons(case: Case) -> None:
    """Four neurons of the head have biases of two hundred, which the next layer's bias takes back."""
    head1, head2 = case.module("head1"), case.module("head2")
    weakest = head2.weight.data[:, :, 0].norm(dim=0).argsort()[:4]
    head1.bias.data[weakest] += 200
    head2.bias.data -= 200 * head2.weight.data[:, weakest, 0].sum(1)


# --- tagger: sentences ----------------------------------------------------------------------------------------------


def gru_weights(case: Case) -> dict[str, Tensor]:
    """Return the weights and biases of the tagger's GRU by name."""
    return {name: value.data for name, value in case.module("gru").named_parameters()}


@fault("tagger", ("gru", "wrong_weights"))
def tagger_gates_of_keras(case: Case) -> None:
    """The gates of the GRU have the order of another framework, which has the update gate before the reset gate."""
    for value in gru_weights(case).values():
        exchange(value[:32], value[32:64])


@fault("tagger", ("gru", "wrong_weights"))
def tagger_backward_copied(case: Case) -> None:
    """The weights for the backward direction were not found, and are those of the forward direction."""
    found = gru_weights(case)
    for name, value in found.items():
        if name.endswith("_reverse"):
            value.copy_(found[name.removesuffix("_reverse")])


@fault("tagger", ("network,tokens", WRONG))
def tagger_vocabulary_shifted(case: Case) -> None:
    """The new vocabulary has one special token less, and all words have numbers that are lower by one."""
    case.data[0] = torch.where(case.data[0] > 0, (case.data[0] - 1).clamp_min(1), 0)


@fault("tagger", ("gru", "exploded_weight"))
def tagger_gate_held(case: Case) -> None:
    """The bias of the update gate was initialized for remembering with a hundred in place of one."""
    gru_weights(case)["bias_hh_l0"][32:64] += 100


@fault("tagger", ("gru", "few_bits"))
def tagger_three_bits(case: Case) -> None:
    """The recipe gives the weights of the GRU three bits."""
    case.use(overrides={"gru": {"weight": {"bits": 3}}})


@fault("tagger", ("calibration data", "no_variety"))
def tagger_one_sentence(case: Case) -> None:
    """The calibration data are one sentence, which a loop that does not advance its reader gives again and again."""
    data = calibration(case)
    case.calibration = [part[:1].repeat(200, 1) for part in data]


@fault("tagger", ("calibration data", "unlike_data unrepresentative one_class"))
def tagger_padding_only(case: Case) -> None:
    """The calibration sentences were cut to one word, and the rest is padding."""
    data = calibration(case)
    data[0][:, 1:] = 0
    data[1][:, 1:] = 0


@fault("tagger", ("embed", "outlier_weight outlier_channel channel_imbalance"), ("gru", "input_imbalance"))
def tagger_wide_column(case: Case) -> None:
    """One column of the table is 150 times as large as the others, and the weights that read it are as much smaller."""
    case.module("embed").weight.data[:, 7] *= 150
    for name, value in gru_weights(case).items():
        if name.startswith("weight_ih"):
            value[:, 7] /= 150
    case.use(between_layers="integer", equalize=False)


# --- towers: likings ------------------------------------------------------------------------------------------------


@fault("towers", ("network", "training_mode"))
def towers_dropout_on(case: Case) -> None:
    """The dropout of both towers was made strong for fine-tuning and was left on."""
    for name in ("user_tower", "film_tower"):
        drop = case.module(f"{name}.drop")
        drop.p = 0.6
        drop.train()


@fault("towers", ("user_tower.fc2,film_tower.fc2", "wrong_weights"))
def towers_exchanged(case: Case) -> None:
    """The last layers of the two towers were loaded into each other."""
    ours, theirs = case.module("user_tower.fc2"), case.module("film_tower.fc2")
    exchange(ours.weight, theirs.weight)
    exchange(ours.bias, theirs.bias)


@fault("towers", ("network", "diverged_training float_network_wrong"))
def towers_decayed(case: Case) -> None:
    """The network was trained further with a weight decay of one."""
    train_again(case, 0.02, 300, F.binary_cross_entropy_with_logits, decay=1.0)


@fault("towers", ("", "batch_dependence"))
def towers_batch_statistics(case: Case) -> None:
    """The towers normalize by the statistics of the batch, and requests come sorted by a number of the user."""
    for name in ("user_tower", "film_tower"):
        case.module(name).norm = OfBatch(case.module(f"{name}.norm"))
    order = (case.data[0] @ torch.tensor([1.0, -1, 1, 1, -1, 1, 1, -1, 1, 1])).argsort()
    case.data = [part[order] for part in case.data]


@fault("towers", ("user_tower", "rounded_weights"))
def towers_ternary(case: Case) -> None:
    """The weights of the user's tower were compressed to three values for each layer before."""
    for name in ("fc1", "fc2"):
        weight = case.module(f"user_tower.{name}").weight
        step = weight.data.abs().mean() * 1.4
        weight.data = (weight.data / step).round().clamp(-1, 1) * step


@fault("towers", ("user,user_tower", "clipped_range"))
def towers_user_as_image(case: Case) -> None:
    """The recipe for images was used, and the user's numbers are expected between zero and one."""
    case.use(inputs={"user": Scheme(fixed=(1 / 255, 0))})


@fault("towers", ("calibration data", "too_few"))
def towers_two_users(case: Case) -> None:
    """The network is calibrated on two users, by their extremes."""
    case.calibration = [part[:2] for part in calibration(case)]
    case.use(activation=MINMAX)


@fault("towers", ("calibration data", "unlike_data unrepresentative"))
def towers_cold_start(case: Case) -> None:
    """The calibration data are of new users, whose numbers are not known yet and almost zero."""
    calibration(case)[0].mul_(0.03)


@fault(
    "towers",
    ("tag,film_tower.fc1", "outlier_channel outlier_weight channel_imbalance input_imbalance"),
    ("mean", "outlier_channel channel_imbalance"),
)
def towers_wide_tag(case: Case) -> None:
    """One number in the vectors of tags is 200 times as large as the others, and is read by weights as much smaller."""
    case.module("tag").weight.data[:, 4] *= 200
    case.module("film_tower.fc1").weight.data[:, 4] /= 200


# --- dense: digits --------------------------------------------------------------------------------------------------


@fault("dense", ("transition", "dead_channels wrong_weights"))
def dense_dead_transition(case: Case) -> None:
    """The biases of a batch norm drifted down so far that its activation lets almost nothing through."""
    case.module("transition.norm").bias.data -= 2.5 * case.module("transition.norm").weight.data.abs()


@fault("dense", ("embed", "wrong_weights"))
def dense_flattened_otherwise(case: Case) -> None:
    """The columns of the embedding layer have the order of images with channels last."""
    embed = case.module("embed")
    embed.weight.data = embed.weight.data.view(16, 44, 4).transpose(1, 2).reshape(16, -1).contiguous()


@fault("dense", ("network,scan", WRONG))
def dense_black_on_white(case: Case) -> None:
    """The scanner gives black digits on white, and the network knows white ones on black."""
    grey = case.data[0] * DIGIT_DEVIATION + DIGIT_MEAN
    case.data[0] = (1 - grey - DIGIT_MEAN) / DIGIT_DEVIATION


@fault("dense", ("transition", "wrong_setting"))
def dense_largest_value(case: Case) -> None:
    """The transition takes the largest of four values and not their mean."""
    case.module("transition").pool = nn.MaxPool2d(2)


@fault("dense", ("block1,stem", "stale_batch_norm"))
def dense_buffers_not_loaded(case: Case) -> None:
    """The buffers of the first block were not in the checkpoint, and its batch norms have initial statistics."""
    for norm in norms_of(case.module("block1")):
        norm.reset_running_stats()


@fault("dense", ("block1,transition,stem", "shared_range outlier_channel channel_imbalance"))
def dense_loud_layer(case: Case) -> None:
    """The new channels of one layer are 100 times as wide, and join the others before norms that take it back."""
    case.module("block1.0.conv").weight.data *= 100
    for name in ("block1.1.norm", "block1.2.norm", "transition.norm"):
        seen(case.module(name), slice(12, 20), 100)
    case.use(between_layers="integer")


@fault("dense", ("", "stale_range"))
def dense_frozen(case: Case) -> None:
    """Scales were frozen, and then a batch norm's results became six times as wide and the next weights smaller."""
    sim = case.simulate(replace(recipes.default(), scales="fixed"))
    for network in (case.model, sim):
        found = dict(network.named_parameters())
        found["block2.1.norm.weight"].data *= 6
        found["block2.1.norm.bias"].data *= 6
        found["block2.1.conv.weight"].data /= 6


@fault("dense", ("", "few_bits"))
def dense_three_bits(case: Case) -> None:
    """The recipe gives all weights three bits."""
    case.use(weight=replace(recipes.default().weight, bits=3))


# --- ftt: rents -----------------------------------------------------------------------------------------------------


@fault("ftt", ("kind,add,offsets", "wrong_weights wrong_setting"), ("network,kinds", WRONG))
def ftt_offsets_lost(case: Case) -> None:
    """The offsets into the common table of kinds were not saved, and are zero."""
    case.module("").offsets.zero_()


@fault("ftt", ("blocks.0", "wrong_scale"))
def ftt_scale_inverted(case: Case) -> None:
    """The products of queries and keys are multiplied by what they should be divided by."""
    block = case.module("blocks.0")
    block.scale = 1 / block.scale


@fault("ftt", ("kind", "not_finite"))
def ftt_unknown_kind(case: Case) -> None:
    """The row of a kind that no training sample had became NaN when it was divided by its count."""
    case.module("kind").weight.data[17] = float("nan")


@fault("ftt", ("network", "diverged_training float_network_wrong"))
def ftt_diverged(case: Case) -> None:
    """The network was trained further with a rate at which it diverges."""
    train_again(case, 0.6, 40, lambda outputs, labels: (outputs - labels).square().mean().clamp_max(50))


@fault("ftt", ("blocks.1.norm2,blocks.1.mlp.fc1", "outlier_channel channel_imbalance input_imbalance"))
def ftt_massive_channel(case: Case) -> None:
    """A norm makes one channel 120 times as wide as the others, and the weights that read it are as much smaller."""
    factors = torch.ones(32)
    factors[9] = 120
    widen(case.module("blocks.1.norm2"), factors)
    case.module("blocks.1.mlp.fc1").weight.data[:, 9] /= 120


@fault("ftt", ("blocks.1", "outlier_channel channel_imbalance shared_range"))
def ftt_loud_queries(case: Case) -> None:
    """The queries of one attention are 80 times as large, its keys as much smaller, and both come from one layer."""
    layer = case.module("blocks.1.qkv")
    for rows, factor in ((slice(0, 32), 80.0), (slice(32, 64), 1 / 80)):
        layer.weight.data[rows] *= factor
        layer.bias.data[rows] *= factor
    case.use(between_layers="integer")


@fault("ftt", ("blocks.1.out", "zero_point clipped_range"))
def ftt_zero_point(case: Case) -> None:
    """The range of what one attention gives was written with the zero point of a signed tensor."""
    fixed(case, "blocks.1.out", 0.02, 0)


# --- sound networks -------------------------------------------------------------------------------------------------


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case: Case = case_of(Case, build(name))
    apart(case)
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "mixer": lambda: calibrated("mixer"),
    "shuffle": lambda: calibrated("shuffle"),
    "points": lambda: calibrated("points"),
    "tcn": lambda: calibrated("tcn"),
    "tagger": lambda: calibrated("tagger"),
    "towers": lambda: calibrated("towers"),
    "dense": lambda: calibrated("dense"),
    "ftt": lambda: calibrated("ftt"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "tcn_machine_off": "the calibration data are said to be unlike the data, which they are",
}
"""What the doctor does not say first, and what it says."""
