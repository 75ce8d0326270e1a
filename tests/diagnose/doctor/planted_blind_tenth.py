"""Faults of practice in ten small networks, written with their answers before the doctor was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import (
    DEVIATIONS,
    DIGIT_DEVIATION,
    DIGIT_MEAN,
    HOUSE_DEVIATIONS,
    HOUSE_MEANS,
    MEANS,
    PRICE_DEVIATION,
    PRICE_MEAN,
    activities,
    build,
)
from tests.diagnose.doctor.planting import (
    MINMAX,
    WRONG,
    Case,
    FaultWithAnswers,
    anew,
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

PER_TENSOR = Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax")


def apart(case: Case) -> None:
    """Calibrate on the first half of the data, and keep the other as data."""
    half = len(case.data[0]) // 2
    case.calibration, case.data = [part[:half] for part in case.data], [part[half:] for part in case.data]


def calibration(case: Case) -> list[Tensor]:
    """Return copies of calibration data apart from the data."""
    apart(case)
    case.calibration = [part.clone() for part in case.calibration or []]
    return case.calibration


# --- preact: digits -------------------------------------------------------------------------------------------------


@fault("preact", ("network,image", WRONG))
def preact_grey_values(case: Case) -> None:
    """The digits come as grey values from 0 to 16, without having been normalized."""
    case.data[0] = (case.data[0] * DIGIT_DEVIATION + DIGIT_MEAN) * 16


@fault("preact", ("block3", "wrong_setting"))
def preact_shortcut_lost(case: Case) -> None:
    """The shortcut of the third block was forgotten when the network was written anew."""
    case.module("block3").shortcut = False


@fault("preact", ("block2.conv2", "wrong_weights"))
def preact_groups_interleaved(case: Case) -> None:
    """The grouped convolution's filters lie interleaved, as a framework with another order of groups keeps them."""
    weight = case.module("block2.conv2").weight
    weight.data = weight.data.view(4, 8, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape).contiguous()


@fault("preact", ("calibration data", "too_few"))
def preact_two_samples(case: Case) -> None:
    """The network is calibrated on two digits, by their extremes."""
    case.calibration = [part[:2] for part in calibration(case)]
    case.use(activation=MINMAX)


@fault("preact", ("block1.conv1,block1.norm2,block1.conv2", "outlier_channel channel_imbalance input_imbalance"))
def preact_one_wide_channel(case: Case) -> None:
    """One channel in the first block is 60 times as wide as the others, and the weights behind it as much smaller."""
    norm, conv = case.module("block1.norm2"), case.module("block1.conv2")
    norm.weight.data[5] *= 60
    norm.bias.data[5] *= 60
    conv.weight.data[4:8, 1] /= 60


@fault("preact", ("block3.conv2", "few_bits"))
def preact_two_bits(case: Case) -> None:
    """The recipe gives the weights of one grouped convolution two bits."""
    case.use(overrides={"block3.conv2": {"weight": {"bits": 2}}})


@fault("preact", ("block4.norm1,block3", "wrong_weights stale_batch_norm"))
def preact_norm_not_loaded(case: Case) -> None:
    """The first batch norm of the last block was not in the checkpoint and is as initialized."""
    anew(case.module("block4.norm1"))


@fault("preact", ("", "clipped_range"))
def preact_percentile(case: Case) -> None:
    """The recipe cuts ranges at the ninety-fifth percentile."""
    scheme = replace(recipes.default().activation, observer="percentile", observer_args={"percentile": 95.0})
    case.use(activation=scheme)


# --- mobile: signs --------------------------------------------------------------------------------------------------


@fault("mobile", ("network,image", WRONG))
def mobile_blue_first(case: Case) -> None:
    """The images were read with blue first."""
    images = (case.data[0] * DEVIATIONS + MEANS).flip(1)
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault("mobile", ("blocks", "wrong_weights"))
def mobile_kernels_turned(case: Case) -> None:
    """All depthwise kernels are turned by half a circle, as where convolution and correlation were mixed up."""
    for block in case.module("blocks"):
        block.depth.weight.data = block.depth.weight.data.flip((2, 3)).contiguous()


