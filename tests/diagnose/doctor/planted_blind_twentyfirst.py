"""Faults that people report, in eight more ordinary networks, planted and answered before anyone asked the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import DEVIATIONS, MEANS, generator, spread
from tests.diagnose.doctor.blind_networks_twentyfirst import (
    BRANDS,
    GENRES,
    ITEM_DEVIATIONS,
    ITEM_MEANS,
    LOAD_DEVIATION,
    LOAD_MEAN,
    PAD,
    USER_DEVIATIONS,
    USER_MEANS,
    VIBRATION,
    WARMTH_DEVIATION,
    WARMTH_MEAN,
    DenseBlock,
    EfficientNet,
    SelfAttention,
    Tower,
    build,
    nearly,
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
    registering,
    train_again,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from intact8 import Scheme, recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- efficientnet: butterflies ---------------------------------------------------------------------------------------


@fault("efficientnet", ("network,image", LOADED_OTHERWISE), ("conv_stem", "stale_batch_norm"))
def efficientnet_camera_in_grey(case: Case) -> None:
    """The camera trap switches to infrared at night, and its grey pictures are repeated for three channels."""
    images = case.data[0] * DEVIATIONS + MEANS
    case.data[0] = (images.mean(1, keepdim=True) - MEANS) / DEVIATIONS


@fault("efficientnet", ("blocks.2", "wrong_setting wrong_scale"))
def efficientnet_gates_without_sigmoid(case: Case) -> None:
    """I rewrote squeeze-and-excitation for the last stage and forgot the sigmoid of the gate."""
    for k in range(3):
        case.module(f"blocks.2.{k}.se").gate = nn.Identity()


@fault("efficientnet", ("", "wrong_setting"))
def efficientnet_built_with_relu(case: Case) -> None:
    """The accelerator has no SiLU, so I built the network with ReLU and loaded the same weights."""
    for module in list(case.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.SiLU):
                setattr(module, name, nn.ReLU())


@fault("efficientnet", ("blocks.2.1.conv_pw,blocks.2.2.conv_pw", "wrong_weights"))
def efficientnet_blocks_mixed_up(case: Case) -> None:
    """My table of TensorFlow names gave the expansions of the last two blocks to each other; all shapes fit."""
    for part in ("conv_pw", "bn1"):
        one, other = case.module(f"blocks.2.1.{part}"), case.module(f"blocks.2.2.{part}")
        for name, value in one.state_dict().items():
            if value.is_floating_point():
                exchange(value, other.state_dict()[name])


@fault("efficientnet", ("", "wrong_weights"), ("network", WRONG))
def efficientnet_average_still_young(case: Case) -> None:
    """I evaluate the exponential moving average with decay 0.9999 after 300 steps, and it is at chance."""
    torch.manual_seed(31)
    young = EfficientNet()
    with torch.no_grad():
        for parameter, first in zip(case.model.parameters(), young.parameters(), strict=True):
            parameter.copy_(0.97 * first + 0.03 * parameter)


@fault("efficientnet", ("blocks.1.0.conv_dw", "exploded_weight exploded_channel"))
def efficientnet_flipped_bit(case: Case) -> None:
    """After a month in the field one device answers nonsense: a bit of the exponent flipped in flash."""
    case.module("blocks.1.0.conv_dw").weight.data.view(-1)[130] *= 2.0**16


@fault("efficientnet", ("", "symmetric_range"))
def efficientnet_symmetric_activations(case: Case) -> None:
    """The accelerator has no zero points, so that all activations are symmetric, SiLU's as well."""
    case.use(activation=Scheme(dtype="int8", symmetric=True))


@fault("efficientnet", ("blocks", "wide_range"))
def efficientnet_gates_as_wide_as_features(case: Case) -> None:
    """A script gave all element-wise operations the range of features, 0 to 48, the gates between 0 and 1 as well."""
    wide = {"activation": {"fixed": (48 / 255, 0)}}
    case.use(overrides={"blocks.*.se.gate": wide}, between_layers="integer")


@fault("efficientnet", ("conv_stem,act1", "few_bits"))
def efficientnet_stem_in_three_bits(case: Case) -> None:
    """A search for mixed precision gave the results of the stem three bits, because it has few parameters."""
    case.use(overrides={name: {"activation": {"bits": 3}} for name in ("conv_stem", "act1")})


@fault("efficientnet", ("calibration data", "unlike_data no_variety unrepresentative"))
def efficientnet_divided_twice(case: Case) -> None:
    """ToTensor divides by 255 and my calibration script divides again, before it normalizes."""
    data = calibration(case)
    data[0] = ((data[0] * DEVIATIONS + MEANS) / 255 - MEANS) / DEVIATIONS


