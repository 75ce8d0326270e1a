"""Faults that people report, in a further seven ordinary networks, planted and answered before the doctor was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import generator
from tests.diagnose.doctor.blind_networks_twentyeighth import (
    KEPT_OF_SIGNAL,
    LOUD_DEVIATION,
    LOUD_MEAN,
    NO,
    PERSON_DEVIATIONS,
    PERSON_MEANS,
    PULSE_DEVIATION,
    PULSE_MEAN,
    SONGS,
    TREAD_DEVIATIONS,
    TREAD_MEANS,
    VOCABULARY,
    XRAY_DEVIATION,
    XRAY_MEAN,
    build,
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
    norms_of,
    registering,
    train_again,
)
from tests.diagnose.doctor.planting import CaseOfSeveral as Case

from intact8 import recipes

FAULTS: dict[str, FaultWithAnswers] = {}
fault = registering(FAULTS)


# --- tyre: the state of tyres' treads --------------------------------------------------------------------------------


@fault("tyre", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights wrong_scale"))
def tyre_normalized_twice(case: Case) -> None:
    """The data set normalizes its pictures, and the collate function, which I took over, does so again."""
    case.data[0] = (case.data[0] - TREAD_MEANS) / TREAD_DEVIATIONS


@fault("tyre", ("", "wrong_setting"))
def tyre_momentum_in_the_place_of_eps(case: Case) -> None:
    """I wrote BatchNorm2d(width, 0.9), as I meant a momentum, and the second argument is eps."""
    for norm in norms_of(case.model):
        norm.eps = 0.9


@fault("tyre", ("blocks", "wrong_weights"))
def tyre_kernels_columns_first(case: Case) -> None:
    """The file has columns before rows, and kernels in space are square, so that nothing told me."""
    for k in range(4):
        weight = case.module(f"blocks.{k}.0.fn.0").weight
        weight.data = weight.data.transpose(2, 3).contiguous()


@fault("tyre", ("", "stale_batch_norm"))
def tyre_statistics_of_flashlight(case: Case) -> None:
    """The network ran in training mode over pictures taken at night with a flashlight before it was saved."""
    raw = case.data[0][:192] * TREAD_DEVIATIONS + TREAD_MEANS
    bright = (0.45 + 1.6 * (raw - 0.25)).clamp(0, 1)
    collect(case.model, (bright - TREAD_MEANS) / TREAD_DEVIATIONS, norms_of(case.model))


@fault("tyre", ("calibration data", "unlike_data unrepresentative"))
def tyre_calibrated_on_random_numbers(case: Case) -> None:
    """I calibrated on torch.rand(), as in the guide's first example; ranges are extremes."""
    data = calibration(case)
    data[0] = torch.rand(data[0].shape, generator=generator(281)) * 0.2
    case.use(activation=MINMAX)


@fault("tyre", ("blocks.1", "exploded_channel exploded_weight"))
def tyre_gain_exploded(case: Case) -> None:
    """A gain of the norm in space of the second block was typed in by hand, without its decimal point."""
    norm = case.module("blocks.1.0.fn.2")
    norm.weight.data[11] = 100 * norm.weight.data.abs().mean()


@fault("tyre", ("blocks.2", "few_bits"))
def tyre_channels_in_two_bits(case: Case) -> None:
    """A search for bits gave the third block's convolution of channels weights of two bits."""
    case.use(overrides={"blocks.2.1": {"weight": {"bits": 2}}})


@fault("tyre", ("blocks.3", "clipped_range"))
def tyre_range_of_another_run(case: Case) -> None:
    """The range of the last block's convolution of channels is copied from a network with smaller numbers."""
    fixed(case, "blocks.3.1", 0.8 / 255, 128)


@fault("tyre", ("head", "wrong_weights"), ("network", WRONG))
def tyre_head_rows_sorted(case: Case) -> None:
    """The old service sorts its classes by name, and its head, not its labels, was put into my checkpoint."""
    order = torch.tensor([4, 5, 2, 0, 1, 3])
    head = case.module("head")
    head.weight.data, head.bias.data = head.weight.data[order].clone(), head.bias.data[order].clone()


# --- tooth: teeth, fillings and decay in X-rays ----------------------------------------------------------------------