@fault(
    "mobile",
    ("blocks.2.expand,blocks.2.norm1,blocks.2.depth,blocks.2.norm2", "stale_batch_norm"),
)
def mobile_statistics_exchanged(case: Case) -> None:
    """Two batch norms of a block have each other's running statistics."""
    block = case.module("blocks.2")
    exchange(block.norm1.running_mean, block.norm2.running_mean)
    exchange(block.norm1.running_var, block.norm2.running_var)


@fault("mobile", ("calibration data", "unlike_data"))
def mobile_calibrated_raw(case: Case) -> None:
    """The calibration images lie between 0 and 1 and were not normalized."""
    data = calibration(case)
    data[0] = data[0] * DEVIATIONS + MEANS


@fault("mobile", ("blocks.3.act1,blocks.3.expand", "zero_point clipped_range"))
def mobile_zero_point(case: Case) -> None:
    """A hand-written range of one activation is shifted: its zero point is that of a signed tensor."""
    fixed(case, "blocks.3.act1", 0.037, 180)


@fault("mobile", ("blocks.1.depth,blocks.1.norm2", "wrong_setting"))
def mobile_large_eps(case: Case) -> None:
    """One batch norm was rebuilt with an eps of one."""
    case.module("blocks.1.norm2").eps = 1.0


@fault("mobile", ("network", "training_mode"))
def mobile_in_training_mode(case: Case) -> None:
    """The network was left in training mode."""
    case.model.train()


@fault("mobile", ("calibration data", "too_few"))
def mobile_three_images(case: Case) -> None:
    """The network is calibrated on three images, by their extremes."""
    case.calibration = [part[:3] for part in calibration(case)]
    case.use(activation=MINMAX)


# --- bert: texts ----------------------------------------------------------------------------------------------------


@fault("bert", ("network,ids,mask", WRONG))
def bert_without_first_word(case: Case) -> None:
    """The tokenizer was called without special tokens: texts do not begin with the token for the class."""
    ids, mask, _ = case.data
    case.data[0] = torch.cat([ids[:, 1:], torch.zeros(len(ids), 1, dtype=torch.long)], 1)
    case.data[1] = torch.cat([mask[:, 1:], torch.zeros(len(ids), 1)], 1)


@fault("bert", ("network,ids,mask", WRONG))
def bert_half_cased(case: Case) -> None:
    """Words that begin a sentence in capitals are not in the vocabulary: a third of the words became unknown."""
    ids = case.data[0].clone()
    lost = (ids > 4) & (torch.rand(ids.shape) < 0.35)
    ids[lost] = 3
    case.data[0] = ids


@fault("bert", ("positions", "wrong_weights"))
def bert_positions_by_two(case: Case) -> None:
    """The table of positions is moved by two rows, as where a model keeps the first for padding."""
    table = case.module("positions").weight
    table.data = table.data.roll(2, 0)


@fault("bert", ("layer1.attention,layer2.attention", "wrong_scale wrong_setting"))
def bert_scores_not_divided(case: Case) -> None:
    """Scores of attention are not divided by the root of the width of a head."""
    for name in ("layer1", "layer2"):
        case.module(f"{name}.attention").scale = 1.0


@fault("bert", ("network,mask", WRONG), ("layer1,layer2", "wrong_setting"))
def bert_mask_of_ones(case: Case) -> None:
    """The mask was not passed on, and is all ones."""
    case.data[1] = torch.ones_like(case.data[1])


@fault("bert", ("", "few_bits"))
def bert_four_bits(case: Case) -> None:
    """Activations have four bits everywhere."""
    case.use(activation=replace(recipes.default().activation, bits=4))


@fault("bert", ("layer1.attention.value,layer1.attention.output", "outlier_channel channel_imbalance"))
def bert_wide_values(case: Case) -> None:
    """Two channels of the values are 50 times as wide as the others, and the weights behind them as much smaller."""
    attention = case.module("layer1.attention")
    attention.value.weight.data[[3, 17]] *= 50
    attention.value.bias.data[[3, 17]] *= 50
    attention.output.weight.data[:, [3, 17]] /= 50