# --- densenet: land from above ---------------------------------------------------------------------------------------


@fault("densenet", ("features.denseblock", "wrong_weights"))
def densenet_keys_of_old_checkpoints(case: Case) -> None:
    """The old checkpoint writes norm.1 and conv.1, my regular expression does not match, and strict=False hides it."""
    for name, module in case.model.named_modules():
        if "denselayer" in name:
            anew(module)


class NewestFirst(DenseBlock):
    """New features before those that were there."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat([layer(x), x], 1)
        return x


@fault("densenet", ("features", "wrong_setting wrong_weights"))
def densenet_joined_the_other_way(case: Case) -> None:
    """My reimplementation joins new features and old ones, torchvision old and new ones, and its weights load."""
    for name in ("denseblock1", "denseblock2", "denseblock3"):
        case.module(f"features.{name}").__class__ = NewestFirst


@fault("densenet", ("network,image", WRONG), ("features.conv0", "wrong_weights stale_batch_norm"))
def densenet_bands_in_order_of_numbers(case: Case) -> None:
    """I stack Sentinel's bands 2, 3 and 4, which are blue, green and red."""
    images = (case.data[0] * DEVIATIONS + MEANS).flip(1)
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault("densenet", ("features.transition", "wrong_setting"))
def densenet_pooled_by_maxima(case: Case) -> None:
    """I wrote the transitions from memory, with max pooling where the paper has the mean, and the weights load."""
    for name in ("transition1", "transition2"):
        case.module(f"features.{name}").pool = nn.MaxPool2d(2)


@fault("densenet", ("network,image", LOADED_OTHERWISE), ("features.conv0", "stale_batch_norm"))
def densenet_reflectance_not_stretched(case: Case) -> None:
    """I divide reflectances by 10000, the training pictures were stretched to 3000, and everything is dark."""
    images = (case.data[0] * DEVIATIONS + MEANS) * 0.3
    case.data[0] = (images - MEANS) / DEVIATIONS


@fault("densenet", ("network", WRONG), ("classifier", "wrong_weights"))
def densenet_folders_in_another_order(case: Case) -> None:
    """Classes are numbered by the names of folders, and my test set has its folders in another language."""
    case.data[1] = torch.tensor([3, 5, 0, 1, 6, 2, 4])[case.data[1]]


@fault("densenet", ("features.denseblock1,features.transition1", "shared_range " + UNEQUAL))
def densenet_one_loud_layer(case: Case) -> None:
    """On integers alone all is lost: the first dense layer is 100 times as loud as what it is joined with."""
    case.module("features.denseblock1.denselayer1.conv2").weight.data *= 100
    for name in ("denseblock1.denselayer2.norm1", "denseblock1.denselayer3.norm1", "transition1.norm"):
        norm = case.module(f"features.{name}")
        norm.running_mean[16:28] *= 100
        norm.running_var[16:28] *= 10000
    case.use(between_layers="integer", equalize=False)


@fault("densenet", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range"))
def densenet_tile_without_data(case: Case) -> None:
    """One calibration tile is at the border of the scene, where missing values are 65535, and ranges are extremes."""
    data = calibration(case)
    data[0][55, :, 10:] = ((torch.tensor(65535 / 3000) - MEANS) / DEVIATIONS).expand(3, 22, 32)
    case.use(activation=MINMAX)


@fault("densenet", ("calibration data", "one_class unrepresentative no_variety"))
def densenet_calibrated_at_sea(case: Case) -> None:
    """I took the first hundred files for calibration, and they are all of one folder, the sea."""
    apart(case)
    subject = build("densenet")
    sea = subject.data[1] == 0
    case.calibration = [part[sea] for part in subject.data]
    case.use(activation=MINMAX)


@fault("densenet", ("features.transition", "few_bits"))
def densenet_transitions_in_two_bits(case: Case) -> None:
    """Transitions have most of the weights, so that I compressed those to two bits."""
    case.use(overrides={"features.transition?.conv": {"weight": {"bits": 2}}})


# --- distilbert: tickets ---------------------------------------------------------------------------------------------


@fault("distilbert", ("network,attention_mask", WRONG))
def distilbert_mask_the_other_way(case: Case) -> None:
    """PyTorch's key_padding_mask is true at padding, and I pass the same to a model that expects 1 at words."""
    case.data[1] = 1 - case.data[1]


@fault("distilbert", ("network,input_ids", WRONG))
def distilbert_cut_after_eight(case: Case) -> None:
    """max_length=8 was left from a test of the tokenizer, and longer tickets are cut."""
    ids = case.data[0].clone()
    ids[:, 8:] = PAD
    case.data[0], case.data[1] = ids, (ids != PAD).long()


class OverQueries(SelfAttention):
    """Attention whose weights have the sum 1 over queries."""

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            layer(x).view(batch, count, self.heads, -1).transpose(1, 2)
            for layer in (self.q_lin, self.k_lin, self.v_lin)
        )
        weights = torch.softmax(q * self.scale @ k.transpose(2, 3) + shade, -2)
        return self.out_lin((weights @ v).transpose(1, 2).reshape(batch, count, width))


