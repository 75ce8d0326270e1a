"""Faults of everyday practice on eleven further networks, written down with their answers before the doctor saw any.

An answer is one place and one cause; several are given only where each of them says what was done.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted, calibrated, override
from tests.diagnose.doctor.shapes import (
    DATA,
    NETWORK,
    SHOWN,
    TRAINED,
    WRONG,
    Plants,
    changed,
    classes,
    codes,
    images,
    labelled,
    motions,
    patient,
    planter,
    reset,
    series,
    shapes,
    shown,
    squares,
    swap,
    texts,
    train,
    trained,
    written,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional as F

from intact8 import Recipe, Scheme

PLANTS: Plants = {}
plant = planter(PLANTS)


class Lenet(nn.Module):
    """Convolutions with tanh and average pooling, as in 1998."""

    data, loss, epochs = images, classes, 10

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 12, 5, padding=2), nn.Conv2d(12, 24, 3)
        self.f1, self.f2, self.f3 = nn.Linear(24 * 9, 64), nn.Linear(64, 64), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.c1(x).tanh(), 2)
        x = F.avg_pool2d(self.c2(x).tanh(), 2)
        return self.f3(self.f2(self.f1(x.flatten(1)).tanh()).tanh())


class Basic(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = None
        if stride > 1 or a != b:
            self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.down is None else self.down(x))).relu()


class Res(nn.Module):
    """A small ResNet with strides."""

    data, loss, epochs = images, classes, 4

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1, self.layer2 = (
            nn.Sequential(Basic(16, 16, 1), Basic(16, 16, 1)),
            nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1)),
        )
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class Inverse(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(a, 4 * a, 1, bias=False), nn.BatchNorm2d(4 * a), nn.ReLU6())
        self.dw = nn.Sequential(
            nn.Conv2d(4 * a, 4 * a, 3, stride, 1, groups=4 * a, bias=False), nn.BatchNorm2d(4 * a), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(4 * a, b, 1, bias=False), nn.BatchNorm2d(b))
        self.add = stride == 1 and a == b

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.dw(self.expand(x)))
        return x + y if self.add else y


class Mobile(nn.Module):
    """Inverted residuals."""

    data, loss, epochs = images, classes, 5

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6())
        self.body = nn.Sequential(Inverse(12, 12, 1), Inverse(12, 16, 2), Inverse(16, 16, 1))
        self.last = nn.Sequential(nn.Conv2d(16, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU6())
        self.fc = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.body(self.stem(x))).mean((2, 3)))


class Bert(nn.Module):
    """An encoder with norms behind, learned positions and a pooled first word."""

    data, loss, epochs, rate = texts, classes, 10, 1e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(120, 32), nn.Embedding(20, 32), nn.LayerNorm(32)
        layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True) for _ in range(2)]
        self.layers, self.pool, self.out = nn.ModuleList(layers), nn.Linear(32, 32), nn.Linear(32, 5)
        self.register_buffer("at", torch.arange(20))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions(self.at))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.pool(x.mean(1)).tanh())


class Forecast(nn.Module):
    """An LSTM that foretells a number."""

    data, loss, epochs, rate = series, squares, 12, 5e-3

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc1, self.fc2 = nn.LSTM(4, 24, batch_first=True), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.lstm(x)[0][:, -1]).relu())


class Moves(nn.Module):
    """A GRU of two layers over strided convolutions."""

    data, loss, epochs, rate = motions, classes, 8, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(6, 16, 5, 2, 2), nn.Conv1d(16, 24, 3, 2, 1)
        self.gru, self.fc = nn.GRU(24, 24, 2, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        return self.fc(self.gru(x.transpose(1, 2))[0].mean(1))


def masks() -> tuple[Tensor, Tensor]:
    """Shapes and which pixels are theirs."""
    return shapes()["x"], shapes()["mask"]


def block(a: int, b: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))


class Segment(nn.Module):
    """A U-Net with transposed convolutions: classes of pixels."""

    data, loss, epochs = masks, classes, 4

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.mid = block(3, 12), block(12, 16, 2), block(16, 24, 2)
        self.u2, self.u1 = nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 12, 2, 2)
        self.m2, self.m1, self.out = block(32, 16), block(24, 12), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(a)
        x = self.m2(torch.cat([self.u2(self.mid(b)), b], 1))
        return self.out(self.m1(torch.cat([self.u1(x), a], 1)))


class Generator(nn.Module):
    """Pictures from codes, by transposed convolutions, as GANs make them."""

    data, loss, epochs, rate = codes, squares, 12, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 32 * 9)
        self.up1, self.bn1 = nn.ConvTranspose2d(32, 24, 4, 2, 1), nn.BatchNorm2d(24)
        self.up2, self.bn2 = nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.BatchNorm2d(16)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.fc(z).relu().unflatten(1, (32, 3, 3))
        return self.out(self.bn2(self.up2(self.bn1(self.up1(x)).relu())).relu()).tanh()


def boxes() -> tuple[Tensor, Tensor]:
    """Shapes; box in pixels and class, one hot."""
    return shapes()["x"], torch.cat([shapes()["box"], F.one_hot(shapes()["y"], 6).float()], 1)


def box_loss(result: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(result[:, :4], y[:, :4]) + F.mse_loss(result[:, 4:], y[:, 4:]) * 5


class Detect(nn.Module):
    """Box and scores of one object in a single tensor."""

    data, loss, epochs, rate = boxes, box_loss, 8, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.b1, self.b2, self.b3 = block(3, 16, 2), block(16, 24, 2), block(24, 32)
        self.fc, self.box, self.score = nn.Linear(512, 64), nn.Linear(64, 4), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(self.b3(self.b2(self.b1(x))).flatten(1)).relu()
        return torch.cat([self.box(x), self.score(x).sigmoid()], 1)


def same() -> tuple[Tensor, Tensor]:
    """Shapes twice."""
    return shapes()["x"], shapes()["x"]


class Auto(nn.Module):
    """A convolutional autoencoder with batch norm."""

    data, loss, epochs = same, squares, 6

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2, self.code = block(3, 16, 2), block(16, 24, 2), nn.Conv2d(24, 12, 1)
        self.d1, self.d2 = block(12, 24), block(24, 16)
        self.out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.d1(F.interpolate(self.code(self.e2(self.e1(x))), scale_factor=2))
        return self.out(self.d2(F.interpolate(x, scale_factor=2)))


class TextCnn(nn.Module):
    """Convolutions of three widths over words, the maximum over time."""

    data, loss, epochs = texts, classes, 5

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(120, 24)
        self.convs, self.fc = nn.ModuleList(nn.Conv1d(24, 16, k, padding=k // 2) for k in (1, 3, 5)), nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.fc(torch.cat([conv(x).relu().amax(2) for conv in self.convs], 1))


def anywhere(places: tuple[str, ...], *causes: str) -> list[tuple[str, str]]:
    return [(place, cause) for place in places for cause in causes]


def asks(kind: Any, place: str, **changes: Any) -> Callable[[], Planted]:
    return lambda: override(patient(kind, recipe=Recipe(activation=Scheme(observer="minmax"))), place, **changes)


def held(kind: Any, change: Callable[[Any], object], **rest: Any) -> Callable[[], Planted]:
    """Something is done to a calibrated simulation."""

    def make() -> Planted:
        case = patient(kind, **rest)
        sim = calibrated(case)
        change(sim)
        return patient(kind, sim=sim, **rest)

    return make


def scaled(point: str, factor: float, shift: int = 0) -> Callable[[Any], None]:
    def change(sim: Any) -> None:
        p = sim.points[next(name for name in sim.points if name.startswith(point))]
        p.set(float(p.scale) * factor, int(p.zero_point) + shift)

    return change


def _high_rate() -> Planted:
    torch.manual_seed(3)
    net = copy.deepcopy(trained(Res))
    train(net.train(), torch.optim.SGD(net.parameters(), 60.0), 1)
    case = patient(Res)
    import intact8

    sim = intact8.prepare(case.model, case.calibration[:2], case.recipe)
    intact8.calibrate(sim, case.calibration)
    sim.eval()
    state = net.state_dict()
    with torch.no_grad():
        for name, tensor in sim.state_dict().items():
            if name in state and torch.isfinite(state[name]).all():
                tensor.copy_(state[name])
    return patient(Res, sim=sim)


def _frozen(kind: Any, layer: str, factor: float) -> Callable[[], Planted]:
    """Scales frozen; then a layer went on learning."""

    def change(sim: Any) -> None:
        with torch.no_grad():
            sim.get_parameter(layer).mul_(factor)

    return held(kind, change)


# Preparation of inputs.
plant(
    "res_uint8",
    shown(Res, lambda x: (x * shapes()["std"][:, None, None] + shapes()["mean"][:, None, None]) * 255),
    (NETWORK, WRONG),
)
plant(
    "mobile_not_normalized",
    shown(Mobile, lambda x: x * shapes()["std"][:, None, None] + shapes()["mean"][:, None, None]),
    (NETWORK, WRONG),
)
plant("lenet_channel_order", shown(Lenet, lambda x: x.flip(1)), (NETWORK, WRONG))
plant(
    "segment_uint8_calibration",
    shown(Segment, lambda x: (x * shapes()["std"][:, None, None] + shapes()["mean"][:, None, None]) * 255, False),
    (DATA, "unlike_data"),
)
plant("moves_wrong_units", shown(Moves, lambda x: x * 9.81, False), (DATA, "unlike_data"))
plant("forecast_not_scaled", shown(Forecast, lambda x: x * 20 + 10, False), (DATA, "unlike_data"))
# Calibration data.
plant(
    "detect_noise_calibration",
    shown(Detect, lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(7)), False),
    (DATA, "unlike_data"),
)
plant("auto_three_images", lambda: patient(Auto, calibration=shapes()["x"][:3]), (DATA, "too_few"))
plant("res_outlier", shown(Res, lambda x: torch.cat([x[:-1], x[-1:] * 40]), False), (DATA, "outlier_sample"))
plant(
    "text_one_class",
    lambda: patient(TextCnn, calibration=texts()[0][:TRAINED][texts()[1][:TRAINED] == 2][:SHOWN]),
    (DATA, "one_class"),
)
# Modes and numbers.
plant("mobile_training_mode", changed(Mobile, lambda net: net.train()), (NETWORK, "training_mode"))
plant("bert_dropout", changed(Bert, lambda net: net.layers[1].train()), (NETWORK, "training_mode"))
plant("generator_nan", written(Generator, "up2.weight", lambda w: w[3, 2].fill_(float("nan"))), ("up2", "not_finite"))
plant(
    "bert_half",
    changed(Bert, lambda net: [p.copy_(p.half().float()) for p in net.parameters()]),
    (NETWORK, "rounded_weights"),
)
plant("res_diverged", _high_rate, (NETWORK, "diverged_training"))
# Norms.
plant(
    "segment_stats_not_loaded",
    changed(Segment, lambda net: net.mid[1].reset_running_stats()),
    ("mid.0", "stale_batch_norm"),
)
plant(
    "res_bn_eps",
    changed(Res, lambda net: setattr(net.layer1[1].bn1, "eps", 10.0)),
    ("layer1.1.conv1", "stale_batch_norm"),
    ("layer1.1.conv1", "wrong_setting"),
)
plant(
    "auto_variance_as_deviation",
    changed(Auto, lambda net: net.d1[1].running_var.sqrt_().mul_(0.05)),
    ("d1.0", "stale_batch_norm"),
)
plant("generator_stats", changed(Generator, lambda net: net.bn1.running_mean.add_(3.0)), ("up1", "stale_batch_norm"))
# Weights.
plant(
    "res_swapped",
    changed(Res, lambda net: swap(net, "layer1.0.conv1.weight", "layer1.1.conv2.weight")),
    *anywhere(("layer1.0.conv1", "layer1.1.conv2"), "wrong_weights"),
)
plant("lenet_reinitialized", changed(Lenet, lambda net: reset(net, "f2")), ("f2", "wrong_weights"))
plant(
    "mobile_reinitialized",
    changed(Mobile, lambda net: reset(net, "body.1.project.0")),
    ("body.1.project.0", "wrong_weights"),
)
plant(
    "bert_query_key_swapped",
    changed(
        Bert,
        lambda net: (
            net.layers[0]
            .self_attn.in_proj_weight[:64]
            .copy_(net.layers[0].self_attn.in_proj_weight[:64].roll(32, 0).flip(0))
        ),
    ),
    *anywhere(("layers.0.self_attn", "layers.0.self_attn.linear", "layers.0.self_attn.in_proj"), "wrong_weights"),
)
plant("text_embedding_reinitialized", changed(TextCnn, lambda net: reset(net, "words")), ("words", "wrong_weights"))
plant(
    "forecast_exploded",
    written(Forecast, "fc1.weight", lambda w: w[5].mul_(300)),
    ("fc1", "exploded_channel"),
    ("fc1", "exploded_weight"),
)
plant(
    "segment_exploded_weight",
    written(Segment, "m2.0.weight", lambda w: w[2, 3, 1, 1].add_(40)),
    ("m2.0", "exploded_weight"),
)
plant("moves_huge_bias", written(Moves, "conv2.bias", lambda b: b[4].fill_(500.0)), ("conv2", "exploded_channel"))
plant("detect_dead", changed(Detect, lambda net: net.fc.bias[:50].fill_(-100)), ("fc", "dead_channels"))
plant(
    "mobile_duplicated",
    written(Mobile, "last.0.weight", lambda w: w.copy_(w[:1].expand_as(w))),
    ("last.0", "wrong_weights"),
)
plant(
    "moves_gate_saturated",
    written(Moves, "gru.bias_ih_l1", lambda b: b[24:48].add_(60.0)),
    ("gru*", "exploded_weight"),
    ("gru*", "wrong_weights"),
)
plant(
    "lenet_huge_layer",
    written(Lenet, "c2.weight", lambda w: w.mul_(50)),
    ("c2", "wrong_scale"),
    ("c2", "exploded_weight"),
)
# Wiring and labels.
plant(
    "auto_missing_activation", changed(Auto, lambda net: setattr(net.d1, "2", nn.Identity())), ("d1.0", "wrong_setting")
)
plant(
    "segment_wrong_padding",
    changed(Segment, lambda net: (setattr(net.d2[0], "padding", (0, 0)), net.d2.insert(0, nn.ZeroPad2d((0, 2, 0, 2))))),
    *anywhere(("d2.0", "d2.1", "d2.1.pad", "pad"), "wrong_setting", "stale_batch_norm"),
)
plant("mobile_labels_shifted", labelled(Mobile, lambda y: (y + 1) % 6), (NETWORK, WRONG))
# Quantization.
plant("mobile_two_bits", asks(Mobile, "body.1.dw.0", weight={"bits": 2}), ("body.1.dw.0", "few_bits"))
plant(
    "generator_percentile",
    asks(Generator, "up1", activation={"observer": "percentile", "observer_args": {"percentile": 90.0}}),
    ("up1", "clipped_range"),
)
plant(
    "detect_mixed_head",
    lambda: patient(Detect, recipe=Recipe(activation=Scheme(observer="minmax"))),
    *anywhere(("cat", "box", "score", "score.sigmoid", "sigmoid"), "shared_range"),
)
plant(
    "bert_wide",
    held(Bert, scaled("layers.1.linear1", 30.0)),
    *anywhere(("layers.1.linear1", "layers.1.gelu", "layers.1.linear1.gelu"), "wide_range"),
)
plant(
    "res_learned_scale_negative_zero_point",
    held(Res, scaled("layer2.0.conv1", 1.0, 70)),
    ("layer2.0.conv1", "zero_point"),
    ("layer2.0.conv1", "clipped_range"),
)
plant("moves_stale_observers", _frozen(Moves, "conv1.weight", 6.0), ("conv1", "stale_range"))
plant(
    "segment_per_tensor",
    changed(
        Segment,
        lambda net: (
            net.d1[1].weight.mul_(torch.tensor([40.0] + [1.0] * 11)),
            net.d1[1].bias.mul_(torch.tensor([40.0] + [1.0] * 11)),
            net.d2[0].weight[:, 0].div_(40),
            net.m1[0].weight[:, 12].div_(40),
        ),
        recipe=Recipe(weight=Scheme(dtype="int8", symmetric=True, observer="minmax"), equalize=False),
    ),
    *anywhere(("d1.0", "u1", "cat_1"), "outlier_channel", "channel_imbalance", "per_tensor_weight", "shared_range"),
)


class LenetWithout(Lenet):
    """The same network; someone forgot an activation."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.c1(x).tanh(), 2)
        x = F.avg_pool2d(self.c2(x).tanh(), 2)
        return self.f3(self.f2(self.f1(x.flatten(1))).tanh())


def _without() -> Planted:
    net = LenetWithout()
    net.load_state_dict(trained(Lenet).state_dict())
    return patient(Lenet, net.eval())


plant("lenet_missing_activation", _without, ("f1", "wrong_setting"))
SOUND = (Lenet, Res, Mobile, Bert, Forecast, Moves, Segment, Generator, Detect, Auto, TextCnn)