# --- motion: six axes -----------------------------------------------------------------------------------------------


@fault("motion", ("network,motion", WRONG))
def motion_other_unit(case: Case) -> None:
    """Acceleration comes in m/s², and was not divided by five as in training."""
    motion = case.data[0].clone()
    motion[:, :, :3] *= 5
    case.data[0] = motion


@fault("motion", ("lstm", "wrong_weights"))
def motion_gates_of_onnx(case: Case) -> None:
    """The gates of the LSTM lie in the order of another framework: input, output, forget, cell."""
    for name, part in case.module("lstm").named_parameters():
        if "weight" in name or "bias" in name:
            one, two, three, four = part.data.chunk(4)
            part.data = torch.cat([one, four, two, three]).contiguous()


@fault("motion", ("", "wrong_setting"))
def motion_last_step_of_both(case: Case) -> None:
    """The last step is taken of both directions, where the backward one has seen a single step."""
    case.model.takes = "step"


@fault("motion", ("calibration data", "unlike_data unrepresentative"))
def motion_at_rest(case: Case) -> None:
    """The network is calibrated with the device lying on a table."""
    data = calibration(case)
    data[0] = data[0] * 0.06


@fault("motion", ("enter", "clipped_range"))
def motion_narrow_by_hand(case: Case) -> None:
    """The range of the first map was fixed by hand at a quarter of what it needs."""
    fixed(case, "enter", 0.004, 128)


@fault("motion", ("network", "diverged_training float_network_wrong"))
def motion_trained_too_fast(case: Case) -> None:
    """The network was trained further at a rate that is much too large."""
    train_again(case, 0.3, 60, F.cross_entropy)


@fault("motion", ("calibration data", "one_class"))
def motion_one_activity(case: Case) -> None:
    """The calibration data have one activity only."""
    motion, labels = activities(1200, 131)
    apart(case)
    case.calibration = [motion[labels == 2], labels[labels == 2]]


@fault("motion", ("", "float_mismatch"))
def motion_trained_after(case: Case) -> None:
    """The network was trained further, on livelier people, after its simulation had been made and calibrated."""
    case.simulate()
    motion, labels = activities(1200, 131)
    train_again(Case(case.model, [motion * 1.5, labels]), 0.05, 150, F.cross_entropy)


# --- tagger: a tag per word -----------------------------------------------------------------------------------------


@fault("tagger", ("tag", "wrong_weights"))
def tagger_head_not_loaded(case: Case) -> None:
    """The last layer was not loaded."""
    anew(case.module("tag"))


@fault("tagger", ("network,words", WRONG), ("embed", "wrong_weights"))
def tagger_vocabulary_sorted_otherwise(case: Case) -> None:
    """The vocabulary was sorted otherwise: the second half of the words has its numbers in reverse."""
    words = case.data[0]
    case.data[0] = torch.where(words >= 40, 119 - words, words)


@fault("tagger", ("embed", "exploded_weight"))
def tagger_flipped_bit(case: Case) -> None:
    """A bit of one number in the table of words flipped and made it huge."""
    case.module("embed").weight.data[5, 3] = 3e3


@fault("tagger", ("norm,gru,hidden", "wide_range"))
def tagger_wide_by_hand(case: Case) -> None:
    """The range of the norm was fixed by hand at sixteen times what it needs."""
    fixed(case, "norm", 0.43, 118)


@fault("tagger", ("", "per_tensor_weight"))
def tagger_per_tensor(case: Case) -> None:
    """Weights have one scale per tensor, and nothing is equalized or corrected."""
    case.use(weight=PER_TENSOR, equalize=False, bias_correction=False)


# --- price: a table -------------------------------------------------------------------------------------------------


@fault("price", ("network", WRONG), ("number", "wrong_scale"))
def price_in_thousands(case: Case) -> None:
    """The labels are prices in thousands, while the network answers with normalized ones."""
    case.data[1] = case.data[1] * PRICE_DEVIATION + PRICE_MEAN