@fault("distilbert", ("transformer.layer", "wrong_setting"))
def distilbert_softmax_over_queries(case: Case) -> None:
    """I wrote attention myself and took softmax over dimension 2 and not 3; shapes are the same."""
    for k in range(2):
        case.module(f"transformer.layer.{k}.attention").__class__ = OverQueries


@fault("distilbert", ("network,input_ids", WRONG), ("embeddings.word_embeddings", "wrong_weights"))
def distilbert_one_unused_token_more(case: Case) -> None:
    """The new vocabulary file has one more [unused] token before the words, and all their numbers are one higher."""
    ids = case.data[0]
    case.data[0] = torch.where(ids > 4, (ids + 1).clamp_max(71), ids)


@fault("distilbert", ("transformer.layer", "wrong_weights"))
def distilbert_attention_packed_otherwise(case: Case) -> None:
    """I split the packed projection of another implementation into query, key and value; it was value, query, key."""
    for k in range(2):
        attention = case.module(f"transformer.layer.{k}.attention")
        for name in ("weight", "bias"):
            query, key, value = (getattr(getattr(attention, part), name) for part in ("q_lin", "k_lin", "v_lin"))
            exchange(query, key)
            exchange(query, value)


@fault("distilbert", ("pre_classifier", "wrong_weights"))
def distilbert_newly_initialized(case: Case) -> None:
    """There was a warning that pre_classifier.weight is newly initialized and should be trained; I did not."""
    anew(case.module("pre_classifier"))


@fault("distilbert", ("embeddings.word_embeddings,embeddings,network", "not_finite"))
def distilbert_overflow_in_half(case: Case) -> None:
    """Saved in float16 some rows of the table became infinite, and one answer in six is NaN."""
    case.module("embeddings.word_embeddings").weight.data[[40, 52]] = float("inf")


@fault("distilbert", ("transformer.layer.0.attention", UNEQUAL))
def distilbert_values_with_outliers(case: Case) -> None:
    """Some features of the values are 300 times as wide as the others, and the projection behind takes it back."""
    attention = case.module("transformer.layer.0.attention")
    for k in (5, 22):
        attention.v_lin.weight.data[k] *= 300
        attention.v_lin.bias.data[k] *= 300
        attention.out_lin.weight.data[:, k] /= 300


@fault("distilbert", ("transformer.layer", "few_bits"))
def distilbert_feed_forward_in_two_bits(case: Case) -> None:
    """The feed-forward layers hold two thirds of all weights, so I gave them two bits and kept eight elsewhere."""
    case.use(overrides={"transformer.layer.*.ffn.lin?": {"weight": {"bits": 2}}})


@fault("distilbert", ("transformer.layer.0.attention", "clipped_range"))
def distilbert_queries_cut(case: Case) -> None:
    """I set the range of queries and keys to -1..1 by hand, thinking that they are normalized."""
    one = {"activation": {"fixed": (2 / 255, 128)}}
    case.use(overrides={f"transformer.layer.0.attention.{name}_lin": one for name in "qk"})


# --- forecaster: load of a grid --------------------------------------------------------------------------------------


@fault("forecaster", ("network,history,weather", "float_network_wrong wrong_scale"))
def forecaster_in_fahrenheit(case: Case) -> None:
    """The new weather service answers in Fahrenheit, and the scaler is that of Celsius."""

    def converted(part: Tensor) -> Tensor:
        """Return degrees of Fahrenheit, scaled as if they were of Celsius."""
        return ((part * WARMTH_DEVIATION + WARMTH_MEAN) * 1.8 + 32 - WARMTH_MEAN) / WARMTH_DEVIATION

    history = case.data[0].clone()
    history[:, :, 1] = converted(history[:, :, 1])
    case.data[0], case.data[2] = history, converted(case.data[2])