@fault("tooth", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights wrong_scale"))
def tooth_negative(case: Case) -> None:
    """The new sensor's files are MONOCHROME1, where 0 is white, and I read them as they are."""
    case.data[0] = ((1 - (case.data[0] * XRAY_DEVIATION + XRAY_MEAN)) - XRAY_MEAN) / XRAY_DEVIATION


@fault("tooth", ("network,image", LOADED_OTHERWISE), ("stem", "stale_batch_norm wrong_weights wrong_scale"))
def tooth_twelve_bits_in_sixteen(case: Case) -> None:
    """Files have twelve bits in sixteen, and I divide by 65535."""
    case.data[0] = ((case.data[0] * XRAY_DEVIATION + XRAY_MEAN) * 4095 / 65535 - XRAY_MEAN) / XRAY_DEVIATION


@fault("tooth", ("decoder", "wrong_weights"))
def tooth_transposed_kernels_turned(case: Case) -> None:
    """The tool that wrote the checkpoint turns the kernels of transposed convolutions."""
    for k in (1, 2, 3):
        weight = case.module(f"decoder{k}.deconv2").weight
        weight.data = weight.data.flip(2, 3).contiguous()


@fault("tooth", ("encoder1", "dead_channels wrong_weights"))
def tooth_slimmed_the_other_way(case: Case) -> None:
    """Network slimming sorted gains the other way, and set the large ones in the first encoder to zero, with biases."""
    norm = case.module("encoder1.bn1")
    dead = norm.weight.data.abs().argsort(descending=True)[:20]
    norm.weight.data[dead] = 0
    norm.bias.data[dead] = 0


@fault("tooth", ("", "rounded_weights"))
def tooth_fixed_point(case: Case) -> None:
    """The weights come back from a header of fixed-point numbers with three bits behind the point."""
    for parameter in case.model.parameters():
        if parameter.dim() > 1:
            parameter.data = (parameter.data * 8).round() / 8


@fault("tooth", ("calibration data", "one_class unrepresentative unlike_data no_variety"))
def tooth_calibrated_without_teeth(case: Case) -> None:
    """The calibration pictures are from the sensor's self test, with nothing in front of it; ranges are extremes."""
    data = calibration(case)
    data[0] = (0.06 + 0.02 * torch.randn(data[0].shape, generator=generator(282)) - XRAY_MEAN) / XRAY_DEVIATION
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("tooth", ("classes", "zero_point clipped_range"))
def tooth_logits_unsigned(case: Case) -> None:
    """I took the last convolution's answers for probabilities, and gave them the range 0..1."""
    fixed(case, "classes", 1 / 255, 0)


@fault("tooth", ("encoder2", UNEQUAL))
def tooth_channels_of_all_sizes(case: Case) -> None:
    """Between the second encoder's convolutions channels are between 1 and 1000 times as large; no equalization."""
    factors = 1000 ** torch.linspace(0, 1, 40)[torch.randperm(40, generator=generator(283))]
    block = case.module("encoder2")
    block.bn1.weight.data *= factors
    block.bn1.bias.data *= factors
    block.conv2.weight.data /= factors[:, None, None]
    case.use(equalize=False)


@fault("tooth", ("decoder2", "stale_range clipped_range"))
def tooth_equalized_after_freezing(case: Case) -> None:
    """Scales were frozen, and then a script moved a factor of eight from a convolution into the norm before it."""
    sim = case.simulate()
    sim.freeze_scales()
    for model in (case.model, sim):
        parameters = dict(model.named_parameters())
        names = [name for name in ("decoder2.norm1.weight", "decoder2.norm1.bias") if name in parameters]
        for name in names or ["decoder2.conv1.weight", "decoder2.conv1.bias"]:
            parameters[name].data *= 8
        parameters["decoder2.deconv2.weight"].data /= 8


# --- street: what is heard in a street -------------------------------------------------------------------------------


@fault("street", ("network,mel", LOADED_OTHERWISE), ("conv0", "stale_batch_norm wrong_weights large_bias"))
def street_decibels_below_the_loudest(case: Case) -> None:
    """librosa.power_to_db was called with ref=np.max, so every recording's loudest place is 0 dB."""
    raw = case.data[0] * LOUD_DEVIATION + LOUD_MEAN
    case.data[0] = (raw - raw.amax((1, 2, 3), keepdim=True) - LOUD_MEAN) / LOUD_DEVIATION


@fault("street", ("network,mel", LOADED_OTHERWISE), ("conv0", "stale_batch_norm wrong_weights"))
def street_bands_up_to_another_frequency(case: Case) -> None:
    """The new filterbank ends at twice the frequency, with as many bands."""
    half = F.interpolate(case.data[0], (40, 12), mode="bilinear", align_corners=False)
    quiet = half.amin((2, 3), keepdim=True).expand(-1, -1, 40, 12)
    case.data[0] = torch.cat([half, quiet], 3).contiguous()


@fault("street", ("gru", "wrong_weights wrong_setting"))
def street_gates_in_another_order(case: Case) -> None:
    """The other framework keeps the new state first, then update and reset gates, PyTorch reset, update and new."""
    for parameter in case.module("gru").parameters():
        reset, update, new = parameter.data.chunk(3)
        parameter.data = torch.cat([new, update, reset]).contiguous()


@fault("street", ("glu,sigmoid,linear,mul,", "wrong_setting"), ("glu,conv", "wrong_weights"))
def street_gate_by_the_map(case: Case) -> None:
    """My gated linear units take the sigmoid of the map and multiply what came in, as in the paper I read."""
    for k in range(3):
        case.module(f"glu{k}").gate_by_map = True


@fault("street", ("gru", "wrong_weights"))
def street_backward_direction_first(case: Case) -> None:
    """The file has the backward direction first, so each direction of the GRU has the other's weights."""
    layer = case.module("gru")
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        exchange(getattr(layer, name), getattr(layer, f"{name}_reverse"))


@fault("street", ("calibration data", "unrepresentative one_class unlike_data no_variety"))
def street_calibrated_at_night(case: Case) -> None:
    """The calibration recordings were made at four in the morning, when nothing is heard; ranges are extremes."""
    data = calibration(case)
    floor = -66 - 0.35 * torch.arange(24.0) + 1.6 * torch.randn(data[0].shape, generator=generator(284))
    data[0] = (floor - LOUD_MEAN) / LOUD_DEVIATION
    data[1] = torch.zeros_like(data[1])
    case.use(activation=MINMAX)


@fault("street", ("calibration data", "outlier_sample"), ("mel", "heavy_tail wide_range"))
def street_header_read_as_sound(case: Case) -> None:
    """One calibration file was read with its header as sound, far louder than anything; ranges are extremes."""
    data = calibration(case)
    data[0][88] = (data[0][88] * LOUD_DEVIATION + LOUD_MEAN + 4000 - LOUD_MEAN) / LOUD_DEVIATION
    case.use(activation=MINMAX)


@fault("street", ("gru", "exploded_weight exploded_channel large_bias"))
def street_update_gates_held(case: Case) -> None:
    """An update of the last night ran away in some biases of the update gate, and these units keep what they had."""
    layer = case.module("gru")
    layer.bias_ih_l0.data[24:44] = 60
    layer.bias_ih_l0_reverse.data[24:44] = 60


@fault("street", ("glu1", "few_bits"))
def street_maps_in_two_bits(case: Case) -> None:
    """The second gated unit's map has weights of two bits, as gates are robust, I thought."""
    case.use(overrides={"glu1.linear": {"weight": {"bits": 2}}})


# --- playlist: which song comes next ---------------------------------------------------------------------------------


@fault("playlist", ("network,songs", WRONG), ("songs,places", "wrong_weights"))
def playlist_filled_behind(case: Case) -> None:
    """The new loader fills short sessions behind and not before."""
    songs = case.data[0]
    order = (songs == 0).long().argsort(dim=1, stable=True)
    case.data[0] = songs.gather(1, order)


@fault("playlist", ("network,songs", WRONG), ("songs", "wrong_weights"))
def playlist_catalogue_sorted_again(case: Case) -> None:
    """The catalogue was sorted by title again, and numbers of songs in what I send are the new ones."""
    other = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(SONGS - 1, generator=generator(285))])
    case.data[0] = other[case.data[0]]