@fault("price", ("network,features", WRONG), ("first", "wrong_weights"))
def price_columns_exchanged(case: Case) -> None:
    """Two columns of the table are exchanged: east comes before north."""
    case.data[0] = case.data[0][:, [0, 1, 2, 3, 4, 5, 7, 6, 8]].contiguous()


@fault("price", ("network,features", WRONG))
def price_missing_values(case: Case) -> None:
    """Where the age is unknown, the table has -999, and was normalized with it."""
    features = case.data[0].clone()
    features[torch.rand(len(features)) < 0.15, 2] = -999 / HOUSE_DEVIATIONS[2]
    case.data[0] = features


@fault("price", ("second,norm2", "stale_batch_norm"))
def price_statistics_lost(case: Case) -> None:
    """The running statistics of one norm were not in the checkpoint."""
    case.module("norm2").reset_running_stats()


@fault("price", ("second,norm2,act2,add", "wrong_setting"))
def price_activation_lost(case: Case) -> None:
    """The activation behind the second layer was forgotten."""
    case.model.act2 = nn.Identity()


@fault("price", ("", "rounded_weights"))
def price_few_numbers(case: Case) -> None:
    """The weights had been stored in three bits, and were loaded as they are."""
    for module in case.model.modules():
        if isinstance(module, nn.Linear):
            step = module.weight.data.abs().max() / 3
            module.weight.data = (module.weight.data / step).round() * step


@fault("price", ("features,first", "input_imbalance outlier_channel channel_imbalance"))
def price_normalization_folded(case: Case) -> None:
    """The normalization of features was folded into the first layer, which reads columns in units of their own."""
    first = case.module("first")
    case.data[0] = case.data[0] * HOUSE_DEVIATIONS + HOUSE_MEANS
    first.weight.data = first.weight.data / HOUSE_DEVIATIONS
    first.bias.data = first.bias.data - first.weight.data @ HOUSE_MEANS


@fault("price", ("calibration data", "no_variety"))
def price_one_house(case: Case) -> None:
    """The calibration data are 128 copies of one house."""
    case.calibration = [part[2:3].repeat(128, 1) for part in calibration(case)]


@fault("price", ("", "float_mismatch"))
def price_newer_checkpoint(case: Case) -> None:
    """The simulation was made of an older checkpoint than the network that is given with it."""
    case.simulate()
    train_again(case, 0.01, 80, F.mse_loss)


# --- shop: users and items ------------------------------------------------------------------------------------------


@fault("shop", ("network,user", WRONG), ("users", "wrong_weights"))
def shop_users_off_by_one(case: Case) -> None:
    """Users are counted from one, while the table begins at zero."""
    case.data[0] = (case.data[0] + 1) % 120


@fault("shop", ("network,facts", WRONG))
def shop_cents(case: Case) -> None:
    """One of the facts, the price, comes in another unit and is ten times as large."""
    facts = case.data[3].clone()
    facts[:, 1] *= 10
    case.data[3] = facts


@fault("shop", ("items", "wrong_weights"))
def shop_items_not_loaded(case: Case) -> None:
    """The table of items was not loaded."""
    anew(case.module("items"))


@fault("shop", ("cat,first", "wrong_setting wrong_weights"))
def shop_joined_otherwise(case: Case) -> None:
    """Users and items are joined in another order before the first map."""
    case.model.order = "product, items, users, kinds, facts"


@fault("shop", ("", "wrong_setting"))
def shop_sum_for_product(case: Case) -> None:
    """The rows of users and items are added where they should be multiplied."""
    case.model.how = "sum"


@fault("shop", ("calibration data", "outlier_sample"))
def shop_broken_record(case: Case) -> None:
    """One record of the calibration data has an age of 60 deviations, and ranges go from extreme to extreme."""
    calibration(case)[3][17, 2] = 60.0
    case.use(activation=MINMAX)


@fault("shop", ("facts,cat,first", "shared_range outlier_channel channel_imbalance input_imbalance outlier_weight"))
def shop_trained_on_large_facts(case: Case) -> None:
    """The network knows facts 50 times as large as the rows that they are joined with, and has weights to match."""
    case.data[3] = case.data[3] * 50
    case.module("first").weight.data[:, -3:] /= 50


