"""Faults planted by somebody who had read the doctor's documentation only."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.diagnose.doctor.blind_networks_third import (
    Trained,
    autoencoder,
    branches,
    colour,
    digits,
    energies,
    experts,
    fit,
    massive,
    mobile,
    perceptron,
    pixels,
    residual,
    rows,
    segmenter,
    signals,
    tabular,
    vit,
    words,
)
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes

Answer = tuple[str, str]
Arguments = dict[str, Any]
CALIBRATION = "calibration data"
NETWORK = "network"


@dataclass(frozen=True)
class Patient:
    """A network with one fault: what the doctor gets, and which first findings are right: (glob of places, cause)."""

    name: str
    plant: Callable[[], Arguments] = field(repr=False)
    answers: tuple[Answer, ...]

    def right(self, findings: Iterable[Any]) -> bool:
        """Return whether the first finding is right; of a sound network, whether nothing worse than a note is said."""
        found = list(findings)
        if not self.answers:
            return all(f.severity == "note" for f in found)
        return bool(found) and any(
            fnmatch.fnmatchcase(found[0].place, place) and found[0].cause == cause for place, cause in self.answers
        )


PATIENTS: list[Patient] = []


def patient(*answers: Answer) -> Callable[[Callable[[], Arguments]], Callable[[], Arguments]]:
    """Register a function that plants a fault, with the right answers."""

    def register(plant: Callable[[], Arguments]) -> Callable[[], Arguments]:
        PATIENTS.append(Patient(plant.__name__, plant, answers))
        return plant

    return register


def case(trained: Trained, **changes: Any) -> Arguments:
    """Return the doctor's arguments for a sound network, with changes."""
    arguments: Arguments = {
        "model": trained.fresh(),
        "data": [(trained.held_inputs, trained.held_targets)],
        "calibration": trained.inputs[:400],
    }
    return arguments | changes


# ---------------------------------------------------------------------------------------------- calibration data


@patient((CALIBRATION, "unlike_data"))
def calibrated_on_raw_pixels() -> Arguments:
    return case(residual(), calibration=digits()[0][:400])


@patient((CALIBRATION, "unlike_data"))
def calibrated_on_pixels_divided_by_255() -> Arguments:
    return case(mobile(), calibration=pixels(digits()[0][:400]) / 255)


@patient((CALIBRATION, "unlike_data"))
def calibrated_on_blue_green_red() -> Arguments:
    t = colour()
    return case(t, calibration=t.inputs[:400].flip(1))


@patient((CALIBRATION, "unlike_data"))
def calibrated_without_mean_and_deviation() -> Arguments:
    t = colour()
    std, mean = torch.tensor([0.229, 0.224, 0.225]), torch.tensor([0.485, 0.456, 0.406])
    return case(t, calibration=t.inputs[:400] * std[:, None, None] + mean[:, None, None])


@patient((CALIBRATION, "one_class"))
def calibrated_on_zeros_only() -> Arguments:
    t = residual()
    return case(t, calibration=t.inputs[t.targets == 0])


@patient((CALIBRATION, "too_few"))
def calibrated_on_three_rows() -> Arguments:
    t = tabular()
    return case(t, calibration=t.inputs[:3])


@patient((CALIBRATION, "unlike_data"))
def calibrated_on_sequences_padded_with_zeros() -> Arguments:
    t = rows()
    x = t.inputs[:400].clone()
    x[:, 3:] = 0
    return case(t, calibration=x)


@patient((CALIBRATION, "outlier_sample"))
def one_recording_with_a_click() -> Arguments:
    t = signals()
    x = t.inputs[:400].clone()
    x[37] *= 60
    return case(t, calibration=x, recipe=recipes.minmax())


@patient((CALIBRATION, "unlike_data"), (CALIBRATION, "unrepresentative"))
def calibrated_on_noise() -> Arguments:
    t = vit()
    return case(t, calibration=torch.rand(256, 1, 8, 8, generator=torch.Generator().manual_seed(5)))


@patient((CALIBRATION, "no_variety"), (CALIBRATION, "too_few"))
def one_image_again_and_again() -> Arguments:
    t = autoencoder()
    return case(t, calibration=t.inputs[7:8].expand(128, -1, -1, -1).clone())