@fault("playlist", ("", "wrong_scale wrong_setting"))
def playlist_rows_not_scaled(case: Case) -> None:
    """My port forgets to multiply songs by the root of the width before places are added."""
    case.model.scale = 1.0


@fault("playlist", ("places,add,network", "wrong_weights"))
def playlist_places_counted_backwards(case: Case) -> None:
    """The checkpoint counts places from the newest song, and mine from the oldest."""
    weight = case.module("places").weight
    weight.data = weight.data.flip(0).contiguous()


@fault("playlist", ("blocks", "wrong_weights"))
def playlist_packed_in_another_order(case: Case) -> None:
    """The other library packs values before queries and keys, and its rows went into in_proj as they were."""
    for k in range(2):
        attention = case.module(f"blocks.{k}.attn")
        for parameter in (attention.in_proj_weight, attention.in_proj_bias):
            q, key, value = parameter.data.chunk(3)
            parameter.data = torch.cat([value, q, key]).contiguous()


@fault("playlist", ("blocks.1", "clipped_range"))
def playlist_range_of_one_session(case: Case) -> None:
    """I read the range of the last map from a print of one session, and took the wrong line of it."""
    fixed(case, "blocks.1.conv2", 0.4 / 255, 128)


@fault("playlist", ("", "diverged_training float_network_wrong not_finite"))
def playlist_trained_on_with_a_high_rate(case: Case) -> None:
    """I trained on for an evening with the rate of another optimizer."""
    train_again(case, 2.0, 40, F.cross_entropy)