@fault("forecaster", ("network,calendar", WRONG), ("hour_embedding", "wrong_weights"))
def forecaster_in_universal_time(case: Case) -> None:
    """The database keeps UTC, training had local time, and hours are nine too early."""
    calendar = case.data[1].clone()
    calendar[:, 0] = (calendar[:, 0] - 9) % 24
    case.data[1] = calendar


@fault("forecaster", ("network,history", WRONG))
def forecaster_newest_first(case: Case) -> None:
    """The query sorts by time in descending order, and the window is given to the GRU with the newest hour first."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("forecaster", ("network", WRONG), ("fc2", "wrong_scale wrong_weights"))
def forecaster_not_scaled_back(case: Case) -> None:
    """I compare the forecast with megawatts and forgot scaler.inverse_transform."""
    case.data[3] = case.data[3] * LOAD_DEVIATION + LOAD_MEAN


@fault("forecaster", ("gru", "wrong_weights wrong_setting"))
def forecaster_gates_of_keras(case: Case) -> None:
    """Keras keeps update, reset, candidate, PyTorch reset, update, new, and I only transposed the kernels."""
    for parameter in case.module("gru").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([update, reset, new]).contiguous()


@fault("forecaster", ("gru", "wrong_weights"))
def forecaster_recurrent_not_loaded(case: Case) -> None:
    """I copied kernel and bias by hand and overlooked that there is a recurrent kernel as well."""
    weight = case.module("gru").weight_hh_l0
    weight.data.uniform_(-(40**-0.5), 40**-0.5, generator=generator(32))


@fault("forecaster", ("fc2", "clipped_range"))
def forecaster_peaks_cut(case: Case) -> None:
    """Numbers have deviation 1, so I gave the forecast the range -1..1, and all peaks are cut."""
    fixed(case, "fc2", 2 / 255, 128)


@fault("forecaster", ("calibration data", "unrepresentative no_variety too_few"))
def forecaster_calibrated_on_one_mild_week(case: Case) -> None:
    """I calibrated on one week of May, when it was mild and loads were low, and winter is far off."""
    data = calibration(case)
    order = data[3].mean(1).argsort()[:24]
    case.calibration = [part[order] for part in data]
    case.use(activation=MINMAX)


@fault("forecaster", ("fc1", "few_bits"))
def forecaster_hidden_in_three_bits(case: Case) -> None:
    """To save memory traffic the hidden activations of the head have three bits."""
    case.use(overrides={"fc1": {"activation": {"bits": 3}}})


@fault("forecaster", ("calibration data", "outlier_sample"), ("history,weather", "heavy_tail wide_range"))
def forecaster_sensor_failed(case: Case) -> None:
    """In one calibration window the thermometer had failed and says -9999, and ranges are extremes."""
    data = calibration(case)
    data[2][31, 2:] = (-9999 - WARMTH_MEAN) / WARMTH_DEVIATION
    case.use(activation=MINMAX)


# --- bearing: vibrations ---------------------------------------------------------------------------------------------


@fault("bearing", ("network,signal", LOADED_OTHERWISE), ("inceptionblock", "stale_batch_norm"))
def bearing_in_metres_per_second_squared(case: Case) -> None:
    """The new logger records m/s² and the old one g."""
    case.data[0] = case.data[0] * 9.81


@fault("bearing", ("network,signal", LOADED_OTHERWISE), ("inceptionblock", "stale_batch_norm"))
def bearing_with_gravity(case: Case) -> None:
    """The cheap sensor is coupled to DC, and its radial axis has one g of gravity."""
    signal = case.data[0].clone()
    signal[:, 0] += 1 / VIBRATION
    case.data[0] = signal


@fault("bearing", ("network,signal", LOADED_OTHERWISE), ("inceptionblock", "stale_batch_norm"))
def bearing_sampled_twice_as_fast(case: Case) -> None:
    """The other plant records with 24 kHz and not 12, and windows have the same number of samples."""
    case.data[0] = F.interpolate(case.data[0][:, :, :96], size=192, mode="linear", align_corners=False)


@fault("bearing", ("network,signal", LOADED_OTHERWISE), ("inceptionblock", "stale_batch_norm"))
def bearing_reshaped(case: Case) -> None:
    """Windows come as 192 × 2 and I used view(2, 192), which runs and is no transposition."""
    signal = case.data[0]
    case.data[0] = signal.transpose(1, 2).reshape(signal.shape).contiguous()


@fault("bearing", ("network,signal", LOADED_OTHERWISE), ("inceptionblock", "stale_batch_norm wrong_weights"))
def bearing_axes_exchanged(case: Case) -> None:
    """The sensor was mounted turned by 90 degrees, so that radial is axial."""
    case.data[0] = case.data[0].flip(1).contiguous()


@fault("bearing", ("inceptionblock.inception.1", "wrong_weights"))
def bearing_branch_kernels_missorted(case: Case) -> None:
    """The converter sorted names as texts, and the two narrow branches of the second module were put in each other."""
    one, other = (case.module(f"inceptionblock.inception.1.convs.{k}").weight for k in (1, 2))
    wide, narrow = one.data.clone(), other.data.clone()
    other.data.copy_(wide[:, :, 2:7])
    one.data.copy_(F.pad(narrow, (2, 2)))


@fault("bearing", ("signal", "clipped_range"))
def bearing_shocks_cut(case: Case) -> None:
    """Quiet machines stay below one g, I set the range of the input accordingly, and shocks go to three."""
    case.use(inputs={"signal": {"fixed": (1.4 / 255, 128)}})


@fault("bearing", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def bearing_machine_off(case: Case) -> None:
    """I recorded calibration data at the weekend, when the machine was off."""
    data = calibration(case)
    data[0] = 0.12 / VIBRATION * torch.randn(data[0].shape, generator=generator(33))


@fault("bearing", ("inceptionblock.inception.1", "shared_range " + UNEQUAL))
def bearing_one_loud_branch(case: Case) -> None:
    """The widest branch of a module is 120 times as loud as those beside it, and I must stay on integers."""
    module = case.module("inceptionblock.inception.1")
    module.convs[0].weight.data *= 120
    module.bn.running_mean[:10] *= 120
    module.bn.running_var[:10] *= 120**2
    case.use(between_layers="integer", equalize=False)


@fault("bearing", ("", "moving_average"), ("calibration data", "unrepresentative one_class no_variety"))
def bearing_average_ends_with_sound_machines(case: Case) -> None:
    """The observer is a moving average, files are sorted by state, and the last thousand are of sound machines."""
    data = calibration(case)
    order = data[1].argsort(descending=True, stable=True)
    sound = build("bearing").data[0][build("bearing").data[1] == 0].repeat(16, 1, 1)[:1024]
    case.calibration = [
        torch.cat([data[0][order], sound]),
        torch.cat([data[1][order], torch.zeros(len(sound), dtype=torch.long)]),
    ]
    args = {"averaging_constant": 0.2}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


# --- keypoints: faces ------------------------------------------------------------------------------------------------


@fault("keypoints", ("network", WRONG), ("fc2", "wrong_weights"))
def keypoints_rows_before_columns(case: Case) -> None:
    """The annotation tool writes row and column, and the network says x and y."""
    case.data[1] = case.data[1].view(-1, 4, 2).flip(2).reshape(-1, 8).contiguous()


@fault("keypoints", ("network,picture", LOADED_OTHERWISE))
def keypoints_box_too_large(case: Case) -> None:
    """The new face detector gives boxes with a wide margin, and faces are half as large as in training."""
    inner = F.interpolate(case.data[0], size=(18, 18), mode="bilinear", align_corners=False)
    case.data[0] = F.pad(inner, (7, 7, 7, 7), mode="replicate")
    case.data[1] = (case.data[1] * 18 + 7) / 32


@fault("keypoints", ("prelu,conv,fc1", "wrong_setting wrong_weights"))
def keypoints_relu_for_prelu(case: Case) -> None:
    """The converter does not know PReLU, took ReLU, and told nobody."""
    for k in range(1, 6):
        setattr(case.model, f"prelu{k}", nn.ReLU())


@fault("keypoints", ("", "stale_batch_norm"))
def keypoints_statistics_of_the_night(case: Case) -> None:
    """The norms saw a few hundred dark pictures in train() before I exported, and by day points are off."""
    norms = [case.module(f"bn{k}") for k in range(1, 5)]
    dark = (case.data[0] * 0.5 + 0.5) * 0.25
    collect(case.model, (dark - 0.5) / 0.5, norms)


@fault("keypoints", ("conv", "wrong_weights"))
def keypoints_kernels_of_matlab(case: Case) -> None:
    """MATLAB keeps columns first, and rows and columns of all kernels are exchanged."""
    for k in range(1, 5):
        weight = case.module(f"conv{k}").weight
        weight.data = weight.data.transpose(2, 3).contiguous()


@fault("keypoints", ("conv2,bn2,prelu2,conv3", UNEQUAL))
def keypoints_channels_not_equalized(case: Case) -> None:
    """Channels behind the second norm differ by 1:500, and I turned cross-layer equalization off."""
    factors = spread(24, 500.0, 34)
    norm = case.module("bn2")
    norm.weight.data *= factors
    norm.bias.data *= factors
    case.module("conv3").weight.data /= factors.view(1, -1, 1, 1)
    case.use(equalize=False)


@fault("keypoints", ("calibration data", "unlike_data no_variety unrepresentative"))
def keypoints_calibrated_in_glare(case: Case) -> None:
    """The calibration pictures were taken against the sun and are almost white."""
    data = calibration(case)
    white = (0.96 + 0.08 * (data[0] * 0.5 + 0.5)).clamp(0, 1)
    data[0] = (white - 0.5) / 0.5


@fault("keypoints", ("fc2", "few_bits"))
def keypoints_places_in_four_bits(case: Case) -> None:
    """The recipe for classifiers gives the last layer's results four bits, and here they are places."""
    case.use(overrides={"fc2": {"activation": {"bits": 4}}})