# --- road: pixels ---------------------------------------------------------------------------------------------------


@fault("road", ("network,image", WRONG))
def road_labels_mirrored(case: Case) -> None:
    """The labels were mirrored from left to right, and the images were not."""
    case.data[1] = case.data[1].flip(2)


@fault("road", ("wide1,wide3", "wrong_weights"))
def road_branches_exchanged(case: Case) -> None:
    """The convolutions of the first and the third branch were loaded into each other's place."""
    exchange(case.module("wide1.0").weight, case.module("wide3.0").weight)


@fault("road", ("", "wrong_weights"))
def road_kernels_transposed(case: Case) -> None:
    """Height and width of all kernels are exchanged."""
    for module in case.model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.transpose(2, 3).contiguous()


@fault("road", ("", "stale_batch_norm"))
def road_statistics_of_night(case: Case) -> None:
    """The last epoch of training saw only noise around black, and left its statistics in all batch norms."""
    collect(case.model, -1 + 0.15 * torch.rand(128, 3, 24, 24), norms_of(case.model))


@fault("road", ("calibration data", "unlike_data"))
def road_calibrated_at_night(case: Case) -> None:
    """The calibration images were taken at night and are nearly black."""
    data = calibration(case)
    data[0] = -1 + (data[0] + 1) * 0.12


@fault("road", ("down2", "wide_range"))
def road_wide_by_hand(case: Case) -> None:
    """The range of one convolution was fixed by hand at thirty times what it needs."""
    fixed(case, "down2.0", 1.1, 11)


@fault("road", ("", "symmetric_range"))
def road_symmetric(case: Case) -> None:
    """Activations have ranges that are symmetric about zero, also behind activations that are hardly negative."""
    scheme = replace(recipes.default().activation, dtype="int8", symmetric=True, observer="minmax")
    case.use(activation=scheme)


@fault("road", ("down1,down2,up1", "stale_range"))
def road_stale_ranges(case: Case) -> None:
    """After calibration one convolution's results grew eightfold, in the simulation as well; the scales stayed."""
    sim = case.simulate()
    with torch.no_grad():
        for model in (case.model, sim):
            model.get_parameter("down1.1.weight").mul_(8)
            model.get_parameter("down1.1.bias").mul_(8)
            model.get_parameter("down2.0.weight").div_(8)
            model.get_parameter("up1.0.weight")[:, 16:].div_(8)


# --- wave: sounds ---------------------------------------------------------------------------------------------------


@fault("wave", ("network,signal", WRONG))
def wave_reversed(case: Case) -> None:
    """The samples are read from the last to the first."""
    case.data[0] = case.data[0].flip(2)


@fault("wave", ("gate2", "wrong_setting wrong_weights"), ("chunk,split", "wrong_setting"))
def wave_gate_for_value(case: Case) -> None:
    """One layer takes the gate for the value and the value for the gate."""
    case.module("gate2").exchanged = True


@fault("wave", ("gate", "wrong_setting"))
def wave_centred(case: Case) -> None:
    """The convolutions are padded on both sides, and were trained padded on the left."""
    for name in ("gate1", "gate2", "gate3", "gate4"):
        case.module(name).causal = False


@fault("wave", ("calibration data", "outlier_sample"))
def wave_burst(case: Case) -> None:
    """One sound of the calibration data is 60 times too loud, and ranges go from extreme to extreme."""
    calibration(case)[0][9] *= 60
    case.use(activation=MINMAX)


@fault("wave", ("", "clipped_range"))
def wave_percentile(case: Case) -> None:
    """The recipe cuts ranges at the ninetieth percentile."""
    scheme = replace(recipes.default().activation, observer="percentile", observer_args={"percentile": 90.0})
    case.use(activation=scheme)


@fault("wave", ("network,signal", WRONG))
def wave_offset(case: Case) -> None:
    """The samples are unsigned, and their middle was not taken away."""
    case.data[0] = case.data[0] + 0.6