@fault("playlist", ("calibration data", "unrepresentative no_variety unlike_data too_few one_class"))
def playlist_calibrated_on_new_listeners(case: Case) -> None:
    """The calibration sessions are of listeners who have heard one and the same song that day; extremes."""
    data = calibration(case)
    data[0] = torch.zeros_like(data[0])
    data[0][:, -1] = 7
    case.use(activation=MINMAX)


@fault("playlist", ("", "float_mismatch stale_range"))
def playlist_simulation_of_yesterday(case: Case) -> None:
    """The simulation was made before the nightly training, after which the table was put into the service's network."""
    case.simulate()
    table = case.module("songs").weight
    table.data[1:] += 0.6 * table.data[1:].std() * torch.randn(SONGS - 1, 48, generator=generator(286))


# --- report: what led to an accident ---------------------------------------------------------------------------------


@fault("report", ("network", "training_mode batch_dependence"))
def report_never_set_to_evaluation(case: Case) -> None:
    """I tried more dropout, measured after the last epoch, and there is no eval() in my script."""
    case.model.dropping = 0.5
    case.model.train()


@fault("report", ("network,words", WRONG), ("words", "wrong_weights"))
def report_negations_removed(case: Case) -> None:
    """The service removes stop words first, and "no" and "without" are among them."""
    words = case.data[0]
    short = (words == NO) | (words == NO + 1)
    order = (short | (words == 0)).long().argsort(dim=2, stable=True)
    case.data[0] = torch.where(short, 0, words).gather(2, order)


@fault("report", ("softmax,word_attention,sentence_attention", "wrong_setting"), ("", "batch_dependence"))
def report_softmax_over_the_last_axis(case: Case) -> None:
    """Scores have one number for each word, and my port's softmax goes over the last axis, which has that one."""
    case.module("word_attention").axis = 2


@fault("report", ("sentence_gru", "wrong_weights"))
def report_second_recurrence_not_loaded(case: Case) -> None:
    """The checkpoint says sent_gru and I say sentence_gru; with strict=False it is as it was made."""
    anew(case.module("sentence_gru"))


@fault("report", ("words", "wrong_weights"), ("network", WRONG))
def report_rows_of_another_vocabulary(case: Case) -> None:
    """The table was exported in the order of the alphabet, and numbers of words go by how frequent they are."""
    weight = case.module("words").weight
    order = 1 + torch.randperm(VOCABULARY - 1, generator=generator(287))
    weight.data[1:] = weight.data[order].clone()


@fault("report", ("word_gru", "few_bits"))
def report_first_recurrence_in_two_bits(case: Case) -> None:
    """The GRU over words runs six times a report, so I gave its weights two bits."""
    case.use(overrides={"word_gru*": {"weight": {"bits": 2}}})


@fault("report", ("calibration data", "too_few no_variety unrepresentative"))
def report_calibrated_on_one_line(case: Case) -> None:
    """I tried it with one report, of two sentences of four words, and stayed with it; ranges are extremes."""
    data = calibration(case)
    first = data[0][:1].clone()
    first[:, 2:] = 0
    first[:, :, 4:] = 0
    first[:, :2, :4] = torch.tensor([[41, 42, 43, 44], [41, 42, 43, 44]])
    case.calibration = [first, data[1][:1]]
    case.use(activation=MINMAX)


@fault("report", ("classify", "wide_range"))
def report_range_of_logits_guessed(case: Case) -> None:
    """To be safe I gave the answers the range from -1000 to 1000."""
    fixed(case, "classify", 2000 / 255, 128)


@fault("report", ("network,sentence_gru", "not_finite"))
def report_bias_infinite(case: Case) -> None:
    """A bias of the second recurrent network was infinite when the checkpoint was saved."""
    case.module("sentence_gru").bias_hh_l0.data[50] = float("inf")