@fault("keypoints", ("fc2", "wide_range"))
def keypoints_range_in_pixels(case: Case) -> None:
    """Places were in pixels, 0 to 32, in the first version of the network, and the output has that range still."""
    fixed(case, "fc2", 32 / 255, 0)


@fault("keypoints", ("", "float_mismatch"))
def keypoints_simulated_and_then_trained(case: Case) -> None:
    """I made the simulation, trained the float network on for this camera, and compare the old simulation with it."""
    case.simulate()
    train_again(case, 0.03, 80, nearly)


# --- towers: clicks --------------------------------------------------------------------------------------------------


@fault("towers", ("user_tower.fc2,item_tower.fc2,user_tower.bn2,item_tower.bn2", "wrong_weights"))
def towers_layers_exchanged(case: Case) -> None:
    """Both towers have layers of one size, and when I renamed the keys their second layers were exchanged."""
    exchange(case.module("user_tower.fc2").weight, case.module("item_tower.fc2").weight)
    exchange(case.module("user_tower.fc2").bias, case.module("item_tower.fc2").bias)


@fault("towers", ("network,item_numbers", LOADED_OTHERWISE), ("item_tower.fc1", "stale_batch_norm"))
def towers_price_in_cents(case: Case) -> None:
    """The catalogue was moved to integers and has prices in cents."""
    numbers = case.data[3].clone()
    numbers[:, 0] = ((numbers[:, 0] * ITEM_DEVIATIONS[0] + ITEM_MEANS[0]) * 100 - ITEM_MEANS[0]) / ITEM_DEVIATIONS[0]
    case.data[3] = numbers