@patient((CALIBRATION, "unlike_data"))
def a_column_in_other_units() -> Arguments:
    t = tabular()
    x = t.inputs[:300].clone()
    x[:, 3] *= 1000
    return case(t, calibration=x)


@patient((CALIBRATION, "unlike_data"))
def calibrated_on_negatives() -> Arguments:
    t = segmenter()
    return case(t, calibration=1 - t.inputs[:400])


@patient((CALIBRATION, "unlike_data"), (CALIBRATION, "one_class"), (CALIBRATION, "unrepresentative"))
def calibrated_on_quiet_recordings() -> Arguments:
    t = signals()
    return case(t, calibration=t.inputs[:400] * 0.02)


@patient((CALIBRATION, "one_class"), (CALIBRATION, "unlike_data"))
def calibrated_on_one_topic() -> Arguments:
    t = words()
    return case(t, calibration=t.inputs[t.targets == 2])


# --------------------------------------------------------------------------------------------- the float network


@patient((NETWORK, "training_mode"), ("*norm*", "training_mode"))
def forgotten_eval() -> Arguments:
    t = residual()
    return case(t, model=t.fresh().train())


@patient((NETWORK, "training_mode"), ("stage2.norm1", "training_mode"))
def one_norm_in_training_mode() -> Arguments:
    t = mobile()
    model = t.fresh()
    model.stage2.norm1.train()
    return case(t, model=model)


@patient((NETWORK, "training_mode"), ("dropout", "training_mode"))
def dropout_in_training_mode() -> Arguments:
    t = mobile()
    model = t.fresh()
    model.dropout.train()
    return case(t, model=model)


@patient(("fc2", "not_finite"))
def a_weight_that_is_nan() -> Arguments:
    t = tabular()
    model = t.fresh()
    model.fc2.weight.data[3, 5] = float("nan")
    return case(t, model=model)


@patient(("norm2", "not_finite"))
def infinite_variance() -> Arguments:
    t = signals()
    model = t.fresh()
    model.norm2.running_var[4] = float("inf")
    return case(t, model=model)


@patient(("stage2.pointwise", "exploded_channel"))
def exploded_row() -> Arguments:
    t = mobile()
    model = t.fresh()
    model.stage2.pointwise.weight.data[9] *= 150
    return case(t, model=model)


@patient(("layer1.fc2", "exploded_weight"))
def exploded_number() -> Arguments:
    t = vit()
    model = t.fresh()
    model.layer1.fc2.weight.data[7, 11] = 60.0
    return case(t, model=model)


@patient(("block2.conv2", "wrong_weights"))
def a_convolution_as_initialized() -> Arguments:
    t = residual()
    model = t.fresh()
    torch.manual_seed(1)
    model.block2.conv2.reset_parameters()
    return case(t, model=model)


@patient(("head", "wrong_weights"))
def head_not_loaded() -> Arguments:
    t = vit()
    model = t.fresh()
    torch.manual_seed(2)
    model.head.reset_parameters()
    return case(t, model=model)


@patient((NETWORK, "float_network_wrong"))
def labels_off_by_one() -> Arguments:
    t = residual()
    return case(t, data=[(t.held_inputs, (t.held_targets + 1) % 10)])


@patient((NETWORK, "float_network_wrong"))
def labels_shuffled() -> Arguments:
    t = mobile()
    order = torch.randperm(len(t.held_targets), generator=torch.Generator().manual_seed(8))
    return case(t, data=[(t.held_inputs, t.held_targets[order])])


@patient((NETWORK, "diverged_training"), (NETWORK, "float_network_wrong"))
def too_large_a_learning_rate() -> Arguments:
    t = residual()
    torch.manual_seed(3)
    return case(t, model=fit(t.fresh(), t.inputs, t.targets, 2, 3.0))


@patient(("stage3.norm1", "stale_batch_norm"))
def statistics_reset() -> Arguments:
    t = mobile()
    model = t.fresh()
    model.stage3.norm1.reset_running_stats()
    return case(t, model=model)