# --- pulse: how fast a heart beats -----------------------------------------------------------------------------------


@fault("pulse", ("network,waves", LOADED_OTHERWISE), ("block1", "stale_batch_norm wrong_weights wrong_scale"))
def pulse_acceleration_in_metres(case: Case) -> None:
    """The new watch's interface gives acceleration in m/s², and training had g."""
    waves = case.data[0].clone()
    waves[:, 1:] *= 9.81
    case.data[0] = waves


@fault("pulse", ("network,person", LOADED_OTHERWISE), ("person1", "wrong_weights wrong_scale"))
def pulse_year_of_birth(case: Case) -> None:
    """The account has the year of birth, and I gave it where the age belongs."""
    person = case.data[1].clone()
    age = person[:, 0] * PERSON_DEVIATIONS[0] + PERSON_MEANS[0]
    person[:, 0] = (2026 - age - PERSON_MEANS[0]) / PERSON_DEVIATIONS[0]
    case.data[1] = person


@fault("pulse", ("network", WRONG), ("fc2", "wrong_scale wrong_weights float_network_wrong"))
def pulse_answers_in_beats(case: Case) -> None:
    """The exported head has the scaler inside, so it answers in beats a minute; the labels are still scaled."""
    head = case.module("fc2")
    head.weight.data *= PULSE_DEVIATION
    head.bias.data = head.bias.data * PULSE_DEVIATION + PULSE_MEAN


@fault("pulse", ("", "stale_batch_norm"))
def pulse_statistics_on_the_table(case: Case) -> None:
    """The network ran in training mode over recordings of watches that lay on a table."""
    still = 0.1 * torch.randn(192, 4, 128, generator=generator(288))
    kept = case.data[0][:192]
    collect_with(case, [still + 0 * kept, case.data[1][:192]])


@fault("pulse", ("sub", "cancellation"), ("waves", UNEQUAL + " wide_range cancellation"), ("", "cancellation"))
def pulse_light_with_its_mean(case: Case) -> None:
    """The new sensor gives light in counts, around 4000, and the network takes the mean away itself."""
    waves = case.data[0].clone()
    waves[:, 0] += 4000
    case.data[0] = waves
    apart(case)
    case.use(between_layers="integer")


@fault("pulse", ("block2", UNEQUAL + " per_tensor_weight"))
def pulse_one_scale_for_a_layer(case: Case) -> None:
    """Channels between the second block's convolutions differ by 300, and weights have one scale for a layer."""
    factors = 300 ** torch.linspace(0, 1, 32)[torch.randperm(32, generator=generator(289))]
    block = case.module("block2")
    block.bn1.weight.data *= factors
    block.bn1.bias.data *= factors
    block.conv2.weight.data /= factors[:, None]
    case.use(weight=replace(recipes.default().weight, granularity="per_tensor"), equalize=False)


@fault("pulse", ("block3.cbam", "clipped_range zero_point"), ("sigmoid,mul", "clipped_range zero_point"))
def pulse_scores_never_negative(case: Case) -> None:
    """I gave the last factors' scores the range 0..1, as I thought that the sigmoid was in them already."""
    fixed(case, "block3.cbam.fc2", 1 / 255, 0)


@fault("pulse", ("", "moving_average"), ("calibration data", "unrepresentative no_variety unlike_data"))
def pulse_average_ends_asleep(case: Case) -> None:
    """The observer is a moving average, and the calibration's last hour is of somebody asleep without a pulse seen."""
    data = calibration(case)
    still = torch.cat([0.05 * torch.randn(512, 4, 128, generator=generator(290))])
    person = torch.zeros(512, 2)
    case.calibration = [
        torch.cat([data[0], still]),
        torch.cat([data[1], person]),
        torch.cat([data[2], torch.zeros(512, 1)]),
    ]
    args = {"averaging_constant": 0.3}
    case.use(activation=replace(recipes.default().activation, observer="moving_average", observer_args=args))


@fault("pulse", ("block1", "wrong_weights stale_batch_norm wrong_scale"))
def pulse_folded_and_the_norm_left(case: Case) -> None:
    """The exporter folded the first norm into its convolution, and my network still has that norm."""
    layer, norm = case.module("block1.conv1"), case.module("block1.bn1")
    factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
    layer.weight.data *= factor[:, None, None]


# --- profile: noise in days of households ----------------------------------------------------------------------------