@fault("towers", ("network,item_numbers", LOADED_OTHERWISE), ("item_tower.fc1", "stale_batch_norm"))
def towers_logarithm_forgotten(case: Case) -> None:
    """Training takes the logarithm of copies sold in SQL, the service reads the raw count."""
    numbers = case.data[3].clone()
    sold = (numbers[:, 2] * ITEM_DEVIATIONS[2] + ITEM_MEANS[2]).expm1()
    numbers[:, 2] = (sold - ITEM_MEANS[2]) / ITEM_DEVIATIONS[2]
    case.data[3] = numbers


@fault("towers", ("network,item_ids", WRONG), ("item_tower.embeddings", "wrong_weights"))
def towers_hashed_with_another_seed(case: Case) -> None:
    """Genres and brands are numbered by Python's hash, which differs in every process."""
    ids = case.data[2]
    genres, brands = (torch.randperm(n, generator=generator(35)) for n in (GENRES, BRANDS))
    case.data[2] = torch.stack([genres[ids[:, 0]], brands[ids[:, 1]]], 1)


@fault("towers", ("item_tower,", "stale_batch_norm"))
def towers_statistics_of_bestsellers(case: Case) -> None:
    """The last fine-tuning had only cheap bestsellers, and the item tower's norms took their statistics from them."""
    numbers = case.data[3]
    rows = (numbers[:, 2] > 0.3) & (numbers[:, 0] < 0.0)
    case.model.eval()
    norms = [case.module("item_tower.bn1"), case.module("item_tower.bn2")]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        case.model(*(part[rows] for part in case.data[:-1]))
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