@patient((NETWORK, "stale_batch_norm"), ("stem_norm", "stale_batch_norm"), ("block1.norm1", "stale_batch_norm"))
def statistics_of_another_camera() -> Arguments:
    """All batch norms were adapted to images of half the contrast."""
    t = residual()
    model = t.fresh().train()
    with torch.no_grad():
        for _ in range(60):
            model(t.inputs[:400] * 0.4 - 0.5)
    return case(t, model=model.eval())


@patient(("norm2", "stale_batch_norm"))
def deviation_loaded_as_variance() -> Arguments:
    t = signals()
    model = t.fresh()
    model.norm2.running_var.copy_(model.norm2.running_var.sqrt() * 12)
    return case(t, model=model)


@patient(("conv2", "dead_channels"), ("norm2", "dead_channels"), ("relu2", "dead_channels"))
def most_channels_dead() -> Arguments:
    t = signals()
    model = t.fresh()
    model.norm2.bias.data[:26] = -30
    return case(t, model=model)


@patient(("lstm", "exploded_weight"))
def gates_held_open() -> Arguments:
    t = rows()
    model = t.fresh()
    model.lstm.bias_ih_l0.data[48:96] = 50.0
    return case(t, model=model)


@patient(
    ("layer*.attention*", "wrong_scale"),
    ("layer*.attention*", "wrong_setting"),
    (NETWORK, "wrong_scale"),
    ("mul*", "wrong_scale"),
    ("softmax*", "wrong_scale"),
    ("matmul*", "wrong_scale"),
)
def scores_not_divided() -> Arguments:
    t = vit()
    model = t.fresh()
    model.layer1.attention.scale = model.layer2.attention.scale = 1.0
    return case(t, model=model)


@patient(("*norm*", "wrong_setting"), (NETWORK, "wrong_setting"))
def eps_of_one_in_every_norm() -> Arguments:
    t = vit()
    model = t.fresh()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.0
    return case(t, model=model)


@patient(("layer*.act", "wrong_setting"), (NETWORK, "wrong_setting"))
def relu_in_place_of_gelu() -> Arguments:
    t = vit()
    model = t.fresh()
    model.layer1.act = model.layer2.act = nn.ReLU()
    return case(t, model=model)


@patient(("layer1.attention.value", "wrong_weights"), ("layer1.attention.project", "wrong_weights"))
def value_and_projection_exchanged() -> Arguments:
    t = vit()
    model = t.fresh()
    a = model.layer1.attention
    a.value, a.project = a.project, a.value
    return case(t, model=model)


@patient(("block1.conv1", "wrong_weights"))
def kernels_transposed() -> Arguments:
    t = residual()
    model = t.fresh()
    w = model.block1.conv1.weight
    w.data = w.data.transpose(2, 3).contiguous()
    return case(t, model=model)


@patient(("fc2", "wrong_weights"))
def matrix_transposed() -> Arguments:
    t = perceptron()
    model = t.fresh()
    model.fc2.weight.data = model.fc2.weight.data.t().contiguous()
    return case(t, model=model)


@patient(("*", "rounded_weights"))
def weights_rounded_to_four_bits_before() -> Arguments:
    t = branches()
    model = t.fresh()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            step = module.weight.data.abs().max() / 7
            module.weight.data = (module.weight.data / step).round() * step
    return case(t, model=model)


@patient(
    ("stage1.gate.expand", "wrong_scale"),
    ("stage1.gate.expand", "exploded_weight"),
    ("stage1.gate.expand", "exploded_channel"),
    ("stage1.gate.sigmoid", "wrong_scale"),
    ("stage1.gate.reduce", "wrong_scale"),
)
def saturated_gates() -> Arguments:
    t = mobile()
    model = t.fresh()
    model.stage1.gate.expand.weight.data *= 100
    model.stage1.gate.expand.bias.data *= 100
    return case(t, model=model)


@patient(("embedding", "wrong_weights"))
def vocabulary_in_another_order() -> Arguments:
    t = words()
    model = t.fresh()
    model.embedding.weight.data = model.embedding.weight.data.roll(10, 0)
    return case(t, model=model)


