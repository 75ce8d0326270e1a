"""Forty-eight faults written with their answers by somebody who had never seen the doctor, on networks of their own.

At first it was right in 35 (73 %; in 38, or 79 %, it named the right place), and accused one sound network of eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.blind_networks import (
    CNN,
    MEAN,
    STD,
    TASKS,
    GNNet,
    ViT,
    Xs,
    beats,
    in_units,
    raw_colours,
    table,
    train,
    trained,
)  # fmt: skip
from tests.diagnose.doctor.planted import Planted
from tests.diagnose.doctor.shapes import DATA, NETWORK, WRONG, Plants, planter
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes

PLANTS: Plants = {}
plant = planter(PLANTS)

SHOWN, BATCH, EXAMINED = 256, 32, 400
"""Samples to calibrate on, in batches, and to examine."""


def batches(xs: Xs) -> list[Xs]:
    """Inputs by 32."""
    return list(zip(*(x.split(BATCH) for x in xs), strict=True))


def patient(name: str, net: nn.Module | None = None, **rest: Any) -> Planted:
    """A network on data that it was not trained on."""
    task = TASKS[name]
    xs, y = task.data()
    shown, seen = ([x[a : a + n] for x in (*xs, y)] for a, n in ((0, SHOWN), (task.count, EXAMINED)))
    rest = {"x": tuple(seen[:-1]), "y": seen[-1], "calibration": batches(tuple(shown[:-1])), "recipe": None, **rest}
    return Planted(trained(name) if net is None else net, place="", causes=(), **rest)


def changed(name: str, change: Callable[[Any], object], **rest: Any) -> Callable[[], Planted]:
    """A trained network that is changed."""

    def make() -> Planted:
        net = trained(name)
        with torch.no_grad():
            change(net)
        return patient(name, net, **rest)

    return make


def shown(name: str, change: Callable[..., Any], both: bool = True) -> Callable[[], Planted]:
    """Inputs as they should not be: all, or only those to calibrate on."""

    def make() -> Planted:
        given = patient(name)
        calibration = [change(*xs) for xs in given.calibration]
        return replace(given, calibration=calibration, x=change(*given.x) if both else given.x)

    return make


def calibrated_on(name: str, data: Callable[[], list[Xs]]) -> Callable[[], Planted]:
    """Other calibration data."""
    return lambda: patient(name, calibration=data())


def asks(name: str, match: str, **scheme: Any) -> Callable[[], Planted]:
    """An override that asks for too little."""
    return lambda: patient(name, recipe=replace(recipes.default(), overrides={match: scheme}))


def loaded(make: Callable[[], Any], state: dict[str, Tensor]) -> Any:
    """A new network with the tensors that a file has under its names."""
    torch.manual_seed(99)
    net = make()
    net.load_state_dict(state, strict=False)
    return net.eval()


def simulated(net: nn.Module, shown: list[Xs], recipe: Recipe) -> intact8.Simulation:
    """A calibrated simulation."""
    sim = intact8.prepare(net, shown[0] if len(shown[0]) > 1 else shown[0][0], recipe=recipe)
    intact8.calibrate(sim, shown)
    return sim.eval()


# Weights that were loaded wrongly.
def _partly_loaded() -> Planted:
    state = {n: t for n, t in trained("cnn").state_dict().items() if not n.startswith(("conv2", "bn2"))}
    return patient("cnn", loaded(CNN, state))


def _gates_of_others(net: Any) -> None:
    for parameter in net.lstm.parameters():
        i, f, g, o = parameter.chunk(4)
        parameter.copy_(torch.cat([i, g, f, o]))


def _values_as_queries(net: Any) -> None:
    attention = net.blocks[1].attn
    attention.q, attention.v = attention.v, attention.q


def _norm_not_loaded() -> Planted:
    state = trained("vit").state_dict()
    gains = torch.exp(2.2 * torch.randn(48, generator=torch.Generator().manual_seed(3)))
    state["blocks.0.fc1.weight"] = state["blocks.0.fc1.weight"] / gains  # which the norm would make up for
    return patient("vit", loaded(ViT, {n: t for n, t in state.items() if not n.startswith("blocks.0.norm2")}))


def _not_tied(net: Any) -> None:
    torch.manual_seed(5)
    net.head = nn.Linear(32, 40, bias=False)


def _without_buffers(net: Any) -> None:
    for norm in (net.layer2[0].bn1, net.layer2[0].bn2):
        norm.reset_running_stats()


def _by_name(net: Any) -> None:
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    order = torch.tensor(sorted(range(10), key=names.__getitem__))
    net.head.weight.copy_(net.head.weight[order])
    net.head.bias.copy_(net.head.bias[order])


plant("cnn_partial_checkpoint", _partly_loaded, ("conv2", "wrong_weights"))
plant(
    "mlp_transposed",
    changed("mlp", lambda net: net.fc2.weight.copy_(net.fc2.weight.t().clone())),
    ("fc2", "wrong_weights"),
)
plant("lstm_gate_order", changed("lstm", _gates_of_others), ("lstm", "wrong_weights"))
plant(
    "text_queries_are_values",
    changed("text", _values_as_queries),
    *((f"blocks.1.attn.{n}", "wrong_weights") for n in "qv"),
)
plant("vit_positions_rolled", changed("vit", lambda net: net.pos.copy_(net.pos.roll(-1, 1))), ("pos", "wrong_weights"))
plant("vit_norm_not_loaded", _norm_not_loaded, ("blocks.0.norm2", "wrong_weights"))
plant("lm_untied_head", changed("lm", _not_tied), ("head", "wrong_weights"))
plant("resnet_without_buffers", changed("resnet", _without_buffers), ("layer2.0.conv1", "stale_batch_norm"))
plant("dw_head_by_name", changed("dw", _by_name), (NETWORK, WRONG))


# Settings that are not those of training.
def _set(name: str, module: str, **settings: Any) -> Callable[[], Planted]:
    return changed(name, lambda net: vars(net.get_submodule(module)).update(settings))


def _dropout_left_on() -> Planted:
    planted = changed("mlp", lambda net: setattr(net.drop, "p", 0.85))()
    planted.model.get_submodule("drop").train()
    return planted


plant("unet_joined_otherwise", _set("unet", "", skip_first=False), ("cat_1", "wrong_setting"))
plant("resscale_branch", _set("resscale", "layer2.1", scale=2.0), ("layer2.1.conv2", "wrong_scale"))
plant("vit_softmax_twice", _set("vit", "blocks.1.attn", twice=True), ("blocks.1.attn.softmax_1", "wrong_setting"))
plant("mlp_dropout_left_on", _dropout_left_on, (NETWORK, "training_mode"))


# Weights out of order.
def _times(parameters: list[Tensor], factor: float) -> None:
    for parameter in parameters:
        parameter.mul_(factor)


def _vanished(net: Any) -> None:
    block, factor = net.blocks[1], 1e-5
    _times([block.conv.weight, block.bn.running_mean], factor)
    block.bn.running_var.mul_(factor**2)


def _half() -> Planted:
    net, counts = trained("conv1d"), 2000.0
    with torch.no_grad():  # the same function of other units
        _times([net.b1[0].bias, net.b1[1].running_mean], counts)
        net.b1[1].running_var.mul_(counts**2)
    given = patient("conv1d", net.half().float())
    calibration = [(x * counts,) for (x,) in given.calibration]
    return replace(given, x=(given.x[0] * counts,), calibration=calibration)


def _diverged() -> Planted:
    torch.manual_seed(0)
    net = GNNet()
    train(net, TASKS["gn"], torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9), 2, once=False)
    return patient("gn", net.eval())


plant("ae_saturated", changed("ae", lambda net: _times([*net.enc2.parameters()], 30)), ("enc2", "wrong_scale"))
plant("det_box_bias_in_pixels", changed("det", lambda net: net.head_box.bias.mul_(4)), ("head_box", "wrong_scale"))
plant("se_decayed_layer", changed("se", _vanished), ("blocks.1.conv", "dead_channels"))
plant("conv1d_half_overflow", _half, ("b1.1", "not_finite"))
plant("gn_diverged", _diverged, (NETWORK, WRONG))


# Inputs and labels that are not those of training.
def _table_as_measured() -> Planted:
    xs, _ = in_units()
    count = TASKS["two"].count
    calibration = batches(tuple(x[:SHOWN] for x in xs))
    return patient("two", x=tuple(x[count : count + EXAMINED] for x in xs), calibration=calibration)


def _other_colours(x: Tensor) -> Xs:
    return ((((x * STD + MEAN).flip(1)) - MEAN) / STD,)


def _labels_moved() -> Planted:
    given = patient("cnn")
    return replace(given, y=(given.y + 1) % 10)


plant("text_padding_of_one", shown("text", lambda ids: (torch.where(ids == 0, 1, ids),)), (NETWORK, WRONG))
plant("dw_blue_first", shown("dw", _other_colours), (NETWORK, WRONG))
plant("resnet_channels_last", shown("resnet", lambda x: (x.permute(0, 2, 3, 1).reshape(x.shape),)), (NETWORK, WRONG))
plant("conv1d_volts", shown("conv1d", lambda x: (x / 1000,)), (NETWORK, WRONG))
plant("bag_words_moved", shown("bag", lambda ids: ((ids + 1) % 200,)), (NETWORK, WRONG))
plant("two_table_as_measured", _table_as_measured, (NETWORK, WRONG))
plant("cnn_labels_moved", _labels_moved, (NETWORK, WRONG))
SAID = {
    "text_padding_of_one": "padding of 0, not 1",
    "dw_blue_first": "channels, or columns, in reverse order",
    "resnet_channels_last": "channels last",
    "conv1d_volts": "inputs with mean 0",
    "bag_words_moved": "indices one less",
    "two_table_as_measured": "as meta",
    "cnn_labels_moved": "classes numbered otherwise",
    "dw_head_by_name": "classes numbered otherwise",
    "gn_diverged": "training has diverged",
}
"""What the message of the first finding must hold, where its place is the network."""


# Calibration data.
def _quiet() -> list[Xs]:
    (x,), y = beats()
    count = TASKS["conv1d"].count
    return batches((x[:count][y[:count] == 0][:SHOWN],))


def _brighter(x: Tensor) -> Xs:
    return (x * (1 + 59 * torch.rand(len(x), 1, 1, 1, generator=torch.Generator().manual_seed(0))),)


def _corrupt() -> Planted:
    given = patient("siam", recipe=recipes.minmax())
    calibration = [tuple(x.clone() for x in xs) for xs in given.calibration]
    for x in calibration[3]:
        x[7] *= 300
    return replace(given, calibration=calibration)


plant("conv1d_one_quiet_class", calibrated_on("conv1d", _quiet), (DATA, "unlike_data"))
plant("cnn_zeros", calibrated_on("cnn", lambda: batches((torch.zeros(SHOWN, 1, 8, 8),))), (DATA, "no_variety"))
plant("gru_other_unit", shown("gru", lambda x: (x / 100,), both=False), (DATA, "unlike_data"))
plant("tab_one_row", calibrated_on("tab", lambda: [(table()[0][0][3:4],)]), (DATA, "too_few"))
plant(
    "resnet_bytes",
    calibrated_on("resnet", lambda: batches((raw_colours()[0][0][:SHOWN] * 255,))),
    (DATA, "unlike_data"),
)
plant("siam_same_images", shown("siam", lambda a, b: (a, a.clone()), both=False), (DATA, "unrepresentative"))
plant("se_brighter", shown("se", _brighter, both=False), (DATA, "unlike_data"))
plant("siam_corrupt_image", _corrupt, (DATA, "outlier_sample"))


# Recipes.
def _negative_half_cut() -> Planted:
    net, largest = trained("lm"), []
    handle = net.proj.register_forward_hook(lambda _, __, y: largest.append(float(y.max())))
    net(*patient("lm").x)
    handle.remove()
    return asks("lm", "proj", activation={"fixed": (largest[0] / 255, 0)})()


def _three_bits() -> Planted:
    given = recipes.default()
    three = (given.activation.changed({"bits": 3}), given.weight.changed({"bits": 3}))
    return patient("resnet", recipe=replace(given, activation=three[0], weight=three[1]))


PERCENTILE = Scheme(observer="percentile", observer_args={"percentile": 80.0})
plant("dw_pinned", asks("dw", "features.2.3", activation={"fixed": (0.1 / 255, 0)}), ("features.2.3", "clipped_range"))
plant("vit_inputs_of_bytes", lambda: patient("vit", recipe=recipes.images()), ("x", "clipped_range"))
plant("dw_two_bits", asks("dw", "features.0.0", weight={"bits": 2}), ("features.0.0", "few_bits"))
plant("tab_percentile", lambda: patient("tab", recipe=Recipe(activation=PERCENTILE)), (NETWORK, "clipped_range"))
plant("lm_negative_half_cut", _negative_half_cut, ("proj", "clipped_range"))
plant("resnet_three_bits", _three_bits, (NETWORK, "few_bits"))


# Numbers that share a scale with far larger ones.
def _one_large(net: Any) -> None:
    net.enc1.weight[5, 0] = 150.0  # of a pixel that is always 0


def _large_column(net: Any) -> None:
    net.fc1.weight[:, 0] = 250 * torch.randn(96, generator=torch.Generator().manual_seed(0)).sign()


def _large_gain(net: Any) -> None:
    _times([net.norm.weight[5:6], net.norm.bias[5:6]], 3000)
    net.head.weight[:, 5] /= 3000


def _large_channel(net: Any) -> None:
    _times([net.bn2.weight[9:10], net.bn2.bias[9:10]], 400)
    net.conv3.weight[:, 9] /= 400


def _constant_column(net: Any) -> None:
    net.item.weight[:, 3] += 40
    net.fc1.bias -= 40 * net.fc1.weight[:, 19]


def _per_tensor() -> Planted:
    given = asks("ae", "enc1", weight={"granularity": "per_tensor"})()
    with torch.no_grad():
        _one_large(given.model)
    return given


plant("ae_per_tensor", _per_tensor, ("enc1", "exploded_weight"))
plant("mlp_weights_of_a_dead_pixel", changed("mlp", _large_column), ("fc1", "outlier_weight"))
plant("text_massive_channel", changed("text", _large_gain), ("norm", "exploded_channel"))
plant("cnn_large_channel", changed("cnn", _large_channel), ("conv2", "outlier_channel"))
plant(
    "rec_constant_column",
    changed("rec", _constant_column, recipe=recipes.weight_only(bits=4)),
    ("item", "outlier_weight"),
)
plant("tworaw_units_joined", lambda: patient("tworaw"), ("cat", "shared_range"))
plant("tab2_units_of_results", lambda: patient("tab2"), ("out", "outlier_channel"))


# Training of a simulation.
def _frozen_too_early() -> Planted:
    recipe = recipes.qat("fixed")
    torch.manual_seed(3)
    given = patient("cnn", recipe=recipe)
    sim = simulated(CNN().eval(), given.calibration[:1], recipe)
    sim.load_state_dict(given.model.state_dict(), strict=False)
    return replace(given, sim=sim.eval())


def _scale_diverged() -> Planted:
    recipe = recipes.qat("learned")
    given = patient("resnet", recipe=recipe)
    sim = simulated(given.model, given.calibration, recipe)
    statistics = {name: t.clone() for name, t in sim.named_buffers() if "running" in name}
    with torch.no_grad():
        dict(sim.named_parameters())["quantizers.layer3.0.conv1.activation_point.learner.value"].mul_(400)
        sim.train()(given.calibration[0][0])  # a step takes it up
        for name, tensor in sim.named_buffers():
            if name in statistics:
                tensor.copy_(statistics[name])
        sim.eval()(given.calibration[0][0])
    return replace(given, sim=sim)


def _trained_simulation() -> Planted:
    given = patient("resnet", recipe=recipes.qat("learned"))
    return replace(given, sim=simulated(given.model, given.calibration, given.recipe))


plant("cnn_frozen_too_early", _frozen_too_early, ("conv1", "stale_range"))
plant("resnet_scale_diverged", _scale_diverged, ("layer3.0.conv1", "wide_range"))

SOUND: dict[str, Callable[[], Planted]] = {
    name: (lambda name=name: patient(name)) for name in ("mlp", "lstm", "text", "unet", "dw", "det", "gru")
}
SOUND["resnet, trained in simulation"] = _trained_simulation