@fault("wave", ("gate3,gate4", "wrong_setting"))
def wave_dilation_by_one(case: Case) -> None:
    """Dilations were written anew as 1, 2, 3, 4 in place of 1, 2, 4, 8."""
    case.module("gate3.dilated").dilation = (3,)
    case.module("gate4.dilated").dilation = (4,)


@fault("wave", ("", "moving_average"))
def wave_moving_average(case: Case) -> None:
    """Ranges follow a quick moving average, and the calibration data are sorted from loud to soft."""
    data = calibration(case)
    order = data[0].square().mean((1, 2)).argsort(descending=True)
    case.calibration = [part[order] for part in data]
    scheme = replace(recipes.default().activation, observer="moving_average", observer_args={"averaging_constant": 0.6})
    case.use(activation=scheme)


# --- clinic: an image and a table -----------------------------------------------------------------------------------


@fault("clinic", ("network,scan", WRONG))
def clinic_inverted(case: Case) -> None:
    """Black and white of the scans are exchanged."""
    grey = case.data[0] * 0.2 + 0.45
    case.data[0] = ((1 - grey) - 0.45) / 0.2


@fault("clinic", ("network", WRONG), ("findings", "wrong_weights"))
def clinic_findings_exchanged(case: Case) -> None:
    """Two findings are exchanged in the labels."""
    case.data[2] = case.data[2][:, [1, 0, 2, 3, 4]].contiguous()


@fault("clinic", ("conv3", "wrong_weights"))
def clinic_conv_not_loaded(case: Case) -> None:
    """The third convolution was not loaded."""
    anew(case.module("conv3"))


@fault("clinic", ("group2,conv2", "wrong_setting"))
def clinic_other_groups(case: Case) -> None:
    """One group norm was rewritten as an instance norm: a group for each channel."""
    case.module("group2").num_groups = 24


@fault("clinic", ("", "wrong_setting"))
def clinic_relu_for_silu(case: Case) -> None:
    """All activations became ReLU."""
    case.model.act = nn.ReLU()


@fault("clinic", ("calibration data", "unlike_data unrepresentative"))
def clinic_table_empty(case: Case) -> None:
    """The calibration data have scans, and zeros for all values of the table."""
    data = calibration(case)
    data[1] = torch.zeros_like(data[1])


@fault("clinic", ("scan", "clipped_range"))
def clinic_input_by_hand(case: Case) -> None:
    """The range of the scans was fixed from 0 to 1, and they are normalized."""
    case.use(inputs={"scan": {"fixed": (1 / 255, 0)}})


@fault(
    "clinic",
    ("scan,conv1", "heavy_tail wide_range"),
    ("calibration data", "outlier_sample"),
)
def clinic_hot_pixels(case: Case) -> None:
    """A detector has a hot pixel in a few scans, here and in calibration, and ranges go from extreme to extreme."""
    hot = torch.rand(len(case.data[0])) < 0.03
    case.data[0] = case.data[0].clone()
    case.data[0][hot, 0, 15, 15] = 60.0
    apart(case)
    case.use(activation=MINMAX)


# --- sound networks -------------------------------------------------------------------------------------------------


def calibrated(name: str) -> Case:
    """Return a network as it is, with calibration data of its own."""
    case: Case = case_of(Case, build(name))
    apart(case)
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "preact": lambda: calibrated("preact"),
    "mobile": lambda: calibrated("mobile"),
    "bert": lambda: calibrated("bert"),
    "motion": lambda: calibrated("motion"),
    "tagger": lambda: calibrated("tagger"),
    "price": lambda: calibrated("price"),
    "shop": lambda: calibrated("shop"),
    "road": lambda: calibrated("road"),
    "wave": lambda: calibrated("wave"),
    "clinic": lambda: calibrated("clinic"),
}
"""Networks without a fault."""


# --- asking ---------------------------------------------------------------------------------------------------------


plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "bert_half_cased": "words that are gone leave nothing to put right",
    "clinic_hot_pixels": "four of the samples that are held apart reach further, as some do by chance",
    "shop_trained_on_large_facts": "the range of what is joined is said to clip, which makes most of the noise",
    "tagger_per_tensor": "the noise of all weights together is too small to be told",
}
"""What the doctor does not say first, and why."""