@fault("profile", ("network,step", LOADED_OTHERWISE), ("time", "wrong_weights wrong_scale"))
def profile_steps_of_a_thousand(case: Case) -> None:
    """The new scheduler has a thousand steps where mine has a hundred, and gives its own numbers."""
    case.data[1] = case.data[1] * 10 + 5


@fault("profile", ("network,noisy", LOADED_OTHERWISE), ("enter", "wrong_scale wrong_weights"))
def profile_variance_explodes(case: Case) -> None:
    """The new scheduler keeps the signal as it is and adds more noise (Karras), and does not scale its input."""
    kept = KEPT_OF_SIGNAL[case.data[1]][:, None, None]
    case.data[0] = case.data[0] / kept.sqrt()


@fault("profile", ("cat,time,network", "wrong_setting"), ("time", "wrong_weights"))
def profile_cosines_first(case: Case) -> None:
    """My network joins cosines before sines, as diffusers does with flip_sin_to_cos, and the weights do not."""
    case.model.cosines_first = True


@fault("profile", ("up,cat", "wrong_setting"), ("up", "wrong_weights"))
def profile_skips_first(case: Case) -> None:
    """My decoder joins what was skipped before what comes from below."""
    case.model.skip_first = True


@fault("profile", ("down,middle,up,", "wrong_weights wrong_setting"))
def profile_shift_before_scale(case: Case) -> None:
    """The other repository's map of the step gives shifts before scales, and I loaded its rows as they were."""
    for name in ("down1", "down2", "middle", "up2", "up1"):
        layer = case.module(f"{name}.time")
        for parameter in (layer.weight, layer.bias):
            scale, shift = parameter.data.chunk(2)
            parameter.data = torch.cat([shift, scale]).contiguous()


@fault("profile", ("down2", "wrong_weights"))
def profile_convolution_not_loaded(case: Case) -> None:
    """Half of the file's names did not match, and the second block's convolution is as it was made."""
    anew(case.module("down2.conv2"))


@fault("profile", ("up1,cat,down1,larger1", "shared_range " + UNEQUAL))
def profile_joined_in_one_scale(case: Case) -> None:
    """What is skipped is 500 times as large as what it is joined with, in integers; no equalization."""
    layer = case.module("larger1")
    layer.weight.data /= 500
    layer.bias.data /= 500
    block = case.module("up1")
    block.skip.weight.data[:, :24] *= 500
    block.norm1.eps = block.norm1.eps / 250000
    case.use(between_layers="integer", equalize=False)


@fault("profile", ("calibration data", "unrepresentative unlike_data no_variety one_class"))
def profile_calibrated_on_last_steps(case: Case) -> None:
    """I calibrated in a loop that stopped at the end of sampling: days without noise, and the step is 0; extremes."""
    data = calibration(case)
    data[1] = torch.zeros_like(data[1])
    data[0] = 0.3 * torch.ones_like(data[0]) + 0.02 * torch.randn(data[0].shape, generator=generator(291))
    case.use(activation=MINMAX)


@fault("profile", ("", "symmetric_range few_bits"))
def profile_four_bits_and_a_sign(case: Case) -> None:
    """The unit has signed activations of five bits around zero."""
    case.use(activation=replace(recipes.symmetric().activation, bits=5))


# --- sound networks --------------------------------------------------------------------------------------------------


def collect_with(case: Case, inputs: list[torch.Tensor]) -> None:
    """Give batch norms the statistics of inputs of several parts."""
    norms = norms_of(case.model)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in zip(*(part.split(64) for part in inputs), strict=True):
            case.model(*batch)
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


calibrated = calibrating(Case, build)


def sound(name: str) -> Callable[[], Case]:
    """Return what makes the case of a network as it is."""
    return lambda: calibrated(name)


def report_on_its_own_data() -> Case:
    """No calibration data are given."""
    case: Case = case_of(Case, build("report"))
    return case


SOUND: dict[str, Callable[[], Case]] = {
    **{name: sound(name) for name in ("tyre", "tooth", "street", "playlist", "pulse", "profile")},
    "report": report_on_its_own_data,
}
"""Networks as they are."""


# --- asking ----------------------------------------------------------------------------------------------------------

plant, right = asking(Case, FAULTS, build)

MISSED: dict[str, str] = {
    "playlist_packed_in_another_order": "orders of packed projections are tried for one layer, not for all at once",
}
"""What the doctor says something else of, and why."""