@patient(("positions", "wrong_weights"))
def positions_not_loaded() -> Arguments:
    t = vit()
    model = t.fresh()
    torch.manual_seed(6)
    model.positions.data = torch.randn(1, 16, 32) * model.positions.data.std()
    return case(t, model=model)


@patient(("gru", "wrong_weights"))
def recurrent_matrix_as_initialized() -> Arguments:
    t = words()
    model = t.fresh()
    torch.manual_seed(7)
    nn.init.uniform_(model.gru.weight_hh_l0, -(32**-0.5), 32**-0.5)
    nn.init.uniform_(model.gru.weight_ih_l0, -(32**-0.5), 32**-0.5)
    return case(t, model=model)


@patient(("up1", "wrong_weights"))
def decoder_not_loaded() -> Arguments:
    t = autoencoder()
    model = t.fresh()
    torch.manual_seed(9)
    model.up1.reset_parameters()
    return case(t, model=model)


class Reversed(nn.Module):
    """The segmenter with the tensors of its skip connection joined in the other order."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        for name, child in base.named_children():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc1(x)
        b = self.up(self.enc2(self.down(a)))
        return self.out(self.dec(torch.cat([b, a], 1)))


@patient(("cat*", "wrong_setting"), ("dec.0", "wrong_weights"))
def skip_joined_in_the_other_order() -> Arguments:
    t = segmenter()
    return case(t, model=Reversed(t.fresh()).eval())


@patient(
    ("x", "wrong_scale"),
    ("input", "wrong_scale"),
    ("x", "wrong_setting"),
    ("input", "wrong_setting"),
    (NETWORK, "float_network_wrong"),
    ("stem_norm", "stale_batch_norm"),
)
def validated_on_raw_pixels() -> Arguments:
    t = residual()
    raw, labels = digits()
    return case(t, data=[(raw[1000:] * 16, labels[1000:])], calibration=raw[:400] * 16)


# ----------------------------------------------------------------------------------------------------- the recipe


@patient(("block2.conv1", "few_bits"))
def three_bits_at_one_layer() -> Arguments:
    return case(residual(), recipe=Recipe(overrides={"block2.conv1": {"weight": {"bits": 3}}}))


@patient(("conv2", "few_bits"), ("relu2", "few_bits"), ("norm2", "few_bits"))
def activations_of_three_bits() -> Arguments:
    return case(signals(), recipe=Recipe(overrides={"relu2": {"activation": {"bits": 3}}}))


@patient(("*", "per_tensor_weight"))
def one_scale_for_all_filters() -> Arguments:
    t = mobile()
    model = t.fresh()
    # what training with weight decay does to filters that hardly matter, and what makes up for it behind them
    factor = torch.where(torch.arange(32) < 28, 1 / 24.0, 1.0)
    model.stage2.pointwise.weight.data *= factor[:, None, None, None]
    model.stage2.norm2.running_mean *= factor
    model.stage2.norm2.running_var *= factor**2
    model.stage2.norm2.eps = 1e-12
    return case(
        t,
        model=model,
        recipe=Recipe(
            weight=Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax"), portable=False
        ),
    )


@patient(("block3.relu1", "clipped_range"), ("block3.conv1", "clipped_range"), ("block3.norm1", "clipped_range"))
def a_range_from_another_network() -> Arguments:
    return case(residual(), recipe=Recipe(overrides={"block3.relu1": {"activation": {"fixed": (0.2 / 255, 0)}}}))


@patient(("*", "clipped_range"))
def a_tenth_cut_off() -> Arguments:
    scheme = Scheme(observer="percentile", observer_args={"percentile": 92.0})
    return case(autoencoder(), recipe=Recipe(activation=scheme))


@patient(("x", "clipped_range"), ("input", "clipped_range"))
def inputs_declared_as_bytes() -> Arguments:
    return case(branches(), recipe=Recipe(inputs={"*": Scheme(fixed=(1 / 255, 0))}))


@patient(("x", "wide_range"), ("input", "wide_range"))
def inputs_declared_far_too_wide() -> Arguments:
    return case(energies(), recipe=Recipe(inputs={"*": Scheme(fixed=(1.0, 128))}))


@patient(
    ("cat*", "shared_range"),
    ("cat*", "channel_imbalance"),
    ("cat*", "outlier_channel"),
    ("five", "channel_imbalance"),
    ("relu_five", "shared_range"),
    ("five", "shared_range"),
)
def a_loud_branch() -> Arguments:
    t = branches()
    model = t.fresh()
    model.five.weight.data *= 80
    model.five.bias.data *= 80
    model.mix.weight.data[:, 24:] /= 80
    return case(t, model=model)


@patient(("*", "stale_range"))
def trained_on_after_the_scales_were_frozen() -> Arguments:
    t = branches()
    model = t.fresh()
    recipe = Recipe(scales="fixed")
    sim = intact8.prepare(model, example_inputs=t.inputs[:8], recipe=recipe)
    intact8.calibrate(sim, t.inputs[:400])
    with torch.no_grad():
        for network in (model, sim):
            network.get_submodule("mix").weight.mul_(4)
            network.get_submodule("head").weight.div_(4)
    return case(t, model=model, sim=sim)


@patient(("*", "moving_average"), (CALIBRATION, "unrepresentative"), (CALIBRATION, "outlier_sample"))
def the_last_batches_were_dark() -> Arguments:
    t = residual()
    scheme = Scheme(observer="moving_average", observer_args={"averaging_constant": 0.5})
    x = t.inputs[:400]
    order = x.flatten(1).std(1).argsort(descending=True)
    batches = list(x[order].split(20))
    return case(t, calibration=batches, recipe=Recipe(activation=scheme))


@patient(
    ("layer*", "outlier_channel"), ("add*", "outlier_channel"), ("*", "outlier_channel"), ("*", "channel_imbalance")
)
def massive_activations() -> Arguments:
    return case(massive())


@patient(
    ("*", "heavy_tail"),
    ("*", "outlier_channel"),
    ("*exp*", "wide_range"),
    ("*square*", "wide_range"),
    ("*", "few_bits"),
)
def squares_with_the_full_range() -> Arguments:
    """Energies have long tails, and a 6-bit grid that keeps all of them wastes most of its integers."""
    t = energies()
    minmax = Scheme(observer="minmax", bits=6)
    return case(t, recipe=Recipe(activation=minmax))


@patient(("block*.conv1", "left_float"), ("block*", "left_float"), (NETWORK, "left_float"))
def most_layers_left_float() -> Arguments:
    return case(residual(), recipe=Recipe(overrides={"block*": None}))


@patient(("fc1", "outlier_weight"), ("fc1", "exploded_weight"), ("fc1", "input_imbalance"))
def weights_of_a_pixel_that_is_always_zero() -> Arguments:
    t = perceptron()
    model = t.fresh()
    dead = int(t.inputs.abs().amax(0).argmin())
    model.fc1.weight.data[:, dead] = 8 * torch.randn(64, generator=torch.Generator().manual_seed(4))
    return case(t, model=model)


@patient(("head", "clipped_range"))
def logits_clipped_at_one() -> Arguments:
    return case(
        signals(),
        recipe=Recipe(
            overrides={"head": {"activation": {"observer": "fixed", "observer_args": {"lo": -0.3, "hi": 0.3}}}}
        ),
    )


@patient(("*", "symmetric_range"), ("*", "few_bits"))
def signed_four_bits_behind_relu() -> Arguments:
    return case(
        branches(),
        recipe=Recipe(overrides={"relu_mix": {"activation": {"bits": 4, "symmetric": True, "dtype": "int8"}}}),
    )


# ---------------------------------------------------------------------------------------------- nothing is wrong


def _sound(name: str, trained: Callable[[], Trained], recipe: Recipe | None = None) -> None:
    PATIENTS.append(Patient(f"sound_{name}", lambda: case(trained(), recipe=recipe), ()))


for _network in (residual, colour, mobile, vit, tabular, perceptron, rows, words, signals, energies, autoencoder):
    _sound(_network.__name__, _network)
for _network in (segmenter, branches, experts):
    _sound(_network.__name__, _network)
_sound("mobile_accurate", mobile, recipes.accurate())