class NumbersFirst(Tower):
    """Numbers before the rows of tables."""

    def joined(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Return numbers and rows side by side."""
        rows = [self.embeddings[name](ids[:, k]) for k, name in enumerate(self.names)]
        return torch.cat([numbers, *rows], 1)


@fault("towers", ("user_tower,item_tower", "wrong_setting"), ("user_tower.fc1,item_tower.fc1", "wrong_weights"))
def towers_numbers_first(case: Case) -> None:
    """In the service the numbers come first when features are joined, and in training the tables did."""
    for name in ("user_tower", "item_tower"):
        case.module(name).__class__ = NumbersFirst


@fault("towers", ("calibration data", "unlike_data"))
def towers_calibrated_without_scaler(case: Case) -> None:
    """Calibration reads the table as it is in the warehouse, without the scaler."""
    data = calibration(case)
    data[1] = data[1] * USER_DEVIATIONS + USER_MEANS
    data[3] = data[3] * ITEM_DEVIATIONS + ITEM_MEANS


@fault("towers", ("user_tower.fc3", "clipped_range"))
def towers_vectors_thought_normalized(case: Case) -> None:
    """I thought that user vectors have length 1 and gave them the range -1..1."""
    fixed(case, "user_tower.fc3", 2 / 255, 128)


@fault("towers", ("item_tower.fc3", "few_bits"))
def towers_index_in_three_bits(case: Case) -> None:
    """The index of item vectors must fit into memory, and I stored them with three bits."""
    case.use(overrides={"item_tower.fc3": {"activation": {"bits": 3}}})


@fault("towers", ("user_tower.fc3,item_tower.fc3,mul", UNEQUAL))
def towers_vectors_whitened(case: Case) -> None:
    """Item vectors were whitened for the index and user vectors stretched in turn; products are the same, int8 not."""
    factors = spread(16, 400.0, 36)
    for name, by in (("user_tower.fc3", factors), ("item_tower.fc3", 1 / factors)):
        layer = case.module(name)
        layer.weight.data *= by[:, None]
        layer.bias.data *= by
    case.use(between_layers="integer", equalize=False)


# --- mixer: clocks ---------------------------------------------------------------------------------------------------


@fault("mixer", ("network,image", WRONG))
def mixer_turned_by_telephones(case: Case) -> None:
    """Two of three telephones keep how they were held in EXIF, which my loader ignores, and their pictures lie."""
    images = case.data[0].clone()
    for turn in (1, 3):
        rows = torch.arange(turn, len(images), 4)
        images[rows] = images[rows].rot90(turn, (2, 3))
    case.data[0] = images.contiguous()


@fault("mixer", ("blocks", "wrong_weights"))
def mixer_blocks_in_reverse(case: Case) -> None:
    """My loop over the checkpoint popped blocks from the end, and they are in reverse order; all shapes fit."""
    states = [{k: v.clone() for k, v in block.state_dict().items()} for block in case.module("blocks")]
    for block, state in zip(case.module("blocks"), reversed(states), strict=True):
        block.load_state_dict(state)


@fault("mixer", ("blocks", "wrong_weights"))
def mixer_kernels_of_jax(case: Case) -> None:
    """JAX keeps kernels as inputs × outputs, and I reshaped those of the token maps where I should have transposed."""
    for k in range(4):
        for name in ("fc1", "fc2"):
            weight = case.module(f"blocks.{k}.mlp_tokens.{name}").weight
            weight.data = weight.data.t().reshape(weight.shape).contiguous()


@fault("mixer", ("stem", "wrong_weights"))
def mixer_stem_overwritten(case: Case) -> None:
    """After loading I called the function that initializes, for the new head, and it took the patches as well."""
    anew(case.module("stem.proj"))


@fault("mixer", ("", "rounded_weights"))
def mixer_weights_of_five_numbers(case: Case) -> None:
    """The app's float weights were unpacked from a format of five numbers a tensor, and accuracy is gone already."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            step = 0.6 * parameter.data.abs().max()
            parameter.data = (parameter.data / step).round() * step


@fault("mixer", ("blocks", "wrong_setting"))
def mixer_activation_forgotten(case: Case) -> None:
    """In my port the maps over channels have no GELU between them, and I saw it only in the accuracy."""
    for k in range(4):
        case.module(f"blocks.{k}.mlp_channels").act = nn.Identity()


@fault("mixer", ("stem.proj,stem", "wide_range"))
def mixer_tokens_in_range_of_bytes(case: Case) -> None:
    """The results of the patches were given the range of the bytes of pictures, -128..127."""
    fixed(case, "stem.proj", 1.0, 128)


@fault("mixer", ("blocks.2", UNEQUAL))
def mixer_gains_far_apart(case: Case) -> None:
    """The gains of one norm differ by 1:500 since weight decay did not reach them, and the map behind is inverse."""
    factors = spread(40, 500.0, 37)
    for parameter in case.module("blocks.2.norm2").parameters():
        parameter.data *= factors
    case.module("blocks.2.mlp_channels.fc1").weight.data /= factors
    case.use(equalize=False)


@fault("mixer", ("blocks", "few_bits"))
def mixer_token_maps_in_three_bits(case: Case) -> None:
    """The token maps are small, and I thought that three bits are enough for their weights and activations."""
    three = {"weight": {"bits": 3}, "activation": {"bits": 3}}
    case.use(overrides={"blocks.*.mlp_tokens.fc?": three})


@fault("mixer", ("calibration data", "outlier_sample"), ("image", "heavy_tail wide_range"))
def mixer_one_picture_in_bytes(case: Case) -> None:
    """One calibration picture came through another branch of the loader with values to 255; ranges are extremes."""
    data = calibration(case)
    data[0][90] = (data[0][90] * 0.5 + 0.5) * 255
    case.use(activation=MINMAX)


# --- sound networks --------------------------------------------------------------------------------------------------


calibrated = calibrating(Case, build)


def efficientnet_fused() -> Case:
    """All norms are fused into their convolutions, as deployment scripts do it."""
    case = calibrated("efficientnet")
    pairs = {"conv_stem": "bn1", "conv_pw": "bn1", "conv_dw": "bn2", "conv_pwl": "bn3", "conv_head": "bn2"}
    for module in list(case.model.modules()):
        for conv, norm in pairs.items():
            if conv in dict(module.named_children()):
                setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
                setattr(module, norm, nn.Identity())
    return case


def densenet_sorted() -> Case:
    """The test files are sorted by class, as ImageFolder gives them; the calibration files are not."""
    case = calibrated("densenet")
    order = case.data[1].argsort(stable=True)
    case.data = [part[order].contiguous() for part in case.data]
    return case


def distilbert_cooled() -> Case:
    """Logits are divided by a temperature that was fitted, which is folded into the last map."""
    case = calibrated("distilbert")
    for parameter in case.module("classifier").parameters():
        parameter.data /= 1.7
    return case


def forecaster_units_in_another_order() -> Case:
    """The units of the GRU have another order, everywhere."""
    case = calibrated("forecaster", 256)
    gru, order = case.module("gru"), torch.randperm(40, generator=generator(38))
    rows = (40 * torch.arange(3)[:, None] + order).flatten()
    for parameter in gru.parameters():
        parameter.data = parameter.data[rows].contiguous()
    gru.weight_hh_l0.data = gru.weight_hh_l0.data[:, order].contiguous()
    weight = case.module("fc1").weight
    weight.data = torch.cat([weight.data[:, :40][:, order], weight.data[:, 40:]], 1).contiguous()
    return case


def bearing_simulated() -> Case:
    """The simulation was made of the network as it is."""
    case: Case = case_of(Case, build("bearing"))
    case.simulate()
    return case


def keypoints_scaled() -> Case:
    """One norm gives numbers four times as large, and the next layer takes it back."""
    case = calibrated("keypoints")
    for parameter in case.module("bn2").parameters():
        parameter.data *= 4
    case.module("conv3").weight.data /= 4
    return case


def towers_brands_renumbered() -> Case:
    """Brands have other numbers, and so have the rows of their table."""
    case = calibrated("towers", 256)
    order = torch.randperm(BRANDS, generator=generator(39))
    table = case.module("item_tower.embeddings.brand").weight
    table.data = table.data[order.argsort()].contiguous()
    assert case.calibration is not None
    for data in (case.data, case.calibration):
        data[2] = torch.stack([data[2][:, 0], order[data[2][:, 1]]], 1)
    return case


def mixer_channels_in_another_order() -> Case:
    """The channels of the residual stream have another order, everywhere."""
    case = calibrated("mixer")
    order = torch.randperm(40, generator=generator(40))
    for name, parameter in case.model.named_parameters():
        if name.startswith("stem") or "norm" in name or "mlp_channels.fc2" in name:
            parameter.data = parameter.data[order].contiguous()
        elif name == "head.weight" or name.endswith("mlp_channels.fc1.weight"):
            parameter.data = parameter.data[:, order].contiguous()
    return case


SOUND: dict[str, Callable[[], Case]] = {
    "efficientnet": efficientnet_fused,
    "densenet": densenet_sorted,
    "distilbert": distilbert_cooled,
    "forecaster": forecaster_units_in_another_order,
    "bearing": bearing_simulated,
    "keypoints": keypoints_scaled,
    "towers": towers_brands_renumbered,
    "mixer": mixer_channels_in_another_order,
}
"""Networks without a fault, each with something unusual."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {}
"""What the doctor says something else of, and why."""
